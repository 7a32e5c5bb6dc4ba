//! Tests of queues with their own slots, and of priorities, on whole nodes and on every database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki::node::NodeError;
use tasuki::operator::{AccessRole, Actor, Error, JobDraft};
use tasuki::{Client, Context, JobDeclaration, Priority, TaskError};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{RunId, RunState};
use tokio::sync::Semaphore;

use crate::client::TestDatabase;

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

mod on {
    crate::client::each_database!(
        high_priority_passes_a_long_backlog,
        full_queue_does_not_block_other_queues,
        tasks_wait_for_a_node_that_serves_their_queue,
        queue_and_priority_of_a_task_override_its_job,
    );
}

async fn wait_until(condition: &str, is: impl Fn() -> bool) {
    let waited = async {
        while !is() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    assert!(
        tokio::time::timeout(TIMEOUT, waited).await.is_ok(),
        "the condition did not become true: {condition}"
    );
}

async fn wait_for_success(client: &Client, run: RunId) {
    let ended = client.wait_until_ended(run, TIMEOUT).await.unwrap();
    assert_eq!(ended.info.run.state, RunState::Succeeded);
}

async fn lane_of(client: &Client, run: RunId) -> String {
    client.get_run(run).await.unwrap().run.lane
}

async fn noop((): (), _: Context) -> Result<(), TaskError> {
    Ok(())
}

fn admin() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: AccessRole::Admin }
}

async fn high_priority_passes_a_long_backlog(kind: &str) {
    const MANY: usize = 2_000;
    let base = TestDatabase::new(kind).await;
    let client = base.client().await;
    let (done, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (normal, high) = (Arc::clone(&done), Arc::clone(&found));
    let work = move |(): (), context: Context| {
        let (normal, high) = (Arc::clone(&normal), Arc::clone(&high));
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            match context.run_scope().id() {
                "high" => high.store(normal.load(Ordering::Relaxed), Ordering::Relaxed),
                _ => drop(normal.fetch_add(1, Ordering::Relaxed)),
            }
            Ok(())
        }
    };
    // This node declares the job and serves no queue yet.
    let closed = client.node_builder("closed").unwrap().handler("work", noop).queue("default", 0);
    let closed = closed.start().await.unwrap();
    for _ in 0..2 {
        let tasks = (0..MANY / 2).map(|_| client.task("work", &()).unwrap());
        client.submit_all(tasks).await.unwrap();
    }
    let node = client.node_builder("open").unwrap().handler("work", work).queue("default", 10);
    let node = node.start().await.unwrap();
    wait_until("some are done", || done.load(Ordering::Relaxed) > 50).await;
    let scope = tasuki_core::RunScope::new("of", "high").unwrap();
    let task = client.task("work", &()).unwrap().priority(Priority::High).scope(scope);
    let before = done.load(Ordering::Relaxed);
    let run = task.submit().await.unwrap().run;
    wait_for_success(&client, run).await;
    let found = found.load(Ordering::Relaxed);
    assert!(
        found < before + MANY / 4,
        "{before} tasks were done before, {found} when the high priority started"
    );
    wait_until("all are done", || done.load(Ordering::Relaxed) == MANY).await;
    node.stop().await;
    closed.stop().await;
    base.check_and_drop(client).await;
}

