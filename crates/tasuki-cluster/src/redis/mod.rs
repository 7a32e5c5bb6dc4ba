//! The coordinator on Redis: one server, Sentinel or Cluster.
//!
//! All data in Redis are hints that may be lost, and most of them expire. Operations that must be atomic are Lua scripts. All
//! times come from the clock of Redis. After Redis has lost its data, the next heartbeats of the workers and of the leader
//! write it again.

mod config;
mod connection;
mod find_primary;
mod keys;
mod presence_to_fields;
mod subscription;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Script};
use async_trait::async_trait;
use tasuki::node::coordination::coordinator_trait::{
    Coordinator, CoordinatorUnreachable, Presence, PublishedLeader, Subscription, WorkerMarks,
};
use tasuki_core::{Epoch, InvalidInput, NodeName, RunId, WorkerId};
use tasuki_store::Notification;

pub use config::RedisConfig;
use connection::RedisConnection;
use keys::Keys;
use subscription::RedisSubscription;

/// Coordinator that stores its data in Redis.
///
/// Clones share one connection. It is opened on first use and again after it was lost, also to another server after a
/// failover. A call takes at most a second. While Redis is unavailable, most calls are refused immediately.
#[derive(Clone)]
pub struct RedisCoordinator {
    connection: Arc<RedisConnection>,
    keys: Keys,
    scripts: Arc<Scripts>,
}

struct Scripts {
    acquire_election_lock: Script,
    publish_leader: Script,
    remove_leader: Script,
    find_leader: Script,
    acquire_subleader_lock: Script,
    publish_presence: Script,
    remove_presence: Script,
}

impl RedisCoordinator {
    /// Creates a coordinator without connecting, so that a node can start while Redis is unavailable. Certificates that
    /// cannot be read are an error.
    pub fn new(config: RedisConfig) -> Result<Self, InvalidInput> {
        if config.client(&config.hosts[0]).is_err() {
            let expected = "certificates and a key in PEM";
            return Err(InvalidInput::with_described_value(
                "redis certificates",
                "certificates or a key that cannot be read",
                expected,
            ));
        }
        let scripts = Scripts {
            acquire_election_lock: Script::new(include_str!("../../lua/acquire_election_lock.lua")),
            publish_leader: Script::new(include_str!("../../lua/publish_leader.lua")),
            remove_leader: Script::new(include_str!("../../lua/remove_leader.lua")),
            find_leader: Script::new(include_str!("../../lua/find_leader.lua")),
            acquire_subleader_lock: Script::new(include_str!(
                "../../lua/acquire_subleader_lock.lua"
            )),
            publish_presence: Script::new(include_str!("../../lua/publish_presence.lua")),
            remove_presence: Script::new(include_str!("../../lua/remove_presence.lua")),
        };
        let keys = Keys::new(&config.prefix);
        Ok(Self {
            connection: Arc::new(RedisConnection::new(config)),
            keys,
            scripts: Arc::new(scripts),
        })
    }
}

impl fmt::Debug for RedisCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisCoordinator").field(self.connection.config()).finish()
    }
}

#[async_trait]
impl Coordinator for RedisCoordinator {
    async fn acquire_election_lock(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<Option<Epoch>, CoordinatorUnreachable> {
        let mut script = self.scripts.acquire_election_lock.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_epoch());
        script.arg(worker.to_string()).arg(millis(ttl));
        let known_epoch: Option<String> = self.connection.execute_script(&script).await?;
        Ok(known_epoch.as_deref().map(parse_epoch))
    }

