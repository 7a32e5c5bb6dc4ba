//! The worker: starts assigned runs, claims waiting runs, renews its leases and reports how attempts ended.
//!
//! Each method that a loop calls does one step: it reads, decides and writes with a guard. The loops (`node/loops`)
//! own the intervals, the retries and the shutdown. The worker remembers its leases in memory, but only the database
//! decides whether it still holds them.

pub(crate) mod after_being_detached;
mod assigned_starts;
mod claims;
pub(crate) mod configured_slots_and_lanes;
mod create_and_claim_submitted_tasks;
pub(crate) mod lease_table;
mod renewals;
mod reports;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::{Epoch, LeaseToken, RunId, RunState, Settings, WorkerId};
use tasuki_store::{Error, FirstOutputLines, NewWorker, Store};
use tokio::sync::{Notify, watch};

use super::clock_and_random::{Clock, Random};
use super::store_timeout::with_timeout;
use crate::Wakeups;
use crate::node::coordination::node_rpc::StartOrder;
use crate::node::executor::attempt_input_and_result::{CompletionQueue, Executor};
use crate::node::job_version_cache::JobVersionCache;
use crate::node::worker::configured_slots_and_lanes::{LaneWithSlotPool, SlotCounts, SlotPool};
use crate::node::worker::lease_table::{ClaimStatus, LeaseWithRuns, LocalRunState, RunningAttempt};
use crate::node::worker_ids_of_process::WorkerIdentity;
use after_being_detached::DetachState;

/// Maximum drift between the local clock and the database clock from one heartbeat to the next, in microseconds.
const MAX_DRIFT_PER_HEARTBEAT_MICROS: i64 = 200;
/// A clock offset that falls by more than this, in microseconds, means that a clock was set: the old offset is dropped.
const CLOCK_SET_THRESHOLD_MICROS: i64 = 50_000;
/// A worker without leases that got no new lease for so long, in microseconds, stops its periodic checks until it gets
/// one. With a shorter time, every single task would pause and wake those loops.
const IDLE_AFTER_MICROS: u64 = 10_000_000;

/// What a worker is built from.
pub(crate) struct WorkerParts {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) completions: CompletionQueue,
    pub(crate) wakeups: Wakeups,
    /// Computes its slots from the settings.
    pub(crate) slot_counts: Box<dyn Fn(&Settings) -> SlotCounts + Send + Sync>,
    /// The lanes it claims from.
    pub(crate) lanes: Vec<LaneWithSlotPool>,
    /// The row it registers when it starts again under a new id; id and slots are replaced.
    pub(crate) registration: NewWorker,
    /// Prepares the data directory of this host for a new worker id.
    pub(crate) prepare_incarnation: Box<dyn Fn(WorkerId) + Send + Sync>,
}

/// The worker of a node, with the leases it holds.
pub struct Worker {
    identity: WorkerIdentity,
    parts: WorkerParts,
    jobs: JobVersionCache,
    state: Mutex<State>,
    start_wakeup: Notify,
    heartbeat_wakeup: Notify,
    detach_wakeup: Notify,
    /// Notifies the loops that wait for the first lease.
    lease_added: watch::Sender<()>,
}

struct State {
    leases: BTreeMap<LeaseToken, LeaseWithRuns>,
    settings: Arc<Settings>,
    /// Version of `settings`. `None`: the settings that it was created with.
    settings_version: Option<i64>,
    /// Slots of each pool, from the settings.
    slots: SlotCounts,
    /// Lower bound of the difference between the database clock and the local clock, in microseconds. `None`: no
    /// heartbeat yet.
    clock_offset: Option<i64>,
    draining: bool,
    /// State of the detach procedure. `None`: the worker is not detached.
    detach: Option<DetachState>,
    /// The newest leader epoch that a heartbeat has read.
    epoch: Epoch,
    /// Positions in lanes that returned as many runs as requested, by lane index.
    lane_cursors: BTreeMap<usize, claims::LaneCursor>,
    /// The lane that the next claim continues.
    current_lane: Option<claims::CurrentLane>,
    /// Index of the lane that last returned a run.
    last_lane: Option<usize>,
    /// Index of the lane that probably has the next run: it is tried first after a wake-up.
    likely_lane: Option<usize>,
    /// Whether a lane was skipped because its pool had no free slot.
    lacked_slots: bool,
    /// Claims that were given up and may still take effect: when they were given up (local clock, microseconds), and
    /// the pool they would use.
    given_up_claims: BTreeMap<LeaseToken, (u64, SlotPool)>,
    /// Whether no lane had a due run at the last poll, and no wake-up has arrived since.
    nothing_due: bool,
    /// Captured output of attempts that the worker no longer leases; it is still to be stored.
    unsaved_output: Vec<FirstOutputLines>,
    /// When it last got a lease, by the local clock in microseconds.
    last_lease_at: u64,
}

