//! A job as people send it, whole or as a patch, and the draft it becomes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use tasuki::operator::JobDraft;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::DstChoice;
use tasuki_core::job_spec::{What, Work, WorkKind};
use tasuki_core::{Invalid, Schedule};
use tasuki_store::Trigger;
use utoipa::ToSchema;

use crate::input::{Input, Object, length};
use crate::problem::Problem;

/// A job to be made.
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
    /// What people call it.
    #[schema(min_length = 1, max_length = 191)]
    pub(crate) name: String,
    /// Whether it makes runs at all.
    enabled: Option<bool>,
    /// What people say about it.
    #[schema(max_length = 4096)]
    description: Option<String>,
    /// What starts its runs; only requests, unless said.
    #[schema(value_type = Option<TriggerInput>)]
    trigger: Option<Object<TriggerInput>>,
    /// What it runs: `command` if there is a command, `function` if there is a handler.
    #[schema(pattern = "^(command|django|function)$")]
    kind: Option<String>,
    /// The program and its arguments; for `django` the one management command.
    #[schema(max_items = 1000)]
    command: Option<Vec<String>>,
    /// The function.
    #[schema(min_length = 1, max_length = 150)]
    handler: Option<String>,
    /// Its arguments, unless whoever starts it brings others.
    #[schema(value_type = Option<Object>, additional_properties)]
    args: Option<Map<String, Value>>,
    /// More of its environment.
    env: Option<BTreeMap<String, String>>,
    /// Where it runs.
    #[schema(min_length = 1)]
    directory: Option<String>,
    /// How long an attempt may take.
    timeout: Option<String>,
    /// How long it may be silent.
    heartbeat_timeout: Option<String>,
    /// How long it has between TERM and KILL.
    stop_grace: Option<String>,
    /// Who decides where a run goes.
    #[schema(pattern = "^(assign|claim)$")]
    dispatch: Option<String>,
    /// Whose slots its runs use; only of functions that workers claim. `default`, unless said.
    #[schema(min_length = 1, max_length = 32)]
    queue: Option<String>,
    /// How much of a head start they have before others that wait; only of functions that workers claim. `normal`,
    /// unless said.
    #[schema(pattern = "^(lowest|low|normal|high|highest)$")]
    priority: Option<String>,
    /// What becomes of a run while another one runs.
    #[schema(pattern = "^(forbid|allow|replace)$")]
    concurrency: Option<String>,
    /// What its worker must be good for.
    #[schema(max_items = 100)]
    labels: Option<Vec<String>>,
    /// What follows a failure.
    #[schema(value_type = Option<RetryInput>)]
    retry: Option<Object<RetryInput>>,
}

impl Input for NewJob {}

/// What starts a job's runs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerInput {
    /// A schedule, events, or only requests.
    #[serde(rename = "type")]
    #[schema(pattern = "^(time|event|task)$")]
    kind: String,
    /// When, for `time`.
    #[schema(value_type = Option<ScheduleInput>)]
    schedule: Option<Object<ScheduleInput>>,
    /// What becomes of missed slots, for `time`.
    #[schema(value_type = Option<MisfireInput>)]
    misfire: Option<Object<MisfireInput>>,
    /// Which events, for `event`: a type, or `prefix.*`.
    #[schema(min_items = 1, max_items = 1000)]
    events: Option<Vec<String>>,
    /// What the payload must say, for `event`.
    #[schema(value_type = Option<Object>, additional_properties)]
    filter: Option<Value>,
}

/// When a job fires.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleInput {
    /// How the value is to be read.
    #[serde(rename = "type")]
    #[schema(pattern = "^(every|hourly_at|daily_at|weekdays_at|weekly_at|monthly_at|cron)$")]
    kind: String,
    /// The schedule itself: `5s`, `02:30`, `mon,thu 09:00`, `*/5 * * * *`.
    #[schema(min_length = 1, max_length = 256)]
    value: String,
    /// The IANA name of a zone; UTC, unless said.
    #[schema(min_length = 1, max_length = 64)]
    zone: Option<String>,
    /// What it does when the clocks go forward.
    #[schema(pattern = "^(skip|shift)$")]
    dst_gap: Option<String>,
    /// What it does when the clocks go back.
    #[schema(pattern = "^(once|twice)$")]
    dst_fold: Option<String>,
}

