//! Leases and holds: which worker holds which runs, and until when.
//!
//! A lease belongs to one worker and covers the runs of one assignment or claim. Its worker renews it; when it
//! expires, the leader recovers its runs. A hold is the concurrency lock of a (job, scope) for jobs that allow only
//! one active run.
//!
//! Every transaction locks an existing lease before the runs of it, so that two of them cannot deadlock.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, LeaseToken, RunId, RunState, WorkerId};

use crate::cluster::worker;
use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Run, Store, to_uuid};

static OPEN_UNTIL_START_BY: Sql = sql!("lease/insert_assigned");
static EXTEND: Sql = sql!("lease/renew");
static FIND: Sql = sql!("lease/find");
static LOCK: Sql = sql!("lease/lock");
static COUNT_PER_WORKER: Sql = sql!("lease/count_per_worker");
static LIST_OF_WORKER: Sql = sql!("lease/list_of_worker");
static LIST_EXPIRED: Sql = sql!("lease/list_expired", "", ".postgres", "");
static COUNT_USED_SLOTS: Sql = sql!("lease/count_used_slots", ".sqlite", ".postgres", ".mysql");
static CLOSE: Sql = sql!("lease/delete");
static CLOSE_IF_EMPTY: Sql = sql!("lease/delete_if_empty", ".postgres", ".postgres", ".postgres");
static LIST_LIVE_RUNS: Sql = sql!("run/list_leased_by_token", ".sqlite", ".postgres", ".mysql");
static FIND_RUN: Sql = sql!("run/find");
static FIND_HOLD: Sql = sql!("hold/find");
static RELEASE_HOLD: Sql = sql!("hold/release");

/// A lease as its row stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Token that identifies the lease and guards every write under it.
    pub token: LeaseToken,
    /// Worker that holds the lease.
    pub worker: WorkerId,
    /// When the lease expires unless it is renewed.
    pub lease_until: Timestamp,
    /// When the lease was last renewed, or opened.
    pub heartbeat_at: Timestamp,
    /// Runs that the lease was opened for. The list never changes; some of them may have ended since.
    pub runs: Vec<RunId>,
}

/// Result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewResult {
    /// The lease was extended. The worker must stop every run under this token that is not in `runs`: it no longer
    /// holds it.
    Held {
        /// Runs that are still leased.
        runs: Vec<RenewedRun>,
        /// Whether the worker is detached.
        detached: bool,
    },
    /// The lease does not exist any more. The worker must kill the runs under it and write nothing.
    Gone,
}

/// A run that is still leased, as a renewal returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewedRun {
    /// Id of the run.
    pub run: RunId,
    /// State: ASSIGNED or RUNNING.
    pub state: RunState,
    /// Whether a cancellation was requested.
    pub cancel_requested: bool,
}

/// How to compute the expiry of a new lease.
pub(crate) enum NewLeaseExpiry {
    /// The lease of an assignment: `after` later than `due_at`, the latest due instant of its runs, but not before
    /// now plus `after`.
    StartBy { due_at: Timestamp, after: Duration },
    /// The lease of a claim: this long from now.
    Ttl(Duration),
}

impl RenewedRun {
    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            run: RunId(row.int("id")?),
            state: row.text("state")?.parse()?,
            cancel_requested: row.opt_int("cancel_requested_at")?.is_some(),
        })
    }
}

impl Lease {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let ids: Vec<i64> = serde_json::from_str(&row.text("run_ids")?)
            .map_err(|_| Error::broken("the run ids of a lease are not a JSON list"))?;
        Ok(Self {
            token: LeaseToken::from_bytes(row.uuid("token")?.into_bytes()),
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            lease_until: timestamp_from_micros(row.int("lease_until")?)?,
            heartbeat_at: timestamp_from_micros(row.int("heartbeat_at")?)?,
            runs: ids.into_iter().map(RunId).collect(),
        })
    }
}

