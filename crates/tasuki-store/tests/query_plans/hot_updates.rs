//! A state transition must not change an indexed column: PostgreSQL can then write the new version of the row on the
//! same page (HOT update) and need not change any index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, WorkerId};

use super::explain::query_text;
use super::fixture::TestDatabase;
use crate::{
    AttemptReport, AttemptResult, ClaimRequest, ClaimResult, JobCreateResult, JobDefinition,
    JobKind, JobVersionSpec, NewRun, NewWorker, Store, Trigger, Writer,
};

const RUNS: usize = 6_000;
const BATCH: u32 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn transitions_are_hot_updates() {
    let mut database = TestDatabase::new().await;
    let store = Arc::new(Store::open(&database.url, 4).await.unwrap());
    enqueue(&store).await;
    let drains = [1, 2].map(|number| tokio::spawn(drain(Arc::clone(&store), number)));
    let mut ended = 0;
    for drain in drains {
        ended += drain.await.unwrap();
    }
    assert_eq!(ended, RUNS);
    // A connection publishes its counters when it ends at the latest, and this connection may see older values for a
    // while.
    store.close().await;
    let started = Instant::now();
    let (updates, in_place) = loop {
        let counters = query_text(
            &mut database.connection,
            "select n_tup_upd || ' ' || n_tup_hot_upd from pg_stat_user_tables where relname = 'tasuki_run'",
        )
        .await;
        let (updates, in_place) = counters.split_once(' ').unwrap();
        let counts: (usize, usize) = (updates.parse().unwrap(), in_place.parse().unwrap());
        if counts.0 == 2 * RUNS {
            break counts;
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "expected two updates for each run: {counts:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    database.remove().await;
    assert!(in_place * 10 >= updates * 9, "{in_place} of {updates} updates were in place");
}

async fn enqueue(store: &Store) {
    let spec = JobVersionSpec {
        kind: JobKind::Function,
        spec: "{}".to_owned(),
        lane: "bulk".to_owned(),
        concurrency: ConcurrencyPolicy::Allow,
        max_attempts: 3,
        max_releases: 3,
        backoff: Duration::from_secs(30),
        backoff_cap: Duration::from_secs(900),
        jitter_percent: 0,
        retry_lost: true,
        labels: Default::default(),
    };
    let name = "bulk".parse().unwrap();
    let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec };
    let JobCreateResult::Created(job) =
        store.create_job("test", &name, &definition, None).await.unwrap()
    else {
        panic!("the new database has no other job");
    };
    let args = Some(format!("{{\"text\":\"{}\"}}", "x".repeat(100)));
    let runs = vec![NewRun { args, ..NewRun::task(&job.newest) }; BATCH as usize];
    for _ in 0..RUNS / runs.len() {
        store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
    }
}

/// Claims and finishes runs until none is left. Returns their number.
async fn drain(store: Arc<Store>, number: u128) -> usize {
    let worker = WorkerId::from_random(number);
    let new = NewWorker {
        id: worker,
        node: "node".parse().unwrap(),
        pid: None,
        address: None,
        labels: None,
        slots: BATCH,
        function_slots: BATCH,
    };
    store.register_worker(&new).await.unwrap();
    let mut ended = 0;
    for round in 0.. {
        let token = LeaseToken::from_random((number << 96) + (round << 80));
        let lease_ttl = Duration::from_secs(30);
        let batch =
            ClaimRequest { worker, token, lane: "bulk", max_runs: BATCH, lease_ttl, after: None };
        let ClaimResult::Runs(runs) = store.claim(&batch).await.unwrap() else {
            panic!("the token was used before")
        };
        if runs.is_empty() {
            break;
        }
        let result =
            AttemptResult { result: Some("{\"rows\":17}".to_owned()), ..AttemptResult::default() };
        let reports: Vec<AttemptReport> =
            runs.iter().map(|run| AttemptReport::new(token, run.id, result.clone())).collect();
        let outcomes = store.finish(&reports, &[token]).await.unwrap();
        ended += outcomes.iter().filter(|outcome| outcome.is_applied()).count();
    }
    ended
}
