//! The hot path on SQLite and MySQL/MariaDB: a batch is a few statements over a JSON list instead of
//! a few statements for each run. What must come out is the same as in `hot`; the contract tests say so.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};
use tasuki_core::{LeaseToken, RunId};

use crate::db::sql::{Dialect, Sql, sql, sqlite_script};
use crate::db::{Params, Row, Tx, params};
use crate::run::create::columns;
use crate::run::due::Place;
use crate::run::finish::Together;
use crate::run::lease;
use crate::run::micros;
use crate::{ClaimBatch, Created, AttemptReport, Error, NewRun, Store, Taken, check, uuid};

static INSERT: Sql = sql!("run/insert", ".sqlite", ".postgres", ".mysql").without(ON_CONFLICT);
static DUE_PUT: Sql = sql!("due/put_between", "", "", ".mysql");
static DUE_TAKE: Sql = sql!("due/take_many", ".mysql", ".mysql", ".mysql");
static DUE_CUT: Sql = sql!("due/cut");
static CLAIM: Sql = sql!("run/claim_many", ".sqlite", ".mysql", ".mysql");
static CLAIM_BETWEEN: Sql = sql!("run/claim_between", ".mysql", ".mysql", ".mysql");
static CLAIM_ALL: Sql =
    sqlite_script!("due/take_many.sqlite", "run/claim_many.sqlite", "lease/open_for");
static TAKEN: Sql = sql!("run/taken", ".sqlite", ".mysql", ".mysql");
static TAKEN_BETWEEN: Sql = sql!("run/taken_between", ".mysql", ".mysql", ".mysql");
static RUNNING: Sql = sql!("run/running", ".sqlite", ".mysql", ".mysql");
static HOLDING: Sql = sql!("run/holding", ".sqlite", ".mysql", ".mysql");
static HOLDING_BETWEEN: Sql = sql!("run/holding_between", ".mysql", ".mysql", ".mysql");
static SUCCEED_ALIKE: Sql = sql!("run/succeed_alike", ".sqlite", ".mysql", ".mysql");
static SUCCEED_BETWEEN: Sql = sql!("run/succeed_between", ".mysql", ".mysql", ".mysql");
static SUCCEED: Sql = sql!("run/succeed_many", ".sqlite", ".mysql", ".mysql");
static STEP: Sql = sql!("run/step", ".mysql", ".mysql", ".mysql");
static STAT_ADD: Sql = sql!("stat/add_many", ".sqlite", ".mysql", ".mysql");
static STAT_ADD_BETWEEN: Sql = sql!("stat/add_between", ".mysql", ".mysql", ".mysql");
static HOLD_GIVE: Sql = sql!("hold/give");

const ON_CONFLICT: &str = "on conflict do nothing\nreturning id";

/// From so many runs in a stretch on it pays to move it by itself.
const LONG: usize = 16;
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
        let alike = some.iter().all(|run| run.is_like(&some[0]));
        let each = if alike { some[0].in_each_row() } else { 1 };
        let rows = params! { first: first, last: last, each: each };
        if tx.execute(&DUE_PUT, rows).await? != (some.len() as u64).div_ceil(each as u64) {
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
    let moved = start(tx, batch, &ids).await?;
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

/// Takes and starts runs that need no hold and whose due rows are locked, under a lease of their own. `false`: not all
/// of them were moved, which is for the caller to undo.
pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    batch: &ClaimBatch<'_>,
    places: &[Place],
) -> Result<bool, Error> {
    let ids: Vec<i64> = places.iter().copied().flat_map(Place::ids).collect();
    let (cut, whole): (Vec<&Place>, Vec<&Place>) = places.iter().partition(|place| place.cut);
    let mut all_cut = true;
    for place in cut {
        let place = params! { lane: batch.lane, due_at: place.due_at, run_id: place.run, taken: place.taken };
        all_cut &= tx.execute(&DUE_CUT, place).await? == 1;
    }
    let (rows, runs) = (whole.len() as u64, ids.len() as u64);
    if tx.dialect() == Dialect::Sqlite {
        let instants = || whole.iter().map(|place| place.due_at);
        let all = params! {
            lane: batch.lane,
            first: instants().min(),
            last: instants().max(),
            heads: whole.iter().map(|place| place.run).collect::<Vec<_>>(),
            run_ids: json!(ids).to_string(),
            ids: ids,
            epoch: Option::<i64>::None,
            ttl: micros(batch.lease_ttl),
        };
        let moved = tx.execute(&CLAIM_ALL, [all, guard(batch)].concat()).await?;
        return Ok(all_cut && moved == rows + runs + 1);
    }
    let list = whole.iter().map(|place| json!([place.due_at, place.run])).collect();
    let due = params! { lane: batch.lane, places: Value::Array(list).to_string() };
    let taken = tx.execute(&DUE_TAKE, due).await?;
    let moved = start(tx, batch, &ids).await?;
    let until = lease::Until::Ttl(batch.lease_ttl);
    lease::open(tx, batch.token, batch.worker, None, until, &ids).await?;
    Ok(all_cut && taken == rows && moved == runs)
}

