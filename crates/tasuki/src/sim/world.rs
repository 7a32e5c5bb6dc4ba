//! What happens, step by step: three nodes on one database, and everything that can go wrong with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{Error, Store};

use super::hints::{SimCoordinator, Switchboard};
use super::host::{Boot, Host, Life, Pending, Tick};
use super::people::{self, ACTS, Act, HURRIED, JOBS};
use super::rng::Rng;
use super::stage::{HOSTS, SECOND, SimClock, SimLine, Stage};
use crate::node::coordination::coordinate::{Coordinator, DatabaseOnly, InMemory};
use crate::node::world::Dice as _;

/// How many things happen before the faults are over.
const STEPS: u64 = 300;
/// How far the database's clock may jump forward without a process being doubled: well within the margin
/// of the kill and the grace of the steal.
const SMALL_STEP: u64 = 700_000;
/// How long a lease lasts, mostly.
const LEASE: u64 = 6 * SECOND;

/// See the module.
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) store: Store,
    pub(super) hosts: Vec<Host>,
    pub(super) ids: Vec<WorkerId>,
    people: Store,
    pub(super) acts: Vec<(Act, Pending<()>)>,
    memory: Option<InMemory>,
    pub(super) coordinator: Arc<dyn Coordinator>,
    nodes: Switchboard,
    pub(super) clock: ClockMode,
    stepped_at: u64,
    /// How fast time goes, compared with how much happens.
    pace: u64,
    /// Nothing that went wrong is under way any more.
    pub(super) healed: bool,
    /// Whether a tick may begin while another of its kind is under way.
    pub(super) twice: bool,
    /// How many exchanges there had been when processes were last compared with the database.
    pub(super) checked: u64,
    /// The leases of what leaders gave away.
    pub(super) given: BTreeSet<LeaseToken>,
}

/// What the database's clock does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockMode {
    /// It goes like every other.
    Steady,
    /// It jumps, forward by less than the margins.
    Small,
    /// It jumps back, too.
    Back,
    /// It jumps further than any lease reaches: two processes of one run are nobody's fault then.
    Wild,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Tick,
    Resume,
    Time,
    Letter,
    Act,
    Crash,
    Stop,
    Up,
    Leave,
    Outage,
    Cut,
    Burst,
    Clock,
    Forget,
    Forge,
}

const WORLD: &[(u64, Step)] = &[
    (600, Step::Tick),
    (100, Step::Resume),
    (120, Step::Time),
    (50, Step::Letter),
    (40, Step::Act),
    (5, Step::Crash),
    (8, Step::Stop),
    (40, Step::Up),
    (3, Step::Leave),
    (3, Step::Outage),
    (6, Step::Cut),
    (5, Step::Burst),
    (8, Step::Clock),
    (2, Step::Forget),
    (4, Step::Forge),
];

const TICKS: &[(u64, Tick)] = &[
    (16, Tick::Pulse),
    (20, Tick::StartDue),
    (6, Tick::Claim),
    (2, Tick::TakeIn),
    (16, Tick::Renew),
    (3, Tick::RenewAll),
    (8, Tick::Tend),
    (18, Tick::Report),
    (20, Tick::Lead),
    (24, Tick::Plan),
    (12, Tick::Recover),
    (1, Tick::Resign),
    (6, Tick::LookAfter),
    (6, Tick::Watch),
    (2, Tick::Apart),
];

impl World {
    pub(super) async fn new(seed: u64, aloud: bool) -> Result<Self, Error> {
        let mut world = Self::empty(Stage::new(seed, aloud)).await?;
        for name in JOBS {
            let mut rng = world.fork();
            if rng.chance(650) {
                people::create(&world.stage, &world.store, name, &mut rng).await?;
            }
        }
        for index in 0..world.hosts.len() {
            world.boot(index).await?;
        }
        Ok(world)
    }

