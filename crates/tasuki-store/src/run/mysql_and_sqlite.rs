//! Batches on SQLite and MySQL/MariaDB: a few statements with a JSON list, instead of a few statements for each run.
//! The contract tests require the same results as on PostgreSQL.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};
use tasuki_core::{LeaseToken, RunId};

use crate::db::instant::duration_to_micros;
use crate::db::sql::{Dialect, Sql, sql, sqlite_script};
use crate::db::{Params, Row, Tx, params};
use crate::run::create::new_run_params;
use crate::run::due_table::RunsToClaimFromDueRow;
use crate::run::finish::SucceededBatch;
use crate::run::lease;
use crate::{
    AttemptReport, ClaimRequest, CreatedRun, Error, NewRun, StartedRun, Store, to_uuid, validate,
};

static INSERT: Sql = sql!("run/insert", ".sqlite", ".mysql", ".mysql").without_clause(ON_CONFLICT);
static INSERT_DUE: Sql = sql!("due/insert_ranges", "", "", ".mysql");
static DELETE_DUE: Sql = sql!("due/delete_many", ".mysql", ".mysql", ".mysql");
static SPLIT_DUE: Sql = sql!("due/split");
static CLAIM_LIST: Sql = sql!("run/claim_many", ".sqlite", ".mysql", ".mysql");
static CLAIM_RANGE: Sql = sql!("run/claim_range", ".mysql", ".mysql", ".mysql");
static CLAIM_SCRIPT: Sql =
    sqlite_script!("due/delete_many.sqlite", "run/claim_many.sqlite", "lease/insert_claimed");
static LIST_STARTED: Sql = sql!("run/list_started", ".sqlite", ".mysql", ".mysql");
static LIST_STARTED_IN_RANGE: Sql = sql!("run/list_started_in_range", ".mysql", ".mysql", ".mysql");
static LOCK_RUNNING: Sql = sql!("run/lock_running", ".sqlite", ".mysql", ".mysql");
static LIST_EXCLUSIVE: Sql = sql!("run/list_exclusive", ".sqlite", ".mysql", ".mysql");
static LIST_EXCLUSIVE_IN_RANGE: Sql =
    sql!("run/list_exclusive_in_range", ".mysql", ".mysql", ".mysql");
static SUCCEED_UNIFORM: Sql = sql!("run/succeed_uniform", ".sqlite", ".mysql", ".mysql");
static SUCCEED_RANGE: Sql = sql!("run/succeed_range", ".mysql", ".mysql", ".mysql");
static SUCCEED_MANY: Sql = sql!("run/succeed_many", ".sqlite", ".mysql", ".mysql");
static FIND_ID_INCREMENT: Sql = sql!("run/find_id_increment", ".mysql", ".mysql", ".mysql");
static COUNT_ENDS: Sql = sql!("stat/add_many", ".sqlite", ".mysql", ".mysql");
static COUNT_ENDS_IN_RANGE: Sql = sql!("stat/add_range", ".mysql", ".mysql", ".mysql");
static RELEASE_HOLD: Sql = sql!("hold/release");

const ON_CONFLICT: &str = "on conflict do nothing\nreturning id";

/// Minimum average length of the id ranges for which one statement per range is faster than one statement with a list.
const MIN_ID_RANGE: usize = 16;
/// Maximum number of rows in one insert: SQLite allows 32,766 parameters, MySQL 65,535.
const MAX_ROWS_PER_INSERT: usize = 256;

/// Splits a slice into chunks whose lengths are powers of two, so that there are few different insert statements and
/// all of them stay prepared. A statement that is prepared for one use is closed again, and on MySQL the next request
/// after a close takes 40 ms.
fn power_of_two_chunks<T>(mut rest: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let length = 1 << rest.len().checked_ilog2()?;
        let (chunk, remaining) = rest.split_at(length);
        rest = remaining;
        Some(chunk)
    })
}