impl Store {
    /// T3: renews leases of a worker and returns the runs that are still leased under each. The results are in the
    /// order of the tokens.
    pub async fn renew(
        &self,
        worker: WorkerId,
        tokens: &[LeaseToken],
        lease_ttl: Duration,
    ) -> Result<Vec<RenewResult>, Error> {
        if self.dialect() == Dialect::Postgres {
            return self.renew_postgres(worker, tokens, lease_ttl).await;
        }
        let mut tx = self.db.begin().await?;
        let detached = worker::find_worker_in_transaction(&mut tx, worker)
            .await?
            .is_none_or(|w| !w.may_continue());
        let mut results = Vec::with_capacity(tokens.len());
        for token in tokens {
            let key = params! {
                token: to_uuid(token.as_bytes()),
                worker_id: to_uuid(worker.as_bytes()),
                ttl: duration_to_micros(lease_ttl),
            };
            if tx.execute(&EXTEND, key).await? == 0 {
                results.push(RenewResult::Gone);
                continue;
            }
            let rows = tx.query(&FIND, params! { token: to_uuid(token.as_bytes()) }).await?;
            let lease = Lease::from_row(
                rows.first().ok_or_else(|| Error::broken("a locked lease does not exist"))?,
            )?;
            results.push(RenewResult::Held {
                runs: list_runs_under_lease(&mut tx, &lease).await?,
                detached,
            });
        }
        tx.commit().await?;
        Ok(results)
    }

    /// Finds a lease by its token.
    pub async fn find_lease(&self, token: LeaseToken) -> Result<Option<Lease>, Error> {
        let rows = self.db.query(&FIND, params! { token: to_uuid(token.as_bytes()) }).await?;
        rows.first().map(Lease::from_row).transpose()
    }

    /// Counts the leases of each worker. Workers without a lease are not in the map.
    pub async fn count_leases_per_worker(&self) -> Result<BTreeMap<WorkerId, u32>, Error> {
        let rows = self.db.query(&COUNT_PER_WORKER, params! {}).await?;
        rows.iter()
            .map(|row| {
                let worker = WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes());
                Ok((worker, row.int("leases")? as u32))
            })
            .collect()
    }

    /// Finds the run that owns the hold of this run's job and scope.
    pub async fn find_hold_owner(&self, run: &Run) -> Result<Option<RunId>, Error> {
        let key = params! {
            job_id: run.job.0,
            scope_kind: run.scope.kind(),
            scope_id: run.scope.id(),
        };
        let rows = self.db.query(&FIND_HOLD, key).await?;
        rows.first().map(|row| row.int("run_id").map(RunId)).transpose()
    }

    /// Lists the leases of a worker.
    pub async fn list_leases_of_worker(&self, worker: WorkerId) -> Result<Vec<Lease>, Error> {
        let rows = self
            .db
            .query(&LIST_OF_WORKER, params! { worker_id: to_uuid(worker.as_bytes()) })
            .await?;
        rows.iter().map(Lease::from_row).collect()
    }

    /// Lists leases that have expired, `steal_grace` ago or more, and leases of workers that were reported dead.
    pub async fn list_expired_leases(
        &self,
        steal_grace: Duration,
        max_leases: u32,
    ) -> Result<Vec<Lease>, Error> {
        let page = params! { grace: duration_to_micros(steal_grace), limit: max_leases };
        let rows = self.db.query(&LIST_EXPIRED, page).await?;
        rows.iter().map(Lease::from_row).collect()
    }

    /// Deletes a lease if none of its runs is leased under it any more. It needs a transaction of its own, because a
    /// lease is locked before its runs.
    pub async fn close_lease_if_empty(&self, token: LeaseToken) -> Result<(), Error> {
        if self.dialect() == Dialect::Postgres {
            let key = params! { token: to_uuid(token.as_bytes()) };
            return self.db.write_returning(&CLOSE_IF_EMPTY, key).await.map(drop);
        }
        let mut tx = self.db.begin().await?;
        if let Some(lease) = lock_lease(&mut tx, token).await? {
            delete_locked_lease_if_empty(&mut tx, &lease).await?;
        }
        tx.commit().await
    }
}

/// Locks a lease.
pub(crate) async fn lock_lease(tx: &mut Tx<'_>, token: LeaseToken) -> Result<Option<Lease>, Error> {
    let rows = tx.query(&LOCK, params! { token: to_uuid(token.as_bytes()) }).await?;
    rows.first().map(Lease::from_row).transpose()
}

/// Deletes a locked lease if none of its runs is leased under it any more. Returns whether it did.
pub(crate) async fn delete_locked_lease_if_empty(
    tx: &mut Tx<'_>,
    lease: &Lease,
) -> Result<bool, Error> {
    if !list_runs_under_lease(tx, lease).await?.is_empty() {
        return Ok(false);
    }
    delete_locked_lease(tx, lease.token).await?;
    Ok(true)
}

/// Deletes a locked lease. The caller has checked that no run is leased under it.
pub(crate) async fn delete_locked_lease(tx: &mut Tx<'_>, token: LeaseToken) -> Result<(), Error> {
    tx.execute(&CLOSE, params! { token: to_uuid(token.as_bytes()) }).await.map(drop)
}

