//! Leadership: one holder for each epoch, and no write of an older one.

use tasuki_core::{Epoch, WorkerId};

use crate::given::{TTL, TestStore, contract};

contract! {
    async fn a_term_is_minted_only_when_the_last_has_lapsed(store: TestStore) {
        let rival = WorkerId::from_random(2);
        assert_eq!(store.mint(rival, store.epoch, Epoch(0), TTL).await.unwrap(), None, "held");
        store.at(29);
        assert!(store.renew_term(store.worker, store.epoch, TTL, TTL).await.unwrap());
        store.at(58);
        assert_eq!(store.mint(rival, store.epoch, Epoch(0), TTL).await.unwrap(), None, "renewed");
        store.at(60);
        assert_eq!(store.mint(rival, Epoch(99), Epoch(0), TTL).await.unwrap(), None, "not what was seen");
        assert_eq!(store.mint(rival, store.epoch, Epoch(0), TTL).await.unwrap(), Some(Epoch(2)));
        assert!(!store.renew_term(store.worker, store.epoch, TTL, TTL).await.unwrap(), "deposed");
        let leader = store.leader().await.unwrap();
        assert_eq!((leader.epoch, leader.holder), (Epoch(2), Some(rival)));
    }

    async fn a_mirror_that_is_ahead_is_overtaken(store: TestStore) {
        store.at(31);
        let minted = store.mint(store.worker, store.epoch, Epoch(41), TTL).await.unwrap();
        assert_eq!(minted, Some(Epoch(42)));
        let epochs: Vec<Epoch> = store.terms().await.unwrap().iter().map(|term| term.epoch).collect();
        assert_eq!(epochs, [Epoch(1), Epoch(42)]);
    }

    async fn a_leader_can_resign_and_be_deposed_at_the_epoch_seen(store: TestStore) {
        assert!(!store.depose("ann", Epoch(7)).await.unwrap());
        assert!(store.depose("ann", store.epoch).await.unwrap());
        assert!(!store.depose("ann", store.epoch).await.unwrap(), "once");
        assert!(!store.renew_term(store.worker, store.epoch, TTL, TTL).await.unwrap());
        let next = store.mint(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await.unwrap();
        assert_eq!(next, Some(Epoch(2)));
    }
}
