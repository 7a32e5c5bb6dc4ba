use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::Epoch;
use tasuki_store::NewWorker;
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::node::coordination::node_rpc::{
    DetachedWorkerContinueRequest, StartOrder, WorkerStatus,
};
use crate::operator::{AccessRole, Actor};
use crate::{Operator, Wakeups};

/// A call that a worker received.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Cancel(WorkerId, Epoch, Vec<RunId>),
    Drain(WorkerId, Epoch),
    Reload(WorkerId, i64),
}

/// Peers that report each call to the test and respond when the test allows it.
struct FakePeers {
    calls: mpsc::UnboundedSender<Call>,
    responses: BTreeMap<WorkerId, Semaphore>,
    unresponsive: Mutex<BTreeSet<WorkerId>>,
}

impl FakePeers {
    async fn record(&self, call: Call) -> Result<OrderResponse, PeerUnreachable> {
        let (Call::Cancel(worker, ..) | Call::Drain(worker, _) | Call::Reload(worker, _)) = call;
        self.calls.send(call).unwrap();
        if self.unresponsive.lock().unwrap().contains(&worker) {
            return Err(PeerUnreachable("no response".to_owned()));
        }
        self.responses[&worker].acquire().await.unwrap().forget();
        Ok(OrderResponse::Accepted)
    }
}

#[async_trait]
impl Peers for FakePeers {
    async fn ping(&self, _: &Peer) -> Result<WorkerId, PeerUnreachable> {
        Err(PeerUnreachable("not used in this test".to_owned()))
    }

    async fn status(&self, _: &Peer) -> Result<WorkerStatus, PeerUnreachable> {
        Err(PeerUnreachable("not used in this test".to_owned()))
    }

