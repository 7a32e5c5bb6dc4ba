//! The work of a job: the program or function that its runs execute, with arguments and limits.
//!
//! It is stored as JSON in the column `spec` of a job version. It is validated once, when a user saves
//! the job, so that a worker that reads it back finds no invalid value.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exit::FailureRules;
use crate::queue_lane::MAX_HANDLER_CHARS;
use crate::string_enum::string_enum;
use crate::{AttemptErrorCode, InvalidInput, Lane, Priority, QueueName, duration};

string_enum! {
    /// How runs of a job get to a worker.
    pub enum Dispatch, "dispatch" {
        /// The leader chooses the worker ahead of time.
        Assign = "assign",
        /// Any worker with a free slot claims the run.
        Claim = "claim",
    }
}

string_enum! {
    /// The kind of work that a job does.
    pub enum WorkKind, "kind" {
        /// Runs a program.
        Command = "command",
        /// Runs a Django management command.
        Django = "django",
        /// Calls a function (handler) of the program that embeds the node.
        Function = "function",
    }
}

impl WorkKind {
    /// The default dispatch: commands are assigned, functions are claimed.
    pub fn default_dispatch(self) -> Dispatch {
        match self {
            Self::Command | Self::Django => Dispatch::Assign,
            Self::Function => Dispatch::Claim,
        }
    }
}

/// Maximum size of an argv in bytes, all arguments together. The operating system's limit is not much
/// higher.
const MAX_ARGV_BYTES: usize = 128 << 10;
const MAX_ARGUMENTS: usize = 1_000;
/// Maximum of timeouts and the stop grace.
const MAX_TIME_LIMIT: Duration = Duration::from_secs(366 * 86_400);
/// Prefix of the environment variables that tasuki sets and jobs may not set.
const RESERVED_ENV_PREFIX: &str = "TASUKI_";

/// The program or function that a job executes.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkAction {
    /// Argv template: a program and its arguments, which may contain placeholders.
    Command(Vec<String>),
    /// The name of a Django management command.
    Django(String),
    /// The name of a handler.
    Function(String),
}

/// The work of a job: the action, its arguments and its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkSpec {
    /// The program or function to execute.
    pub action: WorkAction,
    /// Description for users.
    pub description: Option<String>,
    /// Default arguments. The arguments of a task, event or trigger override them key by key.
    pub args: Map<String, Value>,
    /// Additional environment variables of the process.
    pub env: BTreeMap<String, String>,
    /// Working directory of the process; `None`: the worker's default.
    pub directory: Option<String>,
    /// Maximum run time of an attempt, 10 ms to 366 days; `None`: the setting `timeout`.
    pub timeout: Option<Duration>,
    /// Maximum time without a heartbeat, 10 ms to 366 days; `None`: the setting `heartbeat_timeout`.
    pub heartbeat_timeout: Option<Duration>,
    /// Time between TERM and KILL, at most 366 days; `None`: the setting `stop_grace`.
    pub stop_grace: Option<Duration>,
    /// Error codes by exit code.
    pub exit_codes: BTreeMap<i32, AttemptErrorCode>,
    /// Exit codes and error codes that are retried.
    pub retry_on: Vec<String>,
    /// Exit codes and error codes that are not retried.
    pub fail_on: Vec<String>,
    /// Whether the schedule fires once per scope of a scope provider, instead of once for the global scope.
    pub scoped: bool,
    /// The queue of its runs. Only for functions that workers claim.
    pub queue: QueueName,
    /// The priority of its runs within the queue's slots. Only for functions that workers claim.
    pub priority: Priority,
}

impl WorkSpec {
    /// Work with this action and default values for everything else.
    pub fn new(action: WorkAction) -> Self {
        Self {
            action,
            description: None,
            args: Map::new(),
            env: BTreeMap::new(),
            directory: None,
            timeout: None,
            heartbeat_timeout: None,
            stop_grace: None,
            exit_codes: BTreeMap::new(),
            retry_on: Vec::new(),
            fail_on: Vec::new(),
            scoped: false,
            queue: QueueName::default(),
            priority: Priority::default(),
        }
    }

    /// The kind of the action.
    pub fn kind(&self) -> WorkKind {
        match self.action {
            WorkAction::Command(_) => WorkKind::Command,
            WorkAction::Django(_) => WorkKind::Django,
            WorkAction::Function(_) => WorkKind::Function,
        }
    }

    /// The lane in which its runs wait. The empty lane belongs to the leader, which assigns the runs. A
    /// function has lanes of its own, so that only workers that have the function query them.
    pub fn lane_for_dispatch(&self, dispatch: Dispatch) -> String {
        match (dispatch, &self.action) {
            (Dispatch::Assign, _) => String::new(),
            (Dispatch::Claim, WorkAction::Function(handler)) => {
                let (queue, priority) = (self.queue.clone(), self.priority);
                Lane { queue, priority, ..Lane::new(handler) }.to_string()
            }
            (Dispatch::Claim, WorkAction::Command(_) | WorkAction::Django(_)) => {
                COMMAND_LANE.to_owned()
            }
        }
    }

