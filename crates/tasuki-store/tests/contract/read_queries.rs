//! Read queries of the user interfaces: job names, leases, terms, hold owners, and the details of a run.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{AttemptErrorCode, Epoch, JobId, RunScope, RunState, WorkerId};
use tasuki_store::{
    AttemptResult, JobChangeResult, LeaderWorkFlags, NewEvent, NewRun, SettingsChangeResult, Writer,
};

use crate::fixtures::{
    ASSIGN_AHEAD, RunOptions, TTL, TestStore, contract, expected_version, failed_result, noon,
};

contract! {
    async fn names_of_deleted_jobs_are_found(store: TestStore) {
        let kept = store.given_job(&RunOptions::default()).await;
        let gone = store.given_job(&RunOptions::default()).await;
        let name = store.find_job_by_id(gone.job).await.unwrap().unwrap().name;
        let deleted = store.delete_job("ann", expected_version(&gone)).await.unwrap();
        assert!(matches!(deleted, JobChangeResult::Applied { .. }));
        let names = store.list_job_names(&[kept.job, gone.job, JobId(999)].into()).await.unwrap();
        assert_eq!((names.len(), &names[&gone.job]), (2, &name));
        assert!(store.list_job_names(&BTreeSet::new()).await.unwrap().is_empty());
    }

    async fn a_lease_is_listed_while_it_exists(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let lease = store.find_lease(token).await.unwrap().unwrap();
        assert_eq!((lease.heartbeat_at, lease.runs.as_slice()), (noon(), &[run.id][..]));
        let per_worker = store.count_leases_per_worker().await.unwrap();
        assert_eq!(per_worker.get(&store.worker), Some(&1));
        assert_eq!(per_worker.get(&WorkerId::from_random(99)), None);
        assert!(store.finish_run(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.find_lease(token).await.unwrap(), None);
        assert!(store.count_leases_per_worker().await.unwrap().is_empty());
    }

    async fn one_query_shows_the_leader_if_there_is_pending_work(store: TestStore) {
        let nothing = store.get_leader_work_flags(ASSIGN_AHEAD).await.unwrap();
        let none = LeaderWorkFlags { clock: noon(), slot_due: false, event_waiting: false, run_waiting: false };
        assert_eq!(nothing, none);
        let job = store.given_job(&RunOptions::default()).await;
        let created = store.create_or_find_runs(Writer::Api, &[NewRun::task(&job)]).await.unwrap();
        assert_eq!(store.get_leader_work_flags(ASSIGN_AHEAD).await.unwrap(), LeaderWorkFlags { run_waiting: true, ..none });
        assert!(store.cancel(Writer::Api, created[0].run, "ann", None).await.unwrap().is_applied());
        let event = NewEvent {
            event_type: "paid",
            source: "shop",
            dedupe_key: None,
            job_name: None,
            payload: None,
        };
        let emitted = store.emit_event(&event).await.unwrap().event;
        assert_eq!(store.get_leader_work_flags(ASSIGN_AHEAD).await.unwrap(), LeaderWorkFlags { event_waiting: true, ..none });
        assert!(store.close_unmatched_event(store.epoch, emitted).await.unwrap());
        let fires = noon() + SignedDuration::from_mins(1);
        assert!(store.create_schedule_cursor(expected_version(&job), &RunScope::default(), fires).await.unwrap());
        assert_eq!(store.get_leader_work_flags(ASSIGN_AHEAD).await.unwrap(), none, "the next fire is not near");
        store.set_time(30);
        assert!(store.get_leader_work_flags(ASSIGN_AHEAD).await.unwrap().slot_due);
    }

    async fn a_heartbeat_shows_if_the_worker_holds_runs_and_if_settings_changed(store: TestStore) {
        let before = store.record_heartbeat(store.worker).await.unwrap().unwrap();
        assert_eq!((before.worker.id, before.clock, before.has_leases), (store.worker, noon(), false));
        let run = store.given_run(RunState::Assigned).await;
        let changed = store.change_settings("ann", before.settings_version, &[("log_retention_days_db", "40")]);
        assert!(matches!(changed.await.unwrap(), SettingsChangeResult::Applied(_)));
        let now = store.record_heartbeat(store.worker).await.unwrap().unwrap();
        assert_eq!((now.has_leases, now.settings_version), (true, before.settings_version + 1));
        assert!(store.release(run.token.unwrap(), run.id).await.unwrap().is_applied());
        assert!(!store.record_heartbeat(store.worker).await.unwrap().unwrap().has_leases);
        assert_eq!(store.record_heartbeat(WorkerId::from_random(99)).await.unwrap(), None);
    }

    async fn recent_terms_are_listed_newest_first(store: TestStore) {
        let first = store.epoch;
        assert!(store.end_term("ann", first).await.unwrap());
        let next = store.take_leadership(store.worker, first, Epoch(0), TTL).await.unwrap().unwrap();
        let epochs: Vec<Epoch> =
            store.list_recent_terms(9).await.unwrap().iter().map(|term| term.epoch).collect();
        assert_eq!(epochs, [next, first]);
        assert_eq!(store.list_recent_terms(1).await.unwrap()[0].epoch, next);
    }

    async fn the_hold_owner_of_a_waiting_run_is_found(store: TestStore) {
        let options = RunOptions { lane: "bulk", concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let job = store.given_job(&options).await;
        let twice = vec![NewRun::task(&job); 2];
        let created = store.create_or_find_runs(Writer::Api, &twice).await.unwrap();
        let waiting = store.read_run(created[1].run).await;
        assert_eq!(store.find_hold_owner(&waiting).await.unwrap(), None);
        let (_, claimed) = store.try_claim("bulk", 2).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(store.find_hold_owner(&waiting).await.unwrap(), Some(claimed[0].id));
    }

    async fn a_run_has_its_origin_and_its_result(store: TestStore) {
        let job = store.given_job(&RunOptions { lane: "bulk", ..RunOptions::default() }).await;
        let new = NewRun { idempotency_key: Some("k".to_owned()), ..NewRun::task(&job) };
        let id = store.create_or_find_runs(Writer::Api, &[new]).await.unwrap()[0].run;
        let (token, _) = store.try_claim("bulk", 1).await;
        let run = store.read_run(id).await;
        assert_eq!((run.idempotency_key.as_deref(), run.assigned_at), (Some("k"), Some(noon())));
        let finish = AttemptResult {
            exit_signal: Some(9),
            error_message: Some("gone".to_owned()),
            rows_affected: Some(17),
            log_ref: Some("https://log/1".to_owned()),
            ..failed_result(AttemptErrorCode::NOT_FOUND)
        };
        assert!(store.finish_run(token, id, &finish).await.unwrap().is_applied());
        let run = store.read_run(id).await;
        assert_eq!((run.exit_signal, run.rows_affected), (Some(9), Some(17)));
        assert_eq!(run.error_message.as_deref(), Some("gone"));
        assert_eq!(run.log_ref.as_deref(), Some("https://log/1"));
        let again = store.rerun("ann", &job, id).await.unwrap().into_applied().unwrap();
        assert_eq!(store.read_run(again).await.rerun_of, Some(id));
        assert!(store.cancel(Writer::Api, again, "ann", None).await.unwrap().is_applied());
        assert_eq!(store.read_run(again).await.cancel_requested_by.as_deref(), Some("ann"));
    }
}
