//! T1: the leader assigns waiting runs to a worker.

use std::time::Duration;

use tasuki_core::{Epoch, LeaseToken, RunId, RunState, WorkerId};

use crate::cluster::{leader, worker};
use crate::db::instant::duration_to_micros;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Tx, params};
use crate::run::due_table;
use crate::run::lease;
use crate::{DueRun, Error, Run, Store, to_uuid};

static INSERT_DUE: Sql = sql!("due/insert");
static ACQUIRE_HOLD: Sql = sql!("hold/acquire", ".sqlite", ".postgres", ".mysql");
static ASSIGN: Sql = sql!("run/assign");
static FIND_RUN: Sql = sql!("run/find");

/// The leader's request to assign runs to one worker. All runs of one request share one lease.
#[derive(Debug, Clone)]
pub struct AssignRequest<'a> {
    /// Epoch of the leader's term. The write fails if the term has ended.
    pub epoch: Epoch,
    /// Worker that receives the runs. Nothing is assigned unless it accepts work.
    pub worker: WorkerId,
    /// Token of the lease that this request creates. The caller generates it and uses it only once.
    pub token: LeaseToken,
    /// Waiting runs to assign, in order of preference. The worker's free slots limit how many are assigned.
    pub runs: &'a [DueRun],
    /// How long before its due instant a run may be assigned.
    pub assign_ahead: Duration,
    /// How long an assigned run may stay unstarted after it is due.
    pub reassign_after: Duration,
}

impl Store {
    /// T1: assigns waiting runs to a worker. Returns the runs that were assigned; the others were no longer as read,
    /// or found no free slot.
    pub async fn assign(&self, request: &AssignRequest<'_>) -> Result<Vec<RunId>, Error> {
        if self.dialect() == Dialect::Postgres {
            return self.assign_postgres(request).await;
        }
        let mut tx = self.db.begin().await?;
        leader::check_and_lock_epoch(&mut tx, request.epoch).await?;
        let active = worker::lock_worker(&mut tx, request.worker)
            .await?
            .filter(worker::WorkerRecord::accepts_work);
        let Some(worker) = active else {
            tx.rollback().await?;
            return Ok(Vec::new());
        };
        let used_slots = lease::count_used_slots(&mut tx, request.worker).await?;
        let mut free_slots = (worker.slots as usize).saturating_sub(used_slots);
        let mut assigned = Vec::new();
        for due_run in request.runs {
            if free_slots == 0 {
                break;
            }
            if assign_one(&mut tx, request, due_run).await? {
                assigned.push(due_run);
                free_slots -= 1;
            }
        }
        if let Some(latest) = assigned.iter().map(|due_run| due_run.due_at).max() {
            let ids: Vec<i64> = assigned.iter().map(|due_run| due_run.run.0).collect();
            let expiry =
                lease::NewLeaseExpiry::StartBy { due_at: latest, after: request.reassign_after };
            lease::open_lease(
                &mut tx,
                request.token,
                request.worker,
                Some(request.epoch),
                expiry,
                &ids,
            )
            .await?;
        }
        tx.commit().await?;
        Ok(assigned.into_iter().map(|due_run| due_run.run).collect())
    }
}

/// Assigns one run. `false`: the run is not waiting as it was read, and nothing was changed.
async fn assign_one(
    tx: &mut Tx<'_>,
    request: &AssignRequest<'_>,
    due_run: &DueRun,
) -> Result<bool, Error> {
    if !reserve_run(tx, due_run.run, due_run.exclusive, request.token).await? {
        return Ok(false);
    }
    let guard = params! {
        run_id: due_run.run.0,
        attempt_no: due_run.attempt_no,
        worker_id: to_uuid(request.worker.as_bytes()),
        token: to_uuid(request.token.as_bytes()),
        epoch: request.epoch.0,
        assign_ahead: duration_to_micros(request.assign_ahead),
        reassign_after: duration_to_micros(request.reassign_after),
    };
    let assigned = tx.execute(&ASSIGN, guard).await? == 1;
    if !assigned {
        restore_due_row(tx, due_run.run, due_run.exclusive, request.token).await?;
    }
    Ok(assigned)
}

/// Removes the due row, then acquires the hold if the run needs it. A run that does not get the hold keeps its due row.
async fn reserve_run(
    tx: &mut Tx<'_>,
    run: RunId,
    exclusive: bool,
    token: LeaseToken,
) -> Result<bool, Error> {
    if !due_table::remove_from_due_table(tx, run).await? {
        return Ok(false);
    }
    if exclusive && !lease::acquire_hold(tx, &ACQUIRE_HOLD, run, token).await? {
        tx.execute(&INSERT_DUE, params! { run_id: run.0 }).await?;
        return Ok(false);
    }
    Ok(true)
}

/// Undoes [`reserve_run`] for a run that did not match the guard of the assignment: releases the hold and restores
/// the due row.
async fn restore_due_row(
    tx: &mut Tx<'_>,
    run: RunId,
    exclusive: bool,
    token: LeaseToken,
) -> Result<(), Error> {
    let rows = tx.query(&FIND_RUN, params! { run_id: run.0 }).await?;
    let Some(row) = rows.first().map(Run::from_row).transpose()? else { return Ok(()) };
    if exclusive {
        lease::release_hold(tx, &row, token).await?;
    }
    match row.state {
        RunState::Pending | RunState::Orphaned | RunState::RetryWait => {
            tx.execute(&INSERT_DUE, params! { run_id: run.0 }).await.map(drop)
        }
        _ => Err(Error::broken(format!("run {run} had a due row but is {}", row.state))),
    }
}
