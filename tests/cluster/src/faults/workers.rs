//! Faults of a worker that holds a run.

use std::time::Duration;

use nix::sys::signal::Signal;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, RunId, RunState};

use crate::checker::{FaultRecord, TimeBound};
use crate::cluster::Cluster;
use crate::load::LONG_JOB;
use crate::network::NetworkEndpoint::{Database, Node};
use crate::proxy::LinkState;
use crate::test_support::wait_until;

/// Reasons of the transition records that the store writes for the runs of a detached worker.
const CONTINUE_REQUESTED: &str = "the worker requests to continue";
const MAY_CONTINUE: &str = "the worker may continue";
/// Log message of a detached worker that got no answer to its request to continue.
const NO_ANSWER_MESSAGE: &str = "no continuation was confirmed";

/// Time that a detached worker has in addition to its requests, for the database writes before and after them.
const SLACK: Duration = Duration::from_secs(1);

/// End of an attempt whose worker is lost.
const LOST: (AttemptOutcome, AttemptErrorCode) =
    (AttemptOutcome::Lost, AttemptErrorCode::HEARTBEAT_TIMEOUT);
/// End of an attempt that a detached worker may not continue.
const DETACHED: (AttemptOutcome, AttemptErrorCode) =
    (AttemptOutcome::Failed, AttemptErrorCode::DETACHED);

/// Triggers a run, and waits until it runs on a node that is not the leader.
pub(super) fn run_on_a_worker(cluster: &Cluster, job: &str) -> (RunId, usize) {
    let (run, node) = cluster.trigger_and_wait(job);
    assert_ne!(cluster.wait_for_leader().0, node, "the leader must not run jobs");
    (run, node)
}

/// Waits until a run has ended. Returns the number of its last attempt and its state.
pub(super) fn wait_until_ended(cluster: &Cluster, run: RunId) -> (u32, RunState) {
    wait_until("the run has ended", || {
        let run = cluster.find_run(run)?;
        run.state.is_ended().then_some((run.counters.attempt_no, run.state))
    })
}

/// Waits until the first attempt of a run has ended and the run waits again or has a newer attempt.
fn wait_until_released(cluster: &Cluster, run: RunId) {
    wait_until("the run has left its worker", || {
        let run = cluster.find_run(run)?;
        (run.counters.attempt_no > 1 || run.state.is_waiting()).then_some(())
    });
}

/// Waits until a run has ended. Expects this end of its first attempt, and success of a later one.
fn expect_retry(
    cluster: &Cluster,
    record: &mut FaultRecord,
    run: RunId,
    first: (AttemptOutcome, AttemptErrorCode),
) {
    let (attempt, state) = wait_until_ended(cluster, run);
    record.expect(
        attempt > 1 && state == RunState::Succeeded,
        "the run did not succeed in a later attempt",
    );
    let all = cluster.query_store(async |store| store.list_executions(run).await);
    let first_end = all.first().map(|one| (one.outcome, one.error_code.clone()));
    let (outcome, code) = first;
    let expected = Some((Some(outcome), Some(code)));
    let text = format!("the first attempt ended with {first_end:?}, expected {expected:?}");
    record.expect(first_end == expected, &text);
}

/// Starts a long run on a worker, and blocks all connections of the worker until it is detached. Returns the run and
/// the node.
fn isolate_until_detached(cluster: &Cluster, record: &mut FaultRecord) -> (RunId, usize) {
    let (run, node) = run_on_a_worker(cluster, LONG_JOB);
    let worker = wait_until("the worker is active", || cluster.active_worker(node));
    record.mark_broken();
    cluster.network.isolate(node, |_| true);
    wait_until("the worker is detached", || cluster.is_detached(worker).then_some(()));
    (run, node)
}

/// Whether a run has a transition record with this reason.
fn has_transition_reason(cluster: &Cluster, run: RunId, what: &str) -> bool {
    let transitions = cluster.query_store(async |store| store.list_rare_transitions(run).await);
    transitions.iter().any(|transition| transition.reason.as_deref() == Some(what))
}

pub(super) fn isolate_and_allow(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, _) = isolate_until_detached(cluster, record);
    cluster.network.heal();
    record.mark_healed();
    let succeeded = wait_until_ended(cluster, run) == (1, RunState::Succeeded);
    record.expect(succeeded, "the detached worker did not complete the run that it may continue");
    record.expect(
        has_transition_reason(cluster, run, MAY_CONTINUE),
        "the worker was not allowed to continue",
    );
    cluster.wait_until_ready();
}

