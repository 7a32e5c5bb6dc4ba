//! One attempt of a run: its input before the launch, and the result that its end means for the run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tasuki_core::argv_template::merge_args;
use tasuki_core::exit::{AttemptStopReason, ClassifiedFailure, ProcessEnd};
use tasuki_core::{AttemptErrorCode, InvalidInput, LeaseToken};
use tasuki_store::{AttemptResult, FirstOutputLines, StartedRun};
use tokio::sync::Notify;

use crate::handler::{TaskError, TaskSuccess};
use crate::node::job_version_cache::ParsedJobVersion;
use crate::spawner::{AttemptKey, LaunchRefusal, ProcessExit};

/// Maximum length of a failure message, in bytes. Longer ones are cut.
const MAX_MESSAGE_BYTES: usize = 4_096;

/// One attempt, ready to be launched: it is RUNNING in the database.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The lease it runs under.
    pub token: LeaseToken,
    /// The started run.
    pub run: StartedRun,
    /// The job version of the run.
    pub job: Arc<ParsedJobVersion>,
    /// Arguments: the defaults of the job, overlaid with those of the run.
    pub args: Map<String, Value>,
    /// Payload of the event that created the run.
    pub event_payload: Option<String>,
    /// Its last sign of life.
    pub liveness: LastSignOfLife,
    /// When its timeout passes, by the clock of [`boottime`](crate::spawner::boottime), in microseconds.
    pub deadline: u64,
}

/// The last sign of life of an attempt, by the clock of [`boottime`](crate::spawner::boottime), and whether it has
/// ended. Clones share one value.
#[derive(Debug, Clone, Default)]
pub struct LastSignOfLife(Arc<LivenessState>);

#[derive(Debug, Default)]
struct LivenessState {
    last_seen: AtomicU64,
    progress: AtomicBool,
    ended: AtomicBool,
}

impl LastSignOfLife {
    /// Records a sign of life.
    pub fn touch(&self, at: u64) {
        self.0.last_seen.fetch_max(at, Ordering::Relaxed);
    }

    /// Records progress. From now on the attempt must report progress within the progress timeout.
    pub fn touch_progress(&self, at: u64) {
        self.0.progress.store(true, Ordering::Relaxed);
        self.touch(at);
    }

    /// Records that the attempt has ended: it is never stopped for silence or a timeout from now on.
    pub fn mark_ended(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }

    /// Whether the attempt has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// The last sign of life, in microseconds.
    pub(crate) fn last_seen(&self) -> u64 {
        self.0.last_seen.load(Ordering::Relaxed)
    }

    /// Whether it has ever reported progress.
    pub(crate) fn has_reported_progress(&self) -> bool {
        self.0.progress.load(Ordering::Relaxed)
    }
}

impl Attempt {
    /// Builds an attempt. Fails if the arguments of the run are not a JSON object.
    pub(crate) fn new(
        token: LeaseToken,
        run: StartedRun,
        job: Arc<ParsedJobVersion>,
        event_payload: Option<String>,
    ) -> Result<Self, InvalidInput> {
        let run_args = match run.args.as_deref().map(serde_json::from_str) {
            None => Map::new(),
            Some(Ok(Value::Object(run_args))) => run_args,
            Some(_) => {
                return Err(InvalidInput::with_described_value(
                    "arguments",
                    "other JSON",
                    "a JSON object",
                ));
            }
        };
        let args = match job.work.args.is_empty() {
            true => run_args,
            false => merge_args(&job.work.args, &run_args),
        };
        Ok(Self {
            token,
            run,
            job,
            args,
            event_payload,
            liveness: LastSignOfLife::default(),
            deadline: u64::MAX,
        })
    }

