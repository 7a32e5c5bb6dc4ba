//! T15 (confirm): a detached worker asks for all its runs in one statement whether it may continue them. Each run has
//! its own guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tasuki_core::run::transition::RunVerb;
use tasuki_core::{LeaseToken, RunId, RunState};
use tasuki_store::{AttemptResult, BoxFuture, Fault, FaultInjector, NewRun, Writer};

use crate::fixtures::{GRACE, RunOptions, TTL, TestStore, contract};

const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// Test hook that counts the round trips to the database.
#[derive(Default)]
struct RoundTripCounter(AtomicU32);

impl FaultInjector for RoundTripCounter {
    fn on_request(&self) -> BoxFuture<'_, Fault> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Fault::None))
    }

    fn on_response(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Starts `together` runs under one lease and `alone` runs under one lease each.
async fn given_running(
    store: &TestStore,
    together: usize,
    alone: usize,
) -> Vec<(RunId, LeaseToken)> {
    let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
    let waiting = vec![NewRun::task(&job); together + alone];
    store.create_or_find_runs(Writer::Api, &waiting).await.unwrap();
    let mut running = Vec::new();
    let limits = std::iter::once(together).chain(std::iter::repeat_n(1, alone));
    for limit in limits {
        let (token, runs) = store.try_claim("q", limit as u32).await;
        running.extend(runs.iter().map(|run| (run.id, token)));
    }
    assert_eq!(running.len(), together + alone);
    running
}

fn ids(runs: &[(RunId, LeaseToken)]) -> Vec<RunId> {
    let mut ids: Vec<RunId> = runs.iter().map(|(run, _)| *run).collect();
    ids.sort_unstable();
    ids
}

fn sorted(mut runs: Vec<RunId>) -> Vec<RunId> {
    runs.sort_unstable();
    runs
}

contract! {
    async fn confirming_ends_with_the_lease_at_the_latest(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let requests = [(run.id, run.token.unwrap())];
        assert_eq!(store.begin_confirming_after_detach(&requests, CONFIRM_TIMEOUT).await.unwrap(), [run.id]);
        assert_eq!(store.begin_confirming_after_detach(&requests, TTL).await.unwrap(), [], "a second request changes nothing");
        assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), [run.id]);
        assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), [run.id], "repeated after a lost response");
        assert_eq!(store.begin_confirming_after_detach(&requests, Duration::from_secs(999)).await.unwrap(), [run.id]);
        store.set_time(29);
        assert_eq!(store.read_run(run.id).await.state, RunState::Running);
        store.set_time(30);
        assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), [], "the lease has expired");
    }

    async fn a_run_that_is_not_confirming_is_not_confirmed(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let requests = [(run.id, run.token.unwrap())];
        assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), []);
        assert_eq!(store.begin_confirming_after_detach(&[], CONFIRM_TIMEOUT).await.unwrap(), []);
    }

    async fn transition_records_of_confirming_name_the_attempt(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await;
        let requests = [(run.id, store.given_running_after_an_hour(run.id).await)];
        assert_eq!(store.begin_confirming_after_detach(&requests, TTL).await.unwrap(), [run.id]);
        assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), [run.id]);
        let transitions = store.list_rare_transitions(run.id).await.unwrap();
        let hash = transitions[0].token_hash.clone().unwrap();
        assert!(transitions.iter().all(|transition| transition.actor == "worker" && transition.token_hash.as_ref() == Some(&hash)));
        let summaries: Vec<_> = transitions.iter().map(|transition| (transition.verb, transition.attempt_no, transition.reason.as_deref())).collect();
        assert_eq!(summaries, [
            (RunVerb::Confirm, 2, Some("the worker requests to continue")),
            (RunVerb::Confirm, 2, Some("the worker may continue")),
        ]);
    }

    /// Many runs, under many leases, need only one round trip to the database.
    async fn many_runs_are_confirmed_in_one_round_trip(store: TestStore) {
        let mut runs = given_running(store, 60, 39).await;
        runs.reverse();
        let hook = Arc::new(RoundTripCounter::default());
        let counted = store.with_fault_injector(Arc::clone(&hook) as Arc<dyn FaultInjector>);
        assert_eq!(sorted(counted.begin_confirming_after_detach(&runs, CONFIRM_TIMEOUT).await.unwrap()), ids(&runs));
        assert_eq!(hook.0.swap(0, Ordering::Relaxed), 1, "one round trip for all runs");
        assert_eq!(sorted(counted.end_confirming_after_detach(&runs).await.unwrap()), ids(&runs));
        assert_eq!(hook.0.swap(0, Ordering::Relaxed), 1, "one round trip for all runs");
        for (run, _) in runs {
            assert_eq!(store.list_rare_transitions(run).await.unwrap().len(), 2);
        }
    }

    /// A run that the worker no longer holds does not prevent the others from being confirmed.
    async fn each_run_has_its_own_guard(store: TestStore) {
        let runs = given_running(store, 4, 2).await;
        let mut requests = runs.clone();
        // Run 0 has ended, run 1 was already requested, run 2 has another token, and the lease of run 5 is recovered.
        assert!(store.finish_run(runs[0].1, runs[0].0, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.begin_confirming_after_detach(&runs[1..2], CONFIRM_TIMEOUT).await.unwrap(), [runs[1].0]);
        requests[2].1 = store.new_token();
        store.set_time(20);
        for (_, token) in &runs[..5] {
            store.renew_one(*token).await;
        }
        store.set_time(34);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        assert_eq!(expired.iter().map(|lease| lease.token).collect::<Vec<_>>(), [runs[5].1]);
        for lease in &expired {
            store.recover(store.epoch, lease, GRACE, 0).await.unwrap();
        }
        assert_eq!(sorted(store.begin_confirming_after_detach(&requests, CONFIRM_TIMEOUT).await.unwrap()), ids(&runs[3..5]));
        let before = store.read_run(runs[1].0).await;
        assert_eq!(sorted(store.end_confirming_after_detach(&requests).await.unwrap()), ids(&runs[3..5]), "the deadline of run 1 has passed");
        assert_eq!(store.read_run(runs[1].0).await, before);
        let transitions = store.list_rare_transitions(runs[2].0).await.unwrap();
        assert_eq!(transitions, [], "no transition record for a run that was not changed");
    }
}
