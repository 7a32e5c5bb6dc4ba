//! Pure decisions of the leader: which jobs an event starts, what happens to a run that waits although it is due, which
//! workers can take it, and which workers are unresponsive.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tasuki_core::assign::{WorkerAvailability, WorkerCandidate};
use tasuki_core::concurrency::{self, ConcurrencyDecision, RunWithHold};
use tasuki_core::run::SkipReason;
use tasuki_core::work_spec::WorkAction;
use tasuki_core::{RunId, RunState, WorkerId, event_trigger_match};
use tasuki_store::{Event, Job, LeaderRecord, LeasedRun, Run, WaitingRun, WorkerRecord};

use crate::node::job_version_cache::ParsedJobVersion;

/// Decision about a run that waits although it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingPastDueDecision {
    /// The run stays in the queue.
    KeepWaiting,
    /// The run is skipped.
    Skip(SkipReason),
    /// The run is expired.
    Expire,
    /// The given older run is canceled, so that this one can start.
    Replace(RunId),
}

/// Decides about one waiting run. `holder` is the run that has the hold of its job and scope, if there is one.
pub(crate) fn decide_run_waiting_past_due(
    waiting: &WaitingRun,
    job: &ParsedJobVersion,
    holder: Option<&Run>,
    catches_up: bool,
    clock: Timestamp,
) -> WaitingPastDueDecision {
    if waiting.expires_at.is_some_and(|at| at < clock) || waiting.releases >= job.spec.max_releases
    {
        return WaitingPastDueDecision::Expire;
    }
    let unstarted = waiting.tries == 0 && waiting.state.may_become(RunState::Skipped);
    if unstarted && waiting.skip_at.is_some_and(|at| at < clock) {
        return WaitingPastDueDecision::Skip(SkipReason::Late);
    }
    let candidate = concurrency::RunToAdmit {
        run: waiting.due_run.run,
        scheduled_for: waiting.scheduled_for,
        origin: waiting.origin,
        is_due: waiting.due_run.due_at <= clock,
        state: waiting.state,
        tries: waiting.tries,
        catches_up,
    };
    let holder = holder.filter(|run| run.state.is_leased()).map(|run| RunWithHold {
        run: run.id,
        state: run.state,
        scheduled_for: run.scheduled_for,
        is_due: run.due_at() <= clock,
        cancel_requested: run.cancel_requested_at.is_some(),
    });
    match concurrency::decide_concurrency(job.spec.concurrency, &candidate, holder.as_ref()) {
        ConcurrencyDecision::Proceed | ConcurrencyDecision::Wait => {
            WaitingPastDueDecision::KeepWaiting
        }
        ConcurrencyDecision::Skip(reason) => WaitingPastDueDecision::Skip(reason),
        ConcurrencyDecision::Replace(holder) => WaitingPastDueDecision::Replace(holder),
    }
}

/// Whether an event starts a job.
pub(crate) fn event_starts_job(
    job: &Job,
    event: &Event,
    payload: &Value,
    clock: Timestamp,
) -> bool {
    let filter = job.event_filter.as_deref().map(serde_json::from_str::<Value>);
    job.creates_runs_at(clock)
        && job
            .event_types
            .iter()
            .any(|wanted| event_trigger_match::matches_type(wanted, &event.event_type))
        && match filter {
            None => true,
            Some(Ok(filter)) => event_trigger_match::matches_payload(&filter, payload),
            Some(Err(_)) => false,
        }
}

/// The workers as candidates for assignments, each with its leased runs.
pub(crate) fn placement_candidates(
    workers: &[WorkerRecord],
    leased_runs: &[LeasedRun],
    leader: WorkerId,
) -> Vec<WorkerCandidate> {
    workers
        .iter()
        .filter(|worker| worker.may_continue())
        .map(|worker| {
            let in_state = |state| {
                leased_runs.iter().filter(move |leased_run| {
                    leased_run.worker == worker.id && leased_run.state == state
                })
            };
            WorkerCandidate {
                worker: worker.id,
                heartbeat_at: worker.heartbeat_at,
                availability: match worker.accepts_work() {
                    true => WorkerAvailability::Active,
                    false => WorkerAvailability::Draining,
                },
                is_leader: worker.id == leader,
                labels: worker.labels.clone(),
                max_runs: worker.slots,
                running: in_state(RunState::Running).count() as u32,
                assigned_due: in_state(RunState::Assigned)
                    .map(|leased_run| leased_run.due_at)
                    .collect(),
            }
        })
        .collect()
}

