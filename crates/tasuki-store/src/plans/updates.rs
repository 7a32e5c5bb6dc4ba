//! A transition must not touch an index: PostgreSQL then writes the new version of a run beside the
//! old one (HOT), and none of its indexes hears of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, RunId, WorkerId};

use super::given::Place;
use super::plan::one;
use crate::{
    Writer, ClaimBatch, ClaimResult, AttemptResult, JobCreated, JobDefinition, JobKind, JobSpec, NewRun,
    NewWorker, Store, Trigger,
};

const RUNS: usize = 6_000;
const BATCH: u32 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_updated_in_place() {
    let mut place = Place::new().await;
    let store = Arc::new(Store::open(&place.url, 4).await.unwrap());
    enqueue(&store).await;
    let drains = [1, 2].map(|number| tokio::spawn(drain(Arc::clone(&store), number)));
    let mut ended = 0;
    for drain in drains {
        ended += drain.await.unwrap();
    }
    assert_eq!(ended, RUNS);
    // A session tells its counts when it ends at the latest, and the one that asks may have read older
    // ones.
    store.close().await;
    let asked = Instant::now();
    let (updates, in_place) = loop {
        let told = one(
            &mut place.session,
            "select n_tup_upd || ' ' || n_tup_hot_upd from pg_stat_user_tables where relname = 'tasuki_run'",
        )
        .await;
        let (updates, in_place) = told.split_once(' ').unwrap();
        let told: (usize, usize) = (updates.parse().unwrap(), in_place.parse().unwrap());
        if told.0 == 2 * RUNS {
            break told;
        }
        assert!(asked.elapsed() < Duration::from_secs(20), "two updates for each run: {told:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    place.remove().await;
    assert!(in_place * 10 >= updates * 9, "{in_place} of {updates} updates were in place");
}

async fn enqueue(store: &Store) {
    let spec = JobSpec {
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
    let JobCreated::Made(job) = store.create_job("test", &name, &definition, None).await.unwrap()
    else {
        panic!("a database of its own has no other job");
    };
    let args = Some(format!("{{\"text\":\"{}\"}}", "x".repeat(100)));
    let runs = vec![NewRun { args, ..NewRun::task(&job.newest) }; BATCH as usize];
    for _ in 0..RUNS / runs.len() {
        store.create(Writer::Api, &runs).await.unwrap();
    }
}

/// Claims and ends what there is. Returns how many.
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
        let batch = ClaimBatch { worker, token, lane: "bulk", most: BATCH, lease_ttl };
        let ClaimResult::Runs(runs) = store.claim(&batch).await.unwrap() else {
            panic!("the token was used before")
        };
        if runs.is_empty() {
            break;
        }
        let finish = AttemptResult { result: Some("{\"rows\":17}".to_owned()), ..AttemptResult::default() };
        let ends: Vec<(RunId, AttemptResult)> = runs.iter().map(|run| (run.id, finish.clone())).collect();
        let told = store.finish_many(token, &ends).await.unwrap();
        ended += told.iter().filter(|outcome| outcome.is_applied()).count();
    }
    ended
}
