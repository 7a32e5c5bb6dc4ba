//! The node: a worker, and the leader it may become, as dull loops over ticks that tests call.
//!
//! A node alone is both. Store, coordinator, peers, spawner, clock and dice are handed in. Whatever a loop
//! cannot do now it tries again a little later; nothing here is remembered that the database does not know.

pub mod config;
pub mod coordination;
pub mod executor;
mod home;
pub(crate) mod leader;
mod loops;
mod outage;
#[cfg(test)]
mod policies;
mod within;
pub(crate) mod worker;
pub mod world;

use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tasuki_core::exit::Stopped;
use tasuki_core::{Invalid, Settings, WorkerId};
use tasuki_store::{Error, NewWorker, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use crate::node::leader::scopes::{ProviderError, ScopeProvider};
pub use config::{Config, DjangoProject};
pub use home::{HomeError, HomeLock};
pub use leader::Leader;
pub use worker::Worker;

use crate::handler::{Arguments, Context, Done, Functions, TaskError};
use crate::node::coordination::called::Callee;
use crate::node::coordination::coordinate::{Coordinator, DatabaseOnly};
use crate::node::coordination::peers::{Called, InProcess, Peers, Reach};
use crate::node::executor::attempt::Mail;
use crate::node::executor::commands::Commands;
use crate::node::executor::functions::Calls;
use crate::node::executor::hands::Hands;
use crate::node::executor::keeper::Keeper;
use crate::node::leader::scopes::Scopes;
use crate::node::worker::me::Me;
use crate::node::worker::queues::{Queues, Slots, Source};
use crate::{Job, Operator, Wake, operator};
use loops::{Cluster, Loops};
use outage::Outage;
pub(crate) use within::within;
use world::{Clock, Dice, RealClock, RealDice};

/// How often a node that waits for itself looks again.
const LOOK: Duration = Duration::from_millis(20);
/// How long a stopping node waits for what its loops are about.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Why a node cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its data directory cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The database.
    #[error(transparent)]
    Store(#[from] Error),
    /// The process that runs commands.
    #[error("spawner: {0}")]
    Spawner(std::io::Error),
    /// A job that was declared.
    #[error(transparent)]
    Declared(#[from] operator::Error),
    /// A queue it was to take from.
    #[error(transparent)]
    Queue(#[from] Invalid),
}

/// What a node needs to start.
pub struct NodeBuilder {
    config: Config,
    store: Store,
    functions: Functions,
    jobs: Vec<(Job, Declared)>,
    queues: Vec<(String, u32)>,
    wake: Wake,
    commands: Option<(HomeLock, Command)>,
    coordinator: Arc<dyn Coordinator>,
    away: Option<Arc<dyn Peers>>,
}

/// What becomes of a job that is there already when a node starts.
enum Declared {
    /// It is made what the code says.
    Always,
    /// It stays as it is.
    IfMissing,
}

/// A running node.
pub struct Node {
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) store: Store,
    drain: Duration,
    stop: watch::Sender<bool>,
    end: watch::Sender<Option<&'static str>>,
    ended: watch::Receiver<Option<&'static str>>,
    loops: Vec<JoinHandle<()>>,
    hands: Arc<Hands>,
    home: Option<Arc<HomeLock>>,
    /// Reached by others while the node lives.
    callee: Arc<dyn Called>,
}

impl NodeBuilder {
    /// Has these functions, and no others. Jobs that call them are made elsewhere.
    pub fn functions(mut self, functions: Functions) -> Self {
        self.functions = functions;
        self
    }

    /// Has a handler, and a job of the same name that calls it when somebody submits a task: one is made where
    /// there is none. See [`Functions::add`] for what a handler may be; [`NodeBuilder::job`] says more of its
    /// job.
    pub fn handler<A, R, D>(
        mut self,
        name: impl Into<String>,
        handler: impl Fn(A, Context) -> R + Send + Sync + 'static,
    ) -> Self
    where
        A: Arguments,
        R: Future<Output = Result<D, TaskError>> + Send + 'static,
        D: Into<Done>,
    {
        let name = name.into();
        self.functions.add(name.clone(), handler);
        if self.jobs.iter().all(|(job, _)| job.name() != name) {
            self.jobs.push((Job::task(name), Declared::IfMissing));
        }
        self
    }

    /// Declares a job: when the node starts, the job is made what this says.
    pub fn job(mut self, job: Job) -> Self {
        self.jobs.retain(|(known, _)| known.name() != job.name());
        self.jobs.push((job, Declared::Always));
        self
    }

    /// Takes from this queue, too, with so many slots of its own; from the default queue with so many instead of
    /// what the settings say. With none it does not take from it. Commands have slots of their own.
    pub fn queue(mut self, name: impl Into<String>, slots: u32) -> Self {
        self.queues.push((name.into(), slots));
        self
    }

    /// How it starts, besides: labels, slots, what it is willing to run.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Uses these wake-ups, which others ring too.
    pub fn wake(mut self, wake: Wake) -> Self {
        self.wake = wake;
        self
    }

    /// It runs commands: results and ends are kept in this data directory until they are reported, and this
    /// is how its spawner is started: a command that calls [`spawner::serve`](crate::spawner::serve) with its
    /// standard input, the lock and the id of that directory.
    pub fn commands(mut self, home: HomeLock, spawner: Command) -> Self {
        self.commands = Some((home, spawner));
        self
    }

    /// Meets others here.
    pub fn coordinator(mut self, coordinator: Arc<dyn Coordinator>) -> Self {
        self.coordinator = coordinator;
        self
    }

    /// Calls others so, and can be called by them where [`Config::address`] says: whoever serves that port answers
    /// with what [`Node::called`] says.
    pub fn peers(mut self, peers: Arc<dyn Peers>) -> Self {
        self.away = Some(peers);
        self
    }

    /// Starts the node: takes its data directory, sweeps up after the incarnation before, registers, and
    /// runs.
    pub async fn start(self) -> Result<Node, NodeError> {
        let (mut node, loops) = self.assemble(Arc::new(RealClock)).await?;
        node.loops = loops.start(&node.end);
        Ok(node)
    }

    /// Everything but that it runs.
    pub(crate) async fn assemble(self, clock: Arc<dyn Clock>) -> Result<(Node, Loops), NodeError> {
        let Self { config, store, functions, jobs, queues, wake, commands, coordinator, away } =
            self;
        let queues = Queues::new(&queues)?;
        if config.address.is_some() {
            wake.tell_over(Arc::clone(&coordinator));
        }
        let operator = Operator::new(store.clone(), wake.clone());
        let mut declared = Vec::with_capacity(jobs.len());
        for (job, how) in &jobs {
            let node = config.node.as_str();
            let now = match how {
                Declared::Always => job.declare(&operator, node).await?,
                Declared::IfMissing => job.declare_if_missing(&operator, node).await?,
            };
            declared.push(now.job);
        }
        let dice: Arc<dyn Dice> = Arc::new(RealDice);
        let settings = Arc::new(store.settings().await?.settings);
        let id = WorkerId::from_random(dice.roll());
        let mail = Mail::default();
        let (end, ended) = watch::channel(None);
        let keeper = Keeper::new(store.clone());
        let (home, commands) = match commands {
            None => (None, None),
            Some((home, spawner)) => {
                let end = end.clone();
                let gone = move || {
                    // Nobody listens any more: the node is stopping.
                    let _ = end.send(Some("the spawner is gone"));
                };
                let started = Commands::start(
                    spawner,
                    config.clone(),
                    home.home(id)?,
                    keeper.clone(),
                    Arc::clone(&clock),
                    mail.clone(),
                    gone,
                );
                let started = started.await.map_err(NodeError::Spawner)?;
                home.settle(&store, &config.node, id, &*dice, config.log_cap).await?;
                (Some(Arc::new(home)), Some(started))
            }
        };
        // It is the node's, and free when the node has stopped, whoever still knows of its worker.
        let place = home.as_ref().map(Arc::downgrade);
        let settle_in = move |id: WorkerId| {
            let home = place.as_ref().and_then(Weak::upgrade);
            // The next process on this directory reports it dead, should this one be killed.
            if let Some(Err(error)) = home.map(|home: Arc<HomeLock>| home.home(id)) {
                tracing::warn!(%error, "a place for another incarnation could not be made");
            }
        };
        let (runs_commands, fixed) = (commands.is_some(), config.slots);
        let mut lanes = queues.sources(functions.names());
        if commands.is_some() {
            lanes.push(Source::commands());
        }
        let slots = move |settings: &Settings| Slots {
            commands: if runs_commands { slots(fixed, settings) } else { 0 },
            queues: queues.slots(settings),
        };
        let registration = registration(id, &config, &functions, &slots(&settings));
        let calls = Calls::new(functions, keeper, Arc::clone(&clock), mail.clone(), config.log_cap);
        let hands = Arc::new(Hands { commands, calls });
        let parts = worker::Parts {
            store: store.clone(),
            clock: Arc::clone(&clock),
            dice: Arc::clone(&dice),
            executor: Arc::clone(&hands) as Arc<dyn executor::attempt::Executor>,
            mail: mail.clone(),
            wake: wake.clone(),
            slots: Box::new(slots),
            lanes,
            registration: registration.clone(),
            settle_in: Box::new(settle_in),
        };
        let me = Me::from(id);
        let worker = Arc::new(Worker::new(me.clone(), parts, settings));
        worker.rehearse(declared).await;
        // From now on it is given work.
        store.register_worker(&registration).await?;
        let here = InProcess::default();
        let peers: Arc<dyn Peers> = Arc::new(Reach { here: here.clone(), away });
        let leader = Arc::new(Leader::new(
            me,
            store.clone(),
            Arc::clone(&coordinator),
            Arc::clone(&peers),
            (clock, dice),
            wake.clone(),
        ));
        let callee: Arc<dyn Called> = Arc::new(Callee {
            node: config.node.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wake: wake.clone(),
        });
        here.add(&callee);
        let (stop, stopped) = watch::channel(false);
        let scopes = jobs.into_iter().filter_map(|(job, _)| {
            let provider = job.scopes.clone()?;
            Some((job.name().to_owned(), provider))
        });
        let scopes = Arc::new(Scopes::new(scopes.collect()));
        let loops = Loops {
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            scopes: Arc::clone(&scopes),
            store: store.clone(),
            mail,
            wake,
            stopped,
            cluster: Cluster {
                node: config.node.clone(),
                address: config.address.clone(),
                coordinator,
                peers,
            },
            outage: Outage::default(),
        };
        let drain = config.drain;
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
            hands,
            home,
            callee,
        };
        Ok((node, loops))
    }
}

impl Node {
    /// A node on a migrated database.
    pub fn builder(config: Config, store: Store) -> NodeBuilder {
        NodeBuilder {
            config,
            store,
            functions: Functions::default(),
            jobs: Vec::new(),
            queues: Vec::new(),
            wake: Wake::default(),
            commands: None,
            coordinator: Arc::new(DatabaseOnly),
            away: None,
        }
    }

    /// Which incarnation it is.
    pub fn worker_id(&self) -> WorkerId {
        self.worker.id()
    }

    /// What answers when others call it: for whoever serves its port.
    pub fn called(&self) -> Arc<dyn Called> {
        Arc::clone(&self.callee)
    }

    /// Waits until it cannot go on, and says why.
    pub async fn ended(&self) -> &'static str {
        let mut ended = self.ended.clone();
        loop {
            if let Some(why) = *ended.borrow_and_update() {
                return why;
            }
            if ended.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Drains and stops: no new work, what has not started goes back, what runs may finish until the
    /// deadline of the drain, then it is stopped. What cannot be done in order any more is left to the
    /// next incarnation.
    pub async fn stop(mut self) {
        let id = self.worker.id();
        self.worker.drain();
        let by = id.to_string();
        if let Err(error) = within(self.store.drain_worker(by.as_str(), id)).await {
            tracing::warn!(%error, "the drain could not be told");
        }
        if !self.idle_within(self.drain).await {
            let grace = self.worker.longest_grace();
            self.worker.stop_all(Stopped::Drain);
            self.idle_within(grace + Duration::from_secs(5)).await;
        }
        if let Err(error) = within(self.leader.resign()).await {
            tracing::warn!(%error, "the lead could not be given up");
        }
        let _ = self.stop.send(true);
        // Each of them ends with what it is about; one that waits for a silent database is not waited for.
        let ends = join_all(self.loops.drain(..));
        if tokio::time::timeout(LAST_WORDS, ends).await.is_err() {
            tracing::warn!(
                "the database does not answer: what was under way is left to the next incarnation"
            );
        }
        // The spawner first: what it may still have ends before anybody else may think so.
        self.hands.end();
        if self.worker.is_idle() {
            // It may have become another while it stopped.
            match within(self.store.worker_gone(self.worker.id())).await {
                Ok(_) => {
                    if let Some(home) = self.home.take() {
                        self.worker.been().into_iter().for_each(|id| home.leave(id));
                    }
                }
                Err(error) => tracing::warn!(%error, "the leave could not be told"),
            }
        }
        drop(self.home.take());
    }

    async fn idle_within(&self, limit: Duration) -> bool {
        let idle = async {
            while !self.worker.is_idle() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(limit, idle).await.is_ok()
    }
}

fn slots(fixed: Option<u32>, settings: &Settings) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    fixed.unwrap_or_else(|| settings.max_jobs_per_worker().on(cores))
}

fn registration(id: WorkerId, config: &Config, functions: &Functions, slots: &Slots) -> NewWorker {
    let mut labels = config.labels.clone();
    labels.extend(functions.names().map(leader::plan::function_label));
    NewWorker {
        id,
        node: config.node.clone(),
        pid: Some(std::process::id()),
        address: config.address.clone(),
        labels: Some(serde_json::json!(labels).to_string()),
        slots: slots.commands,
        function_slots: slots.functions(),
    }
}
