//! Events: told once, taken once, by the leader of the day.

use tasuki_core::{Epoch, EventId, Origin};
use tasuki_store::{Dialect, Error, JobChange, NewEvent, NewRun};

use crate::given::{Like, TTL, TestStore, at_once, contract, noon, run, seen};

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
        let first = store.emit(&paid(Some("7"))).await.unwrap();
        assert!(!first.existed);
        let again = store.emit(&NewEvent { payload: None, ..paid(Some("7")) }).await.unwrap();
        assert_eq!((again.event, again.existed), (first.event, true));
        let elsewhere = store.emit(&NewEvent { source: "till", ..paid(Some("7")) }).await.unwrap();
        let keyless = store.emit(&paid(None)).await.unwrap();
        let keyless_too = store.emit(&paid(None)).await.unwrap();
        assert!(!elsewhere.existed && !keyless.existed && !keyless_too.existed);
        assert_eq!(store.open_events(10).await.unwrap().len(), 4);
        let event = store.event(first.event).await.unwrap().unwrap();
        assert_eq!(event.payload.as_deref(), Some(r#"{"order":7}"#), "the first one stands");
        assert_eq!((event.created_at, event.processed_at, event.runs), (noon(), None, None));
    }

    async fn told_twice_at_once_it_is_one_event(store: TestStore) {
        let event = paid(Some("7"));
        let both = at_once(store.emit(&event), store.emit(&event)).await.map(Result::unwrap);
        assert_eq!(both[0].event, both[1].event);
        assert_eq!(both.iter().filter(|one| one.existed).count(), 1);
    }

    /// Programs in any language write two columns and no more.
    async fn a_plain_insert_is_an_event(store: TestStore) {
        let typed = "insert into tasuki_event (event_type, payload) values ('order.paid', '{\"order\":7}')";
        store.script(typed).await.unwrap();
        let open = store.open_events(10).await.unwrap();
        assert_eq!((open.len(), open[0].source.as_str(), &open[0].dedupe_key), (1, "sql", &None));
        // The default is the real clock, not the one of the test.
        assert!(open[0].created_at > "2025-01-01T00:00:00Z".parse().unwrap());
    }

    async fn open_ones_come_oldest_first_and_bounded(store: TestStore) {
        let mut told = Vec::new();
        for _ in 0..5 {
            told.push(store.emit(&paid(None)).await.unwrap().event);
        }
        assert!(store.pass_event(store.epoch, told[0]).await.unwrap());
        let ids = |events: Vec<tasuki_store::Event>| events.iter().map(|event| event.id).collect::<Vec<_>>();
        assert_eq!(ids(store.open_events(3).await.unwrap()), told[1..4]);
        assert_eq!(ids(store.events(None, 2).await.unwrap()), [told[4], told[3]]);
        assert_eq!(ids(store.events(Some(told[3]), 9).await.unwrap()), [told[2], told[1], told[0]]);
    }

    async fn an_event_and_its_runs_are_one_fact(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let event = store.emit(&paid(None)).await.unwrap().event;
        let runs = [NewRun::task(&job), NewRun::task(&job)];
        let created = store.take_event(store.epoch, event, &[seen(&job)], &runs).await.unwrap().unwrap();
        assert_eq!(created.len(), 2);
        assert_eq!(store.run_now(created[0].run).await.origin, Origin::Event);
        let after = store.event(event).await.unwrap().unwrap();
        assert_eq!((after.processed_at, after.runs, after.problem), (Some(noon()), Some(2), None));
        assert!(store.open_events(10).await.unwrap().is_empty());
        assert_eq!(store.take_event(store.epoch, event, &[seen(&job)], &runs).await.unwrap(), None, "once");
        assert!(!store.pass_event(store.epoch, event).await.unwrap(), "it made runs");
        assert!(!store.refuse_event(store.epoch, event, "late").await.unwrap());
        assert_eq!(store.event(event).await.unwrap().unwrap().runs, Some(2));
    }

    /// A run that was there before is not this event's.
    async fn only_what_an_event_made_is_counted(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let new = NewRun { idempotency_key: Some("7".to_owned()), ..NewRun::task(&job) };
        store.create(tasuki_store::Writer::Api, std::slice::from_ref(&new)).await.unwrap();
        let event = store.emit(&paid(None)).await.unwrap().event;
        let created = store.take_event(store.epoch, event, &[seen(&job)], &[new, NewRun::task(&job)]).await.unwrap().unwrap();
        assert_eq!(created.iter().map(|one| one.existed).collect::<Vec<_>>(), [true, false]);
        assert_eq!(store.event(event).await.unwrap().unwrap().runs, Some(1));
    }

    async fn taken_twice_at_once_it_makes_its_runs_once(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let event = store.emit(&paid(None)).await.unwrap().event;
        let jobs = [seen(&job)];
        let runs = [NewRun::task(&job)];
        let both = at_once(
            store.take_event(store.epoch, event, &jobs, &runs),
            store.take_event(store.epoch, event, &jobs, &runs),
        );
        let taken = both.await.map(Result::unwrap);
        assert_eq!(taken.iter().filter(|one| one.is_some()).count(), 1);
    }

    async fn taken_by_nobody_or_refused_it_is_out_of_the_way(store: TestStore) {
        let passed = store.emit(&paid(None)).await.unwrap().event;
        let refused = store.emit(&paid(None)).await.unwrap().event;
        assert!(store.pass_event(store.epoch, passed).await.unwrap());
        assert!(store.refuse_event(store.epoch, refused, "no job is called x").await.unwrap());
        assert!(store.open_events(10).await.unwrap().is_empty());
        assert_eq!(store.event(passed).await.unwrap().unwrap().runs, Some(0));
        let after = store.event(refused).await.unwrap().unwrap();
        assert_eq!((after.runs, after.problem.as_deref()), (Some(0), Some("no job is called x")));
        assert!(!store.pass_event(store.epoch, EventId(9999)).await.unwrap(), "there is none");
    }

    /// Edited, switched off or deleted: the leader looks again, and finds the event still open.
    async fn an_event_makes_nothing_from_a_job_that_was_changed(store: TestStore) {
        let (job, other) = (store.given_job(&Like::default()).await, store.given_job(&Like::default()).await);
        let event = store.emit(&paid(None)).await.unwrap().event;
        let runs = [NewRun::task(&other), NewRun::task(&job)];
        let JobChange::Applied { job: off, .. } = store.disable_job("ann", seen(&job)).await.unwrap() else {
            panic!("nobody else changes it")
        };
        let jobs = [seen(&other), seen(&job)];
        assert_eq!(store.take_event(store.epoch, event, &jobs, &runs).await.unwrap(), None, "it is off");
        let jobs = [seen(&other), off.seen()];
        drop(store.delete_job("ann", off.seen()).await.unwrap());
        assert_eq!(store.take_event(store.epoch, event, &jobs, &runs).await.unwrap(), None, "it is no more");
        assert_eq!(store.open_events(10).await.unwrap().len(), 1);
        assert!(store.due("", noon(), 10).await.unwrap().is_empty(), "all or none");
        let unseen = store.take_event(store.epoch, event, &[seen(&job)], &runs[..1]).await.unwrap_err();
        assert!(unseen.is_invalid_input(), "{unseen}");
        let made = store.take_event(store.epoch, event, &jobs[..1], &runs[..1]).await.unwrap().unwrap();
        assert_eq!(made.len(), 1);
    }

    async fn a_leader_of_the_past_takes_no_event(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let event = store.emit(&paid(None)).await.unwrap().event;
        store.at(60);
        store.mint(store.worker, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let fenced = store.take_event(store.epoch, event, &[seen(&job)], &[NewRun::task(&job)]).await;
        assert!(matches!(fenced, Err(Error::Fenced(_))));
        assert!(matches!(store.pass_event(store.epoch, event).await, Err(Error::Fenced(_))));
        assert!(matches!(store.refuse_event(store.epoch, event, "x").await, Err(Error::Fenced(_))));
        assert_eq!(store.open_events(10).await.unwrap().len(), 1);
    }

    async fn what_no_database_could_keep_is_refused(store: TestStore) {
        let long = "x".repeat(192);
        let heavy = format!("\"{}\"", "x".repeat(1 << 20));
        for (event, expected) in [
            (NewEvent { event_type: " ", ..paid(None) }, "event type: found nothing, expected 1 to 191 characters"),
            (NewEvent { source: &long, ..paid(None) }, "source: found"),
            (paid(Some("")), "dedupe key: found nothing"),
            (paid(Some("7 ")), "dedupe key: found \"7 \", expected no space around it"),
            (NewEvent { source: "shop ", ..paid(None) }, "source: found \"shop \", expected no space around it"),
            (NewEvent { payload: Some("order 7"), ..paid(None) }, "payload: found \"order 7\", expected JSON"),
            (NewEvent { payload: Some(&heavy), ..paid(None) }, "payload: found a longer one, expected at most 1048576 bytes"),
        ] {
            let refused = store.emit(&event).await.unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(store.open_events(10).await.unwrap().is_empty());
    }
}

/// Programs in any language insert events, with the SQLite that they have.
#[test]
fn somebody_elses_sqlite_can_insert_one() {
    run(Dialect::Sqlite, async |store| {
        let path = store.url.strip_prefix("sqlite:").unwrap();
        let script = "import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    for payload in ['{}', b'{}', b'{\"a\": \"\\xff\"}']:
        db.execute('insert into tasuki_event (event_type, payload) values (\"order.paid\", ?)', (payload,))";
        let python = std::process::Command::new("python3").args(["-c", script, path]).output();
        let python = python.expect("python3 is there: run ./test, which installs it");
        assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
        // Bytes are taken for text, and what is no text is repaired: one row must not stop the rest.
        let open = store.open_events(10).await.unwrap();
        let payloads: Vec<_> = open.iter().filter_map(|event| event.payload.as_deref()).collect();
        assert_eq!(payloads, ["{}", "{}", "{\"a\": \"\u{fffd}\"}"]);
        let event = store.event(open[0].id).await.unwrap().unwrap();
        assert_eq!((&*event.event_type, &*event.source), ("order.paid", "sql"));
        let age = jiff::Timestamp::now().duration_since(event.created_at);
        assert!(age.abs() < jiff::SignedDuration::from_mins(1), "{age:?}");
    });
}
