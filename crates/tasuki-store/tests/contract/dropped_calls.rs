//! Dropped futures: a caller may be canceled before it has its result, and leaves no connection in a bad state.

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tasuki_store::{NewRun, Store, Writer};

use crate::fixtures::{RunOptions, TestStore, contract, expected_version, noon};

contract! {
    /// A call that is dropped after BEGIN must not return a connection with an open transaction to the pool:
    /// otherwise the next write on that connection would be acknowledged without being visible to others.
    async fn a_write_after_dropped_calls_is_visible_to_others(store: TestStore) {
        let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
        let single_connection_store = Store::open(&store.url, 1).await.unwrap();
        single_connection_store.set_clock(Some(noon()));
        for micros in 0..40 {
            let triggered = NewRun::task(&job);
            match micros % 4 {
                // Dropped as soon as it has to wait for anything.
                0 => drop(single_connection_store.trigger("test", expected_version(&job), &triggered).now_or_never()),
                1 => drop(single_connection_store.check_invariants(Timestamp::now).now_or_never()),
                _ => {
                    let trigger = single_connection_store.trigger("test", expected_version(&job), &triggered);
                    drop(tokio::time::timeout(Duration::from_micros(25 * micros), trigger).await);
                }
            }
            let created = single_connection_store.create_or_find_runs(Writer::Api, &[NewRun::task(&job)]).await.unwrap();
            assert!(store.find_run(created[0].run).await.unwrap().is_some(), "{micros}: {created:?}");
        }
        single_connection_store.close().await;
    }

    /// Cached connections count as used connections of the pool: a caller that waits for the pool must still get a
    /// connection soon.
    async fn no_caller_waits_for_a_cached_connection(store: TestStore) {
        let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
        let two_connection_store = Store::open(&store.url, 2).await.unwrap();
        two_connection_store.set_clock(Some(noon()));
        let calls = (0..16).map(async |number| {
            for _ in 0..25 {
                two_connection_store.read_clock().await.unwrap();
                if number % 4 == 0 {
                    two_connection_store.trigger("test", expected_version(&job), &NewRun::task(&job)).await.unwrap();
                }
            }
        });
        let all = futures_util::future::join_all(calls);
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        two_connection_store.close().await;
        assert!(two_connection_store.read_clock().await.is_err(), "a closed store refuses calls");
    }

    /// A program may drop a store after its runtime has ended.
    async fn a_store_may_be_dropped_outside_a_runtime(store: TestStore) {
        let other_store = Store::open(&store.url, 3).await.unwrap();
        other_store.read_clock().await.unwrap();
        std::thread::spawn(move || drop(other_store)).join().unwrap();
    }
}
