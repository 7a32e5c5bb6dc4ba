//! The database's own clock. All other tests bind the clock of the statements; here each statement that stores a time
//! runs once with the real clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::RunState;
use tasuki_store::{
    AuditVerification, LogLine, NewEvent, NewRun, OutputStream, PrunePosition, RunFilter,
    SettingsChangeResult, Writer,
};

use crate::fixtures::{RunOptions, TestStore, contract};

contract! {
    /// Every instant can be bound as the clock, also 1970.
    async fn the_clock_can_be_bound_to_any_instant(store: TestStore) {
        store.skip_doctor(); // the doctor would report a clock of 1970
        for at in [Timestamp::UNIX_EPOCH, "2024-11-15T12:00:00Z".parse().unwrap()] {
            store.set_clock(Some(at));
            assert_eq!(store.get_leader_record().await.unwrap().clock, at);
        }
        store.set_clock(None);
        assert!(store.get_leader_record().await.unwrap().clock > "2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
    }

    async fn stored_times_come_from_the_database_clock(store: TestStore) {
        store.skip_doctor(); // the clocks of the test and of the database differ on purpose
        // An old run, created with a bound clock; then the bound clock is removed.
        store.set_clock(Some("2024-11-15T12:00:00Z".parse().unwrap()));
        let old = store.given_run(RunState::Canceled).await.id;
        let event = NewEvent { event_type: "x", source: "test", dedupe_key: Some("1"), job_name: None, payload: None };
        let old_event = store.emit_event(&event).await.unwrap().event;
        store.set_clock(None);
        let assert_is_now = |at: Timestamp| {
            let apart = Timestamp::now().duration_since(at).abs();
            assert!(apart < SignedDuration::from_mins(5), "{at} is not now");
        };

        let run = store.given_due_run().await;
        assert!(store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied());
        assert_is_now(store.read_run(run).await.finished_at.unwrap());
        let entries = store.list_audit_entries_after(store.find_audit_head().await.unwrap().seq - 1, 1).await.unwrap();
        assert_is_now(entries[0].at);
        let change = store.change_settings("ann", 0, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(change, SettingsChangeResult::Applied(_)));
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(_)));

        let event_id = store.emit_event(&NewEvent { dedupe_key: None, ..event.clone() }).await.unwrap().event;
        assert_is_now(store.find_event(event_id).await.unwrap().unwrap().created_at);
        assert!(store.emit_event(&event).await.unwrap().existed);
        let job = store.given_job(&RunOptions::default()).await;
        let created = store.process_event(store.epoch, event_id, &[crate::fixtures::expected_version(&job)], &[NewRun::task(&job)]).await.unwrap().unwrap();
        assert_is_now(store.find_event(event_id).await.unwrap().unwrap().processed_at.unwrap());

        let token = store.given_running(created[0].run).await;
        let line = LogLine { stream: OutputStream::Stdout, at: Timestamp::now(), text: "hello".to_owned() };
        store.append_log(created[0].run, 1, 0, &[line], 1000).await.unwrap().unwrap();
        assert!(store.mark_log_archived(created[0].run, 1, 1, "file", [1; 32]).await.unwrap());
        assert!(store.delete_lines_of_archived_log(created[0].run, 1).await.unwrap());
        assert!(store.finish_run(token, created[0].run, &tasuki_store::AttemptResult::default()).await.unwrap().is_applied());

        assert_eq!(store.list_runs(&RunFilter::default(), None, 10).await.unwrap().runs.len(), 3);
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(store.prune_runs(year, PrunePosition::default(), 10).await.unwrap().deleted, 1);
        assert_eq!(store.find_run(old).await.unwrap(), None);
        assert_eq!(store.prune_events(year, PrunePosition::default(), 10).await.unwrap().deleted, 0, "an event that was never processed stays");
        assert!(store.find_event(old_event).await.unwrap().is_some());
        assert_eq!(store.prune_stats(year, 10).await.unwrap(), 1);
    }
}
