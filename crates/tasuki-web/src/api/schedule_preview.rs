//! Preview of a schedule before a job uses it.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki_core::schedule::{ClockChange, Fire, PreviewRow, ScheduleSlotKey};
use tasuki_core::{InvalidInput, Language};
use utoipa::ToSchema;

use super::format_instant;
use super::job_input::ScheduleInput;
use crate::input::{JsonBody, JsonObject, RequestInput, parse_instant};
use crate::problem::Problem;

/// A schedule to preview.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "schedule": { "type": "cron", "value": "*/5 9-17 * * MON-FRI", "zone": "Europe/Berlin" },
    "count": 5,
}))]
pub(crate) struct SchedulePreviewRequest {
    #[schema(value_type = ScheduleInput)]
    schedule: JsonObject<ScheduleInput>,
    /// Start of the preview. Default: now.
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Number of fires.
    #[schema(minimum = 1, maximum = 200, default = 10)]
    count: Option<u32>,
}

impl RequestInput for SchedulePreviewRequest {}

/// The next fires of a schedule.
#[derive(Serialize, ToSchema)]
pub(crate) struct SchedulePreview {
    words: String,
    /// Whether there are no fires after the listed ones.
    ends: bool,
    fires: Vec<UpcomingFireView>,
    /// Local times that are skipped, because they do not exist on the day of a clock change.
    skipped: Vec<SkippedFireView>,
}

/// A fire of a schedule.
#[derive(Serialize, ToSchema)]
pub(crate) struct UpcomingFireView {
    #[schema(format = DateTime)]
    at: String,
    /// Local time in the zone of the schedule.
    local: String,
    /// Whether the planned local time does not exist on that day, so that the job fires at the moment of the clock change.
    shifted: bool,
    /// Explanation of a clock change that affects the fire.
    note: Option<String>,
}

/// A local time that is skipped.
#[derive(Serialize, ToSchema)]
pub(crate) struct SkippedFireView {
    /// Local time that does not exist that day.
    local: String,
    note: String,
}

/// Previews the next fires of a schedule.
#[utoipa::path(post, path = "/api/v1/schedules/preview", tag = "jobs", request_body = SchedulePreviewRequest, responses(
    (status = 200, description = "the next fires", body = SchedulePreview),
))]
pub(crate) async fn preview_schedule(
    State(operator): State<Operator>,
    JsonBody(request): JsonBody<SchedulePreviewRequest>,
) -> Result<Json<SchedulePreview>, Problem> {
    let schedule = request.schedule.parse_schedule("schedule")?;
    let count = request.count.unwrap_or(10);
    if !(1..=200).contains(&count) {
        let invalid = InvalidInput::with_described_value("", count.to_string(), "1 to 200");
        return Err(Problem::invalid("count", &invalid));
    }
    let from = match parse_instant("from", request.from.as_deref())? {
        Some(from) => from,
        None => operator.read_database_clock().await?,
    };
    let preview = schedule.preview(from, count as usize);
    let (mut fires, mut skipped) = (Vec::new(), Vec::new());
    for row in &preview.rows {
        match row {
            PreviewRow::Fire { fire, local, change } => fires.push(UpcomingFireView {
                at: format_instant(fire.at),
                local: local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
                shifted: fire.shifted,
                note: change.map(|change| describe_fire(fire, &change)),
            }),
            PreviewRow::Skipped { wall, change } => skipped.push(SkippedFireView {
                local: wall.to_string(),
                note: format!(
                    "{} does not exist on that day ({})",
                    wall.time(),
                    describe_clock_change(change)
                ),
            }),
        }
    }
    let words = schedule.describe(Language::English);
    Ok(Json(SchedulePreview { words, ends: preview.no_more_fires, fires, skipped }))
}

fn describe_fire(fire: &Fire, change: &ClockChange) -> String {
    let words = describe_clock_change(change);
    match fire.slot {
        ScheduleSlotKey::Wall { time, .. } if fire.shifted => {
            format!(
                "{} does not exist, so the job runs at the moment of the change ({words})",
                time.time()
            )
        }
        ScheduleSlotKey::Wall { time, pass: 2 } => {
            format!("{} for the second time ({words})", time.time())
        }
        ScheduleSlotKey::Wall { .. } | ScheduleSlotKey::Instant(_) => words,
    }
}

fn describe_clock_change(change: &ClockChange) -> String {
    let direction = if change.is_forward() { "forward" } else { "back" };
    let (from, to) = (change.from.strftime("%H:%M"), change.to.strftime("%H:%M"));
    format!("clocks go {direction} {from} -> {to}")
}
