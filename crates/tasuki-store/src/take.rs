//! T1, T1c and T2: runs are given, taken and started.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, EventId, JobId, LeaseToken, Origin, RunId, RunState, Scope, WorkerId};

use crate::db::{Row, Tx, params};
use crate::run::{micros, timestamp};
use crate::sql::{Dialect, Sql, sql};
use crate::{Error, Outcome, Run, Store, leader, lease, uuid, worker};

static DUE_TAKE: Sql = sql!("due/take");
static DUE_PUT: Sql = sql!("due/put");
static DUE_LOCK: Sql = sql!("due/lock");
static DUE_LIST: Sql = sql!("due/list");
static HOLD_TAKE: Sql = sql!("hold/take", ".sqlite", ".postgres", ".mysql");
static LEASE_TOUCH: Sql = sql!("lease/touch");
static ASSIGN: Sql = sql!("run/assign");
static CLAIM: Sql = sql!("run/claim");
static START: Sql = sql!("run/start");
static EARLY: Sql = sql!("run/early");
static SHOW: Sql = sql!("run/show");

/// The most runs one claim takes, whatever it asks for: a longer transaction serves nobody.
pub const MOST_CLAIMED: u32 = 1_000;

/// A run that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub run: RunId,
    /// When it may start.
    pub due_at: Timestamp,
    /// Its attempts so far, as they were read.
    pub attempt_no: u32,
    /// Whether its job allows only one of it at a time.
    pub exclusive: bool,
}

/// What the leader gives one worker in one go.
#[derive(Debug, Clone)]
pub struct AssignBatch<'a> {
    /// The leader's term.
    pub epoch: Epoch,
    /// To whom.
    pub worker: WorkerId,
    /// The lease, made by the caller and never used before.
    pub token: LeaseToken,
    /// What.
    pub runs: &'a [Wanted],
    /// How far ahead.
    pub assign_ahead: Duration,
    /// How long it may stay unstarted.
    pub reassign_after: Duration,
}

/// What a worker takes in one go.
#[derive(Debug, Clone)]
pub struct ClaimBatch<'a> {
    /// Who.
    pub worker: WorkerId,
    /// The lease, made by the caller; the same token again after a lost answer.
    pub token: LeaseToken,
    /// From where.
    pub lane: &'a str,
    /// At most so many: never more than its free slots, nor than [`MOST_CLAIMED`].
    pub most: u32,
    /// How long the lease lasts without renewal.
    pub lease_ttl: Duration,
}

/// A run that its worker may launch now: it is RUNNING in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub id: RunId,
    /// Of which job.
    pub job: JobId,
    /// Made from which version of it.
    pub job_version: i64,
    /// What made it.
    pub origin: Origin,
    /// For what.
    pub scope: Scope,
    /// Its planned instant.
    pub scheduled_for: Timestamp,
    /// When this attempt was due: the planned instant, or the next try.
    pub due_at: Timestamp,
    /// The number of this attempt.
    pub attempt_no: u32,
    /// How many attempts have started, this one included.
    pub tries: u32,
    /// What made it, if an event did.
    pub event: Option<EventId>,
    /// What it is given.
    pub args: Option<String>,
}

impl Taken {
    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        let scheduled_for = row.int("scheduled_for")?;
        let due_at = row.opt_int("next_retry_at")?.unwrap_or(scheduled_for);
        Ok(Self {
            id: RunId(row.int("id")?),
            job: JobId(row.int("job_id")?),
            job_version: row.int("job_version")?,
            origin: row.text("origin")?.parse()?,
            scope: Scope::new(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            scheduled_for: timestamp(scheduled_for)?,
            due_at: timestamp(due_at)?,
            attempt_no: row.int("attempt_no")? as u32,
            tries: row.int("tries")? as u32,
            event: row.opt_int("event_id")?.map(EventId),
            args: row.opt_text("args")?,
        })
    }
}

/// What was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// These run now, under the token.
    Runs(Vec<Taken>),
    /// The token was used already: the first claim landed, renew its lease to learn what it took.
    Before,
}

