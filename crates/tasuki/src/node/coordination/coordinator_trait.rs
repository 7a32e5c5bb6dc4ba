//! Coordination outside the database: the election lock, presence of workers, and notifications between processes.
//!
//! The leader's lease in the database always decides. The coordinator only reduces the number of workers that try to
//! become leader at the same time, and makes reactions faster. Losing all of its data costs time, never correctness.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::Notification;

use crate::node::clock_and_random::Clock;

/// The coordinator could not be reached. Nodes continue with the database alone.
#[derive(Debug, thiserror::Error)]
#[error("coordinator: {0}")]
pub struct CoordinatorUnreachable(pub String);

/// Role of a worker in its cluster. Workers acquire roles at run time; roles are not configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClusterRole {
    /// Plans runs and assigns them to workers.
    Leader,
    /// Checks on the leader; one per node.
    Subleader,
    /// Neither leader nor subleader: only executes runs.
    #[default]
    Worker,
}

impl ClusterRole {
    /// Name of the role as stored and shown everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Subleader => "subleader",
            Self::Worker => "worker",
        }
    }
}

/// State that a worker publishes with every heartbeat, for people and for other workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Node on which the worker runs.
    pub node: NodeName,
    /// Process id of the worker.
    pub pid: u32,
    /// RPC address of the worker, if it can be called.
    pub address: Option<String>,
    /// Role of the worker at the moment.
    pub role: ClusterRole,
    /// Number of runs that the worker holds.
    pub load: u32,
    /// Some of these runs; the list is bounded.
    pub runs: Vec<RunId>,
    /// Whether the worker is detached.
    pub detached: bool,
}

/// Marks that other workers set for a worker; returned when it publishes its presence. They are hints: the worker
/// checks the database before it acts on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerMarks {
    /// The worker was probably detached.
    pub detached: bool,
    /// The worker's term with this epoch was probably ended.
    pub ended_term: Option<Epoch>,
}

/// The leader as last published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedLeader {
    /// Worker that leads.
    pub worker: WorkerId,
    /// Epoch of its term.
    pub epoch: Epoch,
    /// Time since the leader published itself.
    pub age: Duration,
}

