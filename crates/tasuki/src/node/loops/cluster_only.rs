//! Loops of a node that has an address: failure detection, presence, and notifications and hints between nodes.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::{Loops, MAX_WAIT};
use crate::node::coordination::coordinator_trait::Presence;
use crate::node::coordination::rpc_handler::MAX_LISTED_RUNS;

impl Loops {
    pub(super) async fn failure_detector_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let checked = self
                .outage_log
                .run_and_log_failure(
                    "check workers",
                    self.leader.detach_unresponsive_workers(&settings),
                )
                .await;
            let next = checked.unwrap_or(settings.heartbeat_interval());
            if !self.wait(next, pending()).await {
                return;
            }
        }
    }

    pub(super) async fn leader_check_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            if !self.worker.is_suspended()
                && self
                    .outage_log
                    .run_and_log_failure(
                        "check leader",
                        self.leader.end_term_of_unresponsive_leader(&self.cluster.node, &settings),
                    )
                    .await
                    == Some(true)
            {
                self.wakeups.wake_election();
            }
            if !self.wait(settings.subleader_check(), pending()).await {
                return;
            }
        }
    }

    /// Publishes the worker's presence, and reacts to marks that others have set for it. Separate from the heartbeat in
    /// the database: a slow coordinator must not delay the heartbeat there.
    pub(super) async fn presence_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let leased_runs = self.worker.leased_runs();
            let presence = Presence {
                worker: self.worker.id(),
                node: self.cluster.node.clone(),
                pid: std::process::id(),
                address: self.cluster.address.clone(),
                role: self.leader.role(),
                load: leased_runs.len() as u32,
                runs: leased_runs.into_iter().take(MAX_LISTED_RUNS).collect(),
                detached: self.worker.is_detached(),
            };
            match self
                .cluster
                .coordinator
                .publish_presence(&presence, settings.heartbeat_ttl())
                .await
            {
                Ok(reply) => {
                    if reply.detached && !presence.detached {
                        self.worker.request_heartbeat();
                    }
                    if self.leader.apply_worker_marks(reply) {
                        self.wakeups.wake_election();
                    }
                    self.publish_leased_runs(&presence, settings.heartbeat_ttl()).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the presence of this worker could not be published");
                }
            }
            if !self.wait(settings.heartbeat_interval(), pending()).await {
                let _ = self.cluster.coordinator.remove_presence(self.worker.id()).await;
                return;
            }
        }
    }

    /// Publishes which runs the worker holds: those that its presence lists.
    async fn publish_leased_runs(&self, presence: &Presence, ttl: Duration) {
        if presence.runs.is_empty() {
            return;
        }
        let published = self
            .cluster
            .coordinator
            .publish_leased_runs(presence.worker, &presence.runs, ttl)
            .await;
        if let Err(error) = published {
            tracing::debug!(%error, "the runs that this worker holds could not be published");
        }
    }

    /// Receives notifications of other processes, if the coordinator delivers them.
    pub(super) async fn coordinator_notification_loop(self: Arc<Self>) {
        let mut stop = self.stop.clone();
        loop {
            let wait = match self.cluster.coordinator.subscribe().await {
                Ok(None) => Duration::MAX,
                Ok(Some(mut subscription)) => {
                    // Notifications may have been lost before the subscription.
                    self.wakeups.wake_all();
                    loop {
                        let received = tokio::select! {
                            _ = stop.wait_for(|stop| *stop) => return,
                            received = subscription.next_notification() => received,
                        };
                        let Ok(notification) = received else { break MAX_WAIT };
                        self.wakeups.on_notification(notification);
                    }
                }
                Err(_) => MAX_WAIT,
            };
            if !self.wait(wait, pending()).await {
                return;
            }
        }
    }

    /// Sends queued hints to workers.
    pub(super) async fn hint_loop(self: Arc<Self>) {
        let mut stop = self.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.wakeups.outbox_of_worker_hints().run_sender(&self.store, &*self.cluster.peers) => {}
        }
    }
}