impl Store {
    /// What waits in a lane and is due until an instant, soonest first.
    pub async fn due(&self, lane: &str, until: Timestamp, most: u32) -> Result<Vec<Wanted>, Error> {
        let page = params! { lane: lane, until: until.as_microsecond(), most: most };
        let mut wanted = Vec::new();
        for row in self.db.rows(&DUE_LIST, page).await? {
            let run = RunId(row.int("run_id")?);
            let attempt_no = self.run(run).await?.map_or(0, |run| run.counters.attempt_no);
            wanted.push(Wanted {
                run,
                due_at: timestamp(row.int("due_at")?)?,
                attempt_no,
                exclusive: row.int("exclusive")? != 0,
            });
        }
        Ok(wanted)
    }

    /// T1: gives runs to a worker. Returns those it really gave.
    pub async fn assign(&self, batch: &AssignBatch<'_>) -> Result<Vec<RunId>, Error> {
        let mut tx = self.db.begin().await?;
        leader::fence(&mut tx, batch.epoch).await?;
        let active = worker::lock(&mut tx, batch.worker).await?.filter(worker::Worker::is_active);
        let Some(worker) = active else {
            tx.rollback().await?;
            return Ok(Vec::new());
        };
        let occupied = lease::occupied(&mut tx, batch.worker).await?;
        let mut room = (worker.slots as usize).saturating_sub(occupied);
        let mut given = Vec::new();
        for wanted in batch.runs {
            if room == 0 {
                break;
            }
            if assign_one(&mut tx, batch, wanted).await? {
                given.push(wanted);
                room -= 1;
            }
        }
        if let Some(latest) = given.iter().map(|wanted| wanted.due_at).max() {
            let ids: Vec<i64> = given.iter().map(|wanted| wanted.run.0).collect();
            let until = lease::Until::StartBy { due_at: latest, after: batch.reassign_after };
            lease::open(&mut tx, batch.token, batch.worker, Some(batch.epoch), until, &ids).await?;
        }
        tx.commit().await?;
        Ok(given.into_iter().map(|wanted| wanted.run).collect())
    }

    /// T1c: takes and starts what is due. A run that was once lost together with others comes alone.
    pub async fn claim(&self, batch: &ClaimBatch<'_>) -> Result<Claimed, Error> {
        let batch = &ClaimBatch { most: batch.most.min(MOST_CLAIMED), ..batch.clone() };
        if self.dialect() == Dialect::Postgres {
            return self.claim_in_one_trip(batch).await;
        }
        let mut tx = self.db.begin().await?;
        let active = worker::look(&mut tx, batch.worker).await?.is_some_and(|w| w.is_active());
        if !active {
            tx.rollback().await?;
            return Ok(Claimed::Runs(Vec::new()));
        }
        let page = params! { lane: batch.lane, most: batch.most };
        let rows = tx.rows(&DUE_LOCK, page).await?;
        let alone = rows.first().map(|row| row.int("alone")).transpose()? == Some(1);
        let mut taken = Vec::new();
        for row in &rows {
            if alone && !taken.is_empty() {
                break;
            }
            if !alone && row.int("alone")? == 1 {
                continue;
            }
            let run = RunId(row.int("run_id")?);
            if claim_one(&mut tx, batch, run, row.int("exclusive")? != 0).await? {
                taken.push(run.0);
            }
        }
        if taken.is_empty() {
            tx.commit().await?;
            return Ok(Claimed::Runs(Vec::new()));
        }
        let until = lease::Until::Ttl(batch.lease_ttl);
        match lease::open(&mut tx, batch.token, batch.worker, None, until, &taken).await {
            Ok(()) => {}
            Err(error) if error.is_conflict() => {
                tx.rollback().await?;
                return Ok(Claimed::Before);
            }
            Err(error) => return Err(error),
        }
        let mut runs = Vec::with_capacity(taken.len());
        for id in taken {
            runs.push(look(&mut tx, RunId(id)).await?);
        }
        tx.commit().await?;
        Ok(Claimed::Runs(runs))
    }

