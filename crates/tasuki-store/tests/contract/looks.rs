//! What surfaces look at besides a row itself: names, leases, terms, and all that a run's row says.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{Epoch, ErrorCode, JobId, RunState, Scope, WorkerId};
use tasuki_store::{Writer, AttemptResult, Glance, JobChange, NewEvent, NewRun, SettingsChange};

use crate::given::{AHEAD, Like, TTL, TestStore, contract, failed, noon, seen};

contract! {
    async fn jobs_are_called_by_name_deleted_ones_too(store: TestStore) {
        let kept = store.given_job(&Like::default()).await;
        let gone = store.given_job(&Like::default()).await;
        let name = store.job_by_id(gone.job).await.unwrap().unwrap().name;
        let deleted = store.delete_job("ann", seen(&gone)).await.unwrap();
        assert!(matches!(deleted, JobChange::Applied { .. }));
        let names = store.job_names(&[kept.job, gone.job, JobId(999)].into()).await.unwrap();
        assert_eq!((names.len(), &names[&gone.job]), (2, &name));
        assert!(store.job_names(&BTreeSet::new()).await.unwrap().is_empty());
    }

    async fn a_lease_is_seen_while_it_is_there(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let lease = store.lease(token).await.unwrap().unwrap();
        assert_eq!((lease.heartbeat_at, lease.runs.as_slice()), (noon(), &[run.id][..]));
        let per_worker = store.leases_per_worker().await.unwrap();
        assert_eq!(per_worker.get(&store.worker), Some(&1));
        assert_eq!(per_worker.get(&WorkerId::from_random(99)), None);
        assert!(store.finish(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.lease(token).await.unwrap(), None);
        assert!(store.leases_per_worker().await.unwrap().is_empty());
    }

    async fn a_glance_tells_a_leader_whether_to_look_closer(store: TestStore) {
        let nothing = store.glance(AHEAD).await.unwrap();
        let none = Glance { clock: noon(), fires: false, events: false, waiting: false };
        assert_eq!(nothing, none);
        let job = store.given_job(&Like::default()).await;
        let made = store.create(Writer::Api, &[NewRun::task(&job)]).await.unwrap();
        assert_eq!(store.glance(AHEAD).await.unwrap(), Glance { waiting: true, ..none });
        assert!(store.cancel(Writer::Api, made[0].run, "ann", None).await.unwrap().is_applied());
        let event = NewEvent {
            event_type: "paid",
            source: "shop",
            dedupe_key: None,
            job_name: None,
            payload: None,
        };
        let emitted = store.emit(&event).await.unwrap().event;
        assert_eq!(store.glance(AHEAD).await.unwrap(), Glance { events: true, ..none });
        assert!(store.pass_event(store.epoch, emitted).await.unwrap());
        let fires = noon() + SignedDuration::from_mins(1);
        assert!(store.put_cursor(seen(&job), &Scope::default(), fires).await.unwrap());
        assert_eq!(store.glance(AHEAD).await.unwrap(), none, "it is far off");
        store.at(30);
        assert!(store.glance(AHEAD).await.unwrap().fires);
    }

    async fn a_worker_learns_in_one_look_whether_to_look_closer(store: TestStore) {
        let before = store.heartbeat(store.worker).await.unwrap().unwrap();
        assert_eq!((before.worker.id, before.clock, before.carries), (store.worker, noon(), false));
        let run = store.given_run(RunState::Assigned).await;
        let changed = store.change_settings("ann", before.settings_version, &[("log_retention_days_db", "40")]);
        assert!(matches!(changed.await.unwrap(), SettingsChange::Applied(_)));
        let now = store.heartbeat(store.worker).await.unwrap().unwrap();
        assert_eq!((now.carries, now.settings_version), (true, before.settings_version + 1));
        assert!(store.release(run.token.unwrap(), run.id).await.unwrap().is_applied());
        assert!(!store.heartbeat(store.worker).await.unwrap().unwrap().carries);
        assert_eq!(store.heartbeat(WorkerId::from_random(99)).await.unwrap(), None);
    }

    async fn the_newest_terms_come_first(store: TestStore) {
        let first = store.epoch;
        assert!(store.depose("ann", first).await.unwrap());
        let next = store.mint(store.worker, first, Epoch(0), TTL).await.unwrap().unwrap();
        let epochs: Vec<Epoch> =
            store.recent_terms(9).await.unwrap().iter().map(|term| term.epoch).collect();
        assert_eq!(epochs, [next, first]);
        assert_eq!(store.recent_terms(1).await.unwrap()[0].epoch, next);
    }

    async fn who_has_the_only_place_is_told_to_who_waits(store: TestStore) {
        let like = Like { lane: "bulk", concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let job = store.given_job(&like).await;
        let twice = vec![NewRun::task(&job); 2];
        let made = store.create(Writer::Api, &twice).await.unwrap();
        let waiting = store.run_now(made[1].run).await;
        assert_eq!(store.holder_before(&waiting).await.unwrap(), None);
        let (_, taken) = store.try_claim("bulk", 2).await;
        assert_eq!(taken.len(), 1);
        assert_eq!(store.holder_before(&waiting).await.unwrap(), Some(taken[0].id));
    }

    async fn a_run_says_where_it_came_from_and_how_it_ended(store: TestStore) {
        let job = store.given_job(&Like { lane: "bulk", ..Like::default() }).await;
        let new = NewRun { idempotency_key: Some("k".to_owned()), ..NewRun::task(&job) };
        let id = store.create(Writer::Api, &[new]).await.unwrap()[0].run;
        let (token, _) = store.try_claim("bulk", 1).await;
        let run = store.run_now(id).await;
        assert_eq!((run.idempotency_key.as_deref(), run.assigned_at), (Some("k"), Some(noon())));
        let finish = AttemptResult {
            exit_signal: Some(9),
            error_message: Some("gone".to_owned()),
            rows_affected: Some(17),
            log_ref: Some("https://log/1".to_owned()),
            ..failed(ErrorCode::NOT_FOUND)
        };
        assert!(store.finish(token, id, &finish).await.unwrap().is_applied());
        let run = store.run_now(id).await;
        assert_eq!((run.exit_signal, run.rows_affected), (Some(9), Some(17)));
        assert_eq!(run.error_message.as_deref(), Some("gone"));
        assert_eq!(run.log_ref.as_deref(), Some("https://log/1"));
        let again = store.rerun("ann", &job, id).await.unwrap().applied().unwrap();
        assert_eq!(store.run_now(again).await.rerun_of, Some(id));
        assert!(store.cancel(Writer::Api, again, "ann", None).await.unwrap().is_applied());
        assert_eq!(store.run_now(again).await.cancel_requested_by.as_deref(), Some("ann"));
    }
}
