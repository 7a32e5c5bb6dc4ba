//! The hot path on PostgreSQL: whole batches in one round trip, each statement a transaction; where many are submitted, their
//! ids are drawn in another before.
//!
//! The other databases make the same moves row by row in one transaction; what both must do stands
//! in the contract tests. Transitions go by primary key (an `unnest` join), so that the planner has
//! nothing to choose.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId, WorkerId};

use crate::db::sql::{Sql, sql};
use crate::db::{Db, Params, Row, Tx, params};
use crate::run::create::{BY_KEY, columns, in_key_order, key};
use crate::run::due;
use crate::run::finish::Together;
use crate::run::micros;
use crate::run::take::{BETWEEN_LOOKS, LOOKS};
use crate::{
    AssignBatch, ClaimBatch, ClaimResult, Created, AttemptReport, Error, NewRun, Renewed, RenewedRun, Store,
    Taken, uuid,
};

static CLAIM: Sql = sql!("run/claim_batch", ".postgres", ".postgres", ".postgres");
static ASSIGN: Sql = sql!("run/assign_batch", ".postgres", ".postgres", ".postgres");
static START: Sql = sql!("run/start_batch", ".postgres", ".postgres", ".postgres");
static RENEW: Sql = sql!("lease/renew_batch", ".postgres", ".postgres", ".postgres");
static SUCCEED: Sql = sql!("run/succeed_batch", ".postgres", ".postgres", ".postgres");
static INSERT: Sql = sql!("run/insert_batch", ".postgres", ".postgres", ".postgres");
static DRAW: Sql = sql!("run/draw", ".postgres", ".postgres", ".postgres");
static INSERT_ALIKE: Sql = sql!("run/insert_alike", ".postgres", ".postgres", ".postgres");

