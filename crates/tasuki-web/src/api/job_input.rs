//! JSON of a job in requests, and its conversion to a [`JobDraft`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use tasuki::operator::JobDraft;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::DstRuleOverrides;
use tasuki_core::work_spec::{WorkAction, WorkKind, WorkSpec};
use tasuki_core::{InvalidInput, Schedule};
use tasuki_store::Trigger;
use utoipa::ToSchema;

use crate::input::{JsonObject, RequestInput, parse_duration};
use crate::problem::Problem;

/// A new job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "nightly report",
    "trigger": { "type": "time", "schedule": { "type": "daily_at", "value": "02:30", "zone": "Asia/Tokyo" } },
    "command": ["report", "--day", "{day}"],
    "args": { "day": "yesterday" },
    "timeout": "30m",
    "retry": { "max_retries": 2, "backoff": "30s" },
}))]
pub(crate) struct NewJob {
    /// Unique name of the job.
    #[schema(min_length = 1, max_length = 191)]
    pub(crate) name: String,
    /// Whether the trigger creates runs. Default: true.
    enabled: Option<bool>,
    /// Description for people.
    #[schema(max_length = 4096)]
    description: Option<String>,
    /// What creates the runs. By default only requests do.
    #[schema(value_type = Option<JobTriggerInput>)]
    trigger: Option<JsonObject<JobTriggerInput>>,
    /// What a run executes. Default: `command` if a command is given, `function` if a handler is given.
    #[schema(pattern = "^(command|django|function)$")]
    kind: Option<String>,
    /// Program and arguments; for `django` only the name of the management command.
    #[schema(max_items = 1000)]
    command: Option<Vec<String>>,
    /// Name of the function.
    #[schema(min_length = 1, max_length = 150)]
    handler: Option<String>,
    /// Default arguments of a run.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// Additional environment variables.
    env: Option<BTreeMap<String, String>>,
    /// Working directory.
    #[schema(min_length = 1)]
    directory: Option<String>,
    /// Timeout of an attempt.
    timeout: Option<String>,
    /// Maximum time of an attempt without output or heartbeat.
    heartbeat_timeout: Option<String>,
    /// Time between SIGTERM and SIGKILL when an attempt is stopped.
    stop_grace: Option<String>,
    /// `assign`: the leader assigns runs to workers; `claim`: workers claim runs.
    #[schema(pattern = "^(assign|claim)$")]
    dispatch: Option<String>,
    /// Queue whose slots the runs use; only for functions that workers claim. Default: `default`.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// Priority of the runs among waiting runs; only for functions that workers claim. Default: `normal`.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
    /// What happens to a run that is due while another run of the same job and scope is active.
    #[schema(pattern = "^(forbid|allow|replace)$")]
    concurrency: Option<String>,
    /// Labels that a worker must have to execute the runs.
    #[schema(max_items = 100)]
    labels: Option<Vec<String>>,
    /// Retries after a failed attempt.
    #[schema(value_type = Option<RetryPolicyInput>)]
    retry: Option<JsonObject<RetryPolicyInput>>,
}

impl RequestInput for NewJob {}

/// What creates the runs of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobTriggerInput {
    /// `time`: a schedule; `event`: events; `task`: only requests.
    #[serde(rename = "type")]
    #[schema(pattern = "^(time|event|task)$")]
    kind: String,
    /// Schedule; required for `time`.
    #[schema(value_type = Option<ScheduleInput>)]
    schedule: Option<JsonObject<ScheduleInput>>,
    /// Policy for planned times that were missed, for `time`. Default: the one in the settings.
    #[schema(value_type = Option<MisfireInput>)]
    misfire: Option<JsonObject<MisfireInput>>,
    /// Event types, or prefixes such as `order.*`; required for `event`.
    #[schema(min_items = 1, max_items = 1000)]
    events: Option<Vec<String>>,
    /// Condition on the payload, for `event`.
    #[schema(value_type = Option<Object>, additional_properties)]
    filter: Option<Value>,
}

/// When a job creates runs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleInput {
    /// Format of the value.
    #[serde(rename = "type")]
    #[schema(pattern = "^(every|hourly_at|daily_at|weekdays_at|weekly_at|monthly_at|cron)$")]
    kind: String,
    /// The schedule itself: `5s`, `02:30`, `mon,thu 09:00`, `*/5 * * * *`.
    #[schema(min_length = 1, max_length = 256)]
    value: String,
    /// IANA name of the time zone. Default: UTC.
    #[schema(min_length = 1, max_length = 64)]
    zone: Option<String>,
    /// What happens to a time that does not exist when the clocks go forward.
    #[schema(pattern = "^(skip|shift)$")]
    dst_gap: Option<String>,
    /// What happens to a time that occurs twice when the clocks go back.
    #[schema(pattern = "^(once|twice)$")]
    dst_fold: Option<String>,
}