/// Inserts runs and their due rows, without looking for runs that exist already: a run with the same slot or idempotency
/// key causes a duplicate key error. Returns `None` if the ids are not consecutive; the caller must then roll back and
/// insert the runs one by one.
///
/// The ids are consecutive on SQLite, which has one writer, and usually on MySQL, which reserves the ids of an insert
/// of known length together. They are not in a MySQL cluster in which each server assigns every second id or fewer:
/// there the insert of the due rows does not match.
pub(crate) async fn insert_runs_without_lookup(
    tx: &mut Tx<'_>,
    runs: &[NewRun<'_>],
) -> Result<Option<Vec<CreatedRun>>, Error> {
    let mut created = Vec::with_capacity(runs.len());
    for chunk in insert_chunks(runs) {
        let (first, last) = insert_rows(tx, chunk).await?;
        let uniform = chunk.iter().all(|run| run.differs_only_in_args(&chunk[0]));
        let range_len = if uniform { chunk[0].max_runs_per_due_row() } else { 1 };
        let rows = params! { first: first, last: last, range_len: range_len };
        if tx.execute(&INSERT_DUE, rows).await? != (chunk.len() as u64).div_ceil(range_len as u64) {
            return Ok(None);
        }
        created.extend((first..=last).map(|id| CreatedRun { run: RunId(id), existed: false }));
    }
    Ok(Some(created))
}

/// Inserts runs like [`insert_runs_without_lookup`], but already RUNNING under the lease of the request and without due rows.
/// Returns their ids.
pub(crate) async fn insert_running(
    tx: &mut Tx<'_>,
    request: &ClaimRequest<'_>,
    runs: &[NewRun<'_>],
) -> Result<Option<Vec<i64>>, Error> {
    if tx.dialect() == Dialect::MySql {
        let rows = tx.query(&FIND_ID_INCREMENT, params! {}).await?;
        if rows.first().map(|row| row.int("increment")).transpose()? != Some(1) {
            return Ok(None);
        }
    }
    let mut ids = Vec::with_capacity(runs.len());
    for chunk in insert_chunks(runs) {
        let (first, last) = insert_rows(tx, chunk).await?;
        ids.extend(first..=last);
    }
    let started = start_claimed(tx, request, &ids).await?;
    Ok((started == runs.len() as u64).then_some(ids))
}

/// Chunks of runs, one for each insert.
fn insert_chunks<'r, 'j>(runs: &'r [NewRun<'j>]) -> impl Iterator<Item = &'r [NewRun<'j>]> {
    let chunks = validate::chunks_by_size(runs, MAX_ROWS_PER_INSERT, NewRun::byte_size);
    chunks.into_iter().flat_map(power_of_two_chunks)
}

/// Inserts the rows of runs. Returns the first and the last id.
async fn insert_rows(tx: &mut Tx<'_>, runs: &[NewRun<'_>]) -> Result<(i64, i64), Error> {
    let rows: Vec<Params<'_>> = runs.iter().map(new_run_params).collect();
    let first = tx.insert_rows(&INSERT, rows).await?;
    Ok((first, first + runs.len() as i64 - 1))
}

/// Claims and starts runs whose due rows are locked and that need no hold, under a new lease. `false`: a row did not
/// match, and the caller must roll back.
pub(crate) async fn claim_ranges(
    tx: &mut Tx<'_>,
    request: &ClaimRequest<'_>,
    ranges: &[RunsToClaimFromDueRow],
) -> Result<bool, Error> {
    let ids: Vec<i64> = ranges.iter().copied().flat_map(RunsToClaimFromDueRow::ids).collect();
    let (split, whole): (Vec<&RunsToClaimFromDueRow>, Vec<&RunsToClaimFromDueRow>) =
        ranges.iter().partition(|range| range.is_split);
    let mut all_split = true;
    for range in split {
        let range = params! { lane: request.lane, due_at: range.due_at, run_id: range.first_run, claimed: range.claim_count };
        all_split &= tx.execute(&SPLIT_DUE, range).await? == 1;
    }
    let (rows, runs) = (whole.len() as u64, ids.len() as u64);
    if tx.dialect() == Dialect::Sqlite {
        let instants = || whole.iter().map(|range| range.due_at);
        let values = params! {
            lane: request.lane,
            first: instants().min(),
            last: instants().max(),
            first_ids: whole.iter().map(|range| range.first_run).collect::<Vec<_>>(),
            run_ids: json!(ids).to_string(),
            ids: ids,
            epoch: Option::<i64>::None,
            ttl: duration_to_micros(request.lease_ttl),
        };
        let changed = tx.execute(&CLAIM_SCRIPT, [values, holder_params(request)].concat()).await?;
        return Ok(all_split && changed == rows + runs + 1);
    }
    let list = whole.iter().map(|range| json!([range.due_at, range.first_run])).collect();
    let due = params! { lane: request.lane, due_rows: Value::Array(list).to_string() };
    let deleted = tx.execute(&DELETE_DUE, due).await?;
    let started = start_claimed(tx, request, &ids).await?;
    let expiry = lease::NewLeaseExpiry::Ttl(request.lease_ttl);
    lease::open_lease(tx, request.token, request.worker, None, expiry, &ids).await?;
    Ok(all_split && deleted == rows && started == runs)
}

