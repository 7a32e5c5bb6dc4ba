//! Whoever asks may go away before the answer: a caller that is dropped leaves nothing behind that others trip over.

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tasuki_store::{Author, NewRun, Store};

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
            let made = one.create(Author::Api, &[NewRun::task(&job)]).await.unwrap();
            assert!(store.run(made[0].run).await.unwrap().is_some(), "{micros}: {made:?}");
        }
        one.close().await;
    }
}
