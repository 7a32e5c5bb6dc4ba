//! Queues with slots of their own, and priorities, on whole nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tasuki::node::NodeError;
use tasuki::operator::{Actor, Error, JobDraft, Role};
use tasuki::{Client, Context, Job, Priority, TaskError};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{RunId, RunState};
use tokio::sync::Semaphore;

use crate::client::Base;

const ENOUGH: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

mod on {
    crate::client::each_database!(
        a_high_priority_goes_before_a_long_backlog,
        a_full_queue_keeps_no_other_from_running,
        a_node_without_a_queue_leaves_its_tasks_waiting,
        a_task_says_more_than_its_job,
    );
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let waited = async {
        while !is() {
            tokio::time::sleep(LOOK).await;
        }
    };
    assert!(tokio::time::timeout(ENOUGH, waited).await.is_ok(), "never: {what}");
}

async fn succeeded(client: &Client, run: RunId) {
    let ended = client.wait(run, ENOUGH).await.unwrap();
    assert_eq!(ended.now.run.state, RunState::Succeeded);
}

async fn lane(client: &Client, run: RunId) -> String {
    client.run(run).await.unwrap().run.lane
}

async fn nothing((): (), _: Context) -> Result<(), TaskError> {
    Ok(())
}

fn person() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: Role::Admin }
}

async fn a_high_priority_goes_before_a_long_backlog(kind: &str) {
    const MANY: usize = 2_000;
    let base = Base::new(kind).await;
    let client = base.client().await;
    let (done, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (normal, high) = (Arc::clone(&done), Arc::clone(&found));
    let work = move |(): (), context: Context| {
        let (normal, high) = (Arc::clone(&normal), Arc::clone(&high));
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            match context.scope().id() {
                "high" => high.store(normal.load(Ordering::Relaxed), Ordering::Relaxed),
                _ => drop(normal.fetch_add(1, Ordering::Relaxed)),
            }
            Ok(())
        }
    };
    // It has the job, and takes nothing yet.
    let closed = client.node("closed").unwrap().handler("work", nothing).queue("default", 0);
    let closed = closed.start().await.unwrap();
    for _ in 0..2 {
        let tasks = (0..MANY / 2).map(|_| client.task("work", &()).unwrap());
        client.submit_all(tasks).await.unwrap();
    }
    let node = client.node("open").unwrap().handler("work", work).queue("default", 10);
    let node = node.start().await.unwrap();
    until("some are done", || done.load(Ordering::Relaxed) > 50).await;
    let scope = tasuki_core::Scope::new("of", "high").unwrap();
    let task = client.task("work", &()).unwrap().priority(Priority::High).scope(scope);
    let before = done.load(Ordering::Relaxed);
    let run = task.submit().await.unwrap().run;
    succeeded(&client, run).await;
    let found = found.load(Ordering::Relaxed);
    assert!(found < before + MANY / 4, "{before} were done before, {found} when it had its turn");
    until("all are done", || done.load(Ordering::Relaxed) == MANY).await;
    node.stop().await;
    closed.stop().await;
    base.end(client).await;
}

