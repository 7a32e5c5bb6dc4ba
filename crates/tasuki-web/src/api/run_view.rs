//! JSON of a run in responses.

use serde::Serialize;
use serde_json::Value;
use tasuki::operator::{RunDetail, RunOverview};
use tasuki_core::{AttemptOutcome, Lane};
use tasuki_store::{Execution, TransitionRecord};
use utoipa::ToSchema;

use super::{format_instant, format_optional_instant, parse_stored_json};

/// A run.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunView {
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
    /// Queue whose slots the run uses; null unless workers claim it.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// Priority among waiting runs; null unless workers claim it.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<&'static str>,
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Value>,
    attempt_no: u32,
    tries: u32,
    tries_allowed: u32,
    /// Number of retries so far.
    retry_count: u32,
    max_attempts: u32,
    version: i64,
    #[schema(format = DateTime)]
    next_retry_at: Option<String>,
    #[schema(format = DateTime)]
    skip_at: Option<String>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Worker that holds the run, or that held it last.
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
    /// Result that the job has reported: any JSON.
    result: Option<Value>,
    rows_affected: Option<i64>,
    log_ref: Option<String>,
    event_id: Option<i64>,
    rerun_of: Option<i64>,
    idempotency_key: Option<String>,
    /// All attempts. Only in the response for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    executions: Option<Vec<ExecutionView>>,
    /// Rare transitions, such as orphan, release and cancel. Only in the response for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<Vec<RunTransitionView>>,
}

/// An attempt at a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExecutionView {
    attempt_no: u32,
    /// How the attempt ended; null until then.
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

/// A rare transition of a run: who did it, and why.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunTransitionView {
    attempt_no: u32,
    verb: &'static str,
    actor: String,
    reason: Option<String>,
    epoch: Option<i64>,
    #[schema(format = DateTime)]
    at: String,
}

/// Converts a run to its JSON.
pub(crate) fn run_view(info: &RunOverview) -> RunView {
    let run = &info.run;
    let worker = run.worker.map(|worker| worker.to_string());
    let lane: Option<Lane> = run.lane.parse().ok();
    RunView {
        id: run.id.0,
        job: info.job.clone(),
        job_id: run.job.0,
        job_version: run.job_version,
        state: run.state.as_str(),
        origin: run.origin.as_str(),
        scope: run.scope.to_string(),
        scheduled_for: format_instant(run.scheduled_for),
        due_at: format_instant(run.due_at()),
        slot: run.slot.clone(),
        queue: lane.as_ref().map(|lane| lane.queue.to_string()),
        priority: lane.map(|lane| lane.priority.as_str()),
        args: parse_stored_json(run.args.as_deref()),
        attempt_no: run.counters.attempt_no,
        tries: run.counters.tries,
        tries_allowed: run.counters.tries_allowed,
        retry_count: run.counters.tries.saturating_sub(1),
        max_attempts: run.max_attempts,
        version: run.version,
        next_retry_at: format_optional_instant(run.next_retry_at),
        skip_at: format_optional_instant(run.skip_at),
        expires_at: format_optional_instant(run.expires_at),
        locked_by: worker.clone(),
        worker,
        epoch: run.epoch.map(|epoch| epoch.0),
        start_by: format_optional_instant(run.start_by),
        started_at: format_optional_instant(run.started_at),
        heartbeat_at: format_optional_instant(info.heartbeat_at),
        finished_at: format_optional_instant(run.finished_at),
        cancel_requested_at: format_optional_instant(run.cancel_requested_at),
        outcome: run.outcome.map(AttemptOutcome::as_str),
        exit_code: run.exit_code,
        exit_signal: run.exit_signal,
        error_code: run.error_code.as_ref().map(ToString::to_string),
        error_message: run.error_message.clone(),
        reason: run.reason.clone(),
        result: parse_stored_json(run.result.as_deref()),
        rows_affected: run.rows_affected,
        log_ref: run.log_ref.clone(),
        event_id: run.event.map(|event| event.0),
        rerun_of: run.rerun_of.map(|run| run.0),
        idempotency_key: run.idempotency_key.clone(),
        executions: None,
        notes: None,
    }
}

fn execution_view(execution: &Execution) -> ExecutionView {
    ExecutionView {
        attempt_no: execution.attempt_no,
        outcome: execution.outcome.map(AttemptOutcome::as_str),
        worker: execution.worker.to_string(),
        epoch: execution.epoch.map(|epoch| epoch.0),
        assigned_at: format_instant(execution.assigned_at),
        started_at: format_optional_instant(execution.started_at),
        finished_at: format_optional_instant(execution.finished_at),
        exit_code: execution.exit_code,
        exit_signal: execution.exit_signal,
        error_code: execution.error_code.as_ref().map(ToString::to_string),
        error_message: execution.error_message.clone(),
        result: parse_stored_json(execution.result.as_deref()),
        rows_affected: execution.rows_affected,
        log_ref: execution.log_ref.clone(),
    }
}

fn transition_view(transition: &TransitionRecord) -> RunTransitionView {
    RunTransitionView {
        attempt_no: transition.attempt_no,
        verb: transition.verb.as_str(),
        actor: transition.actor.clone(),
        reason: transition.reason.clone(),
        epoch: transition.epoch.map(|epoch| epoch.0),
        at: format_instant(transition.at),
    }
}

/// Converts a run to its JSON, with its attempts and transitions.
pub(crate) fn run_detail_view(detail: &RunDetail) -> RunView {
    RunView {
        executions: Some(detail.executions.iter().map(execution_view).collect()),
        notes: Some(detail.transitions.iter().map(transition_view).collect()),
        ..run_view(&detail.info)
    }
}
