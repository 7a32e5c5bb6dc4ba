//! Tasks that were submitted together wait together, many in one row: whatever happens to one of them, each of them is where it
//! would be if it had a row of its own.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, RunId, RunState};
use tasuki_store::{
    Writer, ClaimBatch, ClaimResult, Dialect, AttemptResult, JobVersion, NewRun, Outcome, PrunePlace,
    RunCursor, RunFilter, Taken,
};

use crate::given::{self, Like, TTL, TestStore, contract, noon};

const LANE: &str = "q";
/// As many as wait in one row at most.
const ROW: usize = 64;
const DAY: i64 = 86_400;
const AGE: Duration = Duration::from_secs(DAY as u64);

fn like_queue() -> Like {
    Like { lane: LANE, ..Like::default() }
}

async fn given_many(store: &TestStore, job: &JobVersion, count: usize) -> Vec<RunId> {
    let runs: Vec<NewRun<'_>> = (0..count).map(|_| NewRun::task(job)).collect();
    store.create(Writer::Api, &runs).await.unwrap().into_iter().map(|made| made.run).collect()
}

/// What waits, in its order.
async fn waiting(store: &TestStore) -> Vec<RunId> {
    let due = store.due(LANE, store.clock(), 10_000).await.unwrap();
    due.into_iter().map(|wanted| wanted.run).collect()
}

fn ids(taken: &[Taken]) -> Vec<RunId> {
    taken.iter().map(|taken| taken.id).collect()
}

/// A list, page by page.
async fn listed(store: &TestStore, filter: &RunFilter, most: u32) -> Vec<RunId> {
    let (mut listed, mut from) = (Vec::new(), None::<RunCursor>);
    loop {
        let page = store.runs(filter, from.as_ref(), most).await.unwrap();
        listed.extend(page.runs.iter().map(|run| run.id));
        from = page.next;
        if from.is_none() {
            return listed;
        }
    }
}

/// How many rows are in due.
async fn rows(store: &TestStore) -> usize {
    number(store, "select count(*) from tasuki_due").await as usize
}

/// A number that the database tells.
async fn number(store: &TestStore, look: &'static str) -> i64 {
    match store.dialect() {
        Dialect::Sqlite => {
            let pool = sqlx::SqlitePool::connect(&store.url).await.unwrap();
            sqlx::query_scalar(look).fetch_one(&pool).await.unwrap()
        }
        Dialect::Postgres => {
            let pool = sqlx::PgPool::connect(&store.url).await.unwrap();
            let count = sqlx::query_scalar(look).fetch_one(&pool).await.unwrap();
            pool.close().await;
            count
        }
        Dialect::MySql => {
            let pool = sqlx::MySqlPool::connect(&store.url).await.unwrap();
            let count = sqlx::query_scalar(look).fetch_one(&pool).await.unwrap();
            pool.close().await;
            count
        }
    }
}