async fn a_full_queue_keeps_no_other_from_running(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let (gate, now, most) =
        (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (passes, running, peak) = (Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
    let slow = move |(): (), _: Context| {
        let (gate, now, most) = (Arc::clone(&passes), Arc::clone(&running), Arc::clone(&peak));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await?.forget();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let node = client
        .node("here")
        .unwrap()
        .handler("slow", slow)
        .handler("quick", nothing)
        .job(Job::task("slow").queue("slow").unwrap().priority(Priority::Highest))
        .queue("slow", 2)
        .start()
        .await
        .unwrap();
    let slow = (0..8).map(|_| client.task("slow", &()).unwrap());
    let slow = client.submit_all(slow).await.unwrap();
    until("two of them run", || now.load(Ordering::SeqCst) == 2).await;
    for _ in 0..20 {
        let made = client.submit("quick", &()).await.unwrap();
        succeeded(&client, made.run).await;
    }
    assert_eq!(now.load(Ordering::SeqCst), 2);
    gate.add_permits(slow.len());
    for made in slow {
        succeeded(&client, made.run).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 2, "never more at once than it has slots");
    node.stop().await;
    base.end(client).await;
}

async fn a_node_without_a_queue_leaves_its_tasks_waiting(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let usual = client.node("usual").unwrap().handler("work", nothing).start().await.unwrap();
    let report = client.task("work", &()).unwrap().queue("reports").unwrap();
    let report = report.submit().await.unwrap().run;
    for _ in 0..3 {
        let made = client.submit("work", &()).await.unwrap();
        succeeded(&client, made.run).await;
    }
    assert_eq!(client.run(report).await.unwrap().run.state, RunState::Pending);
    let other = client.node("other").unwrap().handler("work", nothing);
    let other = other.queue("reports", 1).queue("default", 0).start().await.unwrap();
    succeeded(&client, report).await;
    other.stop().await;
    usual.stop().await;
    base.end(client).await;
}

async fn a_task_says_more_than_its_job(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let job = Job::task("work").queue("slow").unwrap().priority(Priority::Low);
    let node = client.node("here").unwrap().handler("work", nothing).job(job);
    let node = node.queue("slow", 1).queue("urgent", 1).start().await.unwrap();
    let task = || client.task("work", &()).unwrap();
    let plain = task().submit().await.unwrap().run;
    assert_eq!(lane(&client, plain).await, "low slow/work");
    let urgent = task().priority(Priority::Highest).submit().await.unwrap().run;
    assert_eq!(lane(&client, urgent).await, "highest slow/work");
    let usual = task().queue("default").unwrap().priority(Priority::Normal);
    let all = [task().queue("urgent").unwrap(), usual, task()];
    let made = client.submit_all(all).await.unwrap();
    for (made, wanted) in made.iter().zip(["low urgent/work", "function work", "low slow/work"]) {
        assert_eq!(lane(&client, made.run).await, wanted);
    }
    for run in [plain, urgent].into_iter().chain(made.iter().map(|made| made.run)) {
        succeeded(&client, run).await;
    }

    let command = JobDraft::new(Work::new(What::Command(vec!["true".to_owned()])));
    client.operator().create_job(&person(), "command", &command).await.unwrap();
    let refused = client.task("command", &()).unwrap().priority(Priority::High).submit().await;
    let expected = "expected none: only functions that workers claim have one";
    let told = |error: Error| error.to_string();
    assert!(told(refused.unwrap_err()).ends_with(&format!("priority: found \"high\", {expected}")));
    let queued = client.task("command", &()).unwrap().queue("slow").unwrap();
    let refused = client.submit_all([task(), queued]).await.unwrap_err();
    assert!(told(refused).ends_with(&format!("queue: found \"slow\", {expected}")));
    let mut queued = command.clone();
    queued.work.queue = "slow".parse().unwrap();
    let refused = client.operator().create_job(&person(), "queued", &queued).await.unwrap_err();
    assert!(told(refused).ends_with(&format!("queue: found \"slow\", {expected}")));
    node.stop().await;
    base.end(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_name_of_a_queue_is_refused() {
    let base = Base::new("sqlite").await;
    let client = base.client().await;
    assert!(Job::task("work").queue("a/b").is_err());
    assert!(client.task("work", &()).unwrap().queue("").is_err());
    let started =
        client.node("here").unwrap().handler("work", nothing).queue(" x", 1).start().await;
    let Err(NodeError::Queue(refused)) = started else { panic!("it started") };
    assert_eq!(refused.field, "queue");
    base.end(client).await;
}

/// In the application's own transaction, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_in_a_transaction_waits_where_it_says() {
    use sqlx::Connection as _;
    let base = Base::new("sqlite").await;
    let client = base.client().await;
    let node = client.node("here").unwrap().handler("work", nothing).start().await.unwrap();
    let mut theirs = sqlx::SqliteConnection::connect(&base.url).await.unwrap();
    let mut transaction = theirs.begin().await.unwrap();
    let task = client.task("work", &()).unwrap().queue("slow").unwrap().priority(Priority::High);
    let made = task.submit_in(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    theirs.close().await.unwrap();
    assert_eq!(lane(&client, made.run).await, "high slow/work");
    client.cancel(made.run, None).await.unwrap();
    node.stop().await;
    base.end(client).await;
}
