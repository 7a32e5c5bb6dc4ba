//! Retention: what is old and over goes, with all that belongs to it, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use tasuki_core::{ErrorCode, NodeName, RunState, WorkerId};
use tasuki_store::{
    Writer, ClaimBatch, ClaimResult, AttemptResult, LogLine, NewEvent, NewRun, NewWorker, PrunePlace,
    RunFilter, Stream,
};

use crate::given::{Like, TTL, TestStore, contract, failed, noon};

const DAY: i64 = 86_400;
const AGE: Duration = Duration::from_secs(DAY as u64);

async fn sweep_runs(store: &TestStore, most: u32) -> u64 {
    let (mut deleted, mut place) = (0, Some(PrunePlace::default()));
    while let Some(from) = place {
        let pruned = store.prune_runs(AGE, from, most).await.unwrap();
        assert!(pruned.deleted <= u64::from(most));
        (deleted, place) = (deleted + pruned.deleted, pruned.next);
    }
    deleted
}

fn event() -> NewEvent<'static> {
    NewEvent { event_type: "x", source: "test", dedupe_key: None, job_name: None, payload: None }
}

fn node() -> NodeName {
    "there".parse().unwrap()
}

/// Somebody who is not in the table.
fn asks() -> WorkerId {
    WorkerId::from_random(99)
}

/// How many rows of workers went, and whether there may be more.
async fn forgotten(store: &TestStore, most: u32) -> (u64, bool) {
    let told = store.forget_workers(store.epoch, AGE, asks(), most).await.unwrap();
    (told.deleted, told.more)
}

fn new_worker(id: WorkerId) -> NewWorker {
    let (pid, address, labels) = (None, None, None);
    NewWorker { id, node: node(), pid, address, labels, slots: 1, function_slots: 1 }
}

