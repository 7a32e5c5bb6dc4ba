//! Coordination beside the database: who may try to lead, and what is known elsewhere of the epoch.
//!
//! The database's lease is always the record. What is here only thins the herd of those who would take
//! it, and makes things quick; losing all of it costs time, never correctness.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::News;

use crate::node::world::Clock;

/// Something could not be asked of the coordinator. The database carries on.
#[derive(Debug, thiserror::Error)]
#[error("coordinator: {0}")]
pub struct Unreachable(pub String);

/// What a worker is in its cluster. Roles are held, not configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// It plans and assigns.
    Leader,
    /// It watches the leader, one for each node.
    Subleader,
    /// It works.
    #[default]
    Worker,
}

impl Role {
    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Subleader => "subleader",
            Self::Worker => "worker",
        }
    }
}

/// What a worker shows of itself, every second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Which incarnation.
    pub worker: WorkerId,
    /// Where.
    pub node: NodeName,
    /// Its process.
    pub pid: u32,
    /// Where it can be called.
    pub address: Option<String>,
    /// What it is.
    pub role: Role,
    /// How many runs it carries.
    pub load: u32,
    /// Some of them.
    pub runs: Vec<RunId>,
    /// Whether it is cut off.
    pub detached: bool,
}

/// What others want of a worker, told when it shows itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// It is to look whether it was detached.
    pub detach: bool,
    /// It is to look whether its term, this one, was ended.
    pub degrade: Option<Epoch>,
}

/// The leader as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Who.
    pub worker: WorkerId,
    /// In which term.
    pub epoch: Epoch,
    /// How long ago.
    pub ago: Duration,
}

/// Where workers meet beside the database. Everything here is a hint: whoever reads it looks at the database
/// before it acts, or writes there with a guard.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Asks to try for the lead. `None`: another is at it. Otherwise the highest epoch known here.
    async fn stand(&self, worker: WorkerId, ttl: Duration) -> Result<Option<Epoch>, Unreachable>;

    /// Tells that a worker leads, or still does. What is known of a newer epoch is never taken back.
    async fn leads(&self, worker: WorkerId, epoch: Epoch, ttl: Duration)
    -> Result<(), Unreachable>;

    /// Tells that it no longer does.
    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable>;

    /// The leader as it was last seen. `None`: nobody was, or it is not kept here.
    async fn leader_seen(&self) -> Result<Option<Sighting>, Unreachable>;

    /// Leaves word for a leader that its term was ended.
    async fn degrade(&self, leader: WorkerId, epoch: Epoch) -> Result<(), Unreachable>;

    /// Asks to watch the leader for a node, or to go on with it. `false`: another of that node does. `None`: it
    /// is not decided here.
    async fn watch(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, Unreachable>;

    /// Shows that a worker is there, for people who look. Answers with what others want of it.
    async fn show(&self, presence: &Presence, ttl: Duration) -> Result<Wanted, Unreachable>;

    /// A worker leaves.
    async fn hide(&self, worker: WorkerId) -> Result<(), Unreachable>;

    /// Leaves word for a worker that it was detached.
    async fn detach(&self, worker: WorkerId, ttl: Duration) -> Result<(), Unreachable>;

    /// Tells who carries these runs, for so long: for people who look, as only the database knows for certain.
    async fn carries(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), Unreachable>;

    /// Tells all processes whom to wake.
    async fn tell(&self, news: News) -> Result<(), Unreachable>;

    /// Hears what others tell. `None`: no news is carried here.
    async fn listen(&self) -> Result<Option<Box<dyn Hearing>>, Unreachable>;
}

/// An open ear.
#[async_trait]
pub trait Hearing: Send {
    /// The next news. After an error what was told meanwhile may be lost: begin anew.
    async fn heard(&mut self) -> Result<News, Unreachable>;
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

    async fn leader_seen(&self) -> Result<Option<Sighting>, Unreachable> {
        Ok(None)
    }

    async fn degrade(&self, _: WorkerId, _: Epoch) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn watch(
        &self,
        _: WorkerId,
        _: &NodeName,
        _: Duration,
    ) -> Result<Option<bool>, Unreachable> {
        Ok(None)
    }

    async fn show(&self, _: &Presence, _: Duration) -> Result<Wanted, Unreachable> {
        Ok(Wanted::default())
    }

    async fn hide(&self, _: WorkerId) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn detach(&self, _: WorkerId, _: Duration) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn carries(&self, _: WorkerId, _: &[RunId], _: Duration) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn tell(&self, _: News) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Hearing>>, Unreachable> {
        Ok(None)
    }
}