impl ScheduleInput {
    /// The schedule, with what is wrong told under the path it stands at.
    pub(crate) fn schedule(&self, path: &str) -> Result<Schedule, Problem> {
        let at = |field: &str| format!("{path}.{field}");
        let kind = read(&at("type"), &self.kind)?;
        let gap = choice(&at("dst_gap"), self.dst_gap.as_deref())?;
        let fold = choice(&at("dst_fold"), self.dst_fold.as_deref())?;
        let zone = self.zone.as_deref().unwrap_or("UTC");
        Schedule::parse(kind, &self.value, zone, DstChoice { gap, fold }).map_err(|invalid| {
            let field = if invalid.field == "time zone" { "zone" } else { "value" };
            Problem::invalid(at(field), &invalid)
        })
    }
}

/// What becomes of slots that were missed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MisfireInput {
    /// Which of them run.
    #[schema(pattern = "^(skip_late|latest_only|every_within|at_most)$")]
    policy: String,
    /// What is later is skipped, for `skip_late`.
    after: Option<String>,
    /// What was missed within it runs, for `every_within`.
    window: Option<String>,
    /// So many run, for `at_most`.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<u32>,
}

impl MisfireInput {
    fn misfire(&self) -> Result<Misfire, Problem> {
        let path = "trigger.misfire";
        let at = |field: &str| format!("{path}.{field}");
        let needed = |field: &str, typed: Option<&str>| {
            length(&at(field), typed)?.ok_or_else(|| missing(&at(field)))
        };
        let given = [
            ("after", self.after.is_some()),
            ("window", self.window.is_some()),
            ("count", self.count.is_some()),
        ];
        let takes = match self.policy.as_str() {
            "skip_late" => "after",
            "every_within" => "window",
            "at_most" => "count",
            _ => "",
        };
        let misfire = match self.policy.as_str() {
            "skip_late" => Misfire::SkipLate(needed("after", self.after.as_deref())?),
            "every_within" => Misfire::EveryWithin(needed("window", self.window.as_deref())?),
            "at_most" => Misfire::AtMost(self.count.ok_or_else(|| missing(&at("count")))?),
            "latest_only" => Misfire::LatestOnly,
            other => {
                let expected = "one of skip_late, latest_only, every_within, at_most";
                return Err(Problem::invalid(at("policy"), &Invalid::typed("", other, expected)));
            }
        };
        if let Some((field, _)) = given.iter().find(|(field, given)| *given && *field != takes) {
            return Err(out_of_place(&at(field), &format!("policy {}", self.policy)));
        }
        misfire.checked().map_err(|invalid| Problem::invalid(path, &invalid))
    }
}

/// What follows a failure.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryInput {
    /// How often a failed run is tried again.
    #[schema(minimum = 0, maximum = 1000)]
    max_retries: Option<u32>,
    /// The first wait between two tries.
    backoff: Option<String>,
    /// The longest.
    backoff_cap: Option<String>,
    /// The share of each wait that dice may take away.
    #[schema(minimum = 0, maximum = 100)]
    jitter_percent: Option<u8>,
    /// Whether a lost run is tried again.
    retry_lost: Option<bool>,
    /// Exit codes and error codes after which another try may help.
    #[schema(max_items = 1000)]
    retry_on: Option<Vec<String>>,
    /// And those after which none will.
    #[schema(max_items = 1000)]
    fail_on: Option<Vec<String>>,
    /// What its exit codes are called.
    exit_codes: Option<BTreeMap<String, String>>,
}

impl NewJob {
    /// The draft it becomes.
    pub(crate) fn draft(&self) -> Result<JobDraft, Problem> {
        let mut work = Work::new(self.what()?);
        work.description = self.description.clone();
        work.args = self.args.clone().unwrap_or_default();
        work.env = self.env.clone().unwrap_or_default();
        work.directory = self.directory.clone();
        work.timeout = length("timeout", self.timeout.as_deref())?;
        work.heartbeat_timeout = length("heartbeat_timeout", self.heartbeat_timeout.as_deref())?;
        work.stop_grace = length("stop_grace", self.stop_grace.as_deref())?;
        for (field, given) in [("queue", &self.queue), ("priority", &self.priority)] {
            if given.is_some() && work.kind() != WorkKind::Function {
                return Err(out_of_place(field, "a command: only functions have one"));
            }
        }
        work.queue = choice("queue", self.queue.as_deref())?.unwrap_or_default();
        work.priority = choice("priority", self.priority.as_deref())?.unwrap_or_default();
        let mut draft = JobDraft::new(work);
        draft.enabled = self.enabled.unwrap_or(true);
        if let Some(trigger) = &self.trigger {
            draft.trigger = trigger.trigger()?;
        }
        draft.dispatch = choice("dispatch", self.dispatch.as_deref())?;
        draft.concurrency = choice("concurrency", self.concurrency.as_deref())?;
        draft.labels = self.labels.iter().flatten().cloned().collect();
        if let Some(retry) = &self.retry {
            retry.onto(&mut draft)?;
        }
        Ok(draft)
    }

