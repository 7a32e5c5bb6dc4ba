//! The simulation itself: it draws one step after another and performs it on three nodes with one database.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{Error, Store};

use super::host::{Host, Incarnation, NodeStart, PendingFuture, Tick};
use super::network::{NodeDirectory, SimCoordinator};
use super::rng::Rng;
use super::state::{HOSTS, SECOND, SimClock, SimDatabaseLink, SimState};
use super::user_actions::{self, FAST_SETTINGS, JOBS, USER_ACTION_WEIGHTS, UserAction};
use crate::node::clock_and_random::Random as _;
use crate::node::coordination::coordinator_trait::{
    Coordinator, DatabaseOnly, SimulatedCoordinator,
};

/// Number of steps before the faults end.
const STEPS: u64 = 300;
/// Maximum forward jump of the database's clock, in microseconds, after which still no run has two processes: well within
/// `kill_margin` and `steal_grace`.
const SMALL_JUMP: u64 = 700_000;
/// Usual lease time, in microseconds.
const LEASE: u64 = 6 * SECOND;

/// One simulation with its nodes and its database.
pub(super) struct Simulation {
    pub(super) state: SimState,
    pub(super) store: Store,
    pub(super) hosts: Vec<Host>,
    pub(super) worker_ids: Vec<WorkerId>,
    user_store: Store,
    pub(super) user_actions: Vec<(UserAction, PendingFuture<()>)>,
    in_memory: Option<SimulatedCoordinator>,
    pub(super) coordinator: Arc<dyn Coordinator>,
    directory: NodeDirectory,
    pub(super) clock: ClockMode,
    jumped_at: u64,
    /// Factor for the time that passes per step.
    pace: u64,
    /// All faults and their consequences are over, so any error is a failure.
    pub(super) faults_over: bool,
    /// Whether a tick may start while another of its kind is pending.
    pub(super) overlapping_ticks: bool,
    /// Number of exchanges at the last check of the processes.
    pub(super) checked_exchanges: u64,
    /// Lease tokens of assignments that are already checked.
    pub(super) seen_tokens: BTreeSet<LeaseToken>,
}

/// Behaviour of the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockMode {
    /// It runs like the other clocks.
    Steady,
    /// It jumps forward by less than the safety margins.
    SmallForwardJumps,
    /// It jumps back.
    BackwardJumps,
    /// It jumps further than any lease lasts. Two processes of one run are then possible and no failure.
    LargeJumps,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Tick,
    Resume,
    AdvanceTime,
    DeliverOrder,
    UserAction,
    CrashNode,
    FreezeNode,
    StartNode,
    DrainNode,
    DatabaseOutage,
    Disconnect,
    LossBurst,
    JumpClock,
    ClearCoordinator,
    SendForgedOrder,
}

const STEP_WEIGHTS: &[(u64, Step)] = &[
    (600, Step::Tick),
    (100, Step::Resume),
    (120, Step::AdvanceTime),
    (50, Step::DeliverOrder),
    (40, Step::UserAction),
    (5, Step::CrashNode),
    (8, Step::FreezeNode),
    (40, Step::StartNode),
    (3, Step::DrainNode),
    (3, Step::DatabaseOutage),
    (6, Step::Disconnect),
    (5, Step::LossBurst),
    (8, Step::JumpClock),
    (2, Step::ClearCoordinator),
    (4, Step::SendForgedOrder),
];

const TICK_WEIGHTS: &[(u64, Tick)] = &[
    (16, Tick::Heartbeat),
    (20, Tick::StartDue),
    (6, Tick::Claim),
    (2, Tick::LocalSubmit),
    (16, Tick::Renew),
    (3, Tick::RenewAll),
    (8, Tick::EnforceDeadlines),
    (18, Tick::Report),
    (20, Tick::ElectOrRenew),
    (24, Tick::Plan),
    (12, Tick::Recover),
    (1, Tick::Resign),
    (6, Tick::CheckWorkers),
    (6, Tick::CheckLeader),
    (2, Tick::StepDetached),
];

impl Simulation {
    pub(super) async fn new(seed: u64, verbose: bool) -> Result<Self, Error> {
        let mut simulation = Self::without_jobs(SimState::new(seed, verbose)).await?;
        for name in JOBS {
            let mut rng = simulation.fork_rng();
            if rng.chance(650) {
                user_actions::create_job_if_absent(
                    &simulation.state,
                    &simulation.store,
                    name,
                    &mut rng,
                )
                .await?;
            }
        }
        for index in 0..simulation.hosts.len() {
            simulation.start_or_stop_node(index).await?;
        }
        Ok(simulation)
    }

