//! The routes of version 1, and the role that each needs.

#![expect(unused_qualifications, reason = "the macro that documents a route generates them")]

pub(crate) mod audit;
pub(crate) mod events;
pub(crate) mod job_input;
pub(crate) mod job_patch;
pub(crate) mod job_view;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod run_view;
pub(crate) mod runs;
pub(crate) mod schedule_preview;
pub(crate) mod settings;
pub(crate) mod tokens;
pub(crate) mod trigger_and_submit;
pub(crate) mod workers_and_leader;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tasuki::Operator;
use tasuki::operator::AccessRole::{Admin, Author, Operator as OperatorRole, Viewer};
use utoipa_axum::routes;

use crate::problem::Problem;
use crate::route_entry::{RouteEntry, route_for_role, streaming_route_for_role};

/// Returns every route with the role that it needs.
pub(crate) fn list_routes_with_roles() -> Vec<RouteEntry> {
    vec![
        route_for_role(Author, routes!(jobs::create_job)),
        route_for_role(Viewer, routes!(jobs::list_jobs)),
        route_for_role(Viewer, routes!(jobs::show_job)),
        route_for_role(Author, routes!(jobs::edit_job)),
        route_for_role(Author, routes!(jobs::delete_job)),
        route_for_role(Author, routes!(jobs::enable_job)),
        route_for_role(Author, routes!(jobs::disable_job)),
        route_for_role(OperatorRole, routes!(jobs::pause_job)),
        route_for_role(OperatorRole, routes!(jobs::resume_job)),
        route_for_role(OperatorRole, routes!(trigger_and_submit::trigger_job)),
        route_for_role(Viewer, routes!(schedule_preview::preview_schedule)),
        route_for_role(OperatorRole, routes!(trigger_and_submit::submit_task)),
        route_for_role(OperatorRole, routes!(trigger_and_submit::submit_tasks)),
        route_for_role(Viewer, routes!(runs::list_runs)),
        route_for_role(Viewer, routes!(runs::show_run)),
        route_for_role(Viewer, routes!(logs::read_log)),
        streaming_route_for_role(Viewer, routes!(logs::follow_run)),
        route_for_role(OperatorRole, routes!(runs::cancel_run)),
        route_for_role(OperatorRole, routes!(runs::retry_run)),
        route_for_role(OperatorRole, routes!(runs::rerun_run)),
        streaming_route_for_role(OperatorRole, routes!(runs::wait_for_run)),
        route_for_role(Viewer, routes!(runs::explain_run)),
        route_for_role(OperatorRole, routes!(events::emit_event)),
        route_for_role(Viewer, routes!(events::list_events)),
        route_for_role(Viewer, routes!(events::show_event)),
        route_for_role(Viewer, routes!(workers_and_leader::list_workers)),
        route_for_role(Viewer, routes!(workers_and_leader::show_worker)),
        route_for_role(OperatorRole, routes!(workers_and_leader::drain_worker)),
        route_for_role(OperatorRole, routes!(workers_and_leader::detach_worker)),
        route_for_role(Viewer, routes!(workers_and_leader::show_leader)),
        route_for_role(OperatorRole, routes!(workers_and_leader::demote_leader)),
        route_for_role(Viewer, routes!(settings::list_settings)),
        route_for_role(Viewer, routes!(settings::show_setting)),
        route_for_role(Admin, routes!(settings::change_settings)),
        route_for_role(Admin, routes!(audit::list_audit)),
        route_for_role(Admin, routes!(tokens::list_tokens)),
        route_for_role(Admin, routes!(tokens::create_token)),
        route_for_role(Admin, routes!(tokens::revoke_token)),
        route_for_role(Viewer, routes!(tokens::who_am_i)),
    ]
}

/// Health checks. They need no token, because load balancers and Kubernetes call them.
pub(crate) fn health_routes() -> Router<Operator> {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready))
}

/// Liveness: always succeeds while the process runs.
async fn alive() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

/// Readiness: succeeds if the database responds.
async fn ready(State(operator): State<Operator>) -> Response {
    match operator.ping_database().await {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(error) => {
            tracing::warn!(%error, "the readiness check failed");
            let detail = "the database does not respond at the moment";
            Problem::new(crate::problem::UNAVAILABLE, detail).into_response()
        }
    }
}

/// Formats an instant, always with microseconds, so that the texts sort like the instants.
fn format_instant(instant: Timestamp) -> String {
    format!("{instant:.6}")
}

fn format_optional_instant(instant: Option<Timestamp>) -> Option<String> {
    instant.map(format_instant)
}

/// Parses JSON that is stored as text. Invalid JSON becomes a JSON string with that text.
fn parse_stored_json(text: Option<&str>) -> Option<serde_json::Value> {
    text.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

/// A JSON response with a status code.
type JsonResponse<T> = Result<(axum::http::StatusCode, Json<T>), Problem>;

/// Responds with 201 for a new object, and with 200 for one that existed before.
fn created_or_existing<T: Serialize>(existed: bool, view: T) -> JsonResponse<T> {
    use axum::http::StatusCode;
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(view)))
}
