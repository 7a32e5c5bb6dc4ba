//! Endpoints of events: emit, list, show.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tasuki::Operator;
use tasuki::operator::EventDraft;
use tasuki_core::EventId;
use utoipa::{IntoParams, ToSchema};

use super::{
    JsonResponse, created_or_existing, format_instant, format_optional_instant, parse_stored_json,
};
use crate::input::{
    JsonBody, QueryParams, RequestInput, UnvalidatedPathParam, parse_optional_param,
    parse_page_limit,
};
use crate::problem::Problem;

/// A new event.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEventInput {
    /// Event type, such as `order.paid`. Letters, digits and `.` `_` `-` `:` `/`.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 191)]
    kind: String,
    /// Payload: any JSON of at most 1 MiB.
    #[serde(default)]
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
    /// Two events with the same source and key are the same event.
    #[schema(min_length = 1, max_length = 191)]
    dedupe_key: Option<String>,
    /// Name of the only job that receives the event. By default all jobs with a matching trigger receive it.
    #[schema(min_length = 1, max_length = 191)]
    job: Option<String>,
    /// Source of the event. Default: `api`.
    #[schema(min_length = 1, max_length = 191)]
    source: Option<String>,
}

impl RequestInput for NewEventInput {
    // Room for a payload of 1 MiB and for the other fields.
    const MAX_BYTES: usize = (1 << 20) + (64 << 10);
    const SIZE_FIELD: &'static str = "payload";
}

/// The result of emitting an event.
#[derive(Serialize, ToSchema)]
pub(crate) struct EmitResultView {
    #[schema(minimum = 1)]
    id: i64,
    /// Whether the event existed before: the same source and dedupe key.
    existed: bool,
}

/// An event.
#[derive(Serialize, ToSchema)]
pub(crate) struct EmittedEventView {
    #[schema(minimum = 1)]
    id: i64,
    #[serde(rename = "type")]
    kind: String,
    source: String,
    dedupe_key: Option<String>,
    job: Option<String>,
    payload: Option<Value>,
    #[schema(format = DateTime)]
    created_at: String,
    /// When the leader processed the event.
    #[schema(format = DateTime)]
    processed_at: Option<String>,
    /// Number of runs that the event has created.
    runs: Option<i64>,
    /// Reason why the event could not create runs.
    problem: Option<String>,
}

/// A page of events, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventPage {
    items: Vec<EmittedEventView>,
    /// Value of `before` for the next page; null on the last page.
    next: Option<i64>,
}

/// Query parameters of the list of events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only events older than the one with this id.
    #[param(value_type = Option<i64>, minimum = 1)]
    before: Option<String>,
    /// Maximum number of events.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

fn event_view(event: tasuki_store::Event) -> EmittedEventView {
    EmittedEventView {
        id: event.id.0,
        kind: event.event_type,
        source: event.source,
        dedupe_key: event.dedupe_key,
        job: event.job_name,
        payload: parse_stored_json(event.payload.as_deref()),
        created_at: format_instant(event.created_at),
        processed_at: format_optional_instant(event.processed_at),
        runs: event.runs,
        problem: event.problem,
    }
}

/// Emits an event.
#[utoipa::path(post, path = "/api/v1/events", tag = "events", request_body = NewEventInput, responses(
    (status = 201, description = "a new event", body = EmitResultView),
    (status = 200, description = "the event that was emitted before with this key", body = EmitResultView),
    (status = 404, description = "the job does not exist"),
))]
pub(crate) async fn emit_event(
    State(operator): State<Operator>,
    JsonBody(body): JsonBody<NewEventInput>,
) -> JsonResponse<EmitResultView> {
    let draft = EventDraft {
        event_type: body.kind,
        source: body.source.unwrap_or_else(|| "api".to_owned()),
        dedupe_key: body.dedupe_key,
        job: body.job,
        payload: body.payload.map(|payload| payload.get().to_owned()),
    };
    let emitted = operator.emit_event(&draft).await?;
    created_or_existing(
        emitted.existed,
        EmitResultView { id: emitted.event.0, existed: emitted.existed },
    )
}

/// Lists events, newest first.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", params(EventsQuery), responses(
    (status = 200, description = "a page of events", body = EventPage),
))]
pub(crate) async fn list_events(
    State(operator): State<Operator>,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Json<EventPage>, Problem> {
    let before = parse_optional_param::<EventId>("before", query.before.as_deref())?;
    let limit = parse_page_limit(query.limit.as_deref())?;
    let events = operator.list_events(before, limit).await?;
    let next = events.last().filter(|_| events.len() == limit as usize).map(|event| event.id.0);
    Ok(Json(EventPage { items: events.into_iter().map(event_view).collect(), next }))
}

/// Shows an event.
#[utoipa::path(get, path = "/api/v1/events/{id}", tag = "events", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the event", body = EmittedEventView),
))]
pub(crate) async fn show_event(
    State(operator): State<Operator>,
    id: UnvalidatedPathParam,
) -> Result<Json<EmittedEventView>, Problem> {
    Ok(Json(event_view(operator.get_event(id.id("event")?).await?)))
}
