//! Simulated hosts: the incarnations of a node that start and end there, and their pending ticks.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::{NodeName, WorkerId};
use tasuki_store::{AttemptReport, Error, NewWorker, PendingTask, Store};

use super::network::{NodeDirectory, SimPeers};
use super::processes::{RecordedExit, SimExecutor};
use super::state::{SimClock, SimDatabaseLink, SimState};
use crate::Wakeups;
use crate::node::clock_and_random::{Clock, Random};
use crate::node::coordination::coordinator_trait::Coordinator;
use crate::node::coordination::node_rpc::{NodeRpc, Peers};
use crate::node::coordination::rpc_handler::NodeService;
use crate::node::executor::attempt_input_and_result::{self, CompletionQueue};
use crate::node::worker::HeartbeatResult;
use crate::node::worker::WorkerParts;
use crate::node::worker::configured_slots_and_lanes::{LaneWithSlotPool, ServedQueues, SlotCounts};
use crate::node::worker_ids_of_process::WorkerIdentity;
use crate::node::{Leader, Worker};
use crate::spawner::AttemptKey;

/// Number of command slots and of function slots of a worker.
pub(super) const SLOTS: (u32, u32) = (3, 4);
/// Name of the function that every worker has.
pub(super) const FUNCTION: &str = "count";

/// A future that the simulation polls.
pub(super) type PendingFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

/// A host with at most one running node.
pub(super) struct Host {
    pub(super) index: usize,
    pub(super) name: NodeName,
    pub(super) incarnation: Option<Incarnation>,
    /// The node was stopped with SIGSTOP, and gets SIGCONT at this instant.
    pub(super) stopped_until: Option<u64>,
    /// Incarnations that died and are not marked as dead yet.
    pub(super) unreported: Vec<WorkerId>,
}

/// One incarnation of a node.
pub(super) struct Incarnation {
    pub(super) id: WorkerId,
    pub(super) worker: Arc<Worker>,
    pub(super) leader: Arc<Leader>,
    pub(super) rpc_service: Arc<dyn NodeRpc>,
    peers: Arc<dyn Peers>,
    name: NodeName,
    /// All worker ids that it has had, including the current one.
    worker_ids: Arc<Mutex<Vec<WorkerId>>>,
    store: Store,
    pub(super) ticks: Vec<(Tick, PendingFuture<HeartbeatResult>)>,
}

/// Kinds of ticks that a node runs again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tick {
    Heartbeat,
    StartDue,
    Claim,
    LocalSubmit,
    Renew,
    RenewAll,
    EnforceDeadlines,
    Report,
    ElectOrRenew,
    Plan,
    Recover,
    Resign,
    CheckWorkers,
    CheckLeader,
    StepDetached,
}

impl Host {
    pub(super) fn new(index: usize) -> Self {
        let name = format!("node-{index}").parse().expect("the name is valid");
        Self { index, name, incarnation: None, stopped_until: None, unreported: Vec::new() }
    }

    /// Whether a node runs there and is not stopped.
    pub(super) fn is_up(&self) -> bool {
        self.incarnation.is_some() && self.stopped_until.is_none()
    }

    /// Kills the node's process in the middle of its ticks.
    pub(super) fn crash(&mut self, state: &SimState) {
        self.stopped_until = None;
        state.lock().frozen[self.index] = false;
        let Some(incarnation) = self.incarnation.take() else { return };
        state.log(|| format!("node {} crashes", self.index));
        state.lock().remove_incarnation(incarnation.id);
        self.unreported.extend(incarnation.worker_ids());
    }
}

