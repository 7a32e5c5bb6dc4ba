//! The flags that define the trigger of a job (schedule, events or on request), and their conversion to JSON.

use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::job_definition_flags::text_or_null;
use crate::failure::Failure;
use crate::flag_values;

/// The flags that define the trigger of a job.
#[derive(Args)]
#[command(group = ArgGroup::new("trigger"))]
pub(super) struct TriggerArgs {
    /// Fire at this interval: 5s, 10m, 2h, 1d
    #[arg(long, value_name = "DURATION", group = "trigger", help_heading = "Trigger")]
    every: Option<String>,
    /// Fire at these minutes of every hour: 15 or 0,30
    #[arg(long, value_name = "MINUTES", group = "trigger", help_heading = "Trigger")]
    hourly_at: Option<String>,
    /// Fire at these times of every day: 02:30 or 09:00,18:00
    #[arg(long, value_name = "TIMES", group = "trigger", help_heading = "Trigger")]
    daily_at: Option<String>,
    /// Fire at these times from Monday to Friday: 09:00
    #[arg(long, value_name = "TIMES", group = "trigger", help_heading = "Trigger")]
    weekdays_at: Option<String>,
    /// Fire on these days of the week: 'mon,thu 09:00'
    #[arg(long, value_name = "DAYS TIMES", group = "trigger", help_heading = "Trigger")]
    weekly_at: Option<String>,
    /// Fire on these days of the month: '1 09:00' or 'last 18:00'
    #[arg(long, value_name = "DAYS TIMES", group = "trigger", help_heading = "Trigger")]
    monthly_at: Option<String>,
    /// Fire at the times of a cron expression: '*/5 9-17 * * MON-FRI'
    #[arg(long, value_name = "EXPRESSION", group = "trigger", help_heading = "Trigger")]
    cron: Option<String>,
    /// Run on events of this type; 'order.*' matches a prefix (repeatable)
    #[arg(long, value_name = "TYPE", group = "trigger", help_heading = "Trigger")]
    on_event: Vec<String>,
    /// Run only on request, without a schedule or events
    #[arg(long, group = "trigger", help_heading = "Trigger")]
    on_request: bool,

    /// IANA name of the time zone of the schedule [default: UTC]
    #[arg(long, value_name = "ZONE", help_heading = "Trigger")]
    zone: Option<String>,
    /// Rule for times that do not exist because the clocks go forward: skip, shift
    #[arg(long, value_name = "RULE", help_heading = "Trigger")]
    dst_gap: Option<String>,
    /// Rule for times that occur twice because the clocks go back: once, twice
    #[arg(long, value_name = "RULE", help_heading = "Trigger")]
    dst_fold: Option<String>,
    /// Misfire policy (the rule for planned times that were missed): skip_late:5m, latest_only, every_within:1h,
    /// at_most:3, default
    #[arg(long, value_name = "POLICY", help_heading = "Trigger")]
    misfire: Option<String>,
    /// Event filter: run only if the payload of the event contains these JSON fields and values
    #[arg(long, value_name = "JSON", help_heading = "Trigger")]
    filter: Option<String>,
}

