//! Endpoints of workers and of the leader.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki::operator::{Actor, LeaderInfo, WorkerInfo};
use tasuki_core::{Epoch, InvalidInput};
use utoipa::ToSchema;

use super::{format_instant, format_optional_instant};
use crate::input::{ActionContext, JsonBody, RequestInput, UnvalidatedPathParam, parse_reason};
use crate::problem::Problem;

/// A worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkerView {
    #[schema(format = "uuid")]
    id: String,
    node: String,
    slots: u32,
    function_slots: u32,
    #[schema(format = DateTime)]
    heartbeat_at: String,
    #[schema(pattern = "^(active|draining|detached|dead|gone)$")]
    state: &'static str,
    #[schema(format = DateTime)]
    draining_at: Option<String>,
    #[schema(format = DateTime)]
    detached_at: Option<String>,
    /// Number of leases that the worker holds.
    leases: u32,
}

/// All workers, without the ones that are gone.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkerList {
    items: Vec<WorkerView>,
}

/// The leader and the newest terms.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeaderView {
    epoch: i64,
    #[schema(format = "uuid")]
    holder: Option<String>,
    #[schema(format = DateTime)]
    lease_until: String,
    /// The database's clock when this was read.
    #[schema(format = DateTime)]
    clock: String,
    /// The newest terms, newest first.
    terms: Vec<TermView>,
}

/// A term of a leader.
#[derive(Serialize, ToSchema)]
pub(crate) struct TermView {
    epoch: i64,
    #[schema(format = "uuid")]
    holder: String,
    #[schema(format = DateTime)]
    began_at: String,
}

/// Reason for detaching a worker.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DetachWorkerRequest {
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

impl RequestInput for DetachWorkerRequest {}

/// Epoch and reason for ending the leader's term.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DemoteRequest {
    /// Epoch of the term to end, so that a newer term is not ended by mistake.
    #[schema(minimum = 1)]
    epoch: i64,
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

impl RequestInput for DemoteRequest {}

/// Converts a worker to its JSON.
pub(crate) fn worker_view(info: &WorkerInfo) -> WorkerView {
    let worker = &info.worker;
    WorkerView {
        id: worker.id.to_string(),
        node: worker.node.to_string(),
        slots: worker.slots,
        function_slots: worker.function_slots,
        heartbeat_at: format_instant(worker.heartbeat_at),
        state: info.state,
        draining_at: format_optional_instant(worker.draining_at),
        detached_at: format_optional_instant(worker.detached_at),
        leases: info.leases,
    }
}

/// Converts the leader to its JSON.
pub(crate) fn leader_view(info: &LeaderInfo) -> LeaderView {
    let term = |term: &tasuki_store::Term| TermView {
        epoch: term.epoch.0,
        holder: term.holder.to_string(),
        began_at: format_instant(term.began_at),
    };
    LeaderView {
        epoch: info.leader.epoch.0,
        holder: info.leader.holder.map(|holder| holder.to_string()),
        lease_until: format_instant(info.leader.lease_until),
        clock: format_instant(info.leader.clock),
        terms: info.terms.iter().map(term).collect(),
    }
}

/// Lists all workers, without the ones that are gone.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", responses(
    (status = 200, description = "the workers", body = WorkerList),
))]
pub(crate) async fn list_workers(
    State(operator): State<Operator>,
) -> Result<Json<WorkerList>, Problem> {
    let workers = operator.list_workers().await?;
    Ok(Json(WorkerList { items: workers.iter().map(worker_view).collect() }))
}

/// Shows a worker.
#[utoipa::path(get, path = "/api/v1/workers/{id}", tag = "workers", params(("id" = String, Path, format = "uuid")), responses(
    (status = 200, description = "the worker", body = WorkerView),
))]
pub(crate) async fn show_worker(
    State(operator): State<Operator>,
    id: UnvalidatedPathParam,
) -> Result<Json<WorkerView>, Problem> {
    Ok(Json(worker_view(&operator.get_worker(id.id("worker")?).await?)))
}

/// Drains a worker: it finishes its runs and takes no new ones.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = String, Path, format = "uuid")), responses(
    (status = 200, description = "the draining worker", body = WorkerView),
    (status = 409, description = "the worker is already draining, or has left"),
))]
pub(crate) async fn drain_worker(request: ActionContext) -> Result<Json<WorkerView>, Problem> {
    Ok(Json(worker_view(
        &request.operator.drain_worker(&request.actor, request.target.id("worker")?).await?,
    )))
}

/// Detaches a worker: its runs are recovered by others.
#[utoipa::path(post, path = "/api/v1/workers/{id}/detach", tag = "workers", params(("id" = String, Path, format = "uuid")),
    request_body = DetachWorkerRequest, responses(
    (status = 200, description = "the detached worker", body = WorkerView),
    (status = 409, description = "the worker is already detached, or has left"),
))]
pub(crate) async fn detach_worker(
    request: ActionContext,
    JsonBody(body): JsonBody<DetachWorkerRequest>,
) -> Result<Json<WorkerView>, Problem> {
    let reason = parse_reason(&body.reason)?;
    let worker = request
        .operator
        .detach_worker(&request.actor, request.target.id("worker")?, &reason)
        .await?;
    Ok(Json(worker_view(&worker)))
}

/// Shows the leader.
#[utoipa::path(get, path = "/api/v1/leader", tag = "leader", responses(
    (status = 200, description = "the leader and the newest terms", body = LeaderView),
))]
pub(crate) async fn show_leader(
    State(operator): State<Operator>,
) -> Result<Json<LeaderView>, Problem> {
    Ok(Json(leader_view(&operator.leader_info().await?)))
}

/// Ends the term of the leader, so that another worker can become leader.
#[utoipa::path(post, path = "/api/v1/leader/demote", tag = "leader", request_body = DemoteRequest, responses(
    (status = 200, description = "the term is ended; there is no leader until the next election", body = LeaderView),
    (status = 409, description = "there is a newer term, or no leader"),
))]
pub(crate) async fn demote_leader(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<DemoteRequest>,
) -> Result<Json<LeaderView>, Problem> {
    let reason = parse_reason(&body.reason)?;
    if body.epoch < 1 {
        let invalid = InvalidInput::with_described_value(
            "",
            body.epoch.to_string(),
            "a number of at least 1",
        );
        return Err(Problem::invalid("epoch", &invalid));
    }
    Ok(Json(leader_view(&operator.demote_leader(&actor, Epoch(body.epoch), &reason).await?)))
}
