//! A run as its row has it.

pub(crate) mod recover;
pub(crate) mod cancel;
pub(crate) mod submit_batcher;
pub(crate) mod confirm;
pub(crate) mod create;
pub(crate) mod due;
pub(crate) mod executions;
pub(crate) mod finish;
pub(crate) mod hot;
pub(crate) mod submit_and_claim;
pub(crate) mod lease;
pub(crate) mod lists;
pub(crate) mod new_run;
pub(crate) mod note;
pub(crate) mod one_go;
pub(crate) mod skip;
pub(crate) mod retry;
pub(crate) mod sets;
pub(crate) mod take;

use jiff::Timestamp;
use tasuki_core::run::{AttemptOutcome, Counters};
use tasuki_core::{
    Epoch, ErrorCode, EventId, JobId, LeaseToken, Origin, RunId, RunState, Scope, WorkerId,
};

use crate::Error;
use crate::db::Row;

/// Everything the row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which.
    pub id: RunId,
    /// Of which job.
    pub job: JobId,
    /// Made from which version of it.
    pub job_version: i64,
    /// Where it stands.
    pub state: RunState,
    /// What made it.
    pub origin: Origin,
    /// For what.
    pub scope: Scope,
    /// Who takes it: the leader assigns from the empty lane, workers claim from the others.
    pub lane: String,
    /// Whether its job allows only one of it at a time.
    pub exclusive: bool,
    /// The budget it began with.
    pub max_attempts: u32,
    /// What it has used up.
    pub counters: Counters,
    /// Bumped by every change.
    pub version: i64,
    /// Its planned instant.
    pub scheduled_for: Timestamp,
    /// The name of its slot.
    pub slot: Option<String>,
    /// Not before this.
    pub next_retry_at: Option<Timestamp>,
    /// Too late after this, while it has never started.
    pub skip_at: Option<Timestamp>,
    /// Given up after this.
    pub expires_at: Option<Timestamp>,
    /// Who carries it, or carried it last.
    pub worker: Option<WorkerId>,
    /// Under which lease.
    pub token: Option<LeaseToken>,
    /// Assigned in which term.
    pub epoch: Option<Epoch>,
    /// When its attempt was given or claimed.
    pub assigned_at: Option<Timestamp>,
    /// Taken back if not started by then.
    pub start_by: Option<Timestamp>,
    /// When its attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When somebody asked it to stop.
    pub cancel_requested_at: Option<Timestamp>,
    /// Who asked.
    pub cancel_requested_by: Option<String>,
    /// How its last attempt ended.
    pub outcome: Option<AttemptOutcome>,
    /// With which exit code.
    pub exit_code: Option<i64>,
    /// Killed by which signal.
    pub exit_signal: Option<i64>,
    /// With which class of failure.
    pub error_code: Option<ErrorCode>,
    /// What went wrong, for people.
    pub error_message: Option<String>,
    /// Why it ended as it did.
    pub reason: Option<String>,
    /// What it gave back.
    pub result: Option<String>,
    /// How many rows it touched.
    pub rows_affected: Option<i64>,
    /// Where its own log is.
    pub log_ref: Option<String>,
    /// What it was given.
    pub args: Option<String>,
    /// The event that made it.
    pub event: Option<EventId>,
    /// The run it repeats.
    pub rerun_of: Option<RunId>,
    /// What makes asking for it twice the same run.
    pub idempotency_key: Option<String>,
}

impl Run {
    /// When it may start: its slot, or its next try.
    pub fn due_at(&self) -> Timestamp {
        self.next_retry_at.unwrap_or(self.scheduled_for)
    }

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        let number = |name| row.int(name).map(|number| number as u32);
        Ok(Self {
            id: RunId(row.int("id")?),
            job: JobId(row.int("job_id")?),
            job_version: row.int("job_version")?,
            state: row.text("state")?.parse()?,
            origin: row.text("origin")?.parse()?,
            scope: Scope::stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            lane: row.text("lane")?,
            exclusive: row.int("exclusive")? != 0,
            max_attempts: number("max_attempts")?,
            counters: Counters {
                attempt_no: number("attempt_no")?,
                tries: number("tries")?,
                tries_allowed: number("tries_allowed")?,
                releases: number("releases")?,
                alone: row.int("alone")? != 0,
            },
            version: row.int("version")?,
            scheduled_for: timestamp(row.int("scheduled_for")?)?,
            slot: row.opt_text("slot")?,
            next_retry_at: instant("next_retry_at")?,
            skip_at: instant("skip_at")?,
            expires_at: instant("expires_at")?,
            worker: row.opt_uuid("worker_id")?.map(|id| WorkerId::from_bytes(id.into_bytes())),
            token: row.opt_uuid("lease_token")?.map(|id| LeaseToken::from_bytes(id.into_bytes())),
            epoch: row.opt_int("epoch")?.map(Epoch),
            assigned_at: instant("assigned_at")?,
            start_by: instant("start_by")?,
            started_at: instant("started_at")?,
            finished_at: instant("finished_at")?,
            cancel_requested_at: instant("cancel_requested_at")?,
            cancel_requested_by: row.opt_text("cancel_requested_by")?,
            outcome: row.opt_text("outcome")?.map(|word| word.parse()).transpose()?,
            exit_code: row.opt_int("exit_code")?,
            exit_signal: row.opt_int("exit_signal")?,
            error_code: row.opt_text("error_code")?.map(|word| word.parse()).transpose()?,
            error_message: row.opt_text("error_message")?,
            reason: row.opt_text("reason")?,
            result: row.opt_text("result")?,
            rows_affected: row.opt_int("rows_affected")?,
            log_ref: row.opt_text("log_ref")?,
            args: row.opt_text("args")?,
            event: row.opt_int("event_id")?.map(EventId),
            rerun_of: row.opt_int("rerun_of")?.map(RunId),
            idempotency_key: row.opt_text("idempotency_key")?,
        })
    }
}

/// An instant as it is stored.
pub(crate) fn timestamp(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros)
        .map_err(|_| Error::broken(format!("{micros} is no instant")))
}

/// A duration as it is stored.
pub(crate) fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
