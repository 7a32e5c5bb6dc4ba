//! Shared state of a simulation: time, randomness, faults of connections, and simulated processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{BoxFuture, Fault, FaultInjector};

use super::network::OrderInFlight;
use super::processes::{Launch, Process, RecordedExit};
use super::rng::Rng;
use crate::node::clock_and_random::{Clock, Random};
use crate::spawner::AttemptKey;

/// Number of hosts. The connection with this index belongs to users.
pub(super) const HOSTS: usize = 3;
/// Microseconds in a second.
pub(super) const SECOND: u64 = 1_000_000;
/// Start of every simulation by the database's clock, in microseconds since 1970.
const NOON: i64 = 1_794_744_000_000_000;

/// Handle to the shared state. Cheap to clone.
#[derive(Clone)]
pub(super) struct SimState(Arc<Mutex<SimStateInner>>);

/// The shared state itself.
pub(super) struct SimStateInner {
    pub(super) rng: Rng,
    /// Time since the simulation began, in microseconds. It never goes back.
    pub(super) now: u64,
    /// Offset of the database's clock from `now`, in microseconds.
    pub(super) database_ahead: i64,
    /// No more faults: connections lose nothing, and no exchange pauses.
    pub(super) no_faults: bool,
    /// End of the current database outage.
    pub(super) outage_until: u64,
    /// Until when each connection loses many exchanges.
    pub(super) burst_until: [u64; HOSTS + 1],
    /// Until when each connection is disconnected.
    pub(super) disconnected_until: [u64; HOSTS + 1],
    /// Whether most jobs take longer than a lease lasts.
    pub(super) long_jobs: bool,
    /// Probability that an exchange is lost outside of bursts and outages, in 1/1000.
    pub(super) loss_per_mille: u64,
    /// Faults of the next exchanges, set by a test.
    pub(super) next_faults: VecDeque<Fault>,
    /// Probability that an exchange pauses, in 1/1000.
    pub(super) pause_per_mille: u64,
    /// Number of users that disabled pauses: several calls are polled together, and one of them must not pause while
    /// it holds the only database connection.
    pauses_disabled: u32,
    /// An exchange has just paused, so the driver may do something else.
    paused: bool,
    pub(super) processes: Vec<Process>,
    /// Lease deadlines by the boottime of their host.
    pub(super) leases: BTreeMap<(WorkerId, LeaseToken), u64>,
    /// Exits that are not known to be reported, as they would be stored on disk.
    pub(super) recorded_exits: BTreeMap<(WorkerId, AttemptKey), RecordedExit>,
    /// Launches that are not checked yet.
    pub(super) new_launches: Vec<Launch>,
    pub(super) ever_launched: BTreeSet<AttemptKey>,
    pub(super) orders_in_flight: Vec<OrderInFlight>,
    /// Number of stop requests to processes.
    pub(super) stop_requests: u64,
    /// Hosts whose worker process is stopped.
    pub(super) frozen: [bool; HOSTS],
    /// Ids returned for idempotency keys: the same key must always return the same id.
    stable_ids: BTreeMap<String, i64>,
    /// First violated invariant.
    pub(super) failure: Option<String>,
    /// Whether to print each step.
    pub(super) verbose: bool,
    /// Number of exchanges with the database.
    pub(super) exchanges: u64,
}

