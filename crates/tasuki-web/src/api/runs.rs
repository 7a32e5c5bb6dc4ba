//! Runs: looked at, canceled, tried again, run again, waited for, explained.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki_core::{Invalid, Origin, RunId, RunState, Scope, duration};
use tasuki_store::{RunCursor, RunFilter};
use utoipa::{IntoParams, ToSchema};

use super::run_view::{Run, detail_view, view};
use super::{Answer, made, maybe_at};
use crate::input::{Act, Asked, Body, Input, Named, asked_instant, limit, optional_reason, word};
use crate::problem::Problem;
use crate::serve::Stopping;

/// The longest anybody waits in one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

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
    Ok(Json(detail_view(&operator.run_detail(id.id("run")?).await?)))
}

/// Cancels what has not started, asks what runs to stop.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = Why, responses(
    (status = 200, description = "it has ended, or was asked to", body = CanceledRun),
    (status = 409, description = "it has ended before, or was asked before"),
))]
pub(crate) async fn cancel_run(
    act: Act,
    Body(why): Body<Why>,
) -> Result<Json<CanceledRun>, Problem> {
    let reason = optional_reason(why.reason.as_deref())?;
    let (run, done) = act.operator.cancel(&act.actor, act.to.id("run")?, reason.as_deref()).await?;
    Ok(Json(CanceledRun { run: view(&run), done }))
}

/// Gives a run that ended badly one more try.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = i64, Path, minimum = 1)),
    request_body = Why, responses(
    (status = 200, description = "it waits to be tried again", body = RetriedRun),
    (status = 409, description = "it has not ended badly"),
))]
pub(crate) async fn retry_run(act: Act, Body(why): Body<Why>) -> Result<Json<RetriedRun>, Problem> {
    let reason = optional_reason(why.reason.as_deref())?;
    let run = act.operator.retry(&act.actor, act.to.id("run")?, reason.as_deref()).await?;
    Ok(Json(RetriedRun { run: view(&run) }))
}

/// Runs an ended run again: a new run.
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 201, description = "the new run", body = Run),
    (status = 409, description = "it has not ended, or its job was deleted"),
))]
pub(crate) async fn rerun_run(act: Act) -> Answer<Run> {
    let run = act.operator.rerun(&act.actor, act.to.id("run")?).await?;
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