impl Store {
    pub(crate) async fn claim_in_one_trip(
        &self,
        batch: &ClaimBatch<'_>,
        after: Params<'_>,
    ) -> Result<ClaimResult, Error> {
        let asked = params! {
            lane: batch.lane,
            most: batch.most,
            worker_id: uuid(batch.worker.as_bytes()),
            token: uuid(batch.token.as_bytes()),
            ttl: micros(batch.lease_ttl),
        };
        let asked = [asked, after].concat();
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            let rows = match self.db.write(&CLAIM, asked.clone()).await {
                Ok(rows) => rows,
                Err(error) if error.is_conflict() => return Ok(ClaimResult::Before),
                Err(error) => return Err(error),
            };
            match rows.first().map(|row| row.opt_int("id")).transpose()? {
                None => break,
                Some(None) => continue,
                Some(Some(_)) => {}
            }
            let mut runs = Taken::from_rows(&rows)?;
            runs.sort_by_key(|taken| (taken.due_at, taken.id));
            return Ok(ClaimResult::Runs(runs));
        }
        self.nothing_claimed(batch.token).await
    }

    pub(crate) async fn assign_in_one_trip(
        &self,
        batch: &AssignBatch<'_>,
    ) -> Result<Vec<RunId>, Error> {
        let asked = params! {
            epoch: batch.epoch.0,
            worker_id: uuid(batch.worker.as_bytes()),
            token: uuid(batch.token.as_bytes()),
            ids: batch.runs.iter().map(|wanted| wanted.run.0).collect::<Vec<_>>(),
            attempts: batch.runs.iter().map(|w| i64::from(w.attempt_no)).collect::<Vec<_>>(),
            assign_ahead: micros(batch.assign_ahead),
            reassign_after: micros(batch.reassign_after),
        };
        let rows = self.db.write(&ASSIGN, asked).await?;
        let mut given = HashSet::new();
        for row in &rows {
            if row.int("free")? < 0 {
                return Err(Error::Fenced(batch.epoch));
            }
            given.extend(row.opt_int("id")?.map(RunId));
        }
        Ok(batch.runs.iter().map(|wanted| wanted.run).filter(|run| given.contains(run)).collect())
    }

    /// Starts what can be started. `None`: the lease is not there, or its worker was cut off.
    pub(crate) async fn start_in_one_trip(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Option<HashMap<RunId, Taken>>, Error> {
        let asked = params! {
            worker_id: uuid(worker.as_bytes()),
            token: uuid(token.as_bytes()),
            ids: runs.iter().map(|run| run.0).collect::<Vec<_>>(),
            ttl: micros(lease_ttl),
        };
        let rows = self.db.write(&START, asked).await?;
        let mut started = HashMap::with_capacity(rows.len());
        for row in &rows {
            if row.int("leased")? == 0 {
                return Ok(None);
            }
            if row.opt_int("id")?.is_some() {
                let taken = Taken::from_row(row)?;
                started.insert(taken.id, taken);
            }
        }
        Ok(Some(started))
    }

    pub(crate) async fn renew_in_one_trip(
        &self,
        worker: WorkerId,
        tokens: &[LeaseToken],
        lease_ttl: Duration,
    ) -> Result<Vec<Renewed>, Error> {
        let asked = params! {
            worker_id: uuid(worker.as_bytes()),
            tokens: tokens.iter().map(|token| uuid(token.as_bytes())).collect::<Vec<_>>(),
            ttl: micros(lease_ttl),
        };
        let mut held: HashMap<LeaseToken, (Vec<RenewedRun>, bool)> = HashMap::new();
        for row in self.db.write(&RENEW, asked).await? {
            let token = LeaseToken::from_bytes(row.uuid("token")?.into_bytes());
            let detached = row.int("attached")? == 0;
            let (runs, _) = held.entry(token).or_insert_with(|| (Vec::new(), detached));
            if row.opt_int("id")?.is_some() {
                runs.push(RenewedRun::from_row(&row)?);
            }
        }
        let told = tokens.iter().map(|token| match held.get(token) {
            Some((runs, detached)) => Renewed::Held { runs: runs.clone(), detached: *detached },
            None => Renewed::Gone,
        });
        Ok(told.collect())
    }

    /// Ends runs that succeeded, and closes the leases of which the worker says that nothing else is under
    /// them, where that is so.
    pub(crate) async fn succeed_in_one_trip(
        &self,
        good: &[&AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<Together, Error> {
        let parts = stretches(good);
        let firsts: Vec<&AttemptReport> = parts.iter().map(|part| part[0]).collect();
        let told = params! {
            count: good.len() as i64,
            closing: closing.iter().map(|token| uuid(token.as_bytes())).collect::<Vec<_>>(),
            firsts: firsts.iter().map(|first| first.run.0).collect::<Vec<_>>(),
            lasts: parts.iter().map(|part| part[part.len() - 1].run.0).collect::<Vec<_>>(),
            tokens: firsts.iter().map(|first| uuid(first.token.as_bytes())).collect::<Vec<_>>(),
            exit_codes: sparse(firsts.iter().map(|first| first.finish.exit_code)),
            results: sparse(firsts.iter().map(|first| first.finish.result.clone())),
            rows_affected: sparse(firsts.iter().map(|first| first.finish.rows_affected)),
            log_refs: sparse(firsts.iter().map(|first| first.finish.log_ref.clone())),
        };
        let rows = self.db.write(&SUCCEED, [told, printed(good)].concat()).await?;
        let row = rows.first().ok_or_else(|| Error::broken("an end was not answered"))?;
        let closed = row.opt_text("closed")?.unwrap_or_default();
        let closed = closed.split_whitespace().map(token).collect::<Result<_, _>>()?;
        if row.int("ended")? == good.len() as i64 {
            let ended = good.iter().map(|ending| (ending.run, ending.token)).collect();
            return Ok(Together { ended, closed });
        }
        let which = row.opt_text("which")?.unwrap_or_default();
        let mut ended = HashSet::new();
        for pair in which.split_whitespace() {
            let (run, under) = pair.split_once('/').unwrap_or_default();
            ended.insert((RunId(run_id(run)?), token(under)?));
        }
        Ok(Together { ended, closed })
    }

    pub(crate) async fn create_in_one_trip(
        &self,
        new: &[NewRun<'_>],
    ) -> Result<Vec<Created>, Error> {
        create(Trip::Alone(&self.db), new).await
    }
}

/// Those whose ids follow one another, under one token, and of which the same is told.
fn stretches<'g, 'e>(good: &'g [&'e AttemptReport]) -> Vec<&'g [&'e AttemptReport]> {
    let follows = |one: &&AttemptReport, next: &&AttemptReport| {
        one.run.0 + 1 == next.run.0 && one.token == next.token && one.finish.tells_as(&next.finish)
    };
    good.chunk_by(follows).collect()
}

/// What those of them printed that have printed anything.
fn printed(good: &[&AttemptReport]) -> Params<'static> {
    let logs: Vec<_> =
        good.iter().filter_map(|end| Some((end.token, end.printed.as_ref()?))).collect();
    let (bytes, bodies): (Vec<i64>, Vec<String>) = logs.iter().map(|(_, log)| log.chunk()).unzip();
    params! {
        printers: logs.iter().map(|(_, log)| log.run.0).collect::<Vec<_>>(),
        printed_in: logs.iter().map(|(_, log)| i64::from(log.attempt_no)).collect::<Vec<_>>(),
        printed_under: logs.iter().map(|(token, _)| uuid(token.as_bytes())).collect::<Vec<_>>(),
        lines_counts: logs.iter().map(|(_, log)| log.lines.len() as i64).collect::<Vec<_>>(),
        bytes: bytes,
        bodies: bodies.into_iter().map(Some).collect::<Vec<_>>(),
    }
}