impl ScheduleInput {
    /// Parses the schedule. Errors name the invalid field, with `path` as its prefix.
    pub(crate) fn parse_schedule(&self, path: &str) -> Result<Schedule, Problem> {
        let field_path = |field: &str| format!("{path}.{field}");
        let kind = parse_field(&field_path("type"), &self.kind)?;
        let gap = parse_optional_field(&field_path("dst_gap"), self.dst_gap.as_deref())?;
        let fold = parse_optional_field(&field_path("dst_fold"), self.dst_fold.as_deref())?;
        let zone = self.zone.as_deref().unwrap_or("UTC");
        Schedule::parse(kind, &self.value, zone, DstRuleOverrides { gap, fold }).map_err(
            |invalid| {
                let field = if invalid.field == "time zone" { "zone" } else { "value" };
                Problem::invalid(field_path(field), &invalid)
            },
        )
    }
}

/// Policy for planned times that were missed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MisfireInput {
    /// Which of the planned times that were missed get a run.
    #[schema(pattern = "^(skip_late|latest_only|every_within|at_most)$")]
    policy: String,
    /// Runs that are later than this are skipped; required for `skip_late`.
    after: Option<String>,
    /// Each planned time that was missed within this time gets a run; required for `every_within`.
    window: Option<String>,
    /// Maximum number of the planned times that were missed and get a run; required for `at_most`.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<u32>,
}

impl MisfireInput {
    fn parse_misfire(&self) -> Result<MisfirePolicy, Problem> {
        let path = "trigger.misfire";
        let field_path = |field: &str| format!("{path}.{field}");
        let required_duration = |field: &str, text: Option<&str>| {
            parse_duration(&field_path(field), text)?.ok_or_else(|| missing(&field_path(field)))
        };
        let given = [
            ("after", self.after.is_some()),
            ("window", self.window.is_some()),
            ("count", self.count.is_some()),
        ];
        let allowed_field = match self.policy.as_str() {
            "skip_late" => "after",
            "every_within" => "window",
            "at_most" => "count",
            _ => "",
        };
        let misfire = match self.policy.as_str() {
            "skip_late" => {
                MisfirePolicy::SkipLate(required_duration("after", self.after.as_deref())?)
            }
            "every_within" => {
                MisfirePolicy::EveryWithin(required_duration("window", self.window.as_deref())?)
            }
            "at_most" => {
                MisfirePolicy::AtMost(self.count.ok_or_else(|| missing(&field_path("count")))?)
            }
            "latest_only" => MisfirePolicy::LatestOnly,
            other => {
                let expected = "one of skip_late, latest_only, every_within, at_most";
                return Err(Problem::invalid(
                    field_path("policy"),
                    &InvalidInput::with_value("", other, expected),
                ));
            }
        };
        if let Some((field, _)) =
            given.iter().find(|(field, given)| *given && *field != allowed_field)
        {
            return Err(not_allowed_with(&field_path(field), &format!("policy {}", self.policy)));
        }
        misfire.validate().map_err(|invalid| Problem::invalid(path, &invalid))
    }
}

/// Retries after a failed attempt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryPolicyInput {
    /// Maximum number of retries of a run.
    #[schema(minimum = 0, maximum = 1000)]
    max_retries: Option<u32>,
    /// Delay before the first retry; each further delay is twice as long.
    backoff: Option<String>,
    /// Maximum delay before a retry.
    backoff_cap: Option<String>,
    /// Maximum random reduction of each delay, in percent.
    #[schema(minimum = 0, maximum = 100)]
    jitter_percent: Option<u8>,
    /// Whether a run is retried after its worker was lost.
    retry_lost: Option<bool>,
    /// Exit codes and error codes after which a run is retried.
    #[schema(max_items = 1000)]
    retry_on: Option<Vec<String>>,
    /// Exit codes and error codes after which a run is not retried.
    #[schema(max_items = 1000)]
    fail_on: Option<Vec<String>>,
    /// Error codes by exit code.
    exit_codes: Option<BTreeMap<String, String>>,
}

impl NewJob {
    /// Converts the input to a draft.
    pub(crate) fn draft(&self) -> Result<JobDraft, Problem> {
        let mut work = WorkSpec::new(self.action()?);
        work.description = self.description.clone();
        work.args = self.args.clone().unwrap_or_default();
        work.env = self.env.clone().unwrap_or_default();
        work.directory = self.directory.clone();
        work.timeout = parse_duration("timeout", self.timeout.as_deref())?;
        work.heartbeat_timeout =
            parse_duration("heartbeat_timeout", self.heartbeat_timeout.as_deref())?;
        work.stop_grace = parse_duration("stop_grace", self.stop_grace.as_deref())?;
        for (field, given) in [("queue", &self.queue), ("priority", &self.priority)] {
            if given.is_some() && work.kind() != WorkKind::Function {
                return Err(not_allowed_with(field, "a command: only functions have it"));
            }
        }
        work.queue = parse_optional_field("queue", self.queue.as_deref())?.unwrap_or_default();
        work.priority =
            parse_optional_field("priority", self.priority.as_deref())?.unwrap_or_default();
        let mut draft = JobDraft::new(work);
        draft.enabled = self.enabled.unwrap_or(true);
        if let Some(trigger) = &self.trigger {
            draft.trigger = trigger.parse_trigger()?;
        }
        draft.dispatch = parse_optional_field("dispatch", self.dispatch.as_deref())?;
        draft.concurrency = parse_optional_field("concurrency", self.concurrency.as_deref())?;
        draft.labels = self.labels.iter().flatten().cloned().collect();
        if let Some(retry) = &self.retry {
            retry.apply_to(&mut draft)?;
        }
        Ok(draft)
    }