/// Coordination between workers outside the database. All of its data are hints: a worker that reads them checks the
/// database before it acts, or writes to the database with a guard.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Acquires or extends the lock that a worker needs before it tries to become leader. `None`: another worker holds
    /// it. Otherwise returns the highest epoch that the coordinator knows.
    async fn acquire_election_lock(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<Option<Epoch>, CoordinatorUnreachable>;

    /// Publishes that a worker leads, or still leads. A newer epoch that is already published stays.
    async fn publish_leader(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable>;

    /// Removes the published leader and its lock, if they belong to this worker.
    async fn remove_leader(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable>;

    /// Reads the leader as last published. `None`: no leader is published, or this coordinator does not store it.
    async fn find_leader(&self) -> Result<Option<PublishedLeader>, CoordinatorUnreachable>;

    /// Sets a mark for a leader: its term was ended. The leader receives it in its next [`WorkerMarks`].
    async fn mark_term_ended(
        &self,
        leader: WorkerId,
        epoch: Epoch,
    ) -> Result<(), CoordinatorUnreachable>;

    /// Makes a worker the subleader of its node, or extends that. `false`: another worker is the subleader. `None`:
    /// this coordinator does not decide it.
    async fn acquire_subleader(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, CoordinatorUnreachable>;

    /// Publishes the presence of a worker, and returns the marks that others have set for it.
    async fn publish_presence(
        &self,
        presence: &Presence,
        ttl: Duration,
    ) -> Result<WorkerMarks, CoordinatorUnreachable>;

    /// Removes the presence of a worker that leaves.
    async fn remove_presence(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable>;

    /// Sets a mark for a worker: it was detached. The worker receives it in its next [`WorkerMarks`].
    async fn mark_detached(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable>;

    /// Publishes for a limited time that a worker holds these runs. This is only for display: the database decides.
    async fn publish_leased_runs(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable>;

    /// Sends a notification to all processes.
    async fn notify(&self, notification: Notification) -> Result<(), CoordinatorUnreachable>;

    /// Subscribes to the notifications of other processes. `None`: this coordinator does not deliver notifications.
    async fn subscribe(&self) -> Result<Option<Box<dyn Subscription>>, CoordinatorUnreachable>;
}

/// Subscription to the notifications of other processes.
#[async_trait]
pub trait Subscription: Send {
    /// Waits for the next notification. After an error, notifications may have been lost: subscribe again.
    async fn next_notification(&mut self) -> Result<Notification, CoordinatorUnreachable>;
}

/// Coordinator without a service of its own: every worker may try to become leader, and the guarded write to the
/// database lets one succeed.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseOnly;

#[async_trait]
impl Coordinator for DatabaseOnly {
    async fn acquire_election_lock(
        &self,
        _: WorkerId,
        _: Duration,
    ) -> Result<Option<Epoch>, CoordinatorUnreachable> {
        Ok(Some(Epoch(0)))
    }

    async fn publish_leader(
        &self,
        _: WorkerId,
        _: Epoch,
        _: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn remove_leader(&self, _: WorkerId) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn find_leader(&self) -> Result<Option<PublishedLeader>, CoordinatorUnreachable> {
        Ok(None)
    }

    async fn mark_term_ended(&self, _: WorkerId, _: Epoch) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn acquire_subleader(
        &self,
        _: WorkerId,
        _: &NodeName,
        _: Duration,
    ) -> Result<Option<bool>, CoordinatorUnreachable> {
        Ok(None)
    }

    async fn publish_presence(
        &self,
        _: &Presence,
        _: Duration,
    ) -> Result<WorkerMarks, CoordinatorUnreachable> {
        Ok(WorkerMarks::default())
    }

    async fn remove_presence(&self, _: WorkerId) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn mark_detached(&self, _: WorkerId, _: Duration) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn publish_leased_runs(
        &self,
        _: WorkerId,
        _: &[RunId],
        _: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn notify(&self, _: Notification) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn Subscription>>, CoordinatorUnreachable> {
        Ok(None)
    }
}

/// Coordinator with the same data as Redis but in memory, for simulation and tests. It delivers no notifications.
#[derive(Clone)]
pub struct SimulatedCoordinator {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<InMemoryState>>,
}

#[derive(Default)]
struct InMemoryState {
    lock_holder: Option<(WorkerId, u64)>,
    epoch: i64,
    leader: Option<(WorkerId, Epoch, u64)>,
    ended_term: Option<(WorkerId, Epoch)>,
    subleaders: HashMap<NodeName, (WorkerId, u64)>,
    detached: HashMap<WorkerId, u64>,
    leased_runs: HashMap<RunId, (WorkerId, u64)>,
}

impl SimulatedCoordinator {
    /// A coordinator without any data.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// Removes all data, as when Redis restarts without persistence.
    pub fn clear(&self) {
        *self.state() = InMemoryState::default();
    }

    /// Finds the worker that last published that it holds a run, unless that has expired.
    pub fn find_run_worker(&self, run: RunId) -> Option<WorkerId> {
        let now = self.clock.boottime();
        let published = self.state().leased_runs.get(&run).copied();
        published.filter(|(_, expires_at)| now < *expires_at).map(|(worker, _)| worker)
    }

    fn state(&self) -> MutexGuard<'_, InMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expires_at(&self, ttl: Duration) -> u64 {
        self.clock.boottime() + ttl.as_micros() as u64
    }

    fn try_lock(&self, worker: WorkerId, ttl: Duration) -> Option<i64> {
        let (now, expires_at) = (self.clock.boottime(), self.expires_at(ttl));
        let mut state = self.state();
        if state
            .lock_holder
            .is_some_and(|(holder, expires_at)| holder != worker && now < expires_at)
        {
            return None;
        }
        state.lock_holder = Some((worker, expires_at));
        Some(state.epoch)
    }
}

#[async_trait]
impl Coordinator for SimulatedCoordinator {
    async fn acquire_election_lock(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<Option<Epoch>, CoordinatorUnreachable> {
        Ok(self.try_lock(worker, ttl).map(Epoch))
    }

    async fn publish_leader(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        let held = self.try_lock(worker, ttl).is_some();
        let (now, expires_at) = (self.clock.boottime(), self.expires_at(ttl));
        let mut state = self.state();
        // The database has decided: a newer epoch than the known one leads, no matter who holds the lock.
        if held || epoch.0 > state.epoch {
            state.lock_holder = Some((worker, expires_at));
            state.leader = Some((worker, epoch, now));
        }
        state.epoch = state.epoch.max(epoch.0);
        Ok(())
    }

    async fn remove_leader(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        let mut state = self.state();
        state.lock_holder = state.lock_holder.filter(|(holder, _)| *holder != worker);
        state.leader = state.leader.filter(|(seen, ..)| *seen != worker);
        Ok(())
    }

    async fn find_leader(&self) -> Result<Option<PublishedLeader>, CoordinatorUnreachable> {
        let now = self.clock.boottime();
        Ok(self.state().leader.map(|(worker, epoch, published_at)| {
            let age = Duration::from_micros(now.saturating_sub(published_at));
            PublishedLeader { worker, epoch, age }
        }))
    }

    async fn mark_term_ended(
        &self,
        leader: WorkerId,
        epoch: Epoch,
    ) -> Result<(), CoordinatorUnreachable> {
        self.state().ended_term = Some((leader, epoch));
        Ok(())
    }

    async fn acquire_subleader(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, CoordinatorUnreachable> {
        let (now, expires_at) = (self.clock.boottime(), self.expires_at(ttl));
        let mut state = self.state();
        let other = state
            .subleaders
            .get(node)
            .filter(|(who, expires_at)| *who != worker && now < *expires_at);
        if other.is_some() {
            return Ok(Some(false));
        }
        state.subleaders.insert(node.clone(), (worker, expires_at));
        Ok(Some(true))
    }

    async fn publish_presence(
        &self,
        presence: &Presence,
        _: Duration,
    ) -> Result<WorkerMarks, CoordinatorUnreachable> {
        let (now, worker) = (self.clock.boottime(), presence.worker);
        let state = self.state();
        Ok(WorkerMarks {
            detached: state.detached.get(&worker).is_some_and(|expires_at| now < *expires_at),
            ended_term: state
                .ended_term
                .filter(|(leader, _)| *leader == worker)
                .map(|(_, epoch)| epoch),
        })
    }

    async fn remove_presence(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        self.state().subleaders.retain(|_, (subleader, _)| *subleader != worker);
        Ok(())
    }

    async fn mark_detached(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        let expires_at = self.expires_at(ttl);
        self.state().detached.insert(worker, expires_at);
        Ok(())
    }

    async fn publish_leased_runs(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        let (now, expires_at) = (self.clock.boottime(), self.expires_at(ttl));
        let mut state = self.state();
        // Redis removes expired entries; here it must be done explicitly, or the map would grow without bound.
        state.leased_runs.retain(|_, (_, expires_at)| now < *expires_at);
        state.leased_runs.extend(runs.iter().map(|run| (*run, (worker, expires_at))));
        Ok(())
    }

    async fn notify(&self, _: Notification) -> Result<(), CoordinatorUnreachable> {
        Ok(())
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn Subscription>>, CoordinatorUnreachable> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct ManualClock(AtomicU64);

    impl Clock for ManualClock {
        fn boottime(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn expired_leased_runs_are_removed() {
        let clock = Arc::new(ManualClock(AtomicU64::new(0)));
        let memory = SimulatedCoordinator::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let (worker, ttl) = (WorkerId::from_random(1), Duration::from_secs(5));
        for second in 0..100 {
            clock.0.store(second * 1_000_000, Ordering::Relaxed);
            memory.publish_leased_runs(worker, &[RunId(second as i64)], ttl).await.unwrap();
            assert_eq!(memory.find_run_worker(RunId(second as i64)), Some(worker));
        }
        assert_eq!(memory.state().leased_runs.len(), 5);
    }
}
