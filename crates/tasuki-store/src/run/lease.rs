//! Leases and holds: who carries what, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, LeaseToken, RunId, RunState, WorkerId};

use crate::cluster::worker;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::{micros, timestamp};
use crate::{Error, Run, Store, uuid};

static OPEN: Sql = sql!("lease/open");
static TOUCH: Sql = sql!("lease/touch");
static SHOW: Sql = sql!("lease/show");
static LOCK: Sql = sql!("lease/lock");
static PER_WORKER: Sql = sql!("lease/per_worker");
static OF_WORKER: Sql = sql!("lease/of_worker");
static LAPSED: Sql = sql!("lease/lapsed", "", ".postgres", "");
static OCCUPIED: Sql = sql!("lease/occupied", ".sqlite", ".postgres", ".mysql");
static CLOSE: Sql = sql!("lease/close");
static CLOSE_IF_EMPTY: Sql = sql!("lease/close_if_empty", ".postgres", ".postgres", ".postgres");
static UNDER: Sql = sql!("run/under", ".sqlite", ".postgres", ".mysql");
static RUN_SHOW: Sql = sql!("run/show");
static HOLD_LOOK: Sql = sql!("hold/look");
static HOLD_GIVE: Sql = sql!("hold/give");

/// A lease as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its token.
    pub token: LeaseToken,
    /// Whose it is.
    pub worker: WorkerId,
    /// Until when, if it is not renewed.
    pub lease_until: Timestamp,
    /// When it was last renewed.
    pub heartbeat_at: Timestamp,
    /// What it was opened for. The list never changes; what is still carried is less.
    pub runs: Vec<RunId>,
}

/// What a renewal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// It goes on, with these runs. Whatever else the worker has under it is no longer its own.
    Held {
        /// What is still carried.
        runs: Vec<RenewedRun>,
        /// Whether the worker was cut off.
        detached: bool,
    },
    /// There is no such lease any more: kill what runs under it and write nothing.
    Gone,
}

/// One run under a renewed lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewedRun {
    /// Which.
    pub run: RunId,
    /// ASSIGNED or RUNNING.
    pub state: RunState,
    /// Whether somebody asked it to stop.
    pub cancel_asked: bool,
}

/// How long a new lease lasts.
pub(crate) enum Until {
    /// Until the last of its runs must have been started.
    StartBy { due_at: Timestamp, after: Duration },
    /// From now on.
    Ttl(Duration),
}

impl RenewedRun {
    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            run: RunId(row.int("id")?),
            state: row.text("state")?.parse()?,
            cancel_asked: row.opt_int("cancel_requested_at")?.is_some(),
        })
    }
}

impl Lease {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let ids: Vec<i64> = serde_json::from_str(&row.text("run_ids")?)
            .map_err(|_| Error::broken("the run ids of a lease are no list"))?;
        Ok(Self {
            token: LeaseToken::from_bytes(row.uuid("token")?.into_bytes()),
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            lease_until: timestamp(row.int("lease_until")?)?,
            heartbeat_at: timestamp(row.int("heartbeat_at")?)?,
            runs: ids.into_iter().map(RunId).collect(),
        })
    }
}

impl Store {
    /// T3: renews a lease and tells what is still carried under it.
    pub async fn renew(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        lease_ttl: Duration,
    ) -> Result<Renewed, Error> {
        let told = self.renew_many(worker, &[token], lease_ttl).await?.pop();
        told.ok_or_else(|| Error::broken("a renewal says nothing"))
    }