async fn full_queue_does_not_block_other_queues(kind: &str) {
    let base = TestDatabase::new(kind).await;
    let client = base.client().await;
    let (gate, now, max_running) =
        (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (permits, running, max_seen) =
        (Arc::clone(&gate), Arc::clone(&now), Arc::clone(&max_running));
    let slow = move |(): (), _: Context| {
        let (gate, now, max_running) =
            (Arc::clone(&permits), Arc::clone(&running), Arc::clone(&max_seen));
        async move {
            max_running.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await?.forget();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let node = client
        .node_builder("here")
        .unwrap()
        .handler("slow", slow)
        .handler("quick", noop)
        .job(JobDeclaration::task("slow").queue("slow").unwrap().priority(Priority::Highest))
        .queue("slow", 2)
        .start()
        .await
        .unwrap();
    let slow = (0..8).map(|_| client.task("slow", &()).unwrap());
    let slow = client.submit_all(slow).await.unwrap();
    wait_until("two of them run", || now.load(Ordering::SeqCst) == 2).await;
    for _ in 0..20 {
        let made = client.submit("quick", &()).await.unwrap();
        wait_for_success(&client, made.run).await;
    }
    assert_eq!(now.load(Ordering::SeqCst), 2);
    gate.add_permits(slow.len());
    for made in slow {
        wait_for_success(&client, made.run).await;
    }
    assert_eq!(max_running.load(Ordering::SeqCst), 2, "more concurrent calls than slots");
    node.stop().await;
    base.check_and_drop(client).await;
}

async fn tasks_wait_for_a_node_that_serves_their_queue(kind: &str) {
    let base = TestDatabase::new(kind).await;
    let client = base.client().await;
    let default_node =
        client.node_builder("usual").unwrap().handler("work", noop).start().await.unwrap();
    let report = client.task("work", &()).unwrap().queue("reports").unwrap();
    let report = report.submit().await.unwrap().run;
    for _ in 0..3 {
        let made = client.submit("work", &()).await.unwrap();
        wait_for_success(&client, made.run).await;
    }
    assert_eq!(client.get_run(report).await.unwrap().run.state, RunState::Pending);
    let other = client.node_builder("other").unwrap().handler("work", noop);
    let other = other.queue("reports", 1).queue("default", 0).start().await.unwrap();
    wait_for_success(&client, report).await;
    other.stop().await;
    default_node.stop().await;
    base.check_and_drop(client).await;
}

async fn queue_and_priority_of_a_task_override_its_job(kind: &str) {
    let base = TestDatabase::new(kind).await;
    let client = base.client().await;
    let job = JobDeclaration::task("work").queue("slow").unwrap().priority(Priority::Low);
    let node = client.node_builder("here").unwrap().handler("work", noop).job(job);
    let node = node.queue("slow", 1).queue("urgent", 1).start().await.unwrap();
    let task = || client.task("work", &()).unwrap();
    let plain = task().submit().await.unwrap().run;
    assert_eq!(lane_of(&client, plain).await, "low slow/work");
    let urgent = task().priority(Priority::Highest).submit().await.unwrap().run;
    assert_eq!(lane_of(&client, urgent).await, "highest slow/work");
    let default_queue = task().queue("default").unwrap().priority(Priority::Normal);
    let all = [task().queue("urgent").unwrap(), default_queue, task()];
    let made = client.submit_all(all).await.unwrap();
    for (made, expected_lane) in
        made.iter().zip(["low urgent/work", "function work", "low slow/work"])
    {
        assert_eq!(lane_of(&client, made.run).await, expected_lane);
    }
    for run in [plain, urgent].into_iter().chain(made.iter().map(|made| made.run)) {
        wait_for_success(&client, run).await;
    }

    let command = JobDraft::new(WorkSpec::new(WorkAction::Command(vec!["true".to_owned()])));
    client.operator().create_job(&admin(), "command", &command).await.unwrap();
    let refused = client.task("command", &()).unwrap().priority(Priority::High).submit().await;
    let expected = "expected none: only functions that workers claim have one";
    let message = |error: Error| error.to_string();
    assert!(
        message(refused.unwrap_err()).ends_with(&format!("priority: found \"high\", {expected}"))
    );
    let queued = client.task("command", &()).unwrap().queue("slow").unwrap();
    let refused = client.submit_all([task(), queued]).await.unwrap_err();
    assert!(message(refused).ends_with(&format!("queue: found \"slow\", {expected}")));
    let mut queued = command.clone();
    queued.work.queue = "slow".parse().unwrap();
    let refused = client.operator().create_job(&admin(), "queued", &queued).await.unwrap_err();
    assert!(message(refused).ends_with(&format!("queue: found \"slow\", {expected}")));
    node.stop().await;
    base.check_and_drop(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_queue_names_are_refused() {
    let base = TestDatabase::new("sqlite").await;
    let client = base.client().await;
    assert!(JobDeclaration::task("work").queue("a/b").is_err());
    assert!(client.task("work", &()).unwrap().queue("").is_err());
    let started =
        client.node_builder("here").unwrap().handler("work", noop).queue(" x", 1).start().await;
    let Err(NodeError::Queue(refused)) = started else { panic!("the node started") };
    assert_eq!(refused.field, "queue");
    base.check_and_drop(client).await;
}

/// A task that is submitted in a transaction of the application has its own queue and priority, too.
#[tokio::test(flavor = "multi_thread")]
async fn task_in_a_transaction_has_its_queue_and_priority() {
    use sqlx::Connection as _;
    let base = TestDatabase::new("sqlite").await;
    let client = base.client().await;
    let node = client.node_builder("here").unwrap().handler("work", noop).start().await.unwrap();
    let mut theirs = sqlx::SqliteConnection::connect(&base.url).await.unwrap();
    let mut transaction = theirs.begin().await.unwrap();
    let task = client.task("work", &()).unwrap().queue("slow").unwrap().priority(Priority::High);
    let made = task.submit_in_transaction(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    theirs.close().await.unwrap();
    assert_eq!(lane_of(&client, made.run).await, "high slow/work");
    client.cancel(made.run, None).await.unwrap();
    node.stop().await;
    base.check_and_drop(client).await;
}