/// Result of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeartbeatResult {
    /// The worker is registered and may go on.
    Alive,
    /// The worker was declared dead: it must register again under a new id.
    DeclaredDead,
}

impl Worker {
    pub(crate) fn new(
        identity: WorkerIdentity,
        parts: WorkerParts,
        settings: Arc<Settings>,
    ) -> Self {
        let slots = (parts.slot_counts)(&settings);
        let state = State {
            leases: BTreeMap::new(),
            settings,
            settings_version: None,
            slots,
            clock_offset: None,
            draining: false,
            detach: None,
            epoch: Epoch(0),
            lane_cursors: BTreeMap::new(),
            current_lane: None,
            last_lane: None,
            likely_lane: None,
            lacked_slots: false,
            given_up_claims: BTreeMap::new(),
            nothing_due: false,
            unsaved_output: Vec::new(),
            last_lease_at: 0,
        };
        Self {
            identity,
            parts,
            jobs: JobVersionCache::default(),
            state: Mutex::new(state),
            start_wakeup: Notify::new(),
            heartbeat_wakeup: Notify::new(),
            detach_wakeup: Notify::new(),
            lease_added: watch::Sender::new(()),
        }
    }

    /// Current worker id.
    pub fn id(&self) -> WorkerId {
        self.identity.id()
    }

    /// All ids that this process has used, the current one last.
    pub(crate) fn current_and_previous_worker_ids(&self) -> Vec<WorkerId> {
        self.identity.current_and_previous_worker_ids()
    }

