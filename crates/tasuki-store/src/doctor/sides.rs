//! The small tables: who leads, what waits, who carries and holds what, what happened, what is set.

use tasuki_core::{Settings, WorkerId};

use super::pages::{Tally, next};
use super::{Flag, MOST, note};
use crate::Error;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::doctor::Report;
use crate::run::due;

static TERMS: Sql = sql!("doctor/terms");
static TERMS_ORDER: Sql = sql!("doctor/terms_order");
static HOLDS: Sql = sql!("doctor/holds", ".sqlite", "", "");
static DUE_COUNT: Sql = sql!("doctor/due_count", "", "", ".mysql");
static DUE_STRAY: Sql = sql!("doctor/due_stray", "", "", ".mysql");
static WORKERS: Sql = sql!("doctor/workers", ".sqlite", ".postgres", ".mysql");
static UNLISTED: Sql = sql!("doctor/unlisted", ".sqlite", ".postgres", ".mysql");
static EVENTS_SAID: Sql = sql!("doctor/events_said", ".sqlite", ".postgres", ".mysql");
static EVENTS_MISSING: Sql = sql!("doctor/events_missing");
static EVENTS_ODD: Sql = sql!("doctor/events_odd");
static SETTINGS: Sql = sql!("doctor/settings");

const IN_TERMS: &[Flag] = &[
    ("not_the_newest", "I4", "the term is not the newest one in the history"),
    ("held_by_another", "I4", "the history knows another holder of the term"),
    ("leader_lease_ahead", "I4", "the leader's lease is missing or ahead of the term"),
    ("lease_ahead", "I4", "a lease was given in a term that was never minted"),
];

const IN_HOLDS: &[Flag] = &[
    ("ended_but_holds", "I3", "a run that has ended has a hold"),
    ("hold_of_nobody", "I13", "a hold is not that of a run that is carried under its token"),
];

const IN_DUE: &[Flag] = &[
    ("ended_but_due", "I3", "a run that has ended is in due"),
    ("wrongly_due", "I19", "a run is in due that does not wait, or waits elsewhere"),
];

const NOT_LEASED: &[Flag] =
    &[("not_leased", "I19", "a run is assigned or running under no lease that lists it")];

const EVENT_WITHOUT_RUNS: &[Flag] =
    &[("event_without_runs", "I18", "an event was processed but its runs are not there")];

const EVENT_HALF_MARKED: &[Flag] = &[(
    "event_half_marked",
    "I18",
    "an event was processed but does not say how many runs it made",
)];

/// What is set must be right one by one and together.
pub(super) async fn settings(tx: &mut Tx<'_>, report: &mut Report) -> Result<(), Error> {
    let mut set = Vec::new();
    for row in tx.rows(&SETTINGS, params! {}).await? {
        set.push((row.text("name")?, row.text("value")?));
    }
    for problem in Settings::default().with(&set).err().unwrap_or_default() {
        report.fault("settings", problem.to_string());
    }
    Ok(())
}

/// The term, its holder and its history. Returns the term, of which nothing may be ahead.
pub(super) async fn terms(tx: &mut Tx<'_>, report: &mut Report) -> Result<i64, Error> {
    let rows = tx.rows(&TERMS, params! {}).await?;
    note(report, &rows, "epoch", IN_TERMS)?;
    for row in tx.rows(&TERMS_ORDER, params! { most: MOST }).await? {
        let epoch = row.int("id")?;
        report.warn(
            "I4",
            format!("epoch {epoch} was minted at an earlier time than the one before it"),
        );
    }
    match rows.first() {
        Some(row) => row.int("id"),
        None => {
            report.fault("I4", "there is no term");
            Ok(i64::MAX)
        }
    }
}

/// Every hold has its run; that every run has its hold is looked at with the runs.
pub(super) async fn holds(tx: &mut Tx<'_>, report: &mut Report) -> Result<(), Error> {
    note(report, &tx.rows(&HOLDS, params! { most: MOST }).await?, "run", IN_HOLDS)
}

/// If every run that waits has its row in due, and there are as many rows as such runs, none is a
/// stray. That every run has its row is looked at with the runs.
pub(super) async fn due(tx: &mut Tx<'_>, report: &mut Report, tally: &Tally) -> Result<(), Error> {
    let all_there = !report.findings().any(|(check, _)| check == "I19");
    if all_there && count(tx, &DUE_COUNT, "due").await? == tally.waiting {
        return Ok(());
    }
    let page = [params! { most: MOST }, due::places()].concat();
    note(report, &tx.rows(&DUE_STRAY, page).await?, "run", IN_DUE)
}

/// What leases list is what is carried, and fits their workers.
pub(super) async fn workers(
    tx: &mut Tx<'_>,
    report: &mut Report,
    tally: &Tally,
) -> Result<(), Error> {
    let mut carried = 0;
    for row in tx.rows(&WORKERS, params! {}).await? {
        carried += row.int("carried")?;
        let worker = WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes());
        let running = row.int("running")?;
        match row.opt_int("room")? {
            None => report.found(
                "I16",
                "runs are carried by a worker that is not known",
                format!("worker {worker}"),
            ),
            Some(room) if running > room => {
                let told = format!("worker {worker}: {running} run, {room} fit");
                report.found("I16", "a worker runs more than it has room for", told);
            }
            Some(_) => {}
        }
    }
    if carried == tally.carried {
        return Ok(());
    }
    let mut from = Some(i64::MIN);
    while let Some(at) = from
        && let Some((first, last)) = next(tx, at).await?
    {
        from = last.checked_add(1);
        let stretch = params! { from: first, to: last, most: MOST };
        note(report, &tx.rows(&UNLISTED, stretch).await?, "run", NOT_LEASED)?;
    }
    Ok(())
}

/// Events and their runs: each group is compared where the runs are read; here what was split is put
/// together, and events without any run are looked for if the sums tell that there are some.
pub(super) async fn events(
    tx: &mut Tx<'_>,
    report: &mut Report,
    tally: &Tally,
) -> Result<(), Error> {
    let mut odd: Vec<_> = tally.odd_events.iter().collect();
    odd.sort();
    for (event, &(runs, said, processed)) in odd {
        if !processed {
            report.found(
                "I18",
                "an event has runs but is not marked as processed",
                format!("event {event}"),
            );
        } else if said.is_some_and(|said| said != runs) {
            let said = said.unwrap_or_default();
            let told = format!("event {event}: {runs} there, {said} said");
            report.found("I18", "an event has another number of runs than it says", told);
        }
    }
    let odd = tx.rows(&EVENTS_ODD, params! { most: MOST }).await?;
    note(report, &odd, "event", EVENT_HALF_MARKED)?;
    if count(tx, &EVENTS_SAID, "said").await? == tally.of_events {
        return Ok(());
    }
    let missing = tx.rows(&EVENTS_MISSING, params! { most: MOST }).await?;
    note(report, &missing, "event", EVENT_WITHOUT_RUNS)
}

async fn count(tx: &mut Tx<'_>, sql: &Sql, column: &str) -> Result<i64, Error> {
    let rows = tx.rows(sql, params! {}).await?;
    rows.first().ok_or_else(|| Error::broken("a count has no row"))?.int(column)
}
