//! What the leader decides, without asking anybody: which jobs an event starts, what becomes of a run that
//! waits although it is due, and who could take it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tasuki_core::assign::{Candidate, Standing};
use tasuki_core::concurrency::{self, Holder, Turn};
use tasuki_core::run::SkipReason;
use tasuki_core::job_spec::What;
use tasuki_core::{RunId, RunState, WorkerId, filter};
use tasuki_store::{Carried, Event, Job, Leader, Run, Waiting, Worker};

use crate::node::worker::recipes::Recipe;

/// What becomes of a run that waits although it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It waits on.
    Leave,
    /// It is passed over.
    Skip(SkipReason),
    /// It is given up.
    Expire,
    /// It takes the place of this one.
    Replace(RunId),
}

/// Decides about one run. `holder` is the run in its way, if there is one.
pub(crate) fn verdict(
    waiting: &Waiting,
    recipe: &Recipe,
    holder: Option<&Run>,
    catches_up: bool,
    clock: Timestamp,
) -> Verdict {
    if waiting.expires_at.is_some_and(|at| at < clock)
        || waiting.releases >= recipe.spec.max_releases
    {
        return Verdict::Expire;
    }
    let unstarted = waiting.tries == 0 && waiting.state.may_become(RunState::Skipped);
    if unstarted && waiting.skip_at.is_some_and(|at| at < clock) {
        return Verdict::Skip(SkipReason::Late);
    }
    let asks = concurrency::Waiting {
        run: waiting.wanted.run,
        scheduled_for: waiting.scheduled_for,
        origin: waiting.origin,
        is_due: waiting.wanted.due_at <= clock,
        state: waiting.state,
        tries: waiting.tries,
        catches_up,
    };
    let holder = holder.filter(|run| run.state.is_carried()).map(|run| Holder {
        run: run.id,
        state: run.state,
        scheduled_for: run.scheduled_for,
        is_due: run.due_at() <= clock,
        cancel_asked: run.cancel_requested_at.is_some(),
    });
    match concurrency::turn(recipe.spec.concurrency, &asks, holder.as_ref()) {
        Turn::Go | Turn::Wait => Verdict::Leave,
        Turn::Skip(reason) => Verdict::Skip(reason),
        Turn::Replace(holder) => Verdict::Replace(holder),
    }
}

/// Whether an event starts a job.
pub(crate) fn takes(job: &Job, event: &Event, payload: &Value, clock: Timestamp) -> bool {
    let filter = job.event_filter.as_deref().map(serde_json::from_str::<Value>);
    job.is_on(clock)
        && job.event_types.iter().any(|wanted| filter::takes_type(wanted, &event.event_type))
        && match filter {
            None => true,
            Some(Ok(filter)) => filter::takes_payload(&filter, payload),
            Some(Err(_)) => false,
        }
}

/// The workers as candidates, with what each already has.
pub(crate) fn candidates(
    workers: &[Worker],
    given: &[Carried],
    leader: WorkerId,
) -> Vec<Candidate> {
    workers
        .iter()
        .filter(|worker| worker.is_attached())
        .map(|worker| {
            let of = |state| {
                given.iter().filter(move |one| one.worker == worker.id && one.state == state)
            };
            Candidate {
                worker: worker.id,
                heartbeat_at: worker.heartbeat_at,
                standing: match worker.is_active() {
                    true => Standing::Active,
                    false => Standing::Draining,
                },
                is_leader: worker.id == leader,
                labels: worker.labels.clone(),
                limit: worker.slots,
                running: of(RunState::Running).count() as u32,
                assigned_due: of(RunState::Assigned).map(|one| one.due_at).collect(),
            }
        })
        .collect()
}

