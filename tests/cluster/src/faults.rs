//! What breaks: every fault breaks something in a cluster under load and heals it again.

mod leaders;
mod servers;
mod workers;

use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::Cluster;
use crate::judge::{Bound, Course, Measured, Verdict, between};
use crate::net::Party::{Database, Node, Redis};
use crate::plan::{Plan, RedisKind};

/// Something that breaks.
#[derive(Clone, Copy)]
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// What is broken, and what is expected of it.
    pub what: &'static str,
    /// Whether it is about Redis.
    pub of_redis: bool,
    /// Whether it is worth its time on every kind of cluster.
    pub everywhere: bool,
    breaks: fn(&mut Cluster, &mut Course),
}

impl Fault {
    /// Starts a cluster, breaks it while jobs fire, heals it, and judges.
    pub fn strike(&self, plan: Plan) -> Verdict {
        let mut cluster = Cluster::start(plan);
        cluster.load();
        let mut course = Course::default();
        (self.breaks)(&mut cluster, &mut course);
        let mut verdict = cluster.judge(course);
        if !verdict.broken.is_empty() {
            verdict.broken.push(cluster.keep());
        }
        verdict
    }

    /// Whether it can be done to such a cluster.
    pub fn suits(&self, redis: RedisKind) -> bool {
        match redis {
            RedisKind::None => !self.of_redis,
            RedisKind::One | RedisKind::Cluster => self.name != SENTINEL,
            // It cannot be cut off, and is known well enough from the others.
            RedisKind::Sentinel => self.name == SENTINEL,
        }
    }
}

const SENTINEL: &str = "sentinel-failover";

/// Every fault there is.
pub fn all_faults() -> Vec<Fault> {
    let fault =
        |name, what, breaks| Fault { name, what, of_redis: false, everywhere: false, breaks };
    let main = |name, what, breaks| Fault { everywhere: true, ..fault(name, what, breaks) };
    let of_redis = |name, what, breaks| Fault { of_redis: true, ..fault(name, what, breaks) };
    vec![
        main("leader-killed", "SIGKILL of the leader; started again later", leaders::killed),
        main("leader-stopped", "SIGSTOP of the leader for 20 s, then SIGCONT", leaders::stopped),
        main("leader-told-to-stop", "SIGTERM of the leader", leaders::told_to_stop),
        of_redis("leader-cut-from-redis", "the leader loses Redis", |cluster, course| {
            leaders::cut_off(cluster, course, Some(false), |party| party == Redis);
        }),
        main("leader-cut-from-database", "the leader loses the database", |cluster, course| {
            leaders::cut_off(cluster, course, Some(true), |party| party == Database);
        }),
        fault("leader-cut-from-workers", "the leader loses all workers", |cluster, course| {
            leaders::cut_off(cluster, course, Some(false), |party| matches!(party, Node(_)));
        }),
        fault(
            "leader-with-database-only",
            "the leader has the database and nobody else",
            |cluster, course| {
                // Where Redis is, all see that it is seen by nobody: another may lead.
                leaders::cut_off(cluster, course, None, |party| party != Database);
            },
        ),
        main("leader-cut-from-all", "the leader loses everything", |cluster, course| {
            leaders::cut_off(cluster, course, Some(true), |_| true);
        }),
        main(
            "halves-split",
            "leader and one more on one side, the rest with database and Redis on the other",
            leaders::halves_split,
        ),
        fault(
            "halves-split-with-leader",
            "leader, one more and the database on one side, the rest on the other",
            leaders::halves_split_with_leader,
        ),
        main(
            "one-way-answers-lost",
            "what the leader asks the database arrives, the answers do not",
            |cluster, course| {
                leaders::one_way(cluster, course, true);
            },
        ),
        fault(
            "one-way-questions-lost",
            "what the leader asks the database does not arrive",
            |cluster, course| {
                leaders::one_way(cluster, course, false);
            },
        ),
        fault(
            "one-way-orders-lost",
            "what the leader tells workers does not arrive",
            leaders::one_way_orders,
        ),
        fault(
            "slow-database",
            "the leader's way to the database takes 300 ms more each way",
            leaders::slow_database,
        ),
        main(
            "worker-cut-off-allowed",
            "a worker is cut off in mid-run until it is detached; it may go on",
            workers::allowed,
        ),
        fault(
            "worker-cut-off-refused",
            "a worker is cut off in mid-run until it is detached; it asks for too long, and is refused",
            workers::refused,
        ),
        main(
            "worker-cut-off-nobody",
            "a worker is cut off in mid-run, and reaches nobody but the database after it",
            workers::nobody,
        ),
        fault("worker-stopped", "SIGSTOP of a worker with a live child for 60 s", workers::stopped),
        main(
            "worker-killed",
            "SIGKILL of a worker in mid-run, started again at once",
            workers::killed,
        ),
        fault("node-lost", "SIGKILL of a worker in mid-run, not started again", workers::lost),
        of_redis("redis-restarted", "Redis is killed and comes back empty", |cluster, course| {
            servers::redis_breaks(cluster, course, Cluster::restart_redis);
        }),
        of_redis("redis-flushed", "FLUSHALL", |cluster, course| {
            servers::redis_breaks(cluster, course, |cluster| cluster.flush_redis());
        }),
        of_redis(
            SENTINEL,
            "the primary is killed; the sentinels make the replica the first",
            |cluster, course| {
                servers::redis_breaks(cluster, course, |cluster| {
                    cluster.restart_redis();
                    cluster.await_failover();
                });
            },
        ),
        main("database-restarted", "the database is stopped and started", |cluster, course| {
            servers::database_away(cluster, course, Duration::ZERO, Cluster::stop_database);
        }),
        main("database-killed", "the database is killed and started", |cluster, course| {
            servers::database_away(cluster, course, Duration::ZERO, Cluster::kill_database);
        }),
        fault(
            "database-away-15s",
            "the database is away for 15 s; what runs goes on",
            |cluster, course| {
                servers::database_away(
                    cluster,
                    course,
                    Duration::from_secs(15),
                    Cluster::stop_database,
                );
            },
        ),
        fault(
            "database-silent-15s",
            "nothing gets through to the database for 15 s; what runs goes on",
            servers::database_silent,
        ),
        fault("database-away-60s", "the database is away for 60 s", |cluster, course| {
            servers::database_away(
                cluster,
                course,
                Duration::from_secs(60),
                Cluster::stop_database,
            );
        }),
        main(
            "rolling-restart",
            "every node is told to stop and started again, one after the other",
            workers::rolling_restart,
        ),
    ]
}

impl Course {
    fn broke(&mut self) {
        self.broke_at = Timestamp::now();
    }

    fn healed(&mut self) {
        self.healed_at = Timestamp::now();
    }

    fn measure(&mut self, bound: Bound, since: Timestamp) {
        let seconds = between(since, Timestamp::now());
        self.measured.push(Measured { bound, seconds });
    }

    fn expect(&mut self, is_so: bool, what: &str) {
        if !is_so {
            self.broken.push(what.to_owned());
        }
    }
}
