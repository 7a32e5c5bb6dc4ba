//! The test node, as an embedding program uses it.

use std::time::Duration;

use jiff::SignedDuration;
use tasuki::testing::TestNode;
use tasuki::{Context, Job, TaskError};
use tasuki_core::RunState;
use tasuki_core::misfire::Misfire;

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
