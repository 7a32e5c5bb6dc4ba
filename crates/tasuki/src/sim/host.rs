//! The nodes: incarnations that come and go, and the ticks that are under way on them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::{NodeName, WorkerId};
use tasuki_store::{Error, NewWorker, Store, Task};

use super::hints::{SimPeers, Switchboard};
use super::processes::{SimExecutor, Spooled};
use super::stage::{SimClock, SimLine, Stage};
use crate::Wake;
use crate::node::coordination::coordinate::Coordinator;
use crate::node::coordination::peers::{Called, Peers};
use crate::node::executor::attempt::{self, Mail};
use crate::node::worker::queues::{Queues, Slots, Source};
use crate::node::world::{Callee, Clock, Dice, Me, Parts, Pulse};
use crate::node::{Leader, Worker};
use crate::spawner::JobKey;

/// How many commands, and how many functions, a worker runs at once.
pub(super) const SLOTS: (u32, u32) = (3, 4);
/// The function that every worker has.
pub(super) const FUNCTION: &str = "count";

/// Something under way that is polled only when the simulation says so.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

/// A node.
pub(super) struct Host {
    pub(super) index: usize,
    pub(super) name: NodeName,
    pub(super) life: Option<Life>,
    /// It got SIGSTOP, and CONT comes then.
    pub(super) stopped_until: Option<u64>,
    /// Incarnations that died and were not reported.
    pub(super) before: Vec<WorkerId>,
}

/// One incarnation.
pub(super) struct Life {
    pub(super) id: WorkerId,
    pub(super) worker: Arc<Worker>,
    pub(super) leader: Arc<Leader>,
    pub(super) callee: Arc<dyn Called>,
    peers: Arc<dyn Peers>,
    name: NodeName,
    /// Whom it has been, this one included.
    been: Arc<Mutex<Vec<WorkerId>>>,
    store: Store,
    pub(super) ticks: Vec<(Tick, Pending<Pulse>)>,
}

/// What a node does again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tick {
    Pulse,
    StartDue,
    Claim,
    TakeIn,
    Renew,
    RenewAll,
    Tend,
    Report,
    Lead,
    Plan,
    Recover,
    Resign,
    LookAfter,
    Watch,
    Apart,
}

impl Host {
    pub(super) fn new(index: usize) -> Self {
        let name = format!("node-{index}").parse().expect("a good name");
        Self { index, name, life: None, stopped_until: None, before: Vec::new() }
    }

    /// Whether something can happen there.
    pub(super) fn is_up(&self) -> bool {
        self.life.is_some() && self.stopped_until.is_none()
    }

    /// The process of its worker is gone, in the middle of whatever it did.
    pub(super) fn crash(&mut self, stage: &Stage) {
        self.stopped_until = None;
        stage.inside().frozen[self.index] = false;
        let Some(life) = self.life.take() else { return };
        stage.tell(|| format!("node {} crashes", self.index));
        stage.inside().sweep(life.id);
        self.before.extend(life.been());
    }
}