    /// A simulation without jobs whose nodes are not started.
    pub(super) async fn without_jobs(state: SimState) -> Result<Self, Error> {
        let store = Store::open("sqlite::memory:", 1).await?;
        store.migrate().await?;
        store.set_clock(Some(state.database_time()));
        let settings = store.load_settings().await?;
        let _ = store.change_settings("user", settings.version, FAST_SETTINGS).await?;
        let pace = state.draw(|rng| rng.pick_weighted(&[(1, 1), (1, 2)]));
        let (clock, has_coordinator, overlapping_ticks, host_count) = state.draw(|rng| {
            use ClockMode::{BackwardJumps, LargeJumps, SmallForwardJumps, Steady};
            (
                rng.pick_weighted(&[
                    (5, Steady),
                    (2, SmallForwardJumps),
                    (1, BackwardJumps),
                    (1, LargeJumps),
                ]),
                rng.chance(600),
                rng.chance(250),
                rng.pick_weighted(&[(1, 1), (1, 2), (4, HOSTS)]),
            )
        });
        let in_memory = has_coordinator.then(|| {
            SimulatedCoordinator::new(Arc::new(SimClock { state: state.clone(), host: 0 }))
        });
        let inner: Arc<dyn Coordinator> = match &in_memory {
            Some(coordinator) => Arc::new(coordinator.clone()),
            None => Arc::new(DatabaseOnly),
        };
        let coordinator = Arc::new(SimCoordinator { state: state.clone(), inner });
        let link = SimDatabaseLink { state: state.clone(), host: HOSTS };
        let user_store = store.with_fault_injector(Arc::new(link));
        let hosts = (0..host_count).map(Host::new).collect();
        let simulation = Self {
            state,
            store,
            hosts,
            worker_ids: Vec::new(),
            user_store,
            user_actions: Vec::new(),
            in_memory,
            coordinator,
            directory: NodeDirectory::default(),
            clock,
            jumped_at: 0,
            pace,
            faults_over: false,
            overlapping_ticks,
            checked_exchanges: 0,
            seen_tokens: BTreeSet::new(),
        };
        simulation
            .state
            .log(|| format!("clock {clock:?}, coordinator in memory {has_coordinator}"));
        Ok(simulation)
    }

    /// Uses an in-memory coordinator, whatever was drawn.
    pub(super) fn use_in_memory_coordinator(&mut self) {
        let clock = Arc::new(SimClock { state: self.state.clone(), host: 0 });
        let in_memory = SimulatedCoordinator::new(clock);
        let inner = Arc::new(in_memory.clone());
        self.coordinator = Arc::new(SimCoordinator { state: self.state.clone(), inner });
        self.in_memory = Some(in_memory);
    }

    /// Runs all steps, then ends the faults, and checks the end state.
    pub(super) async fn run(&mut self) -> Result<(), Error> {
        for _ in 0..STEPS {
            self.step().await?;
            if self.state.has_failed() {
                return Ok(());
            }
        }
        self.end_faults().await?;
        self.wind_down().await?;
        if !self.state.has_failed() {
            self.check_end_state().await?;
        }
        Ok(())
    }

    fn fork_rng(&self) -> Rng {
        Rng::new(self.state.draw(Rng::next))
    }

