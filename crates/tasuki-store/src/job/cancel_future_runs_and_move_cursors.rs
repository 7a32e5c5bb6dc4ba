//! Rescheduling: what happens to future runs of a schedule when their job changes.
//!
//! The leader creates runs up to `assign_ahead` before their slot, from the definition at that time. A run must not
//! start from a definition that has changed since. So a change of the job cancels (T9) its future scheduled runs that
//! have not started, which frees their slots, and moves the cursor back. The leader then creates runs for the
//! remaining slots from the new definition, as usual. Runs that are already due, and runs of requests and events,
//! continue with their version of the job.

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId, RunState};

use super::Job;
use crate::audit::AuditActor;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::cancel::{self, CancelRequest};
use crate::run::due_table;
use crate::{Error, Run};

static MOVE_CURSORS: Sql = sql!("cursor/move_all_of_job");
static UPSERT_GLOBAL_CURSOR: Sql = sql!("cursor/upsert_global", ".postgres", ".postgres", ".mysql");
static DELETE_CURSORS: Sql = sql!("cursor/delete_of_job");
static LIST_UNSTARTED: Sql = sql!("run/list_unstarted_future", "", ".postgres", "");
static FREE_SLOT: Sql = sql!("run/free_slot", ".sqlite", "", "");
static INSERT_DUE: Sql = sql!("due/insert");
static LOCK_RUN: Sql = sql!("run/lock");

/// Position of the cursors of a job that is not scheduled, for example while it is paused. No planning horizon
/// reaches it.
const NOT_SCHEDULED: Timestamp = Timestamp::MAX;

/// Future runs that were canceled because their job changed.
#[derive(Debug, Default)]
pub(super) struct CanceledRuns {
    pub(super) runs: Vec<RunId>,
    /// Leases of the canceled runs that had been assigned, sorted and without duplicates.
    pub(super) lease_tokens: Vec<LeaseToken>,
}

/// Whether future runs that were created from `before` are invalid under `after`.
pub(super) fn invalidates_future_runs(before: &Job, after: &Job) -> bool {
    if before.trigger != "time" && after.trigger != "time" {
        return false;
    }
    let schedule = |job: &Job| {
        let value = [&job.schedule_type, &job.schedule_value, &job.zone].map(Option::clone);
        (value, job.dst_gap.clone(), job.dst_fold.clone(), job.misfire)
    };
    let activity = |job: &Job| {
        (job.enabled, job.paused_at.is_some(), job.paused_until, job.deleted_at.is_some())
    };
    activity(before) != activity(after)
        || schedule(before) != schedule(after)
        || before.newest.version != after.newest.version
}

/// The first instant whose slots get runs. `None`: the job creates no scheduled runs in this state.
fn first_instant(job: &Job, next_fire: Option<Timestamp>) -> Option<Timestamp> {
    if !job.enabled || job.deleted_at.is_some() || job.trigger != "time" {
        return None;
    }
    // Slots before the change get no runs, whatever the caller's clock shows.
    let from = next_fire?.max(job.updated_at);
    match (job.paused_at, job.paused_until) {
        (None, _) => Some(from),
        (Some(_), None) => None,
        (Some(_), Some(until)) => Some(from.max(until)),
    }
}

/// Moves the cursors of a job that has just been changed. All scopes of a job have the same schedule. If the job has
/// no cursor, creates the cursor of the global scope.
pub(super) async fn move_cursors(
    tx: &mut Tx<'_>,
    job: &Job,
    next_fire: Option<Timestamp>,
) -> Result<(), Error> {
    if job.deleted_at.is_some() {
        return tx.execute(&DELETE_CURSORS, params! { job_id: job.id.0 }).await.map(drop);
    }
    let from = first_instant(job, next_fire);
    let cursor = params! {
        job_id: job.id.0,
        next_fire: from.unwrap_or(NOT_SCHEDULED).as_microsecond(),
    };
    if tx.execute(&MOVE_CURSORS, cursor.clone()).await? == 0 && from.is_some() {
        tx.execute(&UPSERT_GLOBAL_CURSOR, cursor).await?;
    }
    Ok(())
}

/// Cancels the future runs of a job and moves its cursors, after a change. Moves the cursors first: a leader that is
/// creating runs from the old definition holds the lock of a cursor, so this waits for it and then sees those runs
/// too.
pub(super) async fn reschedule(
    tx: &mut Tx<'_>,
    job: &Job,
    next_fire: Option<Timestamp>,
    verb: &str,
    by: AuditActor<'_>,
) -> Result<CanceledRuns, Error> {
    move_cursors(tx, job, next_fire).await?;
    let key = params! { job_id: job.id.0, clock: job.updated_at.as_microsecond() };
    let mut future = Vec::new();
    // Lock all due rows before any run, earliest due first: the leader assigns in the same order.
    for row in tx.query(&LIST_UNSTARTED, key).await? {
        let run = RunId(row.int("id")?);
        future.push((run, due_table::remove_from_due_table(tx, run).await?));
    }
    future.sort_unstable_by_key(|(run, _)| *run);
    let mut unstarted = Vec::new();
    for (run, was_due) in future {
        unstarted.extend(lock_unstarted(tx, run, was_due).await?);
    }
    let reason = format!("{verb} of its job, version {}", job.version);
    let request = CancelRequest { by: by.name, reason: Some(&reason), epoch: None };
    let mut canceled = CanceledRuns::default();
    for row in unstarted {
        cancel_and_free_slot(tx, &row, &request).await?;
        canceled.runs.push(row.id);
        canceled.lease_tokens.extend(row.token);
    }
    canceled.lease_tokens.sort_unstable_by_key(|token| *token.as_bytes());
    canceled.lease_tokens.dedup();
    Ok(canceled)
}

/// Locks a run and removes it from the due table, if it has not started. Its state may have changed since it was listed.
/// `was_due`: the caller has already removed it from the due table.
async fn lock_unstarted(tx: &mut Tx<'_>, run: RunId, was_due: bool) -> Result<Option<Run>, Error> {
    let key = params! { run_id: run.0 };
    let rows = tx.query(&LOCK_RUN, key.clone()).await?;
    let Some(row) = rows.first().map(Run::from_row).transpose()? else { return Ok(None) };
    let unstarted = row.counters.tries == 0
        && matches!(row.state, RunState::Pending | RunState::Orphaned | RunState::Assigned);
    if !unstarted {
        if was_due {
            tx.execute(&INSERT_DUE, key).await?;
        }
        return Ok(None);
    }
    // The run was assigned when it was listed, and waits again since then.
    if row.state.is_waiting() && !was_due && !due_table::remove_from_due_table(tx, run).await? {
        return Err(Error::broken(format!("run {run} waits but is not in the due table")));
    }
    Ok(Some(row))
}

/// Cancels a future run (T9) and frees its slot for the run that the leader creates from the new definition.
async fn cancel_and_free_slot(
    tx: &mut Tx<'_>,
    row: &Run,
    request: &CancelRequest<'_>,
) -> Result<(), Error> {
    if !cancel::cancel_unstarted(tx, row, request).await? {
        return Err(Error::broken(format!("run {} changed while it was locked", row.id)));
    }
    let slot = row.slot.as_deref().unwrap_or_default();
    let freed = params! { run_id: row.id.0, slot: format!("{slot} canceled {}", row.id) };
    tx.execute(&FREE_SLOT, freed).await.map(drop)
}
