//! The worker: starts what it is given, claims what it may, keeps its leases, reports how things ended.
//!
//! Each of its ticks reads, decides and writes with a guard; the loops around them own pace and stopping.
//! What it carries is remembered here, but only the database says whether it still does.

pub(crate) mod continuation;
pub(crate) mod carry;
mod claims;
mod intake;
pub(crate) mod me;
pub(crate) mod queues;
pub(crate) mod recipes;
mod renewals;
mod reports;
mod starts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::Stopped;
use tasuki_core::{Epoch, LeaseToken, RunId, RunState, Settings, WorkerId};
use tasuki_store::{Error, FirstLines, NewWorker, Store};
use tokio::sync::{Notify, watch};

use self::continuation::Apart;
use super::within::within;
use super::world::{Clock, Dice};
use crate::Wake;
use crate::node::coordination::peers::StartOrder;
use crate::node::executor::attempt::{Executor, Mail};
use crate::node::worker::carry::{Claim, Here, Lease, Running};
use crate::node::worker::me::Me;
use crate::node::worker::queues::{Pool, Slots, Source};
use crate::node::worker::recipes::Recipes;

/// How much two clocks part from one heartbeat to the next, in microseconds, at most.
const CLOCKS_PART: i64 = 200;
/// Who finds them further apart than this must not go by what was.
const CLOCK_WAS_SET: i64 = 50_000;
/// Who was given nothing for so long, in microseconds, and carries nothing, waits until it does: sooner, it would be woken for
/// every single task.
const QUIET: u64 = 10_000_000;

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dice: Arc<dyn Dice>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) mail: Mail,
    pub(crate) wake: Wake,
    /// How many at once, under these settings.
    pub(crate) slots: Box<dyn Fn(&Settings) -> Slots + Send + Sync>,
    /// Where it claims from.
    pub(crate) lanes: Vec<Source>,
    /// What it says of itself when it begins anew.
    pub(crate) registration: NewWorker,
    /// Makes room on this host for another incarnation.
    pub(crate) settle_in: Box<dyn Fn(WorkerId) + Send + Sync>,
}

/// One incarnation of a worker.
pub struct Worker {
    me: Me,
    parts: Parts,
    recipes: Recipes,
    state: Mutex<State>,
    orders: Notify,
    looks: Notify,
    parted: Notify,
    /// It carries something; heard by those who wait for that.
    begun: watch::Sender<()>,
}

struct State {
    leases: BTreeMap<LeaseToken, Lease>,
    settings: Arc<Settings>,
    /// Which these are; `None`: those it was born with.
    settings_version: Option<i64>,
    /// How many at once.
    slots: Slots,
    /// How much the database's clock is ahead of ours, in microseconds; at least.
    ahead: Option<i64>,
    draining: bool,
    /// Somebody cut it off.
    apart: Option<Apart>,
    /// The newest term, as the database last said.
    epoch: Epoch,
    /// Where it is in the lanes it claims from without an end, by their numbers.
    onward: BTreeMap<usize, claims::Onward>,
    /// Which of them it goes on with.
    course: Option<claims::Course>,
    /// Which of them gave something last.
    last: Option<usize>,
    /// Which will be the next to, if it may be guessed.
    guess: Option<usize>,
    /// Whether it had no room for what may wait in one of them.
    full: bool,
    /// Claims that were given up and may still land: when, and whose slots.
    late: BTreeMap<LeaseToken, (u64, Pool)>,
    /// Whether nothing was due in any of them when it last looked, and it has heard of nothing since.
    calm: bool,
    /// What those printed that it carries no longer, as long as it is not kept.
    unkept: Vec<FirstLines>,
    /// When it was last given anything.
    carried_at: u64,
}

/// What a heartbeat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Go on.
    Alive,
    /// It was declared dead: it must begin anew under another id.
    CutOff,
}

impl Worker {
    pub(crate) fn new(me: Me, parts: Parts, settings: Arc<Settings>) -> Self {
        let slots = (parts.slots)(&settings);
        let state = State {
            leases: BTreeMap::new(),
            settings,
            settings_version: None,
            slots,
            ahead: None,
            draining: false,
            apart: None,
            epoch: Epoch(0),
            onward: BTreeMap::new(),
            course: None,
            last: None,
            guess: None,
            full: false,
            late: BTreeMap::new(),
            calm: false,
            unkept: Vec::new(),
            carried_at: 0,
        };
        Self {
            me,
            parts,
            recipes: Recipes::default(),
            state: Mutex::new(state),
            orders: Notify::new(),
            looks: Notify::new(),
            parted: Notify::new(),
            begun: watch::Sender::new(()),
        }
    }

    /// Which incarnation.
    pub fn id(&self) -> WorkerId {
        self.me.id()
    }