    /// The settings that the worker uses.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.state().settings)
    }

    /// Accepts an order of the leader: runs that are assigned to this worker. `false`: the lease was known already.
    pub(crate) fn accept_order(&self, order: &StartOrder) -> bool {
        let new = self.adopt_lease(order.token, &order.runs);
        self.start_wakeup.notify_one();
        new
    }

    /// The newest leader epoch that a heartbeat has read. Orders of older epochs are refused.
    pub(crate) fn newest_epoch(&self) -> Epoch {
        self.state().epoch
    }

    /// Makes the heartbeat loop send a heartbeat now, because something about this worker has changed.
    pub(crate) fn request_heartbeat(&self) {
        self.heartbeat_wakeup.notify_one();
    }

    /// Waits until a heartbeat is requested.
    pub(crate) async fn wait_for_heartbeat_request(&self) {
        self.heartbeat_wakeup.notified().await;
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.state().detach.is_some()
    }

    /// Whether it takes no new runs: it drains or is detached.
    pub(crate) fn is_suspended(&self) -> bool {
        is_suspended(&self.state())
    }

    pub(crate) fn settings_version(&self) -> Option<i64> {
        self.state().settings_version
    }

    /// The runs that it leases.
    pub(crate) fn leased_runs(&self) -> Vec<RunId> {
        self.state().leases.values().flat_map(|lease| lease.runs.keys().copied()).collect()
    }

    /// Waits until there may be a run to start: an order arrived, or the worker drains or is detached.
    pub(crate) async fn wait_for_start_request(&self) {
        self.start_wakeup.notified().await;
    }

    /// Stops taking new runs.
    pub(crate) fn drain(&self) {
        self.state().draining = true;
        self.start_wakeup.notify_one();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state().draining
    }

    /// Adds a lease and wakes the loops that wait for one.
    fn add_lease(&self, state: &mut State, token: LeaseToken, lease: LeaseWithRuns) {
        state.leases.insert(token, lease);
        state.last_lease_at = self.parts.clock.boottime();
        if self.lease_added.receiver_count() > 0 {
            self.lease_added.send_replace(());
        }
    }

    /// Waits for `interval`. If the worker holds no lease and got none for [`IDLE_AFTER_MICROS`], waits until it gets
    /// one: without leases there is nothing to check.
    pub(crate) async fn wait_interval_or_next_lease(&self, interval: Duration) {
        // Subscribe before reading the state: a lease that is added afterwards is not missed.
        let mut lease_added = self.lease_added.subscribe();
        let is_idle = {
            let state = self.state();
            let now = self.parts.clock.boottime();
            state.leases.is_empty()
                && state.unsaved_output.is_empty()
                && now >= state.last_lease_at + IDLE_AFTER_MICROS
        };
        match is_idle {
            true => drop(lease_added.changed().await),
            false => {
                drop(lease_added);
                tokio::time::sleep(interval).await;
            }
        }
    }

    /// Whether it leases no runs and no claim is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().leases.values().all(|lease| lease.runs.is_empty() && !lease.needs_renewal())
    }

    /// Longest stop grace of the running attempts.
    pub(crate) fn longest_grace(&self) -> Duration {
        let mut state = self.state();
        let all =
            state.leases.values_mut().flat_map(running_attempts).map(|running| running.stop_grace);
        all.max().unwrap_or_default()
    }

    /// Stops all running attempts.
    pub(crate) fn stop_all(&self, reason: AttemptStopReason) {
        let mut state = self.state();
        for running in state.leases.values_mut().flat_map(running_attempts) {
            self.stop(running, reason);
        }
    }

    /// Sends a heartbeat, reads the database clock and changed settings, and adopts runs that were assigned to this
    /// worker while the order did not arrive.
    pub(crate) async fn heartbeat(&self) -> Result<HeartbeatResult, Error> {
        let store = &self.parts.store;
        let me = self.id();
        let Some(now) = with_timeout(store.record_heartbeat(me)).await? else {
            self.mark_detached(me, true);
            return Ok(HeartbeatResult::DeclaredDead);
        };
        if now.worker.detached_at.is_some() {
            self.mark_detached(me, false);
        }
        let local_now = self.parts.clock.boottime() as i64;
        let known = {
            let mut state = self.state();
            state.clock_offset = Some(smoothed_clock_offset(
                state.clock_offset,
                now.clock.as_microsecond() - local_now,
            ));
            state.epoch = now.epoch;
            state.settings_version
        };
        if known != Some(now.settings_version) {
            let read = with_timeout(store.load_settings()).await?;
            let mut state = self.state();
            state.slots = (self.parts.slot_counts)(&read.settings);
            state.settings = Arc::new(read.settings);
            state.settings_version = Some(read.version);
        }
        if now.worker.draining_at.is_some() && !self.is_draining() {
            tracing::warn!(worker_id = %self.id(), "this worker is being drained: it takes no new runs");
            self.drain();
        }
        self.update_slot_counts((now.worker.slots, now.worker.function_slots)).await?;
        if now.has_leases {
            self.adopt_missed_runs().await?;
        }
        Ok(HeartbeatResult::Alive)
    }

    /// Adopts leased runs of this worker that are in the database and not in memory: assigned runs whose order was
    /// lost, and late claims.
    async fn adopt_missed_runs(&self) -> Result<(), Error> {
        let mut missed: BTreeMap<LeaseToken, Vec<(RunId, Timestamp)>> = BTreeMap::new();
        for leased in with_timeout(self.parts.store.list_leased_runs_of_worker(self.id())).await? {
            if leased.state == RunState::Running {
                self.adopt_late_claim(leased.token);
            } else if leased.state == RunState::Assigned {
                missed.entry(leased.token).or_default().push((leased.run, leased.due_at));
            }
        }
        for (token, runs) in missed {
            if self.adopt_lease(token, &runs) {
                self.start_wakeup.notify_one();
            }
        }
        Ok(())
    }

    /// Updates the slots in the worker row if they differ from `known`. A running attempt keeps its slot until it ends,
    /// even if the settings now allow fewer.
    async fn update_slot_counts(&self, known: (u32, u32)) -> Result<(), Error> {
        let (slots, function_slots) = {
            let state = self.state();
            let room = |pool| state.slots.in_pool(pool).max(used_slots(&state, pool));
            let functions = state.slots.pools().filter(|pool| matches!(pool, SlotPool::Queue(_)));
            (room(SlotPool::Commands), functions.map(room).fold(0, u32::saturating_add))
        };
        if known == (slots, function_slots) {
            return Ok(());
        }
        with_timeout(self.parts.store.resize_worker(self.id(), slots, function_slots)).await?;
        self.parts.wakeups.wake_planner();
        self.parts.wakeups.wake_claims();
        Ok(())
    }

    /// Tokens of the claims that were given up and may still take effect.
    #[cfg(test)]
    pub(crate) fn given_up_claims(&self) -> Vec<LeaseToken> {
        self.state().given_up_claims.keys().copied().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn random_u32(&self) -> u32 {
        self.parts.random.next_u128() as u32
    }

    /// Adds the lease of assigned runs. `false`: the lease was known already.
    fn adopt_lease(&self, token: LeaseToken, runs: &[(RunId, Timestamp)]) -> bool {
        // A run that is overdue on arrival still waits the full time for a slot.
        let not_before = self.parts.clock.boottime();
        let mut state = self.state();
        if state.leases.contains_key(&token) {
            return false;
        }
        let waiting = |due_at: Timestamp| LocalRunState::Waiting { due_at, not_before };
        let runs = runs.iter().map(|&(run, due_at)| (run, waiting(due_at))).collect();
        self.add_lease(&mut state, token, LeaseWithRuns { runs, ..LeaseWithRuns::default() });
        true
    }

    /// Adopts a claim that took effect after it was given up. The next renewal returns its runs.
    fn adopt_late_claim(&self, token: LeaseToken) {
        let mut state = self.state();
        if let Some((_, pool)) = state.given_up_claims.remove(&token) {
            let (claim, claimed) = (ClaimStatus::Unanswered, true);
            self.add_lease(
                &mut state,
                token,
                LeaseWithRuns { claim, claimed, pool, ..LeaseWithRuns::default() },
            );
            self.parts.wakeups.wake_renew_loop();
        }
    }

    fn stop(&self, running: &mut RunningAttempt, reason: AttemptStopReason) {
        if running.liveness.has_ended() {
            return;
        }
        let reason = *running.stop_reason.get_or_insert(reason);
        self.parts.executor.stop(running.key, reason, running.stop_grace);
    }
}

