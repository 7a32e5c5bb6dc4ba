//! The flags that define a job, and their conversion to the JSON of the API.
//!
//! Only values that cannot be sent are refused here. The server validates schedules, time zones and durations, so that
//! every client gets the same messages.

use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

use super::trigger_flags::TriggerArgs;
use crate::failure::Failure;
use crate::flag_values::{self, RunArguments};

/// The flags that define a job.
#[derive(Args)]
#[command(group = ArgGroup::new("action"))]
pub(crate) struct JobDefinitionFlags {
    #[command(flatten)]
    trigger: TriggerArgs,

    /// Kind of the job: command, django, function [default: derived from the other options]
    #[arg(long, help_heading = "Action")]
    kind: Option<String>,
    /// Django management command to run
    #[arg(long, value_name = "COMMAND", group = "action", help_heading = "Action")]
    django: Option<String>,
    /// Name of the handler to call in the program that embeds tasuki
    #[arg(long, value_name = "HANDLER", group = "action", help_heading = "Action")]
    function: Option<String>,
    #[command(flatten, next_help_heading = "Action")]
    arguments: RunArguments,
    /// Environment variable of the process (repeatable)
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Action")]
    env: Vec<String>,
    /// Working directory of the process
    #[arg(long, value_name = "DIR", help_heading = "Action")]
    directory: Option<String>,
    /// Description of the job
    #[arg(long, value_name = "TEXT", help_heading = "Action")]
    description: Option<String>,

    /// Maximum duration of an attempt [default: the cluster setting]
    #[arg(long, value_name = "DURATION", help_heading = "Execution")]
    timeout: Option<String>,
    /// Maximum time without a sign of life of an attempt: output, or (of a function) a heartbeat of its handler
    /// [default: the cluster setting]
    #[arg(long, value_name = "DURATION", help_heading = "Execution")]
    heartbeat_timeout: Option<String>,
    /// Time between SIGTERM and SIGKILL [default: the cluster setting]
    #[arg(long, value_name = "DURATION", help_heading = "Execution")]
    stop_grace: Option<String>,
    /// Maximum number of retries after a failure
    #[arg(long, value_name = "N", help_heading = "Execution")]
    retries: Option<u32>,
    /// Delay before the first retry; doubles with each further retry
    #[arg(long, value_name = "DURATION", help_heading = "Execution")]
    backoff: Option<String>,
    /// Maximum delay between retries
    #[arg(long, value_name = "DURATION", help_heading = "Execution")]
    backoff_cap: Option<String>,
    /// Maximum random reduction of each delay, in percent
    #[arg(long, value_name = "PERCENT", help_heading = "Execution")]
    jitter: Option<u8>,
    /// Exit code or error code after which the run is retried (repeatable)
    #[arg(long, value_name = "CODE", help_heading = "Execution")]
    retry_on: Vec<String>,
    /// Exit code or error code after which the run is not retried (repeatable)
    #[arg(long, value_name = "CODE", help_heading = "Execution")]
    fail_on: Vec<String>,
    /// Error code for an exit code, such as 3=NO_DATA: exit code 3 means NO_DATA (repeatable)
    #[arg(long = "exit-code", value_name = "N=CODE", help_heading = "Execution")]
    exit_codes: Vec<String>,
    /// Policy if the previous run has not ended: forbid, allow, replace
    #[arg(long, value_name = "POLICY", help_heading = "Execution")]
    concurrency: Option<String>,
    /// Label that a worker must have to run the job (repeatable)
    #[arg(long = "label", value_name = "LABEL", help_heading = "Execution")]
    labels: Vec<String>,
    /// Dispatch mode: assign (the leader selects a worker), claim (any worker with a free slot takes the run)
    #[arg(long, value_name = "MODE", help_heading = "Execution")]
    dispatch: Option<String>,
    /// Queue whose slots the runs use, for functions only [default: default]
    #[arg(long, value_name = "QUEUE", help_heading = "Execution")]
    queue: Option<String>,
    /// Priority among waiting runs, for functions only: lowest, low, normal, high, highest
    #[arg(long, value_name = "PRIORITY", help_heading = "Execution")]
    priority: Option<String>,

    /// Program and arguments to run, after --
    #[arg(last = true, value_name = "COMMAND", group = "action")]
    command: Vec<String>,
}

impl JobDefinitionFlags {
    /// Refuses a definition that has nothing to run.
    pub(crate) fn check_has_action(&self, name: &str) -> Result<(), Failure> {
        if self.django.is_some() || self.function.is_some() || !self.command.is_empty() {
            return Ok(());
        }
        Err(Failure::bad_usage(format!(
            "job {name} has nothing to run; add `-- COMMAND`, --django or --function"
        ))
        .hint("example: `tasuki job create hello --every 5s -- echo hi`"))
    }

