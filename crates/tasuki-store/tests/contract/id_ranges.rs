//! Id ranges: tasks of one batch wait in few due rows, each of which stands for a range of run ids. Every operation
//! on one of these runs has the same result as if each run had its own due row.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, RunId, RunState};
use tasuki_store::{
    AttemptResult, ClaimRequest, ClaimResult, Dialect, JobVersion, NewRun, Outcome, PrunePosition,
    RunFilter, RunListPosition, StartedRun, Writer,
};

use crate::fixtures::{self, RunOptions, TTL, TestStore, contract, noon};

const LANE: &str = "q";
/// Maximum number of runs in one id range.
const MAX_RANGE: usize = 64;
const DAY: i64 = 86_400;
const AGE: Duration = Duration::from_secs(DAY as u64);

fn in_queue() -> RunOptions {
    RunOptions { lane: LANE, ..RunOptions::default() }
}

async fn given_many(store: &TestStore, job: &JobVersion, count: usize) -> Vec<RunId> {
    let runs: Vec<NewRun<'_>> = (0..count).map(|_| NewRun::task(job)).collect();
    store
        .create_or_find_runs(Writer::Api, &runs)
        .await
        .unwrap()
        .into_iter()
        .map(|created| created.run)
        .collect()
}

/// The waiting runs of the lane, in the order in which they are claimed.
async fn list_waiting(store: &TestStore) -> Vec<RunId> {
    let due = store.list_due_in_lane(LANE, store.test_time(), 10_000).await.unwrap();
    due.into_iter().map(|due_run| due_run.run).collect()
}

fn ids(claimed: &[StartedRun]) -> Vec<RunId> {
    claimed.iter().map(|claimed| claimed.id).collect()
}

/// Reads a whole list of runs, `limit` runs per page.
async fn list_all_runs(store: &TestStore, filter: &RunFilter, limit: u32) -> Vec<RunId> {
    let (mut listed, mut from) = (Vec::new(), None::<RunListPosition>);
    loop {
        let page = store.list_runs(filter, from.as_ref(), limit).await.unwrap();
        listed.extend(page.runs.iter().map(|run| run.id));
        from = page.next;
        if from.is_none() {
            return listed;
        }
    }
}

/// Number of rows of the due table.
async fn count_due_rows(store: &TestStore) -> usize {
    query_number(store, "select count(*) from tasuki_due").await as usize
}