/// Whether the worker takes no new runs: it drains or is detached.
fn is_suspended(state: &State) -> bool {
    state.draining || state.detach.is_some()
}

/// Number of used or reserved slots of a pool.
fn used_slots(state: &State, pool: SlotPool) -> u32 {
    state.leases.values().map(|lease| lease.used_slots(pool)).sum::<usize>() as u32
}

fn running_attempts(lease: &mut LeaseWithRuns) -> impl Iterator<Item = &mut RunningAttempt> {
    lease.runs.values_mut().filter_map(|status| match status {
        LocalRunState::Running(running) => Some(&mut **running),
        LocalRunState::Waiting { .. }
        | LocalRunState::Starting
        | LocalRunState::Unconfirmed
        | LocalRunState::Ended(_) => None,
    })
}

fn drop_lease_if_empty(state: &mut State, token: LeaseToken) {
    let empty =
        |lease: &LeaseWithRuns| lease.runs.is_empty() && lease.claim == ClaimStatus::Answered;
    if state.leases.get(&token).is_some_and(empty) {
        state.leases.remove(&token);
    }
}

/// Offset of the database clock, from the known offset and a new measurement. A measurement is too small by the
/// response time, which varies and includes a commit; the clocks themselves drift slowly, unless one of them is set. So
/// the larger value wins, less the drift of one heartbeat interval.
fn smoothed_clock_offset(known: Option<i64>, measured: i64) -> i64 {
    match known {
        Some(known) if known - measured < CLOCK_SET_THRESHOLD_MICROS => {
            measured.max(known - MAX_DRIFT_PER_HEARTBEAT_MICROS)
        }
        _ => measured,
    }
}

fn database_time(local_now: u64, clock_offset: i64) -> Timestamp {
    Timestamp::from_microsecond(local_now as i64 + clock_offset).unwrap_or(Timestamp::MAX)
}

fn local_time(at: Timestamp, clock_offset: i64) -> u64 {
    (at.as_microsecond().saturating_sub(clock_offset)).max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_responses_do_not_move_the_clock_offset() {
        assert_eq!(smoothed_clock_offset(None, 1_000), 1_000);
        assert_eq!(smoothed_clock_offset(Some(1_000), 1_500), 1_500, "a faster response");
        assert_eq!(smoothed_clock_offset(Some(1_000), -9_000), 800, "a slower response");
        assert_eq!(smoothed_clock_offset(Some(1_000), 900), 900);
        assert_eq!(smoothed_clock_offset(Some(1_000), -60_000), -60_000, "a clock was set back");
        assert_eq!(smoothed_clock_offset(Some(1_000), 60_000), 60_000, "a clock was set forward");
    }
}
