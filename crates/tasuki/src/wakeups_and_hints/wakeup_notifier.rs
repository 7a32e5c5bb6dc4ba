//! Wakes the loops of this process immediately, and notifies other processes on the same database a moment later.
//!
//! All changes within [`MIN_INTERVAL`] share one notification. Notifications are hints: a process that misses one
//! finds the change at its next poll.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tasuki_store::{Notification, Store};
use tokio::sync::mpsc;

use crate::Wakeups;
use crate::wakeups_and_hints::cancel_drain_reload_outbox::HintOutbox;

/// Minimum interval between two notifications to other processes.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

const PLANNER: u8 = 1;
const CLAIMS: u8 = 2;
const LEASES: u8 = 4;

/// Wakes loops in this process and in other processes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notifier {
    wakeups: Wakeups,
    remote: Arc<Remote>,
}

/// Notifications to other processes.
struct Remote {
    store: Store,
    /// Bits of the loops to wake with the next notification.
    pending: Arc<AtomicU8>,
    /// Starts the sender task's next notification; `None` before the task is spawned.
    trigger: Mutex<Option<mpsc::Sender<()>>>,
}

impl Notifier {
    pub(crate) fn new(store: &Store, wakeups: Wakeups) -> Self {
        let store = store.clone();
        let remote = Remote { store, pending: Arc::default(), trigger: Mutex::default() };
        Self { wakeups, remote: Arc::new(remote) }
    }

    /// The wake-ups of this process.
    pub(crate) fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// Outbox of hints to workers.
    pub(crate) fn outbox_of_worker_hints(&self) -> &HintOutbox {
        self.wakeups.outbox_of_worker_hints()
    }

    /// Wakes the leader's planner: there is something to plan.
    pub(crate) fn wake_planner(&self) {
        self.wakeups.wake_planner();
        self.notify_remote(PLANNER);
    }

    /// Wakes the claim loops: a run can be claimed.
    pub(crate) fn wake_claims(&self) {
        self.wakeups.wake_claims();
        self.notify_remote(CLAIMS);
    }

    /// Wakes the renew loops: a leased run changed.
    pub(crate) fn wake_renew_loops(&self) {
        self.wakeups.wake_renew_loop();
        self.notify_remote(LEASES);
    }

    /// Wakes planner, claim and renew loops, for a change that may concern any of them.
    pub(crate) fn wake_all(&self) {
        self.wakeups.wake_all();
        self.notify_remote(PLANNER | CLAIMS | LEASES);
    }

    fn notify_remote(&self, loops: u8) {
        let remote = &self.remote;
        // Where the database cannot notify, a coordinator does, if there is one.
        if !remote.store.can_notify() && self.wakeups.notification_coordinator().is_none() {
            return;
        }
        remote.pending.fetch_or(loops, Ordering::Relaxed);
        // Without a runtime no task can send; the other processes poll a second later at most.
        if tokio::runtime::Handle::try_current().is_ok() {
            let mut trigger = remote.trigger.lock().unwrap_or_else(PoisonError::into_inner);
            // The sender task may have ended together with the runtime that it was spawned on.
            let sender = match trigger.take() {
                Some(sender) if !sender.is_closed() => sender,
                Some(_) | None => remote.spawn_sender(self.wakeups.clone()),
            };
            // If the channel is full, the task is about to send already.
            let _ = trigger.insert(sender).try_send(());
        }
    }
}

impl Remote {
    /// Spawns the task that sends notifications. It ends when the returned sender has been dropped.
    fn spawn_sender(&self, wakeups: Wakeups) -> mpsc::Sender<()> {
        let (trigger, mut triggered) = mpsc::channel(1);
        let (store, pending) = (self.store.clone(), Arc::clone(&self.pending));
        tokio::spawn(async move {
            while triggered.recv().await.is_some() {
                let loops = pending.swap(0, Ordering::Relaxed);
                let notification = Notification {
                    sender: wakeups.sender_id(),
                    wake_planner: loops & PLANNER > 0,
                    wake_claims: loops & CLAIMS > 0,
                    wake_renew_loop: loops & LEASES > 0,
                    wake_election: false,
                };
                let sent = match (store.can_notify(), wakeups.notification_coordinator()) {
                    (true, _) | (_, None) => {
                        store.notify(notification).await.map_err(|error| error.to_string())
                    }
                    (false, Some(coordinator)) => {
                        coordinator.notify(notification).await.map_err(|error| error.to_string())
                    }
                };
                if let Err(error) = sent {
                    tracing::debug!(%error, "a notification could not be sent; the other processes poll anyway");
                }
                tokio::time::sleep(MIN_INTERVAL).await;
            }
        });
        trigger
    }
}
