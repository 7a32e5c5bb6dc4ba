//! The servers that nodes need, and what can be done to them.

use crate::cluster::Cluster;
use crate::net::ToRedis;
use crate::place::free_port;
use crate::plan::{Plan, RedisKind};
use crate::redis;

/// The Redis that the nodes share.
pub(crate) enum Redis {
    None,
    One(redis::Server),
    Sentinels(redis::Sentinels),
    Cluster(redis::Cluster),
}

impl Redis {
    pub(crate) fn start(plan: &Plan) -> Self {
        match plan.redis {
            RedisKind::None => Self::None,
            RedisKind::One => Self::One(redis::Server::standalone()),
            RedisKind::Sentinel => Self::Sentinels(redis::Sentinels::start()),
            RedisKind::Cluster => Self::Cluster(match plan.wires {
                true => redis::Cluster::announcing([(); 3].map(|()| free_port())),
                false => redis::Cluster::start(),
            }),
        }
    }

    /// Where a node finds it, whose way to the one server begins at this port.
    pub(crate) fn url(&self, begins: impl Fn(u16) -> u16) -> Option<String> {
        match self {
            Self::None => None,
            Self::One(server) => Some(redis::url(begins(server.port))),
            Self::Sentinels(all) => Some(all.url()),
            Self::Cluster(all) => Some(all.url()),
        }
    }

    pub(crate) fn way(&self) -> ToRedis {
        match self {
            Self::None => ToRedis::None,
            Self::One(server) => ToRedis::Port(server.port),
            Self::Sentinels(_) => ToRedis::Direct,
            Self::Cluster(all) => ToRedis::Announced(all.doors()),
        }
    }
}

impl Cluster {
    /// Whether the database runs.
    pub fn has_database(&self) -> bool {
        self.database.is_up()
    }

    /// Stops the database in order.
    pub fn stop_database(&mut self) {
        self.database.stop();
    }

    /// Kills the database.
    pub fn kill_database(&mut self) {
        self.database.kill();
    }

    /// Starts the database again, and waits until it answers.
    pub fn start_database(&mut self) {
        self.database.start();
    }

    /// Whether there is a Redis that can be broken. Where sentinels make another the first, that is the first one.
    pub fn has_redis(&self) -> bool {
        match &self.redis {
            Redis::None => false,
            Redis::One(server) => server.is_up(),
            Redis::Sentinels(all) => all.primary.is_up(),
            Redis::Cluster(all) => all.nodes.iter().all(redis::Server::is_up),
        }
    }

    /// Kills Redis, or the one that has the data, and starts it again if that is not for others to make good:
    /// it has forgotten everything.
    pub fn restart_redis(&mut self) {
        match &mut self.redis {
            Redis::None => panic!("there is no Redis"),
            Redis::One(server) => {
                server.kill();
                server.start();
            }
            Redis::Sentinels(all) => all.primary.kill(),
            Redis::Cluster(all) => {
                for node in &mut all.nodes {
                    node.kill();
                    node.start();
                }
            }
        }
    }

    /// Makes Redis forget everything.
    pub fn flush_redis(&self) {
        match &self.redis {
            Redis::None => panic!("there is no Redis"),
            Redis::One(server) => server.ask::<()>(&["FLUSHALL"]),
            Redis::Sentinels(all) => all.primary.ask::<()>(&["FLUSHALL"]),
            Redis::Cluster(all) => all.nodes.iter().for_each(|one| one.ask::<()>(&["FLUSHALL"])),
        }
    }

    /// Waits until the sentinels have made the replica the first.
    pub fn await_failover(&mut self) {
        if let Redis::Sentinels(all) = &mut self.redis {
            all.replica.wait("the replica is the first", |replica| {
                // Whoever makes it the first closes all its connections, ours too.
                let told = replica.try_ask::<String>(&["INFO", "replication"]);
                told.is_some_and(|told| told.contains("role:master"))
            });
        }
    }
}
