//! One attempt: what it is given before it is launched, and what its end means.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tasuki_core::argv::overlay;
use tasuki_core::exit::{Failure, ProcessEnd, Stopped};
use tasuki_core::{ErrorCode, Invalid, LeaseToken};
use tasuki_store::{AttemptResult, FirstLines, Taken};
use tokio::sync::Notify;

use crate::handler::{Done, TaskError};
use crate::node::worker::recipes::Recipe;
use crate::spawner::{Exit, JobKey, Refusal};

/// The longest message that is kept of a failure.
const LONGEST_MESSAGE: usize = 4_096;

/// One attempt, ready to be launched: it is RUNNING in the database.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Under which lease.
    pub token: LeaseToken,
    /// What its run says.
    pub taken: Taken,
    /// What its job says.
    pub recipe: Arc<Recipe>,
    /// What it is given: the job's defaults, overlaid with what the trigger or event brought.
    pub args: Map<String, Value>,
    /// What the event said that made it.
    pub event_payload: Option<String>,
    /// When it last showed that it is alive.
    pub signs: Signs,
    /// When its time is up, by the clock of [`boottime`](crate::spawner::boottime).
    pub deadline: u64,
}

/// When something was last heard of a job, by the clock of [`boottime`](crate::spawner::boottime).
#[derive(Debug, Clone, Default)]
pub struct Signs(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    last: AtomicU64,
    progress: AtomicBool,
    ended: AtomicBool,
}

impl Signs {
    /// It shows that it is alive.
    pub fn show(&self, at: u64) {
        self.0.last.fetch_max(at, Ordering::Relaxed);
    }

    /// It reports progress, and is expected to go on doing so.
    pub fn show_progress(&self, at: u64) {
        self.0.progress.store(true, Ordering::Relaxed);
        self.show(at);
    }

    /// It has ended: what befalls it from now on does not count.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn have_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn last(&self) -> u64 {
        self.0.last.load(Ordering::Relaxed)
    }

    pub(crate) fn of_progress(&self) -> bool {
        self.0.progress.load(Ordering::Relaxed)
    }
}

impl Attempt {
    /// Puts one together. Refused where its arguments are no object.
    pub(crate) fn new(
        token: LeaseToken,
        taken: Taken,
        recipe: Arc<Recipe>,
        event_payload: Option<String>,
    ) -> Result<Self, Invalid> {
        let given = match taken.args.as_deref().map(serde_json::from_str) {
            None => Map::new(),
            Some(Ok(Value::Object(given))) => given,
            Some(_) => {
                return Err(Invalid::described("arguments", "other JSON", "a JSON object"));
            }
        };
        let args = match recipe.work.args.is_empty() {
            true => given,
            false => overlay(&recipe.work.args, &given),
        };
        Ok(Self {
            token,
            taken,
            recipe,
            args,
            event_payload,
            signs: Signs::default(),
            deadline: u64::MAX,
        })
    }

    /// Which it is.
    pub fn key(&self) -> JobKey {
        JobKey { run: self.taken.id.0, attempt: self.taken.attempt_no }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// A process ended, and nothing of it is left.
    Exited {
        /// How.
        exit: Exit,
        /// What it wrote into its result file.
        told: Told,
        /// What it printed, where that is kept with its end.
        printed: Option<FirstLines>,
    },
    /// A function returned.
    Returned(Result<Done, TaskError>),
    /// It was never launched.
    Refused(Refusal),
    /// Its arguments do not fit.
    Unfit(Invalid),
}

impl End {
    /// What is kept with it, to go on by itself.
    pub(crate) fn take_printed(&mut self) -> Option<FirstLines> {
        match self {
            Self::Exited { printed, .. } => printed.take(),
            Self::Returned(_) | Self::Refused(_) | Self::Unfit(_) => None,
        }
    }
}

/// What a job said of itself, in its result file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// What it has to show.
    pub result: Option<Value>,
    /// How many rows it changed.
    pub rows_affected: Option<i64>,
    /// How far it got.
    pub progress: Option<Value>,
    /// Why it failed.
    pub error_code: Option<ErrorCode>,
    /// Where its own log is.
    pub log_ref: Option<String>,
    /// What is wrong with the file.
    pub problem: Option<String>,
}

