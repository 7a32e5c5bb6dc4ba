//! The Redis deployment and the database of a cluster, and the faults that a test can inject into them.

use crate::cluster::Cluster;
use crate::cluster_config::{ClusterConfig, RedisKind};
use crate::network::RedisRoute;
use crate::redis;
use crate::test_support::free_port;

/// The Redis that the nodes share.
pub(crate) enum RedisDeployment {
    None,
    One(redis::RedisServer),
    Sentinels(redis::RedisSentinels),
    Cluster(redis::RedisCluster),
}

impl RedisDeployment {
    pub(crate) fn start(config: &ClusterConfig) -> Self {
        match config.redis {
            RedisKind::None => Self::None,
            RedisKind::One => Self::One(redis::RedisServer::standalone()),
            RedisKind::Sentinel => Self::Sentinels(redis::RedisSentinels::start()),
            RedisKind::Cluster => Self::Cluster(match config.proxies {
                true => redis::RedisCluster::announcing([(); 3].map(|()| free_port())),
                false => redis::RedisCluster::start(),
            }),
        }
    }

    /// The Redis URL for a node. `proxy_port` maps the port of a single server to the port of the node's proxy.
    pub(crate) fn url(&self, proxy_port: impl Fn(u16) -> u16) -> Option<String> {
        match self {
            Self::None => None,
            Self::One(server) => Some(redis::url(proxy_port(server.port))),
            Self::Sentinels(all) => Some(all.url()),
            Self::Cluster(all) => Some(all.url()),
        }
    }

    pub(crate) fn route(&self) -> RedisRoute {
        match self {
            Self::None => RedisRoute::None,
            Self::One(server) => RedisRoute::Port(server.port),
            Self::Sentinels(_) => RedisRoute::Direct,
            Self::Cluster(all) => RedisRoute::Announced(all.port_pairs()),
        }
    }
}

impl Cluster {
    /// Whether the database server runs.
    pub fn is_database_running(&self) -> bool {
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

    /// Whether there is a running Redis that a fault can break. With sentinels that is the original primary.
    pub fn is_redis_running(&self) -> bool {
        match &self.redis {
            RedisDeployment::None => false,
            RedisDeployment::One(server) => server.is_up(),
            RedisDeployment::Sentinels(all) => all.primary.is_up(),
            RedisDeployment::Cluster(all) => all.nodes.iter().all(redis::RedisServer::is_up),
        }
    }

    /// Kills the Redis servers and starts them again, without their data. With sentinels it only kills the primary:
    /// the sentinels must promote the replica.
    pub fn restart_redis(&mut self) {
        match &mut self.redis {
            RedisDeployment::None => panic!("the cluster has no Redis"),
            RedisDeployment::One(server) => {
                server.kill();
                server.start();
            }
            RedisDeployment::Sentinels(all) => all.primary.kill(),
            RedisDeployment::Cluster(all) => {
                for node in &mut all.nodes {
                    node.kill();
                    node.start();
                }
            }
        }
    }

    /// Deletes all data in Redis (FLUSHALL).
    pub fn flush_redis(&self) {
        match &self.redis {
            RedisDeployment::None => panic!("the cluster has no Redis"),
            RedisDeployment::One(server) => server.run_command::<()>(&["FLUSHALL"]),
            RedisDeployment::Sentinels(all) => all.primary.run_command::<()>(&["FLUSHALL"]),
            RedisDeployment::Cluster(all) => {
                all.nodes.iter().for_each(|one| one.run_command::<()>(&["FLUSHALL"]));
            }
        }
    }

    /// Waits until the sentinels have promoted the replica to primary.
    pub fn await_failover(&mut self) {
        if let RedisDeployment::Sentinels(all) = &mut self.redis {
            all.replica.wait_until("the replica is the primary", |replica| {
                // A promotion closes all connections of the replica, also this one, so errors are ignored.
                let info = replica.try_run_command::<String>(&["INFO", "replication"]);
                info.is_some_and(|info| info.contains("role:master"))
            });
        }
    }
}