    /// The rules that decide whether a failure is retried.
    pub fn failure_rules(&self) -> Result<FailureRules, InvalidInput> {
        let codes = self.exit_codes.iter().map(|(exit, code)| (*exit, code.clone()));
        FailureRules::new(codes, &self.retry_on, &self.fail_on)
    }

    /// Checks all values; an error means that no worker could execute the work.
    pub fn validate(&self) -> Result<(), InvalidInput> {
        match &self.action {
            WorkAction::Command(argv) => check_argv(argv)?,
            WorkAction::Django(command) => {
                let config = crate::argv_template::DjangoConfig {
                    python: "p".to_owned(),
                    manage: "m".to_owned(),
                };
                crate::argv_template::django_argv(&config, command, &self.args)?;
            }
            WorkAction::Function(handler) => check_text("handler", handler, MAX_HANDLER_CHARS)?,
        }
        self.check_lane(self.kind().default_dispatch())?;
        for (name, value) in &self.env {
            check_variable(name, value)?;
        }
        if let Some(directory) = &self.directory
            && (directory.is_empty() || directory.contains('\0'))
        {
            return Err(InvalidInput::with_value("directory", directory, "a path"));
        }
        if let Some(description) = &self.description
            && (description.len() > 4_096 || description.contains('\0'))
        {
            return Err(InvalidInput::with_described_value(
                "description",
                "a longer text",
                "at most 4096 bytes",
            ));
        }
        for (field, limit, min) in [
            ("timeout", self.timeout, Duration::from_millis(10)),
            ("heartbeat_timeout", self.heartbeat_timeout, Duration::from_millis(10)),
            ("stop_grace", self.stop_grace, Duration::ZERO),
        ] {
            if limit.is_some_and(|limit| limit < min || limit > MAX_TIME_LIMIT) {
                let found = limit.map(duration::format_exact_duration).unwrap_or_default();
                let expected = format!("{} to 366d", duration::format_exact_duration(min));
                return Err(InvalidInput::with_described_value(field, found, expected));
            }
        }
        self.failure_rules().map(drop)
    }

    /// Checks that only functions that workers claim have a queue or a priority. For other work they would
    /// have no effect: the leader assigns runs directly to workers, and commands have separate slots.
    pub fn check_lane(&self, dispatch: Dispatch) -> Result<(), InvalidInput> {
        if self.kind() == WorkKind::Function && dispatch == Dispatch::Claim {
            return Ok(());
        }
        let expected = "none: only functions that workers claim have one";
        if !self.queue.is_default() {
            return Err(InvalidInput::with_value("queue", self.queue.as_str(), expected));
        }
        match self.priority {
            Priority::Normal => Ok(()),
            other => Err(InvalidInput::with_value("priority", other.as_str(), expected)),
        }
    }

