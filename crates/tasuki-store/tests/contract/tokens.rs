//! Tokens: given out and revoked by somebody, found by their hash, and only while they count.

use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::Role;
use tasuki_store::{Actor, Error, NewToken};

use crate::given::{TestStore, contract, noon};

const ANN: Actor<'static> = Actor { name: "ann", address: Some("10.0.0.7") };

fn new(name: &str, seed: u8) -> NewToken<'_> {
    NewToken { name, role: Role::Operator, hash: [seed; 32], lifetime: None }
}

contract! {
    async fn a_token_is_found_by_its_hash_and_told(store: TestStore) {
        let made = store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        assert_eq!((made.name.as_str(), made.role), ("deploy", Role::Operator));
        assert_eq!((made.created_at, made.created_by.as_str()), (noon(), "ann"));
        let found = store.bearer([1; 32]).await.unwrap().unwrap();
        assert_eq!((found.id, found.last_used_at), (made.id, None));
        assert_eq!(store.bearer([2; 32]).await.unwrap(), None);

        let told = store.audit_list(0, 10).await.unwrap();
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].action.as_str(), told[0].object.as_str()), ("create", "token 1"));
        assert_eq!((told[0].actor.as_str(), told[0].address.as_deref()), ("ann", Some("10.0.0.7")));
        let after = told[0].after.as_deref().unwrap();
        assert!(after.contains(r#""role":"operator""#) && !after.contains("0101"), "{after}");
    }

    async fn being_used_is_marked_once_a_minute(store: TestStore) {
        store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        let used_at = async |seconds: i64| {
            store.set_clock(Some(noon() + SignedDuration::from_secs(seconds)));
            store.bearer([1; 32]).await.unwrap().unwrap();
            store.tokens().await.unwrap()[0].last_used_at.unwrap().duration_since(noon()).as_secs()
        };
        assert_eq!(used_at(1).await, 1);
        assert_eq!(used_at(40).await, 1);
        assert_eq!(used_at(61).await, 1);
        assert_eq!(used_at(62).await, 62);
        store.set_clock(Some(noon()));
    }

    async fn a_token_counts_until_it_expires(store: TestStore) {
        let lifetime = Some(Duration::from_secs(3_600));
        store.create_token(ANN, &NewToken { lifetime, ..new("deploy", 1) }).await.unwrap();
        store.set_clock(Some(noon() + SignedDuration::from_secs(3_599)));
        assert!(store.bearer([1; 32]).await.unwrap().is_some());
        store.set_clock(Some(noon() + SignedDuration::from_secs(3_600)));
        assert!(store.bearer([1; 32]).await.unwrap().is_none());
        store.set_clock(Some(noon()));
    }

    async fn a_revoked_token_counts_no_more_and_is_told_once(store: TestStore) {
        let made = store.create_token(ANN, &new("deploy", 1)).await.unwrap();
        let kept = store.create_token(ANN, &new("other", 2)).await.unwrap();
        let revoked = store.revoke_token("bob", made.id).await.unwrap().unwrap();
        assert_eq!(revoked.revoked_at, Some(noon()));
        assert!(store.bearer([1; 32]).await.unwrap().is_none());
        assert!(store.bearer([2; 32]).await.unwrap().is_some());

        store.set_clock(Some(noon() + SignedDuration::from_secs(5)));
        assert_eq!(store.revoke_token("eve", made.id).await.unwrap().unwrap(), revoked);
        assert_eq!(store.revoke_token("eve", 99).await.unwrap(), None);
        store.set_clock(Some(noon()));
        let told = store.audit_list(2, 10).await.unwrap();
        assert_eq!(told.len(), 1, "what was not done is not told");
        assert_eq!((told[0].action.as_str(), told[0].actor.as_str()), ("revoke", "bob"));
        let listed: Vec<i64> = store.tokens().await.unwrap().iter().map(|one| one.id).collect();
        assert_eq!(listed, [made.id, kept.id], "a revoked one is still known");
    }

    async fn a_name_that_will_not_do_is_refused(store: TestStore) {
        for wrong in ["", " ", " x", "a\nb", "a\0b", &"x".repeat(192)] {
            let refused = store.create_token(ANN, &new(wrong, 1)).await.unwrap_err();
            assert!(matches!(&refused, Error::Invalid(why) if why.field == "name"), "{refused}");
        }
        assert_eq!(store.tokens().await.unwrap(), []);
        assert_eq!(store.audit_head().await.unwrap().seq, 0);
    }

    async fn the_clock_is_the_databases(store: TestStore) {
        assert_eq!((**store).clock().await.unwrap(), noon());
        store.set_clock(None);
        let ours = jiff::Timestamp::now();
        let apart = (**store).clock().await.unwrap().duration_since(ours).abs();
        assert!(apart < SignedDuration::from_secs(60), "{apart}");
        store.set_clock(Some(noon()));
    }
}
