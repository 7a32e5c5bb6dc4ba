//! Outbox of hints to workers: a cancel request for a run that the worker holds, a drain or detach of the worker, or
//! new settings for all workers.
//!
//! The code that makes a change adds a hint here and does not wait. The node in this process sends the hints by RPC;
//! if no node of this process sends hints, the outbox stays empty. Hints that are added while a call to their worker
//! is in flight wait and are sent together with the next call. So there is at most one call per worker at a time, and
//! a worker that does not respond delays no other worker. A lost hint costs time only: the worker finds the same
//! change with its next heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, stream};
use tasuki_core::{RunId, WorkerId};
use tasuki_store::{Error, Store};
use tokio::sync::Notify;

use crate::node::coordination::node_rpc::{
    CancelHint, OrderResponse, Peer, PeerUnreachable, Peers,
};
use crate::node::with_timeout;

/// Maximum number of workers called at the same time.
const MAX_CONCURRENT_CALLS: usize = 16;
/// Maximum number of workers remembered as unresponsive; when it is reached, the whole set is cleared.
const MAX_UNRESPONSIVE: usize = 1_000;
/// Maximum number of canceled runs in one call. A cancel hint for one run makes the worker check all its runs, so
/// the others need not be listed.
const MAX_RUNS_PER_CALL: usize = 100;

/// Hints that are not sent yet, by worker.
#[derive(Debug, Default)]
pub(crate) struct HintOutbox {
    state: Mutex<OutboxState>,
    added: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    /// Whether a node sends the hints; without one no hint is stored.
    has_sender: bool,
    /// Version of the settings that all workers should load.
    settings_version: Option<i64>,
    queued: BTreeMap<WorkerId, WorkerHints>,
    /// Workers with a call in flight.
    in_flight: BTreeSet<WorkerId>,
    /// Workers that did not respond to the last call. They are called after all others, because each such call
    /// occupies one of the concurrent calls until its timeout.
    unresponsive: BTreeSet<WorkerId>,
}

/// Hints for one worker.
#[derive(Debug, Default)]
struct WorkerHints {
    canceled_runs: BTreeSet<RunId>,
    suspended: bool,
    settings: Option<i64>,
}

/// The next hint to send.
enum NextSend {
    AllWorkers(i64),
    Worker(WorkerId, WorkerHints),
}

impl HintOutbox {
    /// Adds a hint: a cancel was requested for a run that the worker holds.
    pub(crate) fn enqueue_cancel(&self, worker: WorkerId, run: RunId) {
        self.enqueue(worker, |hints| {
            if hints.canceled_runs.len() < MAX_RUNS_PER_CALL {
                hints.canceled_runs.insert(run);
            }
        });
    }

    /// Adds a hint: the worker was drained or detached.
    pub(crate) fn enqueue_suspend(&self, worker: WorkerId) {
        self.enqueue(worker, |hints| hints.suspended = true);
    }

    /// Adds a hint for all workers: there are settings of this version.
    pub(crate) fn enqueue_reload(&self, version: i64) {
        let mut state = self.state();
        if state.has_sender {
            state.settings_version = state.settings_version.max(Some(version));
            self.added.notify_one();
        }
    }

    fn enqueue(&self, worker: WorkerId, add: impl FnOnce(&mut WorkerHints)) {
        let mut state = self.state();
        if state.has_sender {
            add(state.queued.entry(worker).or_default());
            self.added.notify_one();
        }
    }

