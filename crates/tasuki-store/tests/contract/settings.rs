//! Settings: changed together, by one at a time, and told.

use std::time::Duration;

use tasuki_core::Settings;
use tasuki_store::{Actor, Error, SettingsChange};

use crate::given::{TestStore, at_once, contract};

contract! {
    async fn defaults_are_in_force_until_changed(store: TestStore) {
        let now = store.settings().await.unwrap();
        assert_eq!((now.version, now.settings), (0, Settings::default()));
    }

    async fn a_change_is_in_force_and_told(store: TestStore) {
        let ann = Actor { name: "ann", address: Some("10.0.0.7") };
        let changes = [("lease_ttl", "60s"), ("lease_renew", "10s"), ("outage_tolerance", "30s")];
        let SettingsChange::Applied(now) = store.change_settings(ann, 0, &changes).await.unwrap() else {
            panic!("nobody else changes them")
        };
        assert_eq!((now.version, now.settings.lease_ttl()), (1, Duration::from_secs(60)));
        assert_eq!(store.settings().await.unwrap(), now);
        // A value that stands there already is changed, not added.
        let again = store.change_settings("bob", 1, &[("lease_ttl", "90s")]).await.unwrap();
        assert!(matches!(again, SettingsChange::Applied(now) if now.version == 2));
        assert_eq!(store.settings().await.unwrap().settings.lease_ttl(), Duration::from_secs(90));

        let told = store.audit_list(0, 10).await.unwrap();
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].actor.as_str(), told[0].address.as_deref()), ("ann", Some("10.0.0.7")));
        assert_eq!((told[1].action.as_str(), told[1].object.as_str()), ("set", "settings"));
        assert_eq!(told[1].before.as_deref(), Some(r#"{"values":{"lease_ttl":"1m"},"version":1}"#));
        assert_eq!(told[1].after.as_deref(), Some(r#"{"values":{"lease_ttl":"90s"},"version":2}"#));
    }

    async fn whoever_changes_what_it_has_not_seen_loses(store: TestStore) {
        let first = store.change_settings("ann", 0, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(first, SettingsChange::Applied(_)));
        let SettingsChange::Lost(now) = store.change_settings("bob", 0, &[("max_releases", "7")]).await.unwrap() else {
            panic!("ann was first")
        };
        assert_eq!((now.version, now.settings.max_releases()), (1, 5));
        assert_eq!(store.settings().await.unwrap(), now);
        assert_eq!(store.audit_head().await.unwrap().seq, 1, "what was not done is not told");
    }

    async fn of_two_at_once_one_wins(store: TestStore) {
        let both = at_once(
            store.change_settings("ann", 0, &[("max_releases", "5")]),
            store.change_settings("bob", 0, &[("max_releases", "7")]),
        );
        let won = both.await.map(|change| matches!(change.unwrap(), SettingsChange::Applied(_)));
        assert_ne!(won[0], won[1]);
        assert_eq!(store.settings().await.unwrap().version, 1);
    }

    async fn what_is_wrong_is_told_and_nothing_changes(store: TestStore) {
        let changes = [("max_releases", "5"), ("leader_tik", "1s"), ("lease_ttl", "soon")];
        let refused = store.change_settings("ann", 0, &changes).await.unwrap_err();
        let Error::Settings(problems) = &refused else { panic!("{refused}") };
        assert_eq!(problems.len(), 2);
        assert!(refused.to_string().starts_with("settings: no setting is called \"leader_tik\""), "{refused}");
        let refused = store.change_settings("ann", 0, &[("heartbeat_ttl", "2s")]).await.unwrap_err().to_string();
        assert_eq!(refused, "settings: heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)");
        let now = store.settings().await.unwrap();
        assert_eq!((now.version, now.settings), (0, Settings::default()));
        assert_eq!(store.audit_head().await.unwrap().seq, 0);
    }

    async fn nonsense_typed_by_hand_is_not_in_force(store: TestStore) {
        store.spoil();
        store.script("insert into tasuki_setting (name, value, changed_at, changed_by) values ('leader_tick', 'never', 1, 'x')").await.unwrap();
        assert!(matches!(store.settings().await, Err(Error::Settings(_))));
    }
}