/// Lists workers without a heartbeat for `ttl` that are not detached, dead or gone. Only workers with an address: they
/// can be pinged, and informed that they were detached. For the others the expiry of their leases is enough.
pub(crate) fn unresponsive_workers(
    workers: &[WorkerRecord],
    me: WorkerId,
    clock: Timestamp,
    ttl: Duration,
) -> impl Iterator<Item = &WorkerRecord> {
    workers.iter().filter(move |worker| {
        worker.may_continue()
            && worker.id != me
            && worker.address.is_some()
            && !is_fresh(worker, clock, ttl)
    })
}

/// Time until the first of the other workers with a fresh heartbeat would count as unresponsive. `None`: there is no
/// such worker.
pub(crate) fn time_to_next_missed_heartbeat(
    workers: &[WorkerRecord],
    me: WorkerId,
    clock: Timestamp,
    ttl: Duration,
) -> Option<Duration> {
    let fresh = workers.iter().filter(|worker| {
        worker.may_continue()
            && worker.id != me
            && worker.address.is_some()
            && is_fresh(worker, clock, ttl)
    });
    let left = fresh.map(|worker| {
        let age = Duration::try_from(clock.duration_since(worker.heartbeat_at));
        ttl.saturating_sub(age.unwrap_or_default())
    });
    left.min()
}

/// Whether this worker is the subleader of its node, if no coordinator decides it: the first active worker of the node
/// with a fresh heartbeat that is not leader.
pub(crate) fn is_subleader(
    workers: &[WorkerRecord],
    leader: &LeaderRecord,
    me: WorkerId,
    ttl: Duration,
) -> bool {
    let Some(mine) = workers.iter().find(|worker| worker.id == me) else { return false };
    let healthy = |worker: &&WorkerRecord| {
        worker.accepts_work() && is_fresh(worker, leader.clock, ttl) && !is_leader(worker, leader)
    };
    let first = workers.iter().filter(healthy).find(|worker| worker.node == mine.node);
    first.is_some_and(|first| first.id == me)
}

/// Whether a worker on another node than the leader's can take over. If so, workers on the leader's node wait longer,
/// because a fault of the leader's host may affect them too.
pub(crate) fn other_node_can_lead(
    workers: &[WorkerRecord],
    leader: &LeaderRecord,
    ttl: Duration,
) -> bool {
    let node = workers.iter().find(|worker| is_leader(worker, leader)).map(|worker| &worker.node);
    workers.iter().any(|worker| {
        worker.accepts_work() && is_fresh(worker, leader.clock, ttl) && Some(&worker.node) != node
    })
}

/// Workers that a detached worker asks for a continuation: the leader, then the first healthy worker of each node.
pub(crate) fn workers_to_ask_after_own_detach<'a>(
    workers: &'a [WorkerRecord],
    leader: &LeaderRecord,
    me: WorkerId,
    ttl: Duration,
) -> Vec<&'a WorkerRecord> {
    let callable = |worker: &&WorkerRecord| worker.id != me && worker.address.is_some();
    let mut targets: Vec<&WorkerRecord> =
        workers.iter().filter(callable).filter(|worker| is_leader(worker, leader)).collect();
    for worker in workers.iter().filter(callable) {
        let known =
            |target: &&WorkerRecord| target.node == worker.node && !is_leader(target, leader);
        let healthy = worker.accepts_work() && is_fresh(worker, leader.clock, ttl);
        if healthy && !is_leader(worker, leader) && !targets.iter().any(known) {
            targets.push(worker);
        }
    }
    targets
}

fn is_leader(worker: &WorkerRecord, leader: &LeaderRecord) -> bool {
    leader.holder == Some(worker.id)
}

fn is_fresh(worker: &WorkerRecord, clock: Timestamp, ttl: Duration) -> bool {
    let age = clock.duration_since(worker.heartbeat_at);
    Duration::try_from(age).is_ok_and(|age| age < ttl) || age.is_negative()
}

/// Labels that a worker must have to execute a job. A function needs a worker that registered it.
pub(crate) fn required_labels(job: &ParsedJobVersion) -> BTreeSet<String> {
    let mut labels = job.spec.labels.clone();
    if let WorkAction::Function(handler) = &job.work.action {
        labels.insert(function_label(handler));
    }
    labels
}

/// Label of workers that have registered this function.
pub(crate) fn function_label(handler: &str) -> String {
    format!("function={handler}")
}

