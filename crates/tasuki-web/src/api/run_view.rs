//! A run as it is shown.

use serde::Serialize;
use serde_json::Value;
use tasuki::operator::{RunDetail, RunNow};
use tasuki_core::{AttemptOutcome, Lane};
use tasuki_store::{Execution, RunNote};
use utoipa::ToSchema;

use super::{at, kept, maybe_at};

/// A run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Run {
    #[schema(minimum = 1)]
    id: i64,
    job: String,
    job_id: i64,
    job_version: i64,
    #[schema(
        pattern = "^(PENDING|ASSIGNED|RUNNING|ORPHANED|RETRY_WAIT|SUCCEEDED|FAILED|TIMED_OUT|CANCELED|SKIPPED|EXPIRED)$"
    )]
    state: &'static str,
    #[schema(pattern = "^(time|event|task|manual|rerun)$")]
    origin: &'static str,
    /// `kind/id`
    scope: String,
    #[schema(format = DateTime)]
    scheduled_for: String,
    #[schema(format = DateTime)]
    due_at: String,
    slot: Option<String>,
    /// Whose slots it uses, if it is a function that workers claim.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// How much of a head start it has before others that wait.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<&'static str>,
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Value>,
    attempt_no: u32,
    tries: u32,
    tries_allowed: u32,
    /// How often it has been tried again.
    retry_count: u32,
    max_attempts: u32,
    version: i64,
    #[schema(format = DateTime)]
    next_retry_at: Option<String>,
    #[schema(format = DateTime)]
    skip_at: Option<String>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Who carries it, or carried it last.
    #[schema(format = "uuid")]
    worker: Option<String>,
    #[schema(format = "uuid")]
    locked_by: Option<String>,
    epoch: Option<i64>,
    #[schema(format = DateTime)]
    start_by: Option<String>,
    #[schema(format = DateTime)]
    started_at: Option<String>,
    #[schema(format = DateTime)]
    heartbeat_at: Option<String>,
    #[schema(format = DateTime)]
    finished_at: Option<String>,
    #[schema(format = DateTime)]
    cancel_requested_at: Option<String>,
    outcome: Option<&'static str>,
    exit_code: Option<i64>,
    exit_signal: Option<i64>,
    error_code: Option<String>,
    error_message: Option<String>,
    reason: Option<String>,
    /// What it gave back: any JSON.
    result: Option<Value>,
    rows_affected: Option<i64>,
    log_ref: Option<String>,
    event_id: Option<i64>,
    rerun_of: Option<i64>,
    idempotency_key: Option<String>,
    /// Every attempt at it, where one run is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    executions: Option<Vec<ExecutionView>>,
    /// Its rare moves, where one run is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<Vec<Note>>,
}

/// One attempt at a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExecutionView {
    attempt_no: u32,
    /// How it ended; null while it lives.
    outcome: Option<&'static str>,
    #[schema(format = "uuid")]
    worker: String,
    epoch: Option<i64>,
    #[schema(format = DateTime)]
    assigned_at: String,
    #[schema(format = DateTime)]
    started_at: Option<String>,
    #[schema(format = DateTime)]
    finished_at: Option<String>,
    exit_code: Option<i64>,
    exit_signal: Option<i64>,
    error_code: Option<String>,
    error_message: Option<String>,
    result: Option<Value>,
    rows_affected: Option<i64>,
    log_ref: Option<String>,
}

/// A rare move of a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Note {
    attempt_no: u32,
    verb: &'static str,
    actor: String,
    reason: Option<String>,
    epoch: Option<i64>,
    #[schema(format = DateTime)]
    at: String,
}

/// A run as it is shown.
pub(crate) fn view(now: &RunNow) -> Run {
    let run = &now.run;
    let worker = run.worker.map(|worker| worker.to_string());
    let lane: Option<Lane> = run.lane.parse().ok();
    Run {
        id: run.id.0,
        job: now.job.clone(),
        job_id: run.job.0,
        job_version: run.job_version,
        state: run.state.as_str(),
        origin: run.origin.as_str(),
        scope: run.scope.to_string(),
        scheduled_for: at(run.scheduled_for),
        due_at: at(run.due_at()),
        slot: run.slot.clone(),
        queue: lane.as_ref().map(|lane| lane.queue.to_string()),
        priority: lane.map(|lane| lane.priority.as_str()),
        args: kept(run.args.as_deref()),
        attempt_no: run.counters.attempt_no,
        tries: run.counters.tries,
        tries_allowed: run.counters.tries_allowed,
        retry_count: run.counters.tries.saturating_sub(1),
        max_attempts: run.max_attempts,
        version: run.version,
        next_retry_at: maybe_at(run.next_retry_at),
        skip_at: maybe_at(run.skip_at),
        expires_at: maybe_at(run.expires_at),
        locked_by: worker.clone(),
        worker,
        epoch: run.epoch.map(|epoch| epoch.0),
        start_by: maybe_at(run.start_by),
        started_at: maybe_at(run.started_at),
        heartbeat_at: maybe_at(now.heartbeat_at),
        finished_at: maybe_at(run.finished_at),
        cancel_requested_at: maybe_at(run.cancel_requested_at),
        outcome: run.outcome.map(AttemptOutcome::as_str),
        exit_code: run.exit_code,
        exit_signal: run.exit_signal,
        error_code: run.error_code.as_ref().map(ToString::to_string),
        error_message: run.error_message.clone(),
        reason: run.reason.clone(),
        result: kept(run.result.as_deref()),
        rows_affected: run.rows_affected,
        log_ref: run.log_ref.clone(),
        event_id: run.event.map(|event| event.0),
        rerun_of: run.rerun_of.map(|run| run.0),
        idempotency_key: run.idempotency_key.clone(),
        executions: None,
        notes: None,
    }
}

fn execution_view(one: &Execution) -> ExecutionView {
    ExecutionView {
        attempt_no: one.attempt_no,
        outcome: one.outcome.map(AttemptOutcome::as_str),
        worker: one.worker.to_string(),
        epoch: one.epoch.map(|epoch| epoch.0),
        assigned_at: at(one.assigned_at),
        started_at: maybe_at(one.started_at),
        finished_at: maybe_at(one.finished_at),
        exit_code: one.exit_code,
        exit_signal: one.exit_signal,
        error_code: one.error_code.as_ref().map(ToString::to_string),
        error_message: one.error_message.clone(),
        result: kept(one.result.as_deref()),
        rows_affected: one.rows_affected,
        log_ref: one.log_ref.clone(),
    }
}

fn note_view(note: &RunNote) -> Note {
    Note {
        attempt_no: note.attempt_no,
        verb: note.verb.as_str(),
        actor: note.actor.clone(),
        reason: note.reason.clone(),
        epoch: note.epoch.map(|epoch| epoch.0),
        at: at(note.at),
    }
}

/// A run with its whole history.
pub(crate) fn detail_view(detail: &RunDetail) -> Run {
    Run {
        executions: Some(detail.executions.iter().map(execution_view).collect()),
        notes: Some(detail.notes.iter().map(note_view).collect()),
        ..view(&detail.now)
    }
}