/// What was counted: how many have ended, how long they waited, and how long they ran.
async fn counted(store: &TestStore) -> [i64; 3] {
    let look = match store.dialect() {
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
    [number(store, look[0]).await, number(store, look[1]).await, number(store, look[2]).await]
}

/// Claims so many two seconds later, ends them three seconds later, so many at a time, and adds up what is to be counted.
async fn given_ended(
    store: &TestStore,
    at: i64,
    parts: &[usize],
    expected: &mut [i64; 3],
) -> Vec<RunId> {
    store.at(at + 2);
    let most: usize = parts.iter().sum();
    let (token, taken) = store.try_claim(LANE, most as u32).await;
    assert_eq!(taken.len(), most);
    store.at(at + 5);
    let mut left: Vec<(RunId, AttemptResult)> =
        taken.iter().map(|taken| (taken.id, AttemptResult::default())).collect();
    left.sort_by_key(|(run, _)| *run);
    for part in parts {
        let some: Vec<_> = left.drain(..*part).collect();
        let told = store.finish_many(token, &some).await.unwrap();
        assert!(told.iter().all(Outcome::is_applied));
    }
    for taken in &taken {
        let run = store.run_now(taken.id).await;
        let (started, finished) = (run.started_at.unwrap(), run.finished_at.unwrap());
        let waited = started.duration_since(taken.due_at).as_micros() as i64;
        let ran = finished.duration_since(started).as_micros() as i64;
        assert_eq!((run.state, ran), (RunState::Succeeded, 3_000_000));
        for (sum, more) in expected.iter_mut().zip([1, waited, ran]) {
            *sum += more;
        }
    }
    ids(&taken)
}

contract! {
    async fn those_that_come_together_wait_in_few_rows(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 200).await;
        assert!(rows(store).await <= 8, "they are {}", rows(store).await);
        assert_eq!(waiting(store).await, runs);
        assert_eq!(waiting(store).await.len(), 200);
        assert_eq!(store.due(LANE, noon(), 3).await.unwrap().len(), 3, "no more than was asked for");
    }

    /// A hold, an expiry, an instant to skip it at, or a leader that is to choose: each needs a look at the run itself.
    async fn those_that_need_a_closer_look_wait_by_themselves(store: TestStore) {
        let plain = store.given_job(&like_queue()).await;
        let assigned = store.given_job(&Like::default()).await;
        let forbids = Like { concurrency: ConcurrencyPolicy::Forbid, ..like_queue() };
        let forbids = store.given_job(&forbids).await;
        let later = Some(noon() + SignedDuration::from_secs(60));
        for run in [
            NewRun::task(&assigned),
            NewRun::task(&forbids),
            NewRun { expires_at: later, ..NewRun::task(&plain) },
            NewRun { skip_at: later, ..NewRun::task(&plain) },
        ] {
            let before = rows(store).await;
            store.create(Writer::Api, &[run.clone(), run.clone(), run]).await.unwrap();
            assert_eq!(rows(store).await, before + 3);
        }
    }

    /// However many are asked for, just so many come, the first first; and the others wait on.
    async fn a_claim_takes_as_many_as_it_asks_for(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let mut left = given_many(store, &job, 300).await;
        for most in [1, 3, 64, 65, 100, 63, 1, 1] {
            let (_, taken) = store.try_claim(LANE, most).await;
            let expected: Vec<RunId> = left.drain(..most as usize).collect();
            assert_eq!(ids(&taken), expected, "{most} of them");
            assert!(taken.iter().all(|taken| (taken.attempt_no, taken.tries) == (1, 1)));
            assert_eq!(waiting(store).await, left);
        }
        assert_eq!(ids(&store.try_claim(LANE, 1_000).await.1), left);
        assert_eq!(waiting(store).await, []);
        assert_eq!(rows(store).await, 0);
    }

    /// Wherever it stands among them: the others are claimed, and it never is.
    async fn one_of_them_is_canceled(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let mut left = given_many(store, &job, 3 * ROW).await;
        for index in [0, 5, ROW - 3, ROW - 3, ROW, 2 * ROW, left.len() - 8] {
            let run = left.remove(index);
            assert!(store.cancel(Writer::Api, run, "test", None).await.unwrap().is_applied());
            assert_eq!(store.run_now(run).await.state, RunState::Canceled);
            assert_eq!(waiting(store).await, left, "without number {index}");
            assert!(!store.cancel(Writer::Api, run, "test", None).await.unwrap().is_applied());
        }
        while let Some(&next) = left.first() {
            let (_, taken) = store.try_claim(LANE, 50).await;
            let expected: Vec<RunId> = left.drain(..left.len().min(50)).collect();
            assert_eq!(ids(&taken), expected, "from {next} on");
        }
    }

    async fn all_of_them_are_canceled_one_by_one(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 70).await;
        for step in [3, 2, 1] {
            for run in runs.iter().step_by(step) {
                let _ = store.cancel(Writer::Api, *run, "test", None).await.unwrap();
            }
        }
        for run in &runs {
            assert_eq!(store.run_now(*run).await.state, RunState::Canceled);
        }
        assert_eq!(rows(store).await, 0);
    }

    /// Single ones, stretches and what must wait for another share a lane: the first that can go always does.
    async fn they_share_a_lane_with_others(store: TestStore) {
        let plain = store.given_job(&like_queue()).await;
        let forbids = Like { concurrency: ConcurrencyPolicy::Forbid, ..like_queue() };
        let forbids = store.given_job(&forbids).await;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.extend(given_many(store, &forbids, 2).await);
            all.extend(given_many(store, &plain, 100).await);
            all.extend(given_many(store, &plain, 1).await);
        }
        let mut taken = Vec::new();
        for most in (1..40).cycle() {
            let (_, some) = store.try_claim(LANE, most).await;
            if some.is_empty() {
                break;
            }
            assert!(some.len() <= most as usize);
            taken.extend(ids(&some));
        }
        taken.sort_unstable();
        let left = waiting(store).await;
        assert_eq!(left.len(), 5, "one of the six that forbid each other runs");
        all.retain(|run| !left.contains(run));
        assert_eq!(taken, all);
    }

    /// However they came, and wherever a page ends: each is named once, the newest first.
    async fn lists_name_each(store: TestStore) {
        let (job, other) = (store.given_job(&like_queue()).await, store.given_job(&like_queue()).await);
        let mut all = given_many(store, &job, 100).await;
        let others = given_many(store, &other, 70).await;
        all.extend(&others);
        all.extend(given_many(store, &job, 1).await);
        store.at(1);
        all.extend(given_many(store, &job, 65).await);
        all.reverse();
        let of_job = RunFilter { job: Some(job.job), ..RunFilter::default() };
        let mine: Vec<RunId> = all.iter().copied().filter(|run| !others.contains(run)).collect();
        let pending = RunFilter { states: vec![RunState::Pending], ..RunFilter::default() };
        for most in [1, 7, 64, 500] {
            assert_eq!(listed(store, &pending, most).await, all, "by {most}");
            assert_eq!(listed(store, &RunFilter::default(), most).await, all, "by {most}");
            assert_eq!(listed(store, &of_job, most).await, mine, "by {most}");
        }
    }

    /// Those that go leave others alone, which are listed as before.
    async fn what_is_left_of_some_that_came_together_is_listed(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 3 * ROW).await;
        let (token, taken) = store.try_claim(LANE, 3 * ROW as u32).await;
        assert_eq!(ids(&taken), runs);
        // The whole of the second row goes, and of the others all but a few, the first of the first among those that go.
        let stay = [1, 5, ROW - 1, 2 * ROW, 3 * ROW - 1].map(|place| runs[place]);
        for run in runs.iter().filter(|run| !stay.contains(run)) {
            assert!(store.finish(token, *run, &AttemptResult::default()).await.unwrap().is_applied());
        }
        store.at(3 * DAY);
        let pruned = store.prune_runs(AGE, PrunePlace::default(), 1_000).await.unwrap();
        assert_eq!(pruned.deleted, (3 * ROW - stay.len()) as u64);
        let mut expected = stay.to_vec();
        expected.reverse();
        let of_job = RunFilter { job: Some(job.job), ..RunFilter::default() };
        assert_eq!(listed(store, &RunFilter::default(), 2).await, expected);
        assert_eq!(listed(store, &of_job, 2).await, expected);
        assert_eq!(store.findings().await, [] as [String; 0]);
    }

    /// Whether their ids follow one another or not, whether they are of one job, and whether they end together: each is
    /// counted once, with how long it waited and ran.
    async fn all_are_counted_however_they_came_and_went(store: TestStore) {
        let like_other = Like { lane: "other", ..Like::default() };
        let (job, second) = (store.given_job(&like_queue()).await, store.given_job(&like_queue()).await);
        let other = store.given_job(&like_other).await;
        let mut expected = [0; 3];
        let ended = given_many(store, &job, 20).await;
        assert_eq!(given_ended(store, 0, &[20], &mut expected).await, ended);
        assert_eq!(counted(store).await, expected, "all at once");
        store.at(10);
        let mut ended = given_many(store, &job, 10).await;
        ended.extend(given_many(store, &second, 10).await);
        assert_eq!(given_ended(store, 10, &[20], &mut expected).await, ended);
        assert_eq!(counted(store).await, expected, "of two jobs");
        store.at(20);
        let ended = given_many(store, &job, 30).await;
        assert_eq!(given_ended(store, 20, &[9, 1, 20], &mut expected).await, ended);
        assert_eq!(counted(store).await, expected, "in parts");
        store.at(30);
        let mut ended = Vec::new();
        for _ in 0..20 {
            ended.extend(given_many(store, &job, 1).await);
            given_many(store, &other, 1).await;
        }
        assert_eq!(given_ended(store, 30, &[20], &mut expected).await, ended);
        assert_eq!(counted(store).await, expected, "with others in between");
        // Who came last waits longest.
        let planned = |ago: i64| Some(noon() + SignedDuration::from_secs(40 - ago));
        let new = |ago: i64| NewRun { scheduled_for: planned(ago), ..NewRun::task(&job) };
        store.at(40);
        let made = store.create(Writer::Api, &(0..20).map(new).collect::<Vec<_>>()).await.unwrap();
        let mut ended: Vec<RunId> = made.iter().map(|made| made.run).rev().collect();
        let late = ended.split_off(15);
        assert_eq!(given_ended(store, 40, &[15], &mut expected).await, ended);
        assert_eq!(waiting(store).await, late);
        assert_eq!(given_ended(store, 50, &[5], &mut expected).await, late);
        assert_eq!(counted(store).await, expected, "the last first");
        assert_eq!(rows(store).await, 20, "those of the other lane wait");
        assert_eq!(store.findings().await, [] as [String; 0]);
    }

    /// Whoever tells of one twice tells nothing of its neighbour.
    async fn one_that_is_told_twice_ends_no_other(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 12).await;
        let (token, taken) = store.try_claim(LANE, 12).await;
        assert_eq!(ids(&taken), runs);
        let told: Vec<(RunId, AttemptResult)> =
            [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|place| (runs[place], AttemptResult::default())).into();
        let ended = store.finish_many(token, &told).await.unwrap();
        assert!(ended.iter().all(Outcome::is_applied));
        for (place, run) in runs.iter().enumerate() {
            let expected = if place == 1 { RunState::Running } else { RunState::Succeeded };
            assert_eq!(store.run_now(*run).await.state, expected, "number {place}");
        }
        assert!(store.finish(token, runs[1], &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(counted(store).await[0], 12);
        assert_eq!(store.findings().await, [] as [String; 0]);
    }

    /// A claim whose answer was lost is sent again: it takes nothing more.
    async fn a_claim_that_is_sent_again_takes_nothing(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 100).await;
        let (token, taken) = store.try_claim(LANE, 10).await;
        assert_eq!(ids(&taken), runs[..10]);
        let again = ClaimBatch { worker: store.worker, token, lane: LANE, most: 10, lease_ttl: TTL };
        assert_eq!(store.claim(&again).await.unwrap(), ClaimResult::Before);
        assert_eq!(waiting(store).await, runs[10..]);
    }

    /// Also by a worker that may claim no more.
    async fn a_claim_that_is_sent_again_while_draining_was_before(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 100).await;
        let (token, _) = store.try_claim(LANE, 10).await;
        store.drain_worker("test", store.worker).await.unwrap();
        let again = ClaimBatch { worker: store.worker, token, lane: LANE, most: 10, lease_ttl: TTL };
        assert_eq!(store.claim(&again).await.unwrap(), ClaimResult::Before);
        let anew = ClaimBatch { token: store.token(), ..again };
        assert_eq!(store.claim(&anew).await.unwrap(), ClaimResult::Runs(Vec::new()));
    }

    /// However small what came together was, a claim gets what it asks for, in order.
    async fn many_small_stretches_are_claimed_together(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let mut runs = Vec::new();
        for count in [2, 1, 2, 8, 1, 1, 3].repeat(10) {
            runs.extend(given_many(store, &job, count).await);
        }
        for some in runs.chunks(50) {
            assert_eq!(ids(&store.try_claim(LANE, 50).await.1), some);
        }
    }

    /// A row that stands for a run that is gone, which nothing but a hand can do, is found by the doctor. It is in nobody's way,
    /// but for MySQL, where nothing behind it is claimed until it is mended.
    async fn those_beside_one_that_is_gone_are_claimed(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 5).await;
        store.spoil();
        let unguarded = match store.dialect() {
            Dialect::Postgres => "alter table tasuki_run disable trigger all",
            Dialect::Sqlite | Dialect::MySql => "drop trigger tasuki_run_legal_delete",
        };
        store.script(unguarded).await.unwrap();
        store.script(&format!("delete from tasuki_run where id = {}", runs[2])).await.unwrap();
        let findings = store.findings().await;
        assert!(findings.iter().any(|finding| finding.contains("in due that does not wait")), "{findings:?}");
        if store.dialect() != Dialect::MySql {
            let taken = ids(&store.try_claim(LANE, 50).await.1);
            assert_eq!(taken, [runs[0], runs[1], runs[3], runs[4]]);
        }
    }

    /// The doctor sees what is wrong with a row that stands for many.
    async fn the_doctor_sees_what_is_wrong_with_a_stretch(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 8).await;
        assert_eq!(store.findings().await, [] as [String; 0]);
        store.spoil();
        let finds = async |typed: &str, found: &str| {
            store.script(typed).await.unwrap();
            let findings = store.findings().await;
            assert!(findings.iter().any(|finding| finding.contains(found)), "{typed}: {findings:?}");
        };
        finds("update tasuki_due set more = 6", "a run waits but is not in due").await;
        finds("update tasuki_due set more = 8", "a run is in due that does not wait").await;
        finds("update tasuki_due set more = 7, due_at = due_at + 1", "waits elsewhere").await;
        store.script("update tasuki_due set due_at = due_at - 1").await.unwrap();
        assert_eq!(store.findings().await, [] as [String; 0]);
        let twice = format!(
            "insert into tasuki_due (lane, due_at, run_id, exclusive) select lane, due_at, {}, 0 from tasuki_due",
            runs[3]
        );
        finds(&twice, "a run is in due twice").await;
        if store.dialect() == Dialect::Postgres {
            let alone = format!("update tasuki_run set more = 2 where id = {}", runs[0]);
            finds(&alone, "a run stands in no list").await;
        }
    }
}

