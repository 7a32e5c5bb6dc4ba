//! T1c: claims waiting runs from lanes and launches them.
//!
//! One query reads the earliest due instant of every lane. The worker claims from the lane whose first run has waited
//! longest, the head start of its priority included, up to the free slots of its pool. While a lane returns as many
//! runs as requested, the worker continues with it for [`LANE_TURN_MICROS`] before it reads the lanes again: a backlog
//! costs one statement per batch, and a run of a higher priority waits at most that long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{LeaseToken, RunId, Settings};
use tasuki_store::{
    ClaimRequest, ClaimResult, Error, LaneDueTimes, LanePosition, MAX_CLAIM, StartedRun,
};

use super::super::store_timeout::with_timeout;
use super::{State, Worker, local_time, used_slots};
use crate::node::worker::configured_slots_and_lanes::{LaneWithSlotPool, SlotPool};
use crate::node::worker::lease_table::{ClaimStatus, LeaseWithRuns, LocalRunState};

/// How far into the future the query for the next due instants reaches.
const CLAIM_HORIZON: Duration = Duration::from_secs(1);
/// How long, in microseconds, the worker continues with one lane before it reads the other lanes again.
const LANE_TURN_MICROS: u64 = 20_000;
/// How long, in microseconds, a cursor in a lane is used before claims begin at the start of the lane again: runs may
/// have been released there, or holds that blocked runs there may have been released.
const CURSOR_TTL_MICROS: u64 = 250_000;
/// The smallest difference between two instants in the database.
const SMALLEST_STEP: SignedDuration = SignedDuration::from_micros(1);

/// Position in a lane that returns as many runs as requested: the next claim begins after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneCursor {
    after: (Timestamp, RunId),
    /// When a claim last began at the start of the lane, by the local clock in microseconds.
    started_at: u64,
}

/// The lane that the next claim continues, and until when (local clock, microseconds) the other lanes need not be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentLane {
    lane: usize,
    until: u64,
}

/// A claim that was sent: its lease token and what was requested with it.
pub(super) struct SentClaim {
    pub(super) token: LeaseToken,
    sent_at: u64,
    max_runs: u32,
    settings: Arc<Settings>,
}

/// How much of a claim a lane filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimYield {
    /// As many runs as requested: there may be more.
    Full,
    /// Fewer runs than requested; other lanes may have more.
    Partial,
    /// No run: the runs that are due there are blocked, for example by a hold or by labels.
    Empty,
}

impl Worker {
    /// Claims once and launches what it got. Returns when to claim again, by the local clock; `None`: after a wake-up.
    pub(crate) async fn claim_and_launch(&self) -> Result<Option<u64>, Error> {
        if self.is_suspended() {
            return Ok(None);
        }
        let free = self.free_slots_by_pool();
        let now = self.parts.clock.boottime();
        let current = self.state().current_lane.filter(|current| now < current.until);
        if let Some(current) = current {
            let max_runs = free[&self.lane(current.lane).pool];
            if max_runs > 0 {
                self.continue_lane(current, max_runs).await?;
                return Ok(Some(0));
            }
        }
        let has_free_slot = |lane: &usize| free[&self.lane(*lane).pool] > 0;
        let open: Vec<usize> = (0..self.parts.lanes.len()).filter(has_free_slot).collect();
        match open.is_empty() {
            // No slot is free: the next attempt that ends wakes the claim loop.
            true => Ok(None),
            false => self.claim_by_priority(&open).await,
        }
    }

    /// Claims after a wake-up. If no lane had a due run before, the new run mostly waits in the lane that last returned
    /// one: it is claimed from that lane without reading the lanes first, and the other lanes follow right after.
    pub(crate) async fn claim_after_wakeup(&self) -> Result<Option<u64>, Error> {
        let likely_lane = {
            let mut state = self.state();
            state.nothing_due = false;
            state.likely_lane.take()
        };
        if let Some(lane) = likely_lane.filter(|_| !self.is_suspended()) {
            let max_runs = self.free_slots_by_pool()[&self.lane(lane).pool];
            let current = CurrentLane { lane, until: self.parts.clock.boottime() };
            if max_runs > 0 && self.continue_lane(current, max_runs).await? != ClaimYield::Empty {
                return Ok(Some(0));
            }
        }
        self.claim_and_launch().await
    }

    /// Whether the worker would claim more if it had more free slots.
    pub(super) fn lacks_slots(&self) -> bool {
        let state = self.state();
        state.lacked_slots || state.current_lane.is_some()
    }

