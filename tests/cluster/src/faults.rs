//! Faults: each one breaks something in a cluster under load and heals it again.

mod leaders;
mod servers;
mod workers;

use std::time::Duration;

use jiff::Timestamp;

use crate::checker::{CheckResult, FaultRecord, Measurement, TimeBound, seconds_between};
use crate::cluster::Cluster;
use crate::cluster_config::{ClusterConfig, RedisKind};
use crate::network::NetworkEndpoint::{Database, Node, Redis};

/// A fault that can be injected into a cluster.
#[derive(Clone, Copy)]
pub struct ClusterFault {
    /// Unique name, as shown by `cargo xtask chaos --list`.
    pub name: &'static str,
    /// What the fault breaks, and what is expected.
    pub description: &'static str,
    /// Whether the fault needs a cluster with Redis.
    pub needs_redis: bool,
    /// Whether the chaos test runs the fault on every kind of cluster, and not only on the main kinds.
    pub on_every_kind: bool,
    inject: fn(&mut Cluster, &mut FaultRecord),
}

impl ClusterFault {
    /// Starts a cluster, injects the fault while jobs fire, heals it, and checks the result.
    pub fn run_on(&self, config: ClusterConfig) -> CheckResult {
        let mut cluster = Cluster::start(config);
        cluster.start_load();
        let mut record = FaultRecord::default();
        (self.inject)(&mut cluster, &mut record);
        let mut result = cluster.check_after_fault(record);
        if !result.violations.is_empty() {
            result.violations.push(cluster.keep_logs());
        }
        result
    }

    /// Whether the fault can be injected into a cluster with this kind of Redis.
    pub fn applies_to(&self, redis: RedisKind) -> bool {
        match redis {
            RedisKind::None => !self.needs_redis,
            RedisKind::One | RedisKind::Cluster => self.name != SENTINEL,
            // Connections to sentinels have no proxies, and the other kinds cover the other faults.
            RedisKind::Sentinel => self.name == SENTINEL,
        }
    }
}

const SENTINEL: &str = "sentinel-failover";

