//! Slots that come up become runs, ahead of their time.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::misfire::{self, Misfire, Moment, Plan, PlannedRun};
use tasuki_core::{Epoch, Origin, Schedule, Scope, Settings, Work};
use tasuki_store::{Cursor, CursorMove, Error, Job, NewRun, Slots};

use super::{Leader, PAGE, signed};

/// How many slots of one job are made in one go.
const SLOTS: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
/// How many runs of schedules are made in one write: others want to write too.
const TRIP: usize = 256;
/// More jobs than this are forgotten all at once, and read again as their time comes.
const MOST_TIMED: usize = 10_000;

/// A job and the schedule it is planned by.
pub(super) struct Timed {
    job: Job,
    schedule: Schedule,
    scoped: bool,
}

/// How far ahead slots are looked for: half as far as they are made.
pub(super) fn near(settings: &Settings) -> Duration {
    settings.assign_ahead() / 2
}

impl Leader {
    /// T0: runs for the slots that come up. Looked for when they are near, then made for all that lies ahead:
    /// so each job is touched twice in that time, however often it fires.
    pub(super) async fn make_slots(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<bool, Error> {
        let until = clock + signed(settings.assign_ahead());
        let cursors = self.store.cursors(clock + signed(near(settings)), PAGE).await?;
        let full = cursors.len() == PAGE as usize;
        let mut planned = Vec::with_capacity(cursors.len());
        for cursor in cursors {
            let Some(known) = self.timed(&cursor).await? else { continue };
            let job = &known.job;
            let policy = job.misfire.unwrap_or(Misfire::SkipLate(settings.skip_late_after()));
            let moment = Moment { cursor: cursor.next_fire, now: clock, until };
            let plan = match known.scoped && cursor.scope == Scope::default() {
                // It fires for scopes, and not for everything.
                true => Plan::default(),
                false => misfire::plan(&known.schedule, policy, moment, SLOTS),
            };
            if let Some(over) = plan.passed_over {
                tracing::warn!(job_id = %job.id, first = %over.first, last = %over.last, count = over.count, exact = over.exact, "slots were missed and passed over");
            }
            planned.push((known, cursor, plan));
        }
        let mut more = full;
        for some in in_trips(&planned) {
            if self.term() != Some(epoch) {
                return Ok(false);
            }
            let slots: Vec<Slots<'_>> =
                some.iter().map(|(known, cursor, plan)| slots(&known.job, cursor, plan)).collect();
            let made = self.store.create_slots_of_many(epoch, &slots).await?;
            for ((known, _, plan), made) in some.iter().zip(made) {
                more |= plan.more && made.is_some();
                if made.is_some_and(|made| !made.is_empty())
                    && !known.job.newest.spec.lane.is_empty()
                {
                    self.announce.claims();
                }
            }
        }
        Ok(more)
    }

    /// The job of a cursor, with its schedule; kept at hand, as a version of a job never changes. `None`: it
    /// has none that could be planned.
    async fn timed(&self, cursor: &Cursor) -> Result<Option<Arc<Timed>>, Error> {
        let known = self.state().timed.get(&cursor.job).cloned();
        if let Some(known) = known.filter(|known| known.job.version == cursor.job_version) {
            return Ok(Some(known));
        }
        let Some(job) = self.store.job_by_id(cursor.job).await? else { return Ok(None) };
        let schedule = match job.schedule() {
            Ok(Some(schedule)) => schedule,
            Ok(None) => return Ok(None),
            Err(refused) => {
                tracing::warn!(job_id = %job.id, %refused, "a schedule cannot be read here");
                return Ok(None);
            }
        };
        let scoped = Work::from_json(&job.newest.spec.spec).is_ok_and(|work| work.scoped);
        let known = Arc::new(Timed { job, schedule, scoped });
        let mut state = self.state();
        if state.timed.len() >= MOST_TIMED {
            state.timed.clear();
        }
        state.timed.insert(cursor.job, Arc::clone(&known));
        Ok(Some(known))
    }
}

/// What a plan makes of one cursor.
fn slots<'a>(job: &'a Job, cursor: &Cursor, plan: &Plan) -> Slots<'a> {
    let run = |planned: &PlannedRun| NewRun {
        origin: Origin::Time,
        scope: cursor.scope.clone(),
        scheduled_for: Some(planned.fire.at),
        slot: Some(planned.fire.slot),
        skip_at: planned.skip_at,
        ..NewRun::task(&job.newest)
    };
    let moves = CursorMove {
        job: job.seen(),
        scope: cursor.scope.clone(),
        from: cursor.next_fire,
        to: plan.cursor,
    };
    (moves, plan.runs.iter().map(run).collect())
}

/// Parts of about as many runs as travel together.
fn in_trips<K, C>(planned: &[(K, C, Plan)]) -> impl Iterator<Item = &[(K, C, Plan)]> {
    let mut room = TRIP;
    planned.chunk_by(move |(.., plan), _| {
        room = room.saturating_sub(plan.runs.len().max(1));
        let goes_on = room > 0;
        if !goes_on {
            room = TRIP;
        }
        goes_on
    })
}
