//! Endpoints of jobs: create, list, show, change, enable, disable, pause, resume, delete.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::{Extension, response::IntoResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tasuki::Operator;
use tasuki::operator::{AccessRole, Actor, JobFilter, JobWithNextFire};
use tasuki_core::{InvalidInput, JobName, RunId};
use tasuki_store::ExpectedVersion;
use utoipa::{IntoParams, ToSchema};

use super::job_input::NewJob;
use super::job_patch::apply_merge_patch_to_job;
use super::job_view::{JobView, job_view};
use crate::input::{
    ActionContext, IfMatchHeaderDoc, JsonBody, QueryParams, RequestInput, UnvalidatedPathParam,
    parse_instant, parse_optional_param, parse_page_limit, parse_reason,
};
use crate::problem::Problem;

/// A page of jobs, sorted by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobPageView {
    items: Vec<JobView>,
    /// Value of `after` for the next page; null on the last page.
    next: Option<String>,
}

/// A changed job.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChangedJob {
    job: JobView,
    /// Ids of planned runs that this change has canceled.
    canceled_runs: Vec<i64>,
}

/// The result of deleting a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedJob {
    /// Ids of planned runs that this change has canceled.
    canceled_runs: Vec<i64>,
}

/// Reason and end of a pause.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRequest {
    /// Reason for the pause.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
    /// End of the pause. By default the job stays paused until it is resumed.
    #[schema(format = DateTime)]
    until: Option<String>,
}

impl RequestInput for PauseRequest {}
impl RequestInput for Map<String, Value> {}

/// Query parameters of the list of jobs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobsQuery {
    /// Only jobs after this name.
    #[param(min_length = 1, max_length = 191)]
    after: Option<String>,
    /// Maximum number of jobs.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
    /// Only jobs with this trigger.
    #[param(pattern = "^(time|event|task)$")]
    trigger: Option<String>,
    /// `true`: only enabled jobs; `false`: only disabled jobs.
    #[param(value_type = Option<bool>)]
    enabled: Option<String>,
}

/// The job name in the path, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "PathName reads it; this struct only documents it")]
pub(crate) struct JobPathDoc {
    #[param(min_length = 1, max_length = 191)]
    name: String,
}

fn view_for(info: &JobWithNextFire, actor: &Actor) -> Result<JobView, Problem> {
    job_view(info, actor.role >= AccessRole::Author).map_err(|invalid| {
        Problem::from(tasuki::operator::Error::Store(tasuki_store::Error::Broken(
            invalid.to_string(),
        )))
    })
}

fn etag(job: &JobView) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{}\"", job.version))]
}

/// Creates a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = NewJob, responses(
    (status = 201, description = "the new job", body = JobView, headers(("Location" = String), ("ETag" = String))),
    (status = 409, description = "another job has this name"),
))]
pub(crate) async fn create_job(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<NewJob>,
) -> Result<impl IntoResponse, Problem> {
    let created = operator.create_job(&actor, &body.name, &body.draft()?).await?;
    let job = view_for(&created, &actor)?;
    let location = format!("/api/v1/jobs/{}", percent_encode(&job.name));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], etag(&job), Json(job)))
}

/// Lists jobs by name.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobsQuery), responses(
    (status = 200, description = "a page of jobs", body = JobPageView),
))]
pub(crate) async fn list_jobs(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    QueryParams(query): QueryParams<JobsQuery>,
) -> Result<Json<JobPageView>, Problem> {
    let after: Option<JobName> = parse_optional_param("after", query.after.as_deref())?;
    let enabled = match query.enabled.as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => {
            let invalid = InvalidInput::with_value("", other, "true or false");
            return Err(Problem::malformed("enabled", &invalid));
        }
    };
    let is_known = |trigger: &&str| ["time", "event", "task"].contains(trigger);
    if let Some(other) = query.trigger.as_deref().filter(|trigger| !is_known(trigger)) {
        let invalid = InvalidInput::with_value("", other, "one of time, event, task");
        return Err(Problem::malformed("trigger", &invalid));
    }
    let filter = JobFilter { trigger: query.trigger, enabled };
    let after = after.as_ref().map(JobName::as_str);
    let page =
        operator.list_jobs(&filter, after, parse_page_limit(query.limit.as_deref())?).await?;
    let items = page.jobs.iter().map(|job| view_for(job, &actor)).collect::<Result<_, _>>()?;
    Ok(Json(JobPageView { items, next: page.next }))
}

/// Shows a job.
#[utoipa::path(get, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(JobPathDoc), responses(
    (status = 200, description = "the job", body = JobView, headers(("ETag" = String))),
))]
pub(crate) async fn show_job(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    UnvalidatedPathParam(name): UnvalidatedPathParam,
) -> Result<impl IntoResponse, Problem> {
    let job = view_for(&operator.get_job(&name).await?, &actor)?;
    Ok((etag(&job), Json(job)))
}

