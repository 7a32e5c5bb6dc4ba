//! Checks of all runs and their attempts, one range of ids per statement, so that no statement takes long.

use std::collections::HashMap;

use super::{Flag, MAX_ROWS, add_flagged_rows};
use crate::Error;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Tx, params};
use crate::doctor::DoctorReport;
use crate::run::due_table;

static FIND_NEXT_ID: Sql = sql!("doctor/find_next_id", ".sqlite", "", "");
static CHECK_RUNS: Sql = sql!("doctor/check_runs");
static CHECK_WAITING: Sql = sql!("doctor/check_waiting_runs", "", "", ".mysql");
static CHECK_LIST_ENTRIES: Sql =
    sql!("doctor/check_list_entries", ".postgres", ".postgres", ".postgres");
static CHECK_RUN_HALVES: Sql = sql!("doctor/check_run_halves", ".sqlite", ".sqlite", ".sqlite");
static CHECK_ATTEMPTS: Sql = sql!("doctor/check_attempts");
static CHECK_ATTEMPT_ORDER: Sql = sql!("doctor/check_attempt_order");
static COUNT_RUNS: Sql = sql!("doctor/count_runs");
static LIST_EVENT_MISMATCHES: Sql = sql!("doctor/list_event_mismatches");

/// Number of ids that one statement reads.
const RANGE_LEN: i64 = 50_000;

const RUN_FLAGS: &[Flag] = &[
    ("no_attempt", "I1", "an assigned or running run lacks its worker, token or times"),
    ("leftover_attempt", "I1", "a waiting run still has a worker, token or time of an attempt"),
    ("foreign_lease", "I1", "the lease of an assigned or running run belongs to another worker"),
    (
        "wrongly_finished",
        "I3",
        "a run has an end time but has not ended, or has ended without an end time",
    ),
    ("epoch_ahead", "I4", "a run was assigned in a term that never began"),
    (
        "wrongly_succeeded",
        "I7",
        "the state of a run and the outcome of its last attempt disagree about success",
    ),
    ("too_many_tries", "I8", "a run has more tries than allowed, or more tries than attempts"),
    ("skipped_but_started", "I12", "a run was skipped although it had started"),
    (
        "no_hold",
        "I13",
        "an assigned or running run of a job that allows one run at a time has no hold",
    ),
    ("started_early", "I14", "a run started before it was due"),
];

const WAITING_FLAGS: &[Flag] = &[
    (
        "not_due",
        "I19",
        "a waiting run is not in the due table, or its due row differs from the run",
    ),
    ("twice_due", "I19", "a waiting run is in the due table twice"),
];

const LIST_ENTRY_FLAGS: &[Flag] = &[("not_listed", "I19", "a run is missing from the run lists")];

/// Only for SQLite, which stores a run in two tables.
const RUN_HALF_FLAGS: &[Flag] =
    &[("half_run", "I1", "a run has a row in only one of its two tables")];

const ATTEMPT_FLAGS: &[Flag] = &[
    (
        "attempt_twice",
        "I6",
        "a recorded attempt has the number of the attempt on the run row, or an invalid number",
    ),
    ("attempt_missing", "I8", "attempts of a run are missing"),
    (
        "tries_miscounted",
        "I8",
        "the number of tries of a run differs from the number of its started attempts",
    ),
    ("success_appended", "I7", "an attempt succeeded without ending its run"),
    ("attempt_epoch_ahead", "I4", "an attempt was assigned in a term that never began"),
    ("assigned_before_end", "I14", "a run was assigned before its previous attempt had ended"),
];

const ATTEMPT_ORDER_FLAGS: &[Flag] =
    &[("attempts_overlap", "I14", "an attempt was assigned before the previous attempt had ended")];

/// Counts of the runs, which the checks of the small tables compare with their own counts.
#[derive(Debug, Default)]
pub(super) struct HistoryCounts {
    /// Number of runs that are assigned or running.
    pub(super) leased: i64,
    /// Number of runs that wait.
    pub(super) waiting: i64,
    /// Number of runs that events created.
    pub(super) from_events: i64,
    /// Events whose runs in one id range differ from the recorded number, by event id: runs seen so far, recorded number
    /// of runs, whether the event is marked as processed. The runs of one event can be in two id ranges.
    pub(super) partial_events: HashMap<i64, (i64, Option<i64>, bool)>,
}

/// Checks every run and its attempts, and counts them. `term` is the current epoch, which no run may exceed.
pub(super) async fn check(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    term: i64,
) -> Result<HistoryCounts, Error> {
    let mut counts = HistoryCounts::default();
    let mut next_id = Some(i64::MIN);
    while let Some(from) = next_id
        && let Some(range) = next_range(tx, from).await?
    {
        next_id = range.1.checked_add(1);
        check_range(tx, report, &mut counts, range, term).await?;
    }
    Ok(counts)
}

/// Returns the first and the last id of the next id range that contains a run with at least this id.
pub(super) async fn next_range(tx: &mut Tx<'_>, from: i64) -> Result<Option<(i64, i64)>, Error> {
    let rows = tx.query(&FIND_NEXT_ID, params! { from: from }).await?;
    let first = rows.first().map(|row| row.opt_int("id")).transpose()?.flatten();
    Ok(first.map(|first| (first, first.saturating_add(RANGE_LEN - 1))))
}

async fn check_range(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    counts: &mut HistoryCounts,
    (from, to): (i64, i64),
    term: i64,
) -> Result<(), Error> {
    let range: Params<'_> = params! { from: from, to: to, current_epoch: term, limit: MAX_ROWS };
    add_flagged_rows(report, &tx.query(&CHECK_RUNS, range.clone()).await?, "run", RUN_FLAGS)?;
    let waiting = [range.clone(), due_table::id_range_offsets()].concat();
    add_flagged_rows(report, &tx.query(&CHECK_WAITING, waiting).await?, "run", WAITING_FLAGS)?;
    match tx.dialect() {
        Dialect::Postgres => {
            add_flagged_rows(
                report,
                &tx.query(&CHECK_LIST_ENTRIES, range.clone()).await?,
                "run",
                LIST_ENTRY_FLAGS,
            )?;
        }
        Dialect::Sqlite => {
            add_flagged_rows(
                report,
                &tx.query(&CHECK_RUN_HALVES, range.clone()).await?,
                "run",
                RUN_HALF_FLAGS,
            )?;
        }
        Dialect::MySql => {}
    }
    add_flagged_rows(
        report,
        &tx.query(&CHECK_ATTEMPTS, range.clone()).await?,
        "run",
        ATTEMPT_FLAGS,
    )?;
    add_flagged_rows(
        report,
        &tx.query(&CHECK_ATTEMPT_ORDER, range.clone()).await?,
        "run",
        ATTEMPT_ORDER_FLAGS,
    )?;
    let rows = tx.query(&COUNT_RUNS, range.clone()).await?;
    let counted = rows.first().ok_or_else(|| Error::broken("a count returned no row"))?;
    counts.leased += counted.int("leased")?;
    counts.waiting += counted.int("waiting")?;
    let of_events = counted.int("from_events")?;
    counts.from_events += of_events;
    if of_events > 0 {
        for row in tx.query(&LIST_EVENT_MISMATCHES, range).await? {
            let processed = row.opt_int("processed_at")?.is_some();
            let initial = (0, row.opt_int("recorded_runs")?, processed);
            counts.partial_events.entry(row.int("id")?).or_insert(initial).0 += row.int("runs")?;
        }
    }
    Ok(())
}
