//! T15: a worker that was cut off. It takes nothing new, asks once what it may go on with, stops the rest, and when
//! nothing is left begins anew under another id.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::select_ok;
use tasuki_core::exit::Stopped;
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{Error, NewWorker};

use super::super::within::within;
use super::{Worker, running_in};
use crate::node::coordination::peers::{Peer, Peers, Question};
use crate::node::leader::plan;
use crate::node::worker::carry::{Claim, Here};

/// How long a question may take beyond what the settings say: for the writes before and after it.
const SLACK: Duration = Duration::from_secs(1);

/// How far a worker is that was cut off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Apart {
    /// It has just heard of it.
    #[default]
    New,
    /// It asks whether it may go on with these.
    Asking {
        runs: Vec<(RunId, LeaseToken)>,
        /// Whom.
        peers: Vec<Peer>,
        /// How often it did.
        asked: u32,
    },
    /// It goes on with these, and stops whatever else it may have.
    Settled(BTreeSet<RunId>),
    /// Nothing is left: it becomes this one.
    Rejoining(WorkerId),
}

impl Worker {
    /// Somebody cut this worker off; or declared it dead, and then it may go on with nothing. Where it is somebody
    /// else by now, that is an old story.
    pub(super) fn part(&self, whom: WorkerId, dead: bool) {
        let mut state = self.state();
        if self.id() != whom {
            return;
        }
        if state.apart.is_none() {
            tracing::warn!(worker_id = %self.id(), dead, "this worker was cut off: it takes no new work");
            state.apart = Some(Apart::New);
        }
        if dead && !matches!(state.apart, Some(Apart::Rejoining(_))) {
            state.apart = Some(Apart::Settled(BTreeSet::new()));
        }
        drop(state);
        self.orders.notify_one();
        self.parted.notify_one();
    }

    /// Waits until it was cut off, or something of that is to be looked at again.
    pub(crate) async fn parted(&self) {
        self.parted.notified().await;
    }

    /// One step of a worker that was cut off. Returns when the next is due; `None`: it is not, or no longer.
    pub(crate) async fn step_apart(&self, peers: &dyn Peers) -> Result<Option<u64>, Error> {
        let Some(apart) = self.state().apart.clone() else { return Ok(None) };
        let settings = self.settings();
        let now = self.parts.clock.boottime();
        let pause = settings.continuation_retry_interval().as_micros() as u64;
        match apart {
            // What is being started is asked about, too, once it is known.
            Apart::New if self.is_unsure() => Ok(Some(now + pause)),
            Apart::New => {
                let runs = self.live();
                let next = match runs.is_empty() {
                    true => Apart::Settled(BTreeSet::new()),
                    false => {
                        // Before the marks: from then on time counts.
                        let peers = self.in_charge().await?;
                        self.mark(&runs).await?;
                        Apart::Asking { runs, peers, asked: 0 }
                    }
                };
                self.turn_to(&apart, next);
                Ok(Some(now))
            }
            Apart::Asking { ref runs, peers: ref asks, asked } => {
                let last = asked + 1 >= settings.continuation_retry_count();
                let rest = if last { SLACK / 2 } else { Duration::ZERO };
                let limit = settings.continuation_retry_interval() + rest;
                let may = self.ask_around(peers, asks, runs, limit).await;
                let next = match may {
                    Some(may) => Apart::Settled(self.go_on_with(runs, &may).await?),
                    None if !last => {
                        Apart::Asking { runs: runs.clone(), peers: asks.clone(), asked: asked + 1 }
                    }
                    None => {
                        tracing::warn!(worker_id = %self.id(), "nobody says that it may go on: what it runs is stopped");
                        Apart::Settled(BTreeSet::new())
                    }
                };
                let asks_again = matches!(next, Apart::Asking { .. });
                self.turn_to(&apart, next);
                Ok(Some(if asks_again { now + pause } else { now }))
            }
            Apart::Settled(may) => {
                self.stop_but(&may);
                // What landed late under the old name is taken up by the heartbeat, or lapses.
                let left = within(self.parts.store.carried_by(self.id())).await?;
                if !left.is_empty() || !self.is_idle() || self.is_draining() {
                    return Ok(Some(now + pause));
                }
                let new = WorkerId::from_random(self.parts.dice.roll());
                (self.parts.settle_in)(new);
                self.turn_to(&Apart::Settled(may), Apart::Rejoining(new));
                Ok(Some(now))
            }
            Apart::Rejoining(new) => {
                self.rejoin(new).await?;
                Ok(None)
            }
        }
    }

    /// Goes one step on, unless something has happened to it meanwhile.
    fn turn_to(&self, from: &Apart, to: Apart) {
        let mut state = self.state();
        if state.apart.as_ref() == Some(from) {
            state.apart = Some(to);
        }
    }

