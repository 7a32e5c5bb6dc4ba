//! What breaks of a worker that carries a run.

use std::time::Duration;

use nix::sys::signal::Signal;
use tasuki_core::{AttemptOutcome, ErrorCode, RunId, RunState};

use crate::cluster::Cluster;
use crate::judge::{Bound, Course};
use crate::load::LONG;
use crate::net::Party::{Database, Node};
use crate::place::until;
use crate::wire::Flow;

/// What the database notes of a run whose worker was detached.
const ASKS: &str = "asks whether it may go on";
const MAY: &str = "may go on";
/// What a worker tells whom nobody answers.
const NOBODY: &str = "nobody says that it may go on";

/// What a worker has beyond its questions, for the writes before and after them.
const SLACK: Duration = Duration::from_secs(1);

/// How an attempt ends whose worker is gone.
const LOST: (AttemptOutcome, ErrorCode) = (AttemptOutcome::Lost, ErrorCode::HEARTBEAT_TIMEOUT);
/// How one ends that a detached worker may not go on with.
const DETACHED: (AttemptOutcome, ErrorCode) = (AttemptOutcome::Failed, ErrorCode::DETACHED);

/// A run on a node that does not lead.
pub(super) fn run_on_a_worker(cluster: &Cluster, job: &str) -> (RunId, usize) {
    let (run, node) = cluster.trigger(job);
    assert_ne!(cluster.who_leads().0, node, "the leader only plans");
    (run, node)
}

/// Which attempt at a run was the last, and how the run ended.
pub(super) fn ended(cluster: &Cluster, run: RunId) -> (u32, RunState) {
    until("the run has ended", || {
        let run = cluster.run(run)?;
        run.state.is_ended().then_some((run.counters.attempt_no, run.state))
    })
}

/// Waits until the first attempt at a run is over without an end of the run.
fn let_go(cluster: &Cluster, run: RunId) {
    until("it is no longer its worker's", || {
        let run = cluster.run(run)?;
        (run.counters.attempt_no > 1 || run.state.is_waiting()).then_some(())
    });
}

/// Waits until a run has ended; its first attempt so, and a later one well.
fn tried_again(
    cluster: &Cluster,
    course: &mut Course,
    run: RunId,
    first: (AttemptOutcome, ErrorCode),
) {
    let (attempt, state) = ended(cluster, run);
    course.expect(attempt > 1 && state == RunState::Succeeded, "it was not tried again to its end");
    let all = cluster.learn(async |store| store.executions(run).await);
    let told = all.first().map(|one| (one.outcome, one.error_code.clone()));
    let (outcome, code) = first;
    let expected = Some((Some(outcome), Some(code)));
    let words = format!("its first attempt ended with {told:?} and not with {expected:?}");
    course.expect(told == expected, &words);
}

/// A worker with a live child that was cut off from all until it was detached.
fn cut_off(cluster: &Cluster, course: &mut Course) -> (RunId, usize) {
    let (run, node) = run_on_a_worker(cluster, LONG);
    let worker = until("it is in service", || cluster.worker(node));
    course.broke();
    cluster.net.cut_off(node, |_| true);
    until("it was detached", || cluster.is_detached(worker).then_some(()));
    (run, node)
}

/// Whether this is noted of a run.
fn is_noted(cluster: &Cluster, run: RunId, what: &str) -> bool {
    let notes = cluster.learn(async |store| store.notes(run).await);
    notes.iter().any(|note| note.reason.as_deref() == Some(what))
}

pub(super) fn allowed(cluster: &mut Cluster, course: &mut Course) {
    let (run, _) = cut_off(cluster, course);
    cluster.net.heal();
    course.healed();
    let well = ended(cluster, run) == (1, RunState::Succeeded);
    course.expect(well, "what a detached worker may go on with did not end well with it");
    course.expect(is_noted(cluster, run, MAY), "nobody said that it may go on");
    cluster.await_all();
}

