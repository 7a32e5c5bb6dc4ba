//! JSON of a job in responses.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use tasuki::operator::{JobDraft, JobWithNextFire};
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::work_spec::WorkAction;
use tasuki_core::{InvalidInput, Lane, Language, Schedule, duration};
use tasuki_store::Trigger;
use utoipa::ToSchema;

use super::{format_instant, format_optional_instant, parse_stored_json};

/// Replaces the values of environment variables for callers that may not read them.
const HIDDEN: &str = "***";

/// A job.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobView {
    #[schema(minimum = 1)]
    id: i64,
    #[schema(min_length = 1, max_length = 191)]
    pub(crate) name: String,
    /// Increases with every change. It is also the ETag.
    #[schema(minimum = 1)]
    pub(crate) version: i64,
    enabled: bool,
    description: Option<String>,
    trigger: TriggerView,
    #[schema(pattern = "^(command|django|function)$")]
    kind: &'static str,
    command: Option<Vec<String>>,
    handler: Option<String>,
    #[schema(value_type = Object, additional_properties)]
    args: Map<String, Value>,
    /// Environment variables. Only authors and administrators see the values.
    env: BTreeMap<String, String>,
    directory: Option<String>,
    timeout: Option<String>,
    heartbeat_timeout: Option<String>,
    stop_grace: Option<String>,
    #[schema(pattern = "^(assign|claim)$")]
    dispatch: &'static str,
    /// Queue whose slots the runs use; null unless workers claim the runs.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// Priority of the runs among waiting runs; null unless workers claim the runs.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<&'static str>,
    #[schema(pattern = "^(forbid|allow|replace)$")]
    concurrency: &'static str,
    labels: Vec<String>,
    retry: RetryView,
    paused: Option<PauseView>,
    #[schema(format = DateTime)]
    next_fire: Option<String>,
    schedule_words: Option<String>,
    #[schema(format = DateTime)]
    updated_at: String,
}

/// What creates the runs of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct TriggerView {
    #[serde(rename = "type")]
    #[schema(pattern = "^(time|event|task)$")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<ScheduleView>,
    /// Policy for planned times that were missed; null: the default from the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfire: Option<Option<MisfireView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, additional_properties)]
    filter: Option<Value>,
}

/// When a job creates runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    #[serde(rename = "type")]
    #[schema(pattern = "^(every|hourly_at|daily_at|weekdays_at|weekly_at|monthly_at|cron)$")]
    kind: &'static str,
    value: String,
    zone: String,
    #[schema(pattern = "^(skip|shift)$")]
    dst_gap: Option<&'static str>,
    #[schema(pattern = "^(once|twice)$")]
    dst_fold: Option<&'static str>,
}

/// Policy for planned times that were missed.
#[derive(Serialize, ToSchema)]
pub(crate) struct MisfireView {
    #[schema(pattern = "^(skip_late|latest_only|every_within|at_most)$")]
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
}

/// Retries after a failed attempt.
#[derive(Serialize, ToSchema)]
pub(crate) struct RetryView {
    #[schema(minimum = 0)]
    max_retries: u32,
    backoff: String,
    backoff_cap: String,
    #[schema(minimum = 0, maximum = 100)]
    jitter_percent: u8,
    retry_lost: bool,
    retry_on: Vec<String>,
    fail_on: Vec<String>,
    exit_codes: BTreeMap<String, String>,
}

/// Start, end and reason of a pause.
#[derive(Serialize, ToSchema)]
pub(crate) struct PauseView {
    #[schema(format = DateTime)]
    since: String,
    #[schema(format = DateTime)]
    until: Option<String>,
    reason: String,
}

/// Converts a schedule to its JSON.
pub(crate) fn schedule_view(schedule: &Schedule) -> ScheduleView {
    let rule = schedule.dst_rule();
    ScheduleView {
        kind: schedule.kind().as_str(),
        value: schedule.value().to_owned(),
        zone: schedule.zone().name().to_owned(),
        dst_gap: rule.map(|rule| rule.gap.as_str()),
        dst_fold: rule.map(|rule| rule.fold.as_str()),
    }
}

