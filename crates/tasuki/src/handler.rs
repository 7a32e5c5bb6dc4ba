//! Handlers: async functions of the embedding program that execute runs, with their arguments, context and results.

use std::collections::HashMap;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tasuki_core::{AttemptErrorCode, RunId, RunScope};
use tasuki_store::OutputStream;

use crate::line_splitter::LineSplitter;
use crate::node::clock_and_random::Clock;
use crate::node::executor::attempt_input_and_result::LastSignOfLife;
use crate::node::executor::attempt_log_writer::AttemptLog;
use crate::node::executor::functions::HandlerStopSignal;
use crate::node::job_version_cache::ParsedJobVersion;

pub(crate) type HandlerFuture =
    Pin<Box<dyn Future<Output = Result<TaskSuccess, TaskError>> + Send>>;
type HandlerFn = Arc<dyn Fn(Map<String, Value>, Context) -> HandlerFuture + Send + Sync>;

/// The handlers of a node, by the names that jobs use.
#[derive(Clone, Default)]
pub struct HandlerRegistry {
    handlers: HashMap<String, HandlerFn>,
}

impl HandlerRegistry {
    /// Registers a handler. A second handler with the same name replaces the first.
    ///
    /// The arguments of a run are deserialized into the handler's first parameter. If that fails, the run fails with
    /// `INVALID_INPUT`, which is not retried. A parameter of type `()` accepts all arguments. A panic fails only the
    /// attempt.
    pub fn register<A, R, D>(
        &mut self,
        name: impl Into<String>,
        handler: impl Fn(A, Context) -> R + Send + Sync + 'static,
    ) where
        A: HandlerArgsFromJson,
        R: Future<Output = Result<D, TaskError>> + Send + 'static,
        D: Into<TaskSuccess>,
    {
        let call = move |args: Map<String, Value>, context: Context| -> HandlerFuture {
            match A::from_json(args) {
                Ok(args) => {
                    let returned = handler(args, context);
                    Box::pin(async move { returned.await.map(Into::into) })
                }
                Err(error) => {
                    let error = TaskError::new(AttemptErrorCode::INVALID_INPUT, error);
                    Box::pin(std::future::ready(Err(error)))
                }
            }
        };
        self.handlers.insert(name.into(), Arc::new(call));
    }

    /// The names of the handlers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<HandlerFn> {
        self.handlers.get(name).cloned()
    }
}

/// The type of a handler's first parameter: any type that `serde` deserializes from a JSON object, or `()`.
pub trait HandlerArgsFromJson: Sized {
    /// Deserializes the arguments of a run. The error is a message for users.
    fn from_json(args: Map<String, Value>) -> Result<Self, String>;
}

impl<A: DeserializeOwned> HandlerArgsFromJson for A {
    fn from_json(args: Map<String, Value>) -> Result<Self, String> {
        // A parameter type without data, such as `()`, accepts all arguments.
        if size_of::<A>() == 0
            && let Ok(nothing) = serde_json::from_value(Value::Null)
        {
            return Ok(nothing);
        }
        serde_json::from_value(Value::Object(args)).map_err(|error| format!("arguments: {error}"))
    }
}

/// The result of a handler that succeeded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskSuccess {
    /// The result, stored with the run; at most 64 KiB of JSON.
    pub result: Option<Value>,
    /// The number of rows that the handler changed.
    pub rows_affected: Option<i64>,
}

impl TaskSuccess {
    /// A success with a result. An error if it cannot be serialized.
    pub fn with_result(result: &impl Serialize) -> Result<Self, TaskError> {
        Ok(Self { result: Some(serde_json::to_value(result)?), rows_affected: None })
    }

    /// Sets the number of rows that the handler changed.
    pub fn rows_affected(self, rows: i64) -> Self {
        Self { rows_affected: Some(rows), ..self }
    }
}

impl From<()> for TaskSuccess {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Value> for TaskSuccess {
    fn from(result: Value) -> Self {
        Self { result: Some(result), rows_affected: None }
    }
}

/// The error of a handler. The operator `?` converts every error into one with the code `UNEXPECTED_ERROR`, which is
/// retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// The error code. It decides whether the run is retried, unless the job's rules or `retryable` decide.
    pub code: AttemptErrorCode,
    /// The message for users.
    pub message: String,
    /// Whether a retry may help; `None`: the error code decides.
    pub retryable: Option<bool>,
}

impl TaskError {
    /// An error with this code and message.
    pub fn new(code: AttemptErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: None }
    }

    /// An error that is not retried.
    pub fn fatal(message: impl Display) -> Self {
        Self::new(AttemptErrorCode::UNEXPECTED_ERROR, message.to_string()).with_retryable(false)
    }

    /// Sets whether a retry may help.
    pub fn with_retryable(self, retryable: bool) -> Self {
        Self { retryable: Some(retryable), ..self }
    }
}

