//! Executor of functions: calls the handlers of the embedding program, each call in a task of its own.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::work_spec::WorkAction;
use tasuki_core::{AttemptErrorCode, LeaseToken};
use tokio::sync::Notify;

use super::attempt_input_and_result::{
    Attempt, Completion, CompletionQueue, ExecutionEnd, Executor,
};
use super::attempt_log_writer::AttemptLog;
use super::log_creation_batcher::LogCreationBatcher;
use crate::handler::{Context, HandlerRegistry, TaskError};
use crate::node::clock_and_random::Clock;
use crate::spawner::{AttemptKey, LaunchRefusal};

/// Runs functions on this node.
pub(crate) struct FunctionExecutor {
    functions: HandlerRegistry,
    log_batcher: LogCreationBatcher,
    clock: Arc<dyn Clock>,
    completions: CompletionQueue,
    max_log_bytes: i64,
    calls: Arc<Mutex<HashMap<AttemptKey, Arc<HandlerStopSignal>>>>,
    /// Grace of stops that arrived before their attempt was called.
    early_stops: Mutex<HashMap<AttemptKey, Duration>>,
}

/// Signals a call to stop, and aborts it after its grace.
#[derive(Default)]
pub(crate) struct HandlerStopSignal {
    requested: AtomicBool,
    /// Wakes the tasks that wait for the request.
    requested_wakeup: Notify,
    /// The grace has passed: the call is not polled any more.
    abort: Notify,
}

impl HandlerStopSignal {
    fn request(&self) {
        self.requested.store(true, Ordering::Release);
        self.requested_wakeup.notify_waiters();
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Waits until a stop is requested.
    pub(crate) async fn wait(&self) {
        let mut requested = pin!(self.requested_wakeup.notified());
        // Register before reading the flag: a request after this line wakes this task.
        requested.as_mut().enable();
        if !self.is_requested() {
            requested.await;
        }
    }
}

impl FunctionExecutor {
    pub(crate) fn new(
        functions: HandlerRegistry,
        log_batcher: LogCreationBatcher,
        clock: Arc<dyn Clock>,
        completions: CompletionQueue,
        max_log_bytes: i64,
    ) -> Self {
        Self {
            functions,
            log_batcher,
            clock,
            completions,
            max_log_bytes,
            calls: Arc::default(),
            early_stops: Mutex::default(),
        }
    }

    fn lock_calls(&self) -> MutexGuard<'_, HashMap<AttemptKey, Arc<HandlerStopSignal>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Executor for FunctionExecutor {
    /// Does nothing. A function cannot outlive this process, and the worker in this process stops it when the lease
    /// cannot be renewed.
    fn set_lease_deadline(&self, _: LeaseToken, _: u64) {}

    fn launch(&self, attempt: Attempt) {
        let (key, token) = (attempt.key(), attempt.token);
        let handler = match &attempt.job.work.action {
            WorkAction::Function(name) => self
                .functions
                .get(name)
                .ok_or_else(|| format!("this worker has no function {name:?}")),
            WorkAction::Command(_) | WorkAction::Django(_) => {
                Err("this worker runs no commands".to_owned())
            }
        };
        let handler = match handler {
            Ok(handler) => handler,
            Err(message) => {
                let end = ExecutionEnd::NotStarted(LaunchRefusal::NotFound(message));
                return self.completions.push(Completion { key, token, end });
            }
        };
        let stop = Arc::<HandlerStopSignal>::default();
        let log = AttemptLog::new(
            self.log_batcher.clone(),
            Arc::clone(&self.clock),
            key,
            self.max_log_bytes,
        );
        let context = Context {
            run_id: attempt.run.id,
            attempt_no: attempt.run.attempt_no,
            job: Arc::clone(&attempt.job),
            event_payload: attempt.event_payload,
            deadline: attempt.deadline,
            scheduled_for: attempt.run.scheduled_for,
            scope: attempt.run.scope,
            liveness: attempt.liveness.clone(),
            clock: Arc::clone(&self.clock),
            log: Arc::clone(&log),
            stop: Arc::clone(&stop),
        };
        let args = attempt.args;
        self.lock_calls().insert(key, Arc::clone(&stop));
        // A stop arrived before the call.
        if let Some(grace) = self.lock_early_stops().remove(&key) {
            self.stop_call(key, grace);
        }
        let (completions, calls, liveness) =
            (self.completions.clone(), Arc::clone(&self.calls), attempt.liveness);
        // The call of the handler is inside the future, because it may already panic before its first await. Boxed
        // here, so that the spawned future, which is moved before it is polled, is small.
        let work = async move { handler(args, context).await };
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        tokio::spawn(async move {
            let returned = tokio::select! {
                biased;
                returned = &mut work => returned.unwrap_or_else(|panic| {
                    let message = panic_message(&*panic);
                    Err(TaskError::new(AttemptErrorCode::UNEXPECTED_ERROR, message))
                }),
                () = stop.abort.notified() => {
                    let message = "the function did not stop within its grace and was aborted";
                    Err(TaskError::new(AttemptErrorCode::UNEXPECTED_ERROR, message))
                }
            };
            // Dropping the future of an aborted call may panic, too.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(work)));
            liveness.mark_ended();
            // Tasks that the handler has spawned are signaled to stop, because nothing else will stop them.
            stop.request();
            if log.close() {
                Box::pin(log.finish(std::future::ready(()))).await;
            }
            calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            completions.push(Completion { key, token, end: ExecutionEnd::Returned(returned) });
        });
    }

    fn stop(&self, key: AttemptKey, _: AttemptStopReason, grace: Duration) {
        if !self.stop_call(key, grace) {
            self.lock_early_stops().insert(key, grace);
            // The call may have begun between the two lines above.
            if self.stop_call(key, grace) {
                self.lock_early_stops().remove(&key);
            }
        }
    }

    fn forget(&self, key: AttemptKey) {
        self.lock_early_stops().remove(&key);
    }
}

impl FunctionExecutor {
    fn lock_early_stops(&self) -> MutexGuard<'_, HashMap<AttemptKey, Duration>> {
        self.early_stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals a call to stop and aborts it after the grace. `false`: there is no such call.
    fn stop_call(&self, key: AttemptKey, grace: Duration) -> bool {
        let Some(stop) = self.lock_calls().get(&key).cloned() else { return false };
        stop.request();
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            stop.abort.notify_one();
        });
        true
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the function panicked: {}", message.unwrap_or_else(|| "no message".to_owned()))
}
