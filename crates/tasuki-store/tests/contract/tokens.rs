//! API tokens: created and revoked with an audit entry, and found by their hash only while they are valid.

use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::AccessRole;
use tasuki_store::{AuditActor, Error, NewToken};

use crate::fixtures::{TestStore, contract, noon};

const ANN: AuditActor<'static> = AuditActor { name: "ann", address: Some("10.0.0.7") };

fn new(name: &str, seed: u8) -> NewToken<'_> {
    NewToken { name, role: AccessRole::Operator, hash: [seed; 32], lifetime: None }
}

contract! {
    async fn a_token_is_found_by_its_hash_and_audited(store: TestStore) {
        let created = store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        assert_eq!((created.name.as_str(), created.role), ("deploy", AccessRole::Operator));
        assert_eq!((created.created_at, created.created_by.as_str()), (noon(), "ann"));
        let found = store.authenticate_token([1; 32]).await.unwrap().unwrap();
        assert_eq!((found.id, found.last_used_at), (created.id, None));
        assert_eq!(store.authenticate_token([2; 32]).await.unwrap(), None);

        let entries = store.list_audit_entries_after(0, 10).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].action.as_str(), entries[0].object.as_str()), ("create", "token 1"));
        assert_eq!((entries[0].actor.as_str(), entries[0].address.as_deref()), ("ann", Some("10.0.0.7")));
        let after = entries[0].after.as_deref().unwrap();
        assert!(after.contains(r#""role":"operator""#) && !after.contains("0101"), "{after}");
    }

    async fn last_use_is_stored_at_most_once_a_minute(store: TestStore) {
        store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        let used_at = async |seconds: i64| {
            store.set_clock(Some(noon() + SignedDuration::from_secs(seconds)));
            store.authenticate_token([1; 32]).await.unwrap().unwrap();
            store.list_tokens().await.unwrap()[0].last_used_at.unwrap().duration_since(noon()).as_secs()
        };
        assert_eq!(used_at(1).await, 1);
        assert_eq!(used_at(40).await, 1);
        assert_eq!(used_at(61).await, 1);
        assert_eq!(used_at(62).await, 62);
        store.set_clock(Some(noon()));
    }

    async fn a_token_is_valid_until_it_expires(store: TestStore) {
        let lifetime = Some(Duration::from_secs(3_600));
        store.create_token(ANN, &NewToken { lifetime, ..new("deploy", 1) }).await.unwrap();
        store.set_clock(Some(noon() + SignedDuration::from_secs(3_599)));
        assert!(store.authenticate_token([1; 32]).await.unwrap().is_some());
        store.set_clock(Some(noon() + SignedDuration::from_secs(3_600)));
        assert!(store.authenticate_token([1; 32]).await.unwrap().is_none());
        store.set_clock(Some(noon()));
    }

    async fn a_revoked_token_is_invalid_and_audited_once(store: TestStore) {
        let created = store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        let kept = store.create_token(ANN, &new("other", 2)).await.unwrap();
        let revoked = store.revoke_token("bob", created.id).await.unwrap().unwrap();
        assert_eq!(revoked.revoked_at, Some(noon()));
        assert!(store.authenticate_token([1; 32]).await.unwrap().is_none());
        assert!(store.authenticate_token([2; 32]).await.unwrap().is_some());

        store.set_clock(Some(noon() + SignedDuration::from_secs(5)));
        assert_eq!(store.revoke_token("eve", created.id).await.unwrap().unwrap(), revoked);
        assert_eq!(store.revoke_token("eve", 99).await.unwrap(), None);
        store.set_clock(Some(noon()));
        let entries = store.list_audit_entries_after(2, 10).await.unwrap();
        assert_eq!(entries.len(), 1, "a second revocation is not audited");
        assert_eq!((entries[0].action.as_str(), entries[0].actor.as_str()), ("revoke", "bob"));
        let listed: Vec<i64> = store.list_tokens().await.unwrap().iter().map(|one| one.id).collect();
        assert_eq!(listed, [created.id, kept.id], "a revoked token is still listed");
    }

    async fn an_invalid_token_name_is_refused(store: TestStore) {
        for wrong in ["", " ", " x", "a\nb", "a\0b", &"x".repeat(192)] {
            let refused = store.create_token(ANN, &new(wrong, 1)).await.unwrap_err();
            assert!(matches!(&refused, Error::InvalidInput(why) if why.field == "name"), "{refused}");
        }
        assert_eq!(store.list_tokens().await.unwrap(), []);
        assert_eq!(store.find_audit_head().await.unwrap().seq, 0);
    }

    async fn the_store_clock_is_the_database_clock(store: TestStore) {
        assert_eq!((**store).read_clock().await.unwrap(), noon());
        store.set_clock(None);
        let ours = jiff::Timestamp::now();
        let apart = (**store).read_clock().await.unwrap().duration_since(ours).abs();
        assert!(apart < SignedDuration::from_secs(60), "{apart}");
        store.set_clock(Some(noon()));
    }
}