    async fn publish_leader(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        let mut script = self.scripts.publish_leader.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_epoch());
        script.key(self.keys.leader_last_seen());
        script.arg(worker.to_string()).arg(epoch.0).arg(millis(ttl));
        self.connection.execute_script(&script).await
    }

    async fn remove_leader(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        let mut script = self.scripts.remove_leader.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_last_seen());
        script.arg(worker.to_string());
        self.connection.execute_script(&script).await
    }

    async fn find_leader(&self) -> Result<Option<PublishedLeader>, CoordinatorUnreachable> {
        let mut script = self.scripts.find_leader.prepare_invoke();
        script.key(self.keys.leader_last_seen());
        let seen: Option<String> = self.connection.execute_script(&script).await?;
        Ok(seen.as_deref().and_then(parse_published_leader))
    }

    async fn mark_term_ended(
        &self,
        leader: WorkerId,
        epoch: Epoch,
    ) -> Result<(), CoordinatorUnreachable> {
        let value = format!("{leader} {epoch}");
        self.connection.send(&Cmd::set(self.keys.leader_degrade(), value)).await
    }

    async fn acquire_subleader(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, CoordinatorUnreachable> {
        let mut script = self.scripts.acquire_subleader_lock.prepare_invoke();
        script.key(self.keys.subleader_lock(node));
        script.arg(worker.to_string()).arg(millis(ttl));
        self.connection.execute_script(&script).await.map(Some)
    }

    async fn publish_presence(
        &self,
        presence: &Presence,
        ttl: Duration,
    ) -> Result<WorkerMarks, CoordinatorUnreachable> {
        let worker = presence.worker;
        let mut script = self.scripts.publish_presence.prepare_invoke();
        script.key(self.keys.worker(worker)).key(self.keys.workers());
        script.key(self.keys.detach(worker)).key(self.keys.leader_degrade());
        script.arg(worker.to_string()).arg(millis(ttl));
        for (field, value) in presence_to_fields::fields(presence) {
            script.arg(field).arg(value);
        }
        let (detached, ended_term): (bool, Option<String>) =
            self.connection.execute_script(&script).await?;
        let ended_term = ended_term.as_deref().and_then(parse_ended_term);
        let ended_term = ended_term.filter(|(leader, _)| *leader == worker).map(|(_, epoch)| epoch);
        Ok(WorkerMarks { detached, ended_term })
    }

    async fn remove_presence(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        self.connection.with_timeout(self.find_node_and_remove_presence(worker)).await
    }

    async fn mark_detached(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        self.connection.send(&Cmd::pset_ex(self.keys.detach(worker), 1, millis(ttl))).await
    }

    async fn publish_leased_runs(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut commands = Pipeline::with_capacity(runs.len());
        for &run in runs {
            commands.pset_ex(self.keys.run_lease(run), worker.to_string(), millis(ttl)).ignore();
        }
        self.connection.send_all(&commands).await
    }

    async fn notify(&self, notification: Notification) -> Result<(), CoordinatorUnreachable> {
        self.connection
            .send(&Cmd::publish(self.keys.notifications(), notification.to_string()))
            .await
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn Subscription>>, CoordinatorUnreachable> {
        let subscription =
            RedisSubscription::open(Arc::clone(&self.connection), &self.keys.notifications())
                .await?;
        Ok(Some(Box::new(subscription)))
    }
}

/// A script must declare its keys in advance. A key that depends on a stored value therefore takes two steps. The value may
/// change between them, which does no harm here.
impl RedisCoordinator {
    async fn find_node_and_remove_presence(
        &self,
        worker: WorkerId,
    ) -> Result<(), CoordinatorUnreachable> {
        let key = self.keys.worker(worker);
        let node: Option<String> = self.connection.send(&Cmd::hget(&key, "node_id")).await?;
        let node: Option<NodeName> = node.and_then(|node| node.parse().ok());
        let mut script = self.scripts.remove_presence.prepare_invoke();
        script.key(key).key(self.keys.workers());
        // If the presence has expired, the node is unknown. Its subleader lock then expires soon as well.
        if let Some(node) = node {
            script.key(self.keys.subleader_lock(&node));
        }
        script.arg(worker.to_string());
        self.connection.execute_script(&script).await
    }
}

/// Ttl in milliseconds. At least 1, because Redis refuses a ttl of 0.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 40)
}

/// Parses a stored epoch. A value that was never an epoch counts as 0: a leader could not take a higher one. The next leader
/// replaces it.
fn parse_epoch(text: &str) -> Epoch {
    let epoch = text.parse().ok().filter(|epoch| (0..1 << 53).contains(epoch));
    Epoch(epoch.unwrap_or_default())
}

/// Parses the result of the script `find_leader`: worker, epoch, time of the last heartbeat, current time.
fn parse_published_leader(text: &str) -> Option<PublishedLeader> {
    let mut parts = text.split(' ');
    let (worker, epoch) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (at, now): (u64, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(PublishedLeader {
        worker,
        epoch: Epoch(epoch),
        age: Duration::from_micros(now.saturating_sub(at)),
    })
}

fn parse_ended_term(text: &str) -> Option<(WorkerId, Epoch)> {
    let (leader, epoch) = text.split_once(' ')?;
    Some((leader.parse().ok()?, Epoch(epoch.parse().ok()?)))
}
