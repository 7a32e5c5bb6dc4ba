//! Workers and the leader.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Epoch, WorkerId};
use tasuki_store::{LeaderRecord, Term, WorkerRecord, Writer};

use super::{Actor, CurrentState, Error, Operator};

/// Number of recent leader terms to return.
const TERMS: u32 = 20;

/// A worker with its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The worker's row.
    pub worker: WorkerRecord,
    /// The state: `active`, `draining`, `detached`, `dead` or `gone`.
    pub state: &'static str,
    /// The number of leases that the worker holds.
    pub leases: u32,
}

/// The current leader and recent leader terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderInfo {
    /// The current leader.
    pub leader: LeaderRecord,
    /// The most recent terms, newest first.
    pub terms: Vec<Term>,
}

/// The state of a worker. A worker without a heartbeat for longer than `max_silence` counts as dead, even if the leader
/// has not detached it yet.
fn worker_state(
    worker: &WorkerRecord,
    clock: Timestamp,
    max_silence: SignedDuration,
) -> &'static str {
    let silent = clock.duration_since(worker.heartbeat_at) > max_silence;
    match worker {
        WorkerRecord { gone_at: Some(_), .. } => "gone",
        WorkerRecord { dead_at: Some(_), .. } => "dead",
        WorkerRecord { detached_at: Some(_), .. } => "detached",
        _ if silent => "dead",
        WorkerRecord { draining_at: Some(_), .. } => "draining",
        _ => "active",
    }
}

impl Operator {
    /// All workers that are not gone.
    pub async fn list_workers(&self) -> Result<Vec<WorkerInfo>, Error> {
        let workers = self.store.list_workers().await?;
        self.worker_infos(workers).await
    }

    /// One worker. An error if it does not exist.
    pub async fn get_worker(&self, worker: WorkerId) -> Result<WorkerInfo, Error> {
        let not_found = || Error::not_found("worker", &worker);
        let found = self.store.find_worker(worker).await?.ok_or_else(not_found)?;
        self.worker_infos(vec![found]).await?.pop().ok_or_else(not_found)
    }

    async fn worker_infos(&self, workers: Vec<WorkerRecord>) -> Result<Vec<WorkerInfo>, Error> {
        let clock = self.store.read_clock().await?;
        let settings = self.store.load_settings().await?.settings;
        let max_silence = settings.heartbeat_ttl() + settings.worker_detach_grace();
        let max_silence = SignedDuration::try_from(max_silence).unwrap_or(SignedDuration::MAX);
        let leases = self.store.count_leases_per_worker().await?;
        let to_info = |worker: WorkerRecord| WorkerInfo {
            state: worker_state(&worker, clock, max_silence),
            leases: leases.get(&worker.id).copied().unwrap_or(0),
            worker,
        };
        Ok(workers.into_iter().map(to_info).collect())
    }

    /// Drains a worker: it gets no new runs.
    pub async fn drain_worker(&self, by: &Actor, worker: WorkerId) -> Result<WorkerInfo, Error> {
        let applied = self.store.drain_worker(by.for_store(), worker).await?;
        self.complete_worker_action(worker, applied, "drained").await
    }

    /// Detaches a worker: the runs that are assigned to it are assigned to other workers.
    pub async fn detach_worker(
        &self,
        by: &Actor,
        worker: WorkerId,
        reason: &str,
    ) -> Result<WorkerInfo, Error> {
        let applied = self.store.detach_worker(Writer::Api, by.for_store(), worker, reason).await?;
        self.complete_worker_action(worker, applied, "detached").await
    }

    async fn complete_worker_action(
        &self,
        worker: WorkerId,
        applied: bool,
        done: &str,
    ) -> Result<WorkerInfo, Error> {
        let info = self.get_worker(worker).await?;
        if applied {
            self.notifier.wake_all();
            self.notifier.outbox_of_worker_hints().enqueue_suspend(worker);
            return Ok(info);
        }
        let message = format!("worker {worker} is {} and cannot be {done}", info.state);
        Err(Error::lost(message, CurrentState::Worker(info)))
    }

    /// The current leader and recent leader terms.
    pub async fn leader_info(&self) -> Result<LeaderInfo, Error> {
        let leader = self.store.get_leader_record().await?;
        Ok(LeaderInfo { leader, terms: self.store.list_recent_terms(TERMS).await? })
    }

    /// Ends the term of the leader with this epoch.
    pub async fn demote_leader(
        &self,
        by: &Actor,
        epoch: Epoch,
        reason: &str,
    ) -> Result<LeaderInfo, Error> {
        let applied = self.store.demote_leader(by.for_store(), epoch, reason).await?;
        let info = self.leader_info().await?;
        if applied {
            self.notifier.wake_all();
            return Ok(info);
        }
        let message = match info.leader.epoch == epoch {
            true => format!("the term of epoch {epoch} has already ended"),
            false => format!("the current epoch is {}, not {epoch}", info.leader.epoch),
        };
        Err(Error::lost(message, CurrentState::Leader(info)))
    }
}
