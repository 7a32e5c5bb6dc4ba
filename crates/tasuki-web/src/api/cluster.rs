//! Workers and the lead.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki::operator::{Actor, Lead, WorkerNow};
use tasuki_core::{Epoch, Invalid};
use utoipa::ToSchema;

use super::{at, maybe_at};
use crate::input::{Act, Body, Input, Named, reason};
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
    /// How much it carries.
    leases: u32,
}

/// The workers that have not left.
#[derive(Serialize, ToSchema)]
pub(crate) struct Workers {
    items: Vec<WorkerView>,
}

/// Who leads, and who led.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeadView {
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

/// One term there was.
#[derive(Serialize, ToSchema)]
pub(crate) struct TermView {
    epoch: i64,
    #[schema(format = "uuid")]
    holder: String,
    #[schema(format = DateTime)]
    minted_at: String,
}

/// Why a worker is cut off.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Detach {
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

impl Input for Detach {}

/// Why another leader is wanted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Demote {
    /// The epoch that was seen.
    #[schema(minimum = 1)]
    epoch: i64,
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

impl Input for Demote {}

/// A worker as it is shown.
pub(crate) fn worker_view(now: &WorkerNow) -> WorkerView {
    let worker = &now.worker;
    WorkerView {
        id: worker.id.to_string(),
        node: worker.node.to_string(),
        slots: worker.slots,
        function_slots: worker.function_slots,
        heartbeat_at: at(worker.heartbeat_at),
        state: now.state,
        draining_at: maybe_at(worker.draining_at),
        detached_at: maybe_at(worker.detached_at),
        leases: now.leases,
    }
}

/// The lead as it is shown.
pub(crate) fn lead_view(lead: &Lead) -> LeadView {
    let term = |term: &tasuki_store::Term| TermView {
        epoch: term.epoch.0,
        holder: term.holder.to_string(),
        minted_at: at(term.minted_at),
    };
    LeadView {
        epoch: lead.leader.epoch.0,
        holder: lead.leader.holder.map(|holder| holder.to_string()),
        lease_until: at(lead.leader.lease_until),
        clock: at(lead.leader.clock),
        terms: lead.terms.iter().map(term).collect(),
    }
}

/// Lists the workers that have not left.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", responses(
    (status = 200, description = "all of them", body = Workers),
))]
pub(crate) async fn list_workers(
    State(operator): State<Operator>,
) -> Result<Json<Workers>, Problem> {
    let workers = operator.workers().await?;
    Ok(Json(Workers { items: workers.iter().map(worker_view).collect() }))
}

/// Shows a worker.
#[utoipa::path(get, path = "/api/v1/workers/{id}", tag = "workers", params(("id" = String, Path, format = "uuid")), responses(
    (status = 200, description = "the worker", body = WorkerView),
))]
pub(crate) async fn show_worker(
    State(operator): State<Operator>,
    id: Named,
) -> Result<Json<WorkerView>, Problem> {
    Ok(Json(worker_view(&operator.worker(id.id("worker")?).await?)))
}

/// No new work for a worker.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = String, Path, format = "uuid")), responses(
    (status = 200, description = "it takes no new work", body = WorkerView),
    (status = 409, description = "it drains already, or is gone"),
))]
pub(crate) async fn drain_worker(act: Act) -> Result<Json<WorkerView>, Problem> {
    Ok(Json(worker_view(&act.operator.drain_worker(&act.actor, act.to.id("worker")?).await?)))
}

/// Cuts a worker off.
#[utoipa::path(post, path = "/api/v1/workers/{id}/detach", tag = "workers", params(("id" = String, Path, format = "uuid")),
    request_body = Detach, responses(
    (status = 200, description = "it is cut off", body = WorkerView),
    (status = 409, description = "it is cut off already, or gone"),
))]
pub(crate) async fn detach_worker(
    act: Act,
    Body(body): Body<Detach>,
) -> Result<Json<WorkerView>, Problem> {
    let why = reason(&body.reason)?;
    let worker = act.operator.detach_worker(&act.actor, act.to.id("worker")?, &why).await?;
    Ok(Json(worker_view(&worker)))
}

/// Shows who leads.
#[utoipa::path(get, path = "/api/v1/leader", tag = "leader", responses(
    (status = 200, description = "who leads, and who led", body = LeadView),
))]
pub(crate) async fn show_leader(
    State(operator): State<Operator>,
) -> Result<Json<LeadView>, Problem> {
    Ok(Json(lead_view(&operator.lead().await?)))
}

/// Takes the lead from whoever has it.
#[utoipa::path(post, path = "/api/v1/leader/demote", tag = "leader", request_body = Demote, responses(
    (status = 200, description = "nobody leads until somebody is elected", body = LeadView),
    (status = 409, description = "somebody else leads by now, or nobody does"),
))]
pub(crate) async fn demote_leader(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    Body(body): Body<Demote>,
) -> Result<Json<LeadView>, Problem> {
    let why = reason(&body.reason)?;
    if body.epoch < 1 {
        let invalid = Invalid::described("", body.epoch.to_string(), "a number from 1 upwards");
        return Err(Problem::invalid("epoch", &invalid));
    }
    Ok(Json(lead_view(&operator.demote(&actor, Epoch(body.epoch), &why).await?)))
}
