//! Checks of the small tables: leader, due runs, leases, holds, events, settings.

use tasuki_core::{Settings, WorkerId};

use super::runs_and_attempts::{HistoryCounts, next_range};
use super::{Flag, MAX_ROWS, add_flagged_rows};
use crate::Error;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::doctor::DoctorReport;
use crate::run::due_table;

static CHECK_TERMS: Sql = sql!("doctor/check_terms");
static CHECK_TERM_ORDER: Sql = sql!("doctor/check_term_order");
static CHECK_HOLDS: Sql = sql!("doctor/check_holds", ".sqlite", "", "");
static COUNT_DUE_RUNS: Sql = sql!("doctor/count_due_runs", "", "", ".mysql");
static CHECK_DUE: Sql = sql!("doctor/check_due", "", "", ".mysql");
static COUNT_WORKER_RUNS: Sql = sql!("doctor/count_worker_runs", ".sqlite", ".postgres", ".mysql");
static CHECK_LEASES: Sql = sql!("doctor/check_leases", ".sqlite", ".postgres", ".mysql");
static SUM_EVENT_RUNS: Sql = sql!("doctor/sum_event_runs", ".sqlite", ".postgres", ".mysql");
static CHECK_EVENTS_WITHOUT_RUNS: Sql = sql!("doctor/check_events_without_runs");
static CHECK_EVENT_RUN_COUNTS: Sql = sql!("doctor/check_event_run_counts");
static LIST_SETTINGS: Sql = sql!("doctor/list_settings");

const TERM_FLAGS: &[Flag] = &[
    ("term_not_newest", "I4", "the term is not the newest one in the term history"),
    ("holder_mismatch", "I4", "the current term has another holder in the term history"),
    (
        "leader_lease_ahead",
        "I4",
        "the leader's lease row is missing, or its epoch is newer than the term",
    ),
    ("lease_ahead", "I4", "a lease was created in a term that never began"),
];

const HOLD_FLAGS: &[Flag] = &[
    ("ended_but_holds", "I3", "an ended run has a hold"),
    ("stale_hold", "I13", "a hold does not belong to an assigned or running run with its token"),
];

const DUE_FLAGS: &[Flag] = &[
    ("ended_but_due", "I3", "an ended run is in the due table"),
    (
        "wrongly_due",
        "I19",
        "a run in the due table does not wait, or waits in another lane or for another instant",
    ),
];

const LEASE_FLAGS: &[Flag] = &[("not_leased", "I19", "an assigned or running run is in no lease")];

const EVENT_WITHOUT_RUNS_FLAGS: &[Flag] =
    &[("event_without_runs", "I18", "a processed event records runs but has none")];

const EVENT_WITHOUT_COUNT_FLAGS: &[Flag] =
    &[("event_without_count", "I18", "a processed event does not record how many runs it created")];

/// Checks that each setting is valid and that the settings are consistent with one another.
pub(super) async fn check_settings(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    let mut stored = Vec::new();
    for row in tx.query(&LIST_SETTINGS, params! {}).await? {
        stored.push((row.text("name")?, row.text("value")?));
    }
    for problem in Settings::default().with_changes(&stored).err().unwrap_or_default() {
        report.add_error("settings", problem.to_string());
    }
    Ok(())
}

/// Checks the current term, its holder and the term history. Returns the current epoch, which nothing else may exceed.
pub(super) async fn check_terms(tx: &mut Tx<'_>, report: &mut DoctorReport) -> Result<i64, Error> {
    let rows = tx.query(&CHECK_TERMS, params! {}).await?;
    add_flagged_rows(report, &rows, "epoch", TERM_FLAGS)?;
    for row in tx.query(&CHECK_TERM_ORDER, params! { limit: MAX_ROWS }).await? {
        let epoch = row.int("id")?;
        report.add_warning("I4", format!("epoch {epoch} began earlier than the previous epoch"));
    }
    match rows.first() {
        Some(row) => row.int("id"),
        None => {
            report.add_error("I4", "the row of the current term is missing");
            Ok(i64::MAX)
        }
    }
}

