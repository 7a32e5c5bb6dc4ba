//! Tests of [`TestNode`], used as in an embedding program.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use tasuki::testing::TestNode;
use tasuki::{Context, JobDeclaration, ProviderError, ScopeProvider, TaskError};
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::{RunScope, RunState};

async fn work((): (), context: Context) -> Result<(), TaskError> {
    match (context.job_name(), context.attempt_no()) {
        ("shaky", 1) => Err("not yet")?,
        _ => Ok(()),
    }
}

#[tokio::test]
async fn advancing_days_runs_every_slot() {
    let daily = JobDeclaration::cron("daily", "0 9 * * *", "Asia/Tokyo").unwrap().handler("work");
    let often = JobDeclaration::every("often", "6h").unwrap().handler("work");
    let often = often.misfire(MisfirePolicy::LatestOnly);
    let shaky = JobDeclaration::task("shaky").handler("work").max_retries(3);
    let shaky = shaky.backoff(Duration::from_secs(60), Duration::from_secs(600));
    let node = TestNode::starting_at("2026-11-16T12:00:00Z", |node| {
        node.handler("work", work).job(daily).job(often).job(shaky)
    })
    .await;
    let run = node.client().submit("shaky", &()).await.unwrap().run;
    node.run_until_idle().await;
    assert_eq!(node.client().get_run(run).await.unwrap().run.state, RunState::RetryWait);
    node.advance(Duration::from_secs(90)).await;
    let run = node.assert_succeeded(run).await;
    assert_eq!(run.counters.tries, 2);

    node.advance(Duration::from_secs(3 * 86_400)).await;
    let daily = node.list_runs_of_job("daily").await;
    let at: Vec<String> = daily.iter().map(|run| run.scheduled_for.to_string()).collect();
    assert_eq!(at, ["2026-11-17T00:00:00Z", "2026-11-18T00:00:00Z", "2026-11-19T00:00:00Z"]);
    for run in daily.iter().chain(&node.list_runs_of_job("often").await) {
        assert_eq!(run.state, RunState::Succeeded);
        let late = run.started_at.unwrap().duration_since(run.scheduled_for);
        assert!(late < SignedDuration::from_millis(1), "{late:?}");
    }
    assert_eq!(node.list_runs_of_job("often").await.len(), 12);
    node.check_and_close().await;
}

#[tokio::test]
#[should_panic(expected = "is EXPIRED: no use")]
async fn assert_succeeded_names_the_failure() {
    async fn fails((): (), _: Context) -> Result<(), TaskError> {
        Err("no use")?
    }
    let job = JobDeclaration::task("fails").max_retries(1);
    let node =
        TestNode::starting_at("2026-11-16T12:00:00Z", |node| node.handler("fails", fails).job(job))
            .await;
    let run = node.client().submit("fails", &()).await.unwrap().run;
    node.advance(Duration::from_secs(3_600)).await;
    node.assert_succeeded(run).await;
}

/// Scope provider for shops that open and close.
#[derive(Clone, Default)]
struct Shops(Arc<Mutex<Vec<u32>>>);

#[async_trait]
impl ScopeProvider for Shops {
    async fn scopes(&self) -> Result<Vec<RunScope>, ProviderError> {
        let open = self.0.lock().unwrap().clone();
        match open.contains(&13) {
            true => Err("the list of shops is being written".into()),
            false => {
                open.iter().map(|shop| Ok(RunScope::new("shop", &shop.to_string())?)).collect()
            }
        }
    }
}

#[tokio::test]
async fn a_scoped_job_fires_once_per_scope() {
    let shops = Shops::default();
    let hourly = JobDeclaration::every("add up", "1h")
        .unwrap()
        .handler("work")
        .fire_per_scope(shops.clone());
    let node = TestNode::starting_at("2026-11-16T11:59:00Z", |node| {
        node.handler("work", work).job(hourly)
    })
    .await;
    let hour = Duration::from_secs(3_600);
    node.advance(hour).await;
    assert_eq!(node.list_runs_of_job("add up").await.len(), 0, "there is no shop");
    for (open, expected) in [
        (vec![1, 2], "1 2"),
        (vec![2, 3, 4], "2 3 4"),
        (vec![13], "2 3 4"),
        (vec![4], "4"),
        (vec![], ""),
    ] {
        let before = node.list_runs_of_job("add up").await.len();
        *shops.0.lock().unwrap() = open;
        node.advance(hour).await;
        let runs = node.list_runs_of_job("add up").await;
        let of: Vec<&str> = runs[before..].iter().map(|run| run.scope.id()).collect();
        assert_eq!(of.join(" "), expected);
        assert!(runs.iter().all(|run| run.state == RunState::Succeeded));
    }
    node.check_and_close().await;
}
