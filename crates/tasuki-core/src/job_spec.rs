//! What a job does when it runs, and how it is kept: the `spec` of a job's version.
//!
//! The program, the function, their arguments and their limits. Everything that people say here is
//! checked once, when they say it; a worker that reads it back finds nothing new to refuse.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exit::FailureRules;
use crate::lane::LONGEST_HANDLER;
use crate::string_enum::words;
use crate::{ErrorCode, Invalid, Lane, Priority, Queue, duration};

words! {
    /// Who decides where a run goes.
    pub enum Dispatch, "dispatch" {
        /// The leader chooses the worker, ahead of time.
        Assign = "assign",
        /// Any worker with room takes it.
        Claim = "claim",
    }
}

words! {
    /// What a job runs.
    pub enum WorkKind, "kind" {
        /// Any program.
        Command = "command",
        /// A Django management command.
        Django = "django",
        /// A function of the embedding program.
        Function = "function",
    }
}

impl WorkKind {
    /// Who decides unless the job says: commands are assigned, functions are claimed.
    pub fn dispatch(self) -> Dispatch {
        match self {
            Self::Command | Self::Django => Dispatch::Assign,
            Self::Function => Dispatch::Claim,
        }
    }
}

/// The longest argv in bytes, all of it; the operating system takes little more.
const LONGEST_ARGV: usize = 128 << 10;
const MOST_ARGUMENTS: usize = 1_000;
const LONGEST_LIMIT: Duration = Duration::from_secs(366 * 86_400);
/// What jobs may not set themselves.
const OURS: &str = "TASUKI_";

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A program and its arguments, with placeholders.
    Command(Vec<String>),
    /// The name of a management command.
    Django(String),
    /// The name of a handler.
    Function(String),
}

/// What a job does when it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// What is run.
    pub what: What,
    /// What people say about it.
    pub description: Option<String>,
    /// Its arguments unless the trigger brings others.
    pub args: Map<String, Value>,
    /// More of its environment.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub directory: Option<String>,
    /// How long an attempt may take; `None`: what the settings say.
    pub timeout: Option<Duration>,
    /// How long it may be silent; `None`: what the settings say.
    pub heartbeat_timeout: Option<Duration>,
    /// How long it has between TERM and KILL; `None`: what the settings say.
    pub stop_grace: Option<Duration>,
    /// What its exit codes are called.
    pub exit_codes: BTreeMap<i32, ErrorCode>,
    /// Exit codes and error codes after which another try may help.
    pub retry_on: Vec<String>,
    /// And those after which none will.
    pub fail_on: Vec<String>,
    /// Whether it fires for scopes that somebody lists, and not for everything.
    pub scoped: bool,
    /// Whose slots its runs use, if it is a function that workers claim.
    pub queue: Queue,
    /// How much of a head start they have then.
    pub priority: Priority,
}

impl Work {
    /// Nothing but what is run.
    pub fn new(what: What) -> Self {
        Self {
            what,
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
            queue: Queue::default(),
            priority: Priority::default(),
        }
    }

    /// What kind of job this makes.
    pub fn kind(&self) -> WorkKind {
        match self.what {
            What::Command(_) => WorkKind::Command,
            What::Django(_) => WorkKind::Django,
            What::Function(_) => WorkKind::Function,
        }
    }

    /// Where its runs wait: the leader's lane is the empty one. A function has lanes of its own, so that
    /// only workers that have it look there.
    pub fn lane(&self, dispatch: Dispatch) -> String {
        match (dispatch, &self.what) {
            (Dispatch::Assign, _) => String::new(),
            (Dispatch::Claim, What::Function(handler)) => {
                let (queue, priority) = (self.queue.clone(), self.priority);
                Lane { queue, priority, ..Lane::new(handler) }.to_string()
            }
            (Dispatch::Claim, What::Command(_) | What::Django(_)) => COMMAND_LANE.to_owned(),
        }
    }

    /// What it says about its failures.
    pub fn rules(&self) -> Result<FailureRules, Invalid> {
        let codes = self.exit_codes.iter().map(|(exit, code)| (*exit, code.clone()));
        FailureRules::new(codes, &self.retry_on, &self.fail_on)
    }