    fn action(&self) -> Result<WorkAction, Problem> {
        let kind = match (&self.kind, &self.command, &self.handler) {
            (Some(kind), _, _) => parse_field("kind", kind)?,
            (None, Some(_), None) => WorkKind::Command,
            (None, None, Some(_)) => WorkKind::Function,
            (None, Some(_), Some(_)) => return Err(not_allowed_with("handler", "a command")),
            (None, None, None) => return Err(missing("command")),
        };
        match (kind, &self.command, &self.handler) {
            (WorkKind::Function, None, Some(handler)) => Ok(WorkAction::Function(handler.clone())),
            (WorkKind::Function, Some(_), _) => Err(not_allowed_with("command", "a function")),
            (WorkKind::Function, None, None) => Err(missing("handler")),
            (_, _, Some(_)) => Err(not_allowed_with("handler", "a command")),
            (_, None, None) => Err(missing("command")),
            (WorkKind::Command, Some(argv), None) => Ok(WorkAction::Command(argv.clone())),
            (WorkKind::Django, Some(command), None) => match command.as_slice() {
                [command] => Ok(WorkAction::Django(command.clone())),
                more => {
                    let found = format!("{} elements", more.len());
                    let expected = "one element, the name of the management command";
                    Err(Problem::invalid(
                        "command",
                        &InvalidInput::with_described_value("", found, expected),
                    ))
                }
            },
        }
    }
}

impl JobTriggerInput {
    fn parse_trigger(&self) -> Result<Trigger, Problem> {
        let refuse_if = |given: bool, field: &str| match given {
            true => {
                Err(not_allowed_with(&format!("trigger.{field}"), &format!("type {}", self.kind)))
            }
            false => Ok(()),
        };
        let is = |kind: &str| self.kind == kind;
        refuse_if(self.schedule.is_some() && !is("time"), "schedule")?;
        refuse_if(self.misfire.is_some() && !is("time"), "misfire")?;
        refuse_if(self.events.is_some() && !is("event"), "events")?;
        refuse_if(self.filter.is_some() && !is("event"), "filter")?;
        match self.kind.as_str() {
            "time" => {
                let schedule = self.schedule.as_ref().ok_or_else(|| missing("trigger.schedule"))?;
                let schedule = schedule.parse_schedule("trigger.schedule")?;
                let misfire =
                    self.misfire.as_ref().map(|misfire| misfire.parse_misfire()).transpose()?;
                Ok(Trigger::Time { schedule, misfire })
            }
            "event" => {
                let types = self.events.as_ref().ok_or_else(|| missing("trigger.events"))?;
                let filter = self.filter.as_ref().map(Value::to_string);
                Ok(Trigger::Event { types: types.iter().cloned().collect(), filter })
            }
            "task" => Ok(Trigger::Task),
            other => {
                let invalid = InvalidInput::with_value("", other, "one of time, event, task");
                Err(Problem::invalid("trigger.type", &invalid))
            }
        }
    }
}

impl RetryPolicyInput {
    fn apply_to(&self, draft: &mut JobDraft) -> Result<(), Problem> {
        draft.max_retries = self.max_retries;
        draft.backoff = parse_duration("retry.backoff", self.backoff.as_deref())?;
        draft.backoff_cap = parse_duration("retry.backoff_cap", self.backoff_cap.as_deref())?;
        draft.jitter_percent = self.jitter_percent;
        draft.retry_lost = self.retry_lost;
        draft.work.retry_on = self.retry_on.clone().unwrap_or_default();
        draft.work.fail_on = self.fail_on.clone().unwrap_or_default();
        for (exit, code) in self.exit_codes.iter().flatten() {
            let path = format!("retry.exit_codes.{exit}");
            let number = exit.parse().ok().filter(|number| (0..=255).contains(number));
            let number: i32 = number.ok_or_else(|| {
                Problem::invalid(
                    &path,
                    &InvalidInput::with_value("", exit, "an exit code from 0 to 255"),
                )
            })?;
            draft.work.exit_codes.insert(number, parse_field(&path, code)?);
        }
        Ok(())
    }
}

fn parse_field<T: std::str::FromStr<Err = InvalidInput>>(
    field: &str,
    text: &str,
) -> Result<T, Problem> {
    text.parse().map_err(|invalid| Problem::invalid(field, &invalid))
}

pub(crate) fn parse_optional_field<T: std::str::FromStr<Err = InvalidInput>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Problem> {
    text.map(|text| parse_field(field, text)).transpose()
}

fn missing(field: &str) -> Problem {
    Problem::invalid(field, &InvalidInput::with_described_value("", "nothing", "a value"))
}

fn not_allowed_with(field: &str, other: &str) -> Problem {
    Problem::invalid(
        field,
        &InvalidInput::with_described_value(
            "",
            "a value",
            format!("no value together with {other}"),
        ),
    )
}