    /// T3 for several leases of a worker, in their order.
    pub async fn renew_many(
        &self,
        worker: WorkerId,
        tokens: &[LeaseToken],
        lease_ttl: Duration,
    ) -> Result<Vec<Renewed>, Error> {
        if self.dialect() == Dialect::Postgres {
            return self.renew_in_one_trip(worker, tokens, lease_ttl).await;
        }
        let mut tx = self.db.begin().await?;
        let detached = worker::look(&mut tx, worker).await?.is_none_or(|w| !w.is_attached());
        let mut told = Vec::with_capacity(tokens.len());
        for token in tokens {
            let mine = params! {
                token: uuid(token.as_bytes()),
                worker_id: uuid(worker.as_bytes()),
                ttl: micros(lease_ttl),
            };
            if tx.execute(&TOUCH, mine).await? == 0 {
                told.push(Renewed::Gone);
                continue;
            }
            let rows = tx.rows(&SHOW, params! { token: uuid(token.as_bytes()) }).await?;
            let lease =
                Lease::from_row(rows.first().ok_or_else(|| Error::broken("a lease vanished"))?)?;
            told.push(Renewed::Held { runs: carried(&mut tx, &lease).await?, detached });
        }
        tx.commit().await?;
        Ok(told)
    }

    /// One lease, while it is there.
    pub async fn lease(&self, token: LeaseToken) -> Result<Option<Lease>, Error> {
        let rows = self.db.rows(&SHOW, params! { token: uuid(token.as_bytes()) }).await?;
        rows.first().map(Lease::from_row).transpose()
    }

    /// How many leases each worker has; one that has none is left out.
    pub async fn leases_per_worker(&self) -> Result<BTreeMap<WorkerId, u32>, Error> {
        let rows = self.db.rows(&PER_WORKER, params! {}).await?;
        rows.iter()
            .map(|row| {
                let worker = WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes());
                Ok((worker, row.int("leases")? as u32))
            })
            .collect()
    }

    /// The run that has the only place there is for runs of this one's job and scope.
    pub async fn holder_before(&self, run: &Run) -> Result<Option<RunId>, Error> {
        let place = params! {
            job_id: run.job.0,
            scope_kind: run.scope.kind(),
            scope_id: run.scope.id(),
        };
        let rows = self.db.rows(&HOLD_LOOK, place).await?;
        rows.first().map(|row| row.int("run_id").map(RunId)).transpose()
    }

    /// The leases in a worker's name.
    pub async fn leases_of(&self, worker: WorkerId) -> Result<Vec<Lease>, Error> {
        let rows = self.db.rows(&OF_WORKER, params! { worker_id: uuid(worker.as_bytes()) }).await?;
        rows.iter().map(Lease::from_row).collect()
    }

    /// Leases that nobody renewed, and those of workers that were reported dead.
    pub async fn lapsed(&self, steal_grace: Duration, most: u32) -> Result<Vec<Lease>, Error> {
        let page = params! { grace: micros(steal_grace), most: most };
        let rows = self.db.rows(&LAPSED, page).await?;
        rows.iter().map(Lease::from_row).collect()
    }

    /// Deletes a lease under which nothing is carried any more. A transaction of its own, because a
    /// lease is locked before its runs.
    pub async fn close_if_empty(&self, token: LeaseToken) -> Result<(), Error> {
        if self.dialect() == Dialect::Postgres {
            let key = params! { token: uuid(token.as_bytes()) };
            return self.db.write(&CLOSE_IF_EMPTY, key).await.map(drop);
        }
        let mut tx = self.db.begin().await?;
        if let Some(lease) = lock(&mut tx, token).await? {
            close_if_empty(&mut tx, &lease).await?;
        }
        tx.commit().await
    }
}

/// A lease, held still.
pub(crate) async fn lock(tx: &mut Tx<'_>, token: LeaseToken) -> Result<Option<Lease>, Error> {
    let rows = tx.rows(&LOCK, params! { token: uuid(token.as_bytes()) }).await?;
    rows.first().map(Lease::from_row).transpose()
}

/// Deletes a lease that is held still, if nothing is carried under it any more.
pub(crate) async fn close_if_empty(tx: &mut Tx<'_>, lease: &Lease) -> Result<bool, Error> {
    if !carried(tx, lease).await?.is_empty() {
        return Ok(false);
    }
    close(tx, lease.token).await?;
    Ok(true)
}

