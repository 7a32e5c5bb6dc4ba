//! Jobs: made, looked at, changed, switched, paused, deleted.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::{Extension, response::IntoResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tasuki::Operator;
use tasuki::operator::{Actor, JobFilter, JobNow, Role};
use tasuki_core::{Invalid, JobName, RunId};
use tasuki_store::Seen;
use utoipa::{IntoParams, ToSchema};

use super::job_input::NewJob;
use super::job_patch::patched;
use super::job_view::{Job, view};
use crate::input::{Act, Asked, Body, Input, Named, VersionSeen, instant, limit, reason, word};
use crate::problem::Problem;

/// Some jobs, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct Jobs {
    items: Vec<Job>,
    /// Where to look on: `after` of the next request.
    next: Option<String>,
}

/// A job that was changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChangedJob {
    job: Job,
    /// Runs that had been planned ahead and no longer stand.
    withdrawn: Vec<i64>,
}

/// A job that was deleted.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedJob {
    /// Runs that had been planned ahead and no longer stand.
    withdrawn: Vec<i64>,
}

/// Why a job is paused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    /// Why.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
    /// Until when; until somebody resumes it, unless said.
    #[schema(format = DateTime)]
    until: Option<String>,
}

impl Input for Pause {}
impl Input for Map<String, Value> {}

/// Which jobs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobsAsked {
    /// Those after this name.
    #[param(min_length = 1, max_length = 191)]
    after: Option<String>,
    /// At most so many.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
    /// Started by this.
    #[param(pattern = "^(time|event|task)$")]
    trigger: Option<String>,
    /// Those that are enabled, or those that are not.
    #[param(value_type = Option<bool>)]
    enabled: Option<String>,
}

/// The job in the path, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "Named reads it")]
pub(crate) struct OneJob {
    #[param(min_length = 1, max_length = 191)]
    name: String,
}

fn shown(now: &JobNow, to: &Actor) -> Result<Job, Problem> {
    view(now, to.role >= Role::Author).map_err(|invalid| {
        Problem::from(tasuki::operator::Error::Store(tasuki_store::Error::Broken(
            invalid.to_string(),
        )))
    })
}

fn etag(job: &Job) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{}\"", job.version))]
}

/// Makes a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = NewJob, responses(
    (status = 201, description = "it is there", body = Job, headers(("Location" = String), ("ETag" = String))),
    (status = 409, description = "another job has this name"),
))]
pub(crate) async fn create_job(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    Body(body): Body<NewJob>,
) -> Result<impl IntoResponse, Problem> {
    let made = operator.create_job(&actor, &body.name, &body.draft()?).await?;
    let job = shown(&made, &actor)?;
    let place = format!("/api/v1/jobs/{}", encoded(&job.name));
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], etag(&job), Json(job)))
}

/// Lists jobs by name.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobsAsked), responses(
    (status = 200, description = "some of them", body = Jobs),
))]
pub(crate) async fn list_jobs(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    Asked(asked): Asked<JobsAsked>,
) -> Result<Json<Jobs>, Problem> {
    let after: Option<JobName> = word("after", asked.after.as_deref())?;
    let enabled = match asked.enabled.as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => {
            let invalid = Invalid::typed("", other, "true or false");
            return Err(Problem::malformed("enabled", &invalid));
        }
    };
    let known = |word: &&str| ["time", "event", "task"].contains(word);
    if let Some(other) = asked.trigger.as_deref().filter(|word| !known(word)) {
        let invalid = Invalid::typed("", other, "one of time, event, task");
        return Err(Problem::malformed("trigger", &invalid));
    }
    let filter = JobFilter { trigger: asked.trigger, enabled };
    let after = after.as_ref().map(JobName::as_str);
    let page = operator.jobs(&filter, after, limit(asked.limit.as_deref())?).await?;
    let items = page.jobs.iter().map(|job| shown(job, &actor)).collect::<Result<_, _>>()?;
    Ok(Json(Jobs { items, next: page.next }))
}