/// Moves runs that nobody else can take. Returns how many it moved.
async fn start(tx: &mut Tx<'_>, batch: &ClaimBatch<'_>, ids: &[i64]) -> Result<u64, Error> {
    move_all(tx, [&CLAIM_BETWEEN, &CLAIM], &guard(batch), ids).await
}

/// Moves these runs with the one statement or the other. Returns how many it moved.
async fn move_all(
    tx: &mut Tx<'_>,
    either: [&Sql; 2],
    told: &Params<'static>,
    ids: &[i64],
) -> Result<u64, Error> {
    let (sql, parts) = parts(tx.dialect(), either, ids);
    let mut moved = 0;
    for part in parts {
        moved += tx.execute(sql, [told.clone(), part].concat()).await?;
    }
    Ok(moved)
}

/// How these runs are told of: stretch by stretch with the first of two statements where they are few stretches, which
/// MySQL does at half the price, or else as a list with the second. SQLite goes by the list in any case.
fn parts<'s>(
    dialect: Dialect,
    [between, listed]: [&'s Sql; 2],
    ids: &[i64],
) -> (&'s Sql, Vec<Params<'static>>) {
    if dialect != Dialect::Sqlite {
        let stretches = stretches(ids);
        if stretches.len() * LONG <= ids.len() {
            let these = |(first, last)| params! { first: first, last: last };
            return (between, stretches.into_iter().map(these).collect());
        }
    }
    (listed, vec![params! { ids: ids.to_vec() }])
}

/// The first and the last of those that follow one another, in their order.
fn stretches(ids: &[i64]) -> Vec<(i64, i64)> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let mut stretches: Vec<(i64, i64)> = Vec::new();
    for id in sorted {
        match stretches.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => stretches.push((id, id)),
        }
    }
    stretches
}