/// Deletes a lease that is held still and under which nothing is carried.
pub(crate) async fn close(tx: &mut Tx<'_>, token: LeaseToken) -> Result<(), Error> {
    tx.execute(&CLOSE, params! { token: uuid(token.as_bytes()) }).await.map(drop)
}

/// What is still carried under a lease.
pub(crate) async fn carried(tx: &mut Tx<'_>, lease: &Lease) -> Result<Vec<RenewedRun>, Error> {
    let ids: Vec<i64> = lease.runs.iter().map(|run| run.0).collect();
    let rows = tx.rows(&UNDER, params! { ids: ids, token: uuid(lease.token.as_bytes()) }).await?;
    rows.iter().map(RenewedRun::from_row).collect()
}

pub(crate) async fn open(
    tx: &mut Tx<'_>,
    token: LeaseToken,
    worker: WorkerId,
    epoch: Option<Epoch>,
    until: Until,
    runs: &[i64],
) -> Result<(), Error> {
    static OPEN_FOR: Sql = sql!("lease/open_for");
    let ids = serde_json::json!(runs).to_string();
    let mut row = params! {
        token: uuid(token.as_bytes()),
        worker_id: uuid(worker.as_bytes()),
        epoch: epoch.map(|epoch| epoch.0),
        run_ids: ids,
    };
    match until {
        Until::StartBy { due_at, after } => {
            row.push(("due_at", due_at.as_microsecond().into()));
            row.push(("after", micros(after).into()));
            tx.execute(&OPEN, row).await.map(drop)
        }
        Until::Ttl(ttl) => {
            row.push(("ttl", micros(ttl).into()));
            tx.execute(&OPEN_FOR, row).await.map(drop)
        }
    }
}

/// How much of a worker's room is taken: what runs, and what is due within a second.
pub(crate) async fn occupied(tx: &mut Tx<'_>, worker: WorkerId) -> Result<usize, Error> {
    let rows = tx.rows(&OCCUPIED, params! { worker_id: uuid(worker.as_bytes()) }).await?;
    let row = rows.first().ok_or_else(|| Error::broken("a count has no row"))?;
    Ok(row.int("occupied")?.max(0) as usize)
}

/// Takes the hold of a run's (job, scope). The key excludes two; where a conflict changes nothing but
/// is counted all the same, whose it is tells.
pub(crate) async fn take_hold(
    tx: &mut Tx<'_>,
    take: &Sql,
    run: RunId,
    token: LeaseToken,
) -> Result<bool, Error> {
    let taken = tx.execute(take, params! { run_id: run.0, token: uuid(token.as_bytes()) }).await?;
    if tx.dialect() != Dialect::MySql {
        return Ok(taken == 1);
    }
    let rows = tx.rows(&RUN_SHOW, params! { run_id: run.0 }).await?;
    let row = Run::from_row(rows.first().ok_or_else(|| Error::broken("a run vanished"))?)?;
    Ok(holder(tx, &row).await? == Some((run, token)))
}

/// Who has the hold of a run's (job, scope).
pub(crate) async fn holder(
    tx: &mut Tx<'_>,
    run: &Run,
) -> Result<Option<(RunId, LeaseToken)>, Error> {
    let place = params! {
        job_id: run.job.0,
        scope_kind: run.scope.kind(),
        scope_id: run.scope.id(),
    };
    let rows = tx.rows(&HOLD_LOOK, place).await?;
    rows.first()
        .map(|row| {
            let token = LeaseToken::from_bytes(row.uuid("token")?.into_bytes());
            Ok((RunId(row.int("run_id")?), token))
        })
        .transpose()
}

/// Gives the hold back, by token: whoever holds it now may be another.
pub(crate) async fn give_hold(tx: &mut Tx<'_>, run: &Run, token: LeaseToken) -> Result<(), Error> {
    if !run.exclusive {
        return Ok(());
    }
    let place = params! {
        job_id: run.job.0,
        scope_kind: run.scope.kind(),
        scope_id: run.scope.id(),
        run_id: run.id.0,
        token: uuid(token.as_bytes()),
    };
    tx.execute(&HOLD_GIVE, place).await.map(drop)
}
