//! What everybody in a simulation shares: the time, the dice, the lines, and the processes that live.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{Fault, Line, Pause};

use super::hints::Letter;
use super::processes::{Launched, Process, Spooled};
use super::rng::Rng;
use crate::node::world::{Clock, Dice};
use crate::spawner::JobKey;

/// How many nodes there are. The line after theirs is that of people.
pub(super) const HOSTS: usize = 3;
/// Microseconds of a second.
pub(super) const SECOND: u64 = 1_000_000;
/// Noon, when every simulation begins, by the database's clock.
const NOON: i64 = 1_794_744_000_000_000;

/// See the module.
#[derive(Clone)]
pub(super) struct Stage(Arc<Mutex<Inside>>);

pub(super) struct Inside {
    pub(super) rng: Rng,
    /// Since the simulation began, in microseconds. Goes forward.
    pub(super) now: u64,
    /// How much further the database's clock has gone.
    pub(super) database_ahead: i64,
    /// The faults are over: lines are good, and nothing waits.
    pub(super) calm: bool,
    /// The database is away until then.
    pub(super) outage_until: u64,
    /// Each line loses much until then.
    pub(super) burst_until: [u64; HOSTS + 1],
    /// And each is cut until then.
    pub(super) cut_until: [u64; HOSTS + 1],
    /// Whether jobs mostly take longer than a lease lasts.
    pub(super) long: bool,
    /// How often in a thousand an exchange is lost where nothing special is the matter.
    pub(super) loss: u64,
    /// What becomes of the next exchanges, where a test says so.
    pub(super) next_faults: VecDeque<Fault>,
    /// How often in a thousand an exchange is held up.
    pub(super) slowness: u64,
    /// How many ask others at the same time: none of them waits on a line while another has the only connection there is.
    at_once: u32,
    /// Somebody waits on a line, and whoever drives it may do something else.
    parked: bool,
    pub(super) processes: Vec<Process>,
    /// Until when, by the boottime of its node.
    pub(super) leases: BTreeMap<(WorkerId, LeaseToken), u64>,
    /// What has ended and is not known to be recorded, as it would be on disk.
    pub(super) spool: BTreeMap<(WorkerId, JobKey), Spooled>,
    /// Launched since somebody looked.
    pub(super) launches: Vec<Launched>,
    pub(super) ever_launched: BTreeSet<JobKey>,
    pub(super) letters: Vec<Letter>,
    /// How often something was told to stop.
    pub(super) stops: u64,
    /// Nodes on which nothing moves.
    pub(super) frozen: [bool; HOSTS],
    /// What was answered under a key: it is the same whenever it is asked again.
    promises: BTreeMap<String, i64>,
    /// What must not be.
    pub(super) broken: Option<String>,
    /// Whether to tell the story while it happens.
    pub(super) aloud: bool,
    /// How often somebody asked the database.
    pub(super) exchanges: u64,
}

impl Stage {
    pub(super) fn new(seed: u64, aloud: bool) -> Self {
        let mut rng = Rng::new(seed);
        let slowness = rng.pick(&[0, 20, 60, 150]);
        let long = rng.chance(500);
        Self(Arc::new(Mutex::new(Inside {
            rng,
            now: 0,
            database_ahead: 0,
            calm: false,
            outage_until: 0,
            burst_until: [0; HOSTS + 1],
            cut_until: [0; HOSTS + 1],
            long,
            loss: 8,
            next_faults: VecDeque::new(),
            slowness,
            at_once: 0,
            parked: false,
            processes: Vec::new(),
            leases: BTreeMap::new(),
            spool: BTreeMap::new(),
            launches: Vec::new(),
            ever_launched: BTreeSet::new(),
            letters: Vec::new(),
            stops: 0,
            frozen: [false; HOSTS],
            promises: BTreeMap::new(),
            broken: None,
            aloud,
            exchanges: 0,
        })))
    }

