//! Endpoints of runs: list, show, cancel, retry, rerun, wait, explain.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki_core::{InvalidInput, Origin, RunId, RunScope, RunState, duration};
use tasuki_store::{RunFilter, RunListPosition};
use utoipa::{IntoParams, ToSchema};

use super::run_view::{RunView, run_detail_view, run_view};
use super::{JsonResponse, created_or_existing, format_optional_instant};
use crate::input::{
    ActionContext, JsonBody, QueryParams, RequestInput, UnvalidatedPathParam, parse_instant_param,
    parse_optional_param, parse_optional_reason, parse_page_limit,
};
use crate::problem::Problem;
use crate::serve::ShutdownSignal;

/// Maximum time that one request waits for a run.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A page of runs, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunPageView {
    items: Vec<RunView>,
    /// Value of `cursor` for the next page; null on the last page. A page may be empty although further pages follow.
    next: Option<String>,
    /// Number of runs that were read to find the runs of this page.
    looked_at: usize,
    /// Planned instant of the last run that was read.
    #[schema(format = DateTime)]
    looked_to: Option<String>,
}

/// Query parameters of the list of runs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsQuery {
    /// Only runs of this job.
    #[param(min_length = 1, max_length = 191)]
    job: Option<String>,
    /// Only runs in one of these states, separated by commas.
    #[param(pattern = "^[A-Z_]+(,[A-Z_]+)*$")]
    state: Option<String>,
    /// Only runs with this origin.
    #[param(pattern = "^(time|event|task|manual|rerun)$")]
    origin: Option<String>,
    /// Only runs of this scope, as `kind/id`.
    #[param(pattern = "^[^/]+/.+$")]
    scope: Option<String>,
    /// Only runs planned at this instant or later.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Only runs planned before this instant.
    #[param(format = DateTime)]
    until: Option<String>,
    /// Value of `next` in the previous page.
    cursor: Option<String>,
    /// Maximum number of runs.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

/// Query parameters of waiting for a run.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Maximum time to wait, at most 60s. Default: 30s.
    timeout: Option<String>,
}

/// Reason for an action, stored with the run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasonInput {
    #[schema(min_length = 1, max_length = 1000)]
    reason: Option<String>,
}

impl RequestInput for ReasonInput {
    const OPTIONAL: bool = true;
}

/// The result of a cancel request.
#[derive(Serialize, ToSchema)]
pub(crate) struct CanceledRun {
    run: RunView,
    /// Whether the run has ended; otherwise its worker will stop it.
    done: bool,
}

/// A run that will be retried.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetriedRun {
    run: RunView,
}

/// Explanation of the state of a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct RunExplanation {
    run: i64,
    state: &'static str,
    sentences: Vec<String>,
}

/// Lists runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsQuery), responses(
    (status = 200, description = "a page of runs", body = RunPageView),
    (status = 404, description = "the job does not exist"),
))]
pub(crate) async fn list_runs(
    State(operator): State<Operator>,
    QueryParams(query): QueryParams<RunsQuery>,
) -> Result<Json<RunPageView>, Problem> {
    let state_names = query.state.as_deref().map(|states| states.split(',')).into_iter().flatten();
    let states = state_names.map(str::parse::<RunState>).collect::<Result<Vec<_>, _>>();
    let filter = RunFilter {
        job: None,
        states: states.map_err(|invalid| Problem::malformed("state", &invalid))?,
        scope: query.scope.as_deref().map(parse_scope).transpose()?,
        origin: parse_optional_param::<Origin>("origin", query.origin.as_deref())?,
        since: parse_instant_param("since", query.since.as_deref())?,
        until: parse_instant_param("until", query.until.as_deref())?,
    };
    let from = parse_optional_param::<RunListPosition>("cursor", query.cursor.as_deref())?;
    let limit = parse_page_limit(query.limit.as_deref())?;
    let page = operator.list_runs(query.job.as_deref(), filter, from.as_ref(), limit).await;
    let page = page.map_err(|error| match error {
        tasuki::operator::Error::Invalid(invalid) if invalid.field == "cursor" => {
            Problem::malformed("cursor", &invalid)
        }
        other => other.into(),
    })?;
    Ok(Json(RunPageView {
        items: page.runs.iter().map(run_view).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        looked_at: page.scanned,
        looked_to: format_optional_instant(page.scanned_until),
    }))
}