impl Life {
    /// Whom it has been.
    pub(super) fn been(&self) -> Vec<WorkerId> {
        self.been.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a new incarnation needs.
pub(super) struct Boot {
    pub(super) stage: Stage,
    pub(super) store: Store,
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) nodes: Switchboard,
    pub(super) host: usize,
    pub(super) name: NodeName,
    pub(super) id: WorkerId,
    /// Those that this one reports dead.
    pub(super) before: Vec<WorkerId>,
}

impl Boot {
    /// Reports what the last incarnations left behind, and begins.
    pub(super) async fn start(self) -> Result<Life, Error> {
        let Self { stage, host, id, name, .. } = self;
        let line = SimLine { stage: stage.clone(), host };
        let store = self.store.with_line(Arc::new(line));
        for &old in &self.before {
            report_spool(&stage, &store, old).await?;
            store.report_dead(old, &name).await?;
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
        let settings = Arc::new(store.settings().await?.settings);
        let been = Arc::new(Mutex::new(vec![id]));
        let (becomes, story) = (Arc::clone(&been), stage.clone());
        let mail = Mail::default();
        let executor = SimExecutor { stage: stage.clone(), host, worker: id, mail: mail.clone() };
        let parts = Parts {
            store: store.clone(),
            clock: Arc::new(SimClock { stage: stage.clone(), host }),
            dice: Arc::new(stage.clone()),
            executor: Arc::new(executor),
            mail,
            wake: Wake::default(),
            slots: Box::new(|_| Slots { commands: SLOTS.0, queues: vec![SLOTS.1] }),
            lanes: [Queues::default().sources([FUNCTION].into_iter()), vec![Source::commands()]]
                .concat(),
            registration: worker,
            settle_in: Box::new(move |id| {
                story.tell(|| format!("node {host} begins anew as {id}"));
                becomes.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }),
        };
        let me = Me::from(id);
        let clock = Arc::new(SimClock { stage: stage.clone(), host });
        let world: (Arc<dyn Clock>, Arc<dyn Dice>) = (clock, Arc::new(stage.clone()));
        let nodes = self.nodes;
        let peers: Arc<dyn Peers> =
            Arc::new(SimPeers { stage: stage.clone(), nodes: nodes.clone() });
        let (coordinator, calls) = (self.coordinator, Arc::clone(&peers));
        let wake = Wake::default();
        let leader =
            Leader::new(me.clone(), store.clone(), coordinator, calls, world, wake.clone());
        let (leader, worker) = (Arc::new(leader), Arc::new(Worker::new(me, parts, settings)));
        let callee: Arc<dyn Called> = Arc::new(Callee {
            node: name.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wake,
        });
        nodes.add(host, &callee);
        stage.tell(|| format!("node {host} begins as {id}"));
        Ok(Life { id, worker, leader, callee, peers, name, been, store, ticks: Vec::new() })
    }
}

/// What an incarnation ran to its end and did not report, the next one does.
async fn report_spool(stage: &Stage, store: &Store, old: WorkerId) -> Result<(), Error> {
    let left: Vec<(JobKey, Spooled)> = {
        let inside = stage.inside();
        let of_old = inside.spool.iter().filter(|((worker, _), _)| *worker == old);
        of_old.map(|((_, key), spooled)| (*key, spooled.clone())).collect()
    };
    for (key, Spooled { attempt, end }) in left {
        let dice = stage.draw(|rng| rng.next() as u32);
        let finish = attempt::finish(&attempt.recipe, end, None, dice);
        let _ = store.finish(attempt.token, attempt.taken.id, &finish).await?;
        stage.inside().spool.remove(&(old, key));
    }
    Ok(())
}

/// A program in the worker's process submits something.
async fn take_in(worker: &Worker, store: &Store) -> Result<(), Error> {
    let Some(job) = store.job(&"call".parse()?).await? else { return Ok(()) };
    let task = Task::new(Arc::new(job.newest));
    worker.take_in(&[task.clone(), task]).await.map(drop)
}

impl Life {
    /// One tick, ready to be polled.
    pub(super) fn tick(&self, tick: Tick) -> Pending<Pulse> {
        let (worker, leader) = (Arc::clone(&self.worker), Arc::clone(&self.leader));
        let (store, name, peers) = (self.store.clone(), self.name.clone(), Arc::clone(&self.peers));
        Box::pin(async move {
            let settings = worker.settings();
            match tick {
                Tick::Pulse => return worker.pulse().await,
                Tick::StartDue => drop(worker.start_due().await?),
                Tick::Claim => drop(worker.claim().await?),
                Tick::TakeIn => take_in(&worker, &store).await?,
                Tick::Renew => worker.renew(false).await?,
                Tick::RenewAll => worker.renew(true).await?,
                Tick::Tend => drop(worker.tend()),
                Tick::Report => drop(worker.report().await?),
                Tick::Lead if worker.is_detached() => leader.resign().await?,
                Tick::Lead => drop(leader.lead(&settings).await?),
                Tick::Plan => {
                    let planned = leader.plan(&settings).await;
                    leader.deliver().await;
                    planned?;
                }
                Tick::Recover => leader.recover(&settings).await?,
                Tick::Resign => leader.resign().await?,
                Tick::LookAfter => {
                    leader.look_after(&settings).await?;
                }
                Tick::Watch => {
                    if !worker.is_aside() && leader.watch(&name, &settings).await? {
                        leader.lead(&settings).await?;
                    }
                }
                Tick::Apart => {
                    if worker.is_detached() {
                        leader.resign().await?;
                    }
                    worker.step_apart(&*peers).await?;
                }
            }
            Ok(Pulse::Alive)
        })
    }
}
