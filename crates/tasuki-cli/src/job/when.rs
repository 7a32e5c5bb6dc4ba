//! The flags that say when a job runs, and the trigger they make.

use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::definition::text_or_default;
use crate::output::Failure;
use crate::typed;

/// When a job runs.
#[derive(Args)]
#[command(group = ArgGroup::new("when"))]
pub(super) struct When {
    /// Fires in a rhythm: 5s, 10m, 2h, 1d
    #[arg(long, value_name = "DURATION", group = "when", help_heading = "When it runs")]
    every: Option<String>,
    /// Fires at these minutes of every hour: 15 or 0,30
    #[arg(long, value_name = "MINUTES", group = "when", help_heading = "When it runs")]
    hourly_at: Option<String>,
    /// Fires at these times of every day: 02:30 or 09:00,18:00
    #[arg(long, value_name = "TIMES", group = "when", help_heading = "When it runs")]
    daily_at: Option<String>,
    /// Fires at these times, Monday to Friday
    #[arg(long, value_name = "TIMES", group = "when", help_heading = "When it runs")]
    weekdays_at: Option<String>,
    /// Fires on days of the week: 'mon,thu 09:00'
    #[arg(long, value_name = "DAYS TIMES", group = "when", help_heading = "When it runs")]
    weekly_at: Option<String>,
    /// Fires on days of the month: '1 09:00' or 'last 18:00'
    #[arg(long, value_name = "DAYS TIMES", group = "when", help_heading = "When it runs")]
    monthly_at: Option<String>,
    /// Fires as a cron expression says: '*/5 9-17 * * MON-FRI'
    #[arg(long, value_name = "EXPRESSION", group = "when", help_heading = "When it runs")]
    cron: Option<String>,
    /// Runs on events of this type, exact or as in 'order.*' (repeatable)
    #[arg(long, value_name = "TYPE", group = "when", help_heading = "When it runs")]
    on_event: Vec<String>,
    /// Runs only when asked
    #[arg(long, group = "when", help_heading = "When it runs")]
    on_request: bool,

    /// The zone whose wall clock counts, by its IANA name [default: UTC]
    #[arg(long, value_name = "ZONE", help_heading = "When it runs")]
    zone: Option<String>,
    /// What becomes of a time that is skipped when the clocks go forward: skip, shift
    #[arg(long, value_name = "RULE", help_heading = "When it runs")]
    dst_gap: Option<String>,
    /// What becomes of a time that comes twice when the clocks go back: once, twice
    #[arg(long, value_name = "RULE", help_heading = "When it runs")]
    dst_fold: Option<String>,
    /// What becomes of missed times: skip_late:5m, latest_only, every_within:1h, at_most:3, default
    #[arg(long, value_name = "POLICY", help_heading = "When it runs")]
    misfire: Option<String>,
    /// Takes only events whose payload matches this JSON object
    #[arg(long, value_name = "JSON", help_heading = "When it runs")]
    filter: Option<String>,
}

impl When {
    /// The trigger that was typed, laid over what it is now; nothing if nothing was typed.
    pub(super) fn trigger(&self, before: &Value) -> Result<Option<Value>, Failure> {
        if self.on_request {
            refuse_details("--on-request", self.of_time().chain(self.of_events()))?;
            return Ok(Some(json!({ "type": "task" })));
        }
        if !self.on_event.is_empty() || (self.filter.is_some() && before["type"] == "event") {
            refuse_details("--on-event", self.of_time())?;
            let mut trigger = typed_as("event", before);
            if !self.on_event.is_empty() {
                trigger["events"] = json!(self.on_event);
            }
            if let Some(filter) = &self.filter {
                trigger["filter"] = match filter.as_str() {
                    "" | "default" => Value::Null,
                    typed => Value::Object(typed::json_object("--filter", typed)?),
                };
            }
            return Ok(Some(trigger));
        }
        let schedule = self.schedule();
        let details = self.of_time().next();
        if schedule.is_none() && (details.is_none() || before["type"] != "time") {
            let details = self.of_time().chain(self.of_events());
            refuse_details("a job without --every, --cron or the like", details)?;
            return Ok(None);
        }
        refuse_details("a schedule", self.of_events())?;
        let mut trigger = typed_as("time", before);
        if let Some((kind, value)) = schedule {
            trigger["schedule"]["type"] = json!(kind);
            trigger["schedule"]["value"] = json!(value);
        }
        for (name, typed) in
            [("zone", &self.zone), ("dst_gap", &self.dst_gap), ("dst_fold", &self.dst_fold)]
        {
            if let Some(typed) = typed {
                trigger["schedule"][name] = text_or_default(typed);
            }
        }
        if let Some(typed) = &self.misfire {
            trigger["misfire"] = misfire(typed)?;
        }
        Ok(Some(trigger))
    }

    fn schedule(&self) -> Option<(&'static str, &str)> {
        let all = [
            ("every", &self.every),
            ("hourly_at", &self.hourly_at),
            ("daily_at", &self.daily_at),
            ("weekdays_at", &self.weekdays_at),
            ("weekly_at", &self.weekly_at),
            ("monthly_at", &self.monthly_at),
            ("cron", &self.cron),
        ];
        all.into_iter().find_map(|(kind, value)| Some((kind, value.as_deref()?)))
    }

    /// What was typed that only a schedule has a use for.
    fn of_time(&self) -> impl Iterator<Item = &'static str> {
        let typed = [
            ("--zone", self.zone.is_some()),
            ("--dst-gap", self.dst_gap.is_some()),
            ("--dst-fold", self.dst_fold.is_some()),
            ("--misfire", self.misfire.is_some()),
        ];
        typed.into_iter().filter(|(_, typed)| *typed).map(|(flag, _)| flag)
    }

    fn of_events(&self) -> impl Iterator<Item = &'static str> {
        self.filter.iter().map(|_| "--filter")
    }
}

fn refuse_details(
    with: &str,
    mut flags: impl Iterator<Item = &'static str>,
) -> Result<(), Failure> {
    match flags.next() {
        None => Ok(()),
        Some(flag) => Err(Failure::bad_usage(format!("{flag} has no use with {with}"))),
    }
}

/// A trigger that stays of its type keeps its parts; one that becomes another type starts anew.
fn typed_as(kind: &str, before: &Value) -> Value {
    match before["type"] == kind {
        true => before.clone(),
        false => json!({ "type": kind }),
    }
}

/// `skip_late:5m`, `latest_only`, `every_within:1h`, `at_most:3`
fn misfire(typed: &str) -> Result<Value, Failure> {
    let (policy, detail) = match typed.split_once(':') {
        Some((policy, detail)) => (policy, Some(detail)),
        None => (typed, None),
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
            let message = format!("--misfire: found {typed:?}, expected one of {expected}");
            return Err(Failure::bad_usage(message));
        }
    })
}
