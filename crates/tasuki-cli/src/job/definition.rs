//! The flags that say what a job is, and the JSON they make.
//!
//! Only what cannot be sent at all is refused here. Whether a schedule, a zone or a duration will do
//! is the server's to say, in the same words for everybody.

use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

use super::when::When;
use crate::output::Failure;
use crate::typed::{self, Arguments};

/// What a job is.
#[derive(Args)]
#[command(group = ArgGroup::new("what"))]
pub(crate) struct Definition {
    #[command(flatten)]
    when: When,

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
    /// The share of each wait, in percent, that chance may take away
    #[arg(long, value_name = "PERCENT", help_heading = "How it runs")]
    jitter: Option<u8>,
    /// An exit code or error code after which another try may help (repeatable)
    #[arg(long, value_name = "CODE", help_heading = "How it runs")]
    retry_on: Vec<String>,
    /// An exit code or error code after which no other try will help (repeatable)
    #[arg(long, value_name = "CODE", help_heading = "How it runs")]
    fail_on: Vec<String>,
    /// What an exit code is called, as in 3=NO_DATA (repeatable)
    #[arg(long = "exit-code", value_name = "N=CODE", help_heading = "How it runs")]
    exit_codes: Vec<String>,
    /// When the one before still runs: forbid, allow, replace
    #[arg(long, value_name = "POLICY", help_heading = "How it runs")]
    concurrency: Option<String>,
    /// Only workers with this label take it (repeatable)
    #[arg(long = "label", value_name = "LABEL", help_heading = "How it runs")]
    labels: Vec<String>,
    /// Who decides where it runs: assign (the leader), claim (any worker with room)
    #[arg(long, value_name = "WHO", help_heading = "How it runs")]
    dispatch: Option<String>,
    /// Whose slots it uses; only for functions [default: default]
    #[arg(long, value_name = "QUEUE", help_heading = "How it runs")]
    queue: Option<String>,
    /// Its head start before others that wait: lowest, low, normal, high, highest; only for functions
    #[arg(long, value_name = "PRIORITY", help_heading = "How it runs")]
    priority: Option<String>,

    /// The program and its arguments, after --
    #[arg(last = true, value_name = "COMMAND", group = "what")]
    command: Vec<String>,
}

impl Definition {
    /// Refuses what does not say what is to be run.
    pub(crate) fn check_whole(&self, name: &str) -> Result<(), Failure> {
        if self.django.is_some() || self.function.is_some() || !self.command.is_empty() {
            return Ok(());
        }
        Err(Failure::bad_usage(format!("{name}: what is it to run? -- COMMAND is missing"))
            .hint("as in tasuki job create hello --every 5s -- echo hi; --django and --function run other things"))
    }

    /// The fields that were typed, laid over what the job is now (nothing, for a new one).
    pub(crate) fn over(&self, job: &Value) -> Result<Map<String, Value>, Failure> {
        let mut fields = Map::new();
        self.what(&mut fields);
        if let Some(trigger) = self.when.trigger(&job["trigger"])? {
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
        for (name, typed) in [
            ("concurrency", &self.concurrency),
            ("dispatch", &self.dispatch),
            ("queue", &self.queue),
            ("priority", &self.priority),
        ] {
            if let Some(typed) = typed {
                fields.insert(name.to_owned(), json!(typed));
            }
        }
        if !self.labels.is_empty() {
            fields.insert("labels".to_owned(), json!(self.labels));
        }
        if let Some(retry) = self.retry(&job["retry"])? {
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

    fn retry(&self, before: &Value) -> Result<Option<Value>, Failure> {
        let mut retry = before.as_object().cloned().unwrap_or_default();
        let list = |typed: &Vec<String>| (!typed.is_empty()).then(|| json!(typed));
        let mut codes = Map::new();
        for typed in &self.exit_codes {
            let (exit, code) = typed::pair("--exit-code", typed)?;
            codes.insert(exit.to_owned(), json!(code));
        }
        let typed = [
            ("max_retries", self.retries.map(|count| json!(count))),
            ("backoff", self.backoff.as_ref().map(|typed| json!(typed))),
            ("backoff_cap", self.backoff_cap.as_ref().map(|typed| json!(typed))),
            ("jitter_percent", self.jitter.map(|percent| json!(percent))),
            ("retry_on", list(&self.retry_on)),
            ("fail_on", list(&self.fail_on)),
            ("exit_codes", (!codes.is_empty()).then_some(Value::Object(codes))),
        ];
        let mut any = false;
        for (name, value) in typed {
            let Some(value) = value else { continue };
            retry.insert(name.to_owned(), value);
            any = true;
        }
        Ok(any.then_some(Value::Object(retry)))
    }
}

/// Nothing, or the word `default`, takes a choice back.
pub(super) fn text_or_default(typed: &str) -> Value {
    match typed {
        "" | "default" => Value::Null,
        typed => json!(typed),
    }
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
