//! The verbs of a run (create, assign, claim, start, renew, finish, orphan, recover, skip, cancel, retry), each a
//! guarded write, and the stored [`Run`].
//!
//! Each verb has one module; its documentation starts with the number of the transition (T0 to T15) in the transition
//! table. `postgres`, `sqlite` and `mysql_and_sqlite` hold the fast forms of the frequent verbs for single databases; the plain
//! form is in the module of the verb, and the contract tests require the same results from all of them.

pub(crate) mod assign;
pub(crate) mod cancel;
pub(crate) mod claim;
pub(crate) mod confirm_after_detach;
pub(crate) mod create;
pub(crate) mod due_table;
pub(crate) mod find_lane_due_times;
pub(crate) mod finish;
pub(crate) mod lease;
pub(crate) mod list;
pub(crate) mod list_attempts_of_run;
pub(crate) mod list_waiting_and_leased;
pub(crate) mod manual_retry;
pub(crate) mod mysql_and_sqlite;
pub(crate) mod new_run;
pub(crate) mod postgres;
pub(crate) mod rare_transition_records;
pub(crate) mod recover;
pub(crate) mod requeue_assigned;
pub(crate) mod skip_and_expire;
pub(crate) mod sqlite;
pub(crate) mod start;
pub(crate) mod submit_and_claim;
pub(crate) mod submit_batcher;

use jiff::Timestamp;
use tasuki_core::run::{AttemptOutcome, RunCounters};
use tasuki_core::{
    AttemptErrorCode, Epoch, EventId, JobId, LeaseToken, Origin, RunId, RunScope, RunState,
    WorkerId,
};

use crate::Error;
use crate::db::Row;
use crate::db::instant::timestamp_from_micros;

/// A run as its row stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Id of the run.
    pub id: RunId,
    /// Job that the run belongs to.
    pub job: JobId,
    /// Version of the job that the run was created from.
    pub job_version: i64,
    /// Current state.
    pub state: RunState,
    /// What created the run: a schedule, an event, a task, a user.
    pub origin: Origin,
    /// Scope that the run works on, for example one tenant.
    pub scope: RunScope,
    /// Lane in which the run waits. The leader assigns the runs of the empty lane; workers claim from all other lanes.
    pub lane: String,
    /// Whether the job allows only one active run for each scope, so that the run needs the hold.
    pub exclusive: bool,
    /// Maximum number of attempts, as the job version had it when the run was created.
    pub max_attempts: u32,
    /// Attempts and releases counted so far.
    pub counters: RunCounters,
    /// Number of changes to the row; every change adds 1.
    pub version: i64,
    /// Planned instant.
    pub scheduled_for: Timestamp,
    /// Slot that the run was created for; `None` if no schedule created it.
    pub slot: Option<String>,
    /// Earliest start of the next attempt, after a failed or released one.
    pub next_retry_at: Option<Timestamp>,
    /// Instant after which a run that has never started is skipped.
    pub skip_at: Option<Timestamp>,
    /// Instant after which a waiting run expires.
    pub expires_at: Option<Timestamp>,
    /// Worker that holds the run, or held it last.
    pub worker: Option<WorkerId>,
    /// Token of the lease of the current or last attempt.
    pub token: Option<LeaseToken>,
    /// Epoch of the leader that assigned the run; `None` after a claim.
    pub epoch: Option<Epoch>,
    /// When the current or last attempt was assigned or claimed.
    pub assigned_at: Option<Timestamp>,
    /// Latest start of an assigned run; after that the leader orphans it.
    pub start_by: Option<Timestamp>,
    /// When the current or last attempt started.
    pub started_at: Option<Timestamp>,
    /// When the run ended.
    pub finished_at: Option<Timestamp>,
    /// When the cancellation of the running run was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// Name of the actor who requested the cancellation.
    pub cancel_requested_by: Option<String>,
    /// Outcome of the last attempt.
    pub outcome: Option<AttemptOutcome>,
    /// Exit code of the last attempt.
    pub exit_code: Option<i64>,
    /// Signal that ended the process of the last attempt.
    pub exit_signal: Option<i64>,
    /// Class of the failure of the last attempt.
    pub error_code: Option<AttemptErrorCode>,
    /// Error message of the last attempt, for humans.
    pub error_message: Option<String>,
    /// Reason for the final state, for example why the run was skipped.
    pub reason: Option<String>,
    /// Result of the job, as JSON.
    pub result: Option<String>,
    /// Number of database rows that the job affected, as the job reported it.
    pub rows_affected: Option<i64>,
    /// Reference to the log that the job itself wrote elsewhere.
    pub log_ref: Option<String>,
    /// Arguments of the job, as JSON.
    pub args: Option<String>,
    /// Event that created the run.
    pub event: Option<EventId>,
    /// Ended run that this run repeats.
    pub rerun_of: Option<RunId>,
    /// Key that identifies the request: a second request with the same key finds this run.
    pub idempotency_key: Option<String>,
}

impl Run {
    /// When the run may start: the planned instant, or the next retry.
    pub fn due_at(&self) -> Timestamp {
        self.next_retry_at.unwrap_or(self.scheduled_for)
    }

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        let number = |name| row.int(name).map(|number| number as u32);
        Ok(Self {
            id: RunId(row.int("id")?),
            job: JobId(row.int("job_id")?),
            job_version: row.int("job_version")?,
            state: row.text("state")?.parse()?,
            origin: row.text("origin")?.parse()?,
            scope: RunScope::from_stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            lane: row.text("lane")?,
            exclusive: row.int("exclusive")? != 0,
            max_attempts: number("max_attempts")?,
            counters: RunCounters {
                attempt_no: number("attempt_no")?,
                tries: number("tries")?,
                tries_allowed: number("tries_allowed")?,
                releases: number("releases")?,
                isolated: row.int("isolated")? != 0,
            },
            version: row.int("version")?,
            scheduled_for: timestamp_from_micros(row.int("scheduled_for")?)?,
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
            outcome: row.opt_text("outcome")?.map(|text| text.parse()).transpose()?,
            exit_code: row.opt_int("exit_code")?,
            exit_signal: row.opt_int("exit_signal")?,
            error_code: row.opt_text("error_code")?.map(|text| text.parse()).transpose()?,
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