    /// Encodes the work as stored JSON. Default values are left out.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        match &self.action {
            WorkAction::Command(argv) => object.insert("command".to_owned(), json!(argv)),
            WorkAction::Django(command) => object.insert("django".to_owned(), json!(command)),
            WorkAction::Function(handler) => object.insert("function".to_owned(), json!(handler)),
        };
        let mut put = |name: &str, value: Value| match value {
            Value::Null => {}
            value => drop(object.insert(name.to_owned(), value)),
        };
        let unless_default =
            |is_default: bool, value: Value| if is_default { Value::Null } else { value };
        let millis = |limit: Option<Duration>| json!(limit.map(|limit| limit.as_millis() as u64));
        let codes: BTreeMap<String, &str> =
            self.exit_codes.iter().map(|(exit, code)| (exit.to_string(), code.as_str())).collect();
        put("description", json!(self.description));
        put("args", unless_default(self.args.is_empty(), json!(self.args)));
        put("env", unless_default(self.env.is_empty(), json!(self.env)));
        put("directory", json!(self.directory));
        put("timeout_ms", millis(self.timeout));
        put("heartbeat_timeout_ms", millis(self.heartbeat_timeout));
        put("stop_grace_ms", millis(self.stop_grace));
        put("exit_codes", unless_default(codes.is_empty(), json!(codes)));
        put("retry_on", unless_default(self.retry_on.is_empty(), json!(self.retry_on)));
        put("fail_on", unless_default(self.fail_on.is_empty(), json!(self.fail_on)));
        put("scoped", unless_default(!self.scoped, json!(true)));
        put("queue", unless_default(self.queue.is_default(), json!(self.queue.as_str())));
        let is_default = self.priority == Priority::default();
        put("priority", unless_default(is_default, json!(self.priority.as_str())));
        Value::Object(object)
    }

    /// Decodes stored JSON.
    pub fn from_json(json: &str) -> Result<Self, InvalidInput> {
        let invalid = |found: &str| {
            InvalidInput::with_described_value("spec", found, "a value that tasuki has written")
        };
        let Ok(Value::Object(mut object)) = serde_json::from_str(json) else {
            return Err(invalid("no JSON object"));
        };
        let action =
            match (object.remove("command"), object.remove("django"), object.remove("function")) {
                (Some(argv), None, None) => WorkAction::Command(
                    string_list(&argv)
                        .ok_or_else(|| invalid("a command that is not a list of texts"))?,
                ),
                (None, Some(Value::String(command)), None) => WorkAction::Django(command),
                (None, None, Some(Value::String(handler))) => WorkAction::Function(handler),
                _ => return Err(invalid("no or more than one of command, django and function")),
            };
        let mut work = Self::new(action);
        for (name, value) in object {
            let is_valid = match (name.as_str(), value) {
                ("description", Value::String(text)) => {
                    work.description = Some(text);
                    true
                }
                ("args", Value::Object(args)) => {
                    work.args = args;
                    true
                }
                ("env", Value::Object(env)) => {
                    let text = |(name, value): (String, Value)| {
                        value.as_str().map(|value| (name, value.to_owned()))
                    };
                    let all: Option<BTreeMap<_, _>> = env.into_iter().map(text).collect();
                    all.map(|env| work.env = env).is_some()
                }
                ("directory", Value::String(path)) => {
                    work.directory = Some(path);
                    true
                }
                ("timeout_ms", value) => read_millis(&value, &mut work.timeout),
                ("heartbeat_timeout_ms", value) => read_millis(&value, &mut work.heartbeat_timeout),
                ("stop_grace_ms", value) => read_millis(&value, &mut work.stop_grace),
                ("exit_codes", Value::Object(codes)) => {
                    let code = |(exit, code): (String, Value)| {
                        Some((exit.parse().ok()?, code.as_str()?.parse().ok()?))
                    };
                    let all: Option<BTreeMap<_, _>> = codes.into_iter().map(code).collect();
                    all.map(|codes| work.exit_codes = codes).is_some()
                }
                ("retry_on", value) => {
                    string_list(&value).map(|list| work.retry_on = list).is_some()
                }
                ("fail_on", value) => string_list(&value).map(|list| work.fail_on = list).is_some(),
                ("scoped", Value::Bool(scoped)) => {
                    work.scoped = scoped;
                    true
                }
                ("queue", Value::String(name)) => name.parse().map(|q| work.queue = q).is_ok(),
                ("priority", Value::String(text)) => {
                    text.parse().map(|priority| work.priority = priority).is_ok()
                }
                _ => false,
            };
            if !is_valid {
                return Err(invalid(&format!("an unknown or invalid key {name:?}")));
            }
        }
        Ok(work)
    }
}

/// The lane of commands that workers claim.
pub const COMMAND_LANE: &str = "commands";

fn string_list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

fn read_millis(value: &Value, limit: &mut Option<Duration>) -> bool {
    value.as_u64().map(|millis| *limit = Some(Duration::from_millis(millis))).is_some()
}

fn check_argv(argv: &[String]) -> Result<(), InvalidInput> {
    let Some(program) = argv.first() else {
        return Err(InvalidInput::with_described_value(
            "command",
            "no program",
            "a program to run",
        ));
    };
    if program.is_empty() {
        return Err(InvalidInput::with_value("command", program, "a program to run"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(InvalidInput::with_described_value(
            "command",
            "a NUL character",
            "text without one",
        ));
    }
    if argv.len() > MAX_ARGUMENTS {
        let found = format!("{} arguments", argv.len());
        return Err(InvalidInput::with_described_value("command", found, "at most 1000 arguments"));
    }
    match argv.iter().map(|argument| argument.len() + 1).sum::<usize>() <= MAX_ARGV_BYTES {
        true => Ok(()),
        false => Err(InvalidInput::with_described_value(
            "command",
            "a longer command line",
            "at most 131072 bytes",
        )),
    }
}

fn check_variable(name: &str, value: &str) -> Result<(), InvalidInput> {
    let is_valid = !name.is_empty() && !name.contains(['=', '\0']) && name.len() <= 191;
    if !is_valid || name.starts_with(RESERVED_ENV_PREFIX) {
        let expected = "the name of a variable, not beginning with TASUKI_";
        return Err(InvalidInput::with_value("env", name, expected));
    }
    match value.contains('\0') || value.len() > MAX_ARGV_BYTES {
        // The value is not quoted: it may be a secret.
        true => Err(InvalidInput::with_described_value(
            "env",
            format!("an invalid value of {name}"),
            "text of at most 131072 bytes, without NUL",
        )),
        false => Ok(()),
    }
}

fn check_text(field: &'static str, text: &str, max_chars: usize) -> Result<(), InvalidInput> {
    let is_valid = !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control);
    match is_valid && text.chars().count() <= max_chars {
        true => Ok(()),
        false => Err(InvalidInput::with_value(
            field,
            text,
            format!("a name of 1 to {max_chars} characters"),
        )),
    }
}

#[cfg(test)]
mod tests;
