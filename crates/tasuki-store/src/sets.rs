//! The hot path on SQLite and MySQL/MariaDB: a batch is a few statements over a JSON list instead of
//! a few statements for each run. What must come out is the same as in `hot`; the contract tests say so.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tasuki_core::{LeaseToken, RunId};

use crate::create::columns;
use crate::db::{Params, Row, Tx, params};
use crate::finish::Together;
use crate::sql::{Dialect, Sql, sql};
use crate::{ClaimBatch, Created, Ending, Error, NewRun, Store, Taken, check, lease, uuid};

static INSERT: Sql = sql!("run/insert", ".sqlite", ".postgres", ".mysql").without(ON_CONFLICT);
static DUE_PUT: Sql = sql!("due/put_between", "", "", ".mysql");
static DUE_TAKE: Sql = sql!("due/take_many", ".sqlite", ".mysql", ".mysql");
static CLAIM: Sql = sql!("run/claim_many", ".sqlite", ".mysql", ".mysql");
static TAKEN: Sql = sql!("run/taken", ".sqlite", ".mysql", ".mysql");
static RUNNING: Sql = sql!("run/running", ".sqlite", ".mysql", ".mysql");
static SUCCEED: Sql = sql!("run/succeed_many", ".sqlite", ".mysql", ".mysql");
static STAT_ADD: Sql = sql!("stat/add_many", ".sqlite", ".mysql", ".mysql");
static STEP: Sql = sql!("run/step", ".mysql", ".mysql", ".mysql");
static HOLD_GIVE: Sql = sql!("hold/give");

const ON_CONFLICT: &str = "on conflict do nothing\nreturning id";

/// The most runs in one insert: SQLite takes 32,766 parameters, MySQL 65,535.
const MOST: usize = 256;

/// Parts whose lengths are powers of two: so there are few inserts to keep ready. One that is prepared
/// for once is closed again, and what is sent right after a close waits for 40 ms on MySQL.
fn in_powers_of_two<T>(mut all: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let length = 1 << all.len().checked_ilog2()?;
        let (part, rest) = all.split_at(length);
        all = rest;
        Some(part)
    })
}

/// Makes runs that have no key, which therefore cannot exist already. Their ids follow one another:
/// SQLite has one writer, and MySQL reserves the ids of an insert of known length together. Not so in a
/// cluster where each server hands out every second id or fewer: there no due row is put, and `None` says
/// that this must be undone and done run by run.
pub(crate) async fn insert_plain(
    tx: &mut Tx<'_>,
    runs: &[NewRun<'_>],
) -> Result<Option<Vec<Created>>, Error> {
    let mut created = Vec::with_capacity(runs.len());
    for some in trips(runs) {
        let (first, last) = insert_rows(tx, some).await?;
        let waiting = tx.execute(&DUE_PUT, params! { first: first, last: last }).await?;
        if waiting != some.len() as u64 {
            return Ok(None);
        }
        created.extend((first..=last).map(|id| Created { run: RunId(id), existed: false }));
    }
    Ok(Some(created))
}

/// The same, carried at once: no due row is put, and none taken. Returns their ids.
pub(crate) async fn insert_begun(
    tx: &mut Tx<'_>,
    batch: &ClaimBatch<'_>,
    runs: &[NewRun<'_>],
) -> Result<Option<Vec<i64>>, Error> {
    if tx.dialect() == Dialect::MySql {
        let step = tx.rows(&STEP, params! {}).await?;
        if step.first().map(|row| row.int("step")).transpose()? != Some(1) {
            return Ok(None);
        }
    }
    let mut ids = Vec::with_capacity(runs.len());
    for some in trips(runs) {
        let (first, last) = insert_rows(tx, some).await?;
        ids.extend(first..=last);
    }
    let moved = start(tx, batch, ids.clone()).await?;
    Ok((moved == runs.len() as u64).then_some(ids))
}

/// What travels in one insert each.
fn trips<'r, 'j>(runs: &'r [NewRun<'j>]) -> impl Iterator<Item = &'r [NewRun<'j>]> {
    let trips = check::trips(runs, MOST, |run| 200 + run.args.as_ref().map_or(0, String::len));
    trips.into_iter().flat_map(in_powers_of_two)
}

/// The first and the last id.
async fn insert_rows(tx: &mut Tx<'_>, runs: &[NewRun<'_>]) -> Result<(i64, i64), Error> {
    let rows: Vec<Params<'_>> = runs.iter().map(columns).collect();
    let first = tx.insert_many(&INSERT, rows).await?;
    Ok((first, first + runs.len() as i64 - 1))
}

/// Takes and starts runs that need no hold and whose due rows are locked. Returns how many it really
/// moved: fewer than asked for is for the caller to undo.
pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    batch: &ClaimBatch<'_>,
    places: &[(i64, RunId)],
) -> Result<u64, Error> {
    let list: Vec<Value> = places.iter().map(|(due_at, run)| json!([due_at, run.0])).collect();
    let due = params! { lane: batch.lane, places: Value::Array(list).to_string() };
    let taken = tx.execute(&DUE_TAKE, due).await?;
    let ids = places.iter().map(|(_, run)| run.0).collect();
    Ok(taken.min(start(tx, batch, ids).await?))
}

