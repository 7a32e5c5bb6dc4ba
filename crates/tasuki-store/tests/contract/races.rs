//! Sixteen connections fight over a thousand runs with every pair of verbs that can collide: each
//! run has exactly one winner, whatever the order. On the databases that have real concurrency.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{ErrorCode, LeaseToken, RunId, RunState, Scope};
use tasuki_store::{
    AssignBatch, Writer, Canceled, ClaimBatch, ClaimResult, Dialect, Error, AttemptResult, Lease, NewRun,
    Outcome, Renewed,
};

use crate::given::{self, GRACE, Like, REASSIGN, TTL, TestStore, failed};

const RUNS: usize = 1_000;
const TASKS: usize = 16;

/// How many of the tasks meet on each run.
const RIVALS: usize = 4;

/// How many attempts there are in all.
const ATTEMPTS: usize = RUNS * RIVALS;

/// Makes one test for each database that lets writers write at the same time.
macro_rules! race {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: Arc<TestStore>) $body:block)+) => {
        $(
            $(#[$meta])*
            mod $name {
                use super::*;

                async fn race($store: Arc<TestStore>) $body

                #[test]
                fn postgres() {
                    given::run_in_parallel(Dialect::Postgres, TASKS as u32, |store| race(store));
                }

                #[test]
                fn mysql() {
                    given::run_in_parallel(Dialect::MySql, TASKS as u32, |store| race(store));
                }
            }
        )+
    };
}

/// Every task goes through its share of the runs and tries, so that each run has four rivals that come
/// to it at about the same time; how often each run was won. `attempt` gets the rival's number.
async fn fight<F, W>(store: &Arc<TestStore>, runs: usize, attempt: W) -> Vec<usize>
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
                let won = patient(|| attempt(Arc::clone(&store), rival, run)).await;
                wins[run].fetch_add(usize::from(won), Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    wins.iter().map(|wins| wins.load(Ordering::Relaxed)).collect()
}

/// Two transactions that waited for each other wrote nothing: try again.
async fn patient<T, F: Future<Output = Result<T, Error>>>(attempt: impl Fn() -> F) -> T {
    for _ in 0..50 {
        match attempt().await {
            Err(error) if error.is_contention() => continue,
            answer => return answer.unwrap(),
        }
    }
    panic!("no end of contention");
}

