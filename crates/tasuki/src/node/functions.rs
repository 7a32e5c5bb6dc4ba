//! Functions of the embedding program: a plain registry of async handlers, each call a task.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tasuki_core::exit::Stopped;
use tasuki_core::work::What;
use tasuki_core::{ErrorCode, LeaseToken, RunId, Scope};
use tasuki_store::{Store, Stream};
use tokio::sync::watch;

use super::attempt::{Attempt, End, Executor, FunctionError, Happened, Mail, Signs};
use super::logs::Log;
use super::world::Clock;
use crate::output::Lines;
use crate::spawner::{JobKey, Refusal};

type Called = Pin<Box<dyn Future<Output = Result<Option<Value>, FunctionError>> + Send>>;
type Handler = Arc<dyn Fn(Call) -> Called + Send + Sync>;

/// The functions a node has, by the names that jobs call them.
#[derive(Clone, Default)]
pub struct Functions {
    handlers: HashMap<String, Handler>,
}

impl Functions {
    /// Adds one. A second of the same name takes the place of the first.
    pub fn add<F, R>(&mut self, name: impl Into<String>, handler: F)
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Option<Value>, FunctionError>> + Send + 'static,
    {
        self.handlers.insert(name.into(), Arc::new(move |call| Box::pin(handler(call))));
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(String::as_str)
    }
}

/// One call of a function.
pub struct Call {
    /// The run it is for.
    pub run: RunId,
    /// Which attempt of it.
    pub attempt_no: u32,
    /// Of which job.
    pub job: String,
    /// What it is given.
    pub args: Map<String, Value>,
    /// What the event said that made it.
    pub event_payload: Option<String>,
    /// When it was planned for.
    pub scheduled_for: Timestamp,
    /// For what.
    pub scope: Scope,
    signs: Signs,
    clock: Arc<dyn Clock>,
    log: Arc<Log>,
    stop: watch::Receiver<bool>,
}

impl Call {
    /// Shows that it is getting on: a call that is silent for longer than its heartbeat_timeout is ended.
    /// One that has shown it once is expected to go on, also where its job sets no such limit: then
    /// `progress_heartbeat_timeout` is its limit.
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

    /// Waits until it is asked to stop. After that it has the job's stop_grace left.
    pub async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // Nobody is left to ask: the node is gone, and so is this call in a moment.
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// What runs functions on this node.
pub(crate) struct Calls {
    functions: Functions,
    store: Store,
    clock: Arc<dyn Clock>,
    mail: Mail,
    log_cap: i64,
    calls: Arc<Mutex<HashMap<JobKey, Open>>>,
}

struct Open {
    stop: watch::Sender<bool>,
    abort: tokio::task::AbortHandle,
}

impl Calls {
    pub(crate) fn new(
        functions: Functions,
        store: Store,
        clock: Arc<dyn Clock>,
        mail: Mail,
        log_cap: i64,
    ) -> Self {
        Self { functions, store, clock, mail, log_cap, calls: Arc::default() }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<JobKey, Open>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Executor for Calls {
    /// A function lives in this process: what stops the process stops it, and a lease that cannot be
    /// renewed is noticed by the worker that would have renewed it.
    fn lease(&self, _: LeaseToken, _: u64) {}

    fn launch(&self, attempt: Attempt) {
        let (key, token) = (attempt.key(), attempt.token);
        let What::Function(name) = &attempt.recipe.work.what else { return };
        let Some(handler) = self.functions.handlers.get(name).cloned() else {
            let why = format!("this worker has no function {name:?}");
            let end = End::Refused(Refusal::NotFound(why));
            return self.mail.send(Happened { key, token, end });
        };
        let (stop, stopped) = watch::channel(false);
        let log = Log::new(self.store.clone(), Arc::clone(&self.clock), key, self.log_cap);
        let call = Call {
            run: attempt.taken.id,
            attempt_no: attempt.taken.attempt_no,
            job: attempt.recipe.name.clone(),
            args: attempt.args,
            event_payload: attempt.event_payload,
            scheduled_for: attempt.taken.scheduled_for,
            scope: attempt.taken.scope,
            signs: attempt.signs.clone(),
            clock: Arc::clone(&self.clock),
            log: Arc::clone(&log),
            stop: stopped,
        };
        let work = tokio::spawn(async move { handler(call).await });
        let open = Open { stop, abort: work.abort_handle() };
        self.calls().insert(key, open);
        let (mail, calls, signs) = (self.mail.clone(), Arc::clone(&self.calls), attempt.signs);
        tokio::spawn(async move {
            let ended = work.await;
            signs.end();
            let returned = match ended {
                Ok(returned) => returned,
                Err(ended) if ended.is_panic() => {
                    let why = panic_words(&*ended.into_panic());
                    Err(FunctionError::new(ErrorCode::UNEXPECTED_ERROR, why))
                }
                Err(_) => {
                    let why = "it did not stop when it was asked to, and was aborted";
                    Err(FunctionError::new(ErrorCode::UNEXPECTED_ERROR, why))
                }
            };
            log.finish(std::future::ready(())).await;
            calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            mail.send(Happened { key, token, end: End::Returned(returned) });
        });
    }

    fn stop(&self, key: JobKey, _: Stopped, grace: Duration) {
        let Some(abort) = self.calls().get(&key).map(|open| {
            let _ = open.stop.send(true);
            open.abort.clone()
        }) else {
            return;
        };
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            abort.abort();
        });
    }

    fn forget(&self, _: JobKey) {}
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", words.unwrap_or_else(|| "without a word".to_owned()))
}