impl TriggerArgs {
    /// Returns the trigger of the flags, merged into the current one, or `None` if no flag was given.
    pub(super) fn build_trigger(&self, before: &Value) -> Result<Option<Value>, Failure> {
        if self.on_request {
            refuse_flags(
                "--on-request",
                self.schedule_only_flags().chain(self.event_only_flags()),
            )?;
            return Ok(Some(json!({ "type": "task" })));
        }
        if !self.on_event.is_empty() || (self.filter.is_some() && before["type"] == "event") {
            refuse_flags("--on-event", self.schedule_only_flags())?;
            let mut trigger = trigger_of_type("event", before);
            if !self.on_event.is_empty() {
                trigger["events"] = json!(self.on_event);
            }
            if let Some(filter) = &self.filter {
                trigger["filter"] = match filter.as_str() {
                    "" | "default" => Value::Null,
                    input => Value::Object(flag_values::parse_json_object_flag("--filter", input)?),
                };
            }
            return Ok(Some(trigger));
        }
        let schedule = self.schedule();
        let flags = self.schedule_only_flags().next();
        if schedule.is_none() && (flags.is_none() || before["type"] != "time") {
            let flags = self.schedule_only_flags().chain(self.event_only_flags());
            refuse_flags("a job without a schedule or events", flags)?;
            return Ok(None);
        }
        refuse_flags("a schedule", self.event_only_flags())?;
        let mut trigger = trigger_of_type("time", before);
        if let Some((kind, value)) = schedule {
            trigger["schedule"]["type"] = json!(kind);
            trigger["schedule"]["value"] = json!(value);
        }
        for (name, input) in
            [("zone", &self.zone), ("dst_gap", &self.dst_gap), ("dst_fold", &self.dst_fold)]
        {
            if let Some(input) = input {
                trigger["schedule"][name] = text_or_null(input);
            }
        }
        if let Some(input) = &self.misfire {
            trigger["misfire"] = parse_misfire(input)?;
        }
        Ok(Some(trigger))
    }

    fn schedule(&self) -> Option<(&'static str, &str)> {
        let schedules = [
            ("every", &self.every),
            ("hourly_at", &self.hourly_at),
            ("daily_at", &self.daily_at),
            ("weekdays_at", &self.weekdays_at),
            ("weekly_at", &self.weekly_at),
            ("monthly_at", &self.monthly_at),
            ("cron", &self.cron),
        ];
        schedules.into_iter().find_map(|(kind, value)| Some((kind, value.as_deref()?)))
    }

    /// The given flags that apply to a schedule only.
    fn schedule_only_flags(&self) -> impl Iterator<Item = &'static str> {
        let input = [
            ("--zone", self.zone.is_some()),
            ("--dst-gap", self.dst_gap.is_some()),
            ("--dst-fold", self.dst_fold.is_some()),
            ("--misfire", self.misfire.is_some()),
        ];
        input.into_iter().filter(|(_, input)| *input).map(|(flag, _)| flag)
    }

    fn event_only_flags(&self) -> impl Iterator<Item = &'static str> {
        self.filter.iter().map(|_| "--filter")
    }
}

fn refuse_flags(with: &str, mut flags: impl Iterator<Item = &'static str>) -> Result<(), Failure> {
    match flags.next() {
        None => Ok(()),
        Some(flag) => Err(Failure::bad_usage(format!("{flag} cannot be used with {with}"))),
    }
}

/// Returns the current trigger if it has this type, else an empty trigger of this type.
fn trigger_of_type(kind: &str, before: &Value) -> Value {
    match before["type"] == kind {
        true => before.clone(),
        false => json!({ "type": kind }),
    }
}

/// Parses `skip_late:5m`, `latest_only`, `every_within:1h` or `at_most:3`.
fn parse_misfire(input: &str) -> Result<Value, Failure> {
    let (policy, detail) = match input.split_once(':') {
        Some((policy, detail)) => (policy, Some(detail)),
        None => (input, None),
    };
    let count = || detail.and_then(|detail| detail.parse::<u32>().ok());
    Ok(match (policy, detail) {
        ("skip_late", Some(after)) => json!({ "policy": policy, "after": after }),
        ("every_within", Some(window)) => json!({ "policy": policy, "window": window }),
        ("latest_only", None) => json!({ "policy": policy }),
        ("default" | "", None) => Value::Null,
        ("at_most", Some(_)) if count().is_some() => json!({ "policy": policy, "count": count() }),
        _ => {
            let expected = "skip_late:5m, latest_only, every_within:1h, at_most:3 or default";
            let message = format!("--misfire: found {input:?}, expected one of {expected}");
            return Err(Failure::bad_usage(message));
        }
    })
}
