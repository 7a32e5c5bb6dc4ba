//! The due table (`tasuki_due`): the queue of waiting runs.
//!
//! A row stands for one run, or for an *id range*: tasks that were submitted together, with consecutive ids. With id
//! ranges, most tasks never need a row of their own, which saves an insert and a delete for each of them.

use jiff::Timestamp;
use tasuki_core::RunId;

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::{ClaimRequest, Error, Store};

static FIND_DUE_ROW: Sql = sql!("due/find_position");
static DELETE_ROW: Sql = sql!("due/delete");
static DELETE_RANGE: Sql = sql!("due/delete_range");
static INSERT_RANGE: Sql = sql!("due/insert_range");
static FIND_RANGE: Sql = sql!("due/find_range");
static LOCK: Sql = sql!("due/lock_claimable", ".mysql", ".mysql", ".mysql");
/// The same statement without row locks.
static LIST_UNLOCKED: Sql = sql!("due/lock_claimable", ".mysql", ".mysql", ".mysql")
    .without_clause("\n   for update skip locked");
static LIST_IN_LANE: Sql = sql!("due/list_in_lane");
static FIND_NEXT: Sql = sql!("due/find_next");

/// Maximum number of runs in one id range. It is small, so that a claim takes several rows and concurrent claims
/// rarely meet at the same row.
pub(crate) const MAX_ID_RANGE: i64 = 64;
/// Maximum number of tries to remove a run from the due table while concurrent writers keep moving it to another row.
const MAX_REMOVE_TRIES: usize = 16;

/// A waiting run, as the due table lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRun {
    /// Id of the run.
    pub run: RunId,
    /// Earliest start.
    pub due_at: Timestamp,
    /// Number of attempts so far, as read. It guards the assignment: a run that has had another attempt since is not
    /// assigned.
    pub attempt_no: u32,
    /// Whether the job allows only one active run for each scope.
    pub exclusive: bool,
}

/// Parameter list with every offset in an id range, for statements that expand id ranges.
pub(crate) fn id_range_offsets() -> Params<'static> {
    params! { offsets: (0..MAX_ID_RANGE).collect::<Vec<i64>>() }
}

/// A due row and the runs of it that a claim takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunsToClaimFromDueRow {
    /// When the runs of the row are due, in microseconds since the Unix epoch.
    pub(crate) due_at: i64,
    /// First run id of the row.
    pub(crate) first_run: i64,
    /// Number of runs to claim, counted from the first id.
    pub(crate) claim_count: i64,
    /// Whether the row stands for more runs, which continue to wait.
    pub(crate) is_split: bool,
}

impl RunsToClaimFromDueRow {
    /// Reads a due row and selects at most `max_runs` of its runs.
    pub(crate) fn from_row_with_max_runs(max_runs: i64, row: &Row) -> Result<Self, Error> {
        let (due_at, run, range_len) =
            (row.int("due_at")?, row.int("run_id")?, row.int("extra_runs")? + 1);
        Ok(Self {
            due_at,
            first_run: run,
            claim_count: range_len.min(max_runs),
            is_split: range_len > max_runs,
        })
    }

    /// Ids of the runs to claim.
    pub(crate) fn ids(self) -> std::ops::Range<i64> {
        self.first_run..self.first_run + self.claim_count
    }
}

/// Ids of the runs that a due row stands for.
pub(crate) fn run_ids_of_due_row(row: &Row) -> Result<std::ops::RangeInclusive<i64>, Error> {
    let first = row.int("run_id")?;
    Ok(first..=first + row.int("extra_runs")?)
}