/// Shows a job.
#[utoipa::path(get, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(OneJob), responses(
    (status = 200, description = "the job", body = Job, headers(("ETag" = String))),
))]
pub(crate) async fn show_job(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Result<impl IntoResponse, Problem> {
    let job = shown(&operator.job(&name).await?, &actor)?;
    Ok((etag(&job), Json(job)))
}

impl Act {
    /// The job that is to change, and the version that must still be there. `*` stands for the one that
    /// has just been read.
    async fn seen(&self) -> Result<(JobNow, Seen), Problem> {
        let version = self.headers.if_match()?;
        let now = self.operator.job(&self.to.0).await?;
        let seen = Seen { job: now.job.id, version: version.unwrap_or(now.job.version) };
        Ok((now, seen))
    }
}

type Changed = Result<(JobNow, Vec<RunId>), tasuki::operator::Error>;

fn changed(change: Changed, actor: &Actor) -> Result<impl IntoResponse + use<>, Problem> {
    let (now, withdrawn) = change?;
    let job = shown(&now, actor)?;
    let withdrawn = withdrawn.iter().map(|run| run.0).collect();
    Ok((etag(&job), Json(ChangedJob { job, withdrawn })))
}

/// Changes a job by a merge patch.
#[utoipa::path(patch, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(OneJob, VersionSeen),
    request_body(content = ref("#/components/schemas/JobPatch"), content_type = "application/json"), responses(
    (status = 200, description = "it is so now", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn edit_job(
    act: Act,
    Body(patch): Body<Map<String, Value>>,
) -> Result<impl IntoResponse, Problem> {
    let (now, seen) = act.seen().await?;
    let draft = patched(&act.to.0, writable(&now)?, &patch)?.draft()?;
    changed(act.operator.edit_job(&act.actor, seen, &draft).await, &act.actor)
}

/// A job as it would have been sent, whole.
fn writable(now: &JobNow) -> Result<Value, Problem> {
    let job = view(now, true).map_err(|invalid| Problem::invalid("job", &invalid))?;
    let mut whole = serde_json::to_value(job).unwrap_or_default();
    if let Some(fields) = whole.as_object_mut() {
        for only_read in ["id", "version", "paused", "next_fire", "schedule_words", "updated_at"] {
            fields.remove(only_read);
        }
    }
    Ok(whole)
}

/// Deletes a job; its history stays.
#[utoipa::path(delete, path = "/api/v1/jobs/{name}", tag = "jobs",
    params(OneJob, VersionSeen), responses(
    (status = 200, description = "it is no more", body = DeletedJob),
))]
pub(crate) async fn delete_job(act: Act) -> Result<Json<DeletedJob>, Problem> {
    let (_, seen) = act.seen().await?;
    let withdrawn = act.operator.delete_job(&act.actor, seen).await?;
    Ok(Json(DeletedJob { withdrawn: withdrawn.iter().map(|run| run.0).collect() }))
}

/// From now on it makes runs.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/enable", tag = "jobs",
    params(OneJob, VersionSeen), responses(
    (status = 200, description = "it is so now", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn enable_job(act: Act) -> Result<impl IntoResponse, Problem> {
    let (now, seen) = act.seen().await?;
    changed(act.operator.enable_job(&act.actor, &now.job, seen).await, &act.actor)
}

/// From now on it makes none.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/disable", tag = "jobs",
    params(OneJob, VersionSeen), responses(
    (status = 200, description = "it is so now", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn disable_job(act: Act) -> Result<impl IntoResponse, Problem> {
    let (_, seen) = act.seen().await?;
    changed(act.operator.disable_job(&act.actor, seen).await, &act.actor)
}

/// It makes no runs for a while.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/pause", tag = "jobs",
    params(OneJob, VersionSeen),
    request_body = Pause, responses(
    (status = 200, description = "it is so now", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn pause_job(
    act: Act,
    Body(pause): Body<Pause>,
) -> Result<impl IntoResponse, Problem> {
    let (why, until) = (reason(&pause.reason)?, instant("until", pause.until.as_deref())?);
    let (_, seen) = act.seen().await?;
    changed(act.operator.pause_job(&act.actor, seen, &why, until).await, &act.actor)
}

/// The pause is over.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/resume", tag = "jobs",
    params(OneJob, VersionSeen), responses(
    (status = 200, description = "it is so now", body = ChangedJob, headers(("ETag" = String))),
))]
pub(crate) async fn resume_job(act: Act) -> Result<impl IntoResponse, Problem> {
    let (now, seen) = act.seen().await?;
    changed(act.operator.resume_job(&act.actor, &now.job, seen).await, &act.actor)
}

/// A name as one segment of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
