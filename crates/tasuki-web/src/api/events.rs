//! Events: told, and looked at.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tasuki::Operator;
use tasuki::operator::EventDraft;
use tasuki_core::EventId;
use utoipa::{IntoParams, ToSchema};

use super::{Answer, at, kept, made, maybe_at};
use crate::input::{Asked, Body, Input, Named, limit, word};
use crate::problem::Problem;

/// Something that happened.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEvent {
    /// What: `order.paid`. Letters, digits and `.` `_` `-` `:` `/`.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 191)]
    kind: String,
    /// What goes with it: any JSON of at most 1 MiB.
    #[serde(default)]
    #[schema(value_type = Value)]
    payload: Option<Box<RawValue>>,
    /// The same key twice from one source is the same event.
    #[schema(min_length = 1, max_length = 191)]
    dedupe_key: Option<String>,
    /// The one job it is for; otherwise whoever listens.
    #[schema(min_length = 1, max_length = 191)]
    job: Option<String>,
    /// Who tells it; `api`, unless said.
    #[schema(min_length = 1, max_length = 191)]
    source: Option<String>,
}

impl Input for NewEvent {
    // Room for a payload of 1 MiB and for what stands around it.
    const LONGEST: usize = (1 << 20) + (64 << 10);
    const LONG: &'static str = "payload";
}

/// An event that is there now.
#[derive(Serialize, ToSchema)]
pub(crate) struct Emitted {
    #[schema(minimum = 1)]
    id: i64,
    /// Whether it was there before: same source, same dedupe key.
    existed: bool,
}

/// An event.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventView {
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
    /// When the leader took it.
    #[schema(format = DateTime)]
    processed_at: Option<String>,
    /// How many runs it made.
    runs: Option<i64>,
    /// Why it could not make any.
    problem: Option<String>,
}

/// Some events, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct Events {
    items: Vec<EventView>,
    /// Where to look on: `before` of the next request.
    next: Option<i64>,
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsAsked {
    /// Those before this one.
    #[param(value_type = Option<i64>, minimum = 1)]
    before: Option<String>,
    /// At most so many.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

fn view(event: tasuki_store::Event) -> EventView {
    EventView {
        id: event.id.0,
        kind: event.event_type,
        source: event.source,
        dedupe_key: event.dedupe_key,
        job: event.job_name,
        payload: kept(event.payload.as_deref()),
        created_at: at(event.created_at),
        processed_at: maybe_at(event.processed_at),
        runs: event.runs,
        problem: event.problem,
    }
}

/// Tells an event.
#[utoipa::path(post, path = "/api/v1/events", tag = "events", request_body = NewEvent, responses(
    (status = 201, description = "it is told", body = Emitted),
    (status = 200, description = "it was told before under this key", body = Emitted),
    (status = 404, description = "there is no such job"),
))]
pub(crate) async fn emit_event(
    State(operator): State<Operator>,
    Body(body): Body<NewEvent>,
) -> Answer<Emitted> {
    let draft = EventDraft {
        event_type: body.kind,
        source: body.source.unwrap_or_else(|| "api".to_owned()),
        dedupe_key: body.dedupe_key,
        job: body.job,
        payload: body.payload.map(|payload| payload.get().to_owned()),
    };
    let emitted = operator.emit(&draft).await?;
    made(emitted.existed, Emitted { id: emitted.event.0, existed: emitted.existed })
}

/// Lists events, newest first.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", params(EventsAsked), responses(
    (status = 200, description = "some of them", body = Events),
))]
pub(crate) async fn list_events(
    State(operator): State<Operator>,
    Asked(asked): Asked<EventsAsked>,
) -> Result<Json<Events>, Problem> {
    let before = word::<EventId>("before", asked.before.as_deref())?;
    let most = limit(asked.limit.as_deref())?;
    let events = operator.events(before, most).await?;
    let next = events.last().filter(|_| events.len() == most as usize).map(|event| event.id.0);
    Ok(Json(Events { items: events.into_iter().map(view).collect(), next }))
}

/// Shows an event.
#[utoipa::path(get, path = "/api/v1/events/{id}", tag = "events", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the event", body = EventView),
))]
pub(crate) async fn show_event(
    State(operator): State<Operator>,
    id: Named,
) -> Result<Json<EventView>, Problem> {
    Ok(Json(view(operator.event(id.id("event")?).await?)))
}
