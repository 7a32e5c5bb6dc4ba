//! Faults of the leader, and of its connections.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::checker::{FaultRecord, TimeBound};
use crate::cluster::Cluster;
use crate::network::NetworkEndpoint::{self, Database, Node};
use crate::proxy::LinkState;

pub(super) fn kill(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.takeover = Some((epoch, TimeBound::NEXT_LEADER));
    record.mark_broken();
    cluster.kill_node(leader);
    cluster.wait_for_leader_after(epoch);
    cluster.sleep_scaled(Duration::from_secs(4));
    cluster.start_node(leader);
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn stop_and_continue(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.takeover = Some((epoch, TimeBound::NEXT_LEADER));
    record.mark_broken();
    cluster.signal_node(leader, Signal::SIGSTOP);
    cluster.sleep_scaled(Duration::from_secs(20));
    cluster.wait_for_leader_after(epoch);
    cluster.signal_node(leader, Signal::SIGCONT);
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn terminate(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.takeover = Some((epoch, TimeBound::SUCCESSOR));
    record.mark_broken();
    cluster.terminate_node(leader);
    cluster.wait_for_leader_after(epoch);
    cluster.wait_until_stopped(leader);
    cluster.start_node(leader);
    record.mark_healed();
    cluster.wait_until_ready();
}

/// Blocks the leader's connections to the selected endpoints. `expect_new_leader`: whether another node must become
/// the leader; `None`: it may, but need not.
pub(super) fn isolate(
    cluster: &mut Cluster,
    record: &mut FaultRecord,
    expect_new_leader: Option<bool>,
    is_selected: impl Fn(NetworkEndpoint) -> bool,
) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.mark_broken();
    cluster.network.isolate(leader, is_selected);
    cluster.sleep_scaled(Duration::from_secs(20));
    match expect_new_leader {
        Some(true) => {
            record.takeover = Some((epoch, TimeBound::NEXT_LEADER));
            cluster.wait_for_leader_after(epoch);
        }
        Some(false) => {
            let same = cluster.wait_for_leader() == (leader, epoch);
            record.expect(
                same,
                "another node is the leader, although the old leader still reached the database",
            );
        }
        None => {}
    }
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn split_from_servers(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.takeover = Some((epoch, TimeBound::NEXT_LEADER));
    let companion = cluster.running_nodes_except(leader)[0];
    record.mark_broken();
    cluster.network.partition(&[Node(leader), Node(companion)]);
    cluster.sleep_scaled(Duration::from_secs(20));
    cluster.wait_for_leader_after(epoch);
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn split_with_database(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, epoch) = cluster.wait_for_leader();
    let companion = cluster.running_nodes_except(leader)[0];
    record.mark_broken();
    cluster.network.partition(&[Node(leader), Node(companion), Database]);
    cluster.sleep_scaled(Duration::from_secs(20));
    let same = cluster.wait_for_leader() == (leader, epoch);
    record.expect(
        same,
        "another node is the leader, although the old leader still reached the database",
    );
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn block_database_one_way(
    cluster: &mut Cluster,
    record: &mut FaultRecord,
    responses: bool,
) {
    let (leader, epoch) = cluster.wait_for_leader();
    record.takeover = Some((epoch, TimeBound::NEXT_LEADER));
    record.mark_broken();
    match responses {
        true => cluster.network.set_link(Database, Node(leader), LinkState::Blocked),
        false => cluster.network.set_link(Node(leader), Database, LinkState::Blocked),
    }
    cluster.sleep_scaled(Duration::from_secs(20));
    cluster.wait_for_leader_after(epoch);
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn block_orders(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, _) = cluster.wait_for_leader();
    record.mark_broken();
    for other in cluster.running_nodes_except(leader) {
        cluster.network.set_link(Node(leader), Node(other), LinkState::Blocked);
    }
    cluster.sleep_scaled(Duration::from_secs(20));
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}

pub(super) fn delay_database(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (leader, _) = cluster.wait_for_leader();
    record.mark_broken();
    let slow = LinkState::Delayed(Duration::from_millis(300));
    cluster.network.set_link(Node(leader), Database, slow);
    cluster.network.set_link(Database, Node(leader), slow);
    cluster.sleep_scaled(Duration::from_secs(20));
    cluster.network.heal();
    record.mark_healed();
    cluster.wait_until_ready();
}