/// Sixteen that claim and cancel at once, a few at a time: each run has one winner, and none is lost.
fn claims_and_cancels_meet(dialect: Dialect) {
    given::run_in_parallel(dialect, 16, |store| async move {
        let job = store.given_job(&like_queue()).await;
        let mut runs = Vec::new();
        for _ in 0..4 {
            runs.extend(given_many(&store, &job, 200).await);
        }
        let mut tasks = Vec::new();
        for task in 0..8_usize {
            let claimer = Arc::clone(&store);
            tasks.push(tokio::spawn(async move {
                let mut taken = Vec::new();
                for round in 0_u128.. {
                    let token = LeaseToken::from_random((task as u128 + 1) << 100 | round);
                    let most = [1, 5, 17, 70][(task + round as usize) % 4];
                    let (worker, lane, lease_ttl) = (claimer.worker, LANE, TTL);
                    let batch = ClaimBatch { worker, token, lane, most, lease_ttl };
                    match claimer.claim(&batch).await {
                        Ok(ClaimResult::Runs(some)) if some.is_empty() => {
                            if waiting(&claimer).await.is_empty() {
                                break;
                            }
                        }
                        Ok(ClaimResult::Runs(some)) => {
                            assert!(some.len() <= most as usize);
                            taken.extend(ids(&some));
                        }
                        Ok(ClaimResult::Before) => {}
                        Err(error) => assert!(error.is_contention(), "{error}"),
                    }
                }
                taken
            }));
            let (canceler, mine) = (Arc::clone(&store), runs.clone());
            tasks.push(tokio::spawn(async move {
                let mut canceled = Vec::new();
                for run in mine.into_iter().skip(task * 3).step_by(24) {
                    loop {
                        match canceler.cancel(Writer::Api, run, "test", None).await {
                            Ok(outcome) => {
                                let state = canceler.run_now(run).await.state;
                                assert_ne!(state, RunState::Pending, "it waits, and nobody has it");
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
        assert_eq!(all, runs, "each once");
    });
}

#[test]
fn claims_and_cancels_meet_postgres() {
    claims_and_cancels_meet(Dialect::Postgres);
}

#[test]
fn claims_and_cancels_meet_mysql() {
    claims_and_cancels_meet(Dialect::MySql);
}