    /// Refuses what no worker could run.
    pub fn check(&self) -> Result<(), Invalid> {
        match &self.what {
            What::Command(argv) => check_argv(argv)?,
            What::Django(command) => {
                let config = crate::argv::Django { python: "p".to_owned(), manage: "m".to_owned() };
                crate::argv::django(&config, command, &self.args)?;
            }
            What::Function(handler) => check_text("handler", handler, LONGEST_HANDLER)?,
        }
        self.check_lane(self.kind().dispatch())?;
        for (name, value) in &self.env {
            check_variable(name, value)?;
        }
        if let Some(directory) = &self.directory
            && (directory.is_empty() || directory.contains('\0'))
        {
            return Err(Invalid::typed("directory", directory, "a path"));
        }
        if let Some(description) = &self.description
            && (description.len() > 4_096 || description.contains('\0'))
        {
            return Err(Invalid::described("description", "a longer one", "at most 4096 bytes"));
        }
        for (field, limit, least) in [
            ("timeout", self.timeout, Duration::from_millis(10)),
            ("heartbeat_timeout", self.heartbeat_timeout, Duration::from_millis(10)),
            ("stop_grace", self.stop_grace, Duration::ZERO),
        ] {
            if limit.is_some_and(|limit| limit < least || limit > LONGEST_LIMIT) {
                let found = limit.map(duration::show).unwrap_or_default();
                let expected = format!("{} to 366d", duration::show(least));
                return Err(Invalid::described(field, found, expected));
            }
        }
        self.rules().map(drop)
    }

    /// Refuses a queue or a priority where it would mean nothing: what the leader assigns waits for no worker's
    /// slots, and commands have slots of their own.
    pub fn check_lane(&self, dispatch: Dispatch) -> Result<(), Invalid> {
        if self.kind() == WorkKind::Function && dispatch == Dispatch::Claim {
            return Ok(());
        }
        let expected = "none: only functions that workers claim have one";
        if !self.queue.is_default() {
            return Err(Invalid::typed("queue", self.queue.as_str(), expected));
        }
        match self.priority {
            Priority::Normal => Ok(()),
            other => Err(Invalid::typed("priority", other.as_str(), expected)),
        }
    }

    /// As it is kept.
    pub fn to_json(&self) -> Value {
        let mut kept = Map::new();
        match &self.what {
            What::Command(argv) => kept.insert("command".to_owned(), json!(argv)),
            What::Django(command) => kept.insert("django".to_owned(), json!(command)),
            What::Function(handler) => kept.insert("function".to_owned(), json!(handler)),
        };
        let mut keep = |name: &str, value: Value| match value {
            Value::Null => {}
            value => drop(kept.insert(name.to_owned(), value)),
        };
        let some = |is_empty: bool, value: Value| if is_empty { Value::Null } else { value };
        let millis = |limit: Option<Duration>| json!(limit.map(|limit| limit.as_millis() as u64));
        let codes: BTreeMap<String, &str> =
            self.exit_codes.iter().map(|(exit, code)| (exit.to_string(), code.as_str())).collect();
        keep("description", json!(self.description));
        keep("args", some(self.args.is_empty(), json!(self.args)));
        keep("env", some(self.env.is_empty(), json!(self.env)));
        keep("directory", json!(self.directory));
        keep("timeout_ms", millis(self.timeout));
        keep("heartbeat_timeout_ms", millis(self.heartbeat_timeout));
        keep("stop_grace_ms", millis(self.stop_grace));
        keep("exit_codes", some(codes.is_empty(), json!(codes)));
        keep("retry_on", some(self.retry_on.is_empty(), json!(self.retry_on)));
        keep("fail_on", some(self.fail_on.is_empty(), json!(self.fail_on)));
        keep("scoped", some(!self.scoped, json!(true)));
        keep("queue", some(self.queue.is_default(), json!(self.queue.as_str())));
        let usual = self.priority == Priority::default();
        keep("priority", some(usual, json!(self.priority.as_str())));
        Value::Object(kept)
    }

