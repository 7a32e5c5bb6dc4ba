//! Retention: old ended runs, processed events, statistics and gone workers are deleted with all their data, and
//! nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use tasuki_core::{AttemptErrorCode, NodeName, RunState, WorkerId};
use tasuki_store::{
    AttemptResult, ClaimRequest, ClaimResult, LogLine, NewEvent, NewRun, NewWorker, OutputStream,
    PrunePosition, RunFilter, Writer,
};

use crate::fixtures::{RunOptions, TTL, TestStore, contract, failed_result, noon};

const DAY: i64 = 86_400;
const AGE: Duration = Duration::from_secs(DAY as u64);

async fn prune_all_runs(store: &TestStore, limit: u32) -> u64 {
    let (mut deleted, mut place) = (0, Some(PrunePosition::default()));
    while let Some(from) = place {
        let pruned = store.prune_runs(AGE, from, limit).await.unwrap();
        assert!(pruned.deleted <= u64::from(limit));
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

/// Id of the worker that calls retention. It is not in the worker table.
fn caller_id() -> WorkerId {
    WorkerId::from_random(99)
}

/// Prunes workers. Returns the number of deleted rows and whether there may be more.
async fn prune_workers(store: &TestStore, limit: u32) -> (u64, bool) {
    let result = store.prune_workers(store.epoch, AGE, caller_id(), limit).await.unwrap();
    (result.deleted, result.has_more)
}

fn new_worker(id: WorkerId) -> NewWorker {
    let (pid, address, labels) = (None, None, None);
    NewWorker { id, node: node(), pid, address, labels, slots: 1, function_slots: 1 }
}

contract! {
    async fn only_ended_runs_are_deleted(store: TestStore) {
        let mut runs = Vec::new();
        for &state in RunState::ALL {
            store.set_time(0);
            runs.push(store.given_run(state).await.id);
        }
        store.set_time(DAY);
        assert_eq!(prune_all_runs(store, 100).await, 0, "an age of exactly one day is not older than one day");
        store.set_time(DAY + 1);
        let ended = RunState::ALL.iter().filter(|state| state.is_ended()).count() as u64;
        assert_eq!(prune_all_runs(store, 2).await, ended, "runs that have not ended are passed over");
        for (run, state) in runs.into_iter().zip(RunState::ALL) {
            assert_eq!(store.find_run(run).await.unwrap().is_some(), !state.is_ended(), "{state}");
        }
        assert_eq!(prune_all_runs(store, 2).await, 0);
    }

    async fn pruning_may_start_at_a_planned_instant(store: TestStore) {
        let early = store.given_run(RunState::Succeeded).await;
        store.set_time(60);
        let late = store.given_run(RunState::Succeeded).await;
        assert!(early.scheduled_for < late.scheduled_for);
        store.set_time(2 * DAY);
        let from = PrunePosition::before_runs_scheduled_at(late.scheduled_for);
        assert_eq!(store.prune_runs(AGE, from, 100).await.unwrap().deleted, 1);
        assert!(store.find_run(early.id).await.unwrap().is_some());
        assert_eq!(store.find_run(late.id).await.unwrap(), None);
    }

    /// A run that was planned long ago and ended just now stays.
    async fn a_run_that_ended_late_stays(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        store.set_time(DAY);
        let token = store.given_running(run).await;
        assert!(store.finish_run(token, run, &failed_result(AttemptErrorCode::INVALID_INPUT)).await.unwrap().is_applied());
        store.set_time(DAY + 1);
        assert_eq!(prune_all_runs(store, 10).await, 0);
        assert!(store.retry_manually(run, "ann", None).await.unwrap().is_applied());
        store.set_time(3 * DAY);
        assert_eq!(prune_all_runs(store, 10).await, 0, "a run that waits for a try stays");
    }

    async fn all_data_of_a_run_is_deleted_with_it(store: TestStore) {
        let old = store.given_run(RunState::RetryWait).await.id;
        let kept = store.given_run(RunState::Running).await.id;
        for run in [old, kept] {
            let line = LogLine { stream: OutputStream::Stdout, at: noon(), text: "hello".to_owned() };
            assert!(store.append_log(run, 1, 0, &[line], 1000).await.unwrap().is_some());
        }
        assert!(store.cancel(Writer::Api, old, "ann", None).await.unwrap().is_applied());
        store.set_time(2 * DAY);
        assert_eq!(prune_all_runs(store, 10).await, 1);
        assert_eq!((store.find_run(old).await.unwrap(), store.list_executions(old).await.unwrap()), (None, vec![]));
        assert_eq!(store.read_log(old, 1, 0, 10).await.unwrap(), None);
        let page = store.read_log(kept, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!(page.lines.len(), 1);
        let late = LogLine { stream: OutputStream::Stdout, at: noon(), text: "late".to_owned() };
        assert_eq!(store.append_log(old, 1, 1, &[late], 1000).await.unwrap(), None, "a line of a deleted run is refused");
        for table in ["tasuki_attempt", "tasuki_run_note", "tasuki_log", "tasuki_log_chunk"] {
            let left = format!("insert into tasuki_setting (name, value, changed_at, changed_by) select '{table}', 'x', 1, 'x' from {table} where run_id = {old}");
            store.execute_script(&left).await.unwrap();
        }
        assert!(store.load_settings().await.is_ok(), "a row left behind would have become an unknown setting");
        let result = store.verify_audit(None).await.unwrap();
        assert!(matches!(result, tasuki_store::AuditVerification::Intact(head) if head.seq > 0), "the audit log stays");
    }

    async fn events_are_deleted_long_after_they_were_processed(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let mut events = Vec::new();
        for _ in 0..5 {
            events.push(store.emit_event(&event()).await.unwrap().event);
        }
        assert!(store.close_unmatched_event(store.epoch, events[0]).await.unwrap());
        store.process_event(store.epoch, events[2], &[crate::fixtures::expected_version(&job)], &[NewRun::task(&job)]).await.unwrap().unwrap();
        store.set_time(DAY);
        assert!(store.close_failed_event(store.epoch, events[3], "late").await.unwrap());
        store.set_time(DAY + 1);
        let young = store.emit_event(&event()).await.unwrap().event;
        assert!(store.close_unmatched_event(store.epoch, young).await.unwrap());
        let first = store.prune_events(AGE, PrunePosition::default(), 2).await.unwrap();
        assert_eq!(first.deleted, 1, "the second event is still open");
        let second = store.prune_events(AGE, first.next.unwrap(), 2).await.unwrap();
        assert_eq!(second.deleted, 1, "the fourth event was refused just now");
        let third = store.prune_events(AGE, second.next.unwrap(), 2).await.unwrap();
        assert_eq!((third.deleted, third.next), (0, None));
        let left: Vec<_> = store.list_events(None, 10).await.unwrap().iter().map(|event| event.id).collect();
        assert_eq!(left, [young, events[4], events[3], events[1]]);
    }

    async fn statistics_are_deleted_by_the_minute(store: TestStore) {
        for minute in 0..3 {
            store.set_time(60 * minute);
            store.given_run(RunState::Canceled).await;
        }
        store.set_time(DAY + 119);
        assert_eq!(store.prune_stats(AGE, 1).await.unwrap(), 1, "only the minute that ended a day ago");
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0, "the next minute is not old enough");
        store.set_time(2 * DAY);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 2);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0);
    }

    /// Workers are deleted however they ended. A live worker stays, and so does one with a lease, which must be
    /// recovered first.
    async fn workers_without_a_heartbeat_for_long_are_deleted(store: TestStore) {
        let [left, dead, cut_off, vanished, alive] = [11, 12, 13, 14, 15].map(WorkerId::from_random);
        for id in [left, dead, cut_off, vanished, alive] {
            store.register_worker(&new_worker(id)).await.unwrap();
        }
        assert!(store.mark_worker_gone(left).await.unwrap());
        assert!(store.mark_worker_dead(dead, &node()).await.unwrap());
        for id in [cut_off, alive] {
            assert!(store.detach_worker(Writer::Api, "ann", id, "a test").await.unwrap());
        }
        let run = store.given_run(RunState::Running).await.id;
        store.set_time(DAY);
        assert_eq!(prune_workers(store, 10).await, (0, false), "an age of exactly one day is not older than one day");
        store.set_time(DAY + 1);
        assert!(store.record_heartbeat(alive).await.unwrap().is_some(), "a detached worker may still send heartbeats");
        assert_eq!(prune_workers(store, 10).await, (1, false), "the worker that left in order was already marked as gone");
        assert!(!store.find_worker(vanished).await.unwrap().unwrap().may_continue(), "it is marked as gone, but not deleted yet");
        store.set_time(DAY + 61);
        assert_eq!(prune_workers(store, 10).await, (0, false), "a late claim may still be committed");
        store.set_time(DAY + 62);
        assert_eq!(prune_workers(store, 2).await, (2, true));
        assert_eq!(prune_workers(store, 2).await, (1, false));
        assert_eq!(prune_workers(store, 2).await, (0, false));
        let there: Vec<_> = store.list_workers().await.unwrap().iter().map(|worker| worker.id).collect();
        let expected: BTreeSet<_> = [alive, store.worker].into();
        assert_eq!(there.into_iter().collect::<BTreeSet<_>>(), expected);
        assert!(store.record_heartbeat(vanished).await.unwrap().is_none(), "it must register a new incarnation");
        assert!(store.find_worker(store.find_run(run).await.unwrap().unwrap().worker.unwrap()).await.unwrap().is_some());
    }

    /// Runs and attempts still show the id of a deleted worker.
    async fn runs_of_a_deleted_worker_still_show_its_id(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        let again = store.given_run(RunState::RetryWait).await.id;
        let worker = store.find_run(run).await.unwrap().unwrap().worker;
        assert!(worker.is_some());
        store.set_time(2 * DAY);
        for second in [0, 61] {
            store.set_time(2 * DAY + second);
            store.prune_workers(store.epoch, AGE, worker.unwrap(), 10).await.unwrap();
        }
        assert!(store.find_worker(worker.unwrap()).await.unwrap().unwrap().may_continue(), "the calling worker is alive");
        assert_eq!(prune_workers(store, 10).await.0, 0);
        store.set_time(2 * DAY + 122);
        assert_eq!(prune_workers(store, 10).await.0, 1);
        assert_eq!(store.find_worker(worker.unwrap()).await.unwrap(), None);
        let listed = store.list_runs(&RunFilter::default(), None, 10).await.unwrap().runs;
        assert_eq!(listed.iter().map(|run| run.id).collect::<BTreeSet<_>>(), [run, again].into());
        assert_eq!(store.find_run(run).await.unwrap().unwrap().worker, worker);
        for run in [run, again] {
            let workers: Vec<_> = store.list_executions(run).await.unwrap().iter().map(|one| one.worker).collect();
            assert_eq!(workers, [worker.unwrap()]);
        }
    }

    /// A worker was suspended for longer than the retention age and claims before its next heartbeat.
    async fn a_gone_worker_cannot_claim_and_a_late_claim_is_kept(store: TestStore) {
        let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
        store.create_or_find_runs(Writer::Api, &vec![NewRun::task(&job); 2]).await.unwrap();
        let late = WorkerId::from_random(21);
        store.register_worker(&new_worker(late)).await.unwrap();
        let claim = |token| ClaimRequest { worker: late, token, lane: "q", max_runs: 1, lease_ttl: TTL, after: None };
        // This claim is committed before the worker is marked as gone.
        store.set_time(2 * DAY);
        store.record_heartbeat(store.worker).await.unwrap();
        let token = store.new_token();
        let ClaimResult::Runs(claimed) = store.claim(&claim(token)).await.unwrap() else { panic!("the token is new") };
        assert_eq!(claimed.len(), 1);
        assert!(store.mark_worker_gone(late).await.unwrap());
        assert_eq!(store.claim(&claim(store.new_token())).await.unwrap(), ClaimResult::Runs(vec![]));
        store.set_time(2 * DAY + 3600);
        assert_eq!(prune_workers(store, 10).await.0, 0, "the worker holds a lease");
        assert!(store.find_worker(late).await.unwrap().is_some());
        assert!(store.finish_run(token, claimed[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(prune_workers(store, 10).await.0, 1);
        assert_eq!(store.claim(&claim(store.new_token())).await.unwrap(), ClaimResult::Runs(vec![]));
    }

    async fn pruning_an_empty_database_does_nothing(store: TestStore) {
        assert_eq!(prune_all_runs(store, 10).await, 0);
        assert_eq!(store.prune_events(AGE, PrunePosition::default(), 10).await.unwrap().next, None);
        assert_eq!(store.prune_stats(AGE, 10).await.unwrap(), 0);
        assert_eq!(prune_workers(store, 10).await, (0, false));
    }
}
