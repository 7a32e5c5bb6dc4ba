//! Fixtures: coordinators of two processes, worker ids and presences.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tasuki::node::clock_and_random::{OsRandom, Random as _, RealClock};
use tasuki::node::coordination::coordinator_trait::{
    ClusterRole, Coordinator, CoordinatorUnreachable, Presence, PublishedLeader,
    SimulatedCoordinator, Subscription, WorkerMarks,
};
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::Notification;

use super::servers::WAIT_TIMEOUT;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Expires almost immediately.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The coordinators of two processes with the same data.
pub(crate) struct Coordinators {
    pub(crate) one: Arc<dyn Coordinator>,
    pub(crate) other: Arc<dyn Coordinator>,
}

impl Coordinators {
    pub(crate) fn memory() -> Self {
        let memory = SimulatedCoordinator::new(Arc::new(RealClock));
        Self { one: Arc::new(memory.clone()), other: Arc::new(memory) }
    }

    /// Coordinators on the server that all tests share, with a new prefix.
    pub(crate) fn shared() -> Self {
        let url = std::env::var("TASUKI_TEST_REDIS");
        Self::at(&url.expect("TASUKI_TEST_REDIS is not set: run ./test, which starts a server"))
    }

    pub(crate) fn at(url: &str) -> Self {
        let prefix = new_prefix();
        Self { one: Arc::new(redis(url, &prefix)), other: Arc::new(redis(url, &prefix)) }
    }
}

/// Coordinator that repeats failed calls, for tests that are not about outages: on a busy machine, also a Redis that is
/// available does not always respond in time. Every call may be repeated.
#[derive(Debug, Clone)]
pub(crate) struct RetryingCoordinator(pub(crate) RedisCoordinator);

pub(crate) fn redis(url: &str, prefix: &str) -> RetryingCoordinator {
    let config: RedisConfig = url.parse().unwrap();
    RetryingCoordinator(RedisCoordinator::new(config.with_prefix(prefix).unwrap()).unwrap())
}

pub(crate) fn new_prefix() -> String {
    format!("test-{:x}", OsRandom.next_u128())
}

pub(crate) fn new_worker() -> WorkerId {
    WorkerId::from_random(OsRandom.next_u128())
}

pub(crate) fn presence(worker: WorkerId, node: &str) -> Presence {
    Presence {
        worker,
        node: node.parse().unwrap(),
        pid: 7,
        address: None,
        role: ClusterRole::Worker,
        load: 0,
        runs: Vec::new(),
        detached: false,
    }
}

/// Polls until the result is not `None`.
pub(crate) async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Implements every method with retries.
macro_rules! impl_with_retries {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $response:ty;)*) => {
        #[async_trait]
        impl Coordinator for RetryingCoordinator {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$response, CoordinatorUnreachable> {
                let deadline = Instant::now() + WAIT_TIMEOUT;
                loop {
                    match self.0.$name($($argument),*).await {
                        Err(_) if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
                        response => return response,
                    }
                }
            })*
        }
    };
}

impl_with_retries! {
    acquire_election_lock(worker: WorkerId, ttl: Duration) -> Option<Epoch>;
    publish_leader(worker: WorkerId, epoch: Epoch, ttl: Duration) -> ();
    remove_leader(worker: WorkerId) -> ();
    find_leader() -> Option<PublishedLeader>;
    mark_term_ended(leader: WorkerId, epoch: Epoch) -> ();
    acquire_subleader(worker: WorkerId, node: &NodeName, ttl: Duration) -> Option<bool>;
    publish_presence(presence: &Presence, ttl: Duration) -> WorkerMarks;
    remove_presence(worker: WorkerId) -> ();
    mark_detached(worker: WorkerId, ttl: Duration) -> ();
    publish_leased_runs(worker: WorkerId, runs: &[RunId], ttl: Duration) -> ();
    notify(notification: Notification) -> ();
    subscribe() -> Option<Box<dyn Subscription>>;
}