/// What Redis has, in memory, for simulation and tests. No news is carried.
#[derive(Clone)]
pub struct InMemory {
    clock: Arc<dyn Clock>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    holder: Option<(WorkerId, u64)>,
    epoch: i64,
    seen: Option<(WorkerId, Epoch, u64)>,
    degraded: Option<(WorkerId, Epoch)>,
    watchers: HashMap<NodeName, (WorkerId, u64)>,
    detached: HashMap<WorkerId, u64>,
    carried: HashMap<RunId, (WorkerId, u64)>,
}

impl InMemory {
    /// An empty one.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Arc::default() }
    }

    /// Forgets everything, as a Redis does that comes back without its memory.
    pub fn forget(&self) {
        *self.kept() = Kept::default();
    }

    /// Who was last told to carry a run.
    pub fn carrier(&self, run: RunId) -> Option<WorkerId> {
        let now = self.clock.boottime();
        let told = self.kept().carried.get(&run).copied();
        told.filter(|(_, until)| now < *until).map(|(worker, _)| worker)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, ttl: Duration) -> u64 {
        self.clock.boottime() + ttl.as_micros() as u64
    }

    fn hold(&self, worker: WorkerId, ttl: Duration) -> Option<i64> {
        let (now, until) = (self.clock.boottime(), self.after(ttl));
        let mut kept = self.kept();
        if kept.holder.is_some_and(|(holder, until)| holder != worker && now < until) {
            return None;
        }
        kept.holder = Some((worker, until));
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
        let held = self.hold(worker, ttl).is_some();
        let (now, until) = (self.clock.boottime(), self.after(ttl));
        let mut kept = self.kept();
        // The database has decided: whoever is newer than all that was known here leads, whoever has the lock.
        if held || epoch.0 > kept.epoch {
            kept.holder = Some((worker, until));
            kept.seen = Some((worker, epoch, now));
        }
        kept.epoch = kept.epoch.max(epoch.0);
        Ok(())
    }

    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable> {
        let mut kept = self.kept();
        kept.holder = kept.holder.filter(|(holder, _)| *holder != worker);
        kept.seen = kept.seen.filter(|(seen, ..)| *seen != worker);
        Ok(())
    }

    async fn leader_seen(&self) -> Result<Option<Sighting>, Unreachable> {
        let now = self.clock.boottime();
        Ok(self.kept().seen.map(|(worker, epoch, at)| {
            let ago = Duration::from_micros(now.saturating_sub(at));
            Sighting { worker, epoch, ago }
        }))
    }

    async fn degrade(&self, leader: WorkerId, epoch: Epoch) -> Result<(), Unreachable> {
        self.kept().degraded = Some((leader, epoch));
        Ok(())
    }

    async fn watch(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, Unreachable> {
        let (now, until) = (self.clock.boottime(), self.after(ttl));
        let mut kept = self.kept();
        let other = kept.watchers.get(node).filter(|(who, until)| *who != worker && now < *until);
        if other.is_some() {
            return Ok(Some(false));
        }
        kept.watchers.insert(node.clone(), (worker, until));
        Ok(Some(true))
    }

    async fn show(&self, presence: &Presence, _: Duration) -> Result<Wanted, Unreachable> {
        let (now, worker) = (self.clock.boottime(), presence.worker);
        let kept = self.kept();
        Ok(Wanted {
            detach: kept.detached.get(&worker).is_some_and(|until| now < *until),
            degrade: kept.degraded.filter(|(leader, _)| *leader == worker).map(|(_, epoch)| epoch),
        })
    }

    async fn hide(&self, worker: WorkerId) -> Result<(), Unreachable> {
        self.kept().watchers.retain(|_, (watcher, _)| *watcher != worker);
        Ok(())
    }

    async fn detach(&self, worker: WorkerId, ttl: Duration) -> Result<(), Unreachable> {
        let until = self.after(ttl);
        self.kept().detached.insert(worker, until);
        Ok(())
    }

    async fn carries(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        let (now, until) = (self.clock.boottime(), self.after(ttl));
        let mut kept = self.kept();
        // As Redis forgets them by itself.
        kept.carried.retain(|_, (_, until)| now < *until);
        kept.carried.extend(runs.iter().map(|run| (*run, (worker, until))));
        Ok(())
    }

    async fn tell(&self, _: News) -> Result<(), Unreachable> {
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Hearing>>, Unreachable> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn boottime(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn what_was_carried_is_not_kept_for_ever() {
        let clock = Arc::new(HandClock(AtomicU64::new(0)));
        let memory = InMemory::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let (worker, ttl) = (WorkerId::from_random(1), Duration::from_secs(5));
        for second in 0..100 {
            clock.0.store(second * 1_000_000, Ordering::Relaxed);
            memory.carries(worker, &[RunId(second as i64)], ttl).await.unwrap();
            assert_eq!(memory.carrier(RunId(second as i64)), Some(worker));
        }
        assert_eq!(memory.kept().carried.len(), 5);
    }
}