impl Store {
    /// Lists the runs that wait in a lane and are due at `until` or before, soonest first.
    pub async fn list_due_in_lane(
        &self,
        lane: &str,
        until: Timestamp,
        max_runs: u32,
    ) -> Result<Vec<DueRun>, Error> {
        let page = params! { lane: lane, until: until.as_microsecond(), limit: max_runs };
        let mut due_runs = Vec::new();
        for row in &self.db.query(&LIST_IN_LANE, page).await? {
            // A run of an id range has never been attempted, so the values of the row are true of every run.
            let (attempt_no, exclusive) =
                (row.int("attempt_no")? as u32, row.int("exclusive")? != 0);
            let due_at = timestamp_from_micros(row.int("due_at")?)?;
            let due_run = |id| DueRun { run: RunId(id), due_at, attempt_no, exclusive };
            due_runs.extend(run_ids_of_due_row(row)?.map(due_run));
        }
        due_runs.truncate(max_runs as usize);
        Ok(due_runs)
    }

    /// Finds when the next run of a lane becomes due, later than `after` and at `until` or before.
    pub async fn find_next_due_in_lane(
        &self,
        lane: &str,
        after: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let span =
            params! { lane: lane, after: after.as_microsecond(), until: until.as_microsecond() };
        let rows = self.db.query(&FIND_NEXT, span).await?;
        rows.first().map(|row| timestamp_from_micros(row.int("due_at")?)).transpose()
    }
}

/// Locks due rows of claimable runs, as many rows as are needed for `request.max_runs` runs.
///
/// `None` means: other transactions hold all candidate rows, and may leave some runs of an id range, so a retry makes
/// sense. If all of these rows stand for a single run, those runs count as taken and the result is empty.
pub(crate) async fn lock_for_claim(
    tx: &mut Tx<'_>,
    request: &ClaimRequest<'_>,
    after: &Params<'static>,
) -> Result<Option<Vec<Row>>, Error> {
    let page = |rows: i64| [params! { lane: request.lane, limit: rows }, after.clone()].concat();
    // Count the runs first without locks, so that no more rows are locked than the request needs.
    let (mut runs, mut needed) = (0, 0);
    for row in tx.query(&LIST_UNLOCKED, page(i64::from(request.max_runs))).await? {
        if runs < i64::from(request.max_runs) {
            runs += row.int("extra_runs")? + 1;
            needed += 1;
        }
    }
    let rows = match needed {
        0 => Vec::new(),
        rows => tx.query(&LOCK, page(rows)).await?,
    };
    let may_remain = runs > needed;
    Ok((!rows.is_empty() || !may_remain).then_some(rows))
}

/// Deletes the due row of a run, or removes the run from the id range that it waits in. `false`: the run does not
/// wait, or another transaction has removed it.
pub(crate) async fn remove_from_due_table(tx: &mut Tx<'_>, run: RunId) -> Result<bool, Error> {
    for _ in 0..MAX_REMOVE_TRIES {
        let rows = tx.query(&FIND_DUE_ROW, params! { run_id: run.0 }).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (lane, due_at) = (row.text("lane")?, row.int("due_at")?);
        let key = |run: i64| params! { lane: lane.as_str(), due_at: due_at, run_id: run };
        if tx.execute(&DELETE_ROW, key(run.0)).await? == 1 {
            return Ok(true);
        }
        // Only claimable runs form id ranges. If the row of this run was locked while this delete waited, the lock
        // holder has removed it, and a run that does not wait has no row.
        if row.int("is_waiting")? == 0 || lane.is_empty() {
            return Ok(false);
        }
        let before = [key(run.0), params! { earliest: run.0 - MAX_ID_RANGE + 1 }].concat();
        if let Some(found) = tx.query(&FIND_RANGE, before).await?.first() {
            let (first, more) = (found.int("run_id")?, found.int("extra_runs")?);
            let whole = [key(first), params! { extra_runs: more }].concat();
            if tx.execute(&DELETE_RANGE, whole).await? == 1 {
                for (first, last) in [(first, run.0 - 1), (run.0 + 1, first + more)] {
                    if first <= last {
                        let rest = [key(first), params! { extra_runs: last - first }].concat();
                        tx.execute(&INSERT_RANGE, rest).await?;
                    }
                }
                return Ok(true);
            }
        }
        // Another transaction deleted or split the range: it has taken the run, or the run is in another range now.
    }
    Err(Error::RunBusy(run))
}