pub(crate) fn guard(batch: &ClaimBatch<'_>) -> Params<'static> {
    params! { worker_id: uuid(batch.worker.as_bytes()), token: uuid(batch.token.as_bytes()) }
}

/// What a worker must know of the runs it was given, soonest first.
pub(crate) async fn taken(tx: &mut Tx<'_>, runs: &[i64]) -> Result<Vec<Taken>, Error> {
    let (sql, parts) = parts(tx.dialect(), [&TAKEN_BETWEEN, &TAKEN], runs);
    let mut taken = Vec::with_capacity(runs.len());
    for part in parts {
        taken.extend(Taken::from_rows(&tx.listed(sql, part).await?)?);
    }
    taken.sort_by_key(|taken| (taken.due_at, taken.id));
    match taken.len() == runs.len() {
        true => Ok(taken),
        false => Err(Error::broken("a run vanished")),
    }
}

impl Store {
    /// Ends runs that succeeded, and closes the leases of which the worker says that nothing else is under
    /// them, where that is so.
    pub(crate) async fn succeed_as_a_set(
        &self,
        good: &[&AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<Together, Error> {
        let mut together = Together::default();
        let mut left = good.to_vec();
        if self.dialect() == Dialect::Sqlite {
            (together, left) = self.end_in_one_go(good, closing).await?;
        }
        let open = |token: &LeaseToken| !together.closed.contains(token);
        let closing: Vec<LeaseToken> = closing.iter().copied().filter(open).collect();
        if left.is_empty() {
            return Ok(together);
        }
        // Mostly all of them end. If one does not, nothing has happened, and it is asked which.
        let rest = match self.succeed(&left, &closing, Which::All).await? {
            Some(rest) => rest,
            None => self.succeed(&left, &closing, Which::Running).await?.unwrap_or_default(),
        };
        together.ended.extend(rest.ended);
        together.closed.extend(rest.closed);
        Ok(together)
    }

    /// Leases are locked before their runs, as everywhere. `None`: not all of them could be ended, or none.
    async fn succeed(
        &self,
        good: &[&AttemptReport],
        closing: &[LeaseToken],
        which: Which,
    ) -> Result<Option<Together>, Error> {
        let mut tx = self.db.begin().await?;
        let mut leases = Vec::with_capacity(closing.len());
        for token in closing {
            leases.extend(lease::lock(&mut tx, *token).await?);
        }
        let ends = match which {
            Which::All => good.to_vec(),
            Which::Running => running(&mut tx, good).await?,
        };
        if ends.is_empty() || !succeed_each(&mut tx, &ends).await? {
            tx.rollback().await?;
            return Ok(None);
        }
        let ids: Vec<i64> = ends.iter().map(|ending| ending.run.0).collect();
        let ended: HashSet<(RunId, LeaseToken)> =
            ends.iter().map(|ending| (ending.run, ending.token)).collect();
        move_all(&mut tx, [&STAT_ADD_BETWEEN, &STAT_ADD], &params! {}, &ids).await?;
        let mut holding = Vec::new();
        let (sql, parts) = parts(tx.dialect(), [&HOLDING_BETWEEN, &HOLDING], &ids);
        for part in parts {
            holding.extend(tx.rows(sql, part).await?);
        }
        for hold in holds(&holding)? {
            tx.execute(&HOLD_GIVE, hold.columns()).await?;
        }
        let mut closed = HashSet::new();
        for lease in &leases {
            let is_over = lease.runs.iter().all(|run| ended.contains(&(*run, lease.token)));
            if is_over {
                lease::close(&mut tx, lease.token).await?;
            }
            if is_over || lease::close_if_empty(&mut tx, lease).await? {
                closed.insert(lease.token);
            }
        }
        tx.commit().await?;
        Ok(Some(Together { ended, closed }))
    }
}

/// Which ends are to be written.
#[derive(Clone, Copy)]
enum Which {
    /// All, or none of them.
    All,
    /// Of the runs that are found to run under the tokens they are reported with.
    Running,
}

/// Those whose runs run under their tokens, held still.
async fn running<'e>(tx: &mut Tx<'_>, good: &[&'e AttemptReport]) -> Result<Vec<&'e AttemptReport>, Error> {
    let ids: Vec<i64> = good.iter().map(|ending| ending.run.0).collect();
    let rows = tx.listed(&RUNNING, params! { ids: ids }).await?;
    let mut left = HashMap::with_capacity(rows.len());
    for row in &rows {
        left.insert(RunId(row.int("id")?), token_of(row)?);
    }
    let mine = |ending: &&&AttemptReport| left.remove(&ending.run) == Some(Some(ending.token));
    Ok(good.iter().filter(mine).copied().collect())
}

/// Ends these runs under their tokens, a few statements for all. `false`: one of them did not end.
async fn succeed_each(tx: &mut Tx<'_>, ends: &[&AttemptReport]) -> Result<bool, Error> {
    for (token, ends) in by_token(ends) {
        let alike = ends.iter().all(|ending| ending.finish.tells_as(&ends[0].finish));
        let key = params! { token: uuid(token.as_bytes()) };
        let ended = if alike {
            let ids: Vec<i64> = ends.iter().map(|ending| ending.run.0).collect();
            let told = [key, ends[0].finish.columns()].concat();
            move_all(tx, [&SUCCEED_BETWEEN, &SUCCEED_ALIKE], &told, &ids).await?
        } else {
            let told = params! { ends: told_of(&ends) };
            tx.execute(&SUCCEED, [key, told].concat()).await?
        };
        if ended != ends.len() as u64 {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn by_token<'e>(ends: &[&'e AttemptReport]) -> BTreeMap<LeaseToken, Vec<&'e AttemptReport>> {
    let mut under: BTreeMap<LeaseToken, Vec<&AttemptReport>> = BTreeMap::new();
    for ending in ends {
        under.entry(ending.token).or_default().push(ending);
    }
    under
}

fn token_of(row: &Row) -> Result<Option<LeaseToken>, Error> {
    let token = row.opt_uuid("lease_token")?;
    Ok(token.map(|token| LeaseToken::from_bytes(token.into_bytes())))
}

/// How each ended.
pub(crate) fn told_of(ends: &[&AttemptReport]) -> String {
    Value::Array(ends.iter().map(|ending| told(ending)).collect()).to_string()
}

/// How a run ended; what is not there is left out, and becomes null.
fn told(AttemptReport { run, finish, .. }: &AttemptReport) -> Value {
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
fn holds(rows: &[Row]) -> Result<Vec<Hold>, Error> {
    let mut holds = Vec::with_capacity(rows.len());
    for row in rows {
        let scope = (row.text("scope_kind")?, row.text("scope_id")?);
        let (job, run) = (row.int("job_id")?, row.int("id")?);
        holds.push(Hold { job, scope, run, token: token_of(row)? });
    }
    holds.sort_unstable();
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_those_that_follow_one_another() {
        assert_eq!(stretches(&[]), []);
        assert_eq!(stretches(&[7]), [(7, 7)]);
        assert_eq!(stretches(&[4, 2, 3, 9, 8, 6]), [(2, 4), (6, 6), (8, 9)]);
    }
}
