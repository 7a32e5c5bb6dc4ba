//! What workers say to each other. Every word of it is a hint: whoever hears one looks at the database,
//! or writes with a guard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use jiff::Timestamp;
use tasuki_core::{Epoch, LeaseToken, RunId, WorkerId};

use super::worker::Worker;

/// What a leader gave a worker, told ahead of time so that it starts on the instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOrder {
    /// In which term.
    pub epoch: Epoch,
    /// Under which lease.
    pub token: LeaseToken,
    /// What, and when each is due.
    pub runs: Vec<(RunId, Timestamp)>,
}

/// How others are reached.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Tells a worker what it was given. What does not arrive is found with its next heartbeat.
    async fn start(&self, worker: WorkerId, order: StartOrder);
}

/// The workers of this process. On one host with one process no port is opened.
#[derive(Clone, Default)]
pub struct InProcess {
    workers: Arc<Mutex<HashMap<WorkerId, Weak<Worker>>>>,
}

impl InProcess {
    /// From now on this worker can be reached.
    pub(crate) fn add(&self, worker: &Arc<Worker>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|_, known| known.strong_count() > 0);
        workers.insert(worker.id(), Arc::downgrade(worker));
    }
}

#[async_trait]
impl Peers for InProcess {
    async fn start(&self, worker: WorkerId, order: StartOrder) {
        let known = {
            let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
            workers.get(&worker).and_then(Weak::upgrade)
        };
        if let Some(worker) = known {
            worker.hear(&order);
        }
    }
}
