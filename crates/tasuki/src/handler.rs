//! What an embedding program brings: async handlers, what they are given, and what they give back.

use std::collections::HashMap;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tasuki_core::{ErrorCode, RunId, Scope};
use tasuki_store::Stream;

use crate::node::executor::attempt::Signs;
use crate::node::executor::functions::Stop;
use crate::node::executor::logs::Log;
use crate::node::worker::recipes::Recipe;
use crate::node::world::Clock;
use crate::output::Lines;

pub(crate) type Called = Pin<Box<dyn Future<Output = Result<Done, TaskError>> + Send>>;
type Handler = Arc<dyn Fn(Map<String, Value>, Context) -> Called + Send + Sync>;

/// The functions a node has, by the names that jobs call them.
#[derive(Clone, Default)]
pub struct Functions {
    handlers: HashMap<String, Handler>,
}

impl Functions {
    /// Adds one. A second of the same name takes the place of the first.
    ///
    /// What a run is given is read into the handler's first argument by its fields; what does not fit fails
    /// the run as `INVALID_INPUT`, which is not tried again. `()` takes anything. A panic fails the attempt and
    /// nothing else.
    pub fn add<A, R, D>(
        &mut self,
        name: impl Into<String>,
        handler: impl Fn(A, Context) -> R + Send + Sync + 'static,
    ) where
        A: Arguments,
        R: Future<Output = Result<D, TaskError>> + Send + 'static,
        D: Into<Done>,
    {
        let called = move |args: Map<String, Value>, context: Context| -> Called {
            match A::read(args) {
                Ok(args) => {
                    let returned = handler(args, context);
                    Box::pin(async move { returned.await.map(Into::into) })
                }
                Err(error) => {
                    let refused = TaskError::new(ErrorCode::INVALID_INPUT, error);
                    Box::pin(std::future::ready(Err(refused)))
                }
            }
        };
        self.handlers.insert(name.into(), Arc::new(called));
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Handler> {
        self.handlers.get(name).cloned()
    }
}

/// What a handler can take as its first argument: anything `serde` reads from a JSON object, or `()`.
pub trait Arguments: Sized {
    /// Reads what a run is given, or says what does not fit.
    fn read(args: Map<String, Value>) -> Result<Self, String>;
}

impl<A: DeserializeOwned> Arguments for A {
    fn read(args: Map<String, Value>) -> Result<Self, String> {
        // Whoever asks for nothing takes anything.
        if size_of::<A>() == 0
            && let Ok(nothing) = serde_json::from_value(Value::Null)
        {
            return Ok(nothing);
        }
        serde_json::from_value(Value::Object(args)).map_err(|error| format!("arguments: {error}"))
    }
}

/// What a handler has to show when it is done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Done {
    /// Kept with the run; at most 64 KiB of JSON.
    pub result: Option<Value>,
    /// How many rows it changed.
    pub rows_affected: Option<i64>,
}

impl Done {
    /// With a result.
    pub fn with(result: &impl Serialize) -> Result<Self, TaskError> {
        Ok(Self { result: Some(serde_json::to_value(result)?), rows_affected: None })
    }

    /// So many rows were changed.
    pub fn rows_affected(self, rows: i64) -> Self {
        Self { rows_affected: Some(rows), ..self }
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Value> for Done {
    fn from(result: Value) -> Self {
        Self { result: Some(result), rows_affected: None }
    }
}

/// Why a handler failed. Every error becomes one by `?`, of the class `UNEXPECTED_ERROR`, which is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// Its class, which decides whether it is tried again, unless the job or [`TaskError::retry`] says so.
    pub code: ErrorCode,
    /// In words.
    pub message: String,
    /// Whether another try may help, where it is known better than by its class.
    pub retryable: Option<bool>,
}

impl TaskError {
    /// A failure of this class.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: None }
    }