    /// Returns the fields that have a flag. Values with parts are merged into those of `job`, the current job (null for
    /// a new one).
    pub(crate) fn build_job_fields(&self, job: &Value) -> Result<Map<String, Value>, Failure> {
        let mut fields = Map::new();
        self.insert_action(&mut fields);
        if let Some(trigger) = self.trigger.build_trigger(&job["trigger"])? {
            fields.insert("trigger".to_owned(), trigger);
        }
        if let Some(args) = self.arguments.build_run_args(&job["args"])? {
            fields.insert("args".to_owned(), args);
        }
        if !self.env.is_empty() {
            let mut env = job["env"].as_object().cloned().unwrap_or_default();
            for input in &self.env {
                let (name, value) = flag_values::split_name_value("--env", input)?;
                env.insert(name.to_owned(), json!(value));
            }
            fields.insert("env".to_owned(), Value::Object(env));
        }
        for (name, input) in [
            ("description", &self.description),
            ("directory", &self.directory),
            ("timeout", &self.timeout),
            ("heartbeat_timeout", &self.heartbeat_timeout),
            ("stop_grace", &self.stop_grace),
        ] {
            if let Some(input) = input {
                fields.insert(name.to_owned(), text_or_null(input));
            }
        }
        for (name, input) in [
            ("concurrency", &self.concurrency),
            ("dispatch", &self.dispatch),
            ("queue", &self.queue),
            ("priority", &self.priority),
        ] {
            if let Some(input) = input {
                fields.insert(name.to_owned(), json!(input));
            }
        }
        if !self.labels.is_empty() {
            fields.insert("labels".to_owned(), json!(self.labels));
        }
        if let Some(retry) = self.merge_retry(&job["retry"])? {
            fields.insert("retry".to_owned(), retry);
        }
        Ok(fields)
    }

    fn insert_action(&self, fields: &mut Map<String, Value>) {
        let mut insert = |kind: &str, command: Value, handler: Value| {
            fields.insert("kind".to_owned(), json!(kind));
            fields.insert("command".to_owned(), command);
            fields.insert("handler".to_owned(), handler);
        };
        match (&self.django, &self.function, self.command.as_slice()) {
            (Some(django), _, _) => insert("django", json!([django]), Value::Null),
            (None, Some(handler), _) => insert("function", Value::Null, json!(handler)),
            (None, None, []) => {}
            (None, None, argv) => insert("command", json!(argv), Value::Null),
        }
        if let Some(kind) = &self.kind {
            fields.insert("kind".to_owned(), json!(kind));
        }
    }

    fn merge_retry(&self, before: &Value) -> Result<Option<Value>, Failure> {
        let mut retry = before.as_object().cloned().unwrap_or_default();
        let list = |input: &Vec<String>| (!input.is_empty()).then(|| json!(input));
        let mut codes = Map::new();
        for input in &self.exit_codes {
            let (exit, code) = flag_values::split_name_value("--exit-code", input)?;
            codes.insert(exit.to_owned(), json!(code));
        }
        let input = [
            ("max_retries", self.retries.map(|count| json!(count))),
            ("backoff", self.backoff.as_ref().map(|input| json!(input))),
            ("backoff_cap", self.backoff_cap.as_ref().map(|input| json!(input))),
            ("jitter_percent", self.jitter.map(|percent| json!(percent))),
            ("retry_on", list(&self.retry_on)),
            ("fail_on", list(&self.fail_on)),
            ("exit_codes", (!codes.is_empty()).then_some(Value::Object(codes))),
        ];
        let mut is_changed = false;
        for (name, value) in input {
            let Some(value) = value else { continue };
            retry.insert(name.to_owned(), value);
            is_changed = true;
        }
        Ok(is_changed.then_some(Value::Object(retry)))
    }
}

/// Converts a value to JSON. An empty value or `default` becomes null, which resets the field.
pub(super) fn text_or_null(input: &str) -> Value {
    match input {
        "" | "default" => Value::Null,
        input => json!(input),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        job_args: JobDefinitionFlags,
    }

    fn merged(job: &Value, args: &[&str]) -> Result<Value, Failure> {
        let input = TestArgs::try_parse_from([&["x"], args].concat()).expect("the flags parse");
        input.job_args.build_job_fields(job).map(Value::Object)
    }

    #[test]
    fn flags_become_job_fields() {
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
        for (args, expected) in table {
            let mut made = merged(none, args).unwrap();
            made.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            assert_eq!(&made, expected, "{args:?}");
        }
    }

    #[test]
    fn a_change_keeps_fields_without_a_flag() {
        let job = json!({"args": {"a": 1}, "retry": {"max_retries": 0, "backoff": "30s"},
            "trigger": {"type": "time", "misfire": {"policy": "latest_only"},
                "schedule": {"type": "every", "value": "5s", "zone": "Asia/Tokyo"}}});
        assert_eq!(
            merged(&job, &["--daily-at", "09:00", "--misfire", "default"]).unwrap()["trigger"],
            json!({"type": "time", "misfire": null,
                "schedule": {"type": "daily_at", "value": "09:00", "zone": "Asia/Tokyo"}})
        );
        assert_eq!(
            merged(&job, &["--zone", "UTC"]).unwrap()["trigger"]["schedule"],
            json!({"type": "every", "value": "5s", "zone": "UTC"})
        );
        assert_eq!(merged(&job, &["--arg", "b=2"]).unwrap(), json!({"args": {"a": 1, "b": 2}}));
        assert_eq!(
            merged(&job, &["--on-event", "x"]).unwrap()["trigger"],
            json!({"type": "event", "events": ["x"]})
        );
        assert_eq!(merged(&job, &["--timeout", "default"]).unwrap(), json!({"timeout": null}));
    }

    #[test]
    fn trigger_options_without_their_trigger_are_refused() {
        for args in [
            &["--zone", "UTC"][..],
            &["--filter", "{}"],
            &["--every", "5s", "--filter", "{}"],
            &["--on-event", "x", "--misfire", "latest_only"],
            &["--every", "5s", "--misfire", "skip_late"],
            &["--every", "5s", "--misfire", "at_most:x"],
            &["--on-event", "x", "--filter", "[]"],
        ] {
            assert!(merged(&Value::Null, args).is_err(), "{args:?}");
        }
    }
}