/// Checks that every hold has its run. The checks of the runs find runs without a hold.
pub(super) async fn check_holds(tx: &mut Tx<'_>, report: &mut DoctorReport) -> Result<(), Error> {
    add_flagged_rows(
        report,
        &tx.query(&CHECK_HOLDS, params! { limit: MAX_ROWS }).await?,
        "run",
        HOLD_FLAGS,
    )
}

/// Checks for due rows without a waiting run. If every waiting run has its due row (no finding of I19 so far) and
/// there are as many due runs as waiting runs, there is no such row, and nothing is searched.
pub(super) async fn check_due(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    counts: &HistoryCounts,
) -> Result<(), Error> {
    let no_run_missing = !report.findings().any(|(check, _)| check == "I19");
    if no_run_missing && query_count(tx, &COUNT_DUE_RUNS, "due").await? == counts.waiting {
        return Ok(());
    }
    let page = [params! { limit: MAX_ROWS }, due_table::id_range_offsets()].concat();
    add_flagged_rows(report, &tx.query(&CHECK_DUE, page).await?, "run", DUE_FLAGS)
}

/// Checks that every assigned or running run is in a lease, and that no worker has more runs than its slots allow.
pub(super) async fn check_workers(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    counts: &HistoryCounts,
) -> Result<(), Error> {
    let mut leased = 0;
    for row in tx.query(&COUNT_WORKER_RUNS, params! {}).await? {
        leased += row.int("leased")?;
        let worker = WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes());
        let running = row.int("running")?;
        match row.opt_int("max_runs")? {
            None => report.add_row(
                "I16",
                "an unknown worker has assigned or running runs",
                format!("worker {worker}"),
            ),
            Some(max_runs) if running > max_runs => {
                let example = format!("worker {worker}: {running} running, at most {max_runs}");
                report.add_row("I16", "a worker runs more runs than its slots allow", example);
            }
            Some(_) => {}
        }
    }
    if leased == counts.leased {
        return Ok(());
    }
    let mut next_id = Some(i64::MIN);
    while let Some(from) = next_id
        && let Some((first, last)) = next_range(tx, from).await?
    {
        next_id = last.checked_add(1);
        let range = params! { from: first, to: last, limit: MAX_ROWS };
        add_flagged_rows(report, &tx.query(&CHECK_LEASES, range).await?, "run", LEASE_FLAGS)?;
    }
    Ok(())
}

/// Checks that events record the right number of runs. The checks of the runs compare each event within one id range;
/// this reports the events whose runs were in several ranges and still differ, and searches for events without any
/// run if the sums show that there are some.
pub(super) async fn check_events(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    counts: &HistoryCounts,
) -> Result<(), Error> {
    let mut mismatches: Vec<_> = counts.partial_events.iter().collect();
    mismatches.sort();
    for (event, &(runs, recorded, processed)) in mismatches {
        if !processed {
            report.add_row(
                "I18",
                "an event has runs but is not marked as processed",
                format!("event {event}"),
            );
        } else if recorded.is_some_and(|recorded| recorded != runs) {
            let recorded = recorded.unwrap_or_default();
            let example = format!("event {event}: {runs} exist, {recorded} recorded");
            report.add_row(
                "I18",
                "the number of runs of an event differs from the recorded number",
                example,
            );
        }
    }
    let uncounted = tx.query(&CHECK_EVENT_RUN_COUNTS, params! { limit: MAX_ROWS }).await?;
    add_flagged_rows(report, &uncounted, "event", EVENT_WITHOUT_COUNT_FLAGS)?;
    if query_count(tx, &SUM_EVENT_RUNS, "recorded_runs").await? == counts.from_events {
        return Ok(());
    }
    let missing = tx.query(&CHECK_EVENTS_WITHOUT_RUNS, params! { limit: MAX_ROWS }).await?;
    add_flagged_rows(report, &missing, "event", EVENT_WITHOUT_RUNS_FLAGS)
}

async fn query_count(tx: &mut Tx<'_>, sql: &Sql, column: &str) -> Result<i64, Error> {
    let rows = tx.query(sql, params! {}).await?;
    rows.first().ok_or_else(|| Error::broken("a count returned no row"))?.int(column)
}