    /// Nodes that are down, and a database without jobs.
    pub(super) async fn empty(stage: Stage) -> Result<Self, Error> {
        let store = Store::open("sqlite::memory:", 1).await?;
        store.migrate().await?;
        store.set_clock(Some(stage.database_time()));
        let seen = store.settings().await?;
        let _ = store.change_settings("somebody", seen.version, HURRIED).await?;
        let pace = stage.draw(|rng| rng.weigh(&[(1, 1), (1, 2)]));
        let (clock, in_memory, twice, count) = stage.draw(|rng| {
            use ClockMode::{Back, Small, Steady, Wild};
            (
                rng.weigh(&[(5, Steady), (2, Small), (1, Back), (1, Wild)]),
                rng.chance(600),
                rng.chance(250),
                rng.weigh(&[(1, 1), (1, 2), (4, HOSTS)]),
            )
        });
        let memory =
            in_memory.then(|| InMemory::new(Arc::new(SimClock { stage: stage.clone(), host: 0 })));
        let inner: Arc<dyn Coordinator> = match &memory {
            Some(memory) => Arc::new(memory.clone()),
            None => Arc::new(DatabaseOnly),
        };
        let coordinator = Arc::new(SimCoordinator { stage: stage.clone(), inner });
        let line = SimLine { stage: stage.clone(), host: HOSTS };
        let people = store.with_line(Arc::new(line));
        let hosts = (0..count).map(Host::new).collect();
        let world = Self {
            stage,
            store,
            hosts,
            ids: Vec::new(),
            people,
            acts: Vec::new(),
            memory,
            coordinator,
            nodes: Switchboard::default(),
            clock,
            stepped_at: 0,
            pace,
            healed: false,
            twice,
            checked: 0,
            given: BTreeSet::new(),
        };
        world.stage.tell(|| format!("clock {clock:?}, coordinator in memory {in_memory}"));
        Ok(world)
    }

    /// They meet in memory, whatever chance said.
    pub(super) fn use_memory(&mut self) {
        let clock = Arc::new(SimClock { stage: self.stage.clone(), host: 0 });
        let memory = InMemory::new(clock);
        let inner = Arc::new(memory.clone());
        self.coordinator = Arc::new(SimCoordinator { stage: self.stage.clone(), inner });
        self.memory = Some(memory);
    }

    /// Everything, to the end.
    pub(super) async fn play(&mut self) -> Result<(), Error> {
        for _ in 0..STEPS {
            self.step().await?;
            if self.stage.is_broken() {
                return Ok(());
            }
        }
        self.heal().await?;
        self.wind_down().await?;
        if !self.stage.is_broken() {
            self.check_the_end().await?;
        }
        Ok(())
    }

    fn fork(&self) -> Rng {
        Rng::new(self.stage.draw(Rng::next))
    }