/// Its way to the database is so slow that what it was told comes too late there: the others let it go on, for the run is
/// still its own. The database does not.
pub(super) fn refused(cluster: &mut Cluster, course: &mut Course) {
    // Ten questions in three seconds; it is too late after four, and its lease lasts for longer.
    cluster.change_settings(&[
        ("continuation_retry_count", "10"),
        ("outage_tolerance", "15s"),
        ("lease_ttl", "30s"),
    ]);
    let (run, node) = cut_off(cluster, course);
    let way = |cluster: &Cluster, flow: Flow| {
        cluster.net.set(Node(node), Database, flow);
        cluster.net.set(Database, Node(node), flow);
    };
    way(cluster, Flow::Open);
    let asked_at = until("it asks", || {
        let notes = cluster.look(async |store| store.notes(run).await)?;
        Some(notes.iter().find(|note| note.reason.as_deref() == Some(ASKS))?.at)
    });
    way(cluster, Flow::Slow(Duration::from_secs(1)));
    let settings = cluster.learn(async |store| store.settings().await).settings;
    let interval = settings.continuation_retry_interval();
    let questions = interval * settings.continuation_retry_count();
    let passed = |cluster: &Cluster, time: Duration| {
        until("its time passes", || {
            let clock = cluster.look(async |store| store.clock().await)?;
            (clock > asked_at + time).then_some(())
        });
    };
    // One of its last questions is answered.
    passed(cluster, questions - interval);
    for other in cluster.others(node) {
        cluster.net.set(Node(node), Node(other), Flow::Open);
        cluster.net.set(Node(other), Node(node), Flow::Open);
    }
    passed(cluster, questions + SLACK + Duration::from_secs(1));
    cluster.net.heal();
    course.healed();
    let_go(cluster, run);
    tried_again(cluster, course, run, DETACHED);
    course.expect(!is_noted(cluster, run, MAY), "it went on after its time");
    course.expect(!cluster.has_told(node, NOBODY), "nobody answered it, so nobody refused it");
    cluster.await_all();
}

pub(super) fn nobody(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = cut_off(cluster, course);
    // The database alone comes back: it learns that it was detached, and nobody answers its question.
    cluster.net.set(Node(node), Database, Flow::Open);
    cluster.net.set(Database, Node(node), Flow::Open);
    let_go(cluster, run);
    cluster.net.heal();
    course.healed();
    tried_again(cluster, course, run, DETACHED);
    course.expect(!is_noted(cluster, run, MAY), "it went on although nobody said that it may");
    course.expect(cluster.has_told(node, NOBODY), "it was not left alone");
    cluster.await_all();
}

/// What it ran is another's when it wakes up. Who holds its children did not stand still, and ended them in time.
pub(super) fn stopped(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = run_on_a_worker(cluster, LONG);
    course.broke();
    cluster.signal(node, Signal::SIGSTOP);
    cluster.let_pass(Duration::from_secs(60));
    let_go(cluster, run);
    cluster.signal(node, Signal::SIGCONT);
    course.healed();
    tried_again(cluster, course, run, LOST);
    cluster.await_all();
}

pub(super) fn killed(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = run_on_a_worker(cluster, LONG);
    course.broke();
    cluster.kill(node);
    cluster.spawn(node);
    course.healed();
    let_go(cluster, run);
    course.measure(Bound::RESTARTED, course.broke_at);
    tried_again(cluster, course, run, LOST);
    cluster.await_all();
}

pub(super) fn lost(cluster: &mut Cluster, course: &mut Course) {
    let (run, node) = run_on_a_worker(cluster, LONG);
    course.broke();
    cluster.kill(node);
    let_go(cluster, run);
    course.measure(Bound::NODE_LOST, course.broke_at);
    cluster.spawn(node);
    course.healed();
    tried_again(cluster, course, run, LOST);
    cluster.await_all();
}

pub(super) fn rolling_restart(cluster: &mut Cluster, course: &mut Course) {
    course.broke();
    let (first, _) = cluster.who_leads();
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
