//! The others: workers that fell silent are detached, and a leader that fell silent is deposed.
//!
//! Both are told apart from a database that is slow or was away by looking for a while: what counts is for how long
//! this worker, whose own looks succeeded, has seen nothing of the other.

use std::time::Duration;

use futures_util::future::join_all;
use tasuki_core::{Epoch, NodeName, Settings, WorkerId};
use tasuki_store::{Writer, Error};

use super::super::within::within;
use super::{Leader, PAGE, PAGES};
use crate::node::coordination::coordinate::Wanted;
use crate::node::coordination::peers::{PING, Peer};
use crate::node::leader::plan;

/// However soon somebody may fall silent, workers are looked after so many times between two heartbeats at most: where there
/// are many, somebody always may.
const LOOKS: u32 = 4;
/// How often a silent leader is called before it is deposed.
const CALLS: usize = 3;
/// For how long nobody has heard of a worker that is forgotten: long enough for people to ask what became of it.
const FORGET_AFTER: Duration = Duration::from_hours(7 * 24);

impl Leader {
    /// The leader looks after workers whose heartbeats stopped. Those who do not answer either, and for long
    /// enough, are detached: what they have not started goes elsewhere. Returns when to look again: what waits for
    /// a worker that is lost waits for this.
    pub(crate) async fn look_after(&self, settings: &Settings) -> Result<Duration, Error> {
        let usual = settings.heartbeat_interval();
        let Some(epoch) = self.term() else {
            self.state().silent.clear();
            return Ok(usual);
        };
        let (workers, clock) = within(self.store.workers_now()).await?;
        let (me, ttl) = (self.me.id(), settings.heartbeat_ttl());
        let silent: Vec<Peer> = plan::silent(&workers, me, clock, ttl)
            .map(|worker| Peer { worker: worker.id, address: worker.address.clone() })
            .collect();
        let asked = self.clock.boottime();
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
        let soonest = plan::first_silence(&workers, me, clock, ttl).unwrap_or(usual);
        let (over, next): (Vec<WorkerId>, Duration) = {
            let mut state = self.state();
            // What counts is a silence that was listened to.
            let gap = 3 * settings.heartbeat_interval().as_micros() as u64;
            if state.looked_at.is_none_or(|at| now > at + gap) {
                state.silent.clear();
            }
            state.looked_at = Some(now);
            state.silent.retain(|worker, _| unheard.contains(worker));
            // It is silent from when it was first asked; that it did not answer is known only later.
            for &worker in &unheard {
                state.silent.entry(worker).or_insert(asked);
            }
            let over = |since: &u64| now >= since + grace;
            let rest = state.silent.values().filter(|since| !over(since));
            let rest = rest.map(|since| Duration::from_micros(since + grace - now)).min();
            // Asked so early that all have had their time to answer when the grace is over.
            let rest = rest.map(|rest| if rest > PING { rest - PING } else { rest });
            let long = state.silent.iter().filter(|(_, since)| over(since));
            (long.map(|(worker, _)| *worker).collect(), rest.unwrap_or(usual))
        };
        for worker in over {
            self.cut_off(epoch, worker, settings).await?;
        }
        Ok(usual.min(soonest.max(usual / LOOKS)).min(next))
    }

    /// The rows of workers go that nobody has heard of for long. Whether that was for this one to do: a leader does it.
    pub(crate) async fn forget_workers(&self) -> Result<bool, Error> {
        let mut count = 0;
        for _ in 0..PAGES {
            let Some(epoch) = self.term() else { return Ok(false) };
            let asked = self.store.forget_workers(epoch, FORGET_AFTER, self.me.id(), PAGE);
            let Some(forgotten) = self.unless_fenced(within(asked).await)? else {
                return Ok(false);
            };
            count += forgotten.deleted;
            if !forgotten.more {
                break;
            }
        }
        if count > 0 {
            tracing::info!(count, "workers that nobody has heard of for a week were forgotten");
        }
        Ok(true)
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
        let by = Writer::Leader(epoch);
        let cut = within(self.store.detach_worker(by, me.as_str(), worker, reason)).await;
        if self.unless_fenced(cut)? == Some(true) {
            tracing::warn!(worker_id = %worker, %epoch, "a silent worker was detached");
            let _ = self.coordinator.detach(worker, settings.lease_ttl()).await;
            self.wake.recovery();
        }
        Ok(())
    }

    /// Somebody who does not lead looks after the leader, if it is the one of its node to do so. Whether the lead
    /// is to be taken now. While all is well this costs the database nothing, or little.
    pub(crate) async fn watch(&self, node: &NodeName, settings: &Settings) -> Result<bool, Error> {
        if self.term().is_some() {
            self.state().watches = false;
            return Ok(false);
        }
        let seen = match self.watches(node, settings).await? {
            true => self.coordinator.leader_seen().await.ok().flatten(),
            false => None,
        };
        let Some(seen) = seen.filter(|seen| seen.ago > settings.leader_stale()) else {
            self.state().suspect = None;
            return Ok(false);
        };
        let lead = within(self.store.leader()).await?;
        // One whose lease has lapsed is nobody's leader any more; and who was seen in another term is another.
        if lead.lease_until <= lead.clock || seen.epoch != lead.epoch {
            self.state().suspect = None;
            return Ok(false);
        }
        let now = self.clock.boottime();
        let since = {
            let mut state = self.state();
            let before = state.suspect.filter(|(epoch, _)| *epoch == lead.epoch);
            state.suspect.insert(before.unwrap_or((lead.epoch, now))).1
        };
        let workers = within(self.store.workers()).await?;
        let holder = lead.holder.and_then(|id| workers.iter().find(|worker| worker.id == id));
        // What is wrong with the leader may be wrong with its neighbours.
        let beside = holder.is_some_and(|holder| holder.node == *node);
        let patience = match beside && plan::others_watch(&workers, &lead, settings.heartbeat_ttl())
        {
            true => settings.leader_stale(),
            false => Duration::ZERO,
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
        let me = self.me.id();
        if !within(self.store.depose(me.to_string().as_str(), lead.epoch)).await? {
            return Ok(false);
        }
        tracing::warn!(worker_id = %me, epoch = %lead.epoch, "a silent leader was deposed");
        if let Some(holder) = lead.holder {
            let _ = self.coordinator.degrade(holder, lead.epoch).await;
            // Its lock would keep everybody from standing.
            let _ = self.coordinator.resigns(holder).await;
        }
        Ok(true)
    }

    /// Whether this worker is the one of its node to look after the leader.
    async fn watches(&self, node: &NodeName, settings: &Settings) -> Result<bool, Error> {
        let me = self.me.id();
        let asked = self.coordinator.watch(me, node, settings.subleader_check() * 3).await;
        if let Ok(Some(watches)) = asked {
            let mut state = self.state();
            (state.watches, state.decided_at) = (watches, None);
            return Ok(watches);
        }
        // Not decided there, or nobody is there: by the tables, which need not be read each time.
        let fresh = settings.heartbeat_ttl();
        let now = self.clock.boottime();
        {
            let state = self.state();
            if state.decided_at.is_some_and(|at| now < at + fresh.as_micros() as u64) {
                return Ok(state.watches);
            }
        }
        let lead = within(self.store.leader()).await?;
        let workers = within(self.store.workers()).await?;
        let mut state = self.state();
        state.watches = plan::watches(&workers, &lead, me, fresh);
        state.decided_at = Some(now);
        Ok(state.watches)
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
