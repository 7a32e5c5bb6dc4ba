use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::Epoch;
use tasuki_store::NewWorker;
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::node::coordination::peers::{Question, StartOrder, Status};
use crate::operator::{Actor, Role};
use crate::{Operator, Wake};

/// What somebody was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Cancel(WorkerId, Epoch, Vec<RunId>),
    Drain(WorkerId, Epoch),
    Reload(WorkerId, i64),
}

/// Tells the test who is called, and lets each call be answered when it says so.
struct Phone {
    calls: mpsc::UnboundedSender<Told>,
    answers: BTreeMap<WorkerId, Semaphore>,
    deaf: Mutex<BTreeSet<WorkerId>>,
}

impl Phone {
    async fn call(&self, told: Told) -> Result<Answer, Silent> {
        let (Told::Cancel(worker, ..) | Told::Drain(worker, _) | Told::Reload(worker, _)) = told;
        self.calls.send(told).unwrap();
        if self.deaf.lock().unwrap().contains(&worker) {
            return Err(Silent("nobody answers".to_owned()));
        }
        self.answers[&worker].acquire().await.unwrap().forget();
        Ok(Answer::Accepted)
    }
}

#[async_trait]
impl Peers for Phone {
    async fn ping(&self, _: &Peer) -> Result<WorkerId, Silent> {
        Err(Silent("nobody asks that here".to_owned()))
    }

    async fn status(&self, _: &Peer) -> Result<Status, Silent> {
        Err(Silent("nobody asks that here".to_owned()))
    }

