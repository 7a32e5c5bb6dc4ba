//! The history, read in stretches of ids so that no statement takes long.

use std::collections::HashMap;

use super::{Flag, MOST, note};
use crate::Error;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Tx, params};
use crate::doctor::Report;
use crate::run::due;

static NEXT: Sql = sql!("doctor/next", ".sqlite", "", "");
static RUNS: Sql = sql!("doctor/runs");
static WAITING: Sql = sql!("doctor/waiting", "", "", ".mysql");
static LISTED: Sql = sql!("doctor/listed", ".postgres", ".postgres", ".postgres");
static HALVES: Sql = sql!("doctor/halves", ".sqlite", ".sqlite", ".sqlite");
static ATTEMPTS: Sql = sql!("doctor/attempts");
static ATTEMPTS_ORDER: Sql = sql!("doctor/attempts_order");
static TALLY: Sql = sql!("doctor/tally");
static EVENTS: Sql = sql!("doctor/events");

/// So many ids are read by one statement.
const STRETCH: i64 = 50_000;

const IN_RUNS: &[Flag] = &[
    ("no_attempt", "I1", "a run that is assigned or running lacks its worker, token or times"),
    ("attempt_left", "I1", "a run that waits has a worker, token or time of an attempt"),
    ("lease_of_another", "I1", "the lease of a carried run belongs to another worker"),
    ("wrongly_finished", "I3", "a run has an end and has not ended, or has ended and has none"),
    ("epoch_ahead", "I4", "a run was assigned in a term that was never minted"),
    (
        "wrongly_succeeded",
        "I7",
        "the state of a run and the outcome of its last attempt disagree on success",
    ),
    ("too_many_tries", "I8", "a run has more tries than it is allowed, or than it has attempts"),
    ("skipped_but_started", "I12", "a run was skipped although it had started"),
    ("no_hold", "I13", "a carried run of a job that allows one at a time does not have the hold"),
    ("started_early", "I14", "a run started before it was due"),
];

const IN_WAITING: &[Flag] = &[
    ("not_due", "I19", "a run waits but is not in due as it should be"),
    ("twice_due", "I19", "a run is in due twice"),
];

const IN_LISTS: &[Flag] = &[("not_listed", "I19", "a run stands in no list")];

/// Where a run is two tables.
const IN_HALVES: &[Flag] =
    &[("half", "I1", "a run was born and has no life, or lives and was never born")];

const IN_ATTEMPTS: &[Flag] = &[
    ("attempt_twice", "I6", "an appended attempt has the number of one on the row, or of none"),
    ("attempt_missing", "I8", "the attempts of a run are not all there"),
    ("tries_miscounted", "I8", "a run has another number of tries than of started attempts"),
    ("success_appended", "I7", "an attempt succeeded without ending its run"),
    ("attempt_epoch_ahead", "I4", "an attempt was assigned in a term that was never minted"),
    ("taken_before_end", "I14", "a run was taken before its attempt before had ended"),
];

const IN_ORDER: &[Flag] =
    &[("attempts_overlap", "I14", "an attempt was taken before the one before it had ended")];

/// What the history counts, to be compared with the small tables.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How many runs are assigned or running.
    pub(super) carried: i64,
    /// How many wait.
    pub(super) waiting: i64,
    /// How many came from events.
    pub(super) of_events: i64,
    /// Events whose runs did not add up within a stretch: runs seen, runs said, whether processed.
    pub(super) odd_events: HashMap<i64, (i64, Option<i64>, bool)>,
}

/// Looks at every run and its attempts.
pub(super) async fn look(tx: &mut Tx<'_>, report: &mut Report, term: i64) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let mut from = Some(i64::MIN);
    while let Some(at) = from
        && let Some(stretch) = next(tx, at).await?
    {
        from = stretch.1.checked_add(1);
        look_at(tx, report, &mut tally, stretch, term).await?;
    }
    Ok(tally)
}

/// The next stretch in which there are runs: its first id and its last.
pub(super) async fn next(tx: &mut Tx<'_>, from: i64) -> Result<Option<(i64, i64)>, Error> {
    let rows = tx.rows(&NEXT, params! { from: from }).await?;
    let first = rows.first().map(|row| row.opt_int("id")).transpose()?.flatten();
    Ok(first.map(|first| (first, first.saturating_add(STRETCH - 1))))
}

async fn look_at(
    tx: &mut Tx<'_>,
    report: &mut Report,
    tally: &mut Tally,
    (from, to): (i64, i64),
    term: i64,
) -> Result<(), Error> {
    let stretch: Params<'_> = params! { from: from, to: to, term: term, most: MOST };
    note(report, &tx.rows(&RUNS, stretch.clone()).await?, "run", IN_RUNS)?;
    let waiting = [stretch.clone(), due::places()].concat();
    note(report, &tx.rows(&WAITING, waiting).await?, "run", IN_WAITING)?;
    match tx.dialect() {
        Dialect::Postgres => {
            note(report, &tx.rows(&LISTED, stretch.clone()).await?, "run", IN_LISTS)?;
        }
        Dialect::Sqlite => {
            note(report, &tx.rows(&HALVES, stretch.clone()).await?, "run", IN_HALVES)?;
        }
        Dialect::MySql => {}
    }
    note(report, &tx.rows(&ATTEMPTS, stretch.clone()).await?, "run", IN_ATTEMPTS)?;
    note(report, &tx.rows(&ATTEMPTS_ORDER, stretch.clone()).await?, "run", IN_ORDER)?;
    let rows = tx.rows(&TALLY, stretch.clone()).await?;
    let counted = rows.first().ok_or_else(|| Error::broken("a count has no row"))?;
    tally.carried += counted.int("carried")?;
    tally.waiting += counted.int("waiting")?;
    let of_events = counted.int("of_events")?;
    tally.of_events += of_events;
    if of_events > 0 {
        for row in tx.rows(&EVENTS, stretch).await? {
            let processed = row.opt_int("processed_at")?.is_some();
            let fresh = (0, row.opt_int("said")?, processed);
            tally.odd_events.entry(row.int("id")?).or_insert(fresh).0 += row.int("runs")?;
        }
    }
    Ok(())
}
