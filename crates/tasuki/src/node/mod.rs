//! The node: a worker and a possible leader in one process, run by loops over ticks that tests can call directly.
//!
//! A node without other nodes is worker and leader. Store, coordinator, peers, spawner, clock and randomness are
//! parameters. A loop whose tick failed tries again a little later; the node keeps no state that the database lacks.

pub mod clock_and_random;
pub mod config;
pub mod coordination;
mod data_dir;
pub mod executor;
pub(crate) mod job_version_cache;
pub(crate) mod leader;
mod loops;
#[cfg(test)]
mod manual_clock_tests;
mod outage_log;
mod store_timeout;
pub(crate) mod worker;
pub(crate) mod worker_ids_of_process;

use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::{InvalidInput, Settings, WorkerId};
use tasuki_store::{Error, NewWorker, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use crate::node::leader::job_scope_providers::{ProviderError, ScopeProvider};
pub use config::{Config, DjangoProject};
pub use data_dir::{DataDirError, DataDirLock};
pub use leader::Leader;
pub use worker::Worker;

use crate::handler::{Context, HandlerArgsFromJson, HandlerRegistry, TaskError, TaskSuccess};
use crate::node::coordination::coordinator_trait::{Coordinator, DatabaseOnly};
use crate::node::coordination::node_rpc::{InProcessPeers, NodeRpc, PeerRouter, Peers};
use crate::node::coordination::rpc_handler::NodeService;
use crate::node::executor::attempt_input_and_result::CompletionQueue;
use crate::node::executor::commands::CommandExecutor;
use crate::node::executor::executors::Executors;
use crate::node::executor::functions::FunctionExecutor;
use crate::node::executor::log_creation_batcher::LogCreationBatcher;
use crate::node::leader::job_scope_providers::RunScopeProviders;
use crate::node::worker::configured_slots_and_lanes::{LaneWithSlotPool, ServedQueues, SlotCounts};
use crate::node::worker_ids_of_process::WorkerIdentity;
use crate::{JobDeclaration, Operator, Wakeups, operator};
use clock_and_random::{Clock, OsRandom, Random, RealClock};
use loops::{ClusterContext, Loops};
use outage_log::OutageLog;
pub(crate) use store_timeout::with_timeout;

/// Polling interval while a stopping node waits for its runs to end.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a stopping node gives its loops to finish their current ticks.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A database operation failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The spawner, the process that starts commands, could not be started.
    #[error("spawner: {0}")]
    Spawner(std::io::Error),
    /// A declared job could not be created or updated.
    #[error(transparent)]
    DeclareJob(#[from] operator::Error),
    /// The name of a queue is invalid.
    #[error(transparent)]
    Queue(#[from] InvalidInput),
}

/// Configures and starts a [`Node`].
pub struct NodeBuilder {
    config: Config,
    store: Store,
    functions: HandlerRegistry,
    jobs: Vec<(JobDeclaration, DeclareMode)>,
    queues: Vec<(String, u32)>,
    wakeups: Wakeups,
    commands: Option<(DataDirLock, Command)>,
    coordinator: Arc<dyn Coordinator>,
    remote_peers: Option<Arc<dyn Peers>>,
}

/// What happens to a declared job that already exists when the node starts.
enum DeclareMode {
    /// The job is changed to match the declaration.
    Overwrite,
    /// The job stays as it is.
    IfMissing,
}

/// A running node.
pub struct Node {
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) scopes: Arc<RunScopeProviders>,
    pub(crate) store: Store,
    drain: Duration,
    stop: watch::Sender<bool>,
    end: watch::Sender<Option<&'static str>>,
    ended: watch::Receiver<Option<&'static str>>,
    loops: Vec<JoinHandle<()>>,
    executors: Arc<Executors>,
    data_dir: Option<Arc<DataDirLock>>,
    /// Kept here because [`InProcessPeers`] holds only a weak reference.
    rpc_service: Arc<dyn NodeRpc>,
}

impl NodeBuilder {
    /// Sets the functions of this node, and replaces earlier ones. Creates no jobs for them.
    pub fn functions(mut self, functions: HandlerRegistry) -> Self {
        self.functions = functions;
        self
    }

    /// Adds a handler, and a task job of the same name that calls it, unless a job of that name exists. See
    /// [`HandlerRegistry::register`] for the signature of a handler. Use [`NodeBuilder::job`] to configure the job.
    pub fn handler<A, R, D>(
        mut self,
        name: impl Into<String>,
        handler: impl Fn(A, Context) -> R + Send + Sync + 'static,
    ) -> Self
    where
        A: HandlerArgsFromJson,
        R: Future<Output = Result<D, TaskError>> + Send + 'static,
        D: Into<TaskSuccess>,
    {
        let name = name.into();
        self.functions.register(name.clone(), handler);
        if self.jobs.iter().all(|(job, _)| job.name() != name) {
            self.jobs.push((JobDeclaration::task(name), DeclareMode::IfMissing));
        }
        self
    }

    /// Declares a job: when the node starts, it creates the job or changes it to match the declaration.
    pub fn job(mut self, job: JobDeclaration) -> Self {
        self.jobs.retain(|(known, _)| known.name() != job.name());
        self.jobs.push((job, DeclareMode::Overwrite));
        self
    }

    /// Also serves this queue, with its own number of slots. For the default queue the number replaces the one from
    /// the settings. With 0 slots the node does not serve the queue. Commands have separate slots.
    pub fn queue(mut self, name: impl Into<String>, slots: u32) -> Self {
        self.queues.push((name.into(), slots));
        self
    }

    /// Changes the node's configuration: labels, slots, allowed programs and so on.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Uses these wake-ups, so that other code in this process can wake the node's loops.
    pub fn wakeups(mut self, wakeups: Wakeups) -> Self {
        self.wakeups = wakeups;
        self
    }

    /// Makes the node run commands. `data_dir` stores results and exit records until they are reported. `spawner` is
    /// the command that starts the spawner process: it must call [`spawner::run_spawner_of_data_dir`](crate::spawner::run_spawner_of_data_dir) with its
    /// standard input, and the lock file and the id of that directory.
    pub fn commands(mut self, data_dir: DataDirLock, spawner: Command) -> Self {
        self.commands = Some((data_dir, spawner));
        self
    }

    /// Sets the coordinator that this node shares with the other nodes. Default: [`DatabaseOnly`].
    pub fn coordinator(mut self, coordinator: Arc<dyn Coordinator>) -> Self {
        self.coordinator = coordinator;
        self
    }

    /// Sets the client for RPC calls to other nodes. The node itself can be called at [`Config::address`]: the RPC
    /// server at that port must use [`Node::rpc_service`].
    pub fn peers(mut self, peers: Arc<dyn Peers>) -> Self {
        self.remote_peers = Some(peers);
        self
    }

    /// Starts the node: creates declared jobs, recovers what earlier incarnations left in the data directory,
    /// registers the worker, and starts the loops.
    pub async fn start(self) -> Result<Node, NodeError> {
        let (mut node, loops) = self.assemble(Arc::new(RealClock)).await?;
        node.loops = loops.start(&node.end);
        Ok(node)
    }

    /// Builds and registers the node without starting its loops.
    pub(crate) async fn assemble(self, clock: Arc<dyn Clock>) -> Result<(Node, Loops), NodeError> {
        let Self {
            config,
            store,
            functions,
            jobs,
            queues,
            wakeups,
            commands,
            coordinator,
            remote_peers,
        } = self;
        let queues = ServedQueues::new(&queues)?;
        if config.address.is_some() {
            wakeups.set_notification_coordinator(Arc::clone(&coordinator));
        }
        let operator = Operator::new(store.clone(), wakeups.clone());
        let mut declared = Vec::with_capacity(jobs.len());
        for (job, mode) in &jobs {
            let node = config.node.as_str();
            let declared_job = match mode {
                DeclareMode::Overwrite => job.apply(&operator, node).await?,
                DeclareMode::IfMissing => job.create_job_if_missing(&operator, node).await?,
            };
            declared.push(declared_job.job);
        }
        let random: Arc<dyn Random> = Arc::new(OsRandom);
        let settings = Arc::new(store.load_settings().await?.settings);
        let id = WorkerId::from_random(random.next_u128());
        let completions = CompletionQueue::default();
        let (end, ended) = watch::channel(None);
        let log_batcher = LogCreationBatcher::new(store.clone());
        let (data_dir, commands) = match commands {
            None => (None, None),
            Some((data_dir, spawner)) => {
                let end = end.clone();
                let on_spawner_exit = move || {
                    // An error means that the node is stopping already.
                    let _ = end.send(Some("the spawner process ended"));
                };
                let command_executor = CommandExecutor::start_spawner(
                    spawner,
                    config.clone(),
                    data_dir.create_worker_dir(id)?,
                    log_batcher.clone(),
                    Arc::clone(&clock),
                    completions.clone(),
                    on_spawner_exit,
                );
                let command_executor = command_executor.await.map_err(NodeError::Spawner)?;
                data_dir
                    .report_exits_of_previous_workers(
                        &store,
                        &config.node,
                        id,
                        &*random,
                        config.max_log_bytes,
                    )
                    .await?;
                (Some(Arc::new(data_dir)), Some(command_executor))
            }
        };
        // A weak reference: the directory's lock is released when the node stops, although the worker may live longer.
        let weak_data_dir = data_dir.as_ref().map(Arc::downgrade);
        let prepare_incarnation = move |id: WorkerId| {
            let data_dir = weak_data_dir.as_ref().and_then(Weak::upgrade);
            // If this process is killed, the next process on this directory finds the worker there and reports it dead.
            if let Some(Err(error)) =
                data_dir.map(|data_dir: Arc<DataDirLock>| data_dir.create_worker_dir(id))
            {
                tracing::warn!(%error, "the directory for a new incarnation could not be created");
            }
        };
        let (runs_commands, fixed) = (commands.is_some(), config.slots);
        let mut lanes = queues.lanes(functions.names());
        if commands.is_some() {
            lanes.push(LaneWithSlotPool::commands());
        }
        let slots = move |settings: &Settings| SlotCounts {
            commands: if runs_commands { command_slots(fixed, settings) } else { 0 },
            queues: queues.function_slots(settings),
        };
        let registration = new_worker_row(id, &config, &functions, &slots(&settings));
        let function_executor = FunctionExecutor::new(
            functions,
            log_batcher,
            Arc::clone(&clock),
            completions.clone(),
            config.max_log_bytes,
        );
        let executors = Arc::new(Executors { commands, functions: function_executor });
        let parts = worker::WorkerParts {
            store: store.clone(),
            clock: Arc::clone(&clock),
            random: Arc::clone(&random),
            executor: Arc::clone(&executors)
                as Arc<dyn executor::attempt_input_and_result::Executor>,
            completions: completions.clone(),
            wakeups: wakeups.clone(),
            slot_counts: Box::new(slots),
            lanes,
            registration: registration.clone(),
            prepare_incarnation: Box::new(prepare_incarnation),
        };
        let identity = WorkerIdentity::from(id);
        let worker = Arc::new(Worker::new(identity.clone(), parts, settings));
        worker.warm_up(declared).await;
        // From here on the leader may assign runs to this worker.
        store.register_worker(&registration).await?;
        let local_peers = InProcessPeers::default();
        let peers: Arc<dyn Peers> =
            Arc::new(PeerRouter { local: local_peers.clone(), remote: remote_peers });
        let leader = Arc::new(Leader::new(
            identity,
            store.clone(),
            Arc::clone(&coordinator),
            Arc::clone(&peers),
            (clock, random),
            wakeups.clone(),
        ));
        let rpc_service: Arc<dyn NodeRpc> = Arc::new(NodeService {
            node: config.node.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wakeups: wakeups.clone(),
        });
        local_peers.register(&rpc_service);
        let (stop, stop_receiver) = watch::channel(false);
        let scopes = jobs.into_iter().filter_map(|(job, _)| {
            let provider = job.scopes.clone()?;
            Some((job.name().to_owned(), provider))
        });
        let scopes = Arc::new(RunScopeProviders::new(scopes.collect()));
        let loops = Loops {
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            scopes: Arc::clone(&scopes),
            store: store.clone(),
            completions,
            wakeups,
            stop: stop_receiver,
            cluster: ClusterContext {
                node: config.node.clone(),
                address: config.address.clone(),
                coordinator,
                peers,
            },
            outage_log: OutageLog::default(),
        };
        let drain = config.drain_timeout;
        let node = Node {
            worker,
            leader,
            scopes,
            store,
            drain,
            stop,
            end,
            ended,
            loops: Vec::new(),
            executors,
            data_dir,
            rpc_service,
        };
        Ok((node, loops))
    }
}

impl Node {
    /// Returns a builder for a node. The database must have been migrated.
    pub fn builder(config: Config, store: Store) -> NodeBuilder {
        NodeBuilder {
            config,
            store,
            functions: HandlerRegistry::default(),
            jobs: Vec::new(),
            queues: Vec::new(),
            wakeups: Wakeups::default(),
            commands: None,
            coordinator: Arc::new(DatabaseOnly),
            remote_peers: None,
        }
    }

    /// Id of the node's worker at the moment. It changes when a detached worker registers again.
    pub fn worker_id(&self) -> WorkerId {
        self.worker.id()
    }

    /// The node's RPC service, to be used by the RPC server at the node's port.
    pub fn rpc_service(&self) -> Arc<dyn NodeRpc> {
        Arc::clone(&self.rpc_service)
    }

    /// Waits until the node cannot continue, and returns the reason.
    pub async fn wait_until_ended(&self) -> &'static str {
        let mut ended = self.ended.clone();
        loop {
            if let Some(reason) = *ended.borrow_and_update() {
                return reason;
            }
            if ended.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Drains and stops the node. It starts no new runs and releases runs that have not started. Running attempts may
    /// finish until the drain timeout; then they are stopped. What cannot be finished or reported is left to the next
    /// incarnation.
    pub async fn stop(mut self) {
        let id = self.worker.id();
        self.worker.drain();
        let by = id.to_string();
        if let Err(error) = with_timeout(self.store.drain_worker(by.as_str(), id)).await {
            tracing::warn!(%error, "the drain could not be written to the database");
        }
        if !self.wait_until_idle(self.drain).await {
            let grace = self.worker.longest_grace();
            self.worker.stop_all(AttemptStopReason::Drain);
            self.wait_until_idle(grace + Duration::from_secs(5)).await;
        }
        if let Err(error) = with_timeout(self.leader.resign()).await {
            tracing::warn!(%error, "the worker could not resign as leader");
        }
        let _ = self.stop.send(true);
        // Each loop finishes its current tick. A loop that waits for an unresponsive database is not waited for.
        let loops = join_all(self.loops.drain(..));
        if tokio::time::timeout(STOP_TIMEOUT, loops).await.is_err() {
            tracing::warn!(
                "the database does not respond; unfinished work is left to the next incarnation"
            );
        }
        // The spawner stops first: its processes must have ended before the worker is marked as gone.
        self.executors.shut_down();
        if self.worker.is_idle() {
            // The worker may have registered again under a new id while it stopped.
            match with_timeout(self.store.mark_worker_gone(self.worker.id())).await {
                Ok(_) => {
                    if let Some(data_dir) = self.data_dir.take() {
                        self.worker
                            .current_and_previous_worker_ids()
                            .into_iter()
                            .for_each(|id| data_dir.remove_worker_dir(id));
                    }
                }
                Err(error) => tracing::warn!(%error, "the worker could not be marked as gone"),
            }
        }
        drop(self.data_dir.take());
    }

    async fn wait_until_idle(&self, limit: Duration) -> bool {
        let idle = async {
            while !self.worker.is_idle() {
                tokio::time::sleep(STOP_POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(limit, idle).await.is_ok()
    }
}

fn command_slots(fixed: Option<u32>, settings: &Settings) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    fixed.unwrap_or_else(|| settings.max_jobs_per_worker().count_for_cores(cores))
}

fn new_worker_row(
    id: WorkerId,
    config: &Config,
    functions: &HandlerRegistry,
    slots: &SlotCounts,
) -> NewWorker {
    let mut labels = config.labels.clone();
    labels.extend(functions.names().map(leader::decisions::function_label));
    NewWorker {
        id,
        node: config.node.clone(),
        pid: Some(std::process::id()),
        address: config.address.clone(),
        labels: Some(serde_json::json!(labels).to_string()),
        slots: slots.commands,
        function_slots: slots.function_total(),
    }
}
