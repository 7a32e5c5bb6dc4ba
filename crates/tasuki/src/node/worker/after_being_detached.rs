//! T15: the procedure of a detached worker. It takes no new runs, asks the leader which attempts it may continue, stops
//! the others, and registers again under a new id when nothing is left.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::select_ok;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{Error, NewWorker};

use super::super::store_timeout::with_timeout;
use super::{Worker, running_attempts};
use crate::node::coordination::node_rpc::{DetachedWorkerContinueRequest, Peer, Peers};
use crate::node::leader::decisions;
use crate::node::worker::lease_table::{ClaimStatus, LocalRunState};

/// Extra time for continuation requests beyond the settings, for the writes before and after them.
const CONFIRM_SLACK: Duration = Duration::from_secs(1);

/// How far the procedure of a detached worker is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum DetachState {
    /// The worker has just found out that it is detached.
    #[default]
    Detached,
    /// It asks whether it may continue its live attempts.
    Confirming {
        /// The runs of its live attempts, with their leases.
        runs: Vec<(RunId, LeaseToken)>,
        /// The leader and the nodes that may decide.
        peers: Vec<Peer>,
        /// Number of requests so far that got no answer.
        attempts: u32,
    },
    /// It continues these runs and stops all others.
    Settled(BTreeSet<RunId>),
    /// Nothing is left: it registers again under this id.
    Rejoining(WorkerId),
}

impl Worker {
    /// Starts the procedure after the worker was detached. If it was declared dead, it may continue nothing. Ignored if
    /// the worker has another id by now.
    pub(super) fn mark_detached(&self, worker: WorkerId, dead: bool) {
        let mut state = self.state();
        if self.id() != worker {
            return;
        }
        if state.detach.is_none() {
            tracing::warn!(worker_id = %self.id(), dead, "this worker was detached: it takes no new runs");
            state.detach = Some(DetachState::Detached);
        }
        if dead && !matches!(state.detach, Some(DetachState::Rejoining(_))) {
            state.detach = Some(DetachState::Settled(BTreeSet::new()));
        }
        drop(state);
        self.start_wakeup.notify_one();
        self.detach_wakeup.notify_one();
    }

    /// Waits until the procedure must go on: the worker was detached or declared dead.
    pub(crate) async fn wait_for_detach(&self) {
        self.detach_wakeup.notified().await;
    }

    /// Executes one step of the procedure. Returns when the next step is due, by the local clock; `None`: the worker is
    /// not detached.
    pub(crate) async fn step_detach_procedure(
        &self,
        peers: &dyn Peers,
    ) -> Result<Option<u64>, Error> {
        let Some(detach) = self.state().detach.clone() else { return Ok(None) };
        let settings = self.settings();
        let now = self.parts.clock.boottime();
        let retry_interval = settings.continuation_retry_interval().as_micros() as u64;
        match detach {
            // Wait for starts and claims without an answer, so that their runs are asked about, too.
            DetachState::Detached if self.has_unconfirmed() => Ok(Some(now + retry_interval)),
            DetachState::Detached => {
                let runs = self.live_runs();
                let next = match runs.is_empty() {
                    true => DetachState::Settled(BTreeSet::new()),
                    false => {
                        // Before `begin_confirming_after_detach`: its deadline begins to count there.
                        let peers = self.find_confirming_peers().await?;
                        self.begin_confirming_after_detach(&runs).await?;
                        DetachState::Confirming { runs, peers, attempts: 0 }
                    }
                };
                self.advance(&detach, next);
                Ok(Some(now))
            }
            DetachState::Confirming { ref runs, peers: ref confirming, attempts } => {
                let last = attempts + 1 >= settings.continuation_retry_count();
                let slack = if last { CONFIRM_SLACK / 2 } else { Duration::ZERO };
                let limit = settings.continuation_retry_interval() + slack;
                let confirmed = self.request_continuation(peers, confirming, runs, limit).await;
                let next = match confirmed {
                    Some(confirmed) => DetachState::Settled(
                        self.end_confirming_after_detach(runs, &confirmed).await?,
                    ),
                    None if !last => DetachState::Confirming {
                        runs: runs.clone(),
                        peers: confirming.clone(),
                        attempts: attempts + 1,
                    },
                    None => {
                        tracing::warn!(worker_id = %self.id(), "no continuation was confirmed: all attempts are stopped");
                        DetachState::Settled(BTreeSet::new())
                    }
                };
                let retries = matches!(next, DetachState::Confirming { .. });
                self.advance(&detach, next);
                Ok(Some(if retries { now + retry_interval } else { now }))
            }
            DetachState::Settled(confirmed) => {
                self.stop_except(&confirmed);
                // Claims of the old id that took effect late are adopted by the heartbeat, or their leases expire.
                let leased =
                    with_timeout(self.parts.store.list_leased_runs_of_worker(self.id())).await?;
                if !leased.is_empty() || !self.is_idle() || self.is_draining() {
                    return Ok(Some(now + retry_interval));
                }
                let new = WorkerId::from_random(self.parts.random.next_u128());
                (self.parts.prepare_incarnation)(new);
                self.advance(&DetachState::Settled(confirmed), DetachState::Rejoining(new));
                Ok(Some(now))
            }
            DetachState::Rejoining(new) => {
                self.rejoin(new).await?;
                Ok(None)
            }
        }
    }

    /// Moves to the next state, unless another task has changed the state meanwhile.
    fn advance(&self, from: &DetachState, to: DetachState) {
        let mut state = self.state();
        if state.detach.as_ref() == Some(from) {
            state.detach = Some(to);
        }
    }

