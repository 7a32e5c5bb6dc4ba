//! Where a test's workers meet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tasuki::node::coordination::coordinate::{
    Coordinator, Hearing, InMemory, Presence, Role, Sighting, Unreachable, Wanted,
};
use tasuki::node::world::{Dice as _, RealClock, RealDice};
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::News;

use super::servers::PATIENCE;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Over before one has looked twice.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// How soon one looks again.
const AGAIN: Duration = Duration::from_millis(5);

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

/// One that asks again, for tests that are not about a Redis that is away: where much else goes on, also one that
/// is there does not always answer in time. Whatever is asked twice has the same effect as once.
#[derive(Debug, Clone)]
pub(crate) struct Patient(pub(crate) RedisCoordinator);

pub(crate) fn redis(url: &str, prefix: &str) -> Patient {
    let config: RedisConfig = url.parse().unwrap();
    Patient(RedisCoordinator::new(config.with_prefix(prefix).unwrap()).unwrap())
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
        tokio::time::sleep(AGAIN).await;
    }
}

/// Every method, patiently.
macro_rules! patient {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Coordinator for Patient {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$answer, Unreachable> {
                let deadline = Instant::now() + PATIENCE;
                loop {
                    match self.0.$name($($argument),*).await {
                        Err(_) if Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
                        answer => return answer,
                    }
                }
            })*
        }
    };
}

patient! {
    stand(worker: WorkerId, ttl: Duration) -> Option<Epoch>;
    leads(worker: WorkerId, epoch: Epoch, ttl: Duration) -> ();
    resigns(worker: WorkerId) -> ();
    leader_seen() -> Option<Sighting>;
    degrade(leader: WorkerId, epoch: Epoch) -> ();
    watch(worker: WorkerId, node: &NodeName, ttl: Duration) -> Option<bool>;
    show(presence: &Presence, ttl: Duration) -> Wanted;
    hide(worker: WorkerId) -> ();
    detach(worker: WorkerId, ttl: Duration) -> ();
    carries(worker: WorkerId, runs: &[RunId], ttl: Duration) -> ();
    tell(news: News) -> ();
    listen() -> Option<Box<dyn Hearing>>;
}