/// Where a statement goes: by itself, or in a transaction.
pub(crate) enum Trip<'t, 'a> {
    Alone(&'t Db),
    Within(&'t mut Tx<'a>),
}

impl Trip<'_, '_> {
    async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        match self {
            Self::Alone(db) => db.write(sql, params).await,
            Self::Within(tx) => tx.rows(sql, params).await,
        }
    }

    /// The first of so many ids that follow one another, where there are enough of them to wait together. Two that draw at
    /// once while they insert get them in turns, and neither has any that follow one another; and in a transaction of the
    /// application others would have to wait until it ends.
    async fn draw(&mut self, count: i64) -> Result<Option<i64>, Error> {
        match self {
            Self::Alone(db) if count >= due::STRETCH => {
                let rows = db.write(&DRAW, params! { count: count }).await?;
                rows.first().map_or(Ok(None), |row| row.opt_int("first"))
            }
            Self::Alone(_) | Self::Within(_) => Ok(None),
        }
    }
}

/// Makes runs with one statement, once it has ids for them. One that exists already is found, not made.
pub(crate) async fn create(
    mut trip: Trip<'_, '_>,
    new: &[NewRun<'_>],
) -> Result<Vec<Created>, Error> {
    if let Some(first) = new.first().filter(|first| new.iter().all(|run| run.is_like(first))) {
        return create_alike(trip, first, new).await;
    }
    let runs: Vec<&NewRun<'_>> = in_key_order(new).into_iter().map(|at| &new[at]).collect();
    let texts =
        |text: &dyn Fn(&NewRun<'_>) -> Option<String>| sparse(runs.iter().map(|run| text(run)));
    let ints = |int: &dyn Fn(&NewRun<'_>) -> Option<i64>| sparse(runs.iter().map(|run| int(run)));
    // What all runs of a batch share travels once, what none has not at all.
    let words = |word: &dyn for<'r> Fn(&'r NewRun<'_>) -> &'r str| -> Vec<Option<String>> {
        let first = runs.first().map(|run| word(run));
        let differ = runs.iter().any(|run| Some(word(run)) != first);
        let told = if differ { &runs[..] } else { &runs[..runs.len().min(1)] };
        told.iter().map(|run| Some(word(run).to_owned())).collect()
    };
    let numbers = |number: &dyn Fn(&NewRun<'_>) -> i64| -> Vec<i64> {
        let first = runs.first().map(|run| number(run));
        let differ = runs.iter().any(|run| Some(number(run)) != first);
        let told = if differ { &runs[..] } else { &runs[..runs.len().min(1)] };
        told.iter().map(|run| number(run)).collect()
    };
    let row = params! {
        count: runs.len() as i64,
        job_ids: numbers(&|run| run.job.job.0),
        job_versions: numbers(&|run| run.job.version),
        origins: words(&|run| run.origin.as_str()),
        scope_kinds: words(&|run| run.scope.kind()),
        scope_ids: words(&|run| run.scope.id()),
        lanes: words(&|run| run.lane()),
        exclusives: numbers(&|run| i64::from(run.job.spec.concurrency.needs_hold())),
        max_attempts: numbers(&|run| i64::from(run.job.spec.max_attempts)),
        scheduled: ints(&|run| run.scheduled_for.map(Timestamp::as_microsecond)),
        slots: texts(&|run| run.slot.map(|slot| slot.to_string())),
        keys: texts(&|run| run.idempotency_key.clone()),
        events: ints(&|run| run.event.map(|event| event.0)),
        reruns: ints(&|run| run.rerun_of.map(|run| run.0)),
        args: texts(&|run| run.args.clone()),
        skips: ints(&|run| run.skip_at.map(Timestamp::as_microsecond)),
        expires: ints(&|run| run.expires_at.map(Timestamp::as_microsecond)),
    };
    let made = trip.rows(&INSERT, row).await?;
    let mut plain = VecDeque::new();
    let mut keyed = HashMap::new();
    for row in &made {
        let run = RunId(row.int("id")?);
        match (row.opt_text("slot")?, row.opt_text("idempotency_key")?) {
            (None, None) => plain.push_back(run),
            (slot, key) => {
                let scope = (row.text("scope_kind")?, row.text("scope_id")?);
                keyed.insert((row.int("job_id")?, scope, slot, key), run);
            }
        }
    }
    let mut created = Vec::with_capacity(runs.len());
    for new in new {
        let slot = new.slot.map(|slot| slot.to_string());
        let made = match slot.is_none() && new.idempotency_key.is_none() {
            // Rows without a key cannot conflict, so all of them were made, in their order.
            true => plain.pop_front(),
            false => {
                let scope = (new.scope.kind().to_owned(), new.scope.id().to_owned());
                keyed.remove(&(new.job.job.0, scope, slot, new.idempotency_key.clone()))
            }
        };
        created.push(match made {
            Some(run) => Created { run, existed: false },
            None => {
                let rows = trip.rows(&BY_KEY, key(new)).await?;
                let row = rows
                    .first()
                    .ok_or_else(|| Error::broken("a run was neither made nor found"))?;
                Created { run: RunId(row.int("id")?), existed: true }
            }
        });
    }
    Ok(created)
}

/// The same for runs that are like the first of them.
async fn create_alike(
    mut trip: Trip<'_, '_>,
    first: &NewRun<'_>,
    new: &[NewRun<'_>],
) -> Result<Vec<Created>, Error> {
    let given = sparse(new.iter().map(|run| run.args.clone()));
    let count = new.len() as i64;
    let lists = params! {
        count: count,
        first: trip.draw(count).await?,
        each: first.in_each_row(),
        given: given,
    };
    let rows = trip.rows(&INSERT_ALIKE, [columns(first), lists].concat()).await?;
    let row = rows.first().ok_or_else(|| Error::broken("new runs were not answered"))?;
    let made: Vec<i64> = match row.opt_text("ids")? {
        None => (row.int("first")?..=row.int("last")?).collect(),
        // Somebody else has drawn an id in between.
        Some(ids) => ids.split(' ').map(run_id).collect::<Result<_, _>>()?,
    };
    match made.len() == new.len() {
        true => Ok(made.into_iter().map(|id| Created { run: RunId(id), existed: false }).collect()),
        false => Err(Error::broken("not all runs were made")),
    }
}

fn run_id(text: &str) -> Result<i64, Error> {
    text.parse().map_err(|_| Error::broken(format!("{text:?} is no run")))
}

fn token(text: &str) -> Result<LeaseToken, Error> {
    let token: uuid::Uuid =
        text.parse().map_err(|_| Error::broken(format!("{text:?} is no token")))?;
    Ok(LeaseToken::from_bytes(token.into_bytes()))
}

/// A list of which nothing is there is no list: the database fills it up with nulls.
fn sparse<T>(values: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let mut values: Vec<_> = values.collect();
    let used = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    values.truncate(used);
    values
}
