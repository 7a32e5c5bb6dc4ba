//! The coordinator on Redis: one server, Sentinel or Cluster.
//!
//! Everything kept here is a hint that may be lost, and most of it lapses by itself. Steps that must not be torn
//! apart are scripts; what time it is, Redis says. A Redis that comes back empty is filled again by those who show
//! themselves and by whoever leads.

mod config;
mod find;
mod hearing;
mod keys;
mod line;
mod presence;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Script};
use async_trait::async_trait;
use tasuki::node::coordination::coordinate::{
    Coordinator, Hearing, Presence, Sighting, Unreachable, Wanted,
};
use tasuki_core::{Epoch, Invalid, NodeName, RunId, WorkerId};
use tasuki_store::News;

pub use config::RedisConfig;
use hearing::Ear;
use keys::Keys;
use line::Line;

/// Where workers meet on Redis.
///
/// Clones share one connection, which is made when it is first needed and made anew when it is lost, also to
/// another server after a failover. A call takes a second at most; while Redis is away, most are refused at once.
#[derive(Clone)]
pub struct RedisCoordinator {
    line: Arc<Line>,
    keys: Keys,
    scripts: Arc<Scripts>,
}

struct Scripts {
    stand: Script,
    leads: Script,
    resigns: Script,
    leader_seen: Script,
    watch: Script,
    show: Script,
    hide: Script,
}

impl RedisCoordinator {
    /// One that is not connected yet: a Redis that is away does not keep a node from starting. Refused are
    /// certificates that cannot be read.
    pub fn new(config: RedisConfig) -> Result<Self, Invalid> {
        if config.client(&config.hosts[0]).is_err() {
            let expected = "certificates and a key in PEM";
            return Err(Invalid::described("redis certificates", "something else", expected));
        }
        let scripts = Scripts {
            stand: Script::new(include_str!("../lua/stand.lua")),
            leads: Script::new(include_str!("../lua/leads.lua")),
            resigns: Script::new(include_str!("../lua/resigns.lua")),
            leader_seen: Script::new(include_str!("../lua/leader_seen.lua")),
            watch: Script::new(include_str!("../lua/watch.lua")),
            show: Script::new(include_str!("../lua/show.lua")),
            hide: Script::new(include_str!("../lua/hide.lua")),
        };
        let keys = Keys::new(&config.prefix);
        Ok(Self { line: Arc::new(Line::new(config)), keys, scripts: Arc::new(scripts) })
    }
}

impl fmt::Debug for RedisCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisCoordinator").field(self.line.config()).finish()
    }
}

