//! T15: a worker that was cut off asks about all that it runs at once; each run has its own guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tasuki_core::run::transition::Verb;
use tasuki_core::{LeaseToken, RunId, RunState};
use tasuki_store::{Writer, Fault, AttemptResult, Line, NewRun, Pause};

use crate::given::{GRACE, Like, TTL, TestStore, contract};

const PATIENCE: Duration = Duration::from_secs(2);

/// A line that counts what goes over it.
#[derive(Default)]
struct Counted(AtomicU32);

impl Line for Counted {
    fn send(&self) -> Pause<'_, Fault> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Fault::None))
    }

    fn answer(&self) -> Pause<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// So many runs that run, some under one lease, some under leases of their own.
async fn running(store: &TestStore, together: usize, alone: usize) -> Vec<(RunId, LeaseToken)> {
    let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
    let waiting = vec![NewRun::task(&job); together + alone];
    store.create(Writer::Api, &waiting).await.unwrap();
    let mut running = Vec::new();
    let most = std::iter::once(together).chain(std::iter::repeat_n(1, alone));
    for most in most {
        let (token, runs) = store.try_claim("q", most as u32).await;
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
    async fn confirming_never_outlives_the_lease(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let asks = [(run.id, run.token.unwrap())];
        assert_eq!(store.confirm(&asks, PATIENCE).await.unwrap(), [run.id]);
        assert_eq!(store.confirm(&asks, TTL).await.unwrap(), [], "asked once");
        assert_eq!(store.confirmed(&asks).await.unwrap(), [run.id]);
        assert_eq!(store.confirmed(&asks).await.unwrap(), [run.id], "the first answer was lost");
        assert_eq!(store.confirm(&asks, Duration::from_secs(999)).await.unwrap(), [run.id]);
        store.at(29);
        assert_eq!(store.run_now(run.id).await.state, RunState::Running);
        store.at(30);
        assert_eq!(store.confirmed(&asks).await.unwrap(), [], "the lease is over");
    }

    async fn who_never_asked_is_not_told_to_go_on(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let asks = [(run.id, run.token.unwrap())];
        assert_eq!(store.confirmed(&asks).await.unwrap(), []);
        assert_eq!(store.confirm(&[], PATIENCE).await.unwrap(), []);
    }

    async fn a_note_of_confirming_names_the_attempt(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await;
        let asks = [(run.id, store.given_running_later(run.id).await)];
        assert_eq!(store.confirm(&asks, TTL).await.unwrap(), [run.id]);
        assert_eq!(store.confirmed(&asks).await.unwrap(), [run.id]);
        let told = store.notes(run.id).await.unwrap();
        let hash = told[0].token_hash.clone().unwrap();
        assert!(told.iter().all(|note| note.actor == "worker" && note.token_hash.as_ref() == Some(&hash)));
        let told: Vec<_> = told.iter().map(|note| (note.verb, note.attempt_no, note.reason.as_deref())).collect();
        assert_eq!(told, [
            (Verb::Confirm, 2, Some("asks whether it may go on")),
            (Verb::Confirm, 2, Some("may go on")),
        ]);
    }

    /// Two hundred cost the database as much as one, whatever leases they are under.
    async fn many_are_asked_about_at_once(store: TestStore) {
        let mut runs = running(store, 60, 39).await;
        runs.reverse();
        let line = Arc::new(Counted::default());
        let counted = store.with_line(Arc::clone(&line) as Arc<dyn Line>);
        assert_eq!(sorted(counted.confirm(&runs, PATIENCE).await.unwrap()), ids(&runs));
        assert_eq!(line.0.swap(0, Ordering::Relaxed), 1, "one exchange for all");
        assert_eq!(sorted(counted.confirmed(&runs).await.unwrap()), ids(&runs));
        assert_eq!(line.0.swap(0, Ordering::Relaxed), 1, "one exchange for all");
        for (run, _) in runs {
            assert_eq!(store.notes(run).await.unwrap().len(), 2);
        }
    }

    /// One that is not the worker's any more keeps none of the others from it.
    async fn each_run_has_its_own_guard(store: TestStore) {
        let runs = running(store, 4, 2).await;
        let mut asks = runs.clone();
        // Ended; asked about already; under another token; of a lease that was taken away.
        assert!(store.finish(runs[0].1, runs[0].0, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.confirm(&runs[1..2], PATIENCE).await.unwrap(), [runs[1].0]);
        asks[2].1 = store.token();
        store.at(20);
        for (_, token) in &runs[..5] {
            store.renew(store.worker, *token, TTL).await.unwrap();
        }
        store.at(34);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        assert_eq!(lapsed.iter().map(|lease| lease.token).collect::<Vec<_>>(), [runs[5].1]);
        for lease in &lapsed {
            store.recover(store.epoch, lease, GRACE, 0).await.unwrap();
        }
        assert_eq!(sorted(store.confirm(&asks, PATIENCE).await.unwrap()), ids(&runs[3..5]));
        let before = store.run_now(runs[1].0).await;
        assert_eq!(sorted(store.confirmed(&asks).await.unwrap()), ids(&runs[3..5]), "the deadline of one has passed");
        assert_eq!(store.run_now(runs[1].0).await, before);
        let told = store.notes(runs[2].0).await.unwrap();
        assert_eq!(told, [], "what was not moved is not told of");
    }
}