    /// Whether it is not known of something whether it runs.
    fn is_unsure(&self) -> bool {
        let state = self.state();
        state.leases.values().any(|lease| {
            lease.claim != Claim::Known
                || lease.runs.values().any(|here| matches!(here, Here::Starting | Here::Unsure))
        })
    }

    /// What runs here, and nobody stops.
    fn live(&self) -> Vec<(RunId, LeaseToken)> {
        let state = self.state();
        let all = state.leases.iter().flat_map(|(token, lease)| {
            let live = lease.runs.iter().filter(
                |(_, here)| matches!(here, Here::Running(running) if running.stopped.is_none()),
            );
            live.map(|(run, _)| (*run, *token))
        });
        all.collect()
    }

    /// Those who may say whether it goes on.
    async fn in_charge(&self) -> Result<Vec<Peer>, Error> {
        let store = &self.parts.store;
        let (leader, workers) = (within(store.leader()).await?, within(store.workers()).await?);
        let fresh = self.settings().heartbeat_ttl();
        let in_charge = plan::in_charge(&workers, &leader, self.id(), fresh).into_iter();
        Ok(in_charge
            .map(|worker| Peer { worker: worker.id, address: worker.address.clone() })
            .collect())
    }

    /// Marks what runs here as asked about: until the deadline nobody else takes it.
    async fn mark(&self, runs: &[(RunId, LeaseToken)]) -> Result<(), Error> {
        let settings = self.settings();
        let tries = settings.continuation_retry_count();
        let patience = settings.continuation_retry_interval() * tries + SLACK;
        // Lost: the next renewal tells what is to be done. Marked before an answer was lost: ask on.
        within(self.parts.store.confirm(runs, patience)).await.map(drop)
    }

    /// Asks all who may answer, once. `None`: nobody did in time.
    async fn ask_around(
        &self,
        peers: &dyn Peers,
        asks: &[Peer],
        runs: &[(RunId, LeaseToken)],
        limit: Duration,
    ) -> Option<Vec<RunId>> {
        if asks.is_empty() {
            return None;
        }
        let question = &Question { worker: self.id(), runs: runs.to_vec() };
        // All at once: those who do not answer must not use up the time of who does.
        let asked =
            asks.iter().map(|peer| Box::pin(async move { peers.confirm(peer, question).await }));
        // Who was cut off is often still not heard, and then nobody answers before the call's own deadline.
        match tokio::time::timeout(limit, select_ok(asked)).await {
            Ok(Ok((may, _))) => return Some(may),
            Ok(Err(silent)) => {
                tracing::debug!(worker_id = %self.id(), %silent, "whether it may go on was not told");
            }
            Err(_) => {
                tracing::debug!(worker_id = %self.id(), "nobody said in time whether it may go on");
            }
        }
        None
    }

    /// What it was told that it may go on with, and what the database agrees to.
    async fn go_on_with(
        &self,
        runs: &[(RunId, LeaseToken)],
        may: &[RunId],
    ) -> Result<BTreeSet<RunId>, Error> {
        let may: BTreeSet<&RunId> = may.iter().collect();
        let runs: Vec<_> = runs.iter().filter(|(run, _)| may.contains(run)).copied().collect();
        Ok(within(self.parts.store.confirmed(&runs)).await?.into_iter().collect())
    }

    /// Stops whatever it may not go on with.
    fn stop_but(&self, may: &BTreeSet<RunId>) {
        let mut state = self.state();
        for lease in state.leases.values_mut() {
            for running in running_in(lease) {
                // Once: a second word might be taken for "at once".
                if running.stopped.is_none() && !may.contains(&RunId(running.key.run)) {
                    self.stop(running, Stopped::Detach);
                }
            }
        }
    }

    /// Begins anew: nothing of what it was is left. Each part of it may be done again.
    async fn rejoin(&self, new: WorkerId) -> Result<(), Error> {
        let (old, store) = (self.id(), &self.parts.store);
        let before = within(store.worker(old)).await?;
        if before.is_some_and(|worker| worker.draining_at.is_some()) {
            self.drain();
        }
        if within(store.worker(new)).await?.is_none() {
            let (slots, function_slots) = {
                let state = self.state();
                (state.slots.commands, state.slots.functions())
            };
            let new =
                NewWorker { id: new, slots, function_slots, ..self.parts.registration.clone() };
            match within(store.register_worker(&new)).await {
                // It landed after all.
                Err(error) if error.is_conflict() => {}
                told => told?,
            }
        }
        within(store.worker_gone(old)).await?;
        let drains = {
            let mut state = self.state();
            if state.apart != Some(Apart::Rejoining(new)) {
                return Ok(());
            }
            self.me.becomes(new);
            state.apart = None;
            state.draining
        };
        tracing::info!(worker_id = %new, was = %old, "this worker begins anew");
        if drains {
            // Somebody stops it: the new one takes nothing either.
            within(store.drain_worker(new.to_string().as_str(), new)).await?;
        }
        self.look_now();
        self.parts.wake.all();
        Ok(())
    }
}
