//! Whoever asks may go away before the answer: a caller that is dropped leaves nothing behind that others trip over.

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tasuki_store::{Writer, NewRun, Store};

use crate::given::{Like, TestStore, contract, noon, seen};

contract! {
    /// A session that was told to begin goes back to its pool in no transaction: what is written on it next, and
    /// acknowledged, others can see at once.
    async fn what_is_acknowledged_is_there_whoever_went_away_before(store: TestStore) {
        let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
        let one = Store::open(&store.url, 1).await.unwrap();
        one.set_clock(Some(noon()));
        for micros in 0..40 {
            let by_hand = NewRun::task(&job);
            match micros % 4 {
                // As soon as it has to wait for anything.
                0 => drop(one.trigger("test", seen(&job), &by_hand).now_or_never()),
                1 => drop(one.doctor(Timestamp::now).now_or_never()),
                _ => {
                    let asked = one.trigger("test", seen(&job), &by_hand);
                    drop(tokio::time::timeout(Duration::from_micros(25 * micros), asked).await);
                }
            }
            let made = one.create(Writer::Api, &[NewRun::task(&job)]).await.unwrap();
            assert!(store.run(made[0].run).await.unwrap().is_some(), "{micros}: {made:?}");
        }
        one.close().await;
    }

    /// What is kept at hand for the next is no use to those who wait for the pool: nobody does so for long.
    async fn nobody_waits_for_a_session_that_lies_at_hand(store: TestStore) {
        let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
        let two = Store::open(&store.url, 2).await.unwrap();
        two.set_clock(Some(noon()));
        let many = (0..16).map(async |number| {
            for _ in 0..25 {
                two.clock().await.unwrap();
                if number % 4 == 0 {
                    two.trigger("test", seen(&job), &NewRun::task(&job)).await.unwrap();
                }
            }
        });
        let all = futures_util::future::join_all(many);
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        two.close().await;
        assert!(two.clock().await.is_err(), "a closed one answers nobody");
    }

    /// A program may let go of a store when its runtime is long gone.
    async fn a_store_may_be_dropped_where_there_is_no_runtime(store: TestStore) {
        let one = Store::open(&store.url, 3).await.unwrap();
        one.clock().await.unwrap();
        std::thread::spawn(move || drop(one)).join().unwrap();
    }
}
