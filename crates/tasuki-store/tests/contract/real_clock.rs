//! Every other test binds the clock. Here each statement of the records is asked once by the
//! database's own.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::RunState;
use tasuki_store::{
    Writer, LogLine, NewEvent, NewRun, PrunePlace, RunFilter, SettingsChange, Stream, Verified,
};

use crate::given::{Like, TestStore, contract};

contract! {
    /// Every instant can be bound, 1970 too.
    async fn the_clock_stands_where_a_test_puts_it(store: TestStore) {
        store.spoil(); // nobody would believe 1970
        for at in [Timestamp::UNIX_EPOCH, "2024-11-15T12:00:00Z".parse().unwrap()] {
            store.set_clock(Some(at));
            assert_eq!(store.leader().await.unwrap().clock, at);
        }
        store.set_clock(None);
        assert!(store.leader().await.unwrap().clock > "2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
    }

    async fn records_are_kept_by_the_databases_own_clock(store: TestStore) {
        store.spoil(); // the clocks of the test and of the database differ on purpose
        // A run of long ago, by the test's clock; then no clock of ours.
        store.set_clock(Some("2024-11-15T12:00:00Z".parse().unwrap()));
        let old = store.given_run(RunState::Canceled).await.id;
        let event = NewEvent { event_type: "x", source: "test", dedupe_key: Some("1"), job_name: None, payload: None };
        let old_event = store.emit(&event).await.unwrap().event;
        store.set_clock(None);
        let near = |at: Timestamp| {
            let apart = Timestamp::now().duration_since(at).abs();
            assert!(apart < SignedDuration::from_mins(5), "{at} is not now");
        };

        let run = store.given_run_now().await;
        assert!(store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied());
        near(store.run_now(run).await.finished_at.unwrap());
        let told = store.audit_list(store.audit_head().await.unwrap().seq - 1, 1).await.unwrap();
        near(told[0].at);
        let change = store.change_settings("ann", 0, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(change, SettingsChange::Applied(_)));
        assert!(matches!(store.audit_verify(None).await.unwrap(), Verified::Whole(_)));

        let told = store.emit(&NewEvent { dedupe_key: None, ..event.clone() }).await.unwrap().event;
        near(store.event(told).await.unwrap().unwrap().created_at);
        assert!(store.emit(&event).await.unwrap().existed);
        let job = store.given_job(&Like::default()).await;
        let made = store.take_event(store.epoch, told, &[crate::given::seen(&job)], &[NewRun::task(&job)]).await.unwrap().unwrap();
        near(store.event(told).await.unwrap().unwrap().processed_at.unwrap());

        let token = store.given_running(made[0].run).await;
        let line = LogLine { stream: Stream::Out, at: Timestamp::now(), text: "hello".to_owned() };
        store.append_log(made[0].run, 1, 0, &[line], 1000).await.unwrap().unwrap();
        assert!(store.archive_log(made[0].run, 1, 1, "file", [1; 32]).await.unwrap());
        assert!(store.delete_log_body(made[0].run, 1).await.unwrap());
        assert!(store.finish(token, made[0].run, &tasuki_store::AttemptResult::default()).await.unwrap().is_applied());

        assert_eq!(store.runs(&RunFilter::default(), None, 10).await.unwrap().runs.len(), 3);
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(store.prune_runs(year, PrunePlace::default(), 10).await.unwrap().deleted, 1);
        assert_eq!(store.run(old).await.unwrap(), None);
        assert_eq!(store.prune_events(year, PrunePlace::default(), 10).await.unwrap().deleted, 0, "nobody took it");
        assert!(store.event(old_event).await.unwrap().is_some());
        assert_eq!(store.prune_stats(year, 10).await.unwrap(), 1);
    }
}
