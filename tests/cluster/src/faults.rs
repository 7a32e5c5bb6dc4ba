//! What breaks: every fault breaks something in a cluster under load and heals it again.

use std::time::Duration;

use jiff::Timestamp;
use nix::sys::signal::Signal;
use tasuki_core::{RunId, RunState};

use crate::cluster::{Cluster, Pace, Plan, RedisKind};
use crate::judge::{Bound, Course, Measured, Verdict, between};
use crate::load::LONG;
use crate::net::Party::{Database, Node, Redis};
use crate::place::until;
use crate::wire::Flow;

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
        main("leader-killed", "SIGKILL of the leader; started again later", leader_killed),
        main("leader-stopped", "SIGSTOP of the leader for 20 s, then SIGCONT", leader_stopped),
        main("leader-told-to-stop", "SIGTERM of the leader", leader_told_to_stop),
        of_redis("leader-cut-from-redis", "the leader loses Redis", |cluster, course| {
            cut_leader(cluster, course, Some(false), |party| party == Redis);
        }),
        main("leader-cut-from-database", "the leader loses the database", |cluster, course| {
            cut_leader(cluster, course, Some(true), |party| party == Database);
        }),
        fault("leader-cut-from-workers", "the leader loses all workers", |cluster, course| {
            cut_leader(cluster, course, Some(false), |party| matches!(party, Node(_)));
        }),
        fault(
            "leader-with-database-only",
            "the leader has the database and nobody else",
            |cluster, course| {
                // Where Redis is, all see that it is seen by nobody: another may lead.
                cut_leader(cluster, course, None, |party| party != Database);
            },
        ),
        main("leader-cut-from-all", "the leader loses everything", |cluster, course| {
            cut_leader(cluster, course, Some(true), |_| true);
        }),
        main(
            "halves-split",
            "leader and one more on one side, the rest with database and Redis on the other",
            halves_split,
        ),
        fault(
            "halves-split-with-leader",
            "leader, one more and the database on one side, the rest on the other",
            halves_split_with_leader,
        ),
        main(
            "one-way-answers-lost",
            "what the leader asks the database arrives, the answers do not",
            |cluster, course| {
                one_way(cluster, course, true);
            },
        ),
        fault(
            "one-way-questions-lost",
            "what the leader asks the database does not arrive",
            |cluster, course| {
                one_way(cluster, course, false);
            },
        ),
        fault(
            "one-way-orders-lost",
            "what the leader tells workers does not arrive",
            one_way_orders,
        ),
        fault(
            "slow-database",
            "the leader's way to the database takes 300 ms more each way",
            slow_database,
        ),
        main(
            "worker-cut-off-allowed",
            "a worker is cut off in mid-run until it is detached; it may go on",
            worker_allowed,
        ),
        fault(
            "worker-cut-off-refused",
            "a worker with a live child stands still until its run is another's; it is refused",
            worker_refused,
        ),
        main(
            "worker-cut-off-nobody",
            "a worker is cut off in mid-run, and reaches nobody but the database after it",
            worker_nobody,
        ),
        fault("worker-stopped", "SIGSTOP of a worker with a live child for 60 s", worker_stopped),
        main(
            "worker-killed",
            "SIGKILL of a worker in mid-run, started again at once",
            worker_killed,
        ),
        fault("node-lost", "SIGKILL of a worker in mid-run, not started again", node_lost),
        of_redis("redis-restarted", "Redis is killed and comes back empty", |cluster, course| {
            redis_breaks(cluster, course, Cluster::restart_redis);
        }),
        of_redis("redis-flushed", "FLUSHALL", |cluster, course| {
            redis_breaks(cluster, course, |cluster| cluster.flush_redis());
        }),
        of_redis(
            SENTINEL,
            "the primary is killed; the sentinels make the replica the first",
            |cluster, course| {
                redis_breaks(cluster, course, |cluster| {
                    cluster.restart_redis();
                    cluster.await_failover();
                });
            },
        ),
        main("database-restarted", "the database is stopped and started", |cluster, course| {
            database_away(cluster, course, Duration::ZERO, Cluster::stop_database);
        }),
        main("database-killed", "the database is killed and started", |cluster, course| {
            database_away(cluster, course, Duration::ZERO, Cluster::kill_database);
        }),
        fault(
            "database-away-15s",
            "the database is away for 15 s; what runs goes on",
            |cluster, course| {
                database_away(cluster, course, Duration::from_secs(15), Cluster::stop_database);
            },
        ),
        fault(
            "database-silent-15s",
            "nothing gets through to the database for 15 s; what runs goes on",
            database_silent,
        ),
        fault("database-away-60s", "the database is away for 60 s", |cluster, course| {
            database_away(cluster, course, Duration::from_secs(60), Cluster::stop_database);
        }),
        main(
            "rolling-restart",
            "every node is told to stop and started again, one after the other",
            rolling_restart,
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

fn leader_killed(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    course.broke();
    cluster.kill(leader);
    cluster.next_leader(epoch);
    cluster.let_pass(Duration::from_secs(4));
    cluster.spawn(leader);
    course.healed();
    cluster.await_all();
}

fn leader_stopped(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    course.broke();
    cluster.signal(leader, Signal::SIGSTOP);
    cluster.let_pass(Duration::from_secs(20));
    cluster.next_leader(epoch);
    cluster.signal(leader, Signal::SIGCONT);
    course.healed();
    cluster.await_all();
}

fn leader_told_to_stop(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.takeover = Some((epoch, Bound::SUCCESSOR));
    course.broke();
    cluster.stop(leader);
    cluster.next_leader(epoch);
    cluster.stopped(leader);
    cluster.spawn(leader);
    course.healed();
    cluster.await_all();
}

/// Cuts the leader off from some. Whether another must lead then; `None`: it may.
fn cut_leader(
    cluster: &mut Cluster,
    course: &mut Course,
    another: Option<bool>,
    from: impl Fn(crate::Party) -> bool,
) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.broke();
    cluster.net.cut_off(leader, from);
    cluster.let_pass(Duration::from_secs(20));
    match another {
        Some(true) => {
            course.takeover = Some((epoch, Bound::NEXT_LEADER));
            cluster.next_leader(epoch);
        }
        Some(false) => {
            let same = cluster.leader() == Some((leader, epoch));
            course.expect(same, "somebody else leads, although the leader still had the database");
        }
        None => {}
    }
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

fn halves_split(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    let with = cluster.others(leader)[0];
    course.broke();
    cluster.net.split(&[Node(leader), Node(with)]);
    cluster.let_pass(Duration::from_secs(20));
    cluster.next_leader(epoch);
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

fn halves_split_with_leader(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.leader().unwrap();
    let with = cluster.others(leader)[0];
    course.broke();
    cluster.net.split(&[Node(leader), Node(with), Database]);
    cluster.let_pass(Duration::from_secs(20));
    let same = cluster.leader() == Some((leader, epoch));
    course.expect(same, "somebody else leads, although the leader still had the database");
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

fn one_way(cluster: &mut Cluster, course: &mut Course, answers: bool) {
    let (leader, epoch) = cluster.leader().unwrap();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    course.broke();
    match answers {
        true => cluster.net.set(Database, Node(leader), Flow::Held),
        false => cluster.net.set(Node(leader), Database, Flow::Held),
    }
    cluster.let_pass(Duration::from_secs(20));
    cluster.next_leader(epoch);
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

fn one_way_orders(cluster: &mut Cluster, course: &mut Course) {
    let (leader, _) = cluster.leader().unwrap();
    course.broke();
    for other in cluster.others(leader) {
        cluster.net.set(Node(leader), Node(other), Flow::Held);
    }
    cluster.let_pass(Duration::from_secs(20));
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

fn slow_database(cluster: &mut Cluster, course: &mut Course) {
    let (leader, _) = cluster.leader().unwrap();
    course.broke();
    let slow = Flow::Slow(Duration::from_millis(300));
    cluster.net.set(Node(leader), Database, slow);
    cluster.net.set(Database, Node(leader), slow);
    cluster.let_pass(Duration::from_secs(20));
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

/// A long run on a node that does not lead.
fn long_run(cluster: &Cluster) -> (RunId, usize) {
    let (run, node) = cluster.trigger(LONG);
    assert_ne!(cluster.leader().map(|(leader, _)| leader), Some(node), "the leader only plans");
    (run, node)
}

/// Which attempt at a run is, or was, the last, and how the run stands.
fn standing(cluster: &Cluster, run: RunId) -> Option<(u32, RunState)> {
    let run = cluster.run(run)?;
    Some((run.counters.attempt_no, run.state))
}

fn ended(cluster: &Cluster, run: RunId) -> (u32, RunState) {
    until("the long run has ended", || standing(cluster, run).filter(|(_, state)| state.is_ended()))
}

fn worker_allowed(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = long_run(cluster);
    let worker = cluster.worker(node).unwrap();
    course.broke();
    cluster.net.cut_off(node, |_| true);
    until("it was detached", || cluster.is_detached(worker).then_some(()));
    cluster.net.heal();
    course.healed();
    let (attempt, state) = ended(cluster, run);
    course.expect(
        (attempt, state) == (1, RunState::Succeeded),
        "what a detached worker may go on with did not end well with it",
    );
    cluster.await_all();
}

fn worker_nobody(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = long_run(cluster);
    let worker = cluster.worker(node).unwrap();
    course.broke();
    cluster.net.cut_off(node, |_| true);
    until("it was detached", || cluster.is_detached(worker).then_some(()));
    // The database alone comes back: it learns that it was detached, and nobody answers its question.
    cluster.net.set(Node(node), Database, Flow::Open);
    cluster.net.set(Database, Node(node), Flow::Open);
    until("it stopped what nobody said it may go on with", || {
        standing(cluster, run).filter(|(attempt, state)| *attempt > 1 || state.is_waiting())
    });
    cluster.net.heal();
    course.healed();
    let (attempt, state) = ended(cluster, run);
    course.expect(attempt > 1 && state == RunState::Succeeded, "it was not tried again to its end");
    cluster.await_all();
}

/// Stands still for so long with a live child; what it ran is another's when it wakes up.
fn worker_still(cluster: &mut Cluster, course: &mut Course, time: Duration) {
    let (run, node) = long_run(cluster);
    course.broke();
    cluster.signal(node, Signal::SIGSTOP);
    cluster.let_pass(time);
    until("its run is another's", || {
        standing(cluster, run).filter(|(attempt, state)| *attempt > 1 || state.is_waiting())
    });
    cluster.signal(node, Signal::SIGCONT);
    course.healed();
    let (attempt, state) = ended(cluster, run);
    course.expect(attempt > 1 && state == RunState::Succeeded, "it was not tried again to its end");
    cluster.await_all();
}

fn worker_refused(cluster: &mut Cluster, course: &mut Course) {
    worker_still(cluster, course, Duration::ZERO);
}

fn worker_stopped(cluster: &mut Cluster, course: &mut Course) {
    worker_still(cluster, course, Duration::from_secs(60));
}

fn worker_killed(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = long_run(cluster);
    course.broke();
    cluster.kill(node);
    cluster.spawn(node);
    course.healed();
    let since = course.broke_at;
    until("its run was recovered", || {
        standing(cluster, run).filter(|(attempt, state)| *attempt > 1 || state.is_waiting())
    });
    course.measure(Bound::RESTARTED, since);
    let (attempt, state) = ended(cluster, run);
    course.expect(attempt > 1 && state == RunState::Succeeded, "it was not tried again to its end");
    cluster.await_all();
}

fn node_lost(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = long_run(cluster);
    course.broke();
    cluster.kill(node);
    let since = course.broke_at;
    until("its run was recovered", || {
        standing(cluster, run).filter(|(attempt, state)| *attempt > 1 || state.is_waiting())
    });
    course.measure(Bound::NODE_LOST, since);
    cluster.spawn(node);
    course.healed();
    let (attempt, state) = ended(cluster, run);
    course.expect(attempt > 1 && state == RunState::Succeeded, "it was not tried again to its end");
    cluster.await_all();
}

fn redis_breaks(cluster: &mut Cluster, course: &mut Course, breaks: impl Fn(&mut Cluster)) {
    let before = cluster.leader();
    course.broke();
    breaks(cluster);
    course.healed();
    cluster.let_pass(Duration::from_secs(12));
    course.expect(cluster.leader() == before, "somebody else leads, although only Redis broke");
    cluster.await_all();
}

fn database_away(
    cluster: &mut Cluster,
    course: &mut Course,
    time: Duration,
    goes: impl Fn(&mut Cluster),
) {
    let (run, _) = long_run(cluster);
    course.outage = true;
    course.broke();
    goes(cluster);
    cluster.let_pass(time);
    cluster.start_database();
    course.healed();
    database_back(cluster, course, run, time);
}

fn database_silent(cluster: &mut Cluster, course: &mut Course) {
    let (run, _) = long_run(cluster);
    course.outage = true;
    course.broke();
    let nodes = 0..cluster.plan().nodes;
    nodes.for_each(|node| cluster.net.cut(Node(node), Database));
    cluster.let_pass(Duration::from_secs(15));
    cluster.net.heal();
    course.healed();
    database_back(cluster, course, run, Duration::from_secs(15));
}

/// After an outage that is to be borne, what ran has gone on, and its result is recorded.
fn database_back(cluster: &mut Cluster, course: &mut Course, run: RunId, away: Duration) {
    let (attempt, state) = ended(cluster, run);
    if away <= Duration::from_secs(15) {
        let well = (attempt, state) == (1, RunState::Succeeded);
        course.expect(well, "what ran when the database went did not end well by itself");
        // It takes about twelve seconds, so it has ended while the database was away.
        if away > Duration::ZERO && cluster.plan().pace == Pace::Default {
            course.measure(Bound::RECORDED, course.healed_at);
        }
    }
    cluster.await_all();
}

fn rolling_restart(cluster: &mut Cluster, course: &mut Course) {
    course.broke();
    let (first, _) = cluster.leader().unwrap();
    // The leader last, so that the lead moves once.
    let mut order = cluster.others(first);
    order.push(first);
    for node in order {
        cluster.stop(node);
        cluster.stopped(node);
        cluster.spawn(node);
        until("it is there again", || cluster.worker(node));
    }
    course.healed();
    cluster.await_all();
}