contract! {
    async fn only_what_has_ended_goes(store: TestStore) {
        let mut runs = Vec::new();
        for &state in RunState::ALL {
            store.at(0);
            runs.push(store.given_run(state).await.id);
        }
        store.at(DAY);
        assert_eq!(sweep_runs(store, 100).await, 0, "a day is not more than a day");
        store.at(DAY + 1);
        let ended = RunState::ALL.iter().filter(|state| state.is_ended()).count() as u64;
        assert_eq!(sweep_runs(store, 2).await, ended, "those that have not are passed over");
        for (run, state) in runs.into_iter().zip(RunState::ALL) {
            assert_eq!(store.run(run).await.unwrap().is_some(), !state.is_ended(), "{state}");
        }
        assert_eq!(sweep_runs(store, 2).await, 0);
    }

    async fn a_sweep_may_begin_with_what_is_planned_from_an_instant_on(store: TestStore) {
        let early = store.given_run(RunState::Succeeded).await;
        store.at(60);
        let late = store.given_run(RunState::Succeeded).await;
        assert!(early.scheduled_for < late.scheduled_for);
        store.at(2 * DAY);
        let from = PrunePlace::planned_from(late.scheduled_for);
        assert_eq!(store.prune_runs(AGE, from, 100).await.unwrap().deleted, 1);
        assert!(store.run(early.id).await.unwrap().is_some());
        assert_eq!(store.run(late.id).await.unwrap(), None);
    }

    /// Planned long ago, ended just now.
    async fn what_ended_late_stays(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        store.at(DAY);
        let token = store.given_running(run).await;
        assert!(store.finish(token, run, &failed(ErrorCode::INVALID_INPUT)).await.unwrap().is_applied());
        store.at(DAY + 1);
        assert_eq!(sweep_runs(store, 10).await, 0);
        assert!(store.retry(run, "ann", None).await.unwrap().is_applied());
        store.at(3 * DAY);
        assert_eq!(sweep_runs(store, 10).await, 0, "it has a try left");
    }

    async fn all_that_belongs_to_a_run_goes_with_it(store: TestStore) {
        let old = store.given_run(RunState::RetryWait).await.id;
        let kept = store.given_run(RunState::Running).await.id;
        for run in [old, kept] {
            let line = LogLine { stream: Stream::Out, at: noon(), text: "hello".to_owned() };
            assert!(store.append_log(run, 1, 0, &[line], 1000).await.unwrap().is_some());
        }
        assert!(store.cancel(Writer::Api, old, "ann", None).await.unwrap().is_applied());
        store.at(2 * DAY);
        assert_eq!(sweep_runs(store, 10).await, 1);
        assert_eq!((store.run(old).await.unwrap(), store.executions(old).await.unwrap()), (None, vec![]));
        assert_eq!(store.read_log(old, 1, 0, 10).await.unwrap(), None);
        let page = store.read_log(kept, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!(page.lines.len(), 1);
        let late = LogLine { stream: Stream::Out, at: noon(), text: "late".to_owned() };
        assert_eq!(store.append_log(old, 1, 1, &[late], 1000).await.unwrap(), None, "nobody would ever read it");
        for table in ["tasuki_attempt", "tasuki_run_note", "tasuki_log", "tasuki_log_chunk"] {
            let left = format!("insert into tasuki_setting (name, value, changed_at, changed_by) select '{table}', 'x', 1, 'x' from {table} where run_id = {old}");
            store.script(&left).await.unwrap();
        }
        assert!(store.settings().await.is_ok(), "a row left behind would be a setting that is none");
        let told = store.audit_verify(None).await.unwrap();
        assert!(matches!(told, tasuki_store::Verified::Whole(head) if head.seq > 0), "the audit stays");
    }

    async fn events_go_when_they_were_taken_long_ago(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let mut events = Vec::new();
        for _ in 0..5 {
            events.push(store.emit(&event()).await.unwrap().event);
        }
        assert!(store.pass_event(store.epoch, events[0]).await.unwrap());
        store.take_event(store.epoch, events[2], &[crate::given::seen(&job)], &[NewRun::task(&job)]).await.unwrap().unwrap();
        store.at(DAY);
        assert!(store.refuse_event(store.epoch, events[3], "late").await.unwrap());
        store.at(DAY + 1);
        let young = store.emit(&event()).await.unwrap().event;
        assert!(store.pass_event(store.epoch, young).await.unwrap());
        let first = store.prune_events(AGE, PrunePlace::default(), 2).await.unwrap();
        assert_eq!(first.deleted, 1, "the second is still open");
        let second = store.prune_events(AGE, first.next.unwrap(), 2).await.unwrap();
        assert_eq!(second.deleted, 1, "the fourth was taken just now");
        let third = store.prune_events(AGE, second.next.unwrap(), 2).await.unwrap();
        assert_eq!((third.deleted, third.next), (0, None));
        let left: Vec<_> = store.events(None, 10).await.unwrap().iter().map(|event| event.id).collect();
        assert_eq!(left, [young, events[4], events[3], events[1]]);
    }

    async fn counts_go_by_the_minute(store: TestStore) {
        for minute in 0..3 {
            store.at(60 * minute);
            store.given_run(RunState::Canceled).await;
        }
        store.at(DAY + 119);
        assert_eq!(store.prune_stats(AGE, 1).await.unwrap(), 1, "the minute that ended a day ago");
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0, "the next is not over yet");
        store.at(2 * DAY);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 2);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0);
    }

    /// However a worker ended. One that is alive stays, and one that still has a lease: somebody has to recover that first.
    async fn workers_go_that_nobody_has_heard_of_for_long(store: TestStore) {
        let [left, dead, cut_off, vanished, alive] = [11, 12, 13, 14, 15].map(WorkerId::from_random);
        for id in [left, dead, cut_off, vanished, alive] {
            store.register_worker(&new_worker(id)).await.unwrap();
        }
        assert!(store.worker_gone(left).await.unwrap());
        assert!(store.report_dead(dead, &node()).await.unwrap());
        for id in [cut_off, alive] {
            assert!(store.detach_worker(Writer::Api, "ann", id, "a test").await.unwrap());
        }
        let run = store.given_run(RunState::Running).await.id;
        store.at(DAY);
        assert_eq!(forgotten(store, 10).await, (0, false), "a day is not more than a day");
        store.at(DAY + 1);
        assert!(store.heartbeat(alive).await.unwrap().is_some(), "it is cut off, and goes on with something");
        assert_eq!(forgotten(store, 10).await, (1, false), "who left in order counted as gone before");
        assert!(!store.worker(vanished).await.unwrap().unwrap().is_attached(), "it counts as gone, and is still there");
        store.at(DAY + 61);
        assert_eq!(forgotten(store, 10).await, (0, false), "a claim may be landing");
        store.at(DAY + 62);
        assert_eq!(forgotten(store, 2).await, (2, true));
        assert_eq!(forgotten(store, 2).await, (1, false));
        assert_eq!(forgotten(store, 2).await, (0, false));
        let there: Vec<_> = store.workers().await.unwrap().iter().map(|worker| worker.id).collect();
        let expected: BTreeSet<_> = [alive, store.worker].into();
        assert_eq!(there.into_iter().collect::<BTreeSet<_>>(), expected);
        assert!(store.heartbeat(vanished).await.unwrap().is_none(), "it has to begin anew");
        assert!(store.worker(store.run(run).await.unwrap().unwrap().worker.unwrap()).await.unwrap().is_some());
    }

    /// People still see who carried what.
    async fn what_a_forgotten_worker_ran_is_shown(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        let again = store.given_run(RunState::RetryWait).await.id;
        let carrier = store.run(run).await.unwrap().unwrap().worker;
        assert!(carrier.is_some());
        store.at(2 * DAY);
        for second in [0, 61] {
            store.at(2 * DAY + second);
            store.forget_workers(store.epoch, AGE, carrier.unwrap(), 10).await.unwrap();
        }
        assert!(store.worker(carrier.unwrap()).await.unwrap().unwrap().is_attached(), "who asks is there");
        assert_eq!(forgotten(store, 10).await.0, 0);
        store.at(2 * DAY + 122);
        assert_eq!(forgotten(store, 10).await.0, 1);
        assert_eq!(store.worker(carrier.unwrap()).await.unwrap(), None);
        let listed = store.runs(&RunFilter::default(), None, 10).await.unwrap().runs;
        assert_eq!(listed.iter().map(|run| run.id).collect::<BTreeSet<_>>(), [run, again].into());
        assert_eq!(store.run(run).await.unwrap().unwrap().worker, carrier);
        for run in [run, again] {
            let carried: Vec<_> = store.executions(run).await.unwrap().iter().map(|one| one.worker).collect();
            assert_eq!(carried, [carrier.unwrap()]);
        }
    }

    /// It slept for longer than a week, wakes up, and claims before its heart has beaten.
    async fn who_counts_as_gone_claims_nothing_and_what_was_landing_is_seen(store: TestStore) {
        let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
        store.create(Writer::Api, &vec![NewRun::task(&job); 2]).await.unwrap();
        let late = WorkerId::from_random(21);
        store.register_worker(&new_worker(late)).await.unwrap();
        let claim = |token| ClaimBatch { worker: late, token, lane: "q", most: 1, lease_ttl: TTL };
        // A claim that did not see yet that it is gone: it lands beside that.
        store.at(2 * DAY);
        store.heartbeat(store.worker).await.unwrap();
        let token = store.token();
        let ClaimResult::Runs(taken) = store.claim(&claim(token)).await.unwrap() else { panic!("a fresh token") };
        assert_eq!(taken.len(), 1);
        assert!(store.worker_gone(late).await.unwrap());
        assert_eq!(store.claim(&claim(store.token())).await.unwrap(), ClaimResult::Runs(vec![]));
        store.at(2 * DAY + 3600);
        assert_eq!(forgotten(store, 10).await.0, 0, "it carries something");
        assert!(store.worker(late).await.unwrap().is_some());
        assert!(store.finish(token, taken[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(forgotten(store, 10).await.0, 1);
        assert_eq!(store.claim(&claim(store.token())).await.unwrap(), ClaimResult::Runs(vec![]));
    }

    async fn nothing_to_do_is_done(store: TestStore) {
        assert_eq!(sweep_runs(store, 10).await, 0);
        assert_eq!(store.prune_events(AGE, PrunePlace::default(), 10).await.unwrap().next, None);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0);
        assert_eq!(forgotten(store, 10).await, (0, false));
    }
}