    /// Sends queued hints for as long as the returned future is polled.
    pub(crate) async fn run_sender(&self, store: &Store, peers: &dyn Peers) {
        self.state().has_sender = true;
        let _clear = ClearOnDrop(self);
        let sends = stream::unfold((), |()| async { Some((self.next_send().await, ())) });
        let each = sends.for_each_concurrent(MAX_CONCURRENT_CALLS, async |next| {
            let sent = match next {
                NextSend::AllWorkers(version) => self.enqueue_reload_for_all(version, store).await,
                NextSend::Worker(worker, hints) => {
                    let reached = send_to_worker(worker, &hints, store, peers).await;
                    self.state().finish_call(worker, !matches!(reached, Ok(false)));
                    // More hints for this worker may have been queued during the call.
                    self.added.notify_one();
                    reached.map(drop)
                }
            };
            if let Err(error) = sent {
                tracing::debug!(%error, "a hint could not be sent; its worker finds the change with its next heartbeat");
            }
        });
        each.await;
    }

    async fn next_send(&self) -> NextSend {
        loop {
            if let Some(next) = self.state().take_next() {
                return next;
            }
            self.added.notified().await;
        }
    }

    /// Adds a settings hint for every worker that has an address and is not detached.
    async fn enqueue_reload_for_all(&self, version: i64, store: &Store) -> Result<(), Error> {
        for worker in with_timeout(store.list_workers()).await? {
            if worker.may_continue() && worker.address.is_some() {
                self.enqueue(worker.id, |hints| hints.settings = hints.settings.max(Some(version)));
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutboxState {
    fn take_next(&mut self) -> Option<NextSend> {
        if let Some(version) = self.settings_version.take() {
            return Some(NextSend::AllWorkers(version));
        }
        let mut idle = self.queued.keys().filter(|worker| !self.in_flight.contains(worker));
        let responsive = idle.clone().find(|worker| !self.unresponsive.contains(worker));
        let worker = responsive.or_else(|| idle.next()).copied()?;
        let hints = self.queued.remove(&worker)?;
        self.in_flight.insert(worker);
        Some(NextSend::Worker(worker, hints))
    }

    fn finish_call(&mut self, worker: WorkerId, reached: bool) {
        self.in_flight.remove(&worker);
        self.unresponsive.remove(&worker);
        if !reached {
            if self.unresponsive.len() == MAX_UNRESPONSIVE {
                self.unresponsive.clear();
            }
            self.unresponsive.insert(worker);
        }
    }
}

/// Clears the outbox when its sender stops.
struct ClearOnDrop<'a>(&'a HintOutbox);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        *self.0.state() = OutboxState::default();
    }
}

/// Sends the hints to one worker, with the newest epoch in the database. `false`: the worker did not respond. `true`:
/// it responded, or it has left or died.
async fn send_to_worker(
    worker: WorkerId,
    hints: &WorkerHints,
    store: &Store,
    peers: &dyn Peers,
) -> Result<bool, Error> {
    let row = with_timeout(store.find_worker(worker)).await?;
    let Some(row) = row.filter(|row| row.dead_at.is_none() && row.gone_at.is_none()) else {
        return Ok(true);
    };
    let epoch = with_timeout(store.get_leader_record()).await?.epoch;
    let peer = Peer { worker, address: row.address };
    let sent = async {
        if !hints.canceled_runs.is_empty() {
            let order = CancelHint { epoch, runs: hints.canceled_runs.iter().copied().collect() };
            log_refusal(&peer, "cancel", &peers.cancel(&peer, &order).await?);
        }
        if hints.suspended {
            log_refusal(&peer, "drain", &peers.drain(&peer, epoch).await?);
        }
        if let Some(version) = hints.settings {
            log_refusal(&peer, "reload", &peers.reload(&peer, version).await?);
        }
        Ok::<(), PeerUnreachable>(())
    };
    let sent = sent.await;
    if let Err(error) = &sent {
        tracing::debug!(worker_id = %worker, %error, "a worker did not respond to a hint; it finds the change with its next heartbeat");
    }
    Ok(sent.is_ok())
}

fn log_refusal(peer: &Peer, verb: &str, response: &OrderResponse) {
    if *response != OrderResponse::Accepted {
        tracing::debug!(worker_id = %peer.worker, verb, refusal = ?response, "a worker refused a hint; it finds the change with its next heartbeat");
    }
}

#[cfg(test)]
mod tests;
