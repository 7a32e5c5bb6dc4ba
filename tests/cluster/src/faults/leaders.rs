//! What breaks of a leader, and between a leader and others.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cluster::Cluster;
use crate::judge::{Bound, Course};
use crate::net::Party::{self, Database, Node};
use crate::wire::Flow;

pub(super) fn killed(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.who_leads();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    course.broke();
    cluster.kill(leader);
    cluster.next_leader(epoch);
    cluster.let_pass(Duration::from_secs(4));
    cluster.spawn(leader);
    course.healed();
    cluster.await_all();
}

pub(super) fn stopped(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.who_leads();
    course.takeover = Some((epoch, Bound::NEXT_LEADER));
    course.broke();
    cluster.signal(leader, Signal::SIGSTOP);
    cluster.let_pass(Duration::from_secs(20));
    cluster.next_leader(epoch);
    cluster.signal(leader, Signal::SIGCONT);
    course.healed();
    cluster.await_all();
}

pub(super) fn told_to_stop(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.who_leads();
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
pub(super) fn cut_off(
    cluster: &mut Cluster,
    course: &mut Course,
    another: Option<bool>,
    from: impl Fn(Party) -> bool,
) {
    let (leader, epoch) = cluster.who_leads();
    course.broke();
    cluster.net.cut_off(leader, from);
    cluster.let_pass(Duration::from_secs(20));
    match another {
        Some(true) => {
            course.takeover = Some((epoch, Bound::NEXT_LEADER));
            cluster.next_leader(epoch);
        }
        Some(false) => {
            let same = cluster.who_leads() == (leader, epoch);
            course.expect(same, "somebody else leads, although the leader still had the database");
        }
        None => {}
    }
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

pub(super) fn halves_split(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.who_leads();
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

pub(super) fn halves_split_with_leader(cluster: &mut Cluster, course: &mut Course) {
    let (leader, epoch) = cluster.who_leads();
    let with = cluster.others(leader)[0];
    course.broke();
    cluster.net.split(&[Node(leader), Node(with), Database]);
    cluster.let_pass(Duration::from_secs(20));
    let same = cluster.who_leads() == (leader, epoch);
    course.expect(same, "somebody else leads, although the leader still had the database");
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

pub(super) fn one_way(cluster: &mut Cluster, course: &mut Course, answers: bool) {
    let (leader, epoch) = cluster.who_leads();
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

pub(super) fn one_way_orders(cluster: &mut Cluster, course: &mut Course) {
    let (leader, _) = cluster.who_leads();
    course.broke();
    for other in cluster.others(leader) {
        cluster.net.set(Node(leader), Node(other), Flow::Held);
    }
    cluster.let_pass(Duration::from_secs(20));
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}

pub(super) fn slow_database(cluster: &mut Cluster, course: &mut Course) {
    let (leader, _) = cluster.who_leads();
    course.broke();
    let slow = Flow::Slow(Duration::from_millis(300));
    cluster.net.set(Node(leader), Database, slow);
    cluster.net.set(Database, Node(leader), slow);
    cluster.let_pass(Duration::from_secs(20));
    cluster.net.heal();
    course.healed();
    cluster.await_all();
}
