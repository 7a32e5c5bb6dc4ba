//! Runs: looked at, canceled, tried again, run again, waited for, explained.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tasuki::Operator;
use tasuki::operator::{Actor, RunNow};
use tasuki_core::{Invalid, Origin, RunId, RunState, Scope, duration};
use tasuki_store::{Execution, RunCursor, RunFilter, RunNote};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, at, kept, made, maybe_at};
use crate::input::{Asked, Body, Input, Named, asked_instant, limit, optional_reason, word};
use crate::problem::Problem;
use crate::serve::Stopping;

/// The longest anybody waits in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

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

/// Some runs, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct Runs {
    items: Vec<Run>,
    /// Where to look on: `cursor` of the next request. A page may be empty and yet go on.
    next: Option<String>,
    looked_at: usize,
    #[schema(format = DateTime)]
    looked_to: Option<String>,
}

/// Which runs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsAsked {
    /// Of this job.
    #[param(min_length = 1, max_length = 191)]
    job: Option<String>,
    /// In one of these states, with commas between them.
    #[param(pattern = "^[A-Z_]+(,[A-Z_]+)*$")]
    state: Option<String>,
    /// Made by this.
    #[param(pattern = "^(time|event|task|manual|rerun)$")]
    origin: Option<String>,
    /// For this: `kind/id`.
    #[param(pattern = "^[^/]+/.+$")]
    scope: Option<String>,
    /// Planned at this instant or later.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Planned before this instant.
    #[param(format = DateTime)]
    until: Option<String>,
    /// Where the last page said to look on.
    cursor: Option<String>,
    /// At most so many.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

/// How long to wait.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitAsked {
    /// At most so long, and never longer than 60s; 30s, unless said.
    timeout: Option<String>,
}

/// Why something is done to a run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Why {
    #[schema(min_length = 1, max_length = 1000)]
    reason: Option<String>,
}

impl Input for Why {
    const OPTIONAL: bool = true;
}

/// What a cancel did.
#[derive(Serialize, ToSchema)]
pub(crate) struct CanceledRun {
    run: Run,
    /// Whether it has ended; otherwise its worker has been asked to stop it.
    done: bool,
}

/// A run that is tried again.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetriedRun {
    run: Run,
}

/// Why a run is where it is.
#[derive(Serialize, ToSchema)]
pub(crate) struct Explained {
    run: i64,
    state: &'static str,
    sentences: Vec<String>,
}

/// A run as it is shown.
pub(crate) fn view(now: &RunNow) -> Run {
    let run = &now.run;
    let worker = run.worker.map(|worker| worker.to_string());
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
        outcome: run.outcome.map(|outcome| outcome.as_str()),
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
        outcome: one.outcome.map(|outcome| outcome.as_str()),
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

/// Lists runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsAsked), responses(
    (status = 200, description = "some of them", body = Runs),
    (status = 404, description = "there is no such job"),
))]
pub(crate) async fn list_runs(
    State(operator): State<Operator>,
    Asked(asked): Asked<RunsAsked>,
) -> Result<Json<Runs>, Problem> {
    let words = asked.state.as_deref().map(|states| states.split(',')).into_iter().flatten();
    let states = words.map(str::parse::<RunState>).collect::<Result<Vec<_>, _>>();
    let filter = RunFilter {
        job: None,
        states: states.map_err(|invalid| Problem::malformed("state", &invalid))?,
        scope: asked.scope.as_deref().map(scope).transpose()?,
        origin: word::<Origin>("origin", asked.origin.as_deref())?,
        since: asked_instant("since", asked.since.as_deref())?,
        until: asked_instant("until", asked.until.as_deref())?,
    };
    let from = word::<RunCursor>("cursor", asked.cursor.as_deref())?;
    let most = limit(asked.limit.as_deref())?;
    let page = operator.runs(asked.job.as_deref(), filter, from.as_ref(), most).await;
    let page = page.map_err(|error| match error {
        tasuki::operator::Error::Invalid(invalid) if invalid.field == "cursor" => {
            Problem::malformed("cursor", &invalid)
        }
        other => other.into(),
    })?;
    Ok(Json(Runs {
        items: page.runs.iter().map(view).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        looked_at: page.looked_at,
        looked_to: maybe_at(page.looked_to),
    }))
}

