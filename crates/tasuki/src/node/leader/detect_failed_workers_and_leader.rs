//! Failure detector: the leader detaches unresponsive workers, and subleaders end the term of an unresponsive leader.
//!
//! A slow or unavailable database also stops heartbeats. To tell the difference, the detector counts only the time in
//! which its own reads succeeded and the other worker still gave no sign of life.

use std::time::Duration;

use futures_util::future::join_all;
use tasuki_core::{Epoch, NodeName, Settings, WorkerId};
use tasuki_store::{Error, Writer};

use super::super::store_timeout::with_timeout;
use super::{Leader, MAX_PAGES, PAGE_SIZE};
use crate::node::coordination::coordinator_trait::WorkerMarks;
use crate::node::coordination::node_rpc::{PING_TIMEOUT, Peer};
use crate::node::leader::decisions;

/// Maximum number of worker checks per heartbeat interval. The next check is due when the next heartbeat could become
/// too old; with many workers that would be all the time.
const CHECKS_PER_HEARTBEAT: u32 = 4;
/// Number of pings to an unresponsive leader before its term is ended.
const LEADER_PINGS: usize = 3;
/// Age of the last heartbeat at which the row of a worker is deleted: long enough for people to inspect it.
const PRUNE_AFTER: Duration = Duration::from_hours(7 * 24);

impl Leader {
    /// Checks workers whose heartbeats stopped, if this worker is leader. Workers that answer no ping for the grace time
    /// either are detached, and their unstarted runs are assigned to other workers. Returns the time until the next
    /// check, which is short when a worker could be detached soon, because its runs wait for that.
    pub(crate) async fn detach_unresponsive_workers(
        &self,
        settings: &Settings,
    ) -> Result<Duration, Error> {
        let usual = settings.heartbeat_interval();
        let Some(epoch) = self.active_epoch() else {
            self.state().unresponsive_since.clear();
            return Ok(usual);
        };
        let (workers, clock) = with_timeout(self.store.list_workers_with_clock()).await?;
        let (me, ttl) = (self.identity.id(), settings.heartbeat_ttl());
        let suspects: Vec<Peer> = decisions::unresponsive_workers(&workers, me, clock, ttl)
            .map(|worker| Peer { worker: worker.id, address: worker.address.clone() })
            .collect();
        let pinged_at = self.clock.boottime();
        let calls = suspects.iter().map(|peer| self.peers.ping(peer));
        let responses = join_all(calls).await;
        let now = self.clock.boottime();
        let unresponsive: Vec<WorkerId> = suspects
            .iter()
            .zip(responses)
            // A worker that answers is alive, even if it cannot reach the database. A successor at the same address has
            // another id and does not count.
            .filter(|(peer, response)| response.as_ref().ok() != Some(&peer.worker))
            .map(|(peer, _)| peer.worker)
            .collect();
        let grace = settings.worker_detach_grace().as_micros() as u64;
        let next_miss =
            decisions::time_to_next_missed_heartbeat(&workers, me, clock, ttl).unwrap_or(usual);
        let (expired, next): (Vec<WorkerId>, Duration) = {
            let mut state = self.state();
            // Time without checks does not count: this worker may have been stopped itself.
            let max_gap = 3 * settings.heartbeat_interval().as_micros() as u64;
            if state.workers_checked_at.is_none_or(|at| now > at + max_gap) {
                state.unresponsive_since.clear();
            }
            state.workers_checked_at = Some(now);
            state.unresponsive_since.retain(|worker, _| unresponsive.contains(worker));
            // Count from the ping and not from its timeout.
            for &worker in &unresponsive {
                state.unresponsive_since.entry(worker).or_insert(pinged_at);
            }
            let expired = |since: &u64| now >= since + grace;
            let remaining = state.unresponsive_since.values().filter(|since| !expired(since));
            let remaining = remaining.map(|since| Duration::from_micros(since + grace - now)).min();
            // Ping early enough that the ping's timeout has passed when the grace time ends.
            let remaining = remaining.map(|remaining| {
                if remaining > PING_TIMEOUT { remaining - PING_TIMEOUT } else { remaining }
            });
            let overdue = state.unresponsive_since.iter().filter(|(_, since)| expired(since));
            (overdue.map(|(worker, _)| *worker).collect(), remaining.unwrap_or(usual))
        };
        for worker in expired {
            self.detach_worker(epoch, worker, settings).await?;
        }
        Ok(usual.min(next_miss.max(usual / CHECKS_PER_HEARTBEAT)).min(next))
    }

    /// Deletes rows of workers without a heartbeat for [`PRUNE_AFTER`]. `false`: this worker is not leader.
    pub(crate) async fn prune_workers(&self) -> Result<bool, Error> {
        let mut count = 0;
        for _ in 0..MAX_PAGES {
            let Some(epoch) = self.active_epoch() else { return Ok(false) };
            let prune = self.store.prune_workers(epoch, PRUNE_AFTER, self.identity.id(), PAGE_SIZE);
            let Some(pruned) = self.end_term_if_fenced(with_timeout(prune).await)? else {
                return Ok(false);
            };
            count += pruned.deleted;
            if !pruned.has_more {
                break;
            }
        }
        if count > 0 {
            tracing::info!(count, "deleted the rows of workers without a heartbeat for a week");
        }
        Ok(true)
    }