    async fn step(&mut self) -> Result<(), Error> {
        let step = self.stage.draw(|rng| rng.weigh(WORLD));
        match step {
            Step::Tick => {
                let up: Vec<usize> =
                    self.hosts.iter().filter(|host| host.is_up()).map(|host| host.index).collect();
                if !up.is_empty() {
                    let (host, tick) = self.stage.draw(|rng| (rng.pick(&up), rng.weigh(TICKS)));
                    // Who was cut off is woken for it.
                    let apart =
                        self.hosts[host].life.as_ref().is_some_and(|l| l.worker.is_detached());
                    let woken = apart && self.stage.draw(|rng| rng.chance(300));
                    let tick = if woken { Tick::Apart } else { tick };
                    self.tick(host, tick).await?;
                }
            }
            Step::Resume => self.resume().await?,
            Step::Time => {
                let most = self
                    .stage
                    .draw(|rng| rng.weigh(&[(70, 500), (20, 1_000), (8, 2_000), (1, 15_000)]));
                let passes = self.stage.draw(|rng| rng.below(most * self.pace * SECOND / 1_000));
                self.pass(passes);
                self.check_processes().await?;
            }
            Step::Letter => self.deliver(),
            Step::Act => {
                let act = self.stage.draw(|rng| rng.weigh(ACTS));
                self.stage.tell(|| format!("somebody: {act:?}"));
                let rng = self.fork();
                let doing = people::act(self.stage.clone(), self.people.clone(), act, rng);
                self.drive_act((act, Box::pin(doing))).await?;
            }
            Step::Crash => {
                let host = self.any_host();
                self.hosts[host].crash(&self.stage);
            }
            Step::Stop => {
                let busy: Vec<usize> =
                    self.stage.inside().processes.iter().map(|process| process.host).collect();
                let host = match busy.is_empty() {
                    true => self.any_host(),
                    false => self.stage.draw(|rng| rng.pick(&busy)),
                };
                let lasts = self.stage.draw(|rng| {
                    let most = rng.pick(&[LEASE / 2, 2 * LEASE, 2 * LEASE]);
                    rng.below(most)
                });
                let until = self.stage.now() + lasts;
                if self.hosts[host].is_up() {
                    self.stage.tell(|| format!("node {host} is stopped for {lasts} us"));
                    self.hosts[host].stopped_until = Some(until);
                    self.stage.inside().frozen[host] = true;
                }
            }
            Step::Up => {
                let host = self.any_host();
                self.boot(host).await?;
            }
            Step::Leave => {
                let host = self.any_host();
                if let Some(life) =
                    self.hosts[host].life.as_ref().filter(|_| self.hosts[host].is_up())
                {
                    self.stage.tell(|| format!("node {host} is to leave"));
                    life.worker.drain();
                    let id = life.worker.id();
                    let line = SimLine { stage: self.stage.clone(), host };
                    let store = self.store.with_line(Arc::new(line));
                    let drained = self.through(Box::pin(async move {
                        store.drain_worker(id.to_string().as_str(), id).await
                    }));
                    self.excuse("drain", drained.await);
                }
            }
            Step::Outage => {
                let lasts = self.stage.draw(|rng| rng.below(8 * SECOND));
                self.stage.tell(|| format!("the database is away for {lasts} us"));
                let inside = &mut *self.stage.inside();
                inside.outage_until = inside.now + lasts;
            }
            Step::Cut => {
                let inside = &mut *self.stage.inside();
                let line = match inside.processes.first() {
                    Some(process) => process.host,
                    None => inside.rng.below(HOSTS as u64) as usize,
                };
                inside.cut_until[line] = inside.now + inside.rng.below(2 * LEASE);
                inside.tell(|| format!("line {line} is cut"));
            }
            Step::Burst => {
                let inside = &mut *self.stage.inside();
                let line = inside.rng.below(HOSTS as u64 + 1) as usize;
                inside.burst_until[line] = inside.now + inside.rng.below(3 * SECOND);
            }
            Step::Clock => self.step_clock(),
            Step::Forget => {
                if let Some(memory) = &self.memory {
                    memory.forget();
                }
            }
            Step::Forge => self.forge().await?,
        }
        Ok(())
    }

    fn any_host(&self) -> usize {
        self.stage.draw(|rng| rng.below(self.hosts.len() as u64)) as usize
    }

    /// Time passes for everybody; what was stopped for long enough goes on.
    pub(super) fn pass(&mut self, micros: u64) {
        self.stage.inside().now += micros;
        self.store.set_clock(Some(self.stage.database_time()));
        let now = self.stage.now();
        let frozen: Vec<bool> =
            self.hosts.iter().map(|host| host.stopped_until.is_some()).collect();
        self.stage.inside().settle(&frozen);
        for host in &mut self.hosts {
            if host.stopped_until.is_some_and(|until| until <= now) {
                host.stopped_until = None;
                self.stage.inside().frozen[host.index] = false;
            }
        }
        self.stage.inside().settle(&[false; HOSTS]);
    }

    fn step_clock(&mut self) {
        let now = self.stage.now();
        // One forward step in the life of a lease: the margins are for one.
        let forward = self.stepped_at == 0 || now > self.stepped_at + 3 * LEASE;
        let by = self.stage.draw(|rng| match self.clock {
            ClockMode::Steady => 0,
            ClockMode::Small if forward => rng.below(SMALL_STEP) as i64,
            ClockMode::Small => 0,
            ClockMode::Back => -(rng.below(10 * SECOND) as i64),
            ClockMode::Wild => rng.below(60 * SECOND) as i64 - 20 * SECOND as i64,
        });
        if by != 0 {
            self.stepped_at = now.max(1);
            self.stage.tell(|| format!("the database's clock jumps by {by} us"));
            self.stage.inside().database_ahead += by;
            self.store.set_clock(Some(self.stage.database_time()));
        }
    }