/// Lists the runs that are still leased under a lease.
pub(crate) async fn list_runs_under_lease(
    tx: &mut Tx<'_>,
    lease: &Lease,
) -> Result<Vec<RenewedRun>, Error> {
    let ids: Vec<i64> = lease.runs.iter().map(|run| run.0).collect();
    let rows = tx
        .query(&LIST_LIVE_RUNS, params! { ids: ids, token: to_uuid(lease.token.as_bytes()) })
        .await?;
    rows.iter().map(RenewedRun::from_row).collect()
}

/// Inserts a lease for these runs.
pub(crate) async fn open_lease(
    tx: &mut Tx<'_>,
    token: LeaseToken,
    worker: WorkerId,
    epoch: Option<Epoch>,
    expiry: NewLeaseExpiry,
    runs: &[i64],
) -> Result<(), Error> {
    static OPEN_FOR_TTL: Sql = sql!("lease/insert_claimed");
    let ids = serde_json::json!(runs).to_string();
    let mut row = params! {
        token: to_uuid(token.as_bytes()),
        worker_id: to_uuid(worker.as_bytes()),
        epoch: epoch.map(|epoch| epoch.0),
        run_ids: ids,
    };
    match expiry {
        NewLeaseExpiry::StartBy { due_at, after } => {
            row.push(("due_at", due_at.as_microsecond().into()));
            row.push(("after", duration_to_micros(after).into()));
            tx.execute(&OPEN_UNTIL_START_BY, row).await.map(drop)
        }
        NewLeaseExpiry::Ttl(ttl) => {
            row.push(("ttl", duration_to_micros(ttl).into()));
            tx.execute(&OPEN_FOR_TTL, row).await.map(drop)
        }
    }
}

/// Counts the slots of a worker that assigned runs use: running ones, and ones that are due within a second. Claimed
/// runs have separate slots.
pub(crate) async fn count_used_slots(tx: &mut Tx<'_>, worker: WorkerId) -> Result<usize, Error> {
    let rows =
        tx.query(&COUNT_USED_SLOTS, params! { worker_id: to_uuid(worker.as_bytes()) }).await?;
    let row = rows.first().ok_or_else(|| Error::broken("a count returned no row"))?;
    Ok(row.int("used_slots")?.max(0) as usize)
}

/// Acquires the hold of a run's (job, scope); its primary key excludes a second one. Returns whether the run has the
/// hold.
///
/// MySQL counts a row even if the insert found a conflict and changed nothing. There the function reads the hold to
/// find out who owns it.
pub(crate) async fn acquire_hold(
    tx: &mut Tx<'_>,
    acquire: &Sql,
    run: RunId,
    token: LeaseToken,
) -> Result<bool, Error> {
    let inserted =
        tx.execute(acquire, params! { run_id: run.0, token: to_uuid(token.as_bytes()) }).await?;
    if tx.dialect() != Dialect::MySql {
        return Ok(inserted == 1);
    }
    let rows = tx.query(&FIND_RUN, params! { run_id: run.0 }).await?;
    let row = Run::from_row(
        rows.first().ok_or_else(|| Error::broken("a run with a due row does not exist"))?,
    )?;
    Ok(find_hold(tx, &row).await? == Some((run, token)))
}

/// Finds the run that owns the hold of a run's (job, scope), and the token that it was acquired with.
pub(crate) async fn find_hold(
    tx: &mut Tx<'_>,
    run: &Run,
) -> Result<Option<(RunId, LeaseToken)>, Error> {
    let key = params! {
        job_id: run.job.0,
        scope_kind: run.scope.kind(),
        scope_id: run.scope.id(),
    };
    let rows = tx.query(&FIND_HOLD, key).await?;
    rows.first()
        .map(|row| {
            let token = LeaseToken::from_bytes(row.uuid("token")?.into_bytes());
            Ok((RunId(row.int("run_id")?), token))
        })
        .transpose()
}

/// Releases the hold of a run. The token is part of the key, because another run may own the hold now.
pub(crate) async fn release_hold(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
) -> Result<(), Error> {
    if !run.exclusive {
        return Ok(());
    }
    let key = params! {
        job_id: run.job.0,
        scope_kind: run.scope.kind(),
        scope_id: run.scope.id(),
        run_id: run.id.0,
        token: to_uuid(token.as_bytes()),
    };
    tx.execute(&RELEASE_HOLD, key).await.map(drop)
}
