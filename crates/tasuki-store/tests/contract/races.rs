//! Races: sixteen connections apply every pair of conflicting verbs to a thousand runs. Each run has exactly one
//! winner in any order. Only on databases with concurrent writers (not SQLite).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{AttemptErrorCode, LeaseToken, RunId, RunScope, RunState};
use tasuki_store::{
    AssignRequest, AttemptResult, CancelResult, ClaimRequest, ClaimResult, Dialect, Error, Lease,
    NewRun, Outcome, RenewResult, Writer,
};

use crate::fixtures::{self, GRACE, REASSIGN_AFTER, RunOptions, TTL, TestStore, failed_result};

const RUNS: usize = 1_000;
const TASKS: usize = 16;

/// Number of tasks that compete for each run.
const RIVALS: usize = 4;

/// Total number of tries.
const ATTEMPTS: usize = RUNS * RIVALS;

/// Defines one test for each database that allows concurrent writers.
macro_rules! race {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: Arc<TestStore>) $body:block)+) => {
        $(
            $(#[$meta])*
            mod $name {
                use super::*;

                async fn race($store: Arc<TestStore>) $body

                #[test]
                fn postgres() {
                    fixtures::run_in_parallel(Dialect::Postgres, TASKS as u32, |store| race(store));
                }

                #[test]
                fn mysql() {
                    fixtures::run_in_parallel(Dialect::MySql, TASKS as u32, |store| race(store));
                }
            }
        )+
    };
}