    async fn detach_worker(
        &self,
        epoch: Epoch,
        worker: WorkerId,
        settings: &Settings,
    ) -> Result<(), Error> {
        if self.active_epoch() != Some(epoch) {
            return Ok(());
        }
        let me = self.identity.id().to_string();
        let reason = "no heartbeat and no response to pings";
        let writer = Writer::Leader(epoch);
        let detached =
            with_timeout(self.store.detach_worker(writer, me.as_str(), worker, reason)).await;
        if self.end_term_if_fenced(detached)? == Some(true) {
            tracing::warn!(worker_id = %worker, %epoch, "an unresponsive worker was detached");
            let _ = self.coordinator.mark_detached(worker, settings.lease_ttl()).await;
            self.wakeups.wake_recovery();
        }
        Ok(())
    }

    /// Checks on the leader, if this worker is the subleader of its node. Ends the term of an unresponsive leader and
    /// returns `true`: the leadership can be taken now. With a healthy leader this needs few or no database queries.
    pub(crate) async fn end_term_of_unresponsive_leader(
        &self,
        node: &NodeName,
        settings: &Settings,
    ) -> Result<bool, Error> {
        if self.active_epoch().is_some() {
            self.state().is_subleader = false;
            return Ok(false);
        }
        let seen = match self.refresh_subleader(node, settings).await? {
            true => self.coordinator.find_leader().await.ok().flatten(),
            false => None,
        };
        let Some(seen) = seen.filter(|seen| seen.age > settings.leader_stale()) else {
            self.state().stale_leader = None;
            return Ok(false);
        };
        let leadership = with_timeout(self.store.get_leader_record()).await?;
        // If the lease has expired there is no leader to check. If the published leader is of another term, its age says
        // nothing about the current leader.
        if leadership.lease_until <= leadership.clock || seen.epoch != leadership.epoch {
            self.state().stale_leader = None;
            return Ok(false);
        }
        let now = self.clock.boottime();
        let since = {
            let mut state = self.state();
            let known = state.stale_leader.filter(|(epoch, _)| *epoch == leadership.epoch);
            state.stale_leader.insert(known.unwrap_or((leadership.epoch, now))).1
        };
        let workers = with_timeout(self.store.list_workers()).await?;
        let holder = leadership.holder.and_then(|id| workers.iter().find(|worker| worker.id == id));
        // A fault of the leader's host may affect this worker too, so workers of other nodes act first.
        let same_node = holder.is_some_and(|holder| holder.node == *node);
        let grace = match same_node
            && decisions::other_node_can_lead(&workers, &leadership, settings.heartbeat_ttl())
        {
            true => settings.leader_stale(),
            false => Duration::ZERO,
        };
        if now < since + grace.as_micros() as u64 {
            return Ok(false);
        }
        if let Some(holder) = holder {
            let peer = Peer { worker: holder.id, address: holder.address.clone() };
            for _ in 0..LEADER_PINGS {
                if self.peers.ping(&peer).await == Ok(holder.id) {
                    self.state().stale_leader = None;
                    return Ok(false);
                }
            }
        }
        let me = self.identity.id();
        if !with_timeout(self.store.end_term(me.to_string().as_str(), leadership.epoch)).await? {
            return Ok(false);
        }
        tracing::warn!(worker_id = %me, epoch = %leadership.epoch, "ended the term of an unresponsive leader");
        if let Some(holder) = leadership.holder {
            let _ = self.coordinator.mark_term_ended(holder, leadership.epoch).await;
            // Its election lock would prevent the others from becoming leader.
            let _ = self.coordinator.remove_leader(holder).await;
        }
        Ok(true)
    }

    /// Decides whether this worker is the subleader of its node, by the coordinator or else by the database.
    async fn refresh_subleader(&self, node: &NodeName, settings: &Settings) -> Result<bool, Error> {
        let me = self.identity.id();
        let acquired =
            self.coordinator.acquire_subleader(me, node, settings.subleader_check() * 3).await;
        if let Ok(Some(is_subleader)) = acquired {
            let mut state = self.state();
            (state.is_subleader, state.subleader_checked_at) = (is_subleader, None);
            return Ok(is_subleader);
        }
        // The coordinator does not decide or cannot be reached: decide by the worker rows, and keep the decision for a
        // while so that they are not read each time.
        let max_age = settings.heartbeat_ttl();
        let now = self.clock.boottime();
        {
            let state = self.state();
            if state.subleader_checked_at.is_some_and(|at| now < at + max_age.as_micros() as u64) {
                return Ok(state.is_subleader);
            }
        }
        let leadership = with_timeout(self.store.get_leader_record()).await?;
        let workers = with_timeout(self.store.list_workers()).await?;
        let mut state = self.state();
        state.is_subleader = decisions::is_subleader(&workers, &leadership, me, max_age);
        state.subleader_checked_at = Some(now);
        Ok(state.is_subleader)
    }

    /// Reacts to the marks that others set for this worker. `true`: the term may have been ended; renewing it now finds
    /// out.
    pub(crate) fn apply_worker_marks(&self, reply: WorkerMarks) -> bool {
        let mut state = self.state();
        let Some(term) = state.term.as_mut() else { return false };
        let ended = reply.ended_term == Some(term.epoch);
        if ended {
            term.renew_at = 0;
        }
        ended
    }
}