/// Runs a query that returns one number.
async fn query_number(store: &TestStore, sql: &'static str) -> i64 {
    match store.dialect() {
        Dialect::Sqlite => {
            let pool = sqlx::SqlitePool::connect(&store.url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap()
        }
        Dialect::Postgres => {
            let pool = sqlx::PgPool::connect(&store.url).await.unwrap();
            let count = sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap();
            pool.close().await;
            count
        }
        Dialect::MySql => {
            let pool = sqlx::MySqlPool::connect(&store.url).await.unwrap();
            let count = sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap();
            pool.close().await;
            count
        }
    }
}

/// The statistics of ended runs: their number, their total waiting time and their total running time in microseconds.
async fn read_statistics(store: &TestStore) -> [i64; 3] {
    let queries = match store.dialect() {
        Dialect::Sqlite | Dialect::Postgres => [
            "select cast(coalesce(sum(runs), 0) as bigint) from tasuki_stat",
            "select cast(coalesce(sum(wait_us), 0) as bigint) from tasuki_stat",
            "select cast(coalesce(sum(run_us), 0) as bigint) from tasuki_stat",
        ],
        Dialect::MySql => [
            "select cast(coalesce(sum(runs), 0) as signed) from tasuki_stat",
            "select cast(coalesce(sum(wait_us), 0) as signed) from tasuki_stat",
            "select cast(coalesce(sum(run_us), 0) as signed) from tasuki_stat",
        ],
    };
    [
        query_number(store, queries[0]).await,
        query_number(store, queries[1]).await,
        query_number(store, queries[2]).await,
    ]
}

/// Claims runs at `at` + 2 s and reports them at `at` + 5 s; `parts` are the sizes of the reported batches. Adds the
/// number and the times of these runs to `expected`.
async fn claim_and_report(
    store: &TestStore,
    at: i64,
    parts: &[usize],
    expected: &mut [i64; 3],
) -> Vec<RunId> {
    store.set_time(at + 2);
    let limit: usize = parts.iter().sum();
    let (token, claimed) = store.try_claim(LANE, limit as u32).await;
    assert_eq!(claimed.len(), limit);
    store.set_time(at + 5);
    let mut left: Vec<(RunId, AttemptResult)> =
        claimed.iter().map(|claimed| (claimed.id, AttemptResult::default())).collect();
    left.sort_by_key(|(run, _)| *run);
    for part in parts {
        let chunk: Vec<_> = left.drain(..*part).collect();
        let outcomes = store.finish_runs(token, &chunk).await.unwrap();
        assert!(outcomes.iter().all(Outcome::is_applied));
    }
    for claimed in &claimed {
        let run = store.read_run(claimed.id).await;
        let (started, finished) = (run.started_at.unwrap(), run.finished_at.unwrap());
        let waited = started.duration_since(claimed.due_at).as_micros() as i64;
        let ran = finished.duration_since(started).as_micros() as i64;
        assert_eq!((run.state, ran), (RunState::Succeeded, 3_000_000));
        for (sum, more) in expected.iter_mut().zip([1, waited, ran]) {
            *sum += more;
        }
    }
    ids(&claimed)
}

contract! {
    async fn runs_of_a_batch_wait_in_few_due_rows(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 200).await;
        assert!(count_due_rows(store).await <= 8, "there are {} rows", count_due_rows(store).await);
        assert_eq!(list_waiting(store).await, runs);
        assert_eq!(list_waiting(store).await.len(), 200);
        assert_eq!(store.list_due_in_lane(LANE, noon(), 3).await.unwrap().len(), 3, "no more than the limit");
    }

    /// A run with a hold, an expiry or a skip time, or one that the leader assigns, has its own due row: whether it
    /// may be taken depends on the run itself.
    async fn runs_with_conditions_have_their_own_due_rows(store: TestStore) {
        let plain = store.given_job(&in_queue()).await;
        let assigned = store.given_job(&RunOptions::default()).await;
        let forbids = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..in_queue() };
        let forbids = store.given_job(&forbids).await;
        let later = Some(noon() + SignedDuration::from_secs(60));
        for run in [
            NewRun::task(&assigned),
            NewRun::task(&forbids),
            NewRun { expires_at: later, ..NewRun::task(&plain) },
            NewRun { skip_at: later, ..NewRun::task(&plain) },
        ] {
            let before = count_due_rows(store).await;
            store.create_or_find_runs(Writer::Api, &[run.clone(), run.clone(), run]).await.unwrap();
            assert_eq!(count_due_rows(store).await, before + 3);
        }
    }

    /// A claim takes exactly the requested number, in order; the other runs keep waiting.
    async fn a_claim_takes_the_requested_number(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let mut left = given_many(store, &job, 300).await;
        for limit in [1, 3, 64, 65, 100, 63, 1, 1] {
            let (_, claimed) = store.try_claim(LANE, limit).await;
            let expected: Vec<RunId> = left.drain(..limit as usize).collect();
            assert_eq!(ids(&claimed), expected, "a claim of {limit}");
            assert!(claimed.iter().all(|claimed| (claimed.attempt_no, claimed.tries) == (1, 1)));
            assert_eq!(list_waiting(store).await, left);
        }
        assert_eq!(ids(&store.try_claim(LANE, 1_000).await.1), left);
        assert_eq!(list_waiting(store).await, []);
        assert_eq!(count_due_rows(store).await, 0);
    }

    /// The position in the range does not matter: the canceled run is never claimed, the others are.
    async fn one_run_of_a_range_is_canceled(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let mut left = given_many(store, &job, 3 * MAX_RANGE).await;
        for index in [0, 5, MAX_RANGE - 3, MAX_RANGE - 3, MAX_RANGE, 2 * MAX_RANGE, left.len() - 8] {
            let run = left.remove(index);
            assert!(store.cancel(Writer::Api, run, "test", None).await.unwrap().is_applied());
            assert_eq!(store.read_run(run).await.state, RunState::Canceled);
            assert_eq!(list_waiting(store).await, left, "without number {index}");
            assert!(!store.cancel(Writer::Api, run, "test", None).await.unwrap().is_applied());
        }
        while let Some(&next) = left.first() {
            let (_, claimed) = store.try_claim(LANE, 50).await;
            let expected: Vec<RunId> = left.drain(..left.len().min(50)).collect();
            assert_eq!(ids(&claimed), expected, "from {next} on");
        }
    }

    async fn all_runs_of_a_range_are_canceled_one_by_one(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 70).await;
        for step in [3, 2, 1] {
            for run in runs.iter().step_by(step) {
                let _ = store.cancel(Writer::Api, *run, "test", None).await.unwrap();
            }
        }
        for run in &runs {
            assert_eq!(store.read_run(*run).await.state, RunState::Canceled);
        }
        assert_eq!(count_due_rows(store).await, 0);
    }

    /// Single runs, id ranges and runs that wait for a hold share a lane: a claim always takes the first ones that
    /// may start.
    async fn ranges_share_a_lane_with_single_runs(store: TestStore) {
        let plain = store.given_job(&in_queue()).await;
        let forbids = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..in_queue() };
        let forbids = store.given_job(&forbids).await;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(given_many(store, &forbids, 2).await);
            all.extend(given_many(store, &plain, 100).await);
            all.extend(given_many(store, &plain, 1).await);
        }
        let mut claimed = Vec::new();
        for limit in (1..40).cycle() {
            let (_, chunk) = store.try_claim(LANE, limit).await;
            if chunk.is_empty() {
                break;
            }
            assert!(chunk.len() <= limit as usize);
            claimed.extend(ids(&chunk));
        }
        claimed.sort_unstable();
        let left = list_waiting(store).await;
        assert_eq!(left.len(), 5, "one of the six `forbid` runs is running");
        all.retain(|run| !left.contains(run));
        assert_eq!(claimed, all);
    }

    /// However the runs were submitted, and wherever a page ends: each is listed once, newest first.
    async fn each_run_of_a_range_is_listed(store: TestStore) {
        let (job, other) = (store.given_job(&in_queue()).await, store.given_job(&in_queue()).await);
        let mut all = given_many(store, &job, 100).await;
        let others = given_many(store, &other, 70).await;
        all.extend(&others);
        all.extend(given_many(store, &job, 1).await);
        store.set_time(1);
        all.extend(given_many(store, &job, 65).await);
        all.reverse();
        let of_job = RunFilter { job: Some(job.job), ..RunFilter::default() };
        let mine: Vec<RunId> = all.iter().copied().filter(|run| !others.contains(run)).collect();
        let pending = RunFilter { states: vec![RunState::Pending], ..RunFilter::default() };
        for limit in [1, 7, 64, 500] {
            assert_eq!(list_all_runs(store, &pending, limit).await, all, "by {limit}");
            assert_eq!(list_all_runs(store, &RunFilter::default(), limit).await, all, "by {limit}");
            assert_eq!(list_all_runs(store, &of_job, limit).await, mine, "by {limit}");
        }
    }

    /// Retention deletes some runs of id ranges; the others are still listed.
    async fn remaining_runs_of_pruned_ranges_are_listed(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 3 * MAX_RANGE).await;
        let (token, claimed) = store.try_claim(LANE, 3 * MAX_RANGE as u32).await;
        assert_eq!(ids(&claimed), runs);
        // All runs of the second range are deleted, and most of the others, among them the first run of the first range.
        let stay = [1, 5, MAX_RANGE - 1, 2 * MAX_RANGE, 3 * MAX_RANGE - 1].map(|place| runs[place]);
        for run in runs.iter().filter(|run| !stay.contains(run)) {
            assert!(store.finish_run(token, *run, &AttemptResult::default()).await.unwrap().is_applied());
        }
        store.set_time(3 * DAY);
        let pruned = store.prune_runs(AGE, PrunePosition::default(), 1_000).await.unwrap();
        assert_eq!(pruned.deleted, (3 * MAX_RANGE - stay.len()) as u64);
        let mut expected = stay.to_vec();
        expected.reverse();
        let of_job = RunFilter { job: Some(job.job), ..RunFilter::default() };
        assert_eq!(list_all_runs(store, &RunFilter::default(), 2).await, expected);
        assert_eq!(list_all_runs(store, &of_job, 2).await, expected);
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
    }

    /// Contiguous ids or not, one job or several, reported together or not: each run is counted once, with its
    /// waiting and running time.
    async fn each_run_is_counted_once_in_the_statistics(store: TestStore) {
        let other_options = RunOptions { lane: "other", ..RunOptions::default() };
        let (job, second) = (store.given_job(&in_queue()).await, store.given_job(&in_queue()).await);
        let other = store.given_job(&other_options).await;
        let mut expected = [0; 3];
        let ended = given_many(store, &job, 20).await;
        assert_eq!(claim_and_report(store, 0, &[20], &mut expected).await, ended);
        assert_eq!(read_statistics(store).await, expected, "all in one report");
        store.set_time(10);
        let mut ended = given_many(store, &job, 10).await;
        ended.extend(given_many(store, &second, 10).await);
        assert_eq!(claim_and_report(store, 10, &[20], &mut expected).await, ended);
        assert_eq!(read_statistics(store).await, expected, "runs of two jobs");
        store.set_time(20);
        let ended = given_many(store, &job, 30).await;
        assert_eq!(claim_and_report(store, 20, &[9, 1, 20], &mut expected).await, ended);
        assert_eq!(read_statistics(store).await, expected, "in several reports");
        store.set_time(30);
        let mut ended = Vec::new();
        for _ in 0..20 {
            ended.extend(given_many(store, &job, 1).await);
            given_many(store, &other, 1).await;
        }
        assert_eq!(claim_and_report(store, 30, &[20], &mut expected).await, ended);
        assert_eq!(read_statistics(store).await, expected, "with ids of other runs in between");
        // The run with the highest id has waited longest.
        let planned = |ago: i64| Some(noon() + SignedDuration::from_secs(40 - ago));
        let new = |ago: i64| NewRun { scheduled_for: planned(ago), ..NewRun::task(&job) };
        store.set_time(40);
        let created = store.create_or_find_runs(Writer::Api, &(0..20).map(new).collect::<Vec<_>>()).await.unwrap();
        let mut ended: Vec<RunId> = created.iter().map(|created| created.run).rev().collect();
        let late = ended.split_off(15);
        assert_eq!(claim_and_report(store, 40, &[15], &mut expected).await, ended);
        assert_eq!(list_waiting(store).await, late);
        assert_eq!(claim_and_report(store, 50, &[5], &mut expected).await, late);
        assert_eq!(read_statistics(store).await, expected, "in reverse order of the ids");
        assert_eq!(count_due_rows(store).await, 20, "the runs of the other lane still wait");
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
    }

    /// A duplicate report in a batch must not be counted as a report of the next run id.
    async fn a_duplicate_report_ends_no_other_run(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 12).await;
        let (token, claimed) = store.try_claim(LANE, 12).await;
        assert_eq!(ids(&claimed), runs);
        let outcomes: Vec<(RunId, AttemptResult)> =
            [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|place| (runs[place], AttemptResult::default())).into();
        let ended = store.finish_runs(token, &outcomes).await.unwrap();
        assert!(ended.iter().all(Outcome::is_applied));
        for (place, run) in runs.iter().enumerate() {
            let expected = if place == 1 { RunState::Running } else { RunState::Succeeded };
            assert_eq!(store.read_run(*run).await.state, expected, "number {place}");
        }
        assert!(store.finish_run(token, runs[1], &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(read_statistics(store).await[0], 12);
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
    }

    /// A claim that is repeated after a lost response takes no more runs.
    async fn a_repeated_claim_takes_nothing(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 100).await;
        let (token, claimed) = store.try_claim(LANE, 10).await;
        assert_eq!(ids(&claimed), runs[..10]);
        let again = ClaimRequest { worker: store.worker, token, lane: LANE, max_runs: 10, lease_ttl: TTL, after: None };
        assert_eq!(store.claim(&again).await.unwrap(), ClaimResult::AlreadyClaimed);
        assert_eq!(list_waiting(store).await, runs[10..]);
    }

    /// The repeated claim is recognised also for a worker that is draining.
    async fn a_repeated_claim_while_draining_is_recognised(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 100).await;
        let (token, _) = store.try_claim(LANE, 10).await;
        store.drain_worker("test", store.worker).await.unwrap();
        let again = ClaimRequest { worker: store.worker, token, lane: LANE, max_runs: 10, lease_ttl: TTL, after: None };
        assert_eq!(store.claim(&again).await.unwrap(), ClaimResult::AlreadyClaimed);
        let anew = ClaimRequest { token: store.new_token(), ..again };
        assert_eq!(store.claim(&anew).await.unwrap(), ClaimResult::Runs(Vec::new()));
    }

    /// A claim over many small id ranges gets the requested number of runs, in order.
    async fn many_small_ranges_are_claimed_together(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let mut runs = Vec::new();
        for count in [2, 1, 2, 8, 1, 1, 3].repeat(10) {
            runs.extend(given_many(store, &job, count).await);
        }
        for chunk in runs.chunks(50) {
            assert_eq!(ids(&store.try_claim(LANE, 50).await.1), chunk);
        }
    }

    /// The doctor finds a due row whose range contains a missing run (only manual SQL can cause that). The row does
    /// not block the lane, except on MySQL, where no run behind it is claimed until it is repaired.
    async fn runs_beside_a_missing_run_are_claimed(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 5).await;
        store.skip_doctor();
        let unguarded = match store.dialect() {
            Dialect::Postgres => "alter table tasuki_run disable trigger all",
            Dialect::Sqlite | Dialect::MySql => "drop trigger tasuki_run_legal_delete",
        };
        store.execute_script(unguarded).await.unwrap();
        store.execute_script(&format!("delete from tasuki_run where id = {}", runs[2])).await.unwrap();
        let findings = store.doctor_findings().await;
        assert!(findings.iter().any(|finding| finding.contains("a run in the due table does not wait")), "{findings:?}");
        if store.dialect() != Dialect::MySql {
            let claimed = ids(&store.try_claim(LANE, 50).await.1);
            assert_eq!(claimed, [runs[0], runs[1], runs[3], runs[4]]);
        }
    }

    /// The doctor finds each kind of error in the due row of an id range.
    async fn the_doctor_finds_errors_of_an_id_range(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 8).await;
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        store.skip_doctor();
        let assert_finding = async |sql: &str, found: &str| {
            store.execute_script(sql).await.unwrap();
            let findings = store.doctor_findings().await;
            assert!(findings.iter().any(|finding| finding.contains(found)), "{sql}: {findings:?}");
        };
        assert_finding("update tasuki_due set extra_runs = 6", "a waiting run is not in the due table").await;
        assert_finding("update tasuki_due set extra_runs = 8", "a run in the due table does not wait").await;
        assert_finding("update tasuki_due set extra_runs = 7, due_at = due_at + 1", "waits in another lane").await;
        store.execute_script("update tasuki_due set due_at = due_at - 1").await.unwrap();
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        let twice = format!(
            "insert into tasuki_due (lane, due_at, run_id, exclusive) select lane, due_at, {}, 0 from tasuki_due",
            runs[3]
        );
        assert_finding(&twice, "a waiting run is in the due table twice").await;
        if store.dialect() == Dialect::Postgres {
            let wrong_length = format!("update tasuki_run set extra_runs = 2 where id = {}", runs[0]);
            assert_finding(&wrong_length, "a run is missing from the run lists").await;
        }
    }
}

