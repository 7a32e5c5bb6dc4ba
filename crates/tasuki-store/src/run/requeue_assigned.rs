//! T7 and T7w: an assigned run that has not started returns to the queue.
//!
//! The leader orphans a run whose worker did not start it in time or must not start it. A worker releases a run that
//! it cannot start. Both append the attempt as RELEASED and count it as a release, not as a try.

use tasuki_core::run::transition::RunVerb;
use tasuki_core::{AttemptOutcome, Epoch, LeaseToken, RunId, RunState};

use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::finish::{AttemptResult, append_attempt_to_history, requeue};
use crate::run::lease;
use crate::run::rare_transition_records::{self, NewTransitionRecord};
use crate::{Error, Outcome, Run, Store, to_uuid};

static LOCK: Sql = sql!("run/lock");
static ORPHANABLE: Sql = sql!("run/lock_orphanable");

impl Store {
    /// T7: the leader takes back an assigned run that was not started in time, or that its worker must not start.
    pub async fn orphan(
        &self,
        epoch: Epoch,
        run: RunId,
        token: LeaseToken,
    ) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        leader::check_and_lock_epoch(&mut tx, epoch).await?;
        let key = params! { run_id: run.0, token: to_uuid(token.as_bytes()) };
        let rows = tx.query(&ORPHANABLE, key).await?;
        let Some(row) = rows.first().map(Run::from_row).transpose()? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        requeue_assigned(&mut tx, &row, token, RunVerb::Orphan, "leader", Some(epoch)).await?;
        tx.commit().await?;
        self.close_lease_if_empty(token).await?;
        Ok(Outcome::Applied(()))
    }

    /// T7w: a worker that drains or has no free slot returns an assigned run.
    pub async fn release(&self, token: LeaseToken, run: RunId) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let assigned =
            row.filter(|row| row.state == RunState::Assigned && row.token == Some(token));
        let Some(row) = assigned else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        requeue_assigned(&mut tx, &row, token, RunVerb::Release, "worker", None).await?;
        tx.commit().await?;
        self.close_lease_if_empty(token).await?;
        Ok(Outcome::Applied(()))
    }
}

/// Requeues a locked, assigned run as ORPHANED and counts a release.
pub(crate) async fn requeue_assigned(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    verb: RunVerb,
    actor: &str,
    epoch: Option<Epoch>,
) -> Result<(), Error> {
    append_attempt_to_history(
        tx,
        run.id,
        AttemptOutcome::Released,
        AttemptResult::default().columns(),
    )
    .await?;
    let requeued = Run { counters: run.counters.after_release(), ..run.clone() };
    requeue(tx, &requeued, token, RunState::Orphaned, 0).await?;
    lease::release_hold(tx, run, token).await?;
    record_transition(tx, run, token, verb, actor, None, epoch).await
}

/// Records the transition of a run under its lease token.
pub(crate) async fn record_transition(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    verb: RunVerb,
    actor: &str,
    reason: Option<&str>,
    epoch: Option<Epoch>,
) -> Result<(), Error> {
    let attempt_no = run.counters.attempt_no;
    let record = NewTransitionRecord {
        run: run.id,
        attempt_no,
        verb,
        actor,
        reason,
        epoch,
        token: Some(token),
    };
    rare_transition_records::insert_transition_record(tx, record).await
}