    async fn start(&self, _: &Peer, _: &StartOrder) -> Result<Answer, Silent> {
        Err(Silent("nobody asks that here".to_owned()))
    }

    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent> {
        self.call(Told::Cancel(peer.worker, order.epoch, order.runs.clone())).await
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent> {
        self.call(Told::Drain(peer.worker, epoch)).await
    }

    async fn confirm(&self, _: &Peer, _: &Question) -> Result<Vec<RunId>, Silent> {
        Err(Silent("nobody asks that here".to_owned()))
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent> {
        self.call(Told::Reload(peer.worker, version)).await
    }
}

/// Workers of a database at some epoch, and somebody who sends word to them.
struct World {
    store: Store,
    wake: Wake,
    phone: Arc<Phone>,
    calls: mpsc::UnboundedReceiver<Told>,
}

const EPOCH: Epoch = Epoch(1);

impl World {
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
        let minted = store.mint(id(1), Epoch(0), Epoch(0), Duration::from_secs(60)).await.unwrap();
        assert_eq!(minted, Some(EPOCH));
        let answers = (1..=workers).map(|number| (id(number), Semaphore::new(0))).collect();
        let (told, calls) = mpsc::unbounded_channel();
        let phone = Arc::new(Phone { calls: told, answers, deaf: Mutex::default() });
        Self { store, wake: Wake::default(), phone, calls }
    }

    /// From now on what is left is sent.
    async fn send(&self) {
        let (wake, store, phone) = (self.wake.clone(), self.store.clone(), self.phone.clone());
        tokio::spawn(async move { wake.words().send(&store, &*phone).await });
        while !self.wake.words().kept().sent {
            tokio::task::yield_now().await;
        }
    }

    async fn told(&mut self) -> Told {
        let told = tokio::time::timeout(Duration::from_secs(30), self.calls.recv()).await;
        told.expect("somebody is called").unwrap()
    }

    fn answer(&self, worker: WorkerId) {
        self.phone.answers[&worker].add_permits(1);
    }
}

fn id(number: u128) -> WorkerId {
    WorkerId::from_random(number)
}

fn cancel(worker: WorkerId, runs: impl IntoIterator<Item = i64>) -> Told {
    Told::Cancel(worker, EPOCH, runs.into_iter().map(RunId).collect())
}

#[tokio::test]
async fn what_concerns_a_worker_while_it_is_called_travels_together() {
    let mut world = World::new(1).await;
    world.send().await;
    let (words, one) = (world.wake.clone(), id(1));
    words.words().canceled(one, RunId(1));
    assert_eq!(world.told().await, cancel(one, [1]));
    (2..1_000).for_each(|run| words.words().canceled(one, RunId(run)));
    words.words().aside(one);
    world.answer(one);
    // Not all are named: who hears of one looks at all it carries.
    assert_eq!(world.told().await, cancel(one, 2..2 + NAMED as i64));
    world.answer(one);
    assert_eq!(world.told().await, Told::Drain(one, EPOCH));
    world.answer(one);
    words.words().canceled(one, RunId(7));
    assert_eq!(world.told().await, cancel(one, [7]));
}

#[tokio::test]
async fn who_does_not_answer_keeps_nobody_waiting() {
    let mut world = World::new(2).await;
    world.send().await;
    let (words, silent, other) = (world.wake.clone(), id(1), id(2));
    words.words().aside(silent);
    assert_eq!(world.told().await, Told::Drain(silent, EPOCH));
    for run in 1..100 {
        words.words().canceled(silent, RunId(run));
        words.words().canceled(other, RunId(run));
        assert_eq!(world.told().await, cancel(other, [run]));
        world.answer(other);
    }
    world.answer(silent);
    assert_eq!(world.told().await, cancel(silent, 1..100));
}

#[tokio::test]
async fn so_many_are_called_at_once_and_no_more() {
    let count = AT_ONCE as u128 + 5;
    let mut world = World::new(count).await;
    world.send().await;
    world.wake.words().settings(9);
    let mut called = BTreeSet::new();
    for _ in 0..AT_ONCE {
        let Told::Reload(worker, 9) = world.told().await else { panic!("another word") };
        called.insert(worker);
    }
    assert_eq!((called.len(), world.calls.is_empty()), (AT_ONCE, true));
    // Each that answers lets one more be called.
    for answered in called.clone().into_iter().take(5) {
        world.answer(answered);
        let Told::Reload(worker, 9) = world.told().await else { panic!("another word") };
        called.insert(worker);
    }
    assert_eq!(called.len(), count as usize);
}

#[tokio::test]
async fn word_that_nobody_sends_is_not_kept() {
    let mut world = World::new(1).await;
    world.wake.words().canceled(id(1), RunId(1));
    world.wake.words().settings(1);
    world.send().await;
    world.wake.words().aside(id(1));
    assert_eq!(world.told().await, Told::Drain(id(1), EPOCH));
}

#[tokio::test]
async fn who_has_left_is_not_called() {
    let mut world = World::new(2).await;
    world.send().await;
    assert!(world.store.worker_gone(id(1)).await.unwrap());
    world.wake.words().aside(id(1));
    world.wake.words().settings(2);
    assert_eq!(world.told().await, Told::Reload(id(2), 2));
    world.answer(id(2));
    while !world.wake.words().kept().called.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(world.calls.is_empty());
}

#[tokio::test]
async fn what_people_do_is_told_to_those_it_concerns() {
    let mut world = World::new(3).await;
    world.send().await;
    let operator = Operator::new(world.store.clone(), world.wake.clone());
    let by = Actor { name: "ann".to_owned(), address: None, role: Role::Admin };
    operator.drain_worker(&by, id(2)).await.unwrap();
    assert_eq!(world.told().await, Told::Drain(id(2), EPOCH));
    world.answer(id(2));
    operator.detach_worker(&by, id(3), "a test").await.unwrap();
    assert_eq!(world.told().await, Told::Drain(id(3), EPOCH));
    world.answer(id(3));
    // Who could not is told so, and nobody else is.
    operator.drain_worker(&by, id(2)).await.unwrap_err();
    let seen = operator.settings().await.unwrap().version;
    let now = operator.change_settings(&by, seen, &[("timeout", "1h")]).await.unwrap();
    let mut told = [world.told().await, world.told().await];
    told.sort_by_key(|told| matches!(told, Told::Reload(worker, _) if *worker == id(2)));
    assert_eq!(told, [Told::Reload(id(1), now.version), Told::Reload(id(2), now.version)]);
    assert!(world.calls.is_empty(), "who was cut off is left alone");
}

/// Each of them takes up a line until it is given up.
#[tokio::test]
async fn who_did_not_answer_is_called_after_those_who_did() {
    let many = AT_ONCE as u128 + 2;
    let mut world = World::new(many).await;
    let deaf: BTreeSet<WorkerId> = (1..many).map(id).collect();
    *world.phone.deaf.lock().unwrap() = deaf;
    world.answer(id(many));
    world.send().await;
    let words = world.wake.clone();
    let mut first = Vec::new();
    for version in [1, 2] {
        words.words().settings(version);
        for call in 0..many {
            let Told::Reload(worker, told) = world.told().await else { panic!("settings only") };
            assert_eq!(told, version);
            if call == 0 {
                first.push(worker);
            }
        }
        world.answer(id(many));
        while !world.wake.words().kept().called.is_empty() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(first, [id(1), id(many)]);
}
