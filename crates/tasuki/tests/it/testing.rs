//! The test node, as an embedding program uses it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use tasuki::testing::TestNode;
use tasuki::{Context, Job, ProviderError, ScopeProvider, TaskError};
use tasuki_core::misfire::Misfire;
use tasuki_core::{RunState, Scope};

async fn work((): (), context: Context) -> Result<(), TaskError> {
    match (context.job(), context.attempt_no()) {
        ("shaky", 1) => Err("not yet")?,
        _ => Ok(()),
    }
}

#[tokio::test]
async fn days_pass_in_no_time_and_nothing_is_forgotten() {
    let daily = Job::cron("daily", "0 9 * * *", "Asia/Tokyo").unwrap().handler("work");
    let often = Job::every("often", "6h").unwrap().handler("work");
    let often = often.catch_up(Misfire::LatestOnly);
    let shaky = Job::task("shaky").handler("work").max_retries(3);
    let shaky = shaky.backoff(Duration::from_secs(60), Duration::from_secs(600));
    let node = TestNode::at("2026-11-16T12:00:00Z", |node| {
        node.handler("work", work).job(daily).job(often).job(shaky)
    })
    .await;
    let run = node.client().submit("shaky", &()).await.unwrap().run;
    node.settle().await;
    assert_eq!(node.client().run(run).await.unwrap().run.state, RunState::RetryWait);
    node.pass(Duration::from_secs(90)).await;
    let run = node.succeeded(run).await;
    assert_eq!(run.counters.tries, 2);

    node.pass(Duration::from_secs(3 * 86_400)).await;
    let daily = node.runs_of("daily").await;
    let at: Vec<String> = daily.iter().map(|run| run.scheduled_for.to_string()).collect();
    assert_eq!(at, ["2026-11-17T00:00:00Z", "2026-11-18T00:00:00Z", "2026-11-19T00:00:00Z"]);
    for run in daily.iter().chain(&node.runs_of("often").await) {
        assert_eq!(run.state, RunState::Succeeded);
        let late = run.started_at.unwrap().duration_since(run.scheduled_for);
        assert!(late < SignedDuration::from_millis(1), "{late:?}");
    }
    assert_eq!(node.runs_of("often").await.len(), 12);
    node.finish().await;
}

#[tokio::test]
#[should_panic(expected = "is EXPIRED: no use")]
async fn what_failed_is_told() {
    async fn fails((): (), _: Context) -> Result<(), TaskError> {
        Err("no use")?
    }
    let job = Job::task("fails").max_retries(1);
    let node =
        TestNode::at("2026-11-16T12:00:00Z", |node| node.handler("fails", fails).job(job)).await;
    let run = node.client().submit("fails", &()).await.unwrap().run;
    node.pass(Duration::from_secs(3_600)).await;
    node.succeeded(run).await;
}

/// Shops that open and close.
#[derive(Clone, Default)]
struct Shops(Arc<Mutex<Vec<u32>>>);

#[async_trait]
impl ScopeProvider for Shops {
    async fn scopes(&self) -> Result<Vec<Scope>, ProviderError> {
        let open = self.0.lock().unwrap().clone();
        match open.contains(&13) {
            true => Err("the list of shops is being written".into()),
            false => open.iter().map(|shop| Ok(Scope::new("shop", &shop.to_string())?)).collect(),
        }
    }
}

#[tokio::test]
async fn a_job_fires_for_each_scope_there_is_and_for_nothing_else() {
    let shops = Shops::default();
    let hourly = Job::every("add up", "1h").unwrap().handler("work").scopes(shops.clone());
    let node =
        TestNode::at("2026-11-16T11:59:00Z", |node| node.handler("work", work).job(hourly)).await;
    let hour = Duration::from_secs(3_600);
    node.pass(hour).await;
    assert_eq!(node.runs_of("add up").await.len(), 0, "there is no shop");
    for (open, expected) in [
        (vec![1, 2], "1 2"),
        (vec![2, 3, 4], "2 3 4"),
        (vec![13], "2 3 4"),
        (vec![4], "4"),
        (vec![], ""),
    ] {
        let before = node.runs_of("add up").await.len();
        *shops.0.lock().unwrap() = open;
        node.pass(hour).await;
        let runs = node.runs_of("add up").await;
        let of: Vec<&str> = runs[before..].iter().map(|run| run.scope.id()).collect();
        assert_eq!(of.join(" "), expected);
        assert!(runs.iter().all(|run| run.state == RunState::Succeeded));
    }
    node.finish().await;
}
