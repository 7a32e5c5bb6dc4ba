//! Leadership: one holder for each epoch, and a new term only after the previous one has ended.

use tasuki_core::{Epoch, WorkerId};

use crate::fixtures::{TTL, TestStore, contract};

contract! {
    async fn a_term_begins_only_after_the_last_has_expired(store: TestStore) {
        let rival = WorkerId::from_random(2);
        assert_eq!(store.take_leadership(rival, store.epoch, Epoch(0), TTL).await.unwrap(), None, "the term is held");
        store.set_time(29);
        assert!(store.renew_leadership(store.worker, store.epoch, TTL, TTL).await.unwrap());
        store.set_time(58);
        assert_eq!(store.take_leadership(rival, store.epoch, Epoch(0), TTL).await.unwrap(), None, "the term was renewed");
        store.set_time(60);
        assert_eq!(store.take_leadership(rival, Epoch(99), Epoch(0), TTL).await.unwrap(), None, "the expected epoch is wrong");
        assert_eq!(store.take_leadership(rival, store.epoch, Epoch(0), TTL).await.unwrap(), Some(Epoch(2)));
        assert!(!store.renew_leadership(store.worker, store.epoch, TTL, TTL).await.unwrap(), "a former leader cannot renew");
        let leader = store.get_leader_record().await.unwrap();
        assert_eq!((leader.epoch, leader.holder), (Epoch(2), Some(rival)));
    }

    async fn only_the_holder_renews_and_only_in_its_own_term(store: TestStore) {
        let rival = WorkerId::from_random(2);
        assert!(!store.renew_leadership(rival, store.epoch, TTL, TTL).await.unwrap(), "another holder");
        store.set_time(31);
        let next = store.take_leadership(store.worker, store.epoch, Epoch(0), TTL).await.unwrap();
        assert_eq!(next, Some(Epoch(2)));
        assert!(!store.renew_leadership(store.worker, store.epoch, TTL, TTL).await.unwrap(), "an earlier term");
        assert!(store.renew_leadership(store.worker, Epoch(2), TTL, TTL).await.unwrap());
    }

    /// The row of the lease may be older than the row of the term, for example after a partial restore.
    async fn a_term_does_not_begin_with_an_epoch_below_the_current_one(store: TestStore) {
        store.skip_doctor();
        store.execute_script("update tasuki_leader_term set epoch = 7").await.unwrap();
        store.set_time(31);
        let next = store.take_leadership(store.worker, store.epoch, Epoch(0), TTL).await.unwrap();
        assert_eq!(next, None);
        assert_eq!(store.get_leader_record().await.unwrap().epoch, Epoch(7));
        assert_eq!(store.list_terms().await.unwrap().len(), 1);
    }

    async fn a_new_epoch_is_greater_than_the_mirrored_one(store: TestStore) {
        store.set_time(31);
        let epoch = store.take_leadership(store.worker, store.epoch, Epoch(41), TTL).await.unwrap();
        assert_eq!(epoch, Some(Epoch(42)));
        let epochs: Vec<Epoch> = store.list_terms().await.unwrap().iter().map(|term| term.epoch).collect();
        assert_eq!(epochs, [Epoch(1), Epoch(42)]);
    }

    async fn a_term_can_be_ended_only_with_its_epoch(store: TestStore) {
        assert!(!store.end_term("ann", Epoch(7)).await.unwrap());
        assert!(store.end_term("ann", store.epoch).await.unwrap());
        assert!(!store.end_term("ann", store.epoch).await.unwrap(), "the term has already ended");
        assert!(!store.renew_leadership(store.worker, store.epoch, TTL, TTL).await.unwrap());
        let next = store.take_leadership(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await.unwrap();
        assert_eq!(next, Some(Epoch(2)));
    }
}