    /// Run and number of the attempt.
    pub fn key(&self) -> AttemptKey {
        AttemptKey { run: self.run.id.0, attempt: self.run.attempt_no }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionEnd {
    /// The command has ended, and none of its processes is left.
    Exited {
        /// How its first process ended.
        exit: ProcessExit,
        /// Content of its result file.
        result_file: ResultFile,
        /// Its output, if it is short enough to be stored together with the result.
        output: Option<FirstOutputLines>,
    },
    /// The function returned.
    Returned(Result<TaskSuccess, TaskError>),
    /// It was never launched.
    NotStarted(LaunchRefusal),
    /// The arguments do not fit the job.
    InvalidArguments(InvalidInput),
}

impl ExecutionEnd {
    /// Takes the output out of the end, because it is stored separately.
    pub(crate) fn take_output(&mut self) -> Option<FirstOutputLines> {
        match self {
            Self::Exited { output: printed, .. } => printed.take(),
            Self::Returned(_) | Self::NotStarted(_) | Self::InvalidArguments(_) => None,
        }
    }
}

/// Content of the result file that a command may write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResultFile {
    /// Result of the job, any JSON.
    pub result: Option<Value>,
    /// Number of rows that it changed.
    pub rows_affected: Option<i64>,
    /// Progress of the job, any JSON.
    pub progress: Option<Value>,
    /// Error code, if it failed.
    pub error_code: Option<AttemptErrorCode>,
    /// Reference to a log outside of tasuki, for example a URL.
    pub log_ref: Option<String>,
    /// The first problem of the file itself, for the error message.
    pub problem: Option<String>,
}

/// Computes the result of an attempt from its end. `random` is for the jitter of a retry.
pub(crate) fn attempt_result(
    job: &ParsedJobVersion,
    end: ExecutionEnd,
    stop_reason: Option<AttemptStopReason>,
    random: u32,
) -> AttemptResult {
    let rules = &job.rules;
    match end {
        ExecutionEnd::Exited { exit, result_file, .. } => {
            // The stop reason of the spawner counts, not the one of the worker: the command may have ended by itself
            // before the stop request arrived.
            let stop_reason =
                exit.stop_reason.or(exit.lease_expired.then_some(AttemptStopReason::Silence));
            let process = match (exit.code, exit.signal) {
                (Some(code), _) => ProcessEnd::Exited(code),
                (None, signal) => ProcessEnd::Signaled(signal.unwrap_or_default()),
            };
            let failure = rules.classify(process, stop_reason, result_file.error_code.as_ref());
            let message =
                failure.as_ref().map(|_| failure_message(exit, stop_reason, &result_file));
            AttemptResult {
                failure,
                exit_code: exit.code.map(i64::from),
                exit_signal: exit.signal.map(i64::from),
                error_message: message,
                result: result_file.result.map(|result| result.to_string()),
                rows_affected: result_file.rows_affected,
                log_ref: result_file.log_ref,
                random,
            }
        }
        ExecutionEnd::Returned(returned) => match (stop_reason, returned) {
            (Some(stop_reason), _) => failed_result(
                rules.classify_code(stop_reason.error_code(), None),
                stop_message(stop_reason),
                random,
            ),
            (None, Ok(TaskSuccess { result, rows_affected })) => AttemptResult {
                result: result.map(|result| result.to_string()),
                rows_affected,
                random,
                ..AttemptResult::default()
            },
            (None, Err(error)) => {
                let failure = rules.classify_code(error.code, None);
                let retryable = error.retryable.unwrap_or(failure.retryable);
                failed_result(ClassifiedFailure { retryable, ..failure }, error.message, random)
            }
        },
        ExecutionEnd::NotStarted(refusal) => {
            let (code, message) = match refusal {
                LaunchRefusal::NotFound(why) => {
                    (AttemptErrorCode::NOT_FOUND, format!("not found: {why}"))
                }
                LaunchRefusal::NotExecutable(why) => {
                    (AttemptErrorCode::INVALID_INPUT, format!("cannot be executed: {why}"))
                }
                LaunchRefusal::TemporaryFailure(why) => {
                    (AttemptErrorCode::UNEXPECTED_ERROR, format!("could not be started now: {why}"))
                }
                LaunchRefusal::LeaseExpired => {
                    let why = "the lease expired before the attempt was launched";
                    (AttemptErrorCode::HEARTBEAT_TIMEOUT, why.to_owned())
                }
                LaunchRefusal::AlreadyRunning => (
                    AttemptErrorCode::UNEXPECTED_ERROR,
                    "the attempt is already running".to_owned(),
                ),
            };
            failed_result(rules.classify_code(code, None), message, random)
        }
        ExecutionEnd::InvalidArguments(refused) => failed_result(
            rules.classify_code(AttemptErrorCode::INVALID_INPUT, None),
            refused.to_string(),
            random,
        ),
    }
}

/// Result of an attempt that failed without an exit code.
pub(crate) fn failed_result(
    failure: ClassifiedFailure,
    message: impl Into<String>,
    random: u32,
) -> AttemptResult {
    AttemptResult {
        error_message: Some(truncate_message(message.into())),
        random,
        ..AttemptResult::from_failure(failure)
    }
}

fn failure_message(
    exit: ProcessExit,
    stop_reason: Option<AttemptStopReason>,
    result_file: &ResultFile,
) -> String {
    let mut message = match (stop_reason, exit.code, exit.signal) {
        (Some(stop_reason), _, _) => stop_message(stop_reason).to_owned(),
        (None, Some(code), _) => format!("exit code {code}"),
        (None, None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None, None) => "ended for an unknown reason".to_owned(),
    };
    if let Some(problem) = &result_file.problem {
        message.push_str("; result file: ");
        message.push_str(problem);
    }
    truncate_message(message)
}

fn stop_message(stop_reason: AttemptStopReason) -> &'static str {
    match stop_reason {
        AttemptStopReason::Timeout => "stopped: it ran longer than its timeout",
        AttemptStopReason::Silence => {
            "stopped: no output or heartbeat in time, or its lease could not be renewed"
        }
        AttemptStopReason::Cancel => "stopped: the run was canceled",
        AttemptStopReason::Drain => "stopped: its worker is being drained",
        AttemptStopReason::Detach => "stopped: its worker was detached",
    }
}

