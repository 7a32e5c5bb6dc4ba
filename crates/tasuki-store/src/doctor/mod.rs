//! `tasuki doctor`: does a database keep what this program promises?
//!
//! Every check reads; none repairs. All of them see one moment: they run in one read-only transaction
//! on one snapshot, so that what moves meanwhile is no finding. The history is read in stretches of
//! ids, each statement bounded; the small tables (due, holds, leases) are compared with it by
//! counts and searched only where the counts differ. What stored data cannot show (I5, I9 to I11, I17)
//! is not here.

mod pages;
mod report;
mod schema;
mod sides;

use jiff::{SignedDuration, Timestamp};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store, Verified};

pub use report::{Check, Finding, Report, Severity};

/// The largest difference between two clocks that is nothing to tell.
pub const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// At most so many rows come back from one statement.
const MOST: u32 = 1_000;

/// A column that is 1 in a row with a finding: the check it belongs to, and what it means.
type Flag = (&'static str, &'static str, &'static str);

impl Store {
    /// Looks for everything in the stored data that cannot be. `clock` tells this machine's time.
    pub async fn doctor(&self, clock: impl Fn() -> Timestamp) -> Result<Report, Error> {
        let mut report = Report::new();
        let mut tx = self.db.look().await?;
        schema::schema(&mut tx, &mut report).await?;
        if report.is_clean() {
            schema::triggers(&mut tx, &mut report).await?;
            schema::keys(&mut tx, &mut report).await?;
            sides::settings(&mut tx, &mut report).await?;
            let term = sides::terms(&mut tx, &mut report).await?;
            check_clock(&mut tx, &mut report, clock).await?;
            sides::holds(&mut tx, &mut report).await?;
            let tally = pages::look(&mut tx, &mut report, term).await?;
            sides::due(&mut tx, &mut report, &tally).await?;
            sides::workers(&mut tx, &mut report, &tally).await?;
            sides::events(&mut tx, &mut report, &tally).await?;
            tx.rollback().await?;
            // The chain may grow while it is read; it has its own way of telling that from a cut.
            if let Verified::Broken { seq, flaw } = self.audit_verify(None).await? {
                report.found(
                    "I15",
                    "the chain of the audit is broken",
                    format!("row {seq}: {flaw:?}"),
                );
            }
        } else {
            report.only_the_schema();
            tx.rollback().await?;
        }
        Ok(report)
    }
}

/// The time that passes while the question is under way is nobody's fault.
async fn check_clock(
    tx: &mut Tx<'_>,
    report: &mut Report,
    clock: impl Fn() -> Timestamp,
) -> Result<(), Error> {
    static CLOCK: Sql = sql!("doctor/clock");
    let asked = clock();
    let rows = tx.rows(&CLOCK, params! {}).await?;
    let answered = clock();
    let theirs = rows.first().ok_or_else(|| Error::broken("the database has no clock"))?;
    let theirs = crate::run::timestamp(theirs.int("clock")?)?;
    let (difference, word) = match theirs < asked {
        true => (asked.duration_since(theirs), "behind"),
        false => (theirs.duration_since(answered), "ahead of"),
    };
    if difference > CLOCK_TOLERANCE {
        let seconds = difference.as_millis() as f64 / 1000.0;
        report
            .warn("clock", format!("the database's clock is {seconds:.1} s {word} this machine's"));
    }
    Ok(())
}

/// Notes every flag that is raised in these rows, as `thing` and its id.
fn note(report: &mut Report, rows: &[Row], thing: &str, flags: &[Flag]) -> Result<(), Error> {
    for &(column, check, what) in flags {
        for row in rows {
            if row.int(column)? != 0 {
                report.found(check, what, format!("{thing} {}", row.int("id")?));
            }
        }
        if rows.len() >= MOST as usize {
            report.more(check, what);
        }
    }
    Ok(())
}
