//! The flags that say what a job is, and the JSON they make.
//!
//! Only what cannot be sent at all is refused here. Whether a schedule, a zone or a duration will do
//! is the server's to say, in the same words for everybody.

use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

use crate::output::Failure;
use crate::typed::{self, Arguments};

/// What a job is.
#[derive(Args)]
#[command(group = ArgGroup::new("when"))]
#[command(group = ArgGroup::new("what"))]
pub(crate) struct Definition {
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

    /// What it runs: command, django, function [default: as the rest says]
    #[arg(long, help_heading = "What it runs")]
    kind: Option<String>,
    /// A Django management command
    #[arg(long, value_name = "COMMAND", group = "what", help_heading = "What it runs")]
    django: Option<String>,
    /// A function of the program that embeds tasuki, by the name of its handler
    #[arg(long, value_name = "HANDLER", group = "what", help_heading = "What it runs")]
    function: Option<String>,
    #[command(flatten, next_help_heading = "What it runs")]
    arguments: Arguments,
    /// A variable of its environment (repeatable)
    #[arg(long, value_name = "NAME=VALUE", help_heading = "What it runs")]
    env: Vec<String>,
    /// Where it runs
    #[arg(long, value_name = "DIR", help_heading = "What it runs")]
    directory: Option<String>,
    /// What people should know about it
    #[arg(long, value_name = "TEXT", help_heading = "What it runs")]
    description: Option<String>,

    /// How long an attempt may take; default: what the settings say
    #[arg(long, value_name = "DURATION", help_heading = "How it runs")]
    timeout: Option<String>,
    /// How long it may be silent; default: what the settings say
    #[arg(long, value_name = "DURATION", help_heading = "How it runs")]
    heartbeat_timeout: Option<String>,
    /// How long it has between TERM and KILL; default: what the settings say
    #[arg(long, value_name = "DURATION", help_heading = "How it runs")]
    stop_grace: Option<String>,
    /// How often it is tried again after a failure
    #[arg(long, value_name = "N", help_heading = "How it runs")]
    retries: Option<u32>,
    /// How long to wait before the first retry; doubles with each
    #[arg(long, value_name = "DURATION", help_heading = "How it runs")]
    backoff: Option<String>,
    /// The longest wait between retries
    #[arg(long, value_name = "DURATION", help_heading = "How it runs")]
    backoff_cap: Option<String>,
    /// When the one before still runs: forbid, allow, replace
    #[arg(long, value_name = "POLICY", help_heading = "How it runs")]
    concurrency: Option<String>,
    /// Only workers with this label take it (repeatable)
    #[arg(long = "label", value_name = "LABEL", help_heading = "How it runs")]
    labels: Vec<String>,
    /// Who decides where it runs: assign (the leader), claim (any worker with room)
    #[arg(long, value_name = "WHO", help_heading = "How it runs")]
    dispatch: Option<String>,

    /// The program and its arguments, after --
    #[arg(last = true, value_name = "COMMAND", group = "what")]
    command: Vec<String>,
}

impl Definition {
    /// The fields that were typed, laid over what the job is now (nothing, for a new one).
    pub(crate) fn over(&self, job: &Value) -> Result<Map<String, Value>, Failure> {
        let mut fields = Map::new();
        self.what(&mut fields);
        if let Some(trigger) = self.trigger(&job["trigger"])? {
            fields.insert("trigger".to_owned(), trigger);
        }
        if let Some(args) = self.arguments.over(&job["args"])? {
            fields.insert("args".to_owned(), args);
        }
        if !self.env.is_empty() {
            let mut env = job["env"].as_object().cloned().unwrap_or_default();
            for typed in &self.env {
                let (name, value) = typed::pair("--env", typed)?;
                env.insert(name.to_owned(), json!(value));
            }
            fields.insert("env".to_owned(), Value::Object(env));
        }
        for (name, typed) in [
            ("description", &self.description),
            ("directory", &self.directory),
            ("timeout", &self.timeout),
            ("heartbeat_timeout", &self.heartbeat_timeout),
            ("stop_grace", &self.stop_grace),
        ] {
            if let Some(typed) = typed {
                fields.insert(name.to_owned(), text_or_default(typed));
            }
        }
        for (name, typed) in [("concurrency", &self.concurrency), ("dispatch", &self.dispatch)] {
            if let Some(typed) = typed {
                fields.insert(name.to_owned(), json!(typed));
            }
        }
        if !self.labels.is_empty() {
            fields.insert("labels".to_owned(), json!(self.labels));
        }
        if let Some(retry) = self.retry(&job["retry"]) {
            fields.insert("retry".to_owned(), retry);
        }
        Ok(fields)
    }

    fn what(&self, fields: &mut Map<String, Value>) {
        let mut is = |kind: &str, command: Value, handler: Value| {
            fields.insert("kind".to_owned(), json!(kind));
            fields.insert("command".to_owned(), command);
            fields.insert("handler".to_owned(), handler);
        };
        match (&self.django, &self.function, self.command.as_slice()) {
            (Some(django), _, _) => is("django", json!([django]), Value::Null),
            (None, Some(handler), _) => is("function", Value::Null, json!(handler)),
            (None, None, []) => {}
            (None, None, argv) => is("command", json!(argv), Value::Null),
        }
        if let Some(kind) = &self.kind {
            fields.insert("kind".to_owned(), json!(kind));
        }
    }

