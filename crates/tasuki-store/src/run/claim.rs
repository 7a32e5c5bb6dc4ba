//! T1c: a worker claims due runs of a lane and starts them in the same write.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId, WorkerId};

use crate::cluster::worker;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::run::due_table::{self, RunsToClaimFromDueRow};
use crate::run::{lease, mysql_and_sqlite};
use crate::{Error, StartedRun, Store, to_uuid};

static ACQUIRE_HOLD: Sql = sql!("hold/acquire", ".sqlite", ".postgres", ".mysql");
static FIND_LEASE: Sql = sql!("lease/find");

/// Maximum number of runs in one claim, whatever it requests: longer transactions would delay other writers.
pub const MAX_CLAIM: u32 = 1_000;
/// Maximum number of tries of a claim while other transactions hold all candidate rows. Such a transaction takes some
/// runs of an id range and leaves the rest, so the next try can succeed.
pub(crate) const MAX_CLAIM_TRIES: usize = 5;
/// Pause between two tries of a claim.
pub(crate) const CLAIM_RETRY_DELAY: Duration = Duration::from_millis(2);
/// Position before the first run of a lane.
pub(crate) const LANE_START: (Timestamp, RunId) = (Timestamp::MIN, RunId(0));

/// A worker's request for due runs of one lane. All runs of one request share one lease.
#[derive(Debug, Clone)]
pub struct ClaimRequest<'a> {
    /// The claiming worker. It must accept work: neither draining nor detached.
    pub worker: WorkerId,
    /// Token of the lease that this claim creates. The worker generates it before it sends the request. After a lost
    /// response it sends the same token again, once the first request can no longer be in progress; see
    /// [`ClaimResult::AlreadyClaimed`].
    pub token: LeaseToken,
    /// Lane to claim from.
    pub lane: &'a str,
    /// Maximum number of runs: at most the worker's free slots and [`MAX_CLAIM`].
    pub max_runs: u32,
    /// How long the lease lasts without renewal.
    pub lease_ttl: Duration,
    /// Claims only runs after this position (due time and run id) in the lane. A worker that has just claimed everything
    /// before the position saves time: after large deletes, a database needs long to find the first row that is left.
    pub after: Option<(Timestamp, RunId)>,
}

/// Result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// The claimed runs. They are RUNNING under the token of the request. Empty if nothing was due.
    Runs(Vec<StartedRun>),
    /// The token was already used: an earlier request with it was applied. Renewing the lease returns its runs.
    AlreadyClaimed,
}

impl Store {
    /// T1c: claims due runs and starts them. A run that was once lost together with other runs is claimed alone,
    /// because it may have killed its worker.
    pub async fn claim(&self, request: &ClaimRequest<'_>) -> Result<ClaimResult, Error> {
        let request =
            &ClaimRequest { max_runs: request.max_runs.min(MAX_CLAIM), ..request.clone() };
        let after = after_params(request.after.unwrap_or(LANE_START));
        if self.dialect() == Dialect::Postgres {
            return self.claim_postgres(request, after).await;
        }
        if self.dialect() == Dialect::Sqlite {
            match self.claim_sqlite(request, &after).await {
                Ok(runs) if runs.is_empty() => {}
                Ok(runs) => return Ok(ClaimResult::Runs(runs)),
                Err(error) if error.is_duplicate_key() => return Ok(ClaimResult::AlreadyClaimed),
                Err(error) if error.is_script_guard_failure() => {}
                Err(error) => return Err(error),
            }
        }
        // The fast claim found nothing: nothing is due, the claim was applied before, or a run needs a hold or must
        // run alone.
        for _ in 0..MAX_CLAIM_TRIES {
            if let Some(claimed) = self.claim_with_locks(request, &after).await? {
                return Ok(claimed);
            }
            tokio::time::sleep(CLAIM_RETRY_DELAY).await;
        }
        self.explain_empty_claim(request.token).await
    }

    /// Claims with explicit row locks. `None`: other transactions hold all candidate rows.
    async fn claim_with_locks(
        &self,
        request: &ClaimRequest<'_>,
        after: &Params<'static>,
    ) -> Result<Option<ClaimResult>, Error> {
        let mut tx = self.db.begin().await?;
        if !worker::find_worker_in_transaction(&mut tx, request.worker)
            .await?
            .is_some_and(|w| w.accepts_work())
        {
            tx.rollback().await?;
            return self.explain_empty_claim(request.token).await.map(Some);
        }
        let Some(rows) = due_table::lock_for_claim(&mut tx, request, after).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        let claimed = match claim_locked_rows(&mut tx, request, &rows).await {
            Ok(claimed) => claimed,
            Err(error) if error.is_duplicate_key() => {
                tx.rollback().await?;
                return Ok(Some(ClaimResult::AlreadyClaimed));
            }
            Err(error) => return Err(error),
        };
        if claimed.is_empty() {
            tx.commit().await?;
            return self.explain_empty_claim(request.token).await.map(Some);
        }
        let runs = mysql_and_sqlite::read_started_runs(&mut tx, &claimed).await?;
        tx.commit().await?;
        Ok(Some(ClaimResult::Runs(runs)))
    }

    /// Result of a claim that found nothing: empty, or [`ClaimResult::AlreadyClaimed`] if the lease of this token
    /// exists.
    pub(crate) async fn explain_empty_claim(
        &self,
        token: LeaseToken,
    ) -> Result<ClaimResult, Error> {
        let rows = self.db.query(&FIND_LEASE, params! { token: to_uuid(token.as_bytes()) }).await?;
        Ok(if rows.is_empty() {
            ClaimResult::Runs(Vec::new())
        } else {
            ClaimResult::AlreadyClaimed
        })
    }
}

/// Parameters for a statement that lists the runs after a position in a lane.
pub(crate) fn after_params((due_at, run): (Timestamp, RunId)) -> Params<'static> {
    params! { after_at: due_at.as_microsecond(), after_run: run.0 }
}

/// Claims runs of the locked due rows under a new lease. If the first run must run alone, only that one is claimed; a
/// run that does not get its hold continues to wait.
async fn claim_locked_rows(
    tx: &mut Tx<'_>,
    request: &ClaimRequest<'_>,
    rows: &[Row],
) -> Result<Vec<i64>, Error> {
    let isolated = rows.first().map(|row| row.int("isolated")).transpose()? == Some(1);
    let mut remaining = if isolated { 1 } else { i64::from(request.max_runs) };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows.iter().take(if isolated { 1 } else { rows.len() }) {
        let run = RunId(row.int("run_id")?);
        let skipped = remaining == 0 || row.int("isolated")? == 1 && !isolated;
        let needs_no_hold = row.int("exclusive")? == 0;
        if !skipped
            && (needs_no_hold || lease::acquire_hold(tx, &ACQUIRE_HOLD, run, request.token).await?)
        {
            let range = RunsToClaimFromDueRow::from_row_with_max_runs(remaining, row)?;
            remaining -= range.claim_count;
            ranges.push(range);
        }
    }
    if !ranges.is_empty() && !mysql_and_sqlite::claim_ranges(tx, request, &ranges).await? {
        return Err(Error::broken("a run changed its state although its due row is locked"));
    }
    Ok(ranges.into_iter().flat_map(RunsToClaimFromDueRow::ids).collect())
}
