//! Executions: all attempts at a run, whether they are in the history or on the run's own row.

use jiff::Timestamp;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, Epoch, RunId, WorkerId};

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::{Error, Store};

static LIST_EXECUTIONS: Sql = sql!("attempt/list_executions");

/// One attempt at a run. The current or last attempt is read from the row of the run, earlier ones from the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Number of the attempt, from 1.
    pub attempt_no: u32,
    /// Outcome; `None` while the attempt has not ended.
    pub outcome: Option<AttemptOutcome>,
    /// Worker that held the run.
    pub worker: WorkerId,
    /// Epoch of the leader that assigned the run; `None` after a claim.
    pub epoch: Option<Epoch>,
    /// When the run was assigned or claimed.
    pub assigned_at: Timestamp,
    /// When the attempt started; `None` if it has not, or never did.
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub finished_at: Option<Timestamp>,
    /// Exit code of the command.
    pub exit_code: Option<i64>,
    /// Signal that ended the process.
    pub exit_signal: Option<i64>,
    /// Class of the failure.
    pub error_code: Option<AttemptErrorCode>,
    /// Error message, for humans.
    pub error_message: Option<String>,
    /// Result of the job, as JSON.
    pub result: Option<String>,
    /// Number of database rows that the job affected, as the job reported it.
    pub rows_affected: Option<i64>,
    /// Reference to the log that the job itself wrote elsewhere.
    pub log_ref: Option<String>,
}

impl Execution {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        Ok(Self {
            attempt_no: row.int("attempt_no")? as u32,
            outcome: row.opt_text("outcome")?.map(|text| text.parse()).transpose()?,
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            epoch: row.opt_int("epoch")?.map(Epoch),
            assigned_at: timestamp_from_micros(row.int("assigned_at")?)?,
            started_at: instant("started_at")?,
            finished_at: instant("finished_at")?,
            exit_code: row.opt_int("exit_code")?,
            exit_signal: row.opt_int("exit_signal")?,
            error_code: row.opt_text("error_code")?.map(|text| text.parse()).transpose()?,
            error_message: row.opt_text("error_message")?,
            result: row.opt_text("result")?,
            rows_affected: row.opt_int("rows_affected")?,
            log_ref: row.opt_text("log_ref")?,
        })
    }
}

impl Store {
    /// Lists all attempts at a run, the first one first.
    pub async fn list_executions(&self, run: RunId) -> Result<Vec<Execution>, Error> {
        let rows = self.db.query(&LIST_EXECUTIONS, params! { run_id: run.0 }).await?;
        rows.iter().map(Execution::from_row).collect()
    }
}
