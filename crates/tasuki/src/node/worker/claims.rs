//! T1c: what may be claimed is taken and launched.
//!
//! One look shows the first of every lane; whose first has waited longest, head start included, is claimed from, as
//! far as its queue has room. While a lane gives all that is asked for, it is gone on with for a moment before the
//! next look: a backlog costs one statement a batch, and what has a higher priority still comes within that moment.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{MaybeDone, join, maybe_done};
use jiff::{SignedDuration, Timestamp};
use tasuki_core::{LeaseToken, RunId, Settings};
use tasuki_store::{ClaimBatch, ClaimResult, Dialect, Error, Firsts, LanePlace, MOST_CLAIMED, Taken};

use super::super::within::within;
use super::{State, Worker, count, our_time};
use crate::node::worker::carry::{Claim, Here, Lease};
use crate::node::worker::queues::{Pool, Source};

/// How far ahead a claimer looks for its next work.
const LOOK_AHEAD: Duration = Duration::from_secs(1);
/// For how long, in microseconds, a claimer goes on with a lane before it looks at the others again.
const LOOK_AGAIN: u64 = 20_000;
/// For how long, in microseconds, a claimer goes on from where it was in a lane before it begins at its start
/// again, where something may have come back, or be no longer in anybody's way.
const ONWARD: u64 = 250_000;
/// The smallest step of time.
const TICK: SignedDuration = SignedDuration::from_micros(1);

/// Where a claimer is in a lane of which it gets as much as it asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Onward {
    behind: (Timestamp, RunId),
    /// When it was last at the start.
    since: u64,
}

/// The lane that a claimer goes on with, by its number, and until when it needs no other look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Course {
    lane: usize,
    until: u64,
}

/// A lease that something was asked for with.
pub(super) struct Asked {
    pub(super) token: LeaseToken,
    sent: u64,
    most: u32,
    settings: Arc<Settings>,
}

/// What a lane gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Got {
    /// All that was asked for: there may be more.
    All,
    /// Less than that, and perhaps more elsewhere.
    Less,
    /// Nothing: what is due there waits for somebody.
    Nothing,
}

impl Worker {
    /// Claims what may be claimed. Returns when it is to look again.
    pub(crate) async fn claim(&self) -> Result<Option<u64>, Error> {
        if self.is_aside() {
            return Ok(None);
        }
        let free = self.all_free();
        let now = self.parts.clock.boottime();
        let course = self.state().course.filter(|course| now < course.until);
        if let Some(course) = course {
            let most = free[&self.source(course.lane).pool];
            if most > 0 {
                self.go_on(course, most).await?;
                return Ok(Some(0));
            }
        }
        let has_room = |lane: &usize| free[&self.source(*lane).pool] > 0;
        let open: Vec<usize> = (0..self.parts.lanes.len()).filter(has_room).collect();
        match open.is_empty() {
            // Whatever ends wakes us.
            true => Ok(None),
            false => self.claim_in_turn(&open).await,
        }
    }

    /// The same for whoever was told that there is something. If nothing waited anywhere before, it mostly is where
    /// there was something last, and starts a look sooner; what else has come has its turn right after.
    pub(crate) async fn claim_woken(&self) -> Result<Option<u64>, Error> {
        let guess = {
            let mut state = self.state();
            state.calm = false;
            state.guess.take()
        };
        if let Some(lane) = guess.filter(|_| !self.is_aside()) {
            let most = self.all_free()[&self.source(lane).pool];
            let course = Course { lane, until: self.parts.clock.boottime() };
            if most > 0 && self.go_on(course, most).await? != Got::Nothing {
                return Ok(Some(0));
            }
        }
        self.claim().await
    }

    /// Whether more would be claimed if there were more room.
    pub(super) fn lacks_room(&self) -> bool {
        let state = self.state();
        state.full || state.course.is_some()
    }