/// Sixteen tasks claim and cancel at the same time: each run is taken by exactly one of them, and none is lost.
fn claim_and_cancel_concurrently(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 16, |store| async move {
        let job = store.given_job(&in_queue()).await;
        let mut runs = Vec::new();
        for _ in 0..4 {
            runs.extend(given_many(&store, &job, 200).await);
        }
        let mut tasks = Vec::new();
        for task in 0..8_usize {
            let claimer = Arc::clone(&store);
            tasks.push(tokio::spawn(async move {
                let mut claimed = Vec::new();
                for round in 0_u128.. {
                    let token = LeaseToken::from_random((task as u128 + 1) << 100 | round);
                    let limit = [1, 5, 17, 70][(task + round as usize) % 4];
                    let (worker, lane, lease_ttl) = (claimer.worker, LANE, TTL);
                    let batch = ClaimRequest {
                        worker,
                        token,
                        lane,
                        max_runs: limit,
                        lease_ttl,
                        after: None,
                    };
                    match claimer.claim(&batch).await {
                        Ok(ClaimResult::Runs(chunk)) if chunk.is_empty() => {
                            if list_waiting(&claimer).await.is_empty() {
                                break;
                            }
                        }
                        Ok(ClaimResult::Runs(chunk)) => {
                            assert!(chunk.len() <= limit as usize);
                            claimed.extend(ids(&chunk));
                        }
                        Ok(ClaimResult::AlreadyClaimed) => {}
                        Err(error) => assert!(error.is_contention(), "{error}"),
                    }
                }
                claimed
            }));
            let (canceler, mine) = (Arc::clone(&store), runs.clone());
            tasks.push(tokio::spawn(async move {
                let mut canceled = Vec::new();
                for run in mine.into_iter().skip(task * 3).step_by(24) {
                    loop {
                        match canceler.cancel(Writer::Api, run, "test", None).await {
                            Ok(outcome) => {
                                let state = canceler.read_run(run).await.state;
                                assert_ne!(
                                    state,
                                    RunState::Pending,
                                    "the cancel was not applied, so the run must not wait"
                                );
                                if outcome.is_applied() && state == RunState::Canceled {
                                    canceled.push(run);
                                }
                                break;
                            }
                            Err(error) => assert!(error.is_contention(), "{error}"),
                        }
                    }
                }
                canceled
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all.sort_unstable();
        assert_eq!(all, runs, "each run was taken once");
    });
}

#[test]
fn concurrent_claims_and_cancels_take_each_run_once_postgres() {
    claim_and_cancel_concurrently(Dialect::Postgres);
}

#[test]
fn concurrent_claims_and_cancels_take_each_run_once_mysql() {
    claim_and_cancel_concurrently(Dialect::MySql);
}