    pub(super) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws from the one source of chance.
    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.inside().rng)
    }

    pub(super) fn now(&self) -> u64 {
        self.inside().now
    }

    /// By the database's clock.
    pub(super) fn database_time(&self) -> Timestamp {
        let inside = self.inside();
        let micros = NOON + inside.now as i64 + inside.database_ahead;
        Timestamp::from_microsecond(micros).expect("a simulation is short")
    }

    /// Tells what happens, where somebody listens.
    pub(super) fn tell(&self, told: impl FnOnce() -> String) {
        self.inside().tell(told);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.inside().broken.is_some()
    }

    pub(super) fn broken(&self, what: impl FnOnce() -> String) {
        self.inside().broken(what);
    }

    /// The same key is the same thing.
    pub(super) fn promise(&self, key: Option<String>, id: i64) {
        let Some(key) = key else { return };
        let mut inside = self.inside();
        let known = *inside.promises.entry(key.clone()).or_insert(id);
        if known != id {
            inside.broken(|| format!("I2: {key} is {known} and {id}"));
        }
    }

    /// One of several who ask at the same time, until it is dropped.
    pub(super) fn at_once(&self) -> AtOnce {
        self.inside().at_once += 1;
        AtOnce(self.clone())
    }

    pub(super) fn take_parked(&self) -> bool {
        std::mem::take(&mut self.inside().parked)
    }

    /// Waits, sometimes, until whoever drives this comes back to it.
    pub(super) async fn pause(&self) {
        {
            let mut inside = self.inside();
            let slowness = inside.slowness;
            if inside.calm || inside.at_once > 0 || !inside.rng.chance(slowness) {
                return;
            }
        }
        let mut waited = false;
        poll_fn(|_| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            self.inside().parked = true;
            Poll::Pending
        })
        .await;
    }

    fn fault(&self, line: usize) -> Fault {
        let inside = &mut *self.inside();
        inside.exchanges += 1;
        if let Some(fault) = inside.next_faults.pop_front() {
            return fault;
        }
        if inside.calm {
            return Fault::None;
        }
        let away = inside.now < inside.outage_until.max(inside.cut_until[line]);
        let loss = match inside.now < inside.burst_until[line] {
            _ if away => 1_000,
            true => 400,
            false => inside.loss,
        };
        if !inside.rng.chance(loss) {
            return Fault::None;
        }
        // Away is away; otherwise it is the answer that gets lost as often as the question.
        match away || inside.rng.chance(500) {
            true => Fault::Unsent,
            false => Fault::Unanswered,
        }
    }
}

impl Inside {
    pub(super) fn tell(&self, told: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:10.3}  {}", self.now as f64 / SECOND as f64, told());
        }
    }

    pub(super) fn broken(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    /// The clock of a node: each machine was started at another time.
    pub(super) fn boottime(&self, host: usize) -> u64 {
        self.now + (host as u64 + 1) * 1_000 * SECOND
    }
}

/// See [`Stage::at_once`].
pub(super) struct AtOnce(Stage);

impl Drop for AtOnce {
    fn drop(&mut self) {
        self.0.inside().at_once -= 1;
    }
}

/// The line from one node to the database.
pub(super) struct SimLine {
    pub(super) stage: Stage,
    pub(super) host: usize,
}

impl Line for SimLine {
    fn send(&self) -> Pause<'_, Fault> {
        Box::pin(async {
            self.stage.pause().await;
            let fault = self.stage.fault(self.host);
            if fault != Fault::None {
                self.stage.tell(|| format!("line {} {fault:?}", self.host));
            }
            fault
        })
    }

    fn answer(&self) -> Pause<'_, ()> {
        Box::pin(self.stage.pause())
    }
}

/// The clock of one node.
pub(super) struct SimClock {
    pub(super) stage: Stage,
    pub(super) host: usize,
}

impl Clock for SimClock {
    fn boottime(&self) -> u64 {
        self.stage.inside().boottime(self.host)
    }
}

impl Dice for Stage {
    fn roll(&self) -> u128 {
        self.draw(|rng| u128::from(rng.next()) << 64 | u128::from(rng.next()))
    }
}