fn once_each(wins: &[usize]) {
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

/// Runs with the token each is under.
type Carried = Arc<Vec<(RunId, LeaseToken)>>;

async fn given_waiting(store: &TestStore, like: &Like) -> Vec<RunId> {
    let job = store.given_job(like).await;
    let runs: Vec<NewRun<'_>> = (0..RUNS).map(|_| NewRun::task(&job)).collect();
    store.create(Writer::Api, &runs).await.unwrap().iter().map(|created| created.run).collect()
}

/// A thousand assigned runs, `together` of them under each lease.
async fn given_assigned(store: &TestStore, together: usize) -> Carried {
    let ids = given_waiting(store, &Like::default()).await;
    let wanted = store.due("", given::noon(), RUNS as u32).await.unwrap();
    let mut carried = Vec::new();
    for some in wanted.chunks(together) {
        let token = store.token();
        let batch = AssignBatch {
            epoch: store.epoch,
            worker: store.worker,
            token,
            runs: some,
            assign_ahead: TTL,
            reassign_after: REASSIGN,
        };
        carried.extend(store.assign(&batch).await.unwrap().into_iter().map(|run| (run, token)));
    }
    assert_eq!(carried.len(), ids.len());
    Arc::new(carried)
}

async fn given_running(store: &TestStore, together: usize) -> Carried {
    let carried = given_assigned(store, together).await;
    for some in carried.chunks(together) {
        let ids: Vec<RunId> = some.iter().map(|(run, _)| *run).collect();
        let started = store.start(store.worker, some[0].1, &ids, TTL).await.unwrap();
        assert_eq!(given::applied(started), some.len());
    }
    carried
}

async fn lapsed(store: &TestStore) -> Arc<Vec<Lease>> {
    let mut lapsed = store.lapsed(GRACE, RUNS as u32).await.unwrap();
    lapsed.sort_by_key(|lease| lease.runs[0]);
    assert_eq!(lapsed.len(), RUNS);
    Arc::new(lapsed)
}

race! {
    async fn start_and_start(store: Arc<TestStore>) {
        let carried = given_assigned(&store, 100).await;
        let wins = fight(&store, RUNS, move |store, _, run| {
            let (run, token) = carried[run];
            async move {
                let started = store.start(store.worker, token, &[run], TTL).await?;
                Ok(started[0].is_applied())
            }
        }).await;
        once_each(&wins);
    }

    /// The worker is detached in the middle: what it has not started by then is taken from it.
    async fn start_and_orphan(store: Arc<TestStore>) {
        let carried = given_assigned(&store, 100).await;
        let steps = Arc::new(AtomicUsize::new(0));
        let wins = fight(&store, RUNS, move |store, task, run| {
            let ((run, token), steps) = (carried[run], Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.detach_worker(Writer::Api, "test", store.worker, "test").await?;
                }
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                // The last word: what nobody had when the worker went is the leader's.
                Ok(store.orphan(store.epoch, run, token).await?.is_applied())
            }
        }).await;
        assert!(wins.iter().all(|wins| *wins <= 1));
        let moved = wins.iter().sum::<usize>();
        assert!(moved > RUNS / 2, "{moved} of {RUNS} found a winner");
        for run in store.due("", given::noon(), 10).await.unwrap() {
            assert_eq!(store.run_now(run.run).await.state, RunState::Orphaned);
        }
    }

    /// The worker is reported dead in the middle, and everything is taken from its leases.
    async fn start_and_recover(store: Arc<TestStore>) {
        let carried = given_assigned(&store, 1).await;
        let leases: Arc<Vec<Lease>> = Arc::new({
            let mut leases = store.leases_of(store.worker).await.unwrap();
            leases.sort_by_key(|lease| lease.runs[0]);
            leases
        });
        let steps = Arc::new(AtomicUsize::new(0));
        let (fought, told) = (Arc::clone(&carried), Arc::clone(&leases));
        let wins = fight(&store, RUNS, move |store, task, index| {
            let ((run, token), lease, steps) = (fought[index], told[index].clone(), Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.report_dead(store.worker, &"node".parse().unwrap()).await?;
                }
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                // A start touches the lease, so what was read must be read again.
                let now = store.leases_of(store.worker).await?;
                let lease = now.into_iter().find(|one| one.token == lease.token);
                match lease {
                    None => Ok(false),
                    Some(lease) => store.recover(store.epoch, &lease, GRACE, 0).await.map(drop).map(|()| false),
                }
            }
        }).await;
        assert!(wins.iter().all(|wins| *wins <= 1), "nothing was started twice");
        for lease in store.leases_of(store.worker).await.unwrap() {
            assert!(store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().is_some());
        }
        for (run, _) in carried.iter() {
            let run = store.run_now(*run).await;
            let started = run.counters.tries == 1;
            let expected = if started { RunState::RetryWait } else { RunState::Orphaned };
            assert_eq!(run.state, expected);
        }
    }

    /// A renewal and a recovery meet on a lapsed lease: one of them has it.
    async fn renew_and_recover(store: Arc<TestStore>) {
        let carried = given_running(&store, 1).await;
        store.at(60);
        let leases = lapsed(&store).await;
        let renewed: Arc<Mutex<HashSet<usize>>> = Arc::default();
        let recovered: Arc<Mutex<HashSet<usize>>> = Arc::default();
        let (kept, taken) = (Arc::clone(&renewed), Arc::clone(&recovered));
        fight(&store, RUNS, move |store, task, index| {
            let (lease, kept, taken) = (leases[index].clone(), Arc::clone(&kept), Arc::clone(&taken));
            async move {
                if task % 2 == 0 {
                    let held = matches!(store.renew(store.worker, lease.token, TTL).await?, Renewed::Held { .. });
                    if held {
                        kept.lock().unwrap().insert(index);
                    }
                } else if store.recover(store.epoch, &lease, GRACE, 0).await?.is_some() {
                    assert!(taken.lock().unwrap().insert(index), "recovered twice");
                }
                Ok(false)
            }
        }).await;
        let (renewed, recovered) = (renewed.lock().unwrap().clone(), recovered.lock().unwrap().clone());
        assert!(renewed.is_disjoint(&recovered), "{:?}", renewed.intersection(&recovered).next());
        assert_eq!(renewed.len() + recovered.len(), RUNS);
        for (index, (run, _)) in carried.iter().enumerate() {
            let expected = if renewed.contains(&index) { RunState::Running } else { RunState::RetryWait };
            assert_eq!(store.run_now(*run).await.state, expected);
        }
    }

    async fn finish_and_recover(store: Arc<TestStore>) {
        let carried = given_running(&store, 1).await;
        store.at(60);
        let leases = lapsed(&store).await;
        let fought = Arc::clone(&carried);
        let finished: Arc<Mutex<HashSet<RunId>>> = Arc::default();
        let told = Arc::clone(&finished);
        fight(&store, RUNS, move |store, task, index| {
            let ((run, token), lease, told) = (fought[index], leases[index].clone(), Arc::clone(&told));
            async move {
                if task % 2 == 0 {
                    if store.finish(token, run, &AttemptResult::default()).await?.is_applied() {
                        told.lock().unwrap().insert(run);
                    }
                } else {
                    store.recover(store.epoch, &lease, GRACE, 0).await?;
                }
                Ok(false)
            }
        }).await;
        let finished = finished.lock().unwrap().clone();
        for (run, _) in carried.iter() {
            let now = store.run_now(*run).await;
            let expected = if finished.contains(run) { RunState::Succeeded } else { RunState::RetryWait };
            assert_eq!(now.state, expected, "{run}");
        }
    }

    async fn cancel_and_start(store: Arc<TestStore>) {
        let carried = given_assigned(&store, 100).await;
        let fought = Arc::clone(&carried);
        let wins = fight(&store, RUNS, move |store, task, run| {
            let (run, token) = fought[run];
            async move {
                if task % 2 == 0 {
                    return Ok(store.start(store.worker, token, &[run], TTL).await?[0].is_applied());
                }
                let canceled = store.cancel(Writer::Api, run, "test", None).await?;
                Ok(canceled == Outcome::Applied(Canceled::Ended))
            }
        }).await;
        once_each(&wins);
        for (run, _) in carried.iter() {
            let run = store.run_now(*run).await;
            assert_eq!(run.counters.tries == 0, run.state == RunState::Canceled);
        }
    }

    async fn cancel_and_finish(store: Arc<TestStore>) {
        let carried = given_running(&store, 100).await;
        let fought = Arc::clone(&carried);
        fight(&store, RUNS, move |store, task, run| {
            let (run, token) = fought[run];
            async move {
                if task % 2 == 0 {
                    let end = if task % 4 == 0 { AttemptResult::default() } else { failed(ErrorCode::UNEXPECTED_ERROR) };
                    store.finish(token, run, &end).await.map(drop)?;
                } else {
                    let canceled = store.cancel(Writer::Api, run, "test", None).await?;
                    // What waits for its next try is canceled outright; what runs is only asked.
                    let state = store.run_now(run).await.state;
                    assert!(canceled != Outcome::Applied(Canceled::Ended) || state == RunState::Canceled);
                }
                Ok(false)
            }
        }).await;
        for (run, token) in carried.iter() {
            // What waits for its next try when all have been there is canceled now.
            drop(store.cancel(Writer::Api, *run, "test", None).await.unwrap());
            let run = store.run_now(*run).await;
            assert!(run.state.is_ended(), "{:?}", run.state);
            assert!(run.counters.tries == 1 && run.token.is_none_or(|now| now == *token));
        }
    }

    async fn retry_and_retry(store: Arc<TestStore>) {
        let carried = given_running(&store, 100).await;
        for some in carried.chunks(100) {
            let ends: Vec<(RunId, AttemptResult)> =
                some.iter().map(|(run, _)| (*run, failed(ErrorCode::INVALID_INPUT))).collect();
            assert_eq!(given::applied(store.finish_many(some[0].1, &ends).await.unwrap()), 100);
        }
        let wins = fight(&store, RUNS, move |store, _, run| {
            let (run, _) = carried[run];
            async move { Ok(store.retry(run, "test", None).await?.is_applied()) }
        }).await;
        once_each(&wins);
    }

    /// Their time runs out while some assign and start and others skip.
    async fn skip_and_start(store: Arc<TestStore>) {
        let like = Like { skip_after: Some(5), ..Like::default() };
        let job = store.given_job(&like).await;
        let late = given::noon() + jiff::SignedDuration::from_secs(5);
        let new: Vec<NewRun<'_>> = (0..RUNS).map(|_| NewRun { skip_at: Some(late), ..NewRun::task(&job) }).collect();
        let runs: Arc<Vec<RunId>> =
            Arc::new(store.create(Writer::Api, &new).await.unwrap().iter().map(|one| one.run).collect());
        let all = Arc::clone(&runs);
        let steps = Arc::new(AtomicUsize::new(0));
        let wins = fight(&store, RUNS, move |store, task, run| {
            let (run, steps) = (runs[run], Arc::clone(&steps));
            async move {
                if steps.fetch_add(1, Ordering::Relaxed) == ATTEMPTS / 8 {
                    store.at(6);
                }
                if task % 2 == 0 {
                    let wanted = store.wanted(run).await;
                    let token = store.token();
                    let batch = AssignBatch {
                        epoch: store.epoch, worker: store.worker, token, runs: &[wanted], assign_ahead: TTL, reassign_after: TTL,
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
            // Nobody came by after its time.
            let reason = tasuki_core::run::SkipReason::Late;
            *wins += usize::from(store.skip(store.epoch, *run, reason).await.unwrap().is_applied());
        }
        once_each(&wins);
    }

    /// A hundred scopes of a job that forbids two at once, and sixteen that claim.
    async fn claim_and_claim_with_hold(store: Arc<TestStore>) {
        let like = Like { lane: "q", concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let job = store.given_job(&like).await;
        let scope = |number: usize| Scope::new("tenant", &(number % 100).to_string()).unwrap();
        let new: Vec<NewRun<'_>> =
            (0..RUNS).map(|number| NewRun { scope: scope(number), ..NewRun::task(&job) }).collect();
        store.create(Writer::Api, &new).await.unwrap();
        let under_way: Arc<Mutex<HashSet<Scope>>> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (store, under_way, done) = (Arc::clone(&store), Arc::clone(&under_way), Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                while done.load(Ordering::Relaxed) < RUNS {
                    let token = store.token();
                    let batch = ClaimBatch { worker: store.worker, token, lane: "q", most: 20, lease_ttl: TTL };
                    let ClaimResult::Runs(runs) = patient(|| store.claim(&batch)).await else { panic!("a new token") };
                    for run in &runs {
                        assert!(under_way.lock().unwrap().insert(run.scope.clone()), "two of {}", run.scope);
                    }
                    for run in &runs {
                        under_way.lock().unwrap().remove(&run.scope);
                        let good = AttemptResult::default();
                        let finished = patient(|| store.finish(token, run.id, &good)).await;
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
        let like = Like { lane: "q", ..Like::default() };
        let runs = Arc::new(given_waiting(&store, &like).await);
        let index: Arc<Vec<RunId>> = Arc::clone(&runs);
        let won: Arc<Mutex<Vec<RunId>>> = Arc::default();
        let told = Arc::clone(&won);
        fight(&store, RUNS, move |store, task, run| {
            let (run, told) = (index[run], Arc::clone(&told));
            async move {
                let token = store.token();
                if task % 2 == 0 {
                    let batch = ClaimBatch { worker: store.worker, token, lane: "q", most: 1, lease_ttl: TTL };
                    if let ClaimResult::Runs(runs) = store.claim(&batch).await? {
                        told.lock().unwrap().extend(runs.iter().map(|run| run.id));
                    }
                    return Ok(false);
                }
                let wanted = [store.wanted(run).await];
                let batch = AssignBatch {
                    epoch: store.epoch, worker: store.worker, token, runs: &wanted, assign_ahead: TTL, reassign_after: Duration::from_secs(60),
                };
                let given = store.assign(&batch).await?;
                told.lock().unwrap().extend(given);
                Ok(false)
            }
        }).await;
        let mut won = won.lock().unwrap().clone();
        won.sort();
        assert_eq!(won, *runs, "each once");
    }
}
