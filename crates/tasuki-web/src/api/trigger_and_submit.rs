//! Endpoints that create runs: trigger a job, submit tasks.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tasuki::Operator;
use tasuki::operator::TaskDraft;
use tasuki_core::{InvalidInput, RunScope};
use utoipa::ToSchema;

use super::job_input::parse_optional_field;
use super::jobs::JobPathDoc;
use super::run_view::{RunView, run_view};
use super::{JsonResponse, created_or_existing};
use crate::input::{
    ActionContext, ActionHeaders, JsonBody, JsonObject, RequestInput, parse_instant,
};
use crate::problem::Problem;

/// Maximum number of tasks in one request.
const MAX_TASKS: usize = 1_000;

/// Scope of a run: the object for which it runs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScopeInput {
    /// Kind of the object, such as `tenant`.
    #[schema(min_length = 1, max_length = 100)]
    kind: String,
    /// Id of the object, such as `42`.
    #[schema(min_length = 1, max_length = 191)]
    id: String,
}

/// Parameters of a triggered run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerRunInput {
    /// Arguments of the run, merged over those of the job.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Earliest start of the run. Default: now.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<JsonObject<ScopeInput>>,
}

impl RequestInput for TriggerRunInput {
    const OPTIONAL: bool = true;
}

/// A task to submit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskInput {
    /// Name of the job.
    #[schema(min_length = 1, max_length = 191)]
    job: String,
    /// Arguments of the run, merged over those of the job.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Earliest start of the run. Default: now.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    /// The run expires if it has not started by then.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<JsonObject<ScopeInput>>,
    /// Queue whose slots the run uses; only for functions that workers claim. Default: that of the job.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// Priority among waiting runs; only for functions that workers claim. Default: that of the job.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
}

impl RequestInput for TaskInput {}

/// A task in a batch.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchTaskInput {
    /// Name of the job.
    #[schema(min_length = 1, max_length = 191)]
    job: String,
    /// Arguments of the run, merged over those of the job.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Earliest start of the run. Default: now.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    /// The run expires if it has not started by then.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<JsonObject<ScopeInput>>,
    /// Queue whose slots the run uses; only for functions that workers claim. Default: that of the job.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// Priority among waiting runs; only for functions that workers claim. Default: that of the job.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
    /// Two tasks with the same key are the same run.
    #[schema(min_length = 1, max_length = 191)]
    idempotency_key: Option<String>,
}

/// A batch of tasks. Either all of them are submitted, or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskBatch {
    #[schema(min_items = 1, max_items = 1000)]
    #[schema(value_type = Vec<BatchTaskInput>)]
    tasks: Vec<JsonObject<BatchTaskInput>>,
}

impl RequestInput for TaskBatch {
    const MAX_BYTES: usize = 8 << 20;
    const SIZE_FIELD: &'static str = "tasks";
}

/// The runs of a batch, in the order of its tasks.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedBatch {
    items: Vec<CreatedBatchRun>,
}

/// The run of one task of a batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedBatchRun {
    #[schema(minimum = 1)]
    id: i64,
    /// Whether the run existed before: the same idempotency key.
    existed: bool,
}

/// Parameters of a run to create, and the path of their fields in the request for error messages.
struct RunParameters<'a> {
    path: &'a str,
    args: Option<&'a Map<String, Value>>,
    scheduled_for: Option<&'a str>,
    expires_at: Option<&'a str>,
    scope: Option<&'a ScopeInput>,
    queue: Option<&'a str>,
    priority: Option<&'a str>,
}

impl RunParameters<'_> {
    fn draft(&self, job: String, idempotency_key: Option<String>) -> Result<TaskDraft, Problem> {
        let field_path = |field: &str| format!("{}{field}", self.path);
        let scope = self.scope.map(|scope| RunScope::new(&scope.kind, &scope.id)).transpose();
        let scope = scope.map_err(|invalid| {
            let field = if invalid.field == "scope id" { "scope.id" } else { "scope.kind" };
            Problem::invalid(field_path(field), &invalid)
        })?;
        Ok(TaskDraft {
            job,
            args: self.args.map(|args| Value::Object(args.clone()).to_string()),
            scope,
            scheduled_for: parse_instant(&field_path("scheduled_for"), self.scheduled_for)?,
            expires_at: parse_instant(&field_path("expires_at"), self.expires_at)?,
            idempotency_key,
            queue: parse_optional_field(&field_path("queue"), self.queue)?,
            priority: parse_optional_field(&field_path("priority"), self.priority)?,
        })
    }
}

