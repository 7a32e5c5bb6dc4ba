//! The leader: creates runs for slots and events, assigns them to workers, expires and skips runs, and recovers lost
//! runs.
//!
//! It acts only while its leader lease is valid by its own clock, and every write is fenced by its epoch: a write of an
//! old leader changes nothing.

mod assign;
pub(crate) mod decisions;
mod detect_failed_workers_and_leader;
mod event_runs;
mod expire_and_skip_waiting_runs;
pub(crate) mod job_scope_providers;
mod plan_upcoming_runs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Epoch, JobId, RunId, Settings, WorkerId};
use tasuki_store::{Error, Notification, Store};
use tokio::sync::Notify;

use super::clock_and_random::{Clock, Random};
use super::store_timeout::with_timeout;
use crate::Wakeups;
use crate::node::coordination::coordinator_trait::{ClusterRole, Coordinator};
use crate::node::coordination::node_rpc::{OrderResponse, Peer, Peers, StartOrder};
use crate::node::job_version_cache::JobVersionCache;
use crate::node::worker_ids_of_process::WorkerIdentity;
use crate::wakeups_and_hints::wakeup_notifier::Notifier;
use plan_upcoming_runs::ScheduledJob;

/// Maximum number of rows that one query of the leader reads.
const PAGE_SIZE: u32 = 500;
/// Maximum number of rows in the first query of a tick. Mostly only a few runs find a free slot, however many wait.
const FIRST_PAGE_SIZE: u32 = 64;
/// Maximum number of pages that one tick reads. The next tick, which comes soon, continues.
const MAX_PAGES: usize = 20;
/// Position before the first due row.
const START_POSITION: (Timestamp, RunId) = (Timestamp::UNIX_EPOCH, RunId(0));

/// A term of this leader. Instants are of the boottime clock, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Term {
    epoch: Epoch,
    /// Instant at which to renew the leader lease.
    renew_at: u64,
    /// Instant until which this leader may act: the end of the lease less a safety margin.
    trusted_until: u64,
}

/// A worker in its role as leader, or as a candidate that can become leader.
pub struct Leader {
    identity: WorkerIdentity,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    wakeups: Wakeups,
    notifier: Notifier,
    job_cache: JobVersionCache,
    state: Mutex<LeaderState>,
    /// Start orders for runs that are assigned but whose workers are not informed yet.
    unsent_orders: Mutex<Vec<(Peer, StartOrder)>>,
    order_added: Notify,
}

#[derive(Default)]
struct LeaderState {
    term: Option<Term>,
    /// Position in each lane at which expiring and skipping continues.
    positions: HashMap<String, (Timestamp, RunId)>,
    /// Instant of the last pass over all lanes.
    full_pass_at: Option<u64>,
    /// Whether this worker is the subleader of its node: it checks on the leader.
    is_subleader: bool,
    /// Instant at which `is_subleader` was last decided from the database; `None`: the coordinator decided it.
    subleader_checked_at: Option<u64>,
    /// Workers without a heartbeat that answer no ping, each with the instant of the first failed ping.
    unresponsive_since: HashMap<WorkerId, u64>,
    /// Epoch of a leader that was not seen for too long, and the instant at which this worker noticed.
    stale_leader: Option<(Epoch, u64)>,
    /// Instant of the last check of the workers.
    workers_checked_at: Option<u64>,
    /// Instant since which this worker has seen no leader.
    vacant_since: Option<u64>,
    /// Instant before which this worker does not try to become leader: it lost the leadership or could not take it, so
    /// other workers go first.
    election_backoff_until: u64,
    /// This worker lost the leadership, and the coordinator is not informed yet.
    resignation_unsent: bool,
    /// Cache of jobs with a schedule.
    scheduled_jobs: HashMap<JobId, Arc<ScheduledJob>>,
}