#[async_trait]
impl Coordinator for RedisCoordinator {
    async fn stand(&self, worker: WorkerId, ttl: Duration) -> Result<Option<Epoch>, Unreachable> {
        let mut script = self.scripts.stand.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_epoch());
        script.arg(worker.to_string()).arg(millis(ttl));
        let mirror: Option<String> = self.line.run(&script).await?;
        Ok(mirror.as_deref().map(read_mirror))
    }

    async fn leads(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        let mut script = self.scripts.leads.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_epoch());
        script.key(self.keys.leader_last_seen());
        script.arg(worker.to_string()).arg(epoch.0).arg(millis(ttl));
        self.line.run(&script).await
    }

    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable> {
        let mut script = self.scripts.resigns.prepare_invoke();
        script.key(self.keys.leader_lock()).key(self.keys.leader_last_seen());
        script.arg(worker.to_string());
        self.line.run(&script).await
    }

    async fn leader_seen(&self) -> Result<Option<Sighting>, Unreachable> {
        let mut script = self.scripts.leader_seen.prepare_invoke();
        script.key(self.keys.leader_last_seen());
        let seen: Option<String> = self.line.run(&script).await?;
        Ok(seen.as_deref().and_then(read_sighting))
    }

    async fn degrade(&self, leader: WorkerId, epoch: Epoch) -> Result<(), Unreachable> {
        let word = format!("{leader} {epoch}");
        self.line.send(&Cmd::set(self.keys.leader_degrade(), word)).await
    }

    async fn watch(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, Unreachable> {
        let mut script = self.scripts.watch.prepare_invoke();
        script.key(self.keys.subleader_lock(node));
        script.arg(worker.to_string()).arg(millis(ttl));
        self.line.run(&script).await.map(Some)
    }

    async fn show(&self, presence: &Presence, ttl: Duration) -> Result<Wanted, Unreachable> {
        let worker = presence.worker;
        let mut script = self.scripts.show.prepare_invoke();
        script.key(self.keys.worker(worker)).key(self.keys.workers());
        script.key(self.keys.detach(worker)).key(self.keys.leader_degrade());
        script.arg(worker.to_string()).arg(millis(ttl));
        for (field, value) in presence::write(presence) {
            script.arg(field).arg(value);
        }
        let (detach, degrade): (bool, Option<String>) = self.line.run(&script).await?;
        let degrade = degrade.as_deref().and_then(read_degrade);
        let degrade = degrade.filter(|(leader, _)| *leader == worker).map(|(_, epoch)| epoch);
        Ok(Wanted { detach, degrade })
    }

    async fn hide(&self, worker: WorkerId) -> Result<(), Unreachable> {
        self.line.within(self.hide_in_steps(worker)).await
    }

    async fn detach(&self, worker: WorkerId, ttl: Duration) -> Result<(), Unreachable> {
        self.line.send(&Cmd::pset_ex(self.keys.detach(worker), 1, millis(ttl))).await
    }

    async fn carries(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut hints = Pipeline::with_capacity(runs.len());
        for &run in runs {
            hints.pset_ex(self.keys.run_lease(run), worker.to_string(), millis(ttl)).ignore();
        }
        self.line.send_all(&hints).await
    }

    async fn tell(&self, news: News) -> Result<(), Unreachable> {
        self.line.send(&Cmd::publish(self.keys.wake(), news.to_string())).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Hearing>>, Unreachable> {
        let ear = Ear::open(Arc::clone(&self.line), &self.keys.wake()).await?;
        Ok(Some(Box::new(ear)))
    }
}

/// A script names its keys beforehand, so what depends on a value that is kept there takes a second step. Between the
/// two anything may change; neither does harm by that.
impl RedisCoordinator {
    async fn hide_in_steps(&self, worker: WorkerId) -> Result<(), Unreachable> {
        let key = self.keys.worker(worker);
        let node: Option<String> = self.line.send(&Cmd::hget(&key, "node")).await?;
        let node: Option<NodeName> = node.and_then(|node| node.parse().ok());
        let mut script = self.scripts.hide.prepare_invoke();
        script.key(key).key(self.keys.workers());
        // One that was not seen for so long that its node is forgotten loses its watch soon as well.
        if let Some(node) = node {
            script.key(self.keys.subleader_lock(&node));
        }
        script.arg(worker.to_string());
        self.line.run(&script).await
    }
}

/// Redis refuses what would lapse at once.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 40)
}

/// What cannot have been an epoch mirrors nothing: a mint above it would find no number. Whoever leads next puts it
/// right.
fn read_mirror(mirror: &str) -> Epoch {
    let epoch = mirror.parse().ok().filter(|epoch| (0..1 << 53).contains(epoch));
    Epoch(epoch.unwrap_or_default())
}

/// Worker, epoch, when it was seen, what time it is.
fn read_sighting(seen: &str) -> Option<Sighting> {
    let mut words = seen.split(' ');
    let (worker, epoch) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (at, now): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Sighting {
        worker,
        epoch: Epoch(epoch),
        ago: Duration::from_micros(now.saturating_sub(at)),
    })
}

fn read_degrade(word: &str) -> Option<(WorkerId, Epoch)> {
    let (leader, epoch) = word.split_once(' ')?;
    Some((leader.parse().ok()?, Epoch(epoch.parse().ok()?)))
}
