//! What calls the handlers of the embedding program, each call a task.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tasuki_core::exit::Stopped;
use tasuki_core::job_spec::What;
use tasuki_core::{ErrorCode, LeaseToken};
use tokio::sync::Notify;

use super::attempt::{Attempt, End, Executor, Happened, Mail};
use super::keeper::Keeper;
use super::logs::Log;
use crate::handler::{Context, Functions, TaskError};
use crate::node::world::Clock;
use crate::spawner::{JobKey, Refusal};

/// What runs functions on this node.
pub(crate) struct Calls {
    functions: Functions,
    keeper: Keeper,
    clock: Arc<dyn Clock>,
    mail: Mail,
    log_cap: i64,
    calls: Arc<Mutex<HashMap<JobKey, Arc<Stop>>>>,
    /// What is to stop although it has not been called yet.
    stops: Mutex<HashMap<JobKey, Duration>>,
}

/// How a call is told to stop.
#[derive(Default)]
pub(crate) struct Stop {
    asked: AtomicBool,
    /// For those who wait for that.
    bell: Notify,
    /// It had its time: it is not polled any more.
    abort: Notify,
}

impl Stop {
    fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits until it is.
    pub(crate) async fn asked(&self) {
        let mut rung = pin!(self.bell.notified());
        // Whoever asks from now on is heard.
        rung.as_mut().enable();
        if !self.is_asked() {
            rung.await;
        }
    }
}

impl Calls {
    pub(crate) fn new(
        functions: Functions,
        keeper: Keeper,
        clock: Arc<dyn Clock>,
        mail: Mail,
        log_cap: i64,
    ) -> Self {
        Self {
            functions,
            keeper,
            clock,
            mail,
            log_cap,
            calls: Arc::default(),
            stops: Mutex::default(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<JobKey, Arc<Stop>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Executor for Calls {
    /// A function lives in this process: what stops the process stops it, and a lease that cannot be
    /// renewed is noticed by the worker that would have renewed it.
    fn lease(&self, _: LeaseToken, _: u64) {}

    fn launch(&self, attempt: Attempt) {
        let (key, token) = (attempt.key(), attempt.token);
        let handler = match &attempt.recipe.work.what {
            What::Function(name) => self
                .functions
                .get(name)
                .ok_or_else(|| format!("this worker has no function {name:?}")),
            What::Command(_) | What::Django(_) => Err("this worker runs no commands".to_owned()),
        };
        let handler = match handler {
            Ok(handler) => handler,
            Err(why) => {
                let end = End::Refused(Refusal::NotFound(why));
                return self.mail.send(Happened { key, token, end });
            }
        };
        let stop = Arc::<Stop>::default();
        let log = Log::new(self.keeper.clone(), Arc::clone(&self.clock), key, self.log_cap);
        let context = Context {
            run: attempt.taken.id,
            attempt_no: attempt.taken.attempt_no,
            recipe: Arc::clone(&attempt.recipe),
            event_payload: attempt.event_payload,
            deadline: attempt.deadline,
            scheduled_for: attempt.taken.scheduled_for,
            scope: attempt.taken.scope,
            signs: attempt.signs.clone(),
            clock: Arc::clone(&self.clock),
            log: Arc::clone(&log),
            stop: Arc::clone(&stop),
        };
        let args = attempt.args;
        self.calls().insert(key, Arc::clone(&stop));
        // Somebody was quicker than we.
        if let Some(grace) = self.stops().remove(&key) {
            self.stop_call(key, grace);
        }
        let (mail, calls, signs) = (self.mail.clone(), Arc::clone(&self.calls), attempt.signs);
        // The call itself is inside: what the handler does before it first waits may panic, too. Boxed here, so that what is
        // spawned, and moved about before it is polled, is small.
        let work = async move { handler(args, context).await };
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        tokio::spawn(async move {
            let returned = tokio::select! {
                biased;
                returned = &mut work => returned.unwrap_or_else(|panic| {
                    let why = panic_words(&*panic);
                    Err(TaskError::new(ErrorCode::UNEXPECTED_ERROR, why))
                }),
                () = stop.abort.notified() => {
                    let why = "it did not stop when it was asked to, and was aborted";
                    Err(TaskError::new(ErrorCode::UNEXPECTED_ERROR, why))
                }
            };
            // So may what it leaves behind when it is aborted.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(work)));
            signs.end();
            // What it left behind has nobody to ask it any more.
            stop.ask();
            if log.close() {
                Box::pin(log.finish(std::future::ready(()))).await;
            }
            calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            mail.send(Happened { key, token, end: End::Returned(returned) });
        });
    }

    fn stop(&self, key: JobKey, _: Stopped, grace: Duration) {
        if !self.stop_call(key, grace) {
            self.stops().insert(key, grace);
            // It may have been called meanwhile.
            if self.stop_call(key, grace) {
                self.stops().remove(&key);
            }
        }
    }

    fn forget(&self, key: JobKey) {
        self.stops().remove(&key);
    }
}

impl Calls {
    fn stops(&self) -> MutexGuard<'_, HashMap<JobKey, Duration>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false`: there is no such call.
    fn stop_call(&self, key: JobKey, grace: Duration) -> bool {
        let Some(stop) = self.calls().get(&key).cloned() else { return false };
        stop.ask();
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            stop.abort.notify_one();
        });
        true
    }
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", words.unwrap_or_else(|| "without a word".to_owned()))
}