/// Those that fell silent: no heartbeat for so long, and not known to be gone. Only who can be called is asked, and
/// told that it was cut off; of another its leases tell soon enough.
pub(crate) fn silent(
    workers: &[Worker],
    me: WorkerId,
    clock: Timestamp,
    ttl: Duration,
) -> impl Iterator<Item = &Worker> {
    workers.iter().filter(move |worker| {
        worker.is_attached()
            && worker.id != me
            && worker.address.is_some()
            && !is_fresh(worker, clock, ttl)
    })
}

/// In how long the first of those who are heard would count as silent. `None`: there is nobody.
pub(crate) fn first_silence(
    workers: &[Worker],
    me: WorkerId,
    clock: Timestamp,
    ttl: Duration,
) -> Option<Duration> {
    let heard = workers.iter().filter(|worker| {
        worker.is_attached()
            && worker.id != me
            && worker.address.is_some()
            && is_fresh(worker, clock, ttl)
    });
    let left = heard.map(|worker| {
        let age = Duration::try_from(clock.duration_since(worker.heartbeat_at));
        ttl.saturating_sub(age.unwrap_or_default())
    });
    left.min()
}

/// Whether this worker watches the leader for its node, where nobody else decides it: the first there who is well.
pub(crate) fn watches(workers: &[Worker], leader: &Leader, me: WorkerId, ttl: Duration) -> bool {
    let Some(mine) = workers.iter().find(|worker| worker.id == me) else { return false };
    let well = |worker: &&Worker| {
        worker.is_active() && is_fresh(worker, leader.clock, ttl) && !leads(worker, leader)
    };
    let first = workers.iter().filter(well).find(|worker| worker.node == mine.node);
    first.is_some_and(|first| first.id == me)
}

/// Whether another node than the leader's has somebody who can take over: then those beside the leader leave it to
/// them, since what is wrong with the leader may be wrong with them.
pub(crate) fn others_watch(workers: &[Worker], leader: &Leader, ttl: Duration) -> bool {
    let node = workers.iter().find(|worker| leads(worker, leader)).map(|worker| &worker.node);
    workers.iter().any(|worker| {
        worker.is_active() && is_fresh(worker, leader.clock, ttl) && Some(&worker.node) != node
    })
}

/// Whom a worker asks that was cut off: the leader, then the first who is well on each node.
pub(crate) fn in_charge<'a>(
    workers: &'a [Worker],
    leader: &Leader,
    me: WorkerId,
    ttl: Duration,
) -> Vec<&'a Worker> {
    let callable = |worker: &&Worker| worker.id != me && worker.address.is_some();
    let mut asked: Vec<&Worker> =
        workers.iter().filter(callable).filter(|worker| leads(worker, leader)).collect();
    for worker in workers.iter().filter(callable) {
        let known = |one: &&Worker| one.node == worker.node && !leads(one, leader);
        let well = worker.is_active() && is_fresh(worker, leader.clock, ttl);
        if well && !leads(worker, leader) && !asked.iter().any(known) {
            asked.push(worker);
        }
    }
    asked
}

fn leads(worker: &Worker, leader: &Leader) -> bool {
    leader.holder == Some(worker.id)
}

fn is_fresh(worker: &Worker, clock: Timestamp, ttl: Duration) -> bool {
    let age = clock.duration_since(worker.heartbeat_at);
    Duration::try_from(age).is_ok_and(|age| age < ttl) || age.is_negative()
}

/// What a run's worker must be good for. A function is only where somebody registered it.
pub(crate) fn labels(recipe: &Recipe) -> BTreeSet<String> {
    let mut labels = recipe.spec.labels.clone();
    if let What::Function(handler) = &recipe.work.what {
        labels.insert(function_label(handler));
    }
    labels
}

/// What a worker is good for that has this function.
pub(crate) fn function_label(handler: &str) -> String {
    format!("function={handler}")
}