    /// T2: starts what was assigned. Only what comes back as applied may be launched.
    pub async fn start(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Vec<Outcome<Taken>>, Error> {
        let mut tx = self.db.begin().await?;
        let attached = worker::look(&mut tx, worker).await?.is_some_and(|w| w.is_attached());
        let mine = params! {
            token: uuid(token.as_bytes()),
            worker_id: uuid(worker.as_bytes()),
            ttl: micros(lease_ttl),
        };
        // The lease first: without its row the start is lost, whatever the run says.
        if !attached || tx.execute(&LEASE_TOUCH, mine).await? == 0 {
            tx.rollback().await?;
            return self.all_lost(runs).await;
        }
        let mut told = Vec::with_capacity(runs.len());
        for &run in runs {
            let guard = params! {
                run_id: run.0,
                token: uuid(token.as_bytes()),
                worker_id: uuid(worker.as_bytes()),
            };
            let moved = tx.execute(&START, guard.clone()).await? == 1;
            let early = !moved && !tx.rows(&EARLY, guard).await?.is_empty();
            told.push(match (moved, early) {
                (true, _) => Some(Outcome::Applied(look(&mut tx, run).await?)),
                (false, true) => Some(Outcome::NotYet),
                (false, false) => None,
            });
        }
        tx.commit().await?;
        let mut outcomes = Vec::with_capacity(runs.len());
        for (&run, told) in runs.iter().zip(told) {
            outcomes.push(match told {
                Some(outcome) => outcome,
                None => Outcome::Lost(self.explain(run).await?),
            });
        }
        Ok(outcomes)
    }

    async fn all_lost(&self, runs: &[RunId]) -> Result<Vec<Outcome<Taken>>, Error> {
        let mut told = Vec::with_capacity(runs.len());
        for &run in runs {
            told.push(Outcome::Lost(self.explain(run).await?));
        }
        Ok(told)
    }
}

/// What a worker must know of a run that was just given to it.
async fn look(tx: &mut Tx, run: RunId) -> Result<Taken, Error> {
    let rows = tx.rows(&SHOW, params! { run_id: run.0 }).await?;
    Taken::from_row(rows.first().ok_or_else(|| Error::broken("a run vanished"))?)
}

async fn assign_one(tx: &mut Tx, batch: &AssignBatch<'_>, wanted: &Wanted) -> Result<bool, Error> {
    if !take_due_and_hold(tx, wanted.run, wanted.exclusive, batch.token).await? {
        return Ok(false);
    }
    let guard = params! {
        run_id: wanted.run.0,
        attempt_no: wanted.attempt_no,
        worker_id: uuid(batch.worker.as_bytes()),
        token: uuid(batch.token.as_bytes()),
        epoch: batch.epoch.0,
        assign_ahead: micros(batch.assign_ahead),
        reassign_after: micros(batch.reassign_after),
    };
    let hit = tx.execute(&ASSIGN, guard).await? == 1;
    if !hit {
        put_back(tx, wanted.run, wanted.exclusive, batch.token).await?;
    }
    Ok(hit)
}

async fn claim_one(
    tx: &mut Tx,
    batch: &ClaimBatch<'_>,
    run: RunId,
    exclusive: bool,
) -> Result<bool, Error> {
    if !take_due_and_hold(tx, run, exclusive, batch.token).await? {
        return Ok(false);
    }
    let guard = params! {
        run_id: run.0,
        worker_id: uuid(batch.worker.as_bytes()),
        token: uuid(batch.token.as_bytes()),
    };
    let hit = tx.execute(&CLAIM, guard).await? == 1;
    if !hit {
        put_back(tx, run, exclusive, batch.token).await?;
    }
    Ok(hit)
}

/// The due row, then the hold: a run that gets no hold keeps its due row.
async fn take_due_and_hold(
    tx: &mut Tx,
    run: RunId,
    exclusive: bool,
    token: LeaseToken,
) -> Result<bool, Error> {
    if tx.execute(&DUE_TAKE, params! { run_id: run.0 }).await? == 0 {
        return Ok(false);
    }
    if exclusive && !lease::take_hold(tx, &HOLD_TAKE, run, token).await? {
        tx.execute(&DUE_PUT, params! { run_id: run.0 }).await?;
        return Ok(false);
    }
    Ok(true)
}

/// The run did not match after all: it waits on as it did.
async fn put_back(
    tx: &mut Tx,
    run: RunId,
    exclusive: bool,
    token: LeaseToken,
) -> Result<(), Error> {
    let rows = tx.rows(&SHOW, params! { run_id: run.0 }).await?;
    let Some(row) = rows.first().map(Run::from_row).transpose()? else { return Ok(()) };
    if exclusive {
        lease::give_hold(tx, &row, token).await?;
    }
    match row.state {
        RunState::Pending | RunState::Orphaned | RunState::RetryWait => {
            tx.execute(&DUE_PUT, params! { run_id: run.0 }).await.map(drop)
        }
        _ => Err(Error::broken(format!("run {run} had a due row but is {}", row.state))),
    }
}