    /// Whom it has been, this one included.
    pub(crate) fn been(&self) -> Vec<WorkerId> {
        self.me.all()
    }

    /// The settings it goes by.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.state().settings)
    }

    /// A leader gave it something. `false`: it knew.
    pub(crate) fn hear(&self, order: &StartOrder) -> bool {
        let new = self.adopt(order.token, &order.runs);
        self.orders.notify_one();
        new
    }

    /// The newest term, as the database last said: an order of an older one is refused.
    pub(crate) fn newest_epoch(&self) -> Epoch {
        self.state().epoch
    }

    /// Something about it changed: its next look at the database is now.
    pub(crate) fn look_now(&self) {
        self.looks.notify_one();
    }

    /// Waits until it is to look.
    pub(crate) async fn looks(&self) {
        self.looks.notified().await;
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.state().apart.is_some()
    }

    /// Whether it takes no new work.
    pub(crate) fn is_aside(&self) -> bool {
        is_aside(&self.state())
    }

    pub(crate) fn settings_version(&self) -> Option<i64> {
        self.state().settings_version
    }

    /// What it carries.
    pub(crate) fn carried(&self) -> Vec<RunId> {
        self.state().leases.values().flat_map(|lease| lease.runs.keys().copied()).collect()
    }

    /// Waits until something was ordered.
    pub(crate) async fn ordered(&self) {
        self.orders.notified().await;
    }

    /// Takes no new work from now on.
    pub(crate) fn drain(&self) {
        self.state().draining = true;
        self.orders.notify_one();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state().draining
    }

    /// Has something to look after, from now on.
    fn carry(&self, state: &mut State, token: LeaseToken, lease: Lease) {
        state.leases.insert(token, lease);
        state.carried_at = self.parts.clock.boottime();
        if self.begun.receiver_count() > 0 {
            self.begun.send_replace(());
        }
    }

    /// Waits so long; or, if it carries nothing and was given nothing for a while, until it is: whoever looks after what it
    /// carries need not look then.
    pub(crate) async fn carries(&self, pace: Duration) {
        // Before the look: what comes after that is heard of.
        let mut begun = self.begun.subscribe();
        let is_quiet = {
            let state = self.state();
            let now = self.parts.clock.boottime();
            state.leases.is_empty() && state.unkept.is_empty() && now >= state.carried_at + QUIET
        };
        match is_quiet {
            true => drop(begun.changed().await),
            false => {
                drop(begun);
                tokio::time::sleep(pace).await;
            }
        }
    }

    /// Whether it carries nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().leases.values().all(|lease| lease.runs.is_empty() && !lease.is_live())
    }

    /// The longest grace of what runs.
    pub(crate) fn longest_grace(&self) -> Duration {
        let mut state = self.state();
        let all = state.leases.values_mut().flat_map(running_in).map(|running| running.grace);
        all.max().unwrap_or_default()
    }

    /// Tells all that runs to stop.
    pub(crate) fn stop_all(&self, why: Stopped) {
        let mut state = self.state();
        for running in state.leases.values_mut().flat_map(running_in) {
            self.stop(running, why);
        }
    }

    /// Shows that it is alive, reads the clock and the settings, and finds what was given to it without a
    /// word.
    pub(crate) async fn pulse(&self) -> Result<Pulse, Error> {
        let store = &self.parts.store;
        let me = self.id();
        let Some(now) = within(store.heartbeat(me)).await? else {
            self.part(me, true);
            return Ok(Pulse::CutOff);
        };
        if now.worker.detached_at.is_some() {
            self.part(me, false);
        }
        let ours = self.parts.clock.boottime() as i64;
        let known = {
            let mut state = self.state();
            state.ahead = Some(steadied(state.ahead, now.clock.as_microsecond() - ours));
            state.epoch = now.epoch;
            state.settings_version
        };
        if known != Some(now.settings_version) {
            let read = within(store.settings()).await?;
            let mut state = self.state();
            state.slots = (self.parts.slots)(&read.settings);
            state.settings = Arc::new(read.settings);
            state.settings_version = Some(read.version);
        }
        if now.worker.draining_at.is_some() && !self.is_draining() {
            tracing::warn!(worker_id = %self.id(), "somebody drains this worker: it takes no new work");
            self.drain();
        }
        self.tell_room((now.worker.slots, now.worker.function_slots)).await?;
        if now.carries {
            self.adopt_unknown().await?;
        }
        Ok(Pulse::Alive)
    }

    /// Takes on what was given to it without its hearing of it.
    async fn adopt_unknown(&self) -> Result<(), Error> {
        let mut unknown: BTreeMap<LeaseToken, Vec<(RunId, Timestamp)>> = BTreeMap::new();
        for carried in within(self.parts.store.carried_by(self.id())).await? {
            if carried.state == RunState::Running {
                self.adopt_late(carried.token);
            } else if carried.state == RunState::Assigned {
                unknown.entry(carried.token).or_default().push((carried.run, carried.due_at));
            }
        }
        for (token, runs) in unknown {
            if self.adopt(token, &runs) {
                self.orders.notify_one();
            }
        }
        Ok(())
    }

    /// Tells how much it does at once, where that is not what is known. What runs has its room until it ends.
    async fn tell_room(&self, known: (u32, u32)) -> Result<(), Error> {
        let (slots, function_slots) = {
            let state = self.state();
            let room = |pool| state.slots.of(pool).max(count(&state, pool));
            let functions = state.slots.pools().filter(|pool| matches!(pool, Pool::Queue(_)));
            (room(Pool::Commands), functions.map(room).fold(0, u32::saturating_add))
        };
        if known == (slots, function_slots) {
            return Ok(());
        }
        within(self.parts.store.resize_worker(self.id(), slots, function_slots)).await?;
        self.parts.wake.leader();
        self.parts.wake.claims();
        Ok(())
    }

    /// Claims that were given up and may still land.
    #[cfg(test)]
    pub(crate) fn late(&self) -> Vec<LeaseToken> {
        self.state().late.keys().copied().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roll(&self) -> u32 {
        self.parts.dice.roll() as u32
    }

    /// Remembers what is assigned to it. `false`: it knew.
    fn adopt(&self, token: LeaseToken, runs: &[(RunId, Timestamp)]) -> bool {
        // What is long due when it comes has its whole patience before it.
        let not_before = self.parts.clock.boottime();
        let mut state = self.state();
        if state.leases.contains_key(&token) {
            return false;
        }
        let waiting = |due_at: Timestamp| Here::Waiting { due_at, not_before };
        let runs = runs.iter().map(|&(run, due_at)| (run, waiting(due_at))).collect();
        self.carry(&mut state, token, Lease { runs, ..Lease::default() });
        true
    }

    /// A claim landed after nobody waited for its answer any more: the next renewal tells what is under it.
    fn adopt_late(&self, token: LeaseToken) {
        let mut state = self.state();
        if let Some((_, pool)) = state.late.remove(&token) {
            let (claim, claimed) = (Claim::Unanswered, true);
            self.carry(&mut state, token, Lease { claim, claimed, pool, ..Lease::default() });
            self.parts.wake.leases();
        }
    }

    fn stop(&self, running: &mut Running, why: Stopped) {
        if running.signs.have_ended() {
            return;
        }
        let why = *running.stopped.get_or_insert(why);
        self.parts.executor.stop(running.key, why, running.grace);
    }
}