    async fn start(&self, _: &Peer, _: &StartOrder) -> Result<OrderResponse, PeerUnreachable> {
        Err(PeerUnreachable("not used in this test".to_owned()))
    }

    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable> {
        self.record(Call::Cancel(peer.worker, order.epoch, order.runs.clone())).await
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable> {
        self.record(Call::Drain(peer.worker, epoch)).await
    }

    async fn confirm(
        &self,
        _: &Peer,
        _: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        Err(PeerUnreachable("not used in this test".to_owned()))
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable> {
        self.record(Call::Reload(peer.worker, version)).await
    }
}

/// Workers in a database with a leader, and an outbox whose hints are sent to them.
struct Fixture {
    store: Store,
    wakeups: Wakeups,
    peers: Arc<FakePeers>,
    calls: mpsc::UnboundedReceiver<Call>,
}

const EPOCH: Epoch = Epoch(1);

impl Fixture {
    async fn new(workers: u128) -> Self {
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        for number in 1..=workers {
            let worker = NewWorker {
                id: id(number),
                node: format!("node-{number}").parse().unwrap(),
                pid: None,
                address: Some(format!("host-{number}:1")),
                labels: None,
                slots: 1,
                function_slots: 1,
            };
            store.register_worker(&worker).await.unwrap();
        }
        let epoch = store
            .take_leadership(id(1), Epoch(0), Epoch(0), Duration::from_secs(60))
            .await
            .unwrap();
        assert_eq!(epoch, Some(EPOCH));
        let responses = (1..=workers).map(|number| (id(number), Semaphore::new(0))).collect();
        let (sender, calls) = mpsc::unbounded_channel();
        let peers =
            Arc::new(FakePeers { calls: sender, responses, unresponsive: Mutex::default() });
        Self { store, wakeups: Wakeups::default(), peers, calls }
    }

    /// Starts sending the queued hints.
    async fn send(&self) {
        let (wakeups, store, peers) =
            (self.wakeups.clone(), self.store.clone(), self.peers.clone());
        tokio::spawn(
            async move { wakeups.outbox_of_worker_hints().run_sender(&store, &*peers).await },
        );
        while !self.wakeups.outbox_of_worker_hints().state().has_sender {
            tokio::task::yield_now().await;
        }
    }

    async fn next_call(&mut self) -> Call {
        let call = tokio::time::timeout(Duration::from_secs(30), self.calls.recv()).await;
        call.expect("a worker is called").unwrap()
    }

    fn respond(&self, worker: WorkerId) {
        self.peers.responses[&worker].add_permits(1);
    }
}

fn id(number: u128) -> WorkerId {
    WorkerId::from_random(number)
}

fn cancel(worker: WorkerId, runs: impl IntoIterator<Item = i64>) -> Call {
    Call::Cancel(worker, EPOCH, runs.into_iter().map(RunId).collect())
}

#[tokio::test]
async fn hints_added_during_a_call_are_sent_together() {
    let mut fixture = Fixture::new(1).await;
    fixture.send().await;
    let (wakeups, worker) = (fixture.wakeups.clone(), id(1));
    wakeups.outbox_of_worker_hints().enqueue_cancel(worker, RunId(1));
    assert_eq!(fixture.next_call().await, cancel(worker, [1]));
    (2..1_000).for_each(|run| wakeups.outbox_of_worker_hints().enqueue_cancel(worker, RunId(run)));
    wakeups.outbox_of_worker_hints().enqueue_suspend(worker);
    fixture.respond(worker);
    // Not all runs are listed: a cancel hint for one run makes the worker check all its runs.
    assert_eq!(fixture.next_call().await, cancel(worker, 2..2 + MAX_RUNS_PER_CALL as i64));
    fixture.respond(worker);
    assert_eq!(fixture.next_call().await, Call::Drain(worker, EPOCH));
    fixture.respond(worker);
    wakeups.outbox_of_worker_hints().enqueue_cancel(worker, RunId(7));
    assert_eq!(fixture.next_call().await, cancel(worker, [7]));
}

#[tokio::test]
async fn an_unresponsive_worker_delays_no_other() {
    let mut fixture = Fixture::new(2).await;
    fixture.send().await;
    let (wakeups, slow, other) = (fixture.wakeups.clone(), id(1), id(2));
    wakeups.outbox_of_worker_hints().enqueue_suspend(slow);
    assert_eq!(fixture.next_call().await, Call::Drain(slow, EPOCH));
    for run in 1..100 {
        wakeups.outbox_of_worker_hints().enqueue_cancel(slow, RunId(run));
        wakeups.outbox_of_worker_hints().enqueue_cancel(other, RunId(run));
        assert_eq!(fixture.next_call().await, cancel(other, [run]));
        fixture.respond(other);
    }
    fixture.respond(slow);
    assert_eq!(fixture.next_call().await, cancel(slow, 1..100));
}

#[tokio::test]
async fn the_number_of_concurrent_calls_is_limited() {
    let count = MAX_CONCURRENT_CALLS as u128 + 5;
    let mut fixture = Fixture::new(count).await;
    fixture.send().await;
    fixture.wakeups.outbox_of_worker_hints().enqueue_reload(9);
    let mut called = BTreeSet::new();
    for _ in 0..MAX_CONCURRENT_CALLS {
        let Call::Reload(worker, 9) = fixture.next_call().await else { panic!("another call") };
        called.insert(worker);
    }
    assert_eq!((called.len(), fixture.calls.is_empty()), (MAX_CONCURRENT_CALLS, true));
    // Each response lets one more worker be called.
    for responded in called.clone().into_iter().take(5) {
        fixture.respond(responded);
        let Call::Reload(worker, 9) = fixture.next_call().await else { panic!("another call") };
        called.insert(worker);
    }
    assert_eq!(called.len(), count as usize);
}

#[tokio::test]
async fn hints_without_a_sender_are_not_stored() {
    let mut fixture = Fixture::new(1).await;
    fixture.wakeups.outbox_of_worker_hints().enqueue_cancel(id(1), RunId(1));
    fixture.wakeups.outbox_of_worker_hints().enqueue_reload(1);
    fixture.send().await;
    fixture.wakeups.outbox_of_worker_hints().enqueue_suspend(id(1));
    assert_eq!(fixture.next_call().await, Call::Drain(id(1), EPOCH));
}

#[tokio::test]
async fn a_worker_that_has_left_is_not_called() {
    let mut fixture = Fixture::new(2).await;
    fixture.send().await;
    assert!(fixture.store.mark_worker_gone(id(1)).await.unwrap());
    fixture.wakeups.outbox_of_worker_hints().enqueue_suspend(id(1));
    fixture.wakeups.outbox_of_worker_hints().enqueue_reload(2);
    assert_eq!(fixture.next_call().await, Call::Reload(id(2), 2));
    fixture.respond(id(2));
    while !fixture.wakeups.outbox_of_worker_hints().state().in_flight.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(fixture.calls.is_empty());
}

#[tokio::test]
async fn operator_actions_send_hints_to_the_workers_concerned() {
    let mut fixture = Fixture::new(3).await;
    fixture.send().await;
    let operator = Operator::new(fixture.store.clone(), fixture.wakeups.clone());
    let by = Actor { name: "ann".to_owned(), address: None, role: AccessRole::Admin };
    operator.drain_worker(&by, id(2)).await.unwrap();
    assert_eq!(fixture.next_call().await, Call::Drain(id(2), EPOCH));
    fixture.respond(id(2));
    operator.detach_worker(&by, id(3), "a test").await.unwrap();
    assert_eq!(fixture.next_call().await, Call::Drain(id(3), EPOCH));
    fixture.respond(id(3));
    // A refused action returns an error and sends no hint.
    operator.drain_worker(&by, id(2)).await.unwrap_err();
    let seen = operator.read_settings().await.unwrap().version;
    let now = operator.change_settings(&by, seen, &[("timeout", "1h")]).await.unwrap();
    let mut calls = [fixture.next_call().await, fixture.next_call().await];
    calls.sort_by_key(|call| matches!(call, Call::Reload(worker, _) if *worker == id(2)));
    assert_eq!(calls, [Call::Reload(id(1), now.version), Call::Reload(id(2), now.version)]);
    assert!(fixture.calls.is_empty(), "a detached worker gets no settings hint");
}

/// Each unresponsive worker occupies one of the concurrent calls until its timeout.
#[tokio::test]
async fn unresponsive_workers_are_called_last() {
    let many = MAX_CONCURRENT_CALLS as u128 + 2;
    let mut fixture = Fixture::new(many).await;
    let unresponsive: BTreeSet<WorkerId> = (1..many).map(id).collect();
    *fixture.peers.unresponsive.lock().unwrap() = unresponsive;
    fixture.respond(id(many));
    fixture.send().await;
    let wakeups = fixture.wakeups.clone();
    let mut first = Vec::new();
    for version in [1, 2] {
        wakeups.outbox_of_worker_hints().enqueue_reload(version);
        for call in 0..many {
            let Call::Reload(worker, called_version) = fixture.next_call().await else {
                panic!("only reload calls")
            };
            assert_eq!(called_version, version);
            if call == 0 {
                first.push(worker);
            }
        }
        fixture.respond(id(many));
        while !fixture.wakeups.outbox_of_worker_hints().state().in_flight.is_empty() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(first, [id(1), id(many)]);
}