/// Assigned runs that their worker will not start: its time for it has passed, or it is not there any more.
pub(crate) fn stranded<'a>(
    given: &'a [Carried],
    workers: &'a [Worker],
    clock: Timestamp,
) -> impl Iterator<Item = &'a Carried> {
    given.iter().filter(move |one| {
        let attached = workers.iter().any(|worker| worker.id == one.worker && worker.is_attached());
        one.state == RunState::Assigned
            && (!attached || one.start_by.is_some_and(|start_by| start_by < clock))
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

    /// A worker that was heard of at this second.
    fn worker(number: u128, node: &str, heard: i64) -> Worker {
        Worker {
            id: id(number),
            node: node.parse().unwrap(),
            address: Some(format!("{node}:{number}")),
            slots: 1,
            function_slots: 1,
            labels: BTreeSet::new(),
            heartbeat_at: at(heard),
            draining_at: None,
            detached_at: None,
            dead_at: None,
            gone_at: None,
        }
    }

    fn led_by(number: u128) -> Leader {
        Leader { epoch: Epoch(1), holder: Some(id(number)), lease_until: at(14), clock: at(10) }
    }

    #[test]
    fn one_of_each_node_watches_and_not_the_leader() {
        let mut workers = vec![
            worker(1, "a", 10),
            worker(2, "a", 10),
            worker(3, "b", 1),
            worker(4, "b", 10),
            worker(5, "b", 10),
            worker(6, "c", 10),
        ];
        workers[5].draining_at = Some(at(9));
        let watching = |leader| {
            let watches = |one: &&Worker| watches(&workers, &led_by(leader), one.id, TTL);
            workers.iter().filter(watches).map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(watching(1), [id(2), id(4)]);
        assert_eq!(watching(4), [id(1), id(5)]);
        assert!(!watches(&workers, &led_by(1), id(9), TTL), "nobody knows it");
        assert!(others_watch(&workers, &led_by(1), TTL));
        assert!(!others_watch(&workers[..2], &led_by(1), TTL));
    }

    #[test]
    fn who_is_asked_by_one_that_was_cut_off() {
        let mut workers = vec![
            worker(1, "a", 10),
            worker(2, "a", 10),
            worker(3, "b", 10),
            // The leader is asked first, however long it was not heard of.
            worker(4, "b", 0),
            worker(5, "c", 10),
            worker(6, "d", 10),
            worker(7, "e", 0),
        ];
        workers[5].address = None;
        let asked = |me| {
            let asked = in_charge(&workers, &led_by(4), id(me), TTL);
            asked.into_iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(asked(1), [id(4), id(2), id(3), id(5)]);
        assert_eq!(asked(4), [id(1), id(3), id(5)]);
    }

    #[test]
    fn silent_are_those_that_can_be_called_and_are_not_known_to_be_gone() {
        let mut workers: Vec<Worker> = (1..=5).map(|number| worker(number, "a", 5)).collect();
        workers[1].heartbeat_at = at(6);
        workers[2].address = None;
        workers[3].detached_at = Some(at(8));
        let silent: Vec<_> = silent(&workers, id(5), at(10), TTL).map(|one| one.id).collect();
        assert_eq!(silent, [id(1)]);
        // A clock that went back makes nobody silent.
        assert_eq!(super::silent(&workers, id(5), at(0), TTL).count(), 0);
    }

    #[test]
    fn the_first_silence_is_that_of_the_oldest_heartbeat_that_counts() {
        let mut workers: Vec<Worker> = (1..=5).map(|number| worker(number, "a", 9)).collect();
        workers[0].heartbeat_at = at(1); // silent already
        workers[1].heartbeat_at = at(7);
        workers[2].heartbeat_at = at(6);
        workers[2].detached_at = Some(at(8));
        let first = |clock| first_silence(&workers, id(5), clock, TTL);
        assert_eq!(first(at(10)), Some(TTL - Duration::from_secs(3)));
        assert_eq!(first(at(60)), None, "all are silent");
        assert_eq!(first(at(0)), Some(TTL), "a clock that went back");
    }
}
