//! Settings: several are changed in one write, with optimistic locking, and every change is audited.

use std::time::Duration;

use tasuki_core::Settings;
use tasuki_store::{AuditActor, Error, SettingsChangeResult};

use crate::fixtures::{TestStore, contract, run_both};

contract! {
    async fn defaults_are_in_force_until_changed(store: TestStore) {
        let now = store.load_settings().await.unwrap();
        assert_eq!((now.version, now.settings), (0, Settings::default()));
    }

    async fn a_change_takes_effect_and_is_audited(store: TestStore) {
        let ann = AuditActor { name: "ann", address: Some("10.0.0.7") };
        let changes = [("lease_ttl", "60s"), ("lease_renew", "10s"), ("outage_tolerance", "30s")];
        let SettingsChangeResult::Applied(now) = store.change_settings(ann, 0, &changes).await.unwrap() else {
            panic!("no concurrent change")
        };
        assert_eq!((now.version, now.settings.lease_ttl()), (1, Duration::from_secs(60)));
        assert_eq!(store.load_settings().await.unwrap(), now);
        // A setting that has a row already is updated.
        let again = store.change_settings("bob", 1, &[("lease_ttl", "90s")]).await.unwrap();
        assert!(matches!(again, SettingsChangeResult::Applied(now) if now.version == 2));
        assert_eq!(store.load_settings().await.unwrap().settings.lease_ttl(), Duration::from_secs(90));

        let entries = store.list_audit_entries_after(0, 10).await.unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].actor.as_str(), entries[0].address.as_deref()), ("ann", Some("10.0.0.7")));
        assert_eq!((entries[1].action.as_str(), entries[1].object.as_str()), ("set", "settings"));
        assert_eq!(entries[1].before.as_deref(), Some(r#"{"values":{"lease_ttl":"1m"},"version":1}"#));
        assert_eq!(entries[1].after.as_deref(), Some(r#"{"values":{"lease_ttl":"90s"},"version":2}"#));
    }

    async fn a_change_of_an_outdated_version_is_lost(store: TestStore) {
        let first = store.change_settings("ann", 0, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(first, SettingsChangeResult::Applied(_)));
        let SettingsChangeResult::Lost(now) = store.change_settings("bob", 0, &[("max_releases", "7")]).await.unwrap() else {
            panic!("ann was first")
        };
        assert_eq!((now.version, now.settings.max_releases()), (1, 5));
        assert_eq!(store.load_settings().await.unwrap(), now);
        assert_eq!(store.find_audit_head().await.unwrap().seq, 1, "a refused change is not audited");
    }

    async fn one_of_two_concurrent_changes_wins(store: TestStore) {
        let both = run_both(
            store.change_settings("ann", 0, &[("max_releases", "5")]),
            store.change_settings("bob", 0, &[("max_releases", "7")]),
        );
        let won = both.await.map(|change| matches!(change.unwrap(), SettingsChangeResult::Applied(_)));
        assert_ne!(won[0], won[1]);
        assert_eq!(store.load_settings().await.unwrap().version, 1);
    }

    async fn invalid_settings_are_refused_and_nothing_changes(store: TestStore) {
        let changes = [("max_releases", "5"), ("leader_tik", "1s"), ("lease_ttl", "soon")];
        let refused = store.change_settings("ann", 0, &changes).await.unwrap_err();
        let Error::InvalidSettings(problems) = &refused else { panic!("{refused}") };
        assert_eq!(problems.len(), 2);
        assert!(refused.to_string().starts_with("settings: no setting is named \"leader_tik\""), "{refused}");
        let refused = store.change_settings("ann", 0, &[("heartbeat_ttl", "2s")]).await.unwrap_err().to_string();
        assert_eq!(refused, "settings: heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)");
        let now = store.load_settings().await.unwrap();
        assert_eq!((now.version, now.settings), (0, Settings::default()));
        assert_eq!(store.find_audit_head().await.unwrap().seq, 0);
    }

    async fn an_invalid_stored_setting_is_an_error(store: TestStore) {
        store.skip_doctor();
        store.execute_script("insert into tasuki_setting (name, value, changed_at, changed_by) values ('leader_tick', 'never', 1, 'x')").await.unwrap();
        assert!(matches!(store.load_settings().await, Err(Error::InvalidSettings(_))));
    }
}
