//! Wake-ups: in-process signals that make a loop poll the database now and not at its next interval.
//!
//! A wake-up has no content and may be lost or repeated: the loop that receives it reads the database.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_store::Notification;
use tokio::sync::Notify;

use crate::node::coordination::coordinator_trait::Coordinator;
use crate::wakeups_and_hints::cancel_drain_reload_outbox::HintOutbox;
use crate::wakeups_and_hints::submit_to_local_worker::LocalSubmitSender;

/// Wakes the loops of the node in this process. Cheap to clone; does nothing if no node runs in this process.
#[derive(Debug, Clone, Default)]
pub struct Wakeups {
    signals: Arc<Signals>,
}

struct Signals {
    /// Random id of this set of signals; notifications carry it, so that a process ignores its own.
    id: u64,
    planner: Notify,
    claims: Notify,
    leases: Notify,
    recovery: Notify,
    election: Notify,
    /// Channel to the node in this process.
    local_submit: LocalSubmitSender,
    /// Coordinator that sends notifications to other processes if the database cannot.
    remote: Mutex<Option<Arc<dyn Coordinator>>>,
    /// Hints to workers that are not sent yet.
    hints: HintOutbox,
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            // Without randomness two processes may have the same id; they then ignore each other's
            // notifications and find changes at their next poll, a second later at most.
            id: getrandom::u64().unwrap_or_default(),
            planner: Notify::new(),
            claims: Notify::new(),
            leases: Notify::new(),
            recovery: Notify::new(),
            election: Notify::new(),
            local_submit: LocalSubmitSender::default(),
            remote: Mutex::default(),
            hints: HintOutbox::default(),
        }
    }
}

impl Wakeups {
    /// The id under which this process sends notifications.
    pub(crate) fn sender_id(&self) -> u64 {
        self.signals.id
    }

    /// Sets the coordinator that sends this process's notifications to other processes.
    pub(crate) fn set_notification_coordinator(&self, coordinator: Arc<dyn Coordinator>) {
        *self.signals.remote.lock().unwrap_or_else(PoisonError::into_inner) = Some(coordinator);
    }

    /// The coordinator that sends this process's notifications to other processes, if one is set.
    pub(crate) fn notification_coordinator(&self) -> Option<Arc<dyn Coordinator>> {
        self.signals.remote.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Outbox of hints to workers.
    pub(crate) fn outbox_of_worker_hints(&self) -> &HintOutbox {
        &self.signals.hints
    }

    /// Channel through which this process submits tasks directly to its own node.
    pub(crate) fn local_submit_sender(&self) -> &LocalSubmitSender {
        &self.signals.local_submit
    }

    /// Wakes the loops that a notification from another process names.
    pub(crate) fn on_notification(&self, notification: Notification) {
        if notification.sender == self.sender_id() {
            return;
        }
        for (wake, signal) in [
            (notification.wake_planner, &self.signals.planner),
            (notification.wake_claims, &self.signals.claims),
            (notification.wake_renew_loop, &self.signals.leases),
            (notification.wake_election, &self.signals.election),
        ] {
            if wake {
                signal.notify_one();
            }
        }
    }

    /// Wakes the leader's planner: a job changed, an event arrived, or a run was created or ended.
    pub fn wake_planner(&self) {
        self.signals.planner.notify_one();
    }

    /// Wakes the worker's claim loop: a run can be claimed.
    pub fn wake_claims(&self) {
        self.signals.claims.notify_one();
    }

    /// Wakes the worker's renew loop: a leased run changed, for example by a cancel request.
    pub fn wake_renew_loop(&self) {
        self.signals.leases.notify_one();
    }

    /// Wakes the planner, the claim loop and the renew loop, for a change that may concern any of them.
    pub fn wake_all(&self) {
        self.wake_planner();
        self.wake_claims();
        self.wake_renew_loop();
    }

    /// Wakes the leader's recovery: there is a new leader, or a worker was detached.
    pub(crate) fn wake_recovery(&self) {
        self.signals.recovery.notify_one();
    }

    /// Waits for a wake-up of the leader's recovery.
    pub(crate) async fn wait_for_recovery_wakeup(&self) {
        self.signals.recovery.notified().await;
    }

    /// Wakes the election loop: the leadership may have changed.
    pub(crate) fn wake_election(&self) {
        self.signals.election.notify_one();
    }

    /// Waits for a wake-up of the election loop.
    pub(crate) async fn wait_for_election_wakeup(&self) {
        self.signals.election.notified().await;
    }

    /// Waits for a wake-up of the planner.
    pub(crate) async fn wait_for_planner_wakeup(&self) {
        self.signals.planner.notified().await;
    }

    /// Waits for a wake-up of the claim loop.
    pub(crate) async fn wait_for_claim_wakeup(&self) {
        self.signals.claims.notified().await;
    }

    /// Waits for a wake-up of the renew loop.
    pub(crate) async fn wait_for_renew_wakeup(&self) {
        self.signals.leases.notified().await;
    }
}