impl Leader {
    pub(crate) fn new(
        identity: WorkerIdentity,
        store: Store,
        coordinator: Arc<dyn Coordinator>,
        peers: Arc<dyn Peers>,
        clock_and_random: (Arc<dyn Clock>, Arc<dyn Random>),
        wakeups: Wakeups,
    ) -> Self {
        let (clock, random) = clock_and_random;
        // Until it is decided who is the subleader, every worker acts as one.
        let state = Mutex::new(LeaderState { is_subleader: true, ..LeaderState::default() });
        let job_cache = JobVersionCache::default();
        let notifier = Notifier::new(&store, wakeups.clone());
        let (unsent_orders, order_added) = (Mutex::default(), Notify::new());
        Self {
            identity,
            store,
            coordinator,
            peers,
            clock,
            random,
            wakeups,
            notifier,
            job_cache,
            state,
            unsent_orders,
            order_added,
        }
    }

    /// Renews the leadership, or takes it if there is no leader. Returns whether this worker is leader.
    pub(crate) async fn elect_or_renew(&self, settings: &Settings) -> Result<bool, Error> {
        let now = self.clock.boottime();
        self.send_resignation().await;
        let term = self.state().term;
        if let Some(term) = term {
            self.state().vacant_since = None;
            if now < term.renew_at {
                return Ok(self.active_epoch().is_some());
            }
            return self.renew(term.epoch, settings).await;
        }
        let leadership = with_timeout(self.store.get_leader_record()).await?;
        if leadership.lease_until > leadership.clock {
            self.state().vacant_since = None;
            return match leadership.holder == Some(self.identity.id()) {
                // This worker took the leadership earlier, and the response of the database was lost.
                true => self.renew(leadership.epoch, settings).await,
                false => Ok(false),
            };
        }
        // Subleaders may take an expired leadership first, other workers a little later. After a resignation, or if the
        // lease expired long ago, every worker may.
        let grace = to_signed(settings.subleader_check());
        let vacant_micros = {
            let mut state = self.state();
            let since = *state.vacant_since.get_or_insert(now);
            let early = leadership.clock.duration_since(leadership.lease_until) < grace;
            // Without backoff if this worker's own lease merely expired; not if its term was ended by another.
            let ran_out = leadership.holder == Some(self.identity.id())
                && leadership.lease_until > Timestamp::UNIX_EPOCH;
            if (now < state.election_backoff_until && !ran_out) || (early && !state.is_subleader) {
                return Ok(false);
            }
            now.saturating_sub(since)
        };
        let known_epoch = match self
            .coordinator
            .acquire_election_lock(self.identity.id(), settings.leader_ttl())
            .await
        {
            Ok(Some(known_epoch)) => known_epoch,
            // The lock's holder has not become leader for so long that it probably cannot. Trying without the lock is
            // safe: the guarded write lets only one worker succeed.
            Ok(None) if vacant_micros > settings.leader_ttl().as_micros() as u64 => Epoch(0),
            Ok(None) => return Ok(false),
            // Without a coordinator the database alone decides.
            Err(_) => Epoch(0),
        };
        let sent = self.clock.boottime();
        let take = self.store.take_leadership(
            self.identity.id(),
            leadership.epoch,
            known_epoch,
            settings.leader_ttl(),
        );
        let epoch = match with_timeout(take).await {
            Ok(Some(epoch)) => epoch,
            result => {
                // Release the lock, so that other workers can try.
                self.back_off_election(settings);
                self.send_resignation().await;
                return result.map(|_| false);
            }
        };
        tracing::info!(worker_id = %self.identity.id(), %epoch, "this worker is now the leader");
        self.set_term(epoch, sent, settings);
        let _ =
            self.coordinator.publish_leader(self.identity.id(), epoch, settings.leader_ttl()).await;
        self.wakeups.wake_planner();
        self.wakeups.wake_recovery();
        Ok(true)
    }

    async fn renew(&self, epoch: Epoch, settings: &Settings) -> Result<bool, Error> {
        let sent = self.clock.boottime();
        let (ttl, pace) = (settings.leader_ttl(), settings.leader_renew());
        if !with_timeout(self.store.renew_leadership(self.identity.id(), epoch, ttl, pace)).await? {
            tracing::info!(worker_id = %self.identity.id(), %epoch, "this worker is no longer the leader");
            self.state().term = None;
            self.back_off_election(settings);
            self.send_resignation().await;
            return Ok(false);
        }
        self.set_term(epoch, sent, settings);
        let _ = self.coordinator.publish_leader(self.identity.id(), epoch, ttl).await;
        Ok(true)
    }