/// The worker's connection to the database is so slow that its confirmation comes too late: the other nodes allow it to
/// continue, because it still holds the run, but the database refuses.
pub(super) fn isolate_and_refuse(cluster: &mut Cluster, record: &mut FaultRecord) {
    // The worker sends ten requests in three seconds. Its time is over after four seconds, but its lease lasts longer.
    cluster.change_settings(&[
        ("continuation_retry_count", "10"),
        ("outage_tolerance", "15s"),
        ("lease_ttl", "30s"),
    ]);
    let (run, node) = isolate_until_detached(cluster, record);
    let set_database_link = |cluster: &Cluster, flow: LinkState| {
        cluster.network.set_link(Node(node), Database, flow);
        cluster.network.set_link(Database, Node(node), flow);
    };
    set_database_link(cluster, LinkState::Open);
    let requested_at = wait_until("the worker requests to continue", || {
        let transitions =
            cluster.try_query_store(async |store| store.list_rare_transitions(run).await)?;
        Some(
            transitions
                .iter()
                .find(|transition| transition.reason.as_deref() == Some(CONTINUE_REQUESTED))?
                .at,
        )
    });
    set_database_link(cluster, LinkState::Delayed(Duration::from_secs(1)));
    let settings = cluster.query_store(async |store| store.load_settings().await).settings;
    let interval = settings.continuation_retry_interval();
    let request_time = interval * settings.continuation_retry_count();
    let wait_until_passed = |cluster: &Cluster, time: Duration| {
        wait_until("the time has passed", || {
            let clock = cluster.try_query_store(async |store| store.read_clock().await)?;
            (clock > requested_at + time).then_some(())
        });
    };
    // One of the last requests is answered.
    wait_until_passed(cluster, request_time - interval);
    for other in cluster.running_nodes_except(node) {
        cluster.network.set_link(Node(node), Node(other), LinkState::Open);
        cluster.network.set_link(Node(other), Node(node), LinkState::Open);
    }
    wait_until_passed(cluster, request_time + SLACK + Duration::from_secs(1));
    cluster.network.heal();
    record.mark_healed();
    wait_until_released(cluster, run);
    expect_retry(cluster, record, run, DETACHED);
    record.expect(
        !has_transition_reason(cluster, run, MAY_CONTINUE),
        "the worker continued after its time",
    );
    record.expect(
        !cluster.log_contains(node, NO_ANSWER_MESSAGE),
        "the request was not answered, so it was not refused by the database",
    );
    cluster.wait_until_ready();
}

pub(super) fn isolate_without_answer(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, node) = isolate_until_detached(cluster, record);
    // Only the database is reachable again: the worker learns that it was detached, and its request is not answered.
    cluster.network.set_link(Node(node), Database, LinkState::Open);
    cluster.network.set_link(Database, Node(node), LinkState::Open);
    wait_until_released(cluster, run);
    cluster.network.heal();
    record.mark_healed();
    expect_retry(cluster, record, run, DETACHED);
    record.expect(
        !has_transition_reason(cluster, run, MAY_CONTINUE),
        "the worker continued although it was not allowed to",
    );
    record.expect(
        cluster.log_contains(node, NO_ANSWER_MESSAGE),
        "the worker got an answer, although all other nodes were unreachable",
    );
    cluster.wait_until_ready();
}

/// When the worker continues, another worker has the run. The spawner process was not stopped and ended the children
/// in time.
pub(super) fn stop_and_continue(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, node) = run_on_a_worker(cluster, LONG_JOB);
    record.mark_broken();
    cluster.signal_node(node, Signal::SIGSTOP);
    cluster.sleep_scaled(Duration::from_secs(60));
    wait_until_released(cluster, run);
    cluster.signal_node(node, Signal::SIGCONT);
    record.mark_healed();
    expect_retry(cluster, record, run, LOST);
    cluster.wait_until_ready();
}

pub(super) fn kill_and_restart(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, node) = run_on_a_worker(cluster, LONG_JOB);
    record.mark_broken();
    cluster.kill_node(node);
    cluster.start_node(node);
    record.mark_healed();
    wait_until_released(cluster, run);
    record.measure(TimeBound::RESTARTED, record.broke_at);
    expect_retry(cluster, record, run, LOST);
    cluster.wait_until_ready();
}

pub(super) fn kill_without_restart(cluster: &mut Cluster, record: &mut FaultRecord) {
    let (run, node) = run_on_a_worker(cluster, LONG_JOB);
    record.mark_broken();
    cluster.kill_node(node);
    wait_until_released(cluster, run);
    record.measure(TimeBound::NODE_LOST, record.broke_at);
    cluster.start_node(node);
    record.mark_healed();
    expect_retry(cluster, record, run, LOST);
    cluster.wait_until_ready();
}

pub(super) fn rolling_restart(cluster: &mut Cluster, record: &mut FaultRecord) {
    record.mark_broken();
    let (first, _) = cluster.wait_for_leader();
    // The leader last, so that the leadership moves only once.
    let mut order = cluster.running_nodes_except(first);
    order.push(first);
    for node in order {
        cluster.terminate_node(node);
        cluster.wait_until_stopped(node);
        cluster.start_node(node);
        wait_until("the node is active again", || cluster.active_worker(node));
    }
    record.mark_healed();
    cluster.wait_until_ready();
}
