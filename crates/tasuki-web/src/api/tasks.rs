//! Runs that somebody asks for.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tasuki::Operator;
use tasuki::operator::TaskDraft;
use tasuki_core::{Invalid, Scope};
use utoipa::ToSchema;

use super::job_input::choice;
use super::jobs::OneJob;
use super::run_view::{Run, view};
use super::{Answer, made};
use crate::input::{Act, Body, Headers, Input, Object, instant};
use crate::problem::Problem;

/// The most tasks in one request.
const MOST: usize = 1_000;

/// For what a run is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScopeInput {
    /// `tenant`
    #[schema(min_length = 1, max_length = 100)]
    kind: String,
    /// `42`
    #[schema(min_length = 1, max_length = 191)]
    id: String,
}

/// How a job is run now.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerAsked {
    /// Laid over the job's own arguments.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Not before; now, unless said.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<Object<ScopeInput>>,
}

impl Input for TriggerAsked {
    const OPTIONAL: bool = true;
}

/// A task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskInput {
    /// Of which job.
    #[schema(min_length = 1, max_length = 191)]
    job: String,
    /// Laid over the job's own arguments.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Not before; now, unless said.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    /// Given up after this.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<Object<ScopeInput>>,
    /// Whose slots it uses, if not those its job says; only of functions that workers claim.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// How much of a head start it has, if not what its job says; only of functions that workers claim.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
}

impl Input for TaskInput {}

/// A task among others.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchTask {
    /// Of which job.
    #[schema(min_length = 1, max_length = 191)]
    job: String,
    /// Laid over the job's own arguments.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Not before; now, unless said.
    #[schema(format = DateTime)]
    scheduled_for: Option<String>,
    /// Given up after this.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(value_type = Option<ScopeInput>)]
    scope: Option<Object<ScopeInput>>,
    /// Whose slots it uses, if not those its job says; only of functions that workers claim.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// How much of a head start it has, if not what its job says; only of functions that workers claim.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
    /// The same key twice is the same run.
    #[schema(min_length = 1, max_length = 191)]
    idempotency_key: Option<String>,
}

/// Many tasks, all or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    #[schema(min_items = 1, max_items = 1000)]
    #[schema(value_type = Vec<BatchTask>)]
    tasks: Vec<Object<BatchTask>>,
}

impl Input for Batch {
    const LONGEST: usize = 8 << 20;
    const LONG: &'static str = "tasks";
}

/// The runs of many tasks, in their order.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchMade {
    items: Vec<BatchRun>,
}

/// The run of one of many tasks.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchRun {
    #[schema(minimum = 1)]
    id: i64,
    /// Whether it was there before: the same idempotency key.
    existed: bool,
}

/// What is said of a run to be made, and the path under which it is said.
struct Said<'a> {
    path: &'a str,
    args: Option<&'a Map<String, Value>>,
    scheduled_for: Option<&'a str>,
    expires_at: Option<&'a str>,
    scope: Option<&'a ScopeInput>,
    queue: Option<&'a str>,
    priority: Option<&'a str>,
}

impl Said<'_> {
    fn draft(&self, job: String, idempotency_key: Option<String>) -> Result<TaskDraft, Problem> {
        let at = |field: &str| format!("{}{field}", self.path);
        let scope = self.scope.map(|scope| Scope::new(&scope.kind, &scope.id)).transpose();
        let scope = scope.map_err(|invalid| {
            let field = if invalid.field == "scope id" { "scope.id" } else { "scope.kind" };
            Problem::invalid(at(field), &invalid)
        })?;
        Ok(TaskDraft {
            job,
            args: self.args.map(|args| Value::Object(args.clone()).to_string()),
            scope,
            scheduled_for: instant(&at("scheduled_for"), self.scheduled_for)?,
            expires_at: instant(&at("expires_at"), self.expires_at)?,
            idempotency_key,
            queue: choice(&at("queue"), self.queue)?,
            priority: choice(&at("priority"), self.priority)?,
        })
    }
}

/// Runs a job now, whether it is enabled or not.
#[utoipa::path(post, path = "/api/v1/jobs/{name}/trigger", tag = "jobs",
    params(OneJob,
           ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 191)),
    request_body = TriggerAsked, responses(
    (status = 201, description = "a new run", body = Run),
    (status = 200, description = "the run that was made under this key before", body = Run),
    (status = 409, description = "the key belongs to a run of another job"),
))]
pub(crate) async fn trigger_job(act: Act, Body(body): Body<TriggerAsked>) -> Answer<Run> {
    let said = Said {
        path: "",
        args: body.args.as_ref(),
        scheduled_for: body.scheduled_for.as_deref(),
        expires_at: None,
        scope: body.scope.as_deref(),
        queue: None,
        priority: None,
    };
    let draft = said.draft(act.to.0, act.headers.idempotency_key()?)?;
    let submitted = act.operator.trigger(&act.actor, &draft).await?;
    made(submitted.existed, view(&submitted.run))
}

/// Submits a task.
#[utoipa::path(post, path = "/api/v1/tasks", tag = "tasks",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 191)),
    request_body = TaskInput, responses(
    (status = 201, description = "a new run", body = Run),
    (status = 200, description = "the run that was made under this key before", body = Run),
    (status = 404, description = "there is no such job"),
    (status = 409, description = "the job is off, or the key belongs to a run of another job"),
))]
pub(crate) async fn submit_task(
    State(operator): State<Operator>,
    headers: Headers,
    Body(body): Body<TaskInput>,
) -> Answer<Run> {
    let said = Said {
        path: "",
        args: body.args.as_ref(),
        scheduled_for: body.scheduled_for.as_deref(),
        expires_at: body.expires_at.as_deref(),
        scope: body.scope.as_deref(),
        queue: body.queue.as_deref(),
        priority: body.priority.as_deref(),
    };
    let draft = said.draft(body.job, headers.idempotency_key()?)?;
    let submitted = operator.submit(&draft).await?;
    made(submitted.existed, view(&submitted.run))
}

/// Submits many tasks, all or none.
#[utoipa::path(post, path = "/api/v1/tasks/batch", tag = "tasks", request_body = Batch, responses(
    (status = 200, description = "their runs, in the same order", body = BatchMade),
    (status = 404, description = "there is no such job"),
    (status = 409, description = "a job is off, or a key belongs to a run of another job"),
))]
pub(crate) async fn submit_tasks(
    State(operator): State<Operator>,
    Body(body): Body<Batch>,
) -> Result<Json<BatchMade>, Problem> {
    if !(1..=MOST).contains(&body.tasks.len()) {
        let found = format!("{} tasks", body.tasks.len());
        let invalid = Invalid::described("", found, "1 to 1000 tasks");
        return Err(Problem::invalid("tasks", &invalid));
    }
    let mut drafts = Vec::with_capacity(body.tasks.len());
    for (index, Object(task)) in body.tasks.into_iter().enumerate() {
        let said = Said {
            path: &format!("tasks[{index}]."),
            args: task.args.as_ref(),
            scheduled_for: task.scheduled_for.as_deref(),
            expires_at: task.expires_at.as_deref(),
            scope: task.scope.as_deref(),
            queue: task.queue.as_deref(),
            priority: task.priority.as_deref(),
        };
        drafts.push(said.draft(task.job, task.idempotency_key)?);
    }
    let created = operator.submit_all(&drafts).await?;
    let item = |one: &tasuki_store::Created| BatchRun { id: one.run.0, existed: one.existed };
    Ok(Json(BatchMade { items: created.iter().map(item).collect() }))
}
