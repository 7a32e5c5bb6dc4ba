//! What breaks of the servers that nodes need: Redis and the database.

use std::time::Duration;

use tasuki_core::{RunId, RunState};

use super::workers::{ended, run_on_a_worker};
use crate::cluster::Cluster;
use crate::judge::{Bound, Course};
use crate::load::BRIEF;
use crate::net::Party::{Database, Node};
use crate::plan::Pace;

pub(super) fn redis_breaks(
    cluster: &mut Cluster,
    course: &mut Course,
    breaks: impl Fn(&mut Cluster),
) {
    let before = cluster.who_leads();
    course.broke();
    breaks(cluster);
    course.healed();
    cluster.let_pass(Duration::from_secs(12));
    course.expect(cluster.who_leads() == before, "somebody else leads, although only Redis broke");
    cluster.await_all();
}

pub(super) fn database_away(
    cluster: &mut Cluster,
    course: &mut Course,
    time: Duration,
    goes: impl Fn(&mut Cluster),
) {
    let (run, _) = run_on_a_worker(cluster, BRIEF);
    course.outage = true;
    course.broke();
    goes(cluster);
    cluster.let_pass(time);
    cluster.start_database();
    course.healed();
    database_back(cluster, course, run, time);
}

pub(super) fn database_silent(cluster: &mut Cluster, course: &mut Course) {
    let (run, _) = run_on_a_worker(cluster, BRIEF);
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
