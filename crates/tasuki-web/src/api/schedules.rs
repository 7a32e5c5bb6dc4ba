//! What a schedule will do, before anybody trusts it.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki_core::schedule::{ClockChange, Fire, PreviewRow, Slot};
use tasuki_core::{Invalid, Language};
use utoipa::ToSchema;

use super::at;
use super::job_input::ScheduleInput;
use crate::input::{Body, Input, Object, instant};
use crate::problem::Problem;

/// A schedule to be looked at.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "schedule": { "type": "cron", "value": "*/5 9-17 * * MON-FRI", "zone": "Europe/Berlin" },
    "count": 5,
}))]
pub(crate) struct PreviewAsked {
    #[schema(value_type = ScheduleInput)]
    schedule: Object<ScheduleInput>,
    /// From when on; now, unless said.
    #[schema(format = DateTime)]
    from: Option<String>,
    /// How many fires.
    #[schema(minimum = 1, maximum = 200, default = 10)]
    count: Option<u32>,
}

impl Input for PreviewAsked {}

/// What it will do.
#[derive(Serialize, ToSchema)]
pub(crate) struct Preview {
    words: String,
    /// Whether nothing follows what is listed.
    ends: bool,
    fires: Vec<FireView>,
    /// Times that the wall never shows on their day, and that therefore do not fire.
    skipped: Vec<SkippedFire>,
}

/// One fire.
#[derive(Serialize, ToSchema)]
pub(crate) struct FireView {
    #[schema(format = DateTime)]
    at: String,
    /// What the wall shows then.
    local: String,
    /// Whether its time does not exist that day and it runs at the shift instead.
    shifted: bool,
    /// What is odd about that day.
    note: Option<String>,
}

/// A time that does not fire.
#[derive(Serialize, ToSchema)]
pub(crate) struct SkippedFire {
    /// What the wall would have shown.
    local: String,
    note: String,
}

/// Shows what a schedule will do.
#[utoipa::path(post, path = "/api/v1/schedules/preview", tag = "jobs", request_body = PreviewAsked, responses(
    (status = 200, description = "the next fires", body = Preview),
))]
pub(crate) async fn preview_schedule(
    State(operator): State<Operator>,
    Body(asked): Body<PreviewAsked>,
) -> Result<Json<Preview>, Problem> {
    let schedule = asked.schedule.schedule("schedule")?;
    let count = asked.count.unwrap_or(10);
    if !(1..=200).contains(&count) {
        let invalid = Invalid::described("", count.to_string(), "1 to 200");
        return Err(Problem::invalid("count", &invalid));
    }
    let from = match instant("from", asked.from.as_deref())? {
        Some(from) => from,
        None => operator.clock().await?,
    };
    let preview = schedule.preview(from, count as usize);
    let (mut fires, mut skipped) = (Vec::new(), Vec::new());
    for row in &preview.rows {
        match row {
            PreviewRow::Fire { fire, local, change } => fires.push(FireView {
                at: at(fire.at),
                local: local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
                shifted: fire.shifted,
                note: change.map(|change| note(fire, &change)),
            }),
            PreviewRow::Skipped { wall, change } => skipped.push(SkippedFire {
                local: wall.to_string(),
                note: format!("there is no {} that day; {}", wall.time(), words(change)),
            }),
        }
    }
    let words = schedule.words(Language::English);
    Ok(Json(Preview { words, ends: preview.ends, fires, skipped }))
}

fn note(fire: &Fire, change: &ClockChange) -> String {
    let words = words(change);
    match fire.slot {
        Slot::Wall { time, .. } if fire.shifted => {
            format!("there is no {}, runs at the shift; {words}", time.time())
        }
        Slot::Wall { time, pass: 2 } => format!("the second {}; {words}", time.time()),
        Slot::Wall { .. } | Slot::Instant(_) => words,
    }
}

fn words(change: &ClockChange) -> String {
    let direction = if change.is_forward() { "forward" } else { "back" };
    let (from, to) = (change.from.strftime("%H:%M"), change.to.strftime("%H:%M"));
    format!("clocks go {direction} {from} -> {to}")
}