    /// Whether a start or a claim has no answer yet, so that the worker does not know whether a run is RUNNING.
    fn has_unconfirmed(&self) -> bool {
        let state = self.state();
        state.leases.values().any(|lease| {
            lease.claim != ClaimStatus::Answered
                || lease.runs.values().any(|status| {
                    matches!(status, LocalRunState::Starting | LocalRunState::Unconfirmed)
                })
        })
    }

    /// Runs of the attempts that are running and not being stopped, with their leases.
    fn live_runs(&self) -> Vec<(RunId, LeaseToken)> {
        let state = self.state();
        let all = state.leases.iter().flat_map(|(token, lease)| {
            let live = lease.runs.iter().filter(
                |(_, status)| matches!(status, LocalRunState::Running(running) if running.stop_reason.is_none()),
            );
            live.map(|(run, _)| (*run, *token))
        });
        all.collect()
    }

    /// Finds the nodes that may confirm a continuation.
    async fn find_confirming_peers(&self) -> Result<Vec<Peer>, Error> {
        let store = &self.parts.store;
        let (leader, workers) = (
            with_timeout(store.get_leader_record()).await?,
            with_timeout(store.list_workers()).await?,
        );
        let ttl = self.settings().heartbeat_ttl();
        let confirming =
            decisions::workers_to_ask_after_own_detach(&workers, &leader, self.id(), ttl)
                .into_iter();
        Ok(confirming
            .map(|worker| Peer { worker: worker.id, address: worker.address.clone() })
            .collect())
    }

    /// Marks the runs as CONFIRMING: until the deadline no other worker gets them.
    async fn begin_confirming_after_detach(
        &self,
        runs: &[(RunId, LeaseToken)],
    ) -> Result<(), Error> {
        let settings = self.settings();
        let attempts = settings.continuation_retry_count();
        let ttl = settings.continuation_retry_interval() * attempts + CONFIRM_SLACK;
        // Ignore the outcome: after a lost guard the next renewal shows what to do, and if only the answer was lost,
        // the marks are there.
        with_timeout(self.parts.store.begin_confirming_after_detach(runs, ttl)).await.map(drop)
    }

    /// Asks all confirming nodes at the same time. Returns the runs that may go on; `None`: no answer in time.
    async fn request_continuation(
        &self,
        peers: &dyn Peers,
        confirming: &[Peer],
        runs: &[(RunId, LeaseToken)],
        limit: Duration,
    ) -> Option<Vec<RunId>> {
        if confirming.is_empty() {
            return None;
        }
        let request = &DetachedWorkerContinueRequest { worker: self.id(), runs: runs.to_vec() };
        // All at the same time: a node that does not answer must not use up the time of the others.
        let attempts = confirming
            .iter()
            .map(|peer| Box::pin(async move { peers.confirm(peer, request).await }));
        // A detached worker is often still unreachable, and then no call returns before its own deadline.
        match tokio::time::timeout(limit, select_ok(attempts)).await {
            Ok(Ok((confirmed, _))) => return Some(confirmed),
            Ok(Err(error)) => {
                tracing::debug!(worker_id = %self.id(), %error, "continuation request failed");
            }
            Err(_) => {
                tracing::debug!(worker_id = %self.id(), "continuation request timed out");
            }
        }
        None
    }

    /// Ends the CONFIRMING mark of the runs in `confirmed`. Returns those that the database still lets this worker
    /// continue.
    async fn end_confirming_after_detach(
        &self,
        runs: &[(RunId, LeaseToken)],
        confirmed: &[RunId],
    ) -> Result<BTreeSet<RunId>, Error> {
        let confirmed: BTreeSet<&RunId> = confirmed.iter().collect();
        let runs: Vec<_> =
            runs.iter().filter(|(run, _)| confirmed.contains(run)).copied().collect();
        Ok(with_timeout(self.parts.store.end_confirming_after_detach(&runs))
            .await?
            .into_iter()
            .collect())
    }

    /// Stops all attempts except those of the confirmed runs.
    fn stop_except(&self, confirmed: &BTreeSet<RunId>) {
        let mut state = self.state();
        for lease in state.leases.values_mut() {
            for running in running_attempts(lease) {
                // Only once: a second stop could shorten the grace of the first one.
                if running.stop_reason.is_none() && !confirmed.contains(&RunId(running.key.run)) {
                    self.stop(running, AttemptStopReason::Detach);
                }
            }
        }
    }

    /// Registers the worker under a new id, once nothing of the old one is left. Every step may be repeated.
    async fn rejoin(&self, new: WorkerId) -> Result<(), Error> {
        let (old, store) = (self.id(), &self.parts.store);
        let before = with_timeout(store.find_worker(old)).await?;
        if before.is_some_and(|worker| worker.draining_at.is_some()) {
            self.drain();
        }
        if with_timeout(store.find_worker(new)).await?.is_none() {
            let (slots, function_slots) = {
                let state = self.state();
                (state.slots.commands, state.slots.function_total())
            };
            let new =
                NewWorker { id: new, slots, function_slots, ..self.parts.registration.clone() };
            match with_timeout(store.register_worker(&new)).await {
                // An earlier registration took effect although its answer was lost.
                Err(error) if error.is_duplicate_key() => {}
                registered => registered?,
            }
        }
        with_timeout(store.mark_worker_gone(old)).await?;
        let draining = {
            let mut state = self.state();
            if state.detach != Some(DetachState::Rejoining(new)) {
                return Ok(());
            }
            self.identity.replace(new);
            state.detach = None;
            state.draining
        };
        tracing::info!(worker_id = %new, previous_worker_id = %old, "this worker has registered again under a new id");
        if draining {
            // The node is stopping: the new worker takes no new runs either.
            with_timeout(store.drain_worker(new.to_string().as_str(), new)).await?;
        }
        self.request_heartbeat();
        self.parts.wakeups.wake_all();
        Ok(())
    }
}
