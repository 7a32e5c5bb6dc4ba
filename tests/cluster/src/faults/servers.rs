//! Faults of the servers that the nodes need: Redis and the database.

use std::time::Duration;

use tasuki_core::{RunId, RunState};

use super::workers::{run_on_a_worker, wait_until_ended};
use crate::checker::{FaultRecord, TimeBound};
use crate::cluster::Cluster;
use crate::cluster_config::Pace;
use crate::load::BRIEF_JOB;
use crate::network::NetworkEndpoint::{Database, Node};

pub(super) fn break_redis(
    cluster: &mut Cluster,
    record: &mut FaultRecord,
    inject: impl Fn(&mut Cluster),
) {
    let before = cluster.wait_for_leader();
    record.mark_broken();
    inject(cluster);
    record.mark_healed();
    cluster.sleep_scaled(Duration::from_secs(12));
    record.expect(
        cluster.wait_for_leader() == before,
        "another node is the leader, although only Redis had a fault",
    );
    cluster.wait_until_ready();
}

pub(super) fn stop_database_for(
    cluster: &mut Cluster,
    record: &mut FaultRecord,
    time: Duration,
    stop: impl Fn(&mut Cluster),
) {
    let (run, _) = run_on_a_worker(cluster, BRIEF_JOB);
    record.outage = true;
    record.mark_broken();
    stop(cluster);
    cluster.sleep_scaled(time);
    cluster.start_database();
    record.mark_healed();
    check_after_outage(cluster, record, run, time);
}

pub(super) fn block_database(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, _) = run_on_a_worker(cluster, BRIEF_JOB);
    record.outage = true;
    record.mark_broken();
    let nodes = 0..cluster.config().nodes;
    nodes.for_each(|node| cluster.network.cut(Node(node), Database));
    cluster.sleep_scaled(Duration::from_secs(15));
    cluster.network.heal();
    record.mark_healed();
    check_after_outage(cluster, record, run, Duration::from_secs(15));
}

/// Checks a run after a database outage. The cluster must tolerate up to 15 seconds: the run continued and its result
/// is stored.
fn check_after_outage(
    cluster: &mut Cluster,
    record: &mut FaultRecord,
    run: RunId,
    outage: Duration,
) {
    let (attempt, state) = wait_until_ended(cluster, run);
    if outage <= Duration::from_secs(15) {
        let succeeded = (attempt, state) == (1, RunState::Succeeded);
        record.expect(
            succeeded,
            "a run did not succeed in its first attempt after a tolerable database outage",
        );
        // The run takes about twelve seconds, so it ended while the database was unavailable.
        if outage > Duration::ZERO && cluster.config().pace == Pace::Default {
            record.measure(TimeBound::RECORDED, record.healed_at);
        }
    }
    cluster.wait_until_ready();
}
