//! Coordination beside the database: who may try to lead, and what is known elsewhere of the epoch.
//!
//! The database's lease is always the record. What is here only thins the herd of those who would take
//! it, and makes things quick; losing all of it costs time, never correctness.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, WorkerId};

use super::world::Clock;

/// Something could not be asked of the coordinator. The database carries on.
#[derive(Debug, thiserror::Error)]
#[error("coordinator: {0}")]
pub struct Unreachable(pub String);

/// Where workers meet beside the database.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Asks to try for the lead. `None`: another is at it. Otherwise the highest epoch known here.
    async fn stand(&self, worker: WorkerId, ttl: Duration) -> Result<Option<Epoch>, Unreachable>;

    /// Tells that a worker leads, or still does.
    async fn leads(&self, worker: WorkerId, epoch: Epoch, ttl: Duration)
    -> Result<(), Unreachable>;

    /// Tells that it no longer does.
    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable>;
}

/// Nothing beside the database: everybody may try, and the mint lets one through.
#[derive(Debug, Clone, Copy, Default)]
pub struct DatabaseOnly;

#[async_trait]
impl Coordinator for DatabaseOnly {
    async fn stand(&self, _: WorkerId, _: Duration) -> Result<Option<Epoch>, Unreachable> {
        Ok(Some(Epoch(0)))
    }

    async fn leads(&self, _: WorkerId, _: Epoch, _: Duration) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn resigns(&self, _: WorkerId) -> Result<(), Unreachable> {
        Ok(())
    }
}

/// A lock and an epoch in memory, as Redis has them, for simulation and tests.
#[derive(Clone)]
pub struct InMemory {
    clock: Arc<dyn Clock>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    holder: Option<(WorkerId, u64)>,
    epoch: i64,
}

impl InMemory {
    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Arc::default() }
    }

    /// Forgets everything, as a Redis does that comes back without its memory.
    pub fn forget(&self) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    fn hold(&self, worker: WorkerId, ttl: Duration) -> Option<i64> {
        let now = self.clock.boottime();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.holder.is_some_and(|(holder, until)| holder != worker && now < until) {
            return None;
        }
        kept.holder = Some((worker, now + ttl.as_micros() as u64));
        Some(kept.epoch)
    }
}

#[async_trait]
impl Coordinator for InMemory {
    async fn stand(&self, worker: WorkerId, ttl: Duration) -> Result<Option<Epoch>, Unreachable> {
        Ok(self.hold(worker, ttl).map(Epoch))
    }

    async fn leads(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        if self.hold(worker, ttl).is_some() {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.epoch = kept.epoch.max(epoch.0);
        }
        Ok(())
    }

    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.holder = kept.holder.filter(|(holder, _)| *holder != worker);
        Ok(())
    }
}
