//! T1, T1c and T2: runs are given, taken and started.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, EventId, JobId, LeaseToken, Origin, RunId, RunState, Scope, WorkerId};

use crate::cluster::{leader, worker};
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::run::due::{self, Place};
use crate::run::{lease, sets};
use crate::run::{micros, timestamp};
use crate::{Error, Outcome, Run, Store, uuid};

static DUE_PUT: Sql = sql!("due/put");
static HOLD_TAKE: Sql = sql!("hold/take", ".sqlite", ".postgres", ".mysql");
static LEASE_SHOW: Sql = sql!("lease/show");
static LEASE_TOUCH: Sql = sql!("lease/touch");
static ASSIGN: Sql = sql!("run/assign");
static START: Sql = sql!("run/start");
static EARLY: Sql = sql!("run/early");
static SHOW: Sql = sql!("run/show");

/// The most runs one claim takes, whatever it asks for: a longer transaction serves nobody.
pub const MOST_CLAIMED: u32 = 1_000;
/// How often something is claimed that each time was in another's hand, and how long it is waited in between: whoever has it takes
/// some of what waits there, and leaves the rest.
pub(crate) const LOOKS: usize = 5;
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// The place before all others in a lane.
pub(crate) const BEGINNING: (Timestamp, RunId) = (Timestamp::MIN, RunId(0));

/// A run that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRun {
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
    pub runs: &'a [DueRun],
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
    /// The lease, made by the caller; the same token again after a lost answer, once the first can no
    /// longer be under way.
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
    /// The columns that say it.
    const COLUMNS: [&str; 12] = [
        "id",
        "job_id",
        "job_version",
        "origin",
        "scope_kind",
        "scope_id",
        "scheduled_for",
        "next_retry_at",
        "attempt_no",
        "tries",
        "event_id",
        "args",
    ];

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        Self::read(row, row.places(Self::COLUMNS)?)
    }

    /// Many, of which it is asked once where their columns are.
    pub(crate) fn from_rows(rows: &[Row]) -> Result<Vec<Self>, Error> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let places = first.places(Self::COLUMNS)?;
        rows.iter().map(|row| Self::read(row, places)).collect()
    }

    fn read(row: &Row, places: [usize; 12]) -> Result<Self, Error> {
        let [id, job, version, origin, kind, scope, scheduled, retry, attempt, tries, event, args] =
            places;
        let scheduled_for = row.int(scheduled)?;
        let due_at = row.opt_int(retry)?.unwrap_or(scheduled_for);
        Ok(Self {
            id: RunId(row.int(id)?),
            job: JobId(row.int(job)?),
            job_version: row.int(version)?,
            origin: row.text(origin)?.parse()?,
            scope: Scope::stored(&row.text(kind)?, &row.text(scope)?)?,
            scheduled_for: timestamp(scheduled_for)?,
            due_at: timestamp(due_at)?,
            attempt_no: row.int(attempt)? as u32,
            tries: row.int(tries)? as u32,
            event: row.opt_int(event)?.map(EventId),
            args: row.opt_text(args)?,
        })
    }
}

/// What was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// These run now, under the token.
    Runs(Vec<Taken>),
    /// The token was used already: the first claim landed, renew its lease to learn what it took.
    Before,
}

