//! Leadership: one holder for each epoch, and no write of an older one.

use tasuki_core::{Epoch, RunState, WorkerId};
use tasuki_store::{Author, Error, NewRun};

use crate::given::{Like, TTL, TestStore, contract};

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

    async fn nothing_of_an_older_epoch_lands(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let run = store.given_run(RunState::Pending).await;
        let wanted = store.wanted(run.id).await;
        store.at(31);
        store.mint(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let old = store.epoch;
        let batch = tasuki_store::AssignBatch {
            epoch: old,
            worker: store.worker,
            token: store.token(),
            runs: &[wanted],
            assign_ahead: TTL,
            reassign_after: TTL,
        };
        let refusals = [
            store.assign(&batch).await.err(),
            store.create(Author::Leader(old), &[NewRun::task(&job)]).await.err(),
            store.skip(old, run.id, tasuki_core::run::SkipReason::Late).await.err(),
            store.expire(old, run.id).await.err(),
            store.orphan(old, run.id, store.token()).await.err(),
            store.cancel(Author::Leader(old), run.id, "replace", None).await.err(),
        ];
        for refused in refusals {
            assert!(matches!(refused, Some(Error::Fenced(_))), "{refused:?}");
        }
        assert_eq!(store.run_now(run.id).await, run);
    }

    async fn a_leader_of_the_past_cuts_nobody_off(store: TestStore) {
        store.at(31);
        let newer = store.mint(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let late = store.detach_worker(Author::Leader(store.epoch), "old", store.worker, "silent").await;
        assert!(matches!(late, Err(Error::Fenced(epoch)) if epoch == store.epoch));
        assert!(store.worker(store.worker).await.unwrap().unwrap().is_attached());
        assert!(store.detach_worker(Author::Leader(newer), "new", store.worker, "silent").await.unwrap());
    }
}
