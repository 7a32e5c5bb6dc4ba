//! Creates runs for the slots of schedules, ahead of their planned instants (transition T0).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::plan_scheduled_runs::{self, MisfirePolicy, PlanInput, PlannedRun, SlotPlan};
use tasuki_core::{Epoch, Origin, RunScope, Schedule, Settings, WorkSpec};
use tasuki_store::{CursorMoveWithRuns, Error, Job, NewRun, ScheduleCursor, ScheduleCursorMove};

use super::{Leader, PAGE_SIZE, to_signed};

/// Maximum number of slots of one cursor for which runs are created in one tick.
const MAX_SLOTS_PER_JOB: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
/// Approximate number of runs per write; larger writes would delay other writers.
const RUNS_PER_WRITE: usize = 256;
/// Maximum number of cached jobs; when it is reached, the whole cache is cleared.
const MAX_CACHED_JOBS: usize = 10_000;

/// A job with its parsed schedule.
pub(super) struct ScheduledJob {
    job: Job,
    schedule: Schedule,
    scoped: bool,
}

/// How far ahead a cursor must fire to be planned: half as far as runs are created ahead.
pub(super) fn planning_horizon(settings: &Settings) -> Duration {
    settings.assign_ahead() / 2
}

impl Leader {
    /// Creates runs for upcoming slots. A cursor is planned when its next slot is within [`planning_horizon`], and then
    /// gets runs for all slots within `assign_ahead`. So each job is processed about twice per `assign_ahead`, however
    /// often it fires. Returns whether there is more to do immediately.
    pub(super) async fn create_scheduled_runs(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<bool, Error> {
        let until = clock + to_signed(settings.assign_ahead());
        let cursors = self
            .store
            .list_due_cursors(clock + to_signed(planning_horizon(settings)), PAGE_SIZE)
            .await?;
        let full = cursors.len() == PAGE_SIZE as usize;
        let mut planned = Vec::with_capacity(cursors.len());
        for cursor in cursors {
            let Some(scheduled) = self.scheduled_job(&cursor).await? else { continue };
            let job = &scheduled.job;
            let policy = job.misfire.unwrap_or(MisfirePolicy::SkipLate(settings.skip_late_after()));
            let input = PlanInput { cursor: cursor.next_fire, now: clock, horizon: until };
            let plan = match scheduled.scoped && cursor.scope == RunScope::default() {
                // The job fires for each of its scopes, not for the default scope.
                true => SlotPlan::default(),
                false => plan_scheduled_runs::plan_slots(
                    &scheduled.schedule,
                    policy,
                    input,
                    MAX_SLOTS_PER_JOB,
                ),
            };
            if let Some(skipped) = plan.skipped_slots {
                tracing::warn!(job_id = %job.id, first = %skipped.first, last = %skipped.last, count = skipped.count, exact = skipped.exact, "missed planned times were skipped");
            }
            planned.push((scheduled, cursor, plan));
        }
        let mut more = full;
        for chunk in chunks_by_runs(&planned) {
            if self.active_epoch() != Some(epoch) {
                return Ok(false);
            }
            let slots: Vec<CursorMoveWithRuns<'_>> = chunk
                .iter()
                .map(|(scheduled, cursor, plan)| runs_to_create(&scheduled.job, cursor, plan))
                .collect();
            let created = self.store.create_scheduled(epoch, &slots).await?;
            for ((scheduled, _, plan), created) in chunk.iter().zip(created) {
                more |= plan.has_more && created.is_some();
                if created.is_some_and(|created| !created.is_empty())
                    && !scheduled.job.newest.spec.lane.is_empty()
                {
                    self.notifier.wake_claims();
                }
            }
        }
        Ok(more)
    }

    /// Loads the job of a cursor with its schedule, from a cache keyed by job version, which never changes. `None`: the
    /// job has no schedule that this version of tasuki can plan.
    async fn scheduled_job(
        &self,
        cursor: &ScheduleCursor,
    ) -> Result<Option<Arc<ScheduledJob>>, Error> {
        let scheduled = self.state().scheduled_jobs.get(&cursor.job).cloned();
        if let Some(scheduled) =
            scheduled.filter(|scheduled| scheduled.job.version == cursor.job_version)
        {
            return Ok(Some(scheduled));
        }
        let Some(job) = self.store.find_job_by_id(cursor.job).await? else { return Ok(None) };
        let schedule = match job.parse_stored_schedule() {
            Ok(Some(schedule)) => schedule,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::warn!(job_id = %job.id, %error, "the schedule of a job cannot be parsed");
                return Ok(None);
            }
        };
        let scoped = WorkSpec::from_json(&job.newest.spec.spec).is_ok_and(|work| work.scoped);
        let scheduled = Arc::new(ScheduledJob { job, schedule, scoped });
        let mut state = self.state();
        if state.scheduled_jobs.len() >= MAX_CACHED_JOBS {
            state.scheduled_jobs.clear();
        }
        state.scheduled_jobs.insert(cursor.job, Arc::clone(&scheduled));
        Ok(Some(scheduled))
    }
}

/// The runs to create and the cursor move for the plan of one cursor.
fn runs_to_create<'a>(
    job: &'a Job,
    cursor: &ScheduleCursor,
    plan: &SlotPlan,
) -> CursorMoveWithRuns<'a> {
    let run = |planned: &PlannedRun| NewRun {
        origin: Origin::Time,
        scope: cursor.scope.clone(),
        scheduled_for: Some(planned.fire.at),
        slot: Some(planned.fire.slot),
        skip_at: planned.skip_at,
        ..NewRun::task(&job.newest)
    };
    let cursor_move = ScheduleCursorMove {
        job: job.expected_version(),
        scope: cursor.scope.clone(),
        from: cursor.next_fire,
        to: plan.cursor,
    };
    (cursor_move, plan.runs.iter().map(run).collect())
}

/// Splits plans into chunks of about [`RUNS_PER_WRITE`] runs.
fn chunks_by_runs<K, C>(planned: &[(K, C, SlotPlan)]) -> impl Iterator<Item = &[(K, C, SlotPlan)]> {
    let mut remaining = RUNS_PER_WRITE;
    planned.chunk_by(move |(.., plan), _| {
        remaining = remaining.saturating_sub(plan.runs.len().max(1));
        let same_chunk = remaining > 0;
        if !same_chunk {
            remaining = RUNS_PER_WRITE;
        }
        same_chunk
    })
}