    /// Back from how it is kept.
    pub fn from_json(kept: &str) -> Result<Self, Invalid> {
        let strange = |found: &str| Invalid::described("spec", found, "what tasuki wrote there");
        let Ok(Value::Object(mut kept)) = serde_json::from_str(kept) else {
            return Err(strange("no JSON object"));
        };
        let what = match (kept.remove("command"), kept.remove("django"), kept.remove("function")) {
            (Some(argv), None, None) => {
                What::Command(words_in(&argv).ok_or_else(|| strange("a command that is no list"))?)
            }
            (None, Some(Value::String(command)), None) => What::Django(command),
            (None, None, Some(Value::String(handler))) => What::Function(handler),
            _ => return Err(strange("nothing to run")),
        };
        let mut work = Self::new(what);
        for (name, value) in kept {
            let read = match (name.as_str(), value) {
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
                ("timeout_ms", value) => limit_in(&value, &mut work.timeout),
                ("heartbeat_timeout_ms", value) => limit_in(&value, &mut work.heartbeat_timeout),
                ("stop_grace_ms", value) => limit_in(&value, &mut work.stop_grace),
                ("exit_codes", Value::Object(codes)) => {
                    let code = |(exit, code): (String, Value)| {
                        Some((exit.parse().ok()?, code.as_str()?.parse().ok()?))
                    };
                    let all: Option<BTreeMap<_, _>> = codes.into_iter().map(code).collect();
                    all.map(|codes| work.exit_codes = codes).is_some()
                }
                ("retry_on", value) => {
                    words_in(&value).map(|words| work.retry_on = words).is_some()
                }
                ("fail_on", value) => words_in(&value).map(|words| work.fail_on = words).is_some(),
                ("scoped", Value::Bool(scoped)) => {
                    work.scoped = scoped;
                    true
                }
                ("queue", Value::String(name)) => name.parse().map(|q| work.queue = q).is_ok(),
                ("priority", Value::String(word)) => {
                    word.parse().map(|priority| work.priority = priority).is_ok()
                }
                _ => false,
            };
            if !read {
                return Err(strange(&format!("a strange {name:?}")));
            }
        }
        Ok(work)
    }
}

/// The lane of commands that any worker may claim.
pub const COMMAND_LANE: &str = "commands";

fn words_in(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
}

fn limit_in(value: &Value, limit: &mut Option<Duration>) -> bool {
    value.as_u64().map(|millis| *limit = Some(Duration::from_millis(millis))).is_some()
}

fn check_argv(argv: &[String]) -> Result<(), Invalid> {
    let Some(program) = argv.first() else {
        return Err(Invalid::described("command", "no program", "a program to run"));
    };
    if program.is_empty() {
        return Err(Invalid::typed("command", program, "a program to run"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(Invalid::described("command", "a NUL character", "text without one"));
    }
    if argv.len() > MOST_ARGUMENTS {
        let found = format!("{} arguments", argv.len());
        return Err(Invalid::described("command", found, "at most 1000 arguments"));
    }
    match argv.iter().map(|argument| argument.len() + 1).sum::<usize>() <= LONGEST_ARGV {
        true => Ok(()),
        false => Err(Invalid::described("command", "a longer one", "at most 131072 bytes")),
    }
}

fn check_variable(name: &str, value: &str) -> Result<(), Invalid> {
    let sound = !name.is_empty() && !name.contains(['=', '\0']) && name.len() <= 191;
    if !sound || name.starts_with(OURS) {
        let expected = "the name of a variable, not beginning with TASUKI_";
        return Err(Invalid::typed("env", name, expected));
    }
    match value.contains('\0') || value.len() > LONGEST_ARGV {
        // Not quoted: it may be a secret.
        true => Err(Invalid::described(
            "env",
            format!("an unfit value of {name}"),
            "text of at most 131072 bytes, without NUL",
        )),
        false => Ok(()),
    }
}

fn check_text(field: &'static str, text: &str, longest: usize) -> Result<(), Invalid> {
    let sound = !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control);
    match sound && text.chars().count() <= longest {
        true => Ok(()),
        false => Err(Invalid::typed(field, text, format!("a name of 1 to {longest} characters"))),
    }
}

#[cfg(test)]
mod tests;