/// Starts runs that this transaction has taken from the queue, so that no other writer can change them. Returns their
/// number.
async fn start_claimed(
    tx: &mut Tx<'_>,
    request: &ClaimRequest<'_>,
    ids: &[i64],
) -> Result<u64, Error> {
    execute_for_ids(tx, [&CLAIM_RANGE, &CLAIM_LIST], &holder_params(request), ids).await
}

/// Executes one of two statements for these runs; see [`statement_for_ids`]. Returns the number of changed rows.
async fn execute_for_ids(
    tx: &mut Tx<'_>,
    statements: [&Sql; 2],
    values: &Params<'static>,
    ids: &[i64],
) -> Result<u64, Error> {
    let (sql, params_list) = statement_for_ids(tx.dialect(), statements, ids);
    let mut changed = 0;
    for params in params_list {
        changed += tx.execute(sql, [values.clone(), params].concat()).await?;
    }
    Ok(changed)
}

/// Chooses between a statement for an id range and a statement for a list of ids, and returns its parameters. If the
/// ids form few ranges, MySQL executes one statement per range at half the cost. SQLite always uses the list.
fn statement_for_ids<'s>(
    dialect: Dialect,
    [for_range, for_list]: [&'s Sql; 2],
    ids: &[i64],
) -> (&'s Sql, Vec<Params<'static>>) {
    if dialect != Dialect::Sqlite {
        let ranges = id_ranges(ids);
        if ranges.len() * MIN_ID_RANGE <= ids.len() {
            let range_params = |(first, last)| params! { first: first, last: last };
            return (for_range, ranges.into_iter().map(range_params).collect());
        }
    }
    (for_list, vec![params! { ids: ids.to_vec() }])
}

/// First and last id of each range of consecutive ids, in ascending order.
fn id_ranges(ids: &[i64]) -> Vec<(i64, i64)> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for id in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    ranges
}

