//! The executions of a run: every attempt, wherever it stands.

use jiff::Timestamp;
use tasuki_core::{AttemptOutcome, Epoch, ErrorCode, RunId, WorkerId};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::run::timestamp;
use crate::{Error, Store};

static EXECUTIONS: Sql = sql!("attempt/executions");

/// One attempt at a run: appended, or the live or last one on the run's own row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Its number, from 1.
    pub attempt_no: u32,
    /// How it ended; `None` while it lives.
    pub outcome: Option<AttemptOutcome>,
    /// Who had it.
    pub worker: WorkerId,
    /// Assigned in which term; a claim has none.
    pub epoch: Option<Epoch>,
    /// When it was given or claimed.
    pub assigned_at: Timestamp,
    /// When it started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// With which exit code.
    pub exit_code: Option<i64>,
    /// Killed by which signal.
    pub exit_signal: Option<i64>,
    /// With which class of failure.
    pub error_code: Option<ErrorCode>,
    /// What went wrong, for people.
    pub error_message: Option<String>,
    /// What it gave back.
    pub result: Option<String>,
    /// How many rows it touched.
    pub rows_affected: Option<i64>,
    /// Where its own log is.
    pub log_ref: Option<String>,
}

impl Execution {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        Ok(Self {
            attempt_no: row.int("attempt_no")? as u32,
            outcome: row.opt_text("outcome")?.map(|word| word.parse()).transpose()?,
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            epoch: row.opt_int("epoch")?.map(Epoch),
            assigned_at: timestamp(row.int("assigned_at")?)?,
            started_at: instant("started_at")?,
            finished_at: instant("finished_at")?,
            exit_code: row.opt_int("exit_code")?,
            exit_signal: row.opt_int("exit_signal")?,
            error_code: row.opt_text("error_code")?.map(|word| word.parse()).transpose()?,
            error_message: row.opt_text("error_message")?,
            result: row.opt_text("result")?,
            rows_affected: row.opt_int("rows_affected")?,
            log_ref: row.opt_text("log_ref")?,
        })
    }
}

impl Store {
    /// Every attempt at a run, the first one first.
    pub async fn executions(&self, run: RunId) -> Result<Vec<Execution>, Error> {
        let rows = self.db.rows(&EXECUTIONS, params! { run_id: run.0 }).await?;
        rows.iter().map(Execution::from_row).collect()
    }
}