    /// Whether so few slots are free that it is better to wait a moment for more than to claim a few runs.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let state = self.state();
        let pool =
            state.current_lane.map_or(SlotPool::Queue(0), |current| self.lane(current.lane).pool);
        // One claim never returns more than the maximum, however many slots are free.
        free_slots(&state, pool) < state.slots.in_pool(pool).div_ceil(2).min(MAX_CLAIM)
    }

    /// Whether it continues with the lane of commands and [`Self::is_nearly_full`].
    pub(crate) fn is_nearly_full_of_commands(&self) -> bool {
        let current = self.state().current_lane;
        current.is_some_and(|current| self.lane(current.lane).pool == SlotPool::Claimed)
            && self.is_nearly_full()
    }

    /// Reads the earliest due instants of these lanes, and claims from the most urgent one that returns runs.
    async fn claim_by_priority(&self, open: &[usize]) -> Result<Option<u64>, Error> {
        let read_at = self.parts.clock.boottime();
        let cursors = {
            let mut state = self.state();
            state.current_lane = None;
            state.lane_cursors.retain(|_, cursor| read_at < cursor.started_at + CURSOR_TTL_MICROS);
            state.lane_cursors.clone()
        };
        let after = |lane: &usize| cursors.get(lane).map(|cursor| cursor.after);
        let lane_due_times = self.read_lane_due_times(open, after).await;
        let mut due_times = lane_due_times.inspect_err(|_| self.state().nothing_due = false)?;
        let mut due: Vec<(Timestamp, usize)> = Vec::new();
        for (&lane, first) in open.iter().zip(&due_times.due_at) {
            if let Some(at) = first.filter(|at| *at <= due_times.clock) {
                due.push((self.lane(lane).priority.effective_due_at(at), lane));
            }
        }
        due.sort_unstable();
        if !due.is_empty() {
            // During the query, local submits may have used slots. With `nothing_due` unset they no longer do, so the
            // free slots that are counted below stay free.
            self.state().nothing_due = false;
        }
        let free = self.free_slots_by_pool();
        for &(_, lane) in &due {
            let current = CurrentLane { lane, until: read_at + LANE_TURN_MICROS };
            let max_runs = free[&self.lane(lane).pool];
            if max_runs > 0 && self.continue_lane(current, max_runs).await? != ClaimYield::Empty {
                return Ok(Some(0));
            }
        }
        // There may also be runs before the cursors: read the lanes again from their starts.
        if !cursors.is_empty() {
            self.state().lane_cursors.clear();
            return Ok(Some(0));
        }
        if due.is_empty() {
            let mut state = self.state();
            state.likely_lane = state.last_lane;
            state.nothing_due = open.len() == self.parts.lanes.len();
        } else {
            // Runs that are due and were not returned are blocked. Waiting for them is useless, so the next wake-up
            // time is taken from the runs after them.
            let later =
                (due_times.clock.saturating_add(SMALLEST_STEP).unwrap_or(Timestamp::MAX), RunId(0));
            due_times = self.read_lane_due_times(open, |_| Some(later)).await?;
        }
        let next = due_times.due_at.into_iter().flatten().min();
        let clock_offset = self.state().clock_offset;
        Ok(next.zip(clock_offset).map(|(due_at, clock_offset)| local_time(due_at, clock_offset)))
    }

    /// Reads when the first run of each of these lanes is due, after a position in the lane.
    async fn read_lane_due_times(
        &self,
        lanes: &[usize],
        after: impl Fn(&usize) -> Option<(Timestamp, RunId)>,
    ) -> Result<LaneDueTimes, Error> {
        let position = |lane: &usize| {
            let start = LanePosition::start_of(&self.lane(*lane).lane);
            after(lane).map_or(start, |(at, run)| LanePosition { due_at: at, run, ..start })
        };
        let positions: Vec<LanePosition<'_>> = lanes.iter().map(position).collect();
        with_timeout(self.parts.store.find_lane_due_times(&positions, CLAIM_HORIZON)).await
    }

    /// Claims from a lane and launches the runs.
    async fn continue_lane(
        &self,
        current: CurrentLane,
        max_runs: u32,
    ) -> Result<ClaimYield, Error> {
        let (claim_yield, token, runs) = self.claim_lane(current, max_runs).await?;
        self.launch(token, runs).await;
        Ok(claim_yield)
    }

    /// Claims from a lane, after the cursor if there is one. The caller launches the returned runs. If the lane fills
    /// the claim, it becomes the current lane.
    async fn claim_lane(
        &self,
        current: CurrentLane,
        max_runs: u32,
    ) -> Result<(ClaimYield, LeaseToken, Vec<StartedRun>), Error> {
        let now = self.parts.clock.boottime();
        let (cursor, sent_claim) = {
            let mut state = self.state();
            state.current_lane = None;
            let cursor = state.lane_cursors.remove(&current.lane);
            let pool = self.lane(current.lane).pool;
            let sent_claim = self.register_claim(&mut state, pool, max_runs.min(MAX_CLAIM));
            (cursor.filter(|cursor| now < cursor.started_at + CURSOR_TTL_MICROS), sent_claim)
        };
        let request = ClaimRequest {
            after: cursor.map(|cursor| cursor.after),
            ..self.claim_request(&sent_claim, &self.lane(current.lane).lane)
        };
        let claimed = with_timeout(self.parts.store.claim(&request)).await;
        let runs = self.record_claim(&sent_claim, claimed)?;
        let full = runs.len() as u32 >= sent_claim.max_runs;
        let mut state = self.state();
        if !runs.is_empty() {
            state.last_lane = Some(current.lane);
        }
        let claim_yield = match runs.last().filter(|_| full) {
            Some(last) => {
                let (after, started_at) =
                    ((last.due_at, last.id), cursor.map_or(sent_claim.sent_at, |on| on.started_at));
                state.lane_cursors.insert(current.lane, LaneCursor { after, started_at });
                state.current_lane = Some(current);
                ClaimYield::Full
            }
            None if !runs.is_empty() || cursor.is_some() => ClaimYield::Partial,
            None => ClaimYield::Empty,
        };
        Ok((claim_yield, sent_claim.token, runs))
    }

    /// Registers a claim of at most `max_runs` runs under a new lease token and reserves the slots. The lease is in the
    /// table before the claim is sent, so that a heartbeat that sees its runs does not take them for missed ones.
    pub(super) fn register_claim(
        &self,
        state: &mut State,
        pool: SlotPool,
        max_runs: u32,
    ) -> SentClaim {
        let token = LeaseToken::from_random(self.parts.random.next_u128());
        let sent_at = self.parts.clock.boottime();
        let (renewed_at, claim, claimed, requested) =
            (Some(sent_at), ClaimStatus::Sent, true, max_runs);
        let lease = LeaseWithRuns {
            renewed_at,
            claim,
            claimed,
            pool,
            requested,
            ..LeaseWithRuns::default()
        };
        self.add_lease(state, token, lease);
        SentClaim { token, sent_at, max_runs, settings: Arc::clone(&state.settings) }
    }

    pub(super) fn claim_request<'l>(
        &self,
        sent_claim: &SentClaim,
        lane: &'l str,
    ) -> ClaimRequest<'l> {
        let (token, max_runs, lease_ttl) =
            (sent_claim.token, sent_claim.max_runs, sent_claim.settings.lease_ttl());
        ClaimRequest { worker: self.id(), token, lane, max_runs, lease_ttl, after: None }
    }

    /// Records the answer of a claim. Returns the runs to be launched now.
    pub(super) fn record_claim(
        &self,
        sent_claim: &SentClaim,
        claimed: Result<ClaimResult, Error>,
    ) -> Result<Vec<StartedRun>, Error> {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&sent_claim.token) else { return Ok(Vec::new()) };
        let runs = match claimed {
            Ok(ClaimResult::Runs(runs)) if runs.is_empty() => {
                state.leases.remove(&sent_claim.token);
                return Ok(runs);
            }
            Ok(ClaimResult::Runs(runs)) => {
                lease.claim = ClaimStatus::Answered;
                lease.runs.extend(runs.iter().map(|run| (run.id, LocalRunState::Starting)));
                runs
            }
            Ok(ClaimResult::AlreadyClaimed) => {
                lease.claim = ClaimStatus::Unanswered;
                return Ok(Vec::new());
            }
            Err(error) => {
                lease.claim = ClaimStatus::Unanswered;
                return Err(error);
            }
        };
        drop(state);
        let kill_at = sent_claim.sent_at
            + sent_claim.settings.sigkill_after_last_renewal().as_micros() as u64;
        self.parts.executor.set_lease_deadline(sent_claim.token, kill_at);
        Ok(runs)
    }

    fn lane(&self, lane: usize) -> &LaneWithSlotPool {
        &self.parts.lanes[lane]
    }

    /// Number of free slots of each pool.
    fn free_slots_by_pool(&self) -> BTreeMap<SlotPool, u32> {
        let mut state = self.state();
        let all: BTreeMap<SlotPool, u32> =
            state.slots.pools().map(|pool| (pool, free_slots(&state, pool))).collect();
        // Written under the same lock that completions take before they read it in `lacks_slots`.
        state.lacked_slots = self.parts.lanes.iter().any(|lane| all[&lane.pool] == 0);
        all
    }
}

/// Number of free slots of a pool. At most as many results as it has slots may be unreported: attempts that end faster
/// than they are reported must not pile up.
pub(super) fn free_slots(state: &State, pool: SlotPool) -> u32 {
    let (slots, used) = (state.slots.in_pool(pool), used_slots(state, pool));
    let of_pool = state.leases.values().filter(|lease| lease.pool == pool);
    let unreported =
        of_pool.map(|lease| lease.unreported + lease.unreported_ends()).sum::<usize>() as u32;
    let report_limit = slots.saturating_mul(2).saturating_sub(used.saturating_add(unreported));
    slots.saturating_sub(used).min(report_limit)
}