/// Whether it takes no new work: it drains, or was cut off.
fn is_aside(state: &State) -> bool {
    state.draining || state.apart.is_some()
}

/// How many run that use the slots of a pool.
fn count(state: &State, pool: Pool) -> u32 {
    state.leases.values().map(|lease| lease.running(pool)).sum::<usize>() as u32
}

fn running_in(lease: &mut Lease) -> impl Iterator<Item = &mut Running> {
    lease.runs.values_mut().filter_map(|here| match here {
        Here::Running(running) => Some(&mut **running),
        Here::Waiting { .. } | Here::Starting | Here::Unsure | Here::Ended(_) => None,
    })
}

fn drop_if_empty(state: &mut State, token: LeaseToken) {
    let empty = |lease: &Lease| lease.runs.is_empty() && lease.claim == Claim::Known;
    if state.leases.get(&token).is_some_and(empty) {
        state.leases.remove(&token);
    }
}

/// How much the database's clock is ahead of ours, from what was known and what was measured. That is too little by as long as
/// the answer took, a commit included, now more and now less; the clocks themselves part slowly, unless somebody sets one.
fn steadied(known: Option<i64>, measured: i64) -> i64 {
    match known {
        Some(known) if known - measured < CLOCK_WAS_SET => measured.max(known - CLOCKS_PART),
        _ => measured,
    }
}

fn database_time(ours: u64, ahead: i64) -> Timestamp {
    Timestamp::from_microsecond(ours as i64 + ahead).unwrap_or(Timestamp::MAX)
}

fn our_time(at: Timestamp, ahead: i64) -> u64 {
    (at.as_microsecond().saturating_sub(ahead)).max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_took_long_does_not_move_the_clock() {
        assert_eq!(steadied(None, 1_000), 1_000);
        assert_eq!(steadied(Some(1_000), 1_500), 1_500, "it was quicker this time");
        assert_eq!(steadied(Some(1_000), -9_000), 800, "it was slower");
        assert_eq!(steadied(Some(1_000), 900), 900);
        assert_eq!(steadied(Some(1_000), -60_000), -60_000, "somebody has set a clock back");
        assert_eq!(steadied(Some(1_000), 60_000), 60_000, "or forward");
    }
}