fn misfire_view(misfire: MisfirePolicy) -> MisfireView {
    let view = |policy| MisfireView { policy, after: None, window: None, count: None };
    match misfire {
        MisfirePolicy::SkipLate(after) => {
            MisfireView { after: Some(duration::format_exact_duration(after)), ..view("skip_late") }
        }
        MisfirePolicy::LatestOnly => view("latest_only"),
        MisfirePolicy::EveryWithin(window) => MisfireView {
            window: Some(duration::format_exact_duration(window)),
            ..view("every_within")
        },
        MisfirePolicy::AtMost(count) => MisfireView { count: Some(count), ..view("at_most") },
    }
}

fn trigger_view(trigger: &Trigger) -> TriggerView {
    let none =
        |kind| TriggerView { kind, schedule: None, misfire: None, events: None, filter: None };
    match trigger {
        Trigger::Time { schedule, misfire } => TriggerView {
            schedule: Some(schedule_view(schedule)),
            misfire: Some(misfire.map(misfire_view)),
            ..none("time")
        },
        Trigger::Event { types, filter } => TriggerView {
            events: Some(types.iter().cloned().collect()),
            filter: Some(parse_stored_json(filter.as_deref()).unwrap_or(Value::Null)),
            ..none("event")
        },
        Trigger::Task => none("task"),
    }
}

/// Converts a job to its JSON, with or without the values of its environment variables.
pub(crate) fn job_view(
    info: &JobWithNextFire,
    with_env_values: bool,
) -> Result<JobView, InvalidInput> {
    let (job, draft) = (&info.job, JobDraft::from_job(&info.job)?);
    let (work, spec) = (&draft.work, &info.job.newest.spec);
    let (command, handler) = match &work.action {
        WorkAction::Command(argv) => (Some(argv.clone()), None),
        WorkAction::Django(command) => (Some(vec![command.clone()]), None),
        WorkAction::Function(handler) => (None, Some(handler.clone())),
    };
    let lane: Option<Lane> = spec.lane.parse().ok();
    let hide = |(name, value): (&String, &String)| {
        (name.clone(), if with_env_values { value.clone() } else { HIDDEN.to_owned() })
    };
    let code =
        |(exit, code): (&i32, &tasuki_core::AttemptErrorCode)| (exit.to_string(), code.to_string());
    Ok(JobView {
        id: job.id.0,
        name: job.name.clone(),
        version: job.version,
        enabled: job.enabled,
        description: work.description.clone(),
        trigger: trigger_view(&draft.trigger),
        kind: spec.kind.as_str(),
        command,
        handler,
        args: work.args.clone(),
        env: work.env.iter().map(hide).collect(),
        directory: work.directory.clone(),
        timeout: work.timeout.map(duration::format_exact_duration),
        heartbeat_timeout: work.heartbeat_timeout.map(duration::format_exact_duration),
        stop_grace: work.stop_grace.map(duration::format_exact_duration),
        dispatch: if spec.lane.is_empty() { "assign" } else { "claim" },
        queue: lane.as_ref().map(|lane| lane.queue.to_string()),
        priority: lane.map(|lane| lane.priority.as_str()),
        concurrency: spec.concurrency.as_str(),
        labels: spec.labels.iter().cloned().collect(),
        retry: RetryView {
            max_retries: spec.max_attempts.saturating_sub(1),
            backoff: duration::format_exact_duration(spec.backoff),
            backoff_cap: duration::format_exact_duration(spec.backoff_cap),
            jitter_percent: spec.jitter_percent,
            retry_lost: spec.retry_lost,
            retry_on: work.retry_on.clone(),
            fail_on: work.fail_on.clone(),
            exit_codes: work.exit_codes.iter().map(code).collect(),
        },
        paused: job.paused_at.map(|since| PauseView {
            since: format_instant(since),
            until: format_optional_instant(job.paused_until),
            reason: job.paused_reason.clone().unwrap_or_default(),
        }),
        next_fire: format_optional_instant(info.next_fire),
        schedule_words: match &draft.trigger {
            Trigger::Time { schedule, .. } => Some(schedule.describe(Language::English)),
            Trigger::Event { .. } | Trigger::Task => None,
        },
        updated_at: format_instant(job.updated_at),
    })
}