    async fn step(&mut self) -> Result<(), Error> {
        let step = self.state.draw(|rng| rng.pick_weighted(STEP_WEIGHTS));
        match step {
            Step::Tick => {
                let running_hosts: Vec<usize> =
                    self.hosts.iter().filter(|host| host.is_up()).map(|host| host.index).collect();
                if !running_hosts.is_empty() {
                    let (host, tick) = self
                        .state
                        .draw(|rng| (rng.pick(&running_hosts), rng.pick_weighted(TICK_WEIGHTS)));
                    // Being detached wakes the continuation loop.
                    let is_detached = self.hosts[host]
                        .incarnation
                        .as_ref()
                        .is_some_and(|incarnation| incarnation.worker.is_detached());
                    let woken = is_detached && self.state.draw(|rng| rng.chance(300));
                    let tick = if woken { Tick::StepDetached } else { tick };
                    self.tick(host, tick).await?;
                }
            }
            Step::Resume => self.resume_pending().await?,
            Step::AdvanceTime => {
                let max = self.state.draw(|rng| {
                    rng.pick_weighted(&[(70, 500), (20, 1_000), (8, 2_000), (1, 15_000)])
                });
                let micros = self.state.draw(|rng| rng.below(max * self.pace * SECOND / 1_000));
                self.advance(micros);
                self.check_processes().await?;
            }
            Step::DeliverOrder => self.deliver_order(),
            Step::UserAction => {
                let action = self.state.draw(|rng| rng.pick_weighted(USER_ACTION_WEIGHTS));
                self.state.log(|| format!("user action: {action:?}"));
                let rng = self.fork_rng();
                let future =
                    user_actions::perform(self.state.clone(), self.user_store.clone(), action, rng);
                self.drive_user_action((action, Box::pin(future))).await?;
            }
            Step::CrashNode => {
                let host = self.pick_host();
                self.hosts[host].crash(&self.state);
            }
            Step::FreezeNode => {
                let busy: Vec<usize> =
                    self.state.lock().processes.iter().map(|process| process.host).collect();
                let host = match busy.is_empty() {
                    true => self.pick_host(),
                    false => self.state.draw(|rng| rng.pick(&busy)),
                };
                let duration = self.state.draw(|rng| {
                    let max = rng.pick(&[LEASE / 2, 2 * LEASE, 2 * LEASE]);
                    rng.below(max)
                });
                let until = self.state.now() + duration;
                if self.hosts[host].is_up() {
                    self.state.log(|| format!("node {host} is stopped for {duration} us"));
                    self.hosts[host].stopped_until = Some(until);
                    self.state.lock().frozen[host] = true;
                }
            }
            Step::StartNode => {
                let host = self.pick_host();
                self.start_or_stop_node(host).await?;
            }
            Step::DrainNode => {
                let host = self.pick_host();
                if let Some(incarnation) =
                    self.hosts[host].incarnation.as_ref().filter(|_| self.hosts[host].is_up())
                {
                    self.state.log(|| format!("node {host} drains"));
                    incarnation.worker.drain();
                    let id = incarnation.worker.id();
                    let link = SimDatabaseLink { state: self.state.clone(), host };
                    let store = self.store.with_fault_injector(Arc::new(link));
                    let drained = self.drive_to_end(Box::pin(async move {
                        store.drain_worker(id.to_string().as_str(), id).await
                    }));
                    self.ignore_unavailable("drain", drained.await);
                }
            }
            Step::DatabaseOutage => {
                let duration = self.state.draw(|rng| rng.below(8 * SECOND));
                self.state.log(|| format!("the database is unavailable for {duration} us"));
                let inner = &mut *self.state.lock();
                inner.outage_until = inner.now + duration;
            }
            Step::Disconnect => {
                let inner = &mut *self.state.lock();
                let link = match inner.processes.first() {
                    Some(process) => process.host,
                    None => inner.rng.below(HOSTS as u64) as usize,
                };
                inner.disconnected_until[link] = inner.now + inner.rng.below(2 * LEASE);
                inner.log(|| format!("connection {link} is disconnected"));
            }
            Step::LossBurst => {
                let inner = &mut *self.state.lock();
                let link = inner.rng.below(HOSTS as u64 + 1) as usize;
                inner.burst_until[link] = inner.now + inner.rng.below(3 * SECOND);
            }
            Step::JumpClock => self.jump_clock(),
            Step::ClearCoordinator => {
                if let Some(in_memory) = &self.in_memory {
                    in_memory.clear();
                }
            }
            Step::SendForgedOrder => self.send_forged_order().await?,
        }
        Ok(())
    }

    fn pick_host(&self) -> usize {
        self.state.draw(|rng| rng.below(self.hosts.len() as u64)) as usize
    }

    /// Advances the time, and resumes nodes whose freeze is over.
    pub(super) fn advance(&mut self, micros: u64) {
        self.state.lock().now += micros;
        self.store.set_clock(Some(self.state.database_time()));
        let now = self.state.now();
        let frozen: Vec<bool> =
            self.hosts.iter().map(|host| host.stopped_until.is_some()).collect();
        self.state.lock().advance_processes(&frozen);
        for host in &mut self.hosts {
            if host.stopped_until.is_some_and(|until| until <= now) {
                host.stopped_until = None;
                self.state.lock().frozen[host.index] = false;
            }
        }
        self.state.lock().advance_processes(&[false; HOSTS]);
    }

    fn jump_clock(&mut self) {
        let now = self.state.now();
        // At most one forward jump within the life of a lease: the safety margins cover only one.
        let forward = self.jumped_at == 0 || now > self.jumped_at + 3 * LEASE;
        let offset = self.state.draw(|rng| match self.clock {
            ClockMode::Steady => 0,
            ClockMode::SmallForwardJumps if forward => rng.below(SMALL_JUMP) as i64,
            ClockMode::SmallForwardJumps => 0,
            ClockMode::BackwardJumps => -(rng.below(10 * SECOND) as i64),
            ClockMode::LargeJumps => rng.below(60 * SECOND) as i64 - 20 * SECOND as i64,
        });
        if offset != 0 {
            self.jumped_at = now.max(1);
            self.state.log(|| format!("the database's clock jumps by {offset} us"));
            self.state.lock().database_ahead += offset;
            self.store.set_clock(Some(self.state.database_time()));
        }
    }

