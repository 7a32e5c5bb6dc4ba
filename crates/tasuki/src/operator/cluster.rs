//! Workers, the lead, settings and the audit.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Epoch, WorkerId};
use tasuki_store::{
    AuditHead, AuditRow, Writer, Leader, SettingsChange, SettingsInForce, Term, Worker,
};

use super::{Actor, Current, Error, Operator};

/// How many terms are shown.
const TERMS: u32 = 20;

/// A worker, and how it is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerNow {
    /// Its row.
    pub worker: Worker,
    /// `active`, `draining`, `detached`, `dead` or `gone`.
    pub state: &'static str,
    /// How many leases it has.
    pub leases: u32,
}

/// Who leads, and who led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lead {
    /// Now.
    pub leader: Leader,
    /// The newest terms, newest first.
    pub terms: Vec<Term>,
}

/// In one word. One that has been silent for longer than the others wait is as good as dead, though
/// nobody has said so yet.
fn state(worker: &Worker, clock: Timestamp, silence: SignedDuration) -> &'static str {
    let silent = clock.duration_since(worker.heartbeat_at) > silence;
    match worker {
        Worker { gone_at: Some(_), .. } => "gone",
        Worker { dead_at: Some(_), .. } => "dead",
        Worker { detached_at: Some(_), .. } => "detached",
        _ if silent => "dead",
        Worker { draining_at: Some(_), .. } => "draining",
        _ => "active",
    }
}

impl Operator {
    /// The workers that have not left.
    pub async fn workers(&self) -> Result<Vec<WorkerNow>, Error> {
        let workers = self.store.workers().await?;
        self.doing(workers).await
    }

    /// One worker.
    pub async fn worker(&self, worker: WorkerId) -> Result<WorkerNow, Error> {
        let not_found = || Error::not_found("worker", &worker);
        let found = self.store.worker(worker).await?.ok_or_else(not_found)?;
        self.doing(vec![found]).await?.pop().ok_or_else(not_found)
    }

    async fn doing(&self, workers: Vec<Worker>) -> Result<Vec<WorkerNow>, Error> {
        let clock = self.store.clock().await?;
        let settings = self.store.settings().await?.settings;
        let silence = settings.heartbeat_ttl() + settings.worker_detach_grace();
        let silence = SignedDuration::try_from(silence).unwrap_or(SignedDuration::MAX);
        let leases = self.store.leases_per_worker().await?;
        let now = |worker: Worker| WorkerNow {
            state: state(&worker, clock, silence),
            leases: leases.get(&worker.id).copied().unwrap_or(0),
            worker,
        };
        Ok(workers.into_iter().map(now).collect())
    }

    /// No new work for a worker.
    pub async fn drain_worker(&self, by: &Actor, worker: WorkerId) -> Result<WorkerNow, Error> {
        let hit = self.store.drain_worker(by.told(), worker).await?;
        self.put_aside(worker, hit, "drained").await
    }

    /// A worker is cut off: what is assigned to it goes elsewhere.
    pub async fn detach_worker(
        &self,
        by: &Actor,
        worker: WorkerId,
        reason: &str,
    ) -> Result<WorkerNow, Error> {
        let hit = self.store.detach_worker(Writer::Api, by.told(), worker, reason).await?;
        self.put_aside(worker, hit, "detached").await
    }

    async fn put_aside(&self, worker: WorkerId, hit: bool, done: &str) -> Result<WorkerNow, Error> {
        let now = self.worker(worker).await?;
        if hit {
            self.wake.all();
            self.wake.words().aside(worker);
            return Ok(now);
        }
        let what = format!("worker {worker} is {} and cannot be {done}", now.state);
        Err(Error::lost(what, Current::Worker(now)))
    }

    /// Who leads, and who led.
    pub async fn lead(&self) -> Result<Lead, Error> {
        let leader = self.store.leader().await?;
        Ok(Lead { leader, terms: self.store.recent_terms(TERMS).await? })
    }

    /// Takes the lead from whoever has it at this epoch.
    pub async fn demote(&self, by: &Actor, epoch: Epoch, reason: &str) -> Result<Lead, Error> {
        let hit = self.store.demote(by.told(), epoch, reason).await?;
        let lead = self.lead().await?;
        if hit {
            self.wake.all();
            return Ok(lead);
        }
        let what = match lead.leader.epoch == epoch {
            true => format!("nobody leads at epoch {epoch} any more"),
            false => format!("the epoch is {} now", lead.leader.epoch),
        };
        Err(Error::lost(what, Current::Lead(lead)))
    }

    /// The settings in force.
    pub async fn settings(&self) -> Result<SettingsInForce, Error> {
        Ok(self.store.settings().await?)
    }

    /// Changes settings, all or none, if they are still those that were seen.
    pub async fn change_settings(
        &self,
        by: &Actor,
        seen: i64,
        changes: &[(&str, &str)],
    ) -> Result<SettingsInForce, Error> {
        match self.store.change_settings(by.told(), seen, changes).await? {
            SettingsChange::Applied(now) => {
                self.wake.all();
                self.wake.words().settings(now.version);
                Ok(now)
            }
            SettingsChange::Lost(now) => {
                let what =
                    format!("settings have been changed: they are at version {} now", now.version);
                Err(Error::lost(what, Current::Settings(now)))
            }
        }
    }

    /// What was done after this row of the audit, in order.
    pub async fn audit(&self, after: i64, most: u32) -> Result<Vec<AuditRow>, Error> {
        Ok(self.store.audit_list(after, most).await?)
    }

    /// The end of the audit.
    pub async fn audit_head(&self) -> Result<AuditHead, Error> {
        Ok(self.store.audit_head().await?)
    }
}
