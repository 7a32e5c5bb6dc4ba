//! Events: stored once for each deduplication key, and processed once, by the current leader.

use tasuki_core::{Epoch, EventId, Origin};
use tasuki_store::{Dialect, Error, JobChangeResult, NewEvent, NewRun};

use crate::fixtures::{
    RunOptions, TTL, TestStore, contract, expected_version, noon, run_both, run_contract,
};

fn paid(dedupe_key: Option<&str>) -> NewEvent<'_> {
    NewEvent {
        event_type: "order.paid",
        source: "shop",
        dedupe_key,
        job_name: None,
        payload: Some(r#"{"order":7}"#),
    }
}

contract! {
    async fn the_same_key_from_one_source_is_the_same_event(store: TestStore) {
        let first = store.emit_event(&paid(Some("7"))).await.unwrap();
        assert!(!first.existed);
        let again = store.emit_event(&NewEvent { payload: None, ..paid(Some("7")) }).await.unwrap();
        assert_eq!((again.event, again.existed), (first.event, true));
        let elsewhere = store.emit_event(&NewEvent { source: "till", ..paid(Some("7")) }).await.unwrap();
        let keyless = store.emit_event(&paid(None)).await.unwrap();
        let keyless_too = store.emit_event(&paid(None)).await.unwrap();
        assert!(!elsewhere.existed && !keyless.existed && !keyless_too.existed);
        assert_eq!(store.list_unprocessed_events(10).await.unwrap().len(), 4);
        let event = store.find_event(first.event).await.unwrap().unwrap();
        assert_eq!(event.payload.as_deref(), Some(r#"{"order":7}"#), "the first payload is kept");
        assert_eq!((event.created_at, event.processed_at, event.runs), (noon(), None, None));
    }

    async fn two_concurrent_emits_with_one_key_make_one_event(store: TestStore) {
        let event = paid(Some("7"));
        let both = run_both(store.emit_event(&event), store.emit_event(&event)).await.map(Result::unwrap);
        assert_eq!(both[0].event, both[1].event);
        assert_eq!(both.iter().filter(|one| one.existed).count(), 1);
    }

    /// A program in any language may insert an event with two columns; the others have defaults.
    async fn a_plain_sql_insert_is_an_event(store: TestStore) {
        let sql = "insert into tasuki_event (event_type, payload) values ('order.paid', '{\"order\":7}')";
        store.execute_script(sql).await.unwrap();
        let open = store.list_unprocessed_events(10).await.unwrap();
        assert_eq!((open.len(), open[0].source.as_str(), &open[0].dedupe_key), (1, "sql", &None));
        // The default of created_at is the database's real clock, not the bound clock of the test.
        assert!(open[0].created_at > "2025-01-01T00:00:00Z".parse().unwrap());
    }

    async fn open_events_are_listed_oldest_first_with_a_limit(store: TestStore) {
        let mut ids_in_order = Vec::new();
        for _ in 0..5 {
            ids_in_order.push(store.emit_event(&paid(None)).await.unwrap().event);
        }
        assert!(store.close_unmatched_event(store.epoch, ids_in_order[0]).await.unwrap());
        let ids = |events: Vec<tasuki_store::Event>| events.iter().map(|event| event.id).collect::<Vec<_>>();
        assert_eq!(ids(store.list_unprocessed_events(3).await.unwrap()), ids_in_order[1..4]);
        assert_eq!(ids(store.list_events(None, 2).await.unwrap()), [ids_in_order[4], ids_in_order[3]]);
        assert_eq!(ids(store.list_events(Some(ids_in_order[3]), 9).await.unwrap()), [ids_in_order[2], ids_in_order[1], ids_in_order[0]]);
    }

    async fn an_event_is_processed_together_with_its_runs(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let event = store.emit_event(&paid(None)).await.unwrap().event;
        let runs = [NewRun::task(&job), NewRun::task(&job)];
        let created = store.process_event(store.epoch, event, &[expected_version(&job)], &runs).await.unwrap().unwrap();
        assert_eq!(created.len(), 2);
        assert_eq!(store.read_run(created[0].run).await.origin, Origin::Event);
        let after = store.find_event(event).await.unwrap().unwrap();
        assert_eq!((after.processed_at, after.runs, after.problem), (Some(noon()), Some(2), None));
        assert!(store.list_unprocessed_events(10).await.unwrap().is_empty());
        assert_eq!(store.process_event(store.epoch, event, &[expected_version(&job)], &runs).await.unwrap(), None, "an event is processed once");
        assert!(!store.close_unmatched_event(store.epoch, event).await.unwrap(), "the event was already processed");
        assert!(!store.close_failed_event(store.epoch, event, "late").await.unwrap());
        assert_eq!(store.find_event(event).await.unwrap().unwrap().runs, Some(2));
    }

    /// A run that existed before is not counted as a run of the event.
    async fn only_new_runs_of_an_event_are_counted(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let new = NewRun { idempotency_key: Some("7".to_owned()), ..NewRun::task(&job) };
        store.create_or_find_runs(tasuki_store::Writer::Api, std::slice::from_ref(&new)).await.unwrap();
        let event = store.emit_event(&paid(None)).await.unwrap().event;
        let created = store.process_event(store.epoch, event, &[expected_version(&job)], &[new, NewRun::task(&job)]).await.unwrap().unwrap();
        assert_eq!(created.iter().map(|one| one.existed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(store.find_event(event).await.unwrap().unwrap().runs, Some(1));
    }

    async fn an_event_processed_twice_at_once_creates_its_runs_once(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let event = store.emit_event(&paid(None)).await.unwrap().event;
        let jobs = [expected_version(&job)];
        let runs = [NewRun::task(&job)];
        let both = run_both(
            store.process_event(store.epoch, event, &jobs, &runs),
            store.process_event(store.epoch, event, &jobs, &runs),
        );
        let results = both.await.map(Result::unwrap);
        assert_eq!(results.iter().filter(|one| one.is_some()).count(), 1);
    }

    async fn an_unmatched_or_failed_event_is_no_longer_open(store: TestStore) {
        let passed = store.emit_event(&paid(None)).await.unwrap().event;
        let refused = store.emit_event(&paid(None)).await.unwrap().event;
        assert!(store.close_unmatched_event(store.epoch, passed).await.unwrap());
        assert!(store.close_failed_event(store.epoch, refused, "no job is called x").await.unwrap());
        assert!(store.list_unprocessed_events(10).await.unwrap().is_empty());
        assert_eq!(store.find_event(passed).await.unwrap().unwrap().runs, Some(0));
        let after = store.find_event(refused).await.unwrap().unwrap();
        assert_eq!((after.runs, after.problem.as_deref()), (Some(0), Some("no job is called x")));
        assert!(!store.close_unmatched_event(store.epoch, EventId(9999)).await.unwrap(), "no such event");
    }

    /// If a job was edited, disabled or deleted meanwhile, nothing is created and the event stays open; the leader
    /// reads it again.
    async fn an_event_creates_no_runs_of_a_changed_job(store: TestStore) {
        let (job, other) = (store.given_job(&RunOptions::default()).await, store.given_job(&RunOptions::default()).await);
        let event = store.emit_event(&paid(None)).await.unwrap().event;
        let runs = [NewRun::task(&other), NewRun::task(&job)];
        let JobChangeResult::Applied { job: off, .. } = store.disable_job("ann", expected_version(&job)).await.unwrap() else {
            panic!("no concurrent change")
        };
        let jobs = [expected_version(&other), expected_version(&job)];
        assert_eq!(store.process_event(store.epoch, event, &jobs, &runs).await.unwrap(), None, "the job is disabled");
        let jobs = [expected_version(&other), off.expected_version()];
        drop(store.delete_job("ann", off.expected_version()).await.unwrap());
        assert_eq!(store.process_event(store.epoch, event, &jobs, &runs).await.unwrap(), None, "the job is deleted");
        assert_eq!(store.list_unprocessed_events(10).await.unwrap().len(), 1);
        assert!(store.list_due_in_lane("", noon(), 10).await.unwrap().is_empty(), "all or none");
        let unseen = store.process_event(store.epoch, event, &[expected_version(&job)], &runs[..1]).await.unwrap_err();
        assert!(unseen.is_invalid_input(), "{unseen}");
        let created = store.process_event(store.epoch, event, &jobs[..1], &runs[..1]).await.unwrap().unwrap();
        assert_eq!(created.len(), 1);
    }

    async fn a_former_leader_cannot_process_an_event(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let event = store.emit_event(&paid(None)).await.unwrap().event;
        store.set_time(60);
        store.take_leadership(store.worker, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let fenced = store.process_event(store.epoch, event, &[expected_version(&job)], &[NewRun::task(&job)]).await;
        assert!(matches!(fenced, Err(Error::Fenced(_))));
        assert!(matches!(store.close_unmatched_event(store.epoch, event).await, Err(Error::Fenced(_))));
        assert!(matches!(store.close_failed_event(store.epoch, event, "x").await, Err(Error::Fenced(_))));
        assert_eq!(store.list_unprocessed_events(10).await.unwrap().len(), 1);
    }

    async fn an_event_that_cannot_be_stored_is_refused(store: TestStore) {
        let long = "x".repeat(192);
        let heavy = format!("\"{}\"", "x".repeat(1 << 20));
        for (event, expected) in [
            (NewEvent { event_type: " ", ..paid(None) }, "event type: found nothing, expected 1 to 191 characters"),
            (NewEvent { source: &long, ..paid(None) }, "source: found"),
            (paid(Some("")), "dedupe key: found nothing"),
            (paid(Some("7 ")), "dedupe key: found \"7 \", expected no whitespace around it"),
            (NewEvent { source: "shop ", ..paid(None) }, "source: found \"shop \", expected no whitespace around it"),
            (NewEvent { payload: Some("order 7"), ..paid(None) }, "payload: found \"order 7\", expected JSON"),
            (NewEvent { payload: Some(&heavy), ..paid(None) }, "payload: found a longer value, expected at most 1048576 bytes"),
        ] {
            let refused = store.emit_event(&event).await.unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(store.list_unprocessed_events(10).await.unwrap().is_empty());
    }
}

/// Other programs insert events with their own SQLite library: its version and its types may differ from ours.
#[test]
fn another_sqlite_library_can_insert_an_event() {
    run_contract(Dialect::Sqlite, async |store| {
        let path = store.url.strip_prefix("sqlite:").unwrap();
        let script = "import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    for payload in ['{}', b'{}', b'{\"a\": \"\\xff\"}']:
        db.execute('insert into tasuki_event (event_type, payload) values (\"order.paid\", ?)', (payload,))";
        let python = std::process::Command::new("python3").args(["-c", script, path]).output();
        let python = python.expect("python3 was not found; run ./test, which installs it");
        assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
        // A blob is read as text, and invalid UTF-8 is replaced: one bad row must not block the other events.
        let open = store.list_unprocessed_events(10).await.unwrap();
        let payloads: Vec<_> = open.iter().filter_map(|event| event.payload.as_deref()).collect();
        assert_eq!(payloads, ["{}", "{}", "{\"a\": \"\u{fffd}\"}"]);
        let event = store.find_event(open[0].id).await.unwrap().unwrap();
        assert_eq!((&*event.event_type, &*event.source), ("order.paid", "sql"));
        let age = jiff::Timestamp::now().duration_since(event.created_at);
        assert!(age.abs() < jiff::SignedDuration::from_mins(1), "{age:?}");
    });
}