    /// Whether there is so little room that it is better to wait a moment for more than to claim a few.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.state();
        let pool = state.course.map_or(Pool::Queue(0), |course| self.source(course.lane).pool);
        // No claim takes more than so many, whatever room there is.
        free(&state, pool) < state.slots.of(pool).div_ceil(2).min(MOST_CLAIMED)
    }

    /// The same where it is commands that it goes on with.
    pub(crate) fn is_crowded_with_commands(&self) -> bool {
        let course = self.state().course;
        course.is_some_and(|course| self.source(course.lane).pool == Pool::Claimed)
            && self.is_crowded()
    }

    /// Looks at these lanes, and claims from the one whose turn it is.
    async fn claim_in_turn(&self, open: &[usize]) -> Result<Option<u64>, Error> {
        let looked = self.parts.clock.boottime();
        let onward = {
            let mut state = self.state();
            state.course = None;
            state.onward.retain(|_, onward| looked < onward.since + ONWARD);
            state.onward.clone()
        };
        let behind = |lane: &usize| onward.get(lane).map(|onward| onward.behind);
        let told = self.look(open, behind).await;
        let mut firsts = told.inspect_err(|_| self.state().calm = false)?;
        let mut due: Vec<(Timestamp, usize)> = Vec::new();
        for (&lane, first) in open.iter().zip(&firsts.due) {
            if let Some(at) = first.filter(|at| *at <= firsts.clock) {
                due.push((self.source(lane).priority.counts_from(at), lane));
            }
        }
        due.sort_unstable();
        if !due.is_empty() {
            // Some may have been taken in during the look. From now on nobody is, and the room that there is stays.
            self.state().calm = false;
        }
        let free = self.all_free();
        for &(_, lane) in &due {
            let course = Course { lane, until: looked + LOOK_AGAIN };
            let most = free[&self.source(lane).pool];
            if most > 0 && self.go_on(course, most).await? != Got::Nothing {
                return Ok(Some(0));
            }
        }
        // Before where we went on from there may be more, too.
        if !onward.is_empty() {
            self.state().onward.clear();
            return Ok(Some(0));
        }
        if due.is_empty() {
            let mut state = self.state();
            state.guess = state.last;
            state.calm = open.len() == self.parts.lanes.len();
        } else {
            // What is due and was not given waits for somebody, not for time: behind it may be what does.
            let later = (firsts.clock.saturating_add(TICK).unwrap_or(Timestamp::MAX), RunId(0));
            firsts = self.look(open, |_| Some(later)).await?;
        }
        let next = firsts.due.into_iter().flatten().min();
        let ahead = self.state().ahead;
        Ok(next.zip(ahead).map(|(due_at, ahead)| our_time(due_at, ahead)))
    }

    /// When the first of each of these lanes is due, behind a place in it.
    async fn look(
        &self,
        lanes: &[usize],
        behind: impl Fn(&usize) -> Option<(Timestamp, RunId)>,
    ) -> Result<Firsts, Error> {
        let place = |lane: &usize| {
            let start = LanePlace::start_of(&self.source(*lane).lane);
            behind(lane).map_or(start, |(at, run)| LanePlace { at, run, ..start })
        };
        let places: Vec<LanePlace<'_>> = lanes.iter().map(place).collect();
        within(self.parts.store.firsts(&places, LOOK_AHEAD)).await
    }

    /// Claims from a lane, and launches what it gets. While it gets all it asks for and there is room, the next are asked
    /// for while those before are launched, if that takes nothing but time: nobody waits for two answers at once.
    async fn go_on(&self, course: Course, most: u32) -> Result<Got, Error> {
        let (got, mut token, mut runs) = self.claim_from(course, most).await?;
        let (mut more, mut failed) = (got == Got::All, None);
        let mut asked = VecDeque::new();
        loop {
            more &= runs.iter().all(|taken| self.is_at_hand(taken));
            while more && asked.len() < self.ahead() {
                let least = if asked.is_empty() { 1 } else { MOST_CLAIMED };
                let Some(most) = self.room_on(course).filter(|room| *room >= least) else { break };
                asked.push_back(Box::pin(maybe_done(self.claim_from(course, most))));
            }
            let launched = self.launch(token, std::mem::take(&mut runs));
            let (next, ()) = join(first_of(&mut asked), launched).await;
            match next {
                None => return failed.map_or(Ok(got), Err),
                Some(Ok((next, under, taken))) => {
                    more &= next == Got::All;
                    (token, runs) = (under, taken);
                }
                // What else is asked for is heard of first.
                Some(Err(error)) => {
                    more = false;
                    failed.get_or_insert(error);
                }
            }
        }
    }

    /// How many claims are under way at once where there is much to take, and room for a whole claim each. SQLite takes one
    /// after the other: the next is there when it has done with one. Elsewhere it would be in the way of the one before.
    fn ahead(&self) -> usize {
        match self.parts.store.dialect() {
            Dialect::Sqlite => 2,
            Dialect::Postgres | Dialect::MySql => 1,
        }
    }

    /// How many more it may take on its course without looking elsewhere, and without taking only a few.
    fn room_on(&self, course: Course) -> Option<u32> {
        if self.is_aside() || self.parts.clock.boottime() >= course.until || self.is_crowded() {
            return None;
        }
        let most = free(&self.state(), self.source(course.lane).pool);
        (most > 0).then_some(most)
    }

    /// Claims from a lane, from where it was there: what it gets is to be launched. If that is all it asks for, the lane
    /// is its course. The room for it is taken at once, before anybody waits for what this returns.
    fn claim_from(
        &self,
        course: Course,
        most: u32,
    ) -> impl Future<Output = Result<(Got, LeaseToken, Vec<Taken>), Error>> {
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        state.course = None;
        let onward = state.onward.remove(&course.lane);
        let onward = onward.filter(|onward| now < onward.since + ONWARD);
        let pool = self.source(course.lane).pool;
        let asked = self.ask(&mut state, pool, most.min(MOST_CLAIMED));
        drop(state);
        self.hear_from(course, onward, asked)
    }

    /// What comes of asking.
    async fn hear_from(
        &self,
        course: Course,
        onward: Option<Onward>,
        asked: Asked,
    ) -> Result<(Got, LeaseToken, Vec<Taken>), Error> {
        let batch = self.batch(&asked, &self.source(course.lane).lane);
        let store = &self.parts.store;
        let claimed = match onward {
            Some(onward) => within(store.claim_after(&batch, onward.behind)).await,
            None => within(store.claim(&batch)).await,
        };
        let runs = self.hear_of(&asked, claimed)?;
        let full = runs.len() as u32 >= asked.most;
        let mut state = self.state();
        if !runs.is_empty() {
            state.last = Some(course.lane);
        }
        let got = match runs.last().filter(|_| full) {
            Some(last) => {
                let (behind, since) =
                    ((last.due_at, last.id), onward.map_or(asked.sent, |on| on.since));
                state.onward.insert(course.lane, Onward { behind, since });
                state.course = Some(course);
                Got::All
            }
            None if !runs.is_empty() || onward.is_some() => Got::Less,
            None => Got::Nothing,
        };
        Ok((got, asked.token, runs))
    }

    /// A lease to ask for so many with. It is known before it is sent: nobody else may take what is found under it for
    /// lost.
    pub(super) fn ask(&self, state: &mut State, pool: Pool, most: u32) -> Asked {
        let token = LeaseToken::from_random(self.parts.dice.roll());
        let sent = self.parts.clock.boottime();
        let (since, claim, claimed, asked) = (Some(sent), Claim::Sent, true, most);
        let lease = Lease { since, claim, claimed, pool, asked, ..Lease::default() };
        self.carry(state, token, lease);
        Asked { token, sent, most, settings: Arc::clone(&state.settings) }
    }

    pub(super) fn batch<'l>(&self, asked: &Asked, lane: &'l str) -> ClaimBatch<'l> {
        let (token, most, lease_ttl) = (asked.token, asked.most, asked.settings.lease_ttl());
        ClaimBatch { worker: self.id(), token, lane, most, lease_ttl }
    }

    /// What came of asking: what is to be launched now.
    pub(super) fn hear_of(
        &self,
        asked: &Asked,
        claimed: Result<ClaimResult, Error>,
    ) -> Result<Vec<Taken>, Error> {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&asked.token) else { return Ok(Vec::new()) };
        let runs = match claimed {
            Ok(ClaimResult::Runs(runs)) if runs.is_empty() => {
                state.leases.remove(&asked.token);
                return Ok(runs);
            }
            Ok(ClaimResult::Runs(runs)) => {
                lease.claim = Claim::Known;
                lease.runs.extend(runs.iter().map(|taken| (taken.id, Here::Starting)));
                runs
            }
            Ok(ClaimResult::Before) => {
                lease.claim = Claim::Unanswered;
                return Ok(Vec::new());
            }
            Err(error) => {
                lease.claim = Claim::Unanswered;
                return Err(error);
            }
        };
        drop(state);
        let kill_at = asked.sent + asked.settings.kill_after().as_micros() as u64;
        self.parts.executor.lease(asked.token, kill_at);
        Ok(runs)
    }

    fn source(&self, lane: usize) -> &Source {
        &self.parts.lanes[lane]
    }

    /// How many more each pool has room for.
    fn all_free(&self) -> BTreeMap<Pool, u32> {
        let mut state = self.state();
        let all: BTreeMap<Pool, u32> =
            state.slots.pools().map(|pool| (pool, free(&state, pool))).collect();
        // Under one lock with what ends, which asks for it.
        state.full = self.parts.lanes.iter().any(|lane| all[&lane.pool] == 0);
        all
    }
}

/// What comes of the first of these; all of them go on meanwhile. `None`: there is none.
async fn first_of<F: Future>(all: &mut VecDeque<Pin<Box<MaybeDone<F>>>>) -> Option<F::Output> {
    poll_fn(|context| {
        for one in all.iter_mut() {
            let _ = one.as_mut().poll(context);
        }
        let Some(first) = all.front_mut() else { return Poll::Ready(None) };
        let Some(done) = first.as_mut().take_output() else { return Poll::Pending };
        all.pop_front();
        Poll::Ready(Some(done))
    })
    .await
}

/// How many more of a pool can run. No more results than it has slots may be on their way: what ends faster than it is
/// reported must not pile up.
pub(super) fn free(state: &State, pool: Pool) -> u32 {
    let (slots, taken) = (state.slots.of(pool), count(state, pool));
    let of_pool = state.leases.values().filter(|lease| lease.pool == pool);
    let unheard = of_pool.map(|lease| lease.unheard + lease.ending()).sum::<usize>() as u32;
    let with_ends = slots.saturating_mul(2).saturating_sub(taken.saturating_add(unheard));
    slots.saturating_sub(taken).min(with_ends)
}