/// Each task tries `attempt` on its share of the runs, so that four rivals reach each run at about the same time.
/// Returns how often each run was won. `attempt` gets the number of the rival and of the run.
async fn compete<F, W>(store: &Arc<TestStore>, runs: usize, attempt: W) -> Vec<usize>
where
    W: Fn(Arc<TestStore>, usize, usize) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<bool, Error>> + Send,
{
    let wins: Arc<Vec<AtomicUsize>> = Arc::new((0..runs).map(|_| AtomicUsize::new(0)).collect());
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (store, wins, attempt) = (Arc::clone(store), Arc::clone(&wins), attempt.clone());
        tasks.push(tokio::spawn(async move {
            let (share, rival) = (task % (TASKS / RIVALS), task / (TASKS / RIVALS));
            for run in (share..runs).step_by(TASKS / RIVALS) {
                let won = retry_contention(|| attempt(Arc::clone(&store), rival, run)).await;
                wins[run].fetch_add(usize::from(won), Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    wins.iter().map(|wins| wins.load(Ordering::Relaxed)).collect()
}

/// Retries after contention: a transaction that was rolled back because of a deadlock wrote nothing.
async fn retry_contention<T, F: Future<Output = Result<T, Error>>>(attempt: impl Fn() -> F) -> T {
    for _ in 0..50 {
        match attempt().await {
            Err(error) if error.is_contention() => continue,
            answer => return answer.unwrap(),
        }
    }
    panic!("still contention after 50 tries");
}

fn assert_one_win_each(wins: &[usize]) {
    let wrong: Vec<(usize, usize)> =
        wins.iter().copied().enumerate().filter(|(_, wins)| *wins != 1).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} runs: {:?}",
        wrong.len(),
        wins.len(),
        &wrong[..wrong.len().min(9)]
    );
}

/// Leased runs, each with its lease token.
type LeasedRuns = Arc<Vec<(RunId, LeaseToken)>>;

async fn given_waiting(store: &TestStore, options: &RunOptions) -> Vec<RunId> {
    let job = store.given_job(options).await;
    let runs: Vec<NewRun<'_>> = (0..RUNS).map(|_| NewRun::task(&job)).collect();
    store
        .create_or_find_runs(Writer::Api, &runs)
        .await
        .unwrap()
        .iter()
        .map(|created| created.run)
        .collect()
}

/// Assigns a thousand runs, `together` of them under each lease.
async fn given_assigned(store: &TestStore, together: usize) -> LeasedRuns {
    let ids = given_waiting(store, &RunOptions::default()).await;
    let due_runs = store.list_due_in_lane("", fixtures::noon(), RUNS as u32).await.unwrap();
    let mut leased_runs = Vec::new();
    for chunk in due_runs.chunks(together) {
        let token = store.new_token();
        let batch = AssignRequest {
            epoch: store.epoch,
            worker: store.worker,
            token,
            runs: chunk,
            assign_ahead: TTL,
            reassign_after: REASSIGN_AFTER,
        };
        leased_runs.extend(store.assign(&batch).await.unwrap().into_iter().map(|run| (run, token)));
    }
    assert_eq!(leased_runs.len(), ids.len());
    Arc::new(leased_runs)
}

async fn given_running(store: &TestStore, together: usize) -> LeasedRuns {
    let leased_runs = given_assigned(store, together).await;
    for chunk in leased_runs.chunks(together) {
        let ids: Vec<RunId> = chunk.iter().map(|(run, _)| *run).collect();
        let started = store.start(store.worker, chunk[0].1, &ids, TTL).await.unwrap();
        assert_eq!(fixtures::count_applied(started), chunk.len());
    }
    leased_runs
}

async fn list_expired(store: &TestStore) -> Arc<Vec<Lease>> {
    let mut expired = store.list_expired_leases(GRACE, RUNS as u32).await.unwrap();
    expired.sort_by_key(|lease| lease.runs[0]);
    assert_eq!(expired.len(), RUNS);
    Arc::new(expired)
}

race! {
    async fn start_and_start(store: Arc<TestStore>) {
        let leased_runs = given_assigned(&store, 100).await;
        let wins = compete(&store, RUNS, move |store, _, run| {
            let (run, token) = leased_runs[run];
            async move {
                let started = store.start(store.worker, token, &[run], TTL).await?;
                Ok(started[0].is_applied())
            }
        }).await;
        assert_one_win_each(&wins);
    }

    /// The worker is detached after an eighth of the tries: runs that it has not started by then are orphaned.
    async fn start_and_orphan(store: Arc<TestStore>) {
        let leased_runs = given_assigned(&store, 100).await;
        let steps = Arc::new(AtomicUsize::new(0));
        let wins = compete(&store, RUNS, move |store, task, run| {
            let ((run, token), steps) = (leased_runs[run], Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.detach_worker(Writer::Api, "test", store.worker, "test").await?;
                }
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                // The leader takes back runs that the detached worker has not started.
                Ok(store.orphan(store.epoch, run, token).await?.is_applied())
            }
        }).await;
        assert!(wins.iter().all(|wins| *wins <= 1));
        let moved = wins.iter().sum::<usize>();
        assert!(moved > RUNS / 2, "{moved} of {RUNS} found a winner");
        for run in store.list_due_in_lane("", fixtures::noon(), 10).await.unwrap() {
            assert_eq!(store.read_run(run.run).await.state, RunState::Orphaned);
        }
    }

    /// The worker is reported dead after an eighth of the tries, and its leases are recovered.
    async fn start_and_recover(store: Arc<TestStore>) {
        let leased_runs = given_assigned(&store, 1).await;
        let leases: Arc<Vec<Lease>> = Arc::new({
            let mut leases = store.list_leases_of_worker(store.worker).await.unwrap();
            leases.sort_by_key(|lease| lease.runs[0]);
            leases
        });
        let steps = Arc::new(AtomicUsize::new(0));
        let (contested, shared_results) = (Arc::clone(&leased_runs), Arc::clone(&leases));
        let wins = compete(&store, RUNS, move |store, task, index| {
            let ((run, token), lease, steps) = (contested[index], shared_results[index].clone(), Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.mark_worker_dead(store.worker, &"node".parse().unwrap()).await?;
                }
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                // A start changes the lease, so the lease must be read again before each recovery.
                let now = store.list_leases_of_worker(store.worker).await?;
                let lease = now.into_iter().find(|one| one.token == lease.token);
                match lease {
                    None => Ok(false),
                    Some(lease) => store.recover(store.epoch, &lease, GRACE, 0).await.map(drop).map(|()| false),
                }
            }
        }).await;
        assert!(wins.iter().all(|wins| *wins <= 1), "nothing was started twice");
        for lease in store.list_leases_of_worker(store.worker).await.unwrap() {
            assert!(store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().is_some());
        }
        for (run, _) in leased_runs.iter() {
            let run = store.read_run(*run).await;
            let started = run.counters.tries == 1;
            let expected = if started { RunState::RetryWait } else { RunState::Orphaned };
            assert_eq!(run.state, expected);
        }
    }

    /// Renewals and recoveries compete for an expired lease: exactly one of them wins.
    async fn renew_and_recover(store: Arc<TestStore>) {
        let leased_runs = given_running(&store, 1).await;
        store.set_time(60);
        let leases = list_expired(&store).await;
        let renewed: Arc<Mutex<HashSet<usize>>> = Arc::default();
        let recovered: Arc<Mutex<HashSet<usize>>> = Arc::default();
        let (kept, recovered_leases) = (Arc::clone(&renewed), Arc::clone(&recovered));
        compete(&store, RUNS, move |store, task, index| {
            let (lease, kept, recovered_leases) = (leases[index].clone(), Arc::clone(&kept), Arc::clone(&recovered_leases));
            async move {
                if task % 2 == 0 {
                    let held = matches!(store.renew(store.worker, &[lease.token], TTL).await?[..], [RenewResult::Held { .. }]);
                    if held {
                        kept.lock().unwrap().insert(index);
                    }
                } else if store.recover(store.epoch, &lease, GRACE, 0).await?.is_some() {
                    assert!(recovered_leases.lock().unwrap().insert(index), "recovered twice");
                }
                Ok(false)
            }
        }).await;
        let (renewed, recovered) = (renewed.lock().unwrap().clone(), recovered.lock().unwrap().clone());
        assert!(renewed.is_disjoint(&recovered), "{:?}", renewed.intersection(&recovered).next());
        assert_eq!(renewed.len() + recovered.len(), RUNS);
        for (index, (run, _)) in leased_runs.iter().enumerate() {
            let expected = if renewed.contains(&index) { RunState::Running } else { RunState::RetryWait };
            assert_eq!(store.read_run(*run).await.state, expected);
        }
    }

    async fn finish_and_recover(store: Arc<TestStore>) {
        let leased_runs = given_running(&store, 1).await;
        store.set_time(60);
        let leases = list_expired(&store).await;
        let contested = Arc::clone(&leased_runs);
        let finished: Arc<Mutex<HashSet<RunId>>> = Arc::default();
        let shared_results = Arc::clone(&finished);
        compete(&store, RUNS, move |store, task, index| {
            let ((run, token), lease, shared_results) = (contested[index], leases[index].clone(), Arc::clone(&shared_results));
            async move {
                if task % 2 == 0 {
                    if store.finish_run(token, run, &AttemptResult::default()).await?.is_applied() {
                        shared_results.lock().unwrap().insert(run);
                    }
                } else {
                    store.recover(store.epoch, &lease, GRACE, 0).await?;
                }
                Ok(false)
            }
        }).await;
        let finished = finished.lock().unwrap().clone();
        for (run, _) in leased_runs.iter() {
            let now = store.read_run(*run).await;
            let expected = if finished.contains(run) { RunState::Succeeded } else { RunState::RetryWait };
            assert_eq!(now.state, expected, "{run}");
        }
    }

    async fn cancel_and_start(store: Arc<TestStore>) {
        let leased_runs = given_assigned(&store, 100).await;
        let contested = Arc::clone(&leased_runs);
        let wins = compete(&store, RUNS, move |store, task, run| {
            let (run, token) = contested[run];
            async move {
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                let canceled = store.cancel(Writer::Api, run, "test", None).await?;
                Ok(canceled == Outcome::Applied(CancelResult::Canceled))
            }
        }).await;
        assert_one_win_each(&wins);
        for (run, _) in leased_runs.iter() {
            let run = store.read_run(*run).await;
            assert_eq!(run.counters.tries == 0, run.state == RunState::Canceled);
        }
    }

    async fn cancel_and_finish(store: Arc<TestStore>) {
        let leased_runs = given_running(&store, 100).await;
        let contested = Arc::clone(&leased_runs);
        compete(&store, RUNS, move |store, task, run| {
            let (run, token) = contested[run];
            async move {
                if task % 2 == 0 {
                    let end = if task % 4 == 0 { AttemptResult::default() } else { failed_result(AttemptErrorCode::UNEXPECTED_ERROR) };
                    store.finish_run(token, run, &end).await.map(drop)?;
                } else {
                    let canceled = store.cancel(Writer::Api, run, "test", None).await?;
                    // A run that waits for its retry is canceled at once; for a running one the cancel is only
                    // requested.
                    let state = store.read_run(run).await.state;
                    assert!(canceled != Outcome::Applied(CancelResult::Canceled) || state == RunState::Canceled);
                }
                Ok(false)
            }
        }).await;
        for (run, token) in leased_runs.iter() {
            // A run that still waits for its retry after all tries is canceled now.
            drop(store.cancel(Writer::Api, *run, "test", None).await.unwrap());
            let run = store.read_run(*run).await;
            assert!(run.state.is_ended(), "{:?}", run.state);
            assert!(run.counters.tries == 1 && run.token.is_none_or(|now| now == *token));
        }
    }

    async fn retry_and_retry(store: Arc<TestStore>) {
        let leased_runs = given_running(&store, 100).await;
        for chunk in leased_runs.chunks(100) {
            let ends: Vec<(RunId, AttemptResult)> =
                chunk.iter().map(|(run, _)| (*run, failed_result(AttemptErrorCode::INVALID_INPUT))).collect();
            assert_eq!(fixtures::count_applied(store.finish_runs(chunk[0].1, &ends).await.unwrap()), 100);
        }
        let wins = compete(&store, RUNS, move |store, _, run| {
            let (run, _) = leased_runs[run];
            async move { Ok(store.retry_manually(run, "test", None).await?.is_applied()) }
        }).await;
        assert_one_win_each(&wins);
    }

    /// The skip time of the runs passes while some tasks assign and start them and others skip them.
    async fn skip_and_start(store: Arc<TestStore>) {
        let options = RunOptions { skip_after: Some(5), ..RunOptions::default() };
        let job = store.given_job(&options).await;
        let late = fixtures::noon() + jiff::SignedDuration::from_secs(5);
        let new: Vec<NewRun<'_>> = (0..RUNS).map(|_| NewRun { skip_at: Some(late), ..NewRun::task(&job) }).collect();
        let runs: Arc<Vec<RunId>> =
            Arc::new(store.create_or_find_runs(Writer::Api, &new).await.unwrap().iter().map(|one| one.run).collect());
        let all = Arc::clone(&runs);
        let steps = Arc::new(AtomicUsize::new(0));
        let wins = compete(&store, RUNS, move |store, task, run| {
            let (run, steps) = (runs[run], Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.set_time(6);
                }
                if task % 2 == 0 {
                    let due_runs = store.read_due_run(run).await;
                    let token = store.new_token();
                    let batch = AssignRequest {
                        epoch: store.epoch, worker: store.worker, token, runs: &[due_runs], assign_ahead: TTL, reassign_after: TTL,
                    };
                    if store.assign(&batch).await?.is_empty() {
                        return Ok(false);
                    }
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                let reason = tasuki_core::run::SkipReason::Late;
                Ok(store.skip(store.epoch, run, reason).await?.is_applied())
            }
        }).await;
        let mut wins = wins;
        for (run, wins) in all.iter().zip(&mut wins).filter(|(_, wins)| **wins == 0) {
            // No task reached this run after its skip time.
            let reason = tasuki_core::run::SkipReason::Late;
            *wins += usize::from(store.skip(store.epoch, *run, reason).await.unwrap().is_applied());
        }
        assert_one_win_each(&wins);
    }

    /// Sixteen tasks claim runs of a `forbid` job in a hundred scopes: never two of one scope at the same time.
    async fn claim_and_claim_with_hold(store: Arc<TestStore>) {
        let options = RunOptions { lane: "q", concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let job = store.given_job(&options).await;
        let scope = |number: usize| RunScope::new("tenant", &(number % 100).to_string()).unwrap();
        let new: Vec<NewRun<'_>> =
            (0..RUNS).map(|number| NewRun { scope: scope(number), ..NewRun::task(&job) }).collect();
        store.create_or_find_runs(Writer::Api, &new).await.unwrap();
        let under_way: Arc<Mutex<HashSet<RunScope>>> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (store, under_way, done) = (Arc::clone(&store), Arc::clone(&under_way), Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                while done.load(Ordering::Relaxed) < RUNS {
                    let token = store.new_token();
                    let batch = ClaimRequest { worker: store.worker, token, lane: "q", max_runs: 20, lease_ttl: TTL, after: None };
                    let ClaimResult::Runs(runs) = retry_contention(|| store.claim(&batch)).await else { panic!("the token is new") };
                    for run in &runs {
                        assert!(under_way.lock().unwrap().insert(run.scope.clone()), "two of {}", run.scope);
                    }
                    for run in &runs {
                        under_way.lock().unwrap().remove(&run.scope);
                        let good = AttemptResult::default();
                        let finished = retry_contention(|| store.finish_run(token, run.id, &good)).await;
                        assert!(finished.is_applied());
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), RUNS);
    }

    async fn assign_and_claim(store: Arc<TestStore>) {
        let options = RunOptions { lane: "q", ..RunOptions::default() };
        let runs = Arc::new(given_waiting(&store, &options).await);
        let index: Arc<Vec<RunId>> = Arc::clone(&runs);
        let won: Arc<Mutex<Vec<RunId>>> = Arc::default();
        let shared_results = Arc::clone(&won);
        compete(&store, RUNS, move |store, task, run| {
            let (run, shared_results) = (index[run], Arc::clone(&shared_results));
            async move {
                let token = store.new_token();
                if task % 2 == 0 {
                    let batch = ClaimRequest { worker: store.worker, token, lane: "q", max_runs: 1, lease_ttl: TTL, after: None };
                    if let ClaimResult::Runs(runs) = store.claim(&batch).await? {
                        shared_results.lock().unwrap().extend(runs.iter().map(|run| run.id));
                    }
                    return Ok(false);
                }
                let due_runs = [store.read_due_run(run).await];
                let batch = AssignRequest {
                    epoch: store.epoch, worker: store.worker, token, runs: &due_runs, assign_ahead: TTL, reassign_after: Duration::from_secs(60),
                };
                let assigned = store.assign(&batch).await?;
                shared_results.lock().unwrap().extend(assigned);
                Ok(false)
            }
        }).await;
        let mut won = won.lock().unwrap().clone();
        won.sort();
        assert_eq!(won, *runs, "each run was taken once");
    }
}
