//! T8: the leader recovers the runs of an expired lease. Assigned runs are requeued; running ones have lost their
//! attempt.

use std::time::Duration;

use tasuki_core::exit::ClassifiedFailure;
use tasuki_core::retry::{RunAtAttemptEnd, decide_retry};
use tasuki_core::run::LossKind;
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, Epoch, LeaseToken, RunId, RunState};

use crate::cluster::leader;
use crate::db::instant::duration_to_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::finish::{AttemptResult, apply_retry_decision};
use crate::run::lease;
use crate::run::requeue_assigned::{record_transition, requeue_assigned};
use crate::{Error, Lease, Run, Store, job, to_uuid};

static LOCK: Sql = sql!("run/lock");
static DELETE_EXPIRED_LEASE: Sql = sql!("lease/delete_expired");

/// A run that was recovered from an expired lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredRun {
    /// Id of the run.
    pub run: RunId,
    /// State after the recovery.
    pub state: RunState,
}

impl Store {
    /// T8: recovers all runs of a lease that has expired, or whose worker was reported dead. The lease is deleted
    /// first, if it is still as it was read: `None` means that the worker renewed it in the meantime, and nothing was
    /// changed. `random` is any random number; the backoff of the next attempt may depend on it.
    pub async fn recover(
        &self,
        epoch: Epoch,
        expired: &Lease,
        steal_grace: Duration,
        random: u32,
    ) -> Result<Option<Vec<RecoveredRun>>, Error> {
        let mut tx = self.db.begin().await?;
        leader::check_and_lock_epoch(&mut tx, epoch).await?;
        let guard = params! {
            token: to_uuid(expired.token.as_bytes()),
            lease_until: expired.lease_until.as_microsecond(),
            grace: duration_to_micros(steal_grace),
        };
        if tx.execute(&DELETE_EXPIRED_LEASE, guard).await? == 0 {
            tx.rollback().await?;
            return Ok(None);
        }
        let live_runs = lease::list_runs_under_lease(&mut tx, expired).await?;
        let running = live_runs.iter().filter(|run| run.state == RunState::Running).count();
        let loss = if running > 1 { LossKind::Shared } else { LossKind::Single };
        let mut recovered = Vec::new();
        for live in live_runs {
            // The worker may have reported the end of the attempt in the meantime. Its report counts.
            let rows = tx.query(&LOCK, params! { run_id: live.run.0 }).await?;
            let row = rows.first().map(Run::from_row).transpose()?;
            let Some(row) = row.filter(|row| row.token == Some(expired.token)) else { continue };
            let state = match row.state {
                RunState::Assigned => {
                    requeue_assigned(
                        &mut tx,
                        &row,
                        expired.token,
                        RunVerb::Recover,
                        "leader",
                        Some(epoch),
                    )
                    .await?;
                    RunState::Orphaned
                }
                RunState::Running => {
                    end_lost_attempt(&mut tx, row, expired.token, loss, epoch, random).await?
                }
                _ => continue,
            };
            recovered.push(RecoveredRun { run: live.run, state });
        }
        tx.commit().await?;
        Ok(Some(recovered))
    }
}

/// Ends the attempt of a locked, running run as LOST: it is unknown how far it got.
async fn end_lost_attempt(
    tx: &mut Tx<'_>,
    run: Run,
    token: LeaseToken,
    loss: LossKind,
    epoch: Epoch,
    random: u32,
) -> Result<RunState, Error> {
    let limits = job::get_lost_and_released_run_rules(tx, run.job, run.job_version).await?;
    let run = Run {
        counters: run.counters.with_extra_try_after_shared_loss(loss, run.max_attempts),
        ..run
    };
    let attempt_end = RunAtAttemptEnd {
        counters: run.counters,
        max_attempts: run.max_attempts,
        cancel_requested: run.cancel_requested_at.is_some(),
    };
    let failure = ClassifiedFailure {
        code: AttemptErrorCode::HEARTBEAT_TIMEOUT,
        retryable: limits.retry_lost,
    };
    let decision = decide_retry(&attempt_end, &failure, &limits.backoff, random);
    let columns = AttemptResult::from_failure(failure).columns();
    let state =
        apply_retry_decision(tx, &run, token, decision, AttemptOutcome::Lost, columns).await?;
    lease::release_hold(tx, &run, token).await?;
    record_transition(
        tx,
        &run,
        token,
        RunVerb::Recover,
        "leader",
        Some("its lease expired"),
        Some(epoch),
    )
    .await?;
    Ok(state)
}
