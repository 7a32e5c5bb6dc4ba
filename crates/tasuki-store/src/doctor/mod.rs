//! `tasuki doctor`: checks the stored data for violations of the invariants of ARCHITECTURE.md.
//!
//! Every check only reads; none repairs. All checks read the same snapshot, in one read-only transaction, so that
//! concurrent changes cause no findings. Runs are read in ranges of ids, so that each statement is bounded. The small
//! tables (due, holds, leases) are compared with the runs by counts and searched only where the counts differ. The
//! invariants that stored data cannot show (I5, I9 to I11, I17) are not checked here.

mod report;
mod runs_and_attempts;
mod schema;
mod tables_besides_runs;

use jiff::{SignedDuration, Timestamp};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{AuditVerification, Error, Store};

pub use report::{DoctorCheck, DoctorReport, Finding, Severity};

/// Maximum difference between the clocks of the database and of this machine without a warning.
pub const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(2);

/// Maximum number of rows that one statement returns.
const MAX_ROWS: u32 = 1_000;

/// A result column that is 1 in a row with a finding: the name of the column, the id of its check, and the problem.
type Flag = (&'static str, &'static str, &'static str);

impl Store {
    /// Checks the stored data and reports every violation of an invariant. `clock` returns this machine's time.
    pub async fn check_invariants(
        &self,
        clock: impl Fn() -> Timestamp,
    ) -> Result<DoctorReport, Error> {
        let mut report = DoctorReport::new();
        let mut tx = self.db.begin_read().await?;
        schema::check_migrations(&mut tx, &mut report).await?;
        if report.is_clean() {
            schema::check_triggers(&mut tx, &mut report).await?;
            schema::check_unique_keys(&mut tx, &mut report).await?;
            tables_besides_runs::check_settings(&mut tx, &mut report).await?;
            let term = tables_besides_runs::check_terms(&mut tx, &mut report).await?;
            check_clock(&mut tx, &mut report, clock).await?;
            tables_besides_runs::check_holds(&mut tx, &mut report).await?;
            let counts = runs_and_attempts::check(&mut tx, &mut report, term).await?;
            tables_besides_runs::check_due(&mut tx, &mut report, &counts).await?;
            tables_besides_runs::check_workers(&mut tx, &mut report, &counts).await?;
            tables_besides_runs::check_events(&mut tx, &mut report, &counts).await?;
            tx.rollback().await?;
            // Outside the snapshot: the audit chain may grow while it is read, and its check handles that.
            if let AuditVerification::Broken { seq, error: flaw } = self.verify_audit(None).await? {
                report.add_row("I15", "the audit chain is broken", format!("entry {seq} {flaw}"));
            }
        } else {
            report.skip_all_but_schema();
            tx.rollback().await?;
        }
        Ok(report)
    }
}

/// Compares the clocks of the database and of this machine. The time that the query takes does not count as a
/// difference: the database's clock may be anywhere between this machine's clock before and after the query.
async fn check_clock(
    tx: &mut Tx<'_>,
    report: &mut DoctorReport,
    clock: impl Fn() -> Timestamp,
) -> Result<(), Error> {
    static CLOCK: Sql = sql!("doctor/find_clock");
    let before = clock();
    let rows = tx.query(&CLOCK, params! {}).await?;
    let after = clock();
    let database = rows.first().ok_or_else(|| Error::broken("the database returned no clock"))?;
    let database = crate::db::instant::timestamp_from_micros(database.int("clock")?)?;
    let (difference, direction) = match database < before {
        true => (before.duration_since(database), "behind"),
        false => (database.duration_since(after), "ahead of"),
    };
    if difference > CLOCK_TOLERANCE {
        let seconds = difference.as_millis() as f64 / 1000.0;
        report.add_warning(
            "clock",
            format!("the database's clock is {seconds:.1} s {direction} this machine's"),
        );
    }
    Ok(())
}

/// Adds a finding for every flag that is 1 in these rows. The example of a row is `thing` with the row's id.
fn add_flagged_rows(
    report: &mut DoctorReport,
    rows: &[Row],
    thing: &str,
    flags: &[Flag],
) -> Result<(), Error> {
    for &(column, check, problem) in flags {
        for row in rows {
            if row.int(column)? != 0 {
                report.add_row(check, problem, format!("{thing} {}", row.int("id")?));
            }
        }
        if rows.len() >= MAX_ROWS as usize {
            report.mark_incomplete(check, problem);
        }
    }
    Ok(())
}