    /// An order that no leader gave: of a run that is there, under a token that is not, or the other way.
    async fn forge(&mut self) -> Result<(), Error> {
        let host = self.any_host();
        let Some(life) = self.hosts[host].life.as_ref().filter(|_| self.hosts[host].is_up()) else {
            return Ok(());
        };
        let mut carried = self.store.given().await?;
        if carried.is_empty() {
            return Ok(());
        }
        let one =
            carried.swap_remove(self.stage.draw(|rng| rng.below(carried.len() as u64)) as usize);
        let token = match self.stage.draw(|rng| rng.chance(500)) {
            true => one.token,
            false => LeaseToken::from_random(self.stage.roll()),
        };
        let runs = vec![(one.run, self.stage.database_time())];
        let order = crate::node::coordination::peers::StartOrder {
            epoch: tasuki_core::Epoch(99),
            token,
            runs,
        };
        self.stage.tell(|| format!("node {host} hears a forged order for run {}", one.run));
        life.worker.hear(&order);
        Ok(())
    }

    /// Brings one of the orders that are under way.
    pub(super) fn deliver(&mut self) {
        let letter = {
            let inside = &mut *self.stage.inside();
            if inside.letters.is_empty() {
                return;
            }
            let index = inside.rng.below(inside.letters.len() as u64) as usize;
            inside.letters.swap_remove(index)
        };
        let to = self.hosts.iter().find_map(|host| {
            host.life.as_ref().filter(|life| life.worker.id() == letter.to && host.is_up())
        });
        if let Some(life) = to {
            let callee = Arc::clone(&life.callee);
            // It is heard at once, or refused: nothing there waits for anybody.
            let _ = callee.start(letter.order).now_or_never();
        }
    }

    /// A node that is down begins anew; one that was drained and is idle leaves first.
    pub(super) async fn boot(&mut self, index: usize) -> Result<(), Error> {
        if self.hosts[index].stopped_until.is_some() {
            return Ok(());
        }
        if let Some(life) = &self.hosts[index].life {
            if !life.worker.is_draining() {
                return Ok(());
            }
            if !life.worker.is_idle() {
                if self.stage.draw(|rng| rng.chance(300)) {
                    life.worker.stop_all(tasuki_core::exit::Stopped::Drain);
                }
                return Ok(());
            }
            self.leave(index).await;
            return Ok(());
        }
        let id = WorkerId::from_random(self.stage.roll());
        self.ids.push(id);
        let reports = self.stage.inside().calm || self.stage.draw(|rng| rng.chance(700));
        let before = match reports {
            true => self.hosts[index].before.clone(),
            false => Vec::new(),
        };
        let boot = Boot {
            stage: self.stage.clone(),
            store: self.store.clone(),
            coordinator: Arc::clone(&self.coordinator),
            nodes: self.nodes.clone(),
            host: index,
            name: self.hosts[index].name.clone(),
            id,
            before,
        };
        let begun = self.through(Box::pin(boot.start())).await;
        match self.excuse("boot", begun) {
            Some(life) => {
                if reports {
                    self.hosts[index].before.clear();
                }
                self.hosts[index].life = Some(life);
                self.tick(index, Tick::Pulse).await?;
            }
            None => self.hosts[index].before.push(id),
        }
        Ok(())
    }

    /// A drained, idle worker says goodbye.
    async fn leave(&mut self, index: usize) {
        let Some(life) = self.hosts[index].life.take() else { return };
        let (first, id, been) = (life.id, life.worker.id(), life.been());
        let Life { leader, ticks, .. } = life;
        drop(ticks);
        self.stage.tell(|| format!("node {index} leaves"));
        let line = SimLine { stage: self.stage.clone(), host: index };
        let store = self.store.with_line(Arc::new(line));
        let gone = self.through(Box::pin(async move {
            leader.resign().await?;
            store.worker_gone(id).await
        }));
        self.excuse("leave", gone.await);
        self.stage.inside().sweep(first);
        self.hosts[index].before.extend(been);
    }
}