/// Lists assigned runs that their workers will not start: `start_by` has passed, or the worker is detached, dead or
/// gone.
pub(crate) fn abandoned_assignments<'a>(
    leased_runs: &'a [LeasedRun],
    workers: &'a [WorkerRecord],
    clock: Timestamp,
) -> impl Iterator<Item = &'a LeasedRun> {
    leased_runs.iter().filter(move |leased_run| {
        let attached =
            workers.iter().any(|worker| worker.id == leased_run.worker && worker.may_continue());
        leased_run.state == RunState::Assigned
            && (!attached || leased_run.start_by.is_some_and(|start_by| start_by < clock))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tasuki_core::Epoch;

    const TTL: Duration = Duration::from_secs(5);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn id(number: u128) -> WorkerId {
        WorkerId::from_random(number << 64)
    }

    /// A worker whose last heartbeat was at this second.
    fn worker(number: u128, node: &str, heartbeat: i64) -> WorkerRecord {
        WorkerRecord {
            id: id(number),
            node: node.parse().unwrap(),
            address: Some(format!("{node}:{number}")),
            slots: 1,
            function_slots: 1,
            labels: BTreeSet::new(),
            heartbeat_at: at(heartbeat),
            draining_at: None,
            detached_at: None,
            dead_at: None,
            gone_at: None,
        }
    }

    fn leader_row(number: u128) -> LeaderRecord {
        LeaderRecord {
            epoch: Epoch(1),
            holder: Some(id(number)),
            lease_until: at(14),
            clock: at(10),
        }
    }

    #[test]
    fn each_node_has_one_subleader_except_the_leader() {
        let mut workers = vec![
            worker(1, "a", 10),
            worker(2, "a", 10),
            worker(3, "b", 1),
            worker(4, "b", 10),
            worker(5, "b", 10),
            worker(6, "c", 10),
        ];
        workers[5].draining_at = Some(at(9));
        let subleaders = |leader| {
            let selected = |worker: &&WorkerRecord| {
                is_subleader(&workers, &leader_row(leader), worker.id, TTL)
            };
            workers.iter().filter(selected).map(|worker| worker.id).collect::<Vec<_>>()
        };
        assert_eq!(subleaders(1), [id(2), id(4)]);
        assert_eq!(subleaders(4), [id(1), id(5)]);
        assert!(!is_subleader(&workers, &leader_row(1), id(9), TTL), "the worker is unknown");
        assert!(other_node_can_lead(&workers, &leader_row(1), TTL));
        assert!(!other_node_can_lead(&workers[..2], &leader_row(1), TTL));
    }

    #[test]
    fn a_detached_worker_calls_the_leader_and_one_worker_per_node() {
        let mut workers = vec![
            worker(1, "a", 10),
            worker(2, "a", 10),
            worker(3, "b", 10),
            // The leader comes first, however old its heartbeat is.
            worker(4, "b", 0),
            worker(5, "c", 10),
            worker(6, "d", 10),
            worker(7, "e", 0),
        ];
        workers[5].address = None;
        let targets = |me| {
            let targets = workers_to_ask_after_own_detach(&workers, &leader_row(4), id(me), TTL);
            targets.into_iter().map(|worker| worker.id).collect::<Vec<_>>()
        };
        assert_eq!(targets(1), [id(4), id(2), id(3), id(5)]);
        assert_eq!(targets(4), [id(1), id(3), id(5)]);
    }

    #[test]
    fn unresponsive_workers_have_an_address_and_are_not_detached() {
        let mut workers: Vec<WorkerRecord> = (1..=5).map(|number| worker(number, "a", 5)).collect();
        workers[1].heartbeat_at = at(6);
        workers[2].address = None;
        workers[3].detached_at = Some(at(8));
        let unresponsive: Vec<_> =
            unresponsive_workers(&workers, id(5), at(10), TTL).map(|worker| worker.id).collect();
        assert_eq!(unresponsive, [id(1)]);
        // A clock that jumped back makes no worker unresponsive.
        assert_eq!(unresponsive_workers(&workers, id(5), at(0), TTL).count(), 0);
    }

    #[test]
    fn the_next_missed_heartbeat_is_that_of_the_oldest_fresh_one() {
        let mut workers: Vec<WorkerRecord> = (1..=5).map(|number| worker(number, "a", 9)).collect();
        workers[0].heartbeat_at = at(1); // already unresponsive
        workers[1].heartbeat_at = at(7);
        workers[2].heartbeat_at = at(6);
        workers[2].detached_at = Some(at(8));
        let first = |clock| time_to_next_missed_heartbeat(&workers, id(5), clock, TTL);
        assert_eq!(first(at(10)), Some(TTL - Duration::from_secs(3)));
        assert_eq!(first(at(60)), None, "all are unresponsive");
        assert_eq!(first(at(0)), Some(TTL), "the clock jumped back");
    }
}