impl<E: Display> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::new(AttemptErrorCode::UNEXPECTED_ERROR, error.to_string())
    }
}

/// The context of one call of a handler: data of its run, heartbeats, log and stop requests.
#[derive(Clone)]
pub struct Context {
    pub(crate) run_id: RunId,
    pub(crate) attempt_no: u32,
    pub(crate) job: Arc<ParsedJobVersion>,
    pub(crate) event_payload: Option<String>,
    pub(crate) scheduled_for: Timestamp,
    pub(crate) scope: RunScope,
    pub(crate) deadline: u64,
    pub(crate) liveness: LastSignOfLife,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<AttemptLog>,
    pub(crate) stop: Arc<HandlerStopSignal>,
}

impl Context {
    /// The id of the run.
    pub fn run_id(&self) -> RunId {
        self.run_id
    }

    /// The number of the attempt, from 1.
    pub fn attempt_no(&self) -> u32 {
        self.attempt_no
    }

    /// The name of the job.
    pub fn job_name(&self) -> &str {
        &self.job.name
    }

    /// The planned instant of the run.
    pub fn scheduled_for(&self) -> Timestamp {
        self.scheduled_for
    }

    /// The scope of the run.
    pub fn run_scope(&self) -> &RunScope {
        &self.scope
    }

    /// The payload of the event that created the run, as JSON; `None`: there is no event or no payload.
    pub fn event_payload(&self) -> Option<&str> {
        self.event_payload.as_deref()
    }

    /// A key that is the same for all attempts of the run and different for every other run. Pass it to external
    /// services so that a retry does not repeat an effect.
    pub fn idempotency_key(&self) -> String {
        crate::node::executor::build_launch_spec::idempotency_key_of_run(self.run_id)
    }

    /// The time until the timeout of the attempt. After that, the call gets a stop request.
    pub fn remaining_time(&self) -> Duration {
        Duration::from_micros(self.deadline.saturating_sub(self.clock.boottime()))
    }

    /// Records a heartbeat. A call without a heartbeat for longer than its `heartbeat_timeout` is stopped.
    pub fn heartbeat(&self) {
        self.liveness.touch(self.clock.boottime());
    }

    /// Records progress and a heartbeat. A call that has reported progress once must continue to send heartbeats or
    /// progress: if its job sets no `heartbeat_timeout`, the setting `progress_heartbeat_timeout` applies.
    pub fn report_progress(&self) {
        self.liveness.touch_progress(self.clock.boottime());
    }

    /// Adds one or more lines to the run's log. This also counts as a heartbeat.
    pub fn log(&self, text: impl AsRef<str>) {
        self.liveness.touch(self.clock.boottime());
        let text = text.as_ref();
        let mut lines = LineSplitter::default();
        for part in [text.strip_suffix('\n').unwrap_or(text), "\n"] {
            lines.push(part.as_bytes(), |line| self.log.push_line(OutputStream::Stdout, line));
        }
        self.log.wake_writer();
    }

    /// Whether the call has got a stop request, or has ended.
    pub fn is_stop_requested(&self) -> bool {
        self.stop.is_requested()
    }

    /// Waits for a stop request, which follows a cancel, a timeout or a drain. After that, the call has the job's
    /// `stop_grace` to return. In async tasks that the call spawned and left running, this returns when the call has
    /// ended.
    pub async fn wait_for_stop(&self) {
        self.stop.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Mail {
        to: String,
    }

    #[test]
    fn arguments_are_deserialized_by_field() {
        let args = json!({"to": "ann", "more": 1}).as_object().unwrap().clone();
        assert_eq!(Mail::from_json(args.clone()), Ok(Mail { to: "ann".to_owned() }));
        assert_eq!(<()>::from_json(args.clone()), Ok(()));
        assert_eq!(Map::from_json(args.clone()), Ok(args));
        let error = Mail::from_json(Map::new()).unwrap_err();
        assert_eq!(error, "arguments: missing field `to`");
    }

    #[test]
    fn errors_convert_to_retryable_task_errors() {
        let failed = || -> Result<u8, TaskError> { Ok("x".parse::<u8>()?) };
        let error = failed().unwrap_err();
        assert_eq!((error.code.is_retryable(), error.retryable), (true, None));
        assert_eq!(TaskError::fatal("no").retryable, Some(false));
        assert_eq!(TaskSuccess::with_result(&1).unwrap().rows_affected(3).rows_affected, Some(3));
    }
}