    fn what(&self) -> Result<What, Problem> {
        let kind = match (&self.kind, &self.command, &self.handler) {
            (Some(word), _, _) => read("kind", word)?,
            (None, Some(_), None) => WorkKind::Command,
            (None, None, Some(_)) => WorkKind::Function,
            (None, Some(_), Some(_)) => return Err(out_of_place("handler", "a command")),
            (None, None, None) => return Err(missing("command")),
        };
        match (kind, &self.command, &self.handler) {
            (WorkKind::Function, None, Some(handler)) => Ok(What::Function(handler.clone())),
            (WorkKind::Function, Some(_), _) => Err(out_of_place("command", "a function")),
            (WorkKind::Function, None, None) => Err(missing("handler")),
            (_, _, Some(_)) => Err(out_of_place("handler", "a command")),
            (_, None, None) => Err(missing("command")),
            (WorkKind::Command, Some(argv), None) => Ok(What::Command(argv.clone())),
            (WorkKind::Django, Some(command), None) => match command.as_slice() {
                [command] => Ok(What::Django(command.clone())),
                more => {
                    let found = format!("{} elements", more.len());
                    let expected = "one element, the name of the management command";
                    Err(Problem::invalid("command", &Invalid::described("", found, expected)))
                }
            },
        }
    }
}

impl TriggerInput {
    fn trigger(&self) -> Result<Trigger, Problem> {
        let refuse = |given: bool, field: &str| match given {
            true => Err(out_of_place(&format!("trigger.{field}"), &format!("type {}", self.kind))),
            false => Ok(()),
        };
        let is = |kind: &str| self.kind == kind;
        refuse(self.schedule.is_some() && !is("time"), "schedule")?;
        refuse(self.misfire.is_some() && !is("time"), "misfire")?;
        refuse(self.events.is_some() && !is("event"), "events")?;
        refuse(self.filter.is_some() && !is("event"), "filter")?;
        match self.kind.as_str() {
            "time" => {
                let schedule = self.schedule.as_ref().ok_or_else(|| missing("trigger.schedule"))?;
                let schedule = schedule.schedule("trigger.schedule")?;
                let misfire = self.misfire.as_ref().map(|misfire| misfire.misfire()).transpose()?;
                Ok(Trigger::Time { schedule, misfire })
            }
            "event" => {
                let types = self.events.as_ref().ok_or_else(|| missing("trigger.events"))?;
                let filter = self.filter.as_ref().map(Value::to_string);
                Ok(Trigger::Event { types: types.iter().cloned().collect(), filter })
            }
            "task" => Ok(Trigger::Task),
            other => {
                let invalid = Invalid::typed("", other, "one of time, event, task");
                Err(Problem::invalid("trigger.type", &invalid))
            }
        }
    }
}

impl RetryInput {
    fn onto(&self, draft: &mut JobDraft) -> Result<(), Problem> {
        draft.max_retries = self.max_retries;
        draft.backoff = length("retry.backoff", self.backoff.as_deref())?;
        draft.backoff_cap = length("retry.backoff_cap", self.backoff_cap.as_deref())?;
        draft.jitter_percent = self.jitter_percent;
        draft.retry_lost = self.retry_lost;
        draft.work.retry_on = self.retry_on.clone().unwrap_or_default();
        draft.work.fail_on = self.fail_on.clone().unwrap_or_default();
        for (exit, code) in self.exit_codes.iter().flatten() {
            let path = format!("retry.exit_codes.{exit}");
            let number = exit.parse().ok().filter(|number| (0..=255).contains(number));
            let number: i32 = number.ok_or_else(|| {
                Problem::invalid(&path, &Invalid::typed("", exit, "an exit code from 0 to 255"))
            })?;
            draft.work.exit_codes.insert(number, read(&path, code)?);
        }
        Ok(())
    }
}

fn read<T: std::str::FromStr<Err = Invalid>>(field: &str, typed: &str) -> Result<T, Problem> {
    typed.parse().map_err(|invalid| Problem::invalid(field, &invalid))
}

pub(crate) fn choice<T: std::str::FromStr<Err = Invalid>>(
    field: &str,
    typed: Option<&str>,
) -> Result<Option<T>, Problem> {
    typed.map(|typed| read(field, typed)).transpose()
}

fn missing(field: &str) -> Problem {
    Problem::invalid(field, &Invalid::described("", "nothing", "a value: it is needed here"))
}

fn out_of_place(field: &str, beside: &str) -> Problem {
    Problem::invalid(field, &Invalid::described("", "a value", format!("none beside {beside}")))
}
