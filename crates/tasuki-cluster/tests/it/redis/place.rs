//! Where a test's workers meet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tasuki::node::coordinate::{Coordinator, InMemory, Presence, Role};
use tasuki::node::world::{Dice as _, RealClock, RealDice};
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_core::WorkerId;

use super::servers::PATIENCE;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Over before one has looked twice.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// Two processes that meet in one place.
pub(crate) struct Place {
    pub(crate) one: Arc<dyn Coordinator>,
    pub(crate) other: Arc<dyn Coordinator>,
}

impl Place {
    pub(crate) fn memory() -> Self {
        let memory = InMemory::new(Arc::new(RealClock));
        Self { one: Arc::new(memory.clone()), other: Arc::new(memory) }
    }

    /// On the server all tests share.
    pub(crate) fn shared() -> Self {
        let url = std::env::var("TASUKI_TEST_REDIS");
        Self::at(&url.expect("TASUKI_TEST_REDIS is not set: run ./test, which starts a server"))
    }

    pub(crate) fn at(url: &str) -> Self {
        let prefix = new_prefix();
        Self { one: Arc::new(redis(url, &prefix)), other: Arc::new(redis(url, &prefix)) }
    }
}

pub(crate) fn redis(url: &str, prefix: &str) -> RedisCoordinator {
    let config: RedisConfig = url.parse().unwrap();
    RedisCoordinator::new(config.with_prefix(prefix).unwrap()).unwrap()
}

pub(crate) fn new_prefix() -> String {
    format!("test-{:x}", RealDice.roll())
}

pub(crate) fn new_worker() -> WorkerId {
    WorkerId::from_random(RealDice.roll())
}

pub(crate) fn presence(worker: WorkerId, node: &str) -> Presence {
    Presence {
        worker,
        node: node.parse().unwrap(),
        pid: 7,
        address: None,
        role: Role::Worker,
        load: 0,
        runs: Vec::new(),
        detached: false,
    }
}

/// Waits until something is so.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
