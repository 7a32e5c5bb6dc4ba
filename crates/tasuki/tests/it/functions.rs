//! Tests of functions of the embedding program, called by a whole node.

use std::time::Duration;

use serde_json::json;
use tasuki::{HandlerRegistry, TaskError};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{AttemptErrorCode, RunId, RunState};
use tasuki_store::{JobVersionSpec, Trigger, Writer};
use tokio::sync::watch;

use crate::node_fixture::{NodeFixture, spec};

fn function(name: &str) -> WorkSpec {
    WorkSpec::new(WorkAction::Function(name.to_owned()))
}

impl NodeFixture {
    async fn submit_call(&self, name: &str, work: &WorkSpec) -> RunId {
        let job = self.create_task_job(name, work).await;
        self.submit(&job, None).await
    }

    async fn wait_until_call_runs(&self, run: RunId) {
        self.wait_until(&format!("run {run} runs"), async || {
            let run = self.store.find_run(run).await.unwrap().unwrap();
            (run.state == RunState::Running).then_some(())
        })
        .await;
    }

    async fn error_message(&self, run: RunId) -> String {
        let last = self.store.list_executions(run).await.unwrap().pop().unwrap();
        last.error_message.unwrap_or_default()
    }
}

#[derive(serde::Deserialize)]
struct Greeting {
    who: String,
    of: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn function_gets_the_arguments_of_its_run() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("greet", |greeting: Greeting, call| async move {
        call.log(format!("hello {}", greeting.who));
        call.log("日本語\nin two lines\n");
        call.log("");
        Ok(json!({"job": call.job_name(), "attempt": call.attempt_no(), "of": greeting.of}))
    });
    let node = fixture.start_node_with(functions).await;
    let args = json!({"who": "world", "of": 1}).as_object().unwrap().clone();
    let job = fixture.create_task_job("greeting", &WorkSpec { args, ..function("greet") }).await;
    let run = fixture.submit(&job, Some(json!({"who": "Ann"}))).await;
    let run = fixture.wait_until_ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    assert_eq!(run.result.as_deref(), Some(r#"{"attempt":1,"job":"greeting","of":1}"#));
    assert_eq!(fixture.read_log(run.id).await, ["hello Ann", "日本語", "in two lines", ""]);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_log_lines_are_dropped_and_counted() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("talk", |(), call| async move {
        for number in 0..LINES {
            call.log(format!("line {number}"));
        }
        Ok(())
    });
    const LINES: usize = 100_000;
    let node = fixture.start_node_with(functions).await;
    let run = fixture.submit_call("talkative", &function("talk")).await;
    assert_eq!(fixture.wait_until_ended(run).await.state, RunState::Succeeded);
    let (mut from, mut lines, mut missing) = (0, 0, 0);
    loop {
        let page = fixture.store.read_log(run, 1, from, 1_000).await.unwrap().unwrap();
        for line in &page.lines {
            match line.text.strip_prefix('[') {
                None => {
                    assert_eq!(line.text, format!("line {}", lines + missing));
                    lines += 1;
                }
                Some(mark) => missing += mark.split(' ').next().unwrap().parse::<usize>().unwrap(),
            }
        }
        from = page.next_line;
        if page.lines.is_empty() {
            break;
        }
    }
    assert_eq!(lines + missing, LINES);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn function_errors_are_stored_with_the_run() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("refuse", |(), _| async {
        Err::<(), _>(TaskError::new(AttemptErrorCode::INVALID_INPUT, "there is no such order"))
    });
    functions.register("break", |(), _| async { Ok(json!("x".parse::<u8>()?)) });
    functions.register("panic", |(), call| async move {
        assert!(call.attempt_no() > 9, "attempt {} is not enough", call.attempt_no());
        Ok(())
    });
    functions.register("give up", |(), _| async { Err::<(), _>(TaskError::fatal("it is no use")) });
    functions.register("greet", |_: Greeting, _| async { Ok(()) });
    let node = fixture.start_node_with(functions).await;
    for (name, state, tries, code, message) in [
        ("give up", RunState::Failed, 1, "UNEXPECTED_ERROR", "it is no use"),
        ("greet", RunState::Failed, 1, "INVALID_INPUT", "arguments: missing field `who`"),
        ("refuse", RunState::Failed, 1, "INVALID_INPUT", "there is no such order"),
        ("break", RunState::Expired, 2, "UNEXPECTED_ERROR", "invalid digit found in string"),
        (
            "panic",
            RunState::Expired,
            2,
            "UNEXPECTED_ERROR",
            "the function panicked: attempt 2 is not enough",
        ),
    ] {
        let twice = JobVersionSpec { max_attempts: 2, ..spec(&function(name)) };
        let job = fixture.create_job(name, Trigger::Task, twice).await;
        let run = fixture.submit(&job, None).await;
        let run = fixture.wait_until_ended(run).await;
        assert_eq!((run.state, run.counters.tries), (state, tries), "{name} {run:?}");
        assert_eq!(run.error_code.as_ref().map(AttemptErrorCode::as_str), Some(code), "{name}");
        assert_eq!(fixture.error_message(run.id).await, message);
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_function_is_signaled_and_then_aborted() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("stops when signaled", |(), call| async move {
        call.wait_for_stop().await;
        call.log("tidied up");
        Ok(json!("half of it"))
    });
    functions
        .register("ignores the signal", |(), _| std::future::pending::<Result<(), TaskError>>());
    functions.register("fails after the signal", |(), call| async move {
        call.wait_for_stop().await;
        Err::<(), _>(TaskError::new(AttemptErrorCode::STORAGE_ERROR, "it was in the way"))
    });
    let node = fixture.start_node_with(functions).await;
    for name in ["stops when signaled", "ignores the signal", "fails after the signal"] {
        let stop_grace = Some(Duration::from_millis(100));
        let patient =
            JobVersionSpec { max_attempts: 3, ..spec(&WorkSpec { stop_grace, ..function(name) }) };
        let job = fixture.create_job(name, Trigger::Task, patient).await;
        let run = fixture.submit(&job, None).await;
        fixture.wait_until_call_runs(run).await;
        assert!(fixture.store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied());
        fixture.wakeups.wake_all();
        let run = fixture.wait_until_ended(run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 1), "{name} {run:?}");
        let expected: &[&str] = if name == "stops when signaled" { &["tidied up"] } else { &[] };
        assert_eq!(fixture.read_log(run.id).await, expected);
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_function_is_ended_and_progressing_one_is_not() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("busy", |(), call| async move {
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            call.report_progress();
        }
        Ok(())
    });
    functions.register("silent", |(), _| std::future::pending::<Result<(), TaskError>>());
    functions.register("stuck", |(), call| async move {
        call.report_progress();
        std::future::pending::<Result<(), TaskError>>().await
    });
    fixture.change_settings(&[("progress_heartbeat_timeout", "200ms")]).await;
    let node = fixture.start_node_with(functions).await;
    let heartbeat_timeout = Some(Duration::from_millis(600));
    let stop_grace = Some(Duration::ZERO);
    let limited = |name| WorkSpec { heartbeat_timeout, stop_grace, ..function(name) };
    let (busy, silent) = (
        fixture.submit_call("a", &limited("busy")).await,
        fixture.submit_call("b", &limited("silent")).await,
    );
    let code = |run: &tasuki_store::Run| run.error_code.as_ref().map(ToString::to_string);
    let silent = fixture.wait_until_ended(silent).await;
    assert_eq!(
        (silent.state, code(&silent).as_deref()),
        (RunState::Failed, Some("HEARTBEAT_TIMEOUT"))
    );
    assert_eq!(fixture.wait_until_ended(busy).await.state, RunState::Succeeded);

    // A function that reports progress has a limit even if its job sets none.
    let stuck = fixture.submit_call("c", &WorkSpec { stop_grace, ..function("stuck") }).await;
    assert_eq!(code(&fixture.wait_until_ended(stuck).await).as_deref(), Some("HEARTBEAT_TIMEOUT"));
    node.stop().await;
    fixture.finish().await;
}

/// Even with a long grace: when the lease has ended, another worker may call the function.
#[tokio::test(flavor = "multi_thread")]
async fn function_ends_when_its_lease_cannot_be_renewed() {
    struct Alive(watch::Sender<bool>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.send_replace(false);
        }
    }
    let fixture = NodeFixture::new().await;
    let lease = [("lease_ttl", "3s"), ("lease_renew", "200ms"), ("outage_tolerance", "1s")];
    let end = [("kill_margin", "900ms"), ("stop_grace", "1m")];
    fixture.change_settings(&[&lease[..], &end[..]].concat()).await;
    let (alive, mut seen) = watch::channel(false);
    let mut functions = HandlerRegistry::default();
    functions.register("ignores the signal", move |(), _| {
        alive.send_replace(true);
        let alive = Alive(alive.clone());
        async move {
            let _alive = alive;
            std::future::pending::<Result<(), TaskError>>().await
        }
    });
    let node = fixture.start_node_with(functions).await;
    let run = fixture.submit_call("deaf", &function("ignores the signal")).await;
    seen.wait_for(|alive| *alive).await.unwrap();
    let lock = fixture.lock_database();
    let ended = tokio::time::timeout(Duration::from_secs(3), seen.wait_for(|alive| !alive)).await;
    assert!(ended.is_ok(), "the lease has ended and the function still runs");
    lock.release();
    assert_eq!(fixture.wait_until_ended(run).await.state, RunState::Failed);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_for_a_node_with_its_function() {
    let fixture = NodeFixture::new().await;
    let mut node = fixture.start_node().await;
    let run = fixture.submit_call("later", &function("new")).await;
    for _ in 0..2 {
        assert_eq!(fixture.store.find_run(run).await.unwrap().unwrap().state, RunState::Pending);
        node.stop().await;
        let mut functions = HandlerRegistry::default();
        functions.register("old", |(), _| async { Ok(()) });
        node = fixture.start_node_with(functions).await;
        let run = fixture.submit_call(&format!("old {}", node.worker_id()), &function("old")).await;
        assert_eq!(fixture.wait_until_ended(run).await.state, RunState::Succeeded);
    }
    node.stop().await;
    let mut functions = HandlerRegistry::default();
    functions.register("new", |(), _| async { Ok(()) });
    let node = fixture.start_node_with(functions).await;
    assert_eq!(fixture.wait_until_ended(run).await.state, RunState::Succeeded);
    node.stop().await;
    fixture.finish().await;
}