impl Incarnation {
    /// All worker ids that this incarnation has had.
    pub(super) fn worker_ids(&self) -> Vec<WorkerId> {
        self.worker_ids.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Parameters of a new incarnation.
pub(super) struct NodeStart {
    pub(super) state: SimState,
    pub(super) store: Store,
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) nodes: NodeDirectory,
    pub(super) host: usize,
    pub(super) name: NodeName,
    pub(super) id: WorkerId,
    /// Earlier incarnations that this one marks as dead.
    pub(super) unreported: Vec<WorkerId>,
}

impl NodeStart {
    /// Reports the recorded exits of earlier incarnations, marks them as dead, and starts.
    pub(super) async fn start(self) -> Result<Incarnation, Error> {
        let Self { state, host, id, name, .. } = self;
        let link = SimDatabaseLink { state: state.clone(), host };
        let store = self.store.with_fault_injector(Arc::new(link));
        for &earlier in &self.unreported {
            report_recorded_exits(&state, &store, earlier).await?;
            store.mark_worker_dead(earlier, &name).await?;
        }
        let worker = NewWorker {
            id,
            node: name.clone(),
            pid: None,
            address: Some(format!("host-{host}")),
            labels: Some(format!("[\"function={FUNCTION}\"]")),
            slots: SLOTS.0,
            function_slots: SLOTS.1,
        };
        store.register_worker(&worker).await?;
        let settings = Arc::new(store.load_settings().await?.settings);
        let worker_ids = Arc::new(Mutex::new(vec![id]));
        let (ids_to_extend, log_state) = (Arc::clone(&worker_ids), state.clone());
        let completions = CompletionQueue::default();
        let executor = SimExecutor {
            state: state.clone(),
            host,
            worker: id,
            completions: completions.clone(),
        };
        let parts = WorkerParts {
            store: store.clone(),
            clock: Arc::new(SimClock { state: state.clone(), host }),
            random: Arc::new(state.clone()),
            executor: Arc::new(executor),
            completions,
            wakeups: Wakeups::default(),
            slot_counts: Box::new(|_| SlotCounts { commands: SLOTS.0, queues: vec![SLOTS.1] }),
            lanes: [
                ServedQueues::default().lanes([FUNCTION].into_iter()),
                vec![LaneWithSlotPool::commands()],
            ]
            .concat(),
            registration: worker,
            prepare_incarnation: Box::new(move |id| {
                log_state.log(|| format!("node {host} registers again as {id}"));
                ids_to_extend.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }),
        };
        let identity = WorkerIdentity::from(id);
        let clock = Arc::new(SimClock { state: state.clone(), host });
        let clock_and_random: (Arc<dyn Clock>, Arc<dyn Random>) = (clock, Arc::new(state.clone()));
        let nodes = self.nodes;
        let peers: Arc<dyn Peers> =
            Arc::new(SimPeers { state: state.clone(), nodes: nodes.clone() });
        let (coordinator, peers_for_leader) = (self.coordinator, Arc::clone(&peers));
        let wakeups = Wakeups::default();
        let leader = Leader::new(
            identity.clone(),
            store.clone(),
            coordinator,
            peers_for_leader,
            clock_and_random,
            wakeups.clone(),
        );
        let (leader, worker) = (Arc::new(leader), Arc::new(Worker::new(identity, parts, settings)));
        let rpc_service: Arc<dyn NodeRpc> = Arc::new(NodeService {
            node: name.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wakeups,
        });
        nodes.register(host, &rpc_service);
        state.log(|| format!("node {host} starts as {id}"));
        Ok(Incarnation {
            id,
            worker,
            leader,
            rpc_service,
            peers,
            name,
            worker_ids,
            store,
            ticks: Vec::new(),
        })
    }
}

/// Reports exits that an earlier incarnation recorded and did not report.
async fn report_recorded_exits(
    state: &SimState,
    store: &Store,
    earlier: WorkerId,
) -> Result<(), Error> {
    let unreported: Vec<(AttemptKey, RecordedExit)> = {
        let inner = state.lock();
        let of_worker = inner.recorded_exits.iter().filter(|((worker, _), _)| *worker == earlier);
        of_worker.map(|((_, key), exit)| (*key, exit.clone())).collect()
    };
    for (key, RecordedExit { attempt, end }) in unreported {
        let random_bits = state.draw(|rng| rng.next() as u32);
        let result = attempt_input_and_result::attempt_result(&attempt.job, end, None, random_bits);
        let report = AttemptReport::new(attempt.token, attempt.run.id, result);
        store.finish(&[report], &[attempt.token]).await?;
        state.lock().recorded_exits.remove(&(earlier, key));
    }
    Ok(())
}

/// Submits tasks as a program in the worker's process would.
async fn submit_locally(worker: &Worker, store: &Store) -> Result<(), Error> {
    let Some(job) = store.find_job(&"call".parse()?).await? else { return Ok(()) };
    let task = PendingTask::new(Arc::new(job.newest));
    worker.submit_and_claim(&[task.clone(), task]).await.map(drop)
}

impl Incarnation {
    /// Creates a tick, ready to be polled.
    pub(super) fn tick(&self, tick: Tick) -> PendingFuture<HeartbeatResult> {
        let (worker, leader) = (Arc::clone(&self.worker), Arc::clone(&self.leader));
        let (store, name, peers) = (self.store.clone(), self.name.clone(), Arc::clone(&self.peers));
        Box::pin(async move {
            let settings = worker.settings();
            match tick {
                Tick::Heartbeat => return worker.heartbeat().await,
                Tick::StartDue => drop(worker.start_due().await?),
                Tick::Claim => drop(worker.claim_and_launch().await?),
                Tick::LocalSubmit => submit_locally(&worker, &store).await?,
                Tick::Renew => worker.renew(false).await?,
                Tick::RenewAll => worker.renew(true).await?,
                Tick::EnforceDeadlines => drop(worker.enforce_deadlines()),
                Tick::Report => drop(worker.report().await?),
                Tick::ElectOrRenew if worker.is_detached() => leader.resign().await?,
                Tick::ElectOrRenew => drop(leader.elect_or_renew(&settings).await?),
                Tick::Plan => {
                    let planned = leader.plan(&settings).await;
                    leader.send_orders().await;
                    planned?;
                }
                Tick::Recover => leader.recover(&settings).await?,
                Tick::Resign => leader.resign().await?,
                Tick::CheckWorkers => {
                    leader.detach_unresponsive_workers(&settings).await?;
                }
                Tick::CheckLeader => {
                    if !worker.is_suspended()
                        && leader.end_term_of_unresponsive_leader(&name, &settings).await?
                    {
                        leader.elect_or_renew(&settings).await?;
                    }
                }
                Tick::StepDetached => {
                    if worker.is_detached() {
                        leader.resign().await?;
                    }
                    worker.step_detach_procedure(&*peers).await?;
                }
            }
            Ok(HeartbeatResult::Alive)
        })
    }
}