/// What the end of an attempt means for its run.
pub(crate) fn finish(recipe: &Recipe, end: End, stopped: Option<Stopped>, dice: u32) -> AttemptResult {
    let rules = &recipe.rules;
    match end {
        End::Exited { exit, told, .. } => {
            // What the spawner says of it: who was told to stop may have ended by itself before it heard.
            let stopped = exit.stopped.or(exit.lease_passed.then_some(Stopped::Silence));
            let process = match (exit.code, exit.signal) {
                (Some(code), _) => ProcessEnd::Exited(code),
                (None, signal) => ProcessEnd::Signaled(signal.unwrap_or_default()),
            };
            let failure = rules.judge(process, stopped, told.error_code.as_ref());
            let message = failure.as_ref().map(|_| in_words(exit, stopped, &told));
            AttemptResult {
                failure,
                exit_code: exit.code.map(i64::from),
                exit_signal: exit.signal.map(i64::from),
                error_message: message,
                result: told.result.map(|result| result.to_string()),
                rows_affected: told.rows_affected,
                log_ref: told.log_ref,
                dice,
            }
        }
        End::Returned(returned) => match (stopped, returned) {
            (Some(stopped), _) => {
                failed(rules.failure(stopped.error_code(), None), why(stopped), dice)
            }
            (None, Ok(Done { result, rows_affected })) => AttemptResult {
                result: result.map(|result| result.to_string()),
                rows_affected,
                dice,
                ..AttemptResult::default()
            },
            (None, Err(error)) => {
                let failure = rules.failure(error.code, None);
                let retryable = error.retryable.unwrap_or(failure.retryable);
                failed(Failure { retryable, ..failure }, error.message, dice)
            }
        },
        End::Refused(refusal) => {
            let (code, message) = match refusal {
                Refusal::NotFound(why) => (ErrorCode::NOT_FOUND, format!("not found: {why}")),
                Refusal::Unfit(why) => {
                    (ErrorCode::INVALID_INPUT, format!("it cannot be run: {why}"))
                }
                Refusal::Unable(why) => {
                    (ErrorCode::UNEXPECTED_ERROR, format!("it could not be run now: {why}"))
                }
                Refusal::Lease => {
                    let why = "its lease had passed before it could be launched";
                    (ErrorCode::HEARTBEAT_TIMEOUT, why.to_owned())
                }
                Refusal::Doubled => {
                    (ErrorCode::UNEXPECTED_ERROR, "this attempt runs already".to_owned())
                }
            };
            failed(rules.failure(code, None), message, dice)
        }
        End::Unfit(refused) => {
            failed(rules.failure(ErrorCode::INVALID_INPUT, None), refused.to_string(), dice)
        }
    }
}

/// An attempt that failed without an exit.
pub(crate) fn failed(failure: Failure, message: impl Into<String>, dice: u32) -> AttemptResult {
    AttemptResult { error_message: Some(cut(message.into())), dice, ..AttemptResult::failed(failure) }
}

fn in_words(exit: Exit, stopped: Option<Stopped>, told: &Told) -> String {
    let mut words = match (stopped, exit.code, exit.signal) {
        (Some(stopped), _, _) => why(stopped).to_owned(),
        (None, Some(code), _) => format!("exit code {code}"),
        (None, None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None, None) => "ended in a way nobody saw".to_owned(),
    };
    if let Some(problem) = &told.problem {
        words.push_str("; result file: ");
        words.push_str(problem);
    }
    cut(words)
}

fn why(stopped: Stopped) -> &'static str {
    match stopped {
        Stopped::Timeout => "stopped: it ran longer than its timeout",
        Stopped::Silence => "stopped: nothing was heard of it, or its lease could not be renewed",
        Stopped::Cancel => "stopped: somebody canceled it",
        Stopped::Drain => "stopped: its worker is drained",
        Stopped::Detach => "stopped: its worker was cut off",
    }
}

fn cut(mut words: String) -> String {
    if words.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE).rev().find(|&end| words.is_char_boundary(end));
        words.truncate(end.unwrap_or_default());
        words.push('…');
    }
    words.replace('\0', "\u{fffd}")
}

/// Something an executor tells its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Happened {
    /// Of which attempt.
    pub key: JobKey,
    /// Under which lease.
    pub token: LeaseToken,
    /// How it ended.
    pub end: End,
}

/// Where executors put what happened, for the worker to find.
#[derive(Clone, Default)]
pub struct Mail {
    inside: Arc<Inside>,
}

#[derive(Default)]
struct Inside {
    letters: Mutex<Vec<Happened>>,
    bell: Notify,
}

impl Mail {
    /// Something happened.
    pub fn send(&self, happened: Happened) {
        self.send_all([happened]);
    }

    /// All this happened.
    pub(crate) fn send_all(&self, happened: impl IntoIterator<Item = Happened>) {
        let mut letters = self.inside.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let none = letters.is_empty();
        letters.extend(happened);
        let first = none && !letters.is_empty();
        drop(letters);
        // Whoever comes for the first takes them all.
        if first {
            self.ring();
        }
    }

    pub(crate) fn drain(&self) -> Vec<Happened> {
        let mut letters = self.inside.letters.lock().unwrap_or_else(PoisonError::into_inner);
        // As many will come again: what grows is copied.
        let room = Vec::with_capacity(letters.len());
        std::mem::replace(&mut *letters, room)
    }

    pub(crate) fn ring(&self) {
        self.inside.bell.notify_one();
    }

    pub(crate) async fn rung(&self) {
        self.inside.bell.notified().await;
    }
}

/// What runs attempts: commands, functions, or what a simulation makes of them.
pub trait Executor: Send + Sync {
    /// Until when, by the clock of [`boottime`](crate::spawner::boottime), what is launched under a lease
    /// may run. After that it is killed, whatever its worker is doing.
    fn lease(&self, token: LeaseToken, until: u64);

    /// Launches an attempt. How it ends comes by mail.
    fn launch(&self, attempt: Attempt);

    /// The same for several.
    fn launch_all(&self, attempts: Vec<Attempt>) {
        attempts.into_iter().for_each(|attempt| self.launch(attempt));
    }

    /// Asks an attempt to stop, and kills it after the grace.
    fn stop(&self, key: JobKey, why: Stopped, grace: Duration);

    /// Its end is recorded: nothing about it needs to be kept.
    fn forget(&self, key: JobKey);

    /// The same for several.
    fn forget_all(&self, keys: &[JobKey]) {
        keys.iter().for_each(|key| self.forget(*key));
    }
}
