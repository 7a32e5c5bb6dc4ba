//! What a schedule made ahead of time, when its job is no longer what it was.
//!
//! Runs are made up to `assign_ahead` before their slot, from the definition of that moment. None of
//! them may fire from a definition that has been changed since. So what was made for the future and has
//! not started is withdrawn (T9), which leaves its slot free, and the cursor goes back: the leader makes
//! anew, by its ordinary way and from the new definition, whatever slots still stand. What is due
//! already, what somebody asked for and what events made goes on from its copy.

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId, RunState};

use super::Job;
use crate::audit::Actor;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::cancel::{self, Asked};
use crate::run::due;
use crate::{Error, Run};

static REPLAN: Sql = sql!("cursor/replan");
static BEGIN: Sql = sql!("cursor/begin", ".postgres", ".postgres", ".mysql");
static DELETE: Sql = sql!("cursor/delete");
static AHEAD: Sql = sql!("run/ahead", "", ".postgres", "");
static FREE_SLOT: Sql = sql!("run/free_slot", ".sqlite", "", "");
static DUE_PUT: Sql = sql!("due/put");
static LOCK: Sql = sql!("run/lock");

/// Where the cursors of a job stand while it is not planned: no look ahead reaches so far.
const NEVER: Timestamp = Timestamp::MAX;

/// What was taken back.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    pub(super) runs: Vec<RunId>,
    /// The leases of those that had been assigned.
    pub(super) tokens: Vec<LeaseToken>,
}

/// Whether what was planned ahead from one may not stand under the other.
pub(super) fn is_stale(before: &Job, after: &Job) -> bool {
    if before.trigger != "time" && after.trigger != "time" {
        return false;
    }
    let schedule = |job: &Job| {
        let value = [&job.schedule_type, &job.schedule_value, &job.zone].map(Option::clone);
        (value, job.dst_gap.clone(), job.dst_fold.clone(), job.misfire)
    };
    let on = |job: &Job| {
        (job.enabled, job.paused_at.is_some(), job.paused_until, job.deleted_at.is_some())
    };
    on(before) != on(after)
        || schedule(before) != schedule(after)
        || before.newest.version != after.newest.version
}

/// From when on its slots get runs; `None`: while it is like this, none do.
fn planned_from(job: &Job, next_fire: Option<Timestamp>) -> Option<Timestamp> {
    if !job.enabled || job.deleted_at.is_some() || job.trigger != "time" {
        return None;
    }
    // Whatever the caller's clock says, nothing before the change is planned.
    let from = next_fire?.max(job.updated_at);
    match (job.paused_at, job.paused_until) {
        (None, _) => Some(from),
        (Some(_), None) => None,
        (Some(_), Some(until)) => Some(from.max(until)),
    }
}

/// Moves the cursors of a job that has just been changed: all its scopes follow one schedule. The one
/// that stands for everything begins here if there is none.
pub(super) async fn plan(
    tx: &mut Tx<'_>,
    job: &Job,
    next_fire: Option<Timestamp>,
) -> Result<(), Error> {
    if job.deleted_at.is_some() {
        return tx.execute(&DELETE, params! { job_id: job.id.0 }).await.map(drop);
    }
    let from = planned_from(job, next_fire);
    let place = params! {
        job_id: job.id.0,
        next_fire: from.unwrap_or(NEVER).as_microsecond(),
    };
    if tx.execute(&REPLAN, place.clone()).await? == 0 && from.is_some() {
        tx.execute(&BEGIN, place).await?;
    }
    Ok(())
}

/// Plans a job anew from what it is now. The cursors first: a leader that is making runs from what it
/// was has one of them, and we wait and see those runs too.
pub(super) async fn plan_anew(
    tx: &mut Tx<'_>,
    job: &Job,
    next_fire: Option<Timestamp>,
    verb: &str,
    by: Actor<'_>,
) -> Result<Withdrawn, Error> {
    plan(tx, job, next_fire).await?;
    let page = params! { job_id: job.id.0, clock: job.updated_at.as_microsecond() };
    let mut ahead = Vec::new();
    // All due rows before any run, soonest first like whoever assigns them.
    for row in tx.rows(&AHEAD, page).await? {
        let run = RunId(row.int("id")?);
        ahead.push((run, due::take(tx, run).await?));
    }
    ahead.sort_unstable_by_key(|(run, _)| *run);
    let mut unstarted = Vec::new();
    for (run, was_due) in ahead {
        unstarted.extend(hold_still(tx, run, was_due).await?);
    }
    let reason = format!("{verb} of its job, version {}", job.version);
    let asked = Asked { by: by.name, reason: Some(&reason), epoch: None };
    let mut withdrawn = Withdrawn::default();
    for row in unstarted {
        withdraw(tx, &row, &asked).await?;
        withdrawn.runs.push(row.id);
        withdrawn.tokens.extend(row.token);
    }
    withdrawn.tokens.sort_unstable_by_key(|token| *token.as_bytes());
    withdrawn.tokens.dedup();
    Ok(withdrawn)
}

/// A run, locked and out of `due`, if it has not started. It may have moved since it was listed.
async fn hold_still(tx: &mut Tx<'_>, run: RunId, was_due: bool) -> Result<Option<Run>, Error> {
    let key = params! { run_id: run.0 };
    let rows = tx.rows(&LOCK, key.clone()).await?;
    let Some(row) = rows.first().map(Run::from_row).transpose()? else { return Ok(None) };
    let unstarted = row.counters.tries == 0
        && matches!(row.state, RunState::Pending | RunState::Orphaned | RunState::Assigned);
    if !unstarted {
        if was_due {
            tx.execute(&DUE_PUT, key).await?;
        }
        return Ok(None);
    }
    // It was assigned when it was listed and has been given back since.
    if row.state.is_waiting() && !was_due && !due::take(tx, run).await? {
        return Err(Error::broken(format!("run {run} waits but is not due")));
    }
    Ok(Some(row))
}

/// T9 before its time: it leaves its slot to whoever is made for it anew.
async fn withdraw(tx: &mut Tx<'_>, row: &Run, asked: &Asked<'_>) -> Result<(), Error> {
    if !cancel::end_unstarted(tx, row, asked).await? {
        return Err(Error::broken(format!("run {} moved while it was locked", row.id)));
    }
    let slot = row.slot.as_deref().unwrap_or_default();
    let left = params! { run_id: row.id.0, slot: format!("{slot} withdrawn {}", row.id) };
    tx.execute(&FREE_SLOT, left).await.map(drop)
}
