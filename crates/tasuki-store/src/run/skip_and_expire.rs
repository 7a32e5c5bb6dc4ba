//! T12 and T13: the leader skips or expires a waiting run.

use tasuki_core::run::SkipReason;
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{Epoch, RunId, RunState};

use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::rare_transition_records::{self, NewTransitionRecord};
use crate::run::{due_table, lease};
use crate::{Error, Outcome, Run, Store, job};

static LOCK: Sql = sql!("run/lock");
static FIND_RUN: Sql = sql!("run/find");
static IS_LATE: Sql = sql!("run/is_late");
static IS_DUE: Sql = sql!("run/is_due");
static IS_EXPIRED: Sql = sql!("run/is_expired");
static END_WAITING: Sql = sql!("run/end_waiting");
static COUNT_END: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

impl Store {
    /// T12: skips a run that has never started, because it is too late for it, or because its job forbids concurrent
    /// runs and another one is active.
    pub async fn skip(
        &self,
        epoch: Epoch,
        run: RunId,
        reason: SkipReason,
    ) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(row) = remove_due_and_lock(&mut tx, epoch, run).await? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        let allowed = row.state.may_become(RunState::Skipped) && row.counters.tries == 0;
        let condition_holds = match reason {
            SkipReason::Late => has_row(&mut tx, &IS_LATE, run).await?,
            SkipReason::Concurrent => {
                row.exclusive
                    && has_row(&mut tx, &IS_DUE, run).await?
                    && is_hold_owner_active(&mut tx, &row).await?
            }
        };
        self.end_waiting(
            tx,
            &row,
            allowed && condition_holds,
            RunState::Skipped,
            RunVerb::Skip,
            reason.as_str(),
            epoch,
        )
        .await
    }

    /// T13: expires a run whose `expires_at` has passed, or that was released too often.
    pub async fn expire_waiting_run(&self, epoch: Epoch, run: RunId) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(row) = remove_due_and_lock(&mut tx, epoch, run).await? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        let limits =
            job::get_lost_and_released_run_rules(&mut tx, row.job, row.job_version).await?;
        let reason = match row.counters.releases_exhausted(limits.max_releases) {
            true => Some("MAX_RELEASES"),
            false => has_row(&mut tx, &IS_EXPIRED, run).await?.then_some("EXPIRES_AT"),
        };
        let reason_text = reason.unwrap_or_default();
        self.end_waiting(
            tx,
            &row,
            reason.is_some(),
            RunState::Expired,
            RunVerb::Expire,
            reason_text,
            epoch,
        )
        .await
    }

    /// Ends a waiting, locked run, if `condition_holds`.
    #[expect(clippy::too_many_arguments, reason = "one write with all its values")]
    async fn end_waiting(
        &self,
        mut tx: Tx<'_>,
        run: &Run,
        condition_holds: bool,
        state: RunState,
        verb: RunVerb,
        reason: &str,
        epoch: Epoch,
    ) -> Result<Outcome<()>, Error> {
        let row = params! {
            run_id: run.id.0,
            state: state.as_str(),
            from_state: run.state.as_str(),
            reason: reason,
            requested_by: Option::<String>::None,
        };
        if !condition_holds || tx.execute(&END_WAITING, row).await? == 0 {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run.id).await?));
        }
        tx.execute(&COUNT_END, params! { run_id: run.id.0 }).await?;
        let record = NewTransitionRecord {
            run: run.id,
            attempt_no: run.counters.attempt_no,
            verb,
            actor: "leader",
            reason: Some(reason),
            epoch: Some(epoch),
            token: None,
        };
        rare_transition_records::insert_transition_record(&mut tx, record).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}

/// Deletes the due row of a waiting run and locks the run. `None`: the run does not wait.
async fn remove_due_and_lock(
    tx: &mut Tx<'_>,
    epoch: Epoch,
    run: RunId,
) -> Result<Option<Run>, Error> {
    leader::check_and_lock_epoch(tx, epoch).await?;
    if !due_table::remove_from_due_table(tx, run).await? {
        return Ok(None);
    }
    let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
    Ok(rows.first().map(Run::from_row).transpose()?.filter(|row| row.state.is_waiting()))
}

/// Whether a statement returns a row for this run.
async fn has_row(tx: &mut Tx<'_>, check: &Sql, run: RunId) -> Result<bool, Error> {
    Ok(!tx.query(check, params! { run_id: run.0 }).await?.is_empty())
}

/// Whether the owner of the hold is RUNNING, or due itself.
async fn is_hold_owner_active(tx: &mut Tx<'_>, run: &Run) -> Result<bool, Error> {
    let Some((owner, _)) = lease::find_hold(tx, run).await? else { return Ok(false) };
    let rows = tx.query(&FIND_RUN, params! { run_id: owner.0 }).await?;
    let running = match rows.first() {
        Some(row) => Run::from_row(row)?.state == RunState::Running,
        None => false,
    };
    Ok(running || has_row(tx, &IS_DUE, owner).await?)
}