fn truncate_message(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES).rev().find(|&end| message.is_char_boundary(end));
        message.truncate(end.unwrap_or_default());
        message.push('…');
    }
    message.replace('\0', "\u{fffd}")
}

/// The end of an attempt, as an executor reports it to the worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The attempt that has ended.
    pub key: AttemptKey,
    /// The lease it runs under.
    pub token: LeaseToken,
    /// How it ended.
    pub end: ExecutionEnd,
}

/// Queue of completions from the executors to the worker. Clones share one queue.
#[derive(Clone, Default)]
pub struct CompletionQueue {
    state: Arc<QueueState>,
}

#[derive(Default)]
struct QueueState {
    completions: Mutex<Vec<Completion>>,
    added: Notify,
}

impl CompletionQueue {
    /// Adds a completion and wakes the worker.
    pub fn push(&self, completion: Completion) {
        self.push_all([completion]);
    }

    /// Adds several completions and wakes the worker once.
    pub(crate) fn push_all(&self, completion: impl IntoIterator<Item = Completion>) {
        let mut completions = self.state.completions.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = completions.is_empty();
        completions.extend(completion);
        let first = was_empty && !completions.is_empty();
        drop(completions);
        // The worker takes all completions together, so only the first one needs to wake it.
        if first {
            self.wake_worker();
        }
    }

    /// Takes all queued completions.
    pub(crate) fn take_all(&self) -> Vec<Completion> {
        let mut completions = self.state.completions.lock().unwrap_or_else(PoisonError::into_inner);
        // The next batch will be about as large; a vector that grows step by step is copied each time.
        let next = Vec::with_capacity(completions.len());
        std::mem::replace(&mut *completions, next)
    }

    /// Wakes the worker, also without a completion: there is something else to report.
    pub(crate) fn wake_worker(&self) {
        self.state.added.notify_one();
    }

    /// Waits until a completion is queued or [`Self::wake_worker`] is called.
    pub(crate) async fn wait_for_completion(&self) {
        self.state.added.notified().await;
    }
}

/// Runs attempts: commands, functions, or their substitutes in a simulation.
pub trait Executor: Send + Sync {
    /// Sets until when attempts of a lease may run, by the clock of [`boottime`](crate::spawner::boottime), in
    /// microseconds. After that they are killed, even if the worker hangs.
    fn set_lease_deadline(&self, token: LeaseToken, until: u64);

    /// Launches an attempt. Its end arrives in the [`CompletionQueue`].
    fn launch(&self, attempt: Attempt);

    /// Launches several attempts.
    fn launch_all(&self, attempts: Vec<Attempt>) {
        attempts.into_iter().for_each(|attempt| self.launch(attempt));
    }

    /// Signals an attempt to stop, and kills it after the grace.
    fn stop(&self, key: AttemptKey, why: AttemptStopReason, grace: Duration);

    /// Drops everything that is kept about an attempt, because its result is in the database.
    fn forget(&self, key: AttemptKey);

    /// Drops everything that is kept about several attempts.
    fn forget_all(&self, keys: &[AttemptKey]) {
        keys.iter().for_each(|key| self.forget(*key));
    }
}