/// Triggers a job: creates a run, whether the job is enabled or not.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/trigger", tag = "jobs",
    params(JobPathDoc,
           ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 191)),
    request_body = TriggerRunInput, responses(
    (status = 201, description = "a new run", body = RunView),
    (status = 200, description = "the run that was created before with this key", body = RunView),
    (status = 409, description = "the key belongs to a run of another job"),
))]
pub(crate) async fn trigger_job(
    request: ActionContext,
    JsonBody(body): JsonBody<TriggerRunInput>,
) -> JsonResponse<RunView> {
    let parameters = RunParameters {
        path: "",
        args: body.args.as_ref(),
        scheduled_for: body.scheduled_for.as_deref(),
        expires_at: None,
        scope: body.scope.as_deref(),
        queue: None,
        priority: None,
    };
    let draft = parameters.draft(request.target.0, request.headers.idempotency_key()?)?;
    let submitted = request.operator.trigger(&request.actor, &draft).await?;
    created_or_existing(submitted.existed, run_view(&submitted.run))
}

/// Submits a task.
#[utoipa::path(post, path = "/api/v1/tasks", tag = "tasks",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 191)),
    request_body = TaskInput, responses(
    (status = 201, description = "a new run", body = RunView),
    (status = 200, description = "the run that was created before with this key", body = RunView),
    (status = 404, description = "the job does not exist"),
    (status = 409, description = "the job is disabled or paused, or the key belongs to a run of another job"),
))]
pub(crate) async fn submit_task(
    State(operator): State<Operator>,
    headers: ActionHeaders,
    JsonBody(body): JsonBody<TaskInput>,
) -> JsonResponse<RunView> {
    let parameters = RunParameters {
        path: "",
        args: body.args.as_ref(),
        scheduled_for: body.scheduled_for.as_deref(),
        expires_at: body.expires_at.as_deref(),
        scope: body.scope.as_deref(),
        queue: body.queue.as_deref(),
        priority: body.priority.as_deref(),
    };
    let draft = parameters.draft(body.job, headers.idempotency_key()?)?;
    let submitted = operator.submit_and_read(&draft).await?;
    created_or_existing(submitted.existed, run_view(&submitted.run))
}

/// Submits a batch of tasks: all of them, or none.
#[utoipa::path(post, path = "/api/v1/tasks/batch", tag = "tasks", request_body = TaskBatch, responses(
    (status = 200, description = "the runs, in the order of the tasks", body = CreatedBatch),
    (status = 404, description = "the job does not exist"),
    (status = 409, description = "a job is disabled or paused, or a key belongs to a run of another job"),
))]
pub(crate) async fn submit_tasks(
    State(operator): State<Operator>,
    JsonBody(body): JsonBody<TaskBatch>,
) -> Result<Json<CreatedBatch>, Problem> {
    if !(1..=MAX_TASKS).contains(&body.tasks.len()) {
        let found = format!("{} tasks", body.tasks.len());
        let invalid = InvalidInput::with_described_value("", found, "1 to 1000 tasks");
        return Err(Problem::invalid("tasks", &invalid));
    }
    let mut drafts = Vec::with_capacity(body.tasks.len());
    for (index, JsonObject(task)) in body.tasks.into_iter().enumerate() {
        let parameters = RunParameters {
            path: &format!("tasks[{index}]."),
            args: task.args.as_ref(),
            scheduled_for: task.scheduled_for.as_deref(),
            expires_at: task.expires_at.as_deref(),
            scope: task.scope.as_deref(),
            queue: task.queue.as_deref(),
            priority: task.priority.as_deref(),
        };
        drafts.push(parameters.draft(task.job, task.idempotency_key)?);
    }
    let created = operator.submit_all(&drafts).await?;
    let item = |created: &tasuki_store::CreatedRun| CreatedBatchRun {
        id: created.run.0,
        existed: created.existed,
    };
    Ok(Json(CreatedBatch { items: created.iter().map(item).collect() }))
}