    /// Sends a worker a start order that no leader sent, for an existing assignment, with its own or an invented token.
    async fn send_forged_order(&mut self) -> Result<(), Error> {
        let host = self.pick_host();
        let Some(incarnation) =
            self.hosts[host].incarnation.as_ref().filter(|_| self.hosts[host].is_up())
        else {
            return Ok(());
        };
        let mut leased_runs = self.store.list_assigned_runs_of_all_workers().await?;
        if leased_runs.is_empty() {
            return Ok(());
        }
        let leased_run = leased_runs
            .swap_remove(self.state.draw(|rng| rng.below(leased_runs.len() as u64)) as usize);
        let token = match self.state.draw(|rng| rng.chance(500)) {
            true => leased_run.token,
            false => LeaseToken::from_random(self.state.next_u128()),
        };
        let runs = vec![(leased_run.run, self.state.database_time())];
        let order = crate::node::coordination::node_rpc::StartOrder {
            epoch: tasuki_core::Epoch(99),
            token,
            runs,
        };
        self.state
            .log(|| format!("node {host} receives a forged order for run {}", leased_run.run));
        incarnation.worker.accept_order(&order);
        Ok(())
    }

    /// Delivers one of the orders in flight.
    pub(super) fn deliver_order(&mut self) {
        let in_flight = {
            let inner = &mut *self.state.lock();
            if inner.orders_in_flight.is_empty() {
                return;
            }
            let index = inner.rng.below(inner.orders_in_flight.len() as u64) as usize;
            inner.orders_in_flight.swap_remove(index)
        };
        let recipient = self.hosts.iter().find_map(|host| {
            host.incarnation
                .as_ref()
                .filter(|incarnation| incarnation.worker.id() == in_flight.to && host.is_up())
        });
        if let Some(incarnation) = recipient {
            let service = Arc::clone(&incarnation.rpc_service);
            // The call accepts or refuses the order without waiting for anything.
            let _ = service.start(in_flight.order).now_or_never();
        }
    }

    /// Starts a node that is not running. A node that is drained and idle is stopped instead.
    pub(super) async fn start_or_stop_node(&mut self, index: usize) -> Result<(), Error> {
        if self.hosts[index].stopped_until.is_some() {
            return Ok(());
        }
        if let Some(incarnation) = &self.hosts[index].incarnation {
            if !incarnation.worker.is_draining() {
                return Ok(());
            }
            if !incarnation.worker.is_idle() {
                if self.state.draw(|rng| rng.chance(300)) {
                    incarnation.worker.stop_all(tasuki_core::exit::AttemptStopReason::Drain);
                }
                return Ok(());
            }
            self.stop_node(index).await;
            return Ok(());
        }
        let id = WorkerId::from_random(self.state.next_u128());
        self.worker_ids.push(id);
        let reports = self.state.lock().no_faults || self.state.draw(|rng| rng.chance(700));
        let unreported = match reports {
            true => self.hosts[index].unreported.clone(),
            false => Vec::new(),
        };
        let start = NodeStart {
            state: self.state.clone(),
            store: self.store.clone(),
            coordinator: Arc::clone(&self.coordinator),
            nodes: self.directory.clone(),
            host: index,
            name: self.hosts[index].name.clone(),
            id,
            unreported,
        };
        let started = self.drive_to_end(Box::pin(start.start())).await;
        match self.ignore_unavailable("start node", started) {
            Some(incarnation) => {
                if reports {
                    self.hosts[index].unreported.clear();
                }
                self.hosts[index].incarnation = Some(incarnation);
                self.tick(index, Tick::Heartbeat).await?;
            }
            None => self.hosts[index].unreported.push(id),
        }
        Ok(())
    }

    /// Stops a node whose worker is drained and idle.
    async fn stop_node(&mut self, index: usize) {
        let Some(incarnation) = self.hosts[index].incarnation.take() else { return };
        let (first_id, id, worker_ids) =
            (incarnation.id, incarnation.worker.id(), incarnation.worker_ids());
        let Incarnation { leader, ticks, .. } = incarnation;
        drop(ticks);
        self.state.log(|| format!("node {index} leaves"));
        let link = SimDatabaseLink { state: self.state.clone(), host: index };
        let store = self.store.with_fault_injector(Arc::new(link));
        let gone = self.drive_to_end(Box::pin(async move {
            leader.resign().await?;
            store.mark_worker_gone(id).await
        }));
        self.ignore_unavailable("stop node", gone.await);
        self.state.lock().remove_incarnation(first_id);
        self.hosts[index].unreported.extend(worker_ids);
    }
}