impl Store {
    /// T1: gives runs to a worker. Returns those it really gave.
    pub async fn assign(&self, batch: &AssignBatch<'_>) -> Result<Vec<RunId>, Error> {
        if self.dialect() == Dialect::Postgres {
            return self.assign_in_one_trip(batch).await;
        }
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
    pub async fn claim(&self, batch: &ClaimBatch<'_>) -> Result<ClaimResult, Error> {
        self.claim_after(batch, BEGINNING).await
    }

    /// The same from behind a place in the lane, for whoever has just claimed what was before it: where much was
    /// claimed, a database takes its time to find the first that is left.
    pub async fn claim_after(
        &self,
        batch: &ClaimBatch<'_>,
        place: (Timestamp, RunId),
    ) -> Result<ClaimResult, Error> {
        let batch = &ClaimBatch { most: batch.most.min(MOST_CLAIMED), ..batch.clone() };
        let after = after(place);
        if self.dialect() == Dialect::Postgres {
            return self.claim_in_one_trip(batch, after).await;
        }
        if self.dialect() == Dialect::Sqlite {
            match self.claim_plain(batch, &after).await {
                Ok(runs) if runs.is_empty() => {}
                Ok(runs) => return Ok(ClaimResult::Runs(runs)),
                Err(error) if error.is_conflict() => return Ok(ClaimResult::Before),
                Err(error) if error.gave_up() => {}
                Err(error) => return Err(error),
            }
        }
        // Nothing is due, or it was claimed before, or something needs a hold or is to be alone.
        for _ in 0..LOOKS {
            if let Some(claimed) = self.claim_with_looks(batch, &after).await? {
                return Ok(claimed);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        self.nothing_claimed(batch.token).await
    }

    /// `None`: what could be claimed is in others' hands.
    async fn claim_with_looks(
        &self,
        batch: &ClaimBatch<'_>,
        after: &Params<'static>,
    ) -> Result<Option<ClaimResult>, Error> {
        let mut tx = self.db.begin().await?;
        if !worker::look(&mut tx, batch.worker).await?.is_some_and(|w| w.is_active()) {
            tx.rollback().await?;
            return self.nothing_claimed(batch.token).await.map(Some);
        }
        let Some(rows) = due::lock(&mut tx, batch, after).await? else {
            tx.rollback().await?;
            return Ok(None);
        };
        let taken = match claim_rows(&mut tx, batch, &rows).await {
            Ok(taken) => taken,
            Err(error) if error.is_conflict() => {
                tx.rollback().await?;
                return Ok(Some(ClaimResult::Before));
            }
            Err(error) => return Err(error),
        };
        if taken.is_empty() {
            tx.commit().await?;
            return self.nothing_claimed(batch.token).await.map(Some);
        }
        let runs = sets::taken(&mut tx, &taken).await?;
        tx.commit().await?;
        Ok(Some(ClaimResult::Runs(runs)))
    }

    /// Nothing was there to claim; or it was, and this very claim has taken it before.
    pub(crate) async fn nothing_claimed(&self, token: LeaseToken) -> Result<ClaimResult, Error> {
        let rows = self.db.rows(&LEASE_SHOW, params! { token: uuid(token.as_bytes()) }).await?;
        Ok(if rows.is_empty() { ClaimResult::Runs(Vec::new()) } else { ClaimResult::Before })
    }

    /// T2: starts what was assigned. Only what comes back as applied may be launched.
    pub async fn start(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Vec<Outcome<Taken>>, Error> {
        // Locked in one order by all.
        let mut sorted = runs.to_vec();
        sorted.sort_unstable();
        let started = match self.dialect() {
            Dialect::Postgres => self.start_in_one_trip(worker, token, &sorted, lease_ttl).await?,
            _ => self.start_one_by_one(worker, token, &sorted, lease_ttl).await?,
        };
        let leased = started.is_some();
        let mut started = started.unwrap_or_default();
        let mut told = Vec::with_capacity(runs.len());
        for &run in runs {
            told.push(match started.remove(&run) {
                Some(taken) => Outcome::Applied(taken),
                None if leased && self.is_early(worker, token, run).await? => Outcome::NotYet,
                None => Outcome::Lost(self.explain(run).await?),
            });
        }
        Ok(told)
    }

    /// Starts what can be started. `None`: the lease is not there, or its worker was cut off.
    async fn start_one_by_one(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Option<HashMap<RunId, Taken>>, Error> {
        let mut tx = self.db.begin().await?;
        let attached = worker::look(&mut tx, worker).await?.is_some_and(|w| w.is_attached());
        let mut mine = carrier(worker, token);
        mine.push(("ttl", micros(lease_ttl).into()));
        // The lease first: without its row the start is lost, whatever the run says.
        if !attached || tx.execute(&LEASE_TOUCH, mine).await? == 0 {
            tx.rollback().await?;
            return Ok(None);
        }
        let mut started = Vec::with_capacity(runs.len());
        for run in runs {
            let mut guard = carrier(worker, token);
            guard.push(("run_id", run.0.into()));
            if tx.execute(&START, guard).await? == 1 {
                started.push(run.0);
            }
        }
        let taken = sets::taken(&mut tx, &started).await?;
        tx.commit().await?;
        Ok(Some(taken.into_iter().map(|taken| (taken.id, taken)).collect()))
    }

    /// Whether a start that did not match was merely too early.
    async fn is_early(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        run: RunId,
    ) -> Result<bool, Error> {
        let mut guard = carrier(worker, token);
        guard.push(("run_id", run.0.into()));
        Ok(!self.db.rows(&EARLY, guard).await?.is_empty())
    }
}

/// Behind a place in a lane.
pub(crate) fn after((at, run): (Timestamp, RunId)) -> Params<'static> {
    params! { after_at: at.as_microsecond(), after_run: run.0 }
}

fn carrier(worker: WorkerId, token: LeaseToken) -> Params<'static> {
    params! { worker_id: uuid(worker.as_bytes()), token: uuid(token.as_bytes()) }
}

/// Claims what was locked, under a lease. If the first was once lost together with others, it alone; and what
/// gets no hold goes on waiting.
async fn claim_rows(
    tx: &mut Tx<'_>,
    batch: &ClaimBatch<'_>,
    rows: &[Row],
) -> Result<Vec<i64>, Error> {
    let alone = rows.first().map(|row| row.int("alone")).transpose()? == Some(1);
    let mut room = if alone { 1 } else { i64::from(batch.most) };
    let mut fit = Vec::with_capacity(rows.len());
    for row in rows.iter().take(if alone { 1 } else { rows.len() }) {
        let run = RunId(row.int("run_id")?);
        let passed_over = room == 0 || row.int("alone")? == 1 && !alone;
        let free = row.int("exclusive")? == 0;
        if !passed_over && (free || lease::take_hold(tx, &HOLD_TAKE, run, batch.token).await?) {
            let place = Place::up_to(room, row)?;
            room -= place.taken;
            fit.push(place);
        }
    }
    if !fit.is_empty() && !sets::claim(tx, batch, &fit).await? {
        return Err(Error::broken("a run was moved although its due row is locked"));
    }
    Ok(fit.into_iter().flat_map(Place::ids).collect())
}

async fn assign_one(
    tx: &mut Tx<'_>,
    batch: &AssignBatch<'_>,
    wanted: &DueRun,
) -> Result<bool, Error> {
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

/// The due row, then the hold: a run that gets no hold keeps its due row.
async fn take_due_and_hold(
    tx: &mut Tx<'_>,
    run: RunId,
    exclusive: bool,
    token: LeaseToken,
) -> Result<bool, Error> {
    if !due::take(tx, run).await? {
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
    tx: &mut Tx<'_>,
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