impl SimState {
    pub(super) fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let pause_per_mille = rng.pick(&[0, 20, 60, 150]);
        let long_jobs = rng.chance(500);
        Self(Arc::new(Mutex::new(SimStateInner {
            rng,
            now: 0,
            database_ahead: 0,
            no_faults: false,
            outage_until: 0,
            burst_until: [0; HOSTS + 1],
            disconnected_until: [0; HOSTS + 1],
            long_jobs,
            loss_per_mille: 8,
            next_faults: VecDeque::new(),
            pause_per_mille,
            pauses_disabled: 0,
            paused: false,
            processes: Vec::new(),
            leases: BTreeMap::new(),
            recorded_exits: BTreeMap::new(),
            new_launches: Vec::new(),
            ever_launched: BTreeSet::new(),
            orders_in_flight: Vec::new(),
            stop_requests: 0,
            frozen: [false; HOSTS],
            stable_ids: BTreeMap::new(),
            failure: None,
            verbose,
            exchanges: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SimStateInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws from the simulation's only random number generator.
    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.lock().rng)
    }

    pub(super) fn now(&self) -> u64 {
        self.lock().now
    }

    /// Time by the database's clock.
    pub(super) fn database_time(&self) -> Timestamp {
        let inner = self.lock();
        let micros = NOON + inner.now as i64 + inner.database_ahead;
        Timestamp::from_microsecond(micros).expect("a simulation is short")
    }

    /// Prints a step, if the simulation is verbose.
    pub(super) fn log(&self, message: impl FnOnce() -> String) {
        self.lock().log(message);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Records a violated invariant, unless another one is recorded already.
    pub(super) fn fail(&self, message: impl FnOnce() -> String) {
        self.lock().fail(message);
    }

    /// Checks that a key always stands for the same id.
    pub(super) fn check_stable_id(&self, key: Option<String>, id: i64) {
        let Some(key) = key else { return };
        let mut inner = self.lock();
        let known = *inner.stable_ids.entry(key.clone()).or_insert(id);
        if known != id {
            inner.fail(|| format!("I2: {key} is {known} and {id}"));
        }
    }

    /// Disables pauses until the returned guard is dropped.
    pub(super) fn disable_pauses(&self) -> PausesDisabled {
        self.lock().pauses_disabled += 1;
        PausesDisabled(self.clone())
    }

    pub(super) fn take_paused(&self) -> bool {
        std::mem::take(&mut self.lock().paused)
    }

    /// Pauses with the configured probability, until the driver polls again.
    pub(super) async fn pause(&self) {
        {
            let mut inner = self.lock();
            let slowness = inner.pause_per_mille;
            if inner.no_faults || inner.pauses_disabled > 0 || !inner.rng.chance(slowness) {
                return;
            }
        }
        let mut waited = false;
        poll_fn(|_| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            self.lock().paused = true;
            Poll::Pending
        })
        .await;
    }

    fn draw_fault(&self, connection: usize) -> Fault {
        let inner = &mut *self.lock();
        inner.exchanges += 1;
        if let Some(fault) = inner.next_faults.pop_front() {
            return fault;
        }
        if inner.no_faults {
            return Fault::None;
        }
        let away = inner.now < inner.outage_until.max(inner.disconnected_until[connection]);
        let loss = match inner.now < inner.burst_until[connection] {
            _ if away => 1_000,
            true => 400,
            false => inner.loss_per_mille,
        };
        if !inner.rng.chance(loss) {
            return Fault::None;
        }
        // In an outage every request is lost; otherwise requests and responses are lost equally often.
        match away || inner.rng.chance(500) {
            true => Fault::RequestLost,
            false => Fault::ResponseLost,
        }
    }
}

impl SimStateInner {
    pub(super) fn log(&self, message: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:10.3}  {}", self.now as f64 / SECOND as f64, message());
        }
    }

    pub(super) fn fail(&mut self, message: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(message());
        }
    }

    /// Boottime clock of a host. Each host was started at another time.
    pub(super) fn boottime(&self, host: usize) -> u64 {
        self.now + (host as u64 + 1) * 1_000 * SECOND
    }
}

/// Guard that disables pauses; see [`SimState::disable_pauses`].
pub(super) struct PausesDisabled(SimState);

impl Drop for PausesDisabled {
    fn drop(&mut self) {
        self.0.lock().pauses_disabled -= 1;
    }
}

/// Connection of one host to the database, with injected faults.
pub(super) struct SimDatabaseLink {
    pub(super) state: SimState,
    pub(super) host: usize,
}

impl FaultInjector for SimDatabaseLink {
    fn on_request(&self) -> BoxFuture<'_, Fault> {
        Box::pin(async {
            self.state.pause().await;
            let fault = self.state.draw_fault(self.host);
            if fault != Fault::None {
                self.state.log(|| format!("connection {} {fault:?}", self.host));
            }
            fault
        })
    }

    fn on_response(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.state.pause())
    }
}

/// Clock of one host.
pub(super) struct SimClock {
    pub(super) state: SimState,
    pub(super) host: usize,
}

impl Clock for SimClock {
    fn boottime(&self) -> u64 {
        self.state.lock().boottime(self.host)
    }
}

impl Random for SimState {
    fn next_u128(&self) -> u128 {
        self.draw(|rng| u128::from(rng.next()) << 64 | u128::from(rng.next()))
    }
}