/// All faults.
pub fn all_faults() -> Vec<ClusterFault> {
    let fault = |name, description, inject| ClusterFault {
        name,
        description,
        needs_redis: false,
        on_every_kind: false,
        inject,
    };
    let main = |name, description, inject| ClusterFault {
        on_every_kind: true,
        ..fault(name, description, inject)
    };
    let redis = |name, description, inject| ClusterFault {
        needs_redis: true,
        ..fault(name, description, inject)
    };
    vec![
        main("leader-killed", "SIGKILL of the leader; started again later", leaders::kill),
        main(
            "leader-stopped",
            "SIGSTOP of the leader for 20 s, then SIGCONT",
            leaders::stop_and_continue,
        ),
        main("leader-terminated", "SIGTERM of the leader", leaders::terminate),
        redis("leader-cut-from-redis", "the leader loses Redis", |cluster, record| {
            leaders::isolate(cluster, record, Some(false), |endpoint| endpoint == Redis);
        }),
        main("leader-cut-from-database", "the leader loses the database", |cluster, record| {
            leaders::isolate(cluster, record, Some(true), |endpoint| endpoint == Database);
        }),
        fault("leader-cut-from-workers", "the leader loses all workers", |cluster, record| {
            leaders::isolate(cluster, record, Some(false), |endpoint| matches!(endpoint, Node(_)));
        }),
        fault(
            "leader-with-database-only",
            "the leader reaches only the database",
            |cluster, record| {
                // With Redis all nodes see that the leader is not reachable, so another node may become the leader.
                leaders::isolate(cluster, record, None, |endpoint| endpoint != Database);
            },
        ),
        main("leader-cut-from-all", "the leader loses everything", |cluster, record| {
            leaders::isolate(cluster, record, Some(true), |_| true);
        }),
        main(
            "halves-split",
            "the leader and one more node on one side; the other nodes, the database and Redis on the other",
            leaders::split_from_servers,
        ),
        fault(
            "halves-split-with-leader",
            "the leader, one more node and the database on one side; the other nodes on the other",
            leaders::split_with_database,
        ),
        main(
            "database-responses-lost",
            "the leader's requests reach the database, but the responses do not arrive",
            |cluster, record| {
                leaders::block_database_one_way(cluster, record, true);
            },
        ),
        fault(
            "database-requests-lost",
            "the leader's requests do not reach the database",
            |cluster, record| {
                leaders::block_database_one_way(cluster, record, false);
            },
        ),
        fault("orders-lost", "the leader's orders do not reach the workers", leaders::block_orders),
        fault(
            "slow-database",
            "the leader's connection to the database is delayed by 300 ms in each direction",
            leaders::delay_database,
        ),
        main(
            "worker-cut-off-allowed",
            "a worker is cut off during a run until it is detached; it may continue",
            workers::isolate_and_allow,
        ),
        fault(
            "worker-cut-off-refused",
            "a worker is cut off during a run until it is detached; its request to continue comes too late and is refused",
            workers::isolate_and_refuse,
        ),
        main(
            "worker-cut-off-unanswered",
            "a worker is cut off during a run, and afterwards reaches only the database",
            workers::isolate_without_answer,
        ),
        fault(
            "worker-stopped",
            "SIGSTOP of a worker with a running child process for 60 s",
            workers::stop_and_continue,
        ),
        main(
            "worker-killed",
            "SIGKILL of a worker during a run; started again immediately",
            workers::kill_and_restart,
        ),
        fault(
            "node-lost",
            "SIGKILL of a worker during a run; not started again",
            workers::kill_without_restart,
        ),
        redis(
            "redis-restarted",
            "Redis is killed and started again without data",
            |cluster, record| {
                servers::break_redis(cluster, record, Cluster::restart_redis);
            },
        ),
        redis("redis-flushed", "all data in Redis is deleted (FLUSHALL)", |cluster, record| {
            servers::break_redis(cluster, record, |cluster| cluster.flush_redis());
        }),
        redis(
            SENTINEL,
            "the Redis primary is killed; the sentinels promote the replica",
            |cluster, record| {
                servers::break_redis(cluster, record, |cluster| {
                    cluster.restart_redis();
                    cluster.await_failover();
                });
            },
        ),
        main("database-restarted", "the database is stopped and started", |cluster, record| {
            servers::stop_database_for(cluster, record, Duration::ZERO, Cluster::stop_database);
        }),
        main("database-killed", "the database is killed and started", |cluster, record| {
            servers::stop_database_for(cluster, record, Duration::ZERO, Cluster::kill_database);
        }),
        fault(
            "database-down-15s",
            "the database is down for 15 s; running jobs continue",
            |cluster, record| {
                servers::stop_database_for(
                    cluster,
                    record,
                    Duration::from_secs(15),
                    Cluster::stop_database,
                );
            },
        ),
        fault(
            "database-silent-15s",
            "all connections to the database are blocked for 15 s; running jobs continue",
            servers::block_database,
        ),
        fault("database-down-60s", "the database is down for 60 s", |cluster, record| {
            servers::stop_database_for(
                cluster,
                record,
                Duration::from_secs(60),
                Cluster::stop_database,
            );
        }),
        main(
            "rolling-restart",
            "all nodes are stopped with SIGTERM and started again, one after the other",
            workers::rolling_restart,
        ),
    ]
}

impl FaultRecord {
    fn mark_broken(&mut self) {
        self.broke_at = Timestamp::now();
    }

    fn mark_healed(&mut self) {
        self.healed_at = Timestamp::now();
    }

    fn measure(&mut self, bound: TimeBound, since: Timestamp) {
        let seconds = seconds_between(since, Timestamp::now());
        self.measurements.push(Measurement { bound, seconds });
    }

    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.violations.push(what.to_owned());
        }
    }
}
