//! The others: workers that fell silent are detached, and a leader that fell silent is deposed.
//!
//! Both are told apart from a database that is slow or was away by looking for a while: what counts is for how long
//! this worker, whose own looks succeeded, has seen nothing of the other.

use futures_util::future::join_all;
use tasuki_core::{Epoch, NodeName, Settings, WorkerId};
use tasuki_store::{Author, Error, Leader as Lead};

use super::super::coordinate::Wanted;
use super::super::peers::Peer;
use super::super::plan;
use super::super::within::within;
use super::Leader;

/// How often a silent leader is called before it is deposed.
const CALLS: usize = 3;

impl Leader {
    /// The leader looks after workers whose heartbeats stopped. Those who do not answer either, and for long
    /// enough, are detached: what they have not started goes elsewhere.
    pub(crate) async fn look_after(&self, settings: &Settings) -> Result<(), Error> {
        let Some(epoch) = self.term() else {
            self.state().silent.clear();
            return Ok(());
        };
        let (workers, clock) =
            (within(self.store.workers()).await?, within(self.store.clock()).await?);
        let me = self.me.id();
        let silent: Vec<Peer> = plan::silent(&workers, me, clock, settings.heartbeat_ttl())
            .map(|worker| Peer { worker: worker.id, address: worker.address.clone() })
            .collect();
        let calls = silent.iter().map(|peer| self.peers.ping(peer));
        let answers = join_all(calls).await;
        let now = self.clock.boottime();
        let unheard: Vec<WorkerId> = silent
            .iter()
            .zip(answers)
            // Who answers is there, whatever keeps it from the database; a successor is somebody else.
            .filter(|(peer, answer)| answer.as_ref().ok() != Some(&peer.worker))
            .map(|(peer, _)| peer.worker)
            .collect();
        let grace = settings.worker_detach_grace().as_micros() as u64;
        let over: Vec<WorkerId> = {
            let mut state = self.state();
            state.silent.retain(|worker, _| unheard.contains(worker));
            let since =
                unheard.iter().map(|&worker| (worker, *state.silent.entry(worker).or_insert(now)));
            since.filter(|(_, since)| now >= since + grace).map(|(worker, _)| worker).collect()
        };
        for worker in over {
            self.cut_off(epoch, worker, settings).await?;
        }
        Ok(())
    }

    async fn cut_off(
        &self,
        epoch: Epoch,
        worker: WorkerId,
        settings: &Settings,
    ) -> Result<(), Error> {
        if self.term() != Some(epoch) {
            return Ok(());
        }
        let me = self.me.id().to_string();
        let reason = "no heartbeat, and no answer when it was called";
        let by = Author::Leader(epoch);
        let cut = within(self.store.detach_worker(by, me.as_str(), worker, reason)).await;
        if self.unless_fenced(cut)? == Some(true) {
            tracing::warn!(worker_id = %worker, %epoch, "a silent worker was detached");
            let _ = self.coordinator.detach(worker, settings.lease_ttl()).await;
            self.wake.recovery();
        }
        Ok(())
    }

    /// Somebody who does not lead looks after the leader, if it is the one of its node to do so. Whether the lead
    /// is to be taken now.
    pub(crate) async fn watch(&self, node: &NodeName, settings: &Settings) -> Result<bool, Error> {
        let me = self.me.id();
        if self.term().is_some() {
            self.state().watches = false;
            return Ok(false);
        }
        let lead = within(self.store.leader()).await?;
        let workers = within(self.store.workers()).await?;
        let fresh = settings.heartbeat_ttl();
        let asked = self.coordinator.watch(me, node, settings.subleader_check() * 3).await;
        let watches = match asked {
            Ok(Some(watches)) => watches,
            // Not decided there, or nobody is there: by the tables, then.
            Ok(None) | Err(_) => plan::watches(&workers, &lead, me, fresh),
        };
        self.state().watches = watches;
        let silent = watches && self.is_silent(&lead, settings).await;
        let now = self.clock.boottime();
        let since = {
            let mut state = self.state();
            let before = state.suspect.filter(|(epoch, _)| *epoch == lead.epoch);
            state.suspect = silent.then(|| before.unwrap_or((lead.epoch, now)));
            state.suspect.map(|(_, since)| since)
        };
        let Some(since) = since else { return Ok(false) };
        let holder = lead.holder.and_then(|id| workers.iter().find(|worker| worker.id == id));
        // What is wrong with the leader may be wrong with its neighbours.
        let beside = holder.is_some_and(|holder| holder.node == *node);
        let patience = match beside && plan::others_watch(&workers, &lead, fresh) {
            true => settings.leader_stale(),
            false => std::time::Duration::ZERO,
        };
        if now < since + patience.as_micros() as u64 {
            return Ok(false);
        }
        if let Some(holder) = holder {
            let peer = Peer { worker: holder.id, address: holder.address.clone() };
            for _ in 0..CALLS {
                if self.peers.ping(&peer).await == Ok(holder.id) {
                    self.state().suspect = None;
                    return Ok(false);
                }
            }
        }
        let by = me.to_string();
        if !within(self.store.depose(by.as_str(), lead.epoch)).await? {
            return Ok(false);
        }
        tracing::warn!(worker_id = %me, epoch = %lead.epoch, "a silent leader was deposed");
        if let Some(holder) = lead.holder {
            let _ = self.coordinator.degrade(holder, lead.epoch).await;
        }
        Ok(true)
    }

    /// Whether the leader's lease stands, and yet nothing was seen of it for too long where leaders are seen.
    async fn is_silent(&self, lead: &Lead, settings: &Settings) -> bool {
        if lead.lease_until <= lead.clock {
            return false;
        }
        let seen = self.coordinator.leader_seen().await;
        matches!(seen, Ok(Some(seen)) if seen.ago > settings.leader_stale() && seen.epoch <= lead.epoch)
    }

    /// What others want of this worker. `true`: its term may be over, and is to be renewed now to learn whether.
    pub(crate) fn wanted(&self, wanted: Wanted) -> bool {
        let mut state = self.state();
        let Some(term) = state.term.as_mut() else { return false };
        let named = wanted.degrade == Some(term.epoch);
        if named {
            term.renew_at = 0;
        }
        named
    }
}