impl ActionContext {
    /// Reads the job, and returns the version that it must still have when it is changed: the one in `If-Match`, or with `*`
    /// the one just read.
    async fn find_job_and_version(&self) -> Result<(JobWithNextFire, ExpectedVersion), Problem> {
        let version = self.headers.if_match()?;
        let now = self.operator.get_job(&self.target.0).await?;
        let expected =
            ExpectedVersion { job: now.job.id, version: version.unwrap_or(now.job.version) };
        Ok((now, expected))
    }
}

type ChangeResult = Result<(JobWithNextFire, Vec<RunId>), tasuki::operator::Error>;

fn changed_job_response(
    change: ChangeResult,
    actor: &Actor,
) -> Result<impl IntoResponse + use<>, Problem> {
    let (now, canceled_runs) = change?;
    let job = view_for(&now, actor)?;
    let canceled_runs = canceled_runs.iter().map(|run| run.0).collect();
    Ok((etag(&job), Json(ChangedJob { job, canceled_runs })))
}

/// Changes a job with a JSON merge patch (RFC 7396).
#[utoipa::path(patch, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc),
    request_body(content = ref("#/components/schemas/JobPatch"), content_type = "application/json"), responses(
    (status = 200, description = "the changed job", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn edit_job(
    request: ActionContext,
    JsonBody(patch): JsonBody<Map<String, Value>>,
) -> Result<impl IntoResponse, Problem> {
    let (job, expected) = request.find_job_and_version().await?;
    let draft =
        apply_merge_patch_to_job(&request.target.0, as_input_json(&job)?, &patch)?.draft()?;
    changed_job_response(
        request.operator.edit_job(&request.actor, expected, &draft).await,
        &request.actor,
    )
}

/// Converts a job to the JSON with which it could be created: without its read-only fields.
fn as_input_json(job_info: &JobWithNextFire) -> Result<Value, Problem> {
    let job = job_view(job_info, true).map_err(|invalid| Problem::invalid("job", &invalid))?;
    let mut json = serde_json::to_value(job).unwrap_or_default();
    if let Some(fields) = json.as_object_mut() {
        for read_only in ["id", "version", "paused", "next_fire", "schedule_words", "updated_at"] {
            fields.remove(read_only);
        }
    }
    Ok(json)
}

/// Deletes a job. Its runs and their history stay.
#[utoipa::path(delete, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc), responses(
    (status = 200, description = "the job is deleted", body = DeletedJob),
))]
pub(crate) async fn delete_job(request: ActionContext) -> Result<Json<DeletedJob>, Problem> {
    let (_, expected) = request.find_job_and_version().await?;
    let canceled_runs = request.operator.delete_job(&request.actor, expected).await?;
    Ok(Json(DeletedJob { canceled_runs: canceled_runs.iter().map(|run| run.0).collect() }))
}

/// Enables a job: its trigger creates runs.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/enable", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc), responses(
    (status = 200, description = "the changed job", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn enable_job(request: ActionContext) -> Result<impl IntoResponse, Problem> {
    let (job, expected) = request.find_job_and_version().await?;
    changed_job_response(
        request.operator.enable_job(&request.actor, &job.job, expected).await,
        &request.actor,
    )
}

/// Disables a job: its trigger creates no runs.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/disable", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc), responses(
    (status = 200, description = "the changed job", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn disable_job(request: ActionContext) -> Result<impl IntoResponse, Problem> {
    let (_, expected) = request.find_job_and_version().await?;
    changed_job_response(
        request.operator.disable_job(&request.actor, expected).await,
        &request.actor,
    )
}

/// Pauses a job: its trigger creates no runs until the pause ends.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/pause", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc),
    request_body = PauseRequest, responses(
    (status = 200, description = "the changed job", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn pause_job(
    request: ActionContext,
    JsonBody(pause): JsonBody<PauseRequest>,
) -> Result<impl IntoResponse, Problem> {
    let (reason, until) =
        (parse_reason(&pause.reason)?, parse_instant("until", pause.until.as_deref())?);
    let (_, expected) = request.find_job_and_version().await?;
    changed_job_response(
        request.operator.pause_job(&request.actor, expected, &reason, until).await,
        &request.actor,
    )
}

/// Resumes a paused job.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/resume", tag = "jobs",
    params(JobPathDoc, IfMatchHeaderDoc), responses(
    (status = 200, description = "the changed job", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn resume_job(request: ActionContext) -> Result<impl IntoResponse, Problem> {
    let (job, expected) = request.find_job_and_version().await?;
    changed_job_response(
        request.operator.resume_job(&request.actor, &job.job, expected).await,
        &request.actor,
    )
}

/// A name as one segment of a path.
fn percent_encode(name: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(
            |byte| {
                if is_unreserved(byte) {
                    (byte as char).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}