    /// A failure that no other try will mend.
    pub fn fatal(message: impl Display) -> Self {
        Self::new(ErrorCode::UNEXPECTED_ERROR, message.to_string()).retry(false)
    }

    /// Says whether another try may help.
    pub fn retry(self, retryable: bool) -> Self {
        Self { retryable: Some(retryable), ..self }
    }
}

impl<E: Display> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::new(ErrorCode::UNEXPECTED_ERROR, error.to_string())
    }
}

/// One call of a handler: what it is for, and how it can show that it lives.
#[derive(Clone)]
pub struct Context {
    pub(crate) run: RunId,
    pub(crate) attempt_no: u32,
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) event_payload: Option<String>,
    pub(crate) scheduled_for: Timestamp,
    pub(crate) scope: Scope,
    pub(crate) deadline: u64,
    pub(crate) signs: Signs,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<Log>,
    pub(crate) stop: Arc<Stop>,
}

impl Context {
    /// The run it is for.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Which attempt of it, from 1.
    pub fn attempt_no(&self) -> u32 {
        self.attempt_no
    }

    /// What its job is called.
    pub fn job(&self) -> &str {
        &self.recipe.name
    }

    /// When it was planned for.
    pub fn scheduled_for(&self) -> Timestamp {
        self.scheduled_for
    }

    /// For what.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// What the event said that made it, as JSON.
    pub fn event_payload(&self) -> Option<&str> {
        self.event_payload.as_deref()
    }

    /// The same for every attempt of a run, and for no other: what is done elsewhere under it happens once.
    pub fn idempotency_key(&self) -> String {
        crate::node::executor::launch::idempotency_key(self.run)
    }

    /// How much of its time is left. After that it is asked to stop.
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.deadline.saturating_sub(self.clock.boottime()))
    }

    /// Shows that it is alive: a call that is silent for longer than its heartbeat_timeout is ended.
    pub fn heartbeat(&self) {
        self.signs.show(self.clock.boottime());
    }

    /// Shows that it is getting on. One that has shown it once is expected to go on, also where its job sets no
    /// heartbeat_timeout: then `progress_heartbeat_timeout` is its limit.
    pub fn progress(&self) {
        self.signs.show_progress(self.clock.boottime());
    }

    /// Adds a line to the run's log, or several.
    pub fn log(&self, text: impl AsRef<str>) {
        self.signs.show(self.clock.boottime());
        let text = text.as_ref();
        let mut lines = Lines::default();
        for part in [text.strip_suffix('\n').unwrap_or(text), "\n"] {
            lines.take_in(part.as_bytes(), |line| self.log.line(Stream::Out, line));
        }
        self.log.ring();
    }

    /// Whether it was asked to stop, or has ended.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_asked()
    }

    /// Waits until it is asked to stop: it is canceled, its time is up, its node is drained. After that it has
    /// the job's stop_grace left. Whatever the call leaves behind hears it when the call has ended.
    pub async fn stopped(&self) {
        self.stop.asked().await;
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
    fn arguments_are_read_by_their_fields() {
        let given = json!({"to": "ann", "more": 1}).as_object().unwrap().clone();
        assert_eq!(Mail::read(given.clone()), Ok(Mail { to: "ann".to_owned() }));
        assert_eq!(<()>::read(given.clone()), Ok(()));
        assert_eq!(Map::read(given.clone()), Ok(given));
        let refused = Mail::read(Map::new()).unwrap_err();
        assert_eq!(refused, "arguments: missing field `to`");
    }

    #[test]
    fn every_error_becomes_one_that_is_tried_again() {
        let failed = || -> Result<u8, TaskError> { Ok("x".parse::<u8>()?) };
        let error = failed().unwrap_err();
        assert_eq!((error.code.is_retryable(), error.retryable), (true, None));
        assert_eq!(TaskError::fatal("no").retryable, Some(false));
        assert_eq!(Done::with(&1).unwrap().rows_affected(3).rows_affected, Some(3));
    }
}