    fn trigger(&self, before: &Value) -> Result<Option<Value>, Failure> {
        if self.on_request {
            self.refuse_details("--on-request", self.of_time().chain(self.of_events()))?;
            return Ok(Some(json!({ "type": "task" })));
        }
        if !self.on_event.is_empty() || (self.filter.is_some() && before["type"] == "event") {
            self.refuse_details("--on-event", self.of_time())?;
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
            self.refuse_details("a job without --every, --cron or the like", details)?;
            return Ok(None);
        }
        self.refuse_details("a schedule", self.of_events())?;
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

    fn refuse_details(
        &self,
        with: &str,
        mut flags: impl Iterator<Item = &'static str>,
    ) -> Result<(), Failure> {
        match flags.next() {
            None => Ok(()),
            Some(flag) => Err(Failure::bad_usage(format!("{flag} has no use with {with}"))),
        }
    }

    fn retry(&self, before: &Value) -> Option<Value> {
        let mut retry = before.as_object().cloned().unwrap_or_default();
        let typed = [
            ("max_retries", self.retries.map(|count| json!(count))),
            ("backoff", self.backoff.as_ref().map(|typed| json!(typed))),
            ("backoff_cap", self.backoff_cap.as_ref().map(|typed| json!(typed))),
        ];
        let mut any = false;
        for (name, value) in typed {
            let Some(value) = value else { continue };
            retry.insert(name.to_owned(), value);
            any = true;
        }
        any.then_some(Value::Object(retry))
    }
}

/// A trigger that stays of its type keeps its parts; one that becomes another type starts anew.
fn typed_as(kind: &str, before: &Value) -> Value {
    match before["type"] == kind {
        true => before.clone(),
        false => json!({ "type": kind }),
    }
}

/// Nothing, or the word `default`, takes a choice back.
fn text_or_default(typed: &str) -> Value {
    match typed {
        "" | "default" => Value::Null,
        typed => json!(typed),
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        definition: Definition,
    }

    fn over(job: &Value, words: &[&str]) -> Result<Value, Failure> {
        let typed = Typed::try_parse_from([&["x"], words].concat()).expect("the flags read");
        typed.definition.over(job).map(Value::Object)
    }

    #[test]
    fn flags_make_the_job() {
        let none = &Value::Null;
        let table: &[(&[&str], Value)] = &[
            (
                &["--every", "5s", "--", "echo", "hi"],
                json!({"kind": "command", "command": ["echo", "hi"],
                    "trigger": {"type": "time", "schedule": {"type": "every", "value": "5s"}}}),
            ),
            (
                &[
                    "--cron",
                    "@daily",
                    "--zone",
                    "Asia/Tokyo",
                    "--misfire",
                    "at_most:3",
                    "--function",
                    "f",
                ],
                json!({"kind": "function", "handler": "f",
                    "trigger": {"type": "time", "misfire": {"policy": "at_most", "count": 3},
                        "schedule": {"type": "cron", "value": "@daily", "zone": "Asia/Tokyo"}}}),
            ),
            (
                &[
                    "--on-event",
                    "a",
                    "--on-event",
                    "b.*",
                    "--filter",
                    r#"{"x":1}"#,
                    "--django",
                    "cmd",
                ],
                json!({"kind": "django", "command": ["cmd"],
                    "trigger": {"type": "event", "events": ["a", "b.*"], "filter": {"x": 1}}}),
            ),
            (
                &["--retries", "2", "--backoff", "1s", "--env", "A=b=c", "--label", "gpu"],
                json!({"retry": {"max_retries": 2, "backoff": "1s"}, "env": {"A": "b=c"},
                    "labels": ["gpu"]}),
            ),
        ];
        for (words, expected) in table {
            let mut made = over(none, words).unwrap();
            made.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            assert_eq!(&made, expected, "{words:?}");
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_mention() {
        let job = json!({"args": {"a": 1}, "retry": {"max_retries": 0, "backoff": "30s"},
            "trigger": {"type": "time", "misfire": {"policy": "latest_only"},
                "schedule": {"type": "every", "value": "5s", "zone": "Asia/Tokyo"}}});
        assert_eq!(
            over(&job, &["--daily-at", "09:00", "--misfire", "default"]).unwrap()["trigger"],
            json!({"type": "time", "misfire": null,
                "schedule": {"type": "daily_at", "value": "09:00", "zone": "Asia/Tokyo"}})
        );
        assert_eq!(
            over(&job, &["--zone", "UTC"]).unwrap()["trigger"]["schedule"],
            json!({"type": "every", "value": "5s", "zone": "UTC"})
        );
        assert_eq!(over(&job, &["--arg", "b=2"]).unwrap(), json!({"args": {"a": 1, "b": 2}}));
        assert_eq!(
            over(&job, &["--on-event", "x"]).unwrap()["trigger"],
            json!({"type": "event", "events": ["x"]})
        );
        assert_eq!(over(&job, &["--timeout", "default"]).unwrap(), json!({"timeout": null}));
    }

    #[test]
    fn details_without_their_trigger_are_refused() {
        for words in [
            &["--zone", "UTC"][..],
            &["--filter", "{}"],
            &["--every", "5s", "--filter", "{}"],
            &["--on-event", "x", "--misfire", "latest_only"],
            &["--every", "5s", "--misfire", "skip_late"],
            &["--every", "5s", "--misfire", "at_most:x"],
            &["--on-event", "x", "--filter", "[]"],
        ] {
            assert!(over(&Value::Null, words).is_err(), "{words:?}");
        }
    }
}