    /// Backs off from the election after the leadership was lost or could not be taken, so that others can try first.
    fn back_off_election(&self, settings: &Settings) {
        let mut state = self.state();
        state.election_backoff_until =
            self.clock.boottime() + settings.subleader_check().as_micros() as u64;
        state.resignation_unsent = true;
    }

    /// Removes this worker as leader from the coordinator, if it lost the leadership since the last call.
    async fn send_resignation(&self) {
        let unsent = std::mem::take(&mut self.state().resignation_unsent);
        if unsent {
            let _ = self.coordinator.remove_leader(self.identity.id()).await;
        }
    }

    /// Starts or extends the term. The lease counts from the moment before the request was sent, less a margin.
    fn set_term(&self, epoch: Epoch, sent: u64, settings: &Settings) {
        let micros = |duration: std::time::Duration| duration.as_micros() as u64;
        let trusted_for =
            micros(settings.leader_ttl()).saturating_sub(micros(settings.leader_margin()));
        let renew_at = sent + micros(settings.leader_renew());
        self.state().term = Some(Term { epoch, renew_at, trusted_until: sent + trusted_for });
    }

    /// Gives up the leadership, if this worker has it.
    pub(crate) async fn resign(&self) -> Result<(), Error> {
        let Some(term) = self.state().term.take() else { return Ok(()) };
        let me = self.identity.id().to_string();
        let resigned = with_timeout(self.store.end_term(me.as_str(), term.epoch)).await?;
        let _ = self.coordinator.remove_leader(self.identity.id()).await;
        if !resigned {
            return Ok(());
        }
        // A hint only: workers that miss it check the leadership within a second.
        let notification = Notification {
            sender: self.wakeups.sender_id(),
            wake_election: true,
            ..Notification::default()
        };
        let _ = self.coordinator.notify(notification).await;
        let _ = with_timeout(self.store.notify(notification)).await;
        Ok(())
    }

    /// Epoch of the current term, while this leader may act. `None`: not leader, or the lease may have expired.
    pub(crate) fn active_epoch(&self) -> Option<Epoch> {
        let now = self.clock.boottime();
        self.state().term.filter(|term| now < term.trusted_until).map(|term| term.epoch)
    }

    /// Role of this worker in its cluster at the moment.
    pub(crate) fn role(&self) -> ClusterRole {
        match (self.active_epoch(), self.state().is_subleader) {
            (Some(_), _) => ClusterRole::Leader,
            (None, true) => ClusterRole::Subleader,
            (None, false) => ClusterRole::Worker,
        }
    }

    /// Queues a start order, which the order loop sends immediately.
    fn queue_order(&self, peer: Peer, order: StartOrder) {
        self.unsent_orders.lock().unwrap_or_else(PoisonError::into_inner).push((peer, order));
        self.order_added.notify_one();
    }

    /// Waits until an order is queued.
    pub(crate) async fn wait_for_queued_order(&self) {
        self.order_added.notified().await;
    }

    /// Sends all queued orders at the same time. A worker that does not receive its order finds the runs with its next
    /// heartbeat.
    pub(crate) async fn send_orders(&self) {
        let orders =
            std::mem::take(&mut *self.unsent_orders.lock().unwrap_or_else(PoisonError::into_inner));
        let calls = orders.iter().map(async |(peer, order)| {
            match self.peers.start(peer, order).await {
                Ok(OrderResponse::Accepted | OrderResponse::AlreadyRunning) => {}
                Ok(refusal) => {
                    tracing::info!(epoch = %order.epoch, worker_id = %peer.worker, ?refusal, "a worker refused an order");
                }
                Err(error) => {
                    tracing::debug!(epoch = %order.epoch, worker_id = %peer.worker, %error, "a worker did not respond to an order");
                }
            }
        });
        join_all(calls).await;
    }

