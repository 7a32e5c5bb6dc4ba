//! The routes of version 1, and who may use them.

#![expect(unused_qualifications, reason = "the macro that documents a route writes some")]

pub(crate) mod cluster;
pub(crate) mod events;
pub(crate) mod job_input;
pub(crate) mod job_patch;
pub(crate) mod job_view;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod people;
pub(crate) mod run_view;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod settings;
pub(crate) mod tasks;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tasuki::Operator;
use tasuki::operator::Role::{Admin, Author, Operator as Operates, Viewer};
use utoipa_axum::routes;

use crate::problem::Problem;
use crate::route::{Entry, needs, patiently_needs};

/// Every route with the role it needs.
pub(crate) fn routes() -> Vec<Entry> {
    vec![
        needs(Author, routes!(jobs::create_job)),
        needs(Viewer, routes!(jobs::list_jobs)),
        needs(Viewer, routes!(jobs::show_job)),
        needs(Author, routes!(jobs::edit_job)),
        needs(Author, routes!(jobs::delete_job)),
        needs(Author, routes!(jobs::enable_job)),
        needs(Author, routes!(jobs::disable_job)),
        needs(Operates, routes!(jobs::pause_job)),
        needs(Operates, routes!(jobs::resume_job)),
        needs(Operates, routes!(tasks::trigger_job)),
        needs(Viewer, routes!(schedules::preview_schedule)),
        needs(Operates, routes!(tasks::submit_task)),
        needs(Operates, routes!(tasks::submit_tasks)),
        needs(Viewer, routes!(runs::list_runs)),
        needs(Viewer, routes!(runs::show_run)),
        needs(Viewer, routes!(logs::read_log)),
        patiently_needs(Viewer, routes!(logs::follow_run)),
        needs(Operates, routes!(runs::cancel_run)),
        needs(Operates, routes!(runs::retry_run)),
        needs(Operates, routes!(runs::rerun_run)),
        patiently_needs(Operates, routes!(runs::wait_for_run)),
        needs(Viewer, routes!(runs::explain_run)),
        needs(Operates, routes!(events::emit_event)),
        needs(Viewer, routes!(events::list_events)),
        needs(Viewer, routes!(events::show_event)),
        needs(Viewer, routes!(cluster::list_workers)),
        needs(Viewer, routes!(cluster::show_worker)),
        needs(Operates, routes!(cluster::drain_worker)),
        needs(Operates, routes!(cluster::detach_worker)),
        needs(Viewer, routes!(cluster::show_leader)),
        needs(Operates, routes!(cluster::demote_leader)),
        needs(Viewer, routes!(settings::list_settings)),
        needs(Viewer, routes!(settings::show_setting)),
        needs(Admin, routes!(settings::change_settings)),
        needs(Admin, routes!(people::list_audit)),
        needs(Admin, routes!(people::list_tokens)),
        needs(Admin, routes!(people::create_token)),
        needs(Admin, routes!(people::revoke_token)),
        needs(Viewer, routes!(people::who_am_i)),
    ]
}

/// What answers without a token, for whoever watches the process.
pub(crate) fn health() -> Router<Operator> {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready))
}

/// The process lives.
async fn alive() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

/// The database answers.
async fn ready(State(operator): State<Operator>) -> Response {
    match operator.ready().await {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(error) => {
            tracing::warn!(%error, "not ready");
            let detail = "the database does not answer at the moment";
            Problem::new(crate::problem::UNAVAILABLE, detail).into_response()
        }
    }
}

/// An instant as it is shown: always with microseconds, so that texts sort as instants do.
fn at(instant: Timestamp) -> String {
    format!("{instant:.6}")
}

fn maybe_at(instant: Option<Timestamp>) -> Option<String> {
    instant.map(at)
}

/// JSON that is kept as text. What is no JSON after all is shown as the text it is.
fn kept(text: Option<&str>) -> Option<serde_json::Value> {
    text.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

/// An answer with a status.
type Answer<T> = Result<(axum::http::StatusCode, Json<T>), Problem>;

/// 201 for what was made, 200 for what was there.
fn made<T: Serialize>(existed: bool, view: T) -> Answer<T> {
    use axum::http::StatusCode;
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(view)))
}