/// Parameters that identify the worker and the lease of a claim.
pub(crate) fn holder_params(request: &ClaimRequest<'_>) -> Params<'static> {
    params! { worker_id: to_uuid(request.worker.as_bytes()), token: to_uuid(request.token.as_bytes()) }
}

/// Reads the values that a worker needs to execute started runs, soonest first.
pub(crate) async fn read_started_runs(
    tx: &mut Tx<'_>,
    runs: &[i64],
) -> Result<Vec<StartedRun>, Error> {
    let (sql, params_list) =
        statement_for_ids(tx.dialect(), [&LIST_STARTED_IN_RANGE, &LIST_STARTED], runs);
    let mut started = Vec::with_capacity(runs.len());
    for params in params_list {
        started.extend(StartedRun::list_from_rows(&tx.query_rows_via_json(sql, params).await?)?);
    }
    started.sort_by_key(|run| (run.due_at, run.id));
    match started.len() == runs.len() {
        true => Ok(started),
        false => Err(Error::broken("a started run does not exist")),
    }
}

impl Store {
    /// T4 on SQLite and MySQL: ends runs that succeeded. Deletes the leases in `closing` if no run is leased under
    /// them any more.
    pub(crate) async fn succeed_batch(
        &self,
        successes: &[&AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<SucceededBatch, Error> {
        let mut result = SucceededBatch::default();
        let mut remaining = successes.to_vec();
        if self.dialect() == Dialect::Sqlite {
            (result, remaining) = self.succeed_sqlite(successes, closing).await?;
        }
        let still_open = |token: &LeaseToken| !result.closed.contains(token);
        let closing: Vec<LeaseToken> = closing.iter().copied().filter(still_open).collect();
        if remaining.is_empty() {
            return Ok(result);
        }
        // Usually all of them end. If one does not, nothing was written, and the second try finds out which ones can
        // end.
        let rest = match self.try_succeed(&remaining, &closing, Selection::All).await? {
            Some(rest) => rest,
            None => self
                .try_succeed(&remaining, &closing, Selection::StillRunning)
                .await?
                .unwrap_or_default(),
        };
        result.ended.extend(rest.ended);
        result.closed.extend(rest.closed);
        Ok(result)
    }

    /// Ends the selected runs in one transaction, which locks the leases before their runs. `None`: nothing was
    /// written, because one of the runs did not end or none was selected.
    async fn try_succeed(
        &self,
        successes: &[&AttemptReport],
        closing: &[LeaseToken],
        selection: Selection,
    ) -> Result<Option<SucceededBatch>, Error> {
        let mut tx = self.db.begin().await?;
        let mut leases = Vec::with_capacity(closing.len());
        for token in closing {
            leases.extend(lease::lock_lease(&mut tx, *token).await?);
        }
        let reports = match selection {
            Selection::All => successes.to_vec(),
            Selection::StillRunning => lock_still_running(&mut tx, successes).await?,
        };
        if reports.is_empty() || !succeed_by_token(&mut tx, &reports).await? {
            tx.rollback().await?;
            return Ok(None);
        }
        let ids: Vec<i64> = reports.iter().map(|report| report.run.0).collect();
        let ended: HashSet<(RunId, LeaseToken)> =
            reports.iter().map(|report| (report.run, report.token)).collect();
        execute_for_ids(&mut tx, [&COUNT_ENDS_IN_RANGE, &COUNT_ENDS], &params! {}, &ids).await?;
        let mut exclusive = Vec::new();
        let (sql, params_list) =
            statement_for_ids(tx.dialect(), [&LIST_EXCLUSIVE_IN_RANGE, &LIST_EXCLUSIVE], &ids);
        for params in params_list {
            exclusive.extend(tx.query(sql, params).await?);
        }
        for hold in sorted_holds(&exclusive)? {
            tx.execute(&RELEASE_HOLD, hold.columns()).await?;
        }
        let mut closed = HashSet::new();
        for lease in &leases {
            let all_ended = lease.runs.iter().all(|run| ended.contains(&(*run, lease.token)));
            if all_ended {
                lease::delete_locked_lease(&mut tx, lease.token).await?;
            }
            if all_ended || lease::delete_locked_lease_if_empty(&mut tx, lease).await? {
                closed.insert(lease.token);
            }
        }
        tx.commit().await?;
        Ok(Some(SucceededBatch { ended, closed }))
    }
}

/// Which of the reported runs to end.
#[derive(Clone, Copy)]
enum Selection {
    /// All runs, or none of them.
    All,
    /// The runs that are RUNNING under the token of their report.
    StillRunning,
}

/// Locks the reported runs and returns the reports of those that are RUNNING under the token of their report.
async fn lock_still_running<'e>(
    tx: &mut Tx<'_>,
    successes: &[&'e AttemptReport],
) -> Result<Vec<&'e AttemptReport>, Error> {
    let ids: Vec<i64> = successes.iter().map(|report| report.run.0).collect();
    let rows = tx.query_rows_via_json(&LOCK_RUNNING, params! { ids: ids }).await?;
    let mut running = HashMap::with_capacity(rows.len());
    for row in &rows {
        running.insert(RunId(row.int("id")?), lease_token(row)?);
    }
    let still_running =
        |report: &&&AttemptReport| running.remove(&report.run) == Some(Some(report.token));
    Ok(successes.iter().filter(still_running).copied().collect())
}

/// Ends runs as SUCCEEDED, with a few statements for each token. `false`: one of them did not end.
async fn succeed_by_token(tx: &mut Tx<'_>, reports: &[&AttemptReport]) -> Result<bool, Error> {
    for (token, reports) in group_by_token(reports) {
        let uniform = reports
            .iter()
            .all(|report| report.attempt_result.has_same_stored_values(&reports[0].attempt_result));
        let key = params! { token: to_uuid(token.as_bytes()) };
        let ended = if uniform {
            let ids: Vec<i64> = reports.iter().map(|report| report.run.0).collect();
            let values = [key, reports[0].attempt_result.columns()].concat();
            execute_for_ids(tx, [&SUCCEED_RANGE, &SUCCEED_UNIFORM], &values, &ids).await?
        } else {
            let values = params! { reports: attempt_results_json(&reports) };
            tx.execute(&SUCCEED_MANY, [key, values].concat()).await?
        };
        if ended != reports.len() as u64 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Groups reports by their lease token.
pub(crate) fn group_by_token<'e>(
    reports: &[&'e AttemptReport],
) -> BTreeMap<LeaseToken, Vec<&'e AttemptReport>> {
    let mut by_token: BTreeMap<LeaseToken, Vec<&AttemptReport>> = BTreeMap::new();
    for report in reports {
        by_token.entry(report.token).or_default().push(report);
    }
    by_token
}

/// Reads the lease token of a run.
fn lease_token(row: &Row) -> Result<Option<LeaseToken>, Error> {
    let token = row.opt_uuid("lease_token")?;
    Ok(token.map(|token| LeaseToken::from_bytes(token.into_bytes())))
}

/// The results of attempts as a JSON list, for statements that end many runs.
pub(crate) fn attempt_results_json(reports: &[&AttemptReport]) -> String {
    Value::Array(reports.iter().map(|report| result_json(report)).collect()).to_string()
}

/// The result of an attempt as a JSON object. Missing values are left out; the statement reads them as null.
fn result_json(AttemptReport { run, attempt_result: result, .. }: &AttemptReport) -> Value {
    let mut object = serde_json::Map::from_iter([("id".to_owned(), json!(run.0))]);
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(name.to_owned(), value);
        }
    };
    add("exit_code", result.exit_code.map(Value::from));
    add("result", result.result.clone().map(Value::from));
    add("rows_affected", result.rows_affected.map(Value::from));
    add("log_ref", result.log_ref.clone().map(Value::from));
    Value::Object(object)
}

/// Key of a hold in the table. Its fields are in the order in which holds are locked.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HoldKey {
    job: i64,
    scope: (String, String),
    run: i64,
    token: Option<LeaseToken>,
}

impl HoldKey {
    fn columns(self) -> Params<'static> {
        params! {
            job_id: self.job,
            scope_kind: self.scope.0,
            scope_id: self.scope.1,
            run_id: self.run,
            token: self.token.map(|token| to_uuid(token.as_bytes())),
        }
    }
}

/// The holds of ended runs, in the order in which every transaction locks several holds.
fn sorted_holds(rows: &[Row]) -> Result<Vec<HoldKey>, Error> {
    let mut holds = Vec::with_capacity(rows.len());
    for row in rows {
        let scope = (row.text("scope_kind")?, row.text("scope_id")?);
        let (job, run) = (row.int("job_id")?, row.int("id")?);
        holds.push(HoldKey { job, scope, run, token: lease_token(row)? });
    }
    holds.sort_unstable();
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_form_one_range() {
        assert_eq!(id_ranges(&[]), []);
        assert_eq!(id_ranges(&[7]), [(7, 7)]);
        assert_eq!(id_ranges(&[4, 2, 3, 9, 8, 6]), [(2, 4), (6, 6), (8, 9)]);
    }
}