fn parse_scope(text: &str) -> Result<RunScope, Problem> {
    let expected = "a kind, a slash and an id, such as tenant/42";
    let malformed = |invalid| Problem::malformed("scope", &invalid);
    let (kind, id) = text
        .split_once('/')
        .ok_or_else(|| malformed(InvalidInput::with_value("", text, expected)))?;
    RunScope::new(kind, id).map_err(malformed)
}

/// Shows a run with its attempts and rare transitions.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the run", body = RunView),
))]
pub(crate) async fn show_run(
    State(operator): State<Operator>,
    id: UnvalidatedPathParam,
) -> Result<Json<RunView>, Problem> {
    Ok(Json(run_detail_view(&operator.get_run_detail(id.id("run")?).await?)))
}

/// Cancels a run. If it is running, its worker stops it.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = ReasonInput, responses(
    (status = 200, description = "the run is canceled, or will be stopped", body = CanceledRun),
    (status = 409, description = "the run has already ended, or a cancel was already requested"),
))]
pub(crate) async fn cancel_run(
    request: ActionContext,
    JsonBody(body): JsonBody<ReasonInput>,
) -> Result<Json<CanceledRun>, Problem> {
    let reason = parse_optional_reason(body.reason.as_deref())?;
    let (run, done) = request
        .operator
        .cancel(&request.actor, request.target.id("run")?, reason.as_deref())
        .await?;
    Ok(Json(CanceledRun { run: run_view(&run), done }))
}

/// Retries a run that has failed.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = ReasonInput, responses(
    (status = 200, description = "the run, which waits for its retry", body = RetriedRun),
    (status = 409, description = "the run has not failed"),
))]
pub(crate) async fn retry_run(
    request: ActionContext,
    JsonBody(body): JsonBody<ReasonInput>,
) -> Result<Json<RetriedRun>, Problem> {
    let reason = parse_optional_reason(body.reason.as_deref())?;
    let run = request
        .operator
        .retry(&request.actor, request.target.id("run")?, reason.as_deref())
        .await?;
    Ok(Json(RetriedRun { run: run_view(&run) }))
}

/// Creates a new run with the job version and arguments of an ended run.
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 201, description = "the new run", body = RunView),
    (status = 409, description = "the run has not ended, or its job was deleted"),
))]
pub(crate) async fn rerun_run(request: ActionContext) -> JsonResponse<RunView> {
    let run = request.operator.rerun(&request.actor, request.target.id("run")?).await?;
    created_or_existing(false, run_view(&run))
}

/// Waits until a run has ended, or until the timeout.
#[utoipa::path(get, path = "/api/v1/runs/{id}/wait", tag = "runs",
    params(("id" = i64, Path, minimum = 1), WaitQuery), responses(
    (status = 200, description = "the run at its end, or at the timeout", body = RunView),
))]
pub(crate) async fn wait_for_run(
    State(operator): State<Operator>,
    stopping: Option<Extension<ShutdownSignal>>,
    id: UnvalidatedPathParam,
    QueryParams(query): QueryParams<WaitQuery>,
) -> JsonResponse<RunView> {
    let run: RunId = id.id("run")?;
    let parsed = query
        .timeout
        .as_deref()
        .map(|text| duration::parse_duration_field("timeout", text))
        .transpose();
    let timeout = parsed.map_err(|invalid| Problem::malformed("timeout", &invalid))?;
    let timeout = timeout.unwrap_or(Duration::from_secs(30));
    if timeout > MAX_WAIT {
        let invalid = InvalidInput::with_described_value(
            "",
            duration::format_exact_duration(timeout),
            "at most 60s",
        );
        return Err(Problem::malformed("timeout", &invalid));
    }
    let now = tokio::select! {
        waited = operator.wait_until_ended(run, timeout) => waited?.info,
        // The server is stopping: respond with the current state. The client sends its request again, to another server.
        () = ShutdownSignal::wait(stopping.map(|Extension(stopping)| stopping)) => operator.get_run(run).await?,
    };
    Ok((StatusCode::OK, Json(run_view(&now))))
}

/// Explains why a run is in its state.
#[utoipa::path(get, path = "/api/v1/runs/{id}/explain", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the explanation, as sentences", body = RunExplanation),
))]
pub(crate) async fn explain_run(
    State(operator): State<Operator>,
    id: UnvalidatedPathParam,
) -> Result<Json<RunExplanation>, Problem> {
    let (now, sentences) = operator.explain_run(id.id("run")?).await?;
    Ok(Json(RunExplanation { run: now.run.id.0, state: now.run.state.as_str(), sentences }))
}