/// Moves runs that nobody else can take. Returns how many it moved.
async fn start(tx: &mut Tx<'_>, batch: &ClaimBatch<'_>, ids: Vec<i64>) -> Result<u64, Error> {
    let guard = params! {
        ids: ids,
        worker_id: uuid(batch.worker.as_bytes()),
        token: uuid(batch.token.as_bytes()),
    };
    tx.execute(&CLAIM, guard).await
}

/// What a worker must know of the runs it was given, soonest first.
pub(crate) async fn taken(tx: &mut Tx<'_>, runs: &[i64]) -> Result<Vec<Taken>, Error> {
    let rows = tx.listed(&TAKEN, params! { ids: runs.to_vec() }).await?;
    let mut taken = rows.iter().map(Taken::from_row).collect::<Result<Vec<_>, _>>()?;
    taken.sort_by_key(|taken| (taken.due_at, taken.id));
    match taken.len() == runs.len() {
        true => Ok(taken),
        false => Err(Error::broken("a run vanished")),
    }
}

impl Store {
    /// Ends runs that succeeded, and closes the leases of which the worker says that nothing else is under
    /// them, where that is so. Leases are locked before their runs, as everywhere.
    pub(crate) async fn succeed_as_a_set(
        &self,
        good: &[&Ending],
        closing: &[LeaseToken],
    ) -> Result<Together, Error> {
        let mut tx = self.db.begin().await?;
        let mut leases = Vec::with_capacity(closing.len());
        for token in closing {
            leases.extend(lease::lock(&mut tx, *token).await?);
        }
        let ids: Vec<i64> = good.iter().map(|ending| ending.run.0).collect();
        let rows = tx.listed(&RUNNING, params! { ids: ids }).await?;
        let mut left = HashMap::with_capacity(rows.len());
        for row in &rows {
            left.insert(RunId(row.int("id")?), token_of(row)?);
        }
        let ends: Vec<&Ending> = good
            .iter()
            .copied()
            .filter(|ending| left.remove(&ending.run) == Some(Some(ending.token)))
            .collect();
        if ends.is_empty() {
            tx.rollback().await?;
            return Ok(Together::default());
        }
        let told = ends.iter().map(|ending| told(ending)).collect();
        let told = params! { ends: Value::Array(told).to_string() };
        if tx.execute(&SUCCEED, told).await? != ends.len() as u64 {
            return Err(Error::broken("a run that is held still did not end"));
        }
        let ended: HashSet<RunId> = ends.iter().map(|ending| ending.run).collect();
        let mut ids: Vec<i64> = ended.iter().map(|run| run.0).collect();
        ids.sort_unstable();
        tx.execute(&STAT_ADD, params! { ids: ids }).await?;
        for hold in holds(&rows, &ended)? {
            tx.execute(&HOLD_GIVE, hold.columns()).await?;
        }
        let mut closed = HashSet::new();
        for lease in &leases {
            if lease.runs.iter().all(|run| ended.contains(run)) {
                lease::close(&mut tx, lease.token).await?;
                closed.insert(lease.token);
            } else if lease::close_if_empty(&mut tx, lease).await? {
                closed.insert(lease.token);
            }
        }
        tx.commit().await?;
        let ended = ends.iter().map(|ending| (ending.run, ending.token)).collect();
        Ok(Together { ended, closed })
    }
}

fn token_of(row: &Row) -> Result<Option<LeaseToken>, Error> {
    let token = row.opt_uuid("lease_token")?;
    Ok(token.map(|token| LeaseToken::from_bytes(token.into_bytes())))
}

/// How a run ended; what is not there is left out, and becomes null.
fn told(Ending { run, finish, .. }: &Ending) -> Value {
    let mut end = serde_json::Map::from_iter([("id".to_owned(), json!(run.0))]);
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            end.insert(name.to_owned(), value);
        }
    };
    add("exit_code", finish.exit_code.map(Value::from));
    add("result", finish.result.clone().map(Value::from));
    add("rows_affected", finish.rows_affected.map(Value::from));
    add("log_ref", finish.log_ref.clone().map(Value::from));
    Value::Object(end)
}

/// A hold, by its key.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    job: i64,
    scope: (String, String),
    run: i64,
    token: Option<LeaseToken>,
}

impl Hold {
    fn columns(self) -> Params<'static> {
        params! {
            job_id: self.job,
            scope_kind: self.scope.0,
            scope_id: self.scope.1,
            run_id: self.run,
            token: self.token.map(|token| uuid(token.as_bytes())),
        }
    }
}

/// The holds of runs that ended, in the order in which everybody locks several.
fn holds(rows: &[Row], ended: &HashSet<RunId>) -> Result<Vec<Hold>, Error> {
    let mut holds = Vec::new();
    for row in rows {
        let run = row.int("id")?;
        if row.int("exclusive")? != 0 && ended.contains(&RunId(run)) {
            let scope = (row.text("scope_kind")?, row.text("scope_id")?);
            holds.push(Hold { job: row.int("job_id")?, scope, run, token: token_of(row)? });
        }
    }
    holds.sort_unstable();
    Ok(holds)
}