fn scope(typed: &str) -> Result<Scope, Problem> {
    let expected = "a kind, a slash and an id, such as tenant/42";
    let refused = |invalid| Problem::malformed("scope", &invalid);
    let (kind, id) =
        typed.split_once('/').ok_or_else(|| refused(Invalid::typed("", typed, expected)))?;
    Scope::new(kind, id).map_err(refused)
}

/// Shows a run with its executions.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the run", body = Run),
))]
pub(crate) async fn show_run(
    State(operator): State<Operator>,
    id: Named,
) -> Result<Json<Run>, Problem> {
    let detail = operator.run_detail(id.id("run")?).await?;
    let mut run = view(&detail.now);
    run.executions = Some(detail.executions.iter().map(execution_view).collect());
    run.notes = Some(detail.notes.iter().map(note_view).collect());
    Ok(Json(run))
}

/// Cancels what has not started, asks what runs to stop.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = Why, responses(
    (status = 200, description = "it has ended, or was asked to", body = CanceledRun),
    (status = 409, description = "it has ended before, or was asked before"),
))]
pub(crate) async fn cancel_run(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    id: Named,
    Body(why): Body<Why>,
) -> Result<Json<CanceledRun>, Problem> {
    let reason = optional_reason(why.reason.as_deref())?;
    let (run, done) = operator.cancel(&actor, id.id("run")?, reason.as_deref()).await?;
    Ok(Json(CanceledRun { run: view(&run), done }))
}

/// Gives a run that ended badly one more try.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = Why, responses(
    (status = 200, description = "it waits to be tried again", body = RetriedRun),
    (status = 409, description = "it has not ended badly"),
))]
pub(crate) async fn retry_run(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    id: Named,
    Body(why): Body<Why>,
) -> Result<Json<RetriedRun>, Problem> {
    let reason = optional_reason(why.reason.as_deref())?;
    let run = operator.retry(&actor, id.id("run")?, reason.as_deref()).await?;
    Ok(Json(RetriedRun { run: view(&run) }))
}

/// Runs an ended run again: a new run.
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 201, description = "the new run", body = Run),
    (status = 409, description = "it has not ended, or its job was deleted"),
))]
pub(crate) async fn rerun_run(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    id: Named,
) -> Answer<Run> {
    let run = operator.rerun(&actor, id.id("run")?).await?;
    made(false, view(&run))
}

/// Waits until a run has ended.
#[utoipa::path(get, path = "/api/v1/runs/{id}/wait", tag = "runs",
    params(("id" = i64, Path, minimum = 1), WaitAsked), responses(
    (status = 200, description = "as it is at its end, or when the time is up", body = Run),
))]
pub(crate) async fn wait_for_run(
    State(operator): State<Operator>,
    stopping: Option<Extension<Stopping>>,
    id: Named,
    Asked(asked): Asked<WaitAsked>,
) -> Answer<Run> {
    let run: RunId = id.id("run")?;
    let read = asked.timeout.as_deref().map(|typed| duration::read("timeout", typed)).transpose();
    let timeout = read.map_err(|invalid| Problem::malformed("timeout", &invalid))?;
    let timeout = timeout.unwrap_or(Duration::from_secs(30));
    if timeout > LONGEST_WAIT {
        let invalid = Invalid::described("", duration::show(timeout), "at most 60s");
        return Err(Problem::malformed("timeout", &invalid));
    }
    let now = tokio::select! {
        waited = operator.wait(run, timeout) => waited?.now,
        // Whoever waits asks again, and finds the server that comes after.
        () = Stopping::told(stopping.map(|Extension(stopping)| stopping)) => operator.run(run).await?,
    };
    Ok((StatusCode::OK, Json(view(&now))))
}

/// Tells why a run is where it is.
#[utoipa::path(get, path = "/api/v1/runs/{id}/explain", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "in words", body = Explained),
))]
pub(crate) async fn explain_run(
    State(operator): State<Operator>,
    id: Named,
) -> Result<Json<Explained>, Problem> {
    let (now, sentences) = operator.explain(id.id("run")?).await?;
    Ok(Json(Explained { run: now.run.id.0, state: now.run.state.as_str(), sentences }))
}