    /// Runs one tick of planning. Returns whether there is more to do immediately.
    pub(crate) async fn plan(&self, settings: &Settings) -> Result<bool, Error> {
        let (mut more, mut failed) = (false, None);
        if self.active_epoch().is_none() {
            return Ok(false);
        }
        let started_at = self.clock.boottime();
        let pending = self
            .store
            .get_leader_work_flags(plan_upcoming_runs::planning_horizon(settings))
            .await?;
        let clock = pending.clock;
        // Runs that the first two steps create are handled by the last two.
        let waits = pending.run_waiting || pending.slot_due || pending.event_waiting;
        let steps = [
            (PlannerStep::CreateScheduledRuns, pending.slot_due),
            (PlannerStep::CreateEventRuns, pending.event_waiting),
            (PlannerStep::ExpireAndSkip, waits),
            (PlannerStep::Assign, waits),
        ];
        for (step, _) in steps.into_iter().filter(|(_, needed)| *needed) {
            let Some(epoch) = self.active_epoch() else { return Ok(false) };
            let result = match step {
                PlannerStep::CreateScheduledRuns => {
                    self.create_scheduled_runs(epoch, settings, clock).await
                }
                PlannerStep::CreateEventRuns => self.create_event_runs(epoch, clock).await,
                PlannerStep::ExpireAndSkip => {
                    self.expire_and_skip(epoch, settings, clock).await.map(|()| false)
                }
                PlannerStep::Assign => self.assign(epoch, settings, clock).await.map(|()| false),
            };
            match self.end_term_if_fenced(result) {
                Ok(step_more) => more |= step_more.unwrap_or(false),
                // A failed step does not prevent the other steps.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let micros = self.clock.boottime().saturating_sub(started_at);
        tracing::debug!(micros, waits, more, "planning tick");
        match failed {
            Some(error) => Err(error),
            None => Ok(more),
        }
    }

    /// Runs one tick of recovery: recovers runs whose leases expired, and orphans assigned runs that their workers will
    /// not start.
    pub(crate) async fn recover(&self, settings: &Settings) -> Result<(), Error> {
        let Some(epoch) = self.active_epoch().filter(|_| settings.recovery_enabled()) else {
            return Ok(());
        };
        let result = self.recover_in_term(epoch, settings).await;
        self.end_term_if_fenced(result).map(drop)
    }

    async fn recover_in_term(&self, epoch: Epoch, settings: &Settings) -> Result<(), Error> {
        for lease in self.store.list_expired_leases(settings.steal_grace(), PAGE_SIZE).await? {
            if self.active_epoch() != Some(epoch) {
                return Ok(());
            }
            let random_bits = self.random.next_u128() as u32;
            let recovered =
                self.store.recover(epoch, &lease, settings.steal_grace(), random_bits).await?;
            for run in recovered.unwrap_or_default() {
                tracing::info!(run_id = %run.run, %epoch, worker_id = %lease.worker, to = %run.state, "a lost run was recovered");
                self.wakeups.wake_planner();
            }
        }
        let assignments = self.store.list_assigned_runs_of_all_workers().await?;
        if assignments.is_empty() {
            return Ok(());
        }
        let workers = self.store.list_workers().await?;
        let clock = self.store.read_clock().await?;
        for leased_run in decisions::abandoned_assignments(&assignments, &workers, clock) {
            if self.store.orphan(epoch, leased_run.run, leased_run.token).await?.is_applied() {
                tracing::info!(run_id = %leased_run.run, %epoch, worker_id = %leased_run.worker, "a run was not started by its worker and will be assigned again");
                self.wakeups.wake_planner();
            }
        }
        Ok(())
    }

    /// Ends the term if a write was fenced: there is a newer leader, and the write had no effect. `None`: fenced.
    fn end_term_if_fenced<T>(&self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Fenced(epoch)) => {
                tracing::info!(worker_id = %self.identity.id(), %epoch, "there is a newer leader");
                let mut state = self.state();
                state.term = state.term.filter(|term| term.epoch != epoch);
                state.resignation_unsent = state.term.is_none();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, LeaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum PlannerStep {
    CreateScheduledRuns,
    CreateEventRuns,
    ExpireAndSkip,
    Assign,
}

fn to_signed(duration: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
