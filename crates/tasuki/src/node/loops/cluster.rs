//! The loops of a node that is one of many: it looks after the others, is seen and heard by them.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use super::{LONGEST, Loops};
use crate::node::coordination::called::NAMED;
use crate::node::coordination::coordinate::Presence;

impl Loops {
    pub(super) async fn look_after(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let looked =
                self.outage.told("look after workers", self.leader.look_after(&settings)).await;
            let next = looked.unwrap_or(settings.heartbeat_interval());
            if !self.rest(next, pending()).await {
                return;
            }
        }
    }

    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            if !self.worker.is_aside()
                && self.outage.told("watch", self.leader.watch(&self.cluster.node, &settings)).await
                    == Some(true)
            {
                self.wake.lead();
            }
            if !self.rest(settings.subleader_check(), pending()).await {
                return;
            }
        }
    }

    /// Shows others that this worker is there, and hears what they want of it. Apart from the heartbeat in the
    /// database: who is slow here must not look dead there.
    pub(super) async fn show(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let carried = self.worker.carried();
            let presence = Presence {
                worker: self.worker.id(),
                node: self.cluster.node.clone(),
                pid: std::process::id(),
                address: self.cluster.address.clone(),
                role: self.leader.role(),
                load: carried.len() as u32,
                runs: carried.into_iter().take(NAMED).collect(),
                detached: self.worker.is_detached(),
            };
            match self.cluster.coordinator.show(&presence, settings.heartbeat_ttl()).await {
                Ok(wanted) => {
                    if wanted.detach && !presence.detached {
                        self.worker.look_now();
                    }
                    if self.leader.wanted(wanted) {
                        self.wake.lead();
                    }
                    self.show_carried(&presence, settings.heartbeat_ttl()).await;
                }
                Err(error) => tracing::debug!(%error, "others do not see this worker just now"),
            }
            if !self.rest(settings.heartbeat_interval(), pending()).await {
                let _ = self.cluster.coordinator.hide(self.worker.id()).await;
                return;
            }
        }
    }

    /// Shows what it carries, where it carries anything: those that its presence names.
    async fn show_carried(&self, presence: &Presence, ttl: Duration) {
        if presence.runs.is_empty() {
            return;
        }
        let told = self.cluster.coordinator.carries(presence.worker, &presence.runs, ttl).await;
        if let Err(error) = told {
            tracing::debug!(%error, "others do not see what this worker carries just now");
        }
    }

    /// Hears what other processes tell where coordinators carry it.
    pub(super) async fn hear_there(self: Arc<Self>) {
        let mut stopped = self.stopped.clone();
        loop {
            let wait = match self.cluster.coordinator.listen().await {
                Ok(None) => Duration::MAX,
                Ok(Some(mut hearing)) => {
                    // Something may have been missed.
                    self.wake.all();
                    loop {
                        let heard = tokio::select! {
                            _ = stopped.wait_for(|stopped| *stopped) => return,
                            heard = hearing.heard() => heard,
                        };
                        let Ok(news) = heard else { break LONGEST };
                        self.wake.heard(news);
                    }
                }
                Err(_) => LONGEST,
            };
            if !self.rest(wait, pending()).await {
                return;
            }
        }
    }

    /// Calls those whom something concerns that was done here.
    pub(super) async fn send_words(self: Arc<Self>) {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.wake.words().send(&self.store, &*self.cluster.peers) => {}
        }
    }
}
