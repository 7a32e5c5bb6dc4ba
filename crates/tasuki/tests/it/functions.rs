//! Functions of the embedding program, called by a whole node.

use std::time::Duration;

use serde_json::json;
use tasuki::{Functions, TaskError};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{ErrorCode, RunId, RunState};
use tasuki_store::{Writer, JobSpec, Trigger};
use tokio::sync::watch;

use crate::place::{Place, spec};

fn function(name: &str) -> Work {
    Work::new(What::Function(name.to_owned()))
}

impl Place {
    async fn call(&self, name: &str, work: &Work) -> RunId {
        let job = self.task(name, work).await;
        self.submit(&job, None).await
    }

    async fn until_running(&self, run: RunId) {
        self.until(&format!("run {run} runs"), async || {
            let run = self.store.run(run).await.unwrap().unwrap();
            (run.state == RunState::Running).then_some(())
        })
        .await;
    }

    async fn message(&self, run: RunId) -> String {
        let last = self.store.executions(run).await.unwrap().pop().unwrap();
        last.error_message.unwrap_or_default()
    }
}

#[derive(serde::Deserialize)]
struct Greeting {
    who: String,
    of: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_called_with_what_its_run_is_given() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("greet", |greeting: Greeting, call| async move {
        call.log(format!("hello {}", greeting.who));
        call.log("日本語\nin two lines\n");
        call.log("");
        Ok(json!({"job": call.job(), "attempt": call.attempt_no(), "of": greeting.of}))
    });
    let node = place.node_with(functions).await;
    let args = json!({"who": "world", "of": 1}).as_object().unwrap().clone();
    let job = place.task("greeting", &Work { args, ..function("greet") }).await;
    let run = place.submit(&job, Some(json!({"who": "Ann"}))).await;
    let run = place.ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    assert_eq!(run.result.as_deref(), Some(r#"{"attempt":1,"job":"greeting","of":1}"#));
    assert_eq!(place.log(run.id).await, ["hello Ann", "日本語", "in two lines", ""]);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_talks_too_fast_fills_no_memory_and_its_log_says_what_is_missing() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("talk", |(), call| async move {
        for number in 0..LINES {
            call.log(format!("line {number}"));
        }
        Ok(())
    });
    const LINES: usize = 100_000;
    let node = place.node_with(functions).await;
    let run = place.call("talkative", &function("talk")).await;
    assert_eq!(place.ended(run).await.state, RunState::Succeeded);
    let (mut from, mut told, mut missing) = (0, 0, 0);
    loop {
        let page = place.store.read_log(run, 1, from, 1_000).await.unwrap().unwrap();
        for line in &page.lines {
            match line.text.strip_prefix('[') {
                None => {
                    assert_eq!(line.text, format!("line {}", told + missing));
                    told += 1;
                }
                Some(mark) => missing += mark.split(' ').next().unwrap().parse::<usize>().unwrap(),
            }
        }
        from = page.next_line;
        if page.lines.is_empty() {
            break;
        }
    }
    assert_eq!(told + missing, LINES);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_says_why_it_failed() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("refuse", |(), _| async {
        Err::<(), _>(TaskError::new(ErrorCode::INVALID_INPUT, "there is no such order"))
    });
    functions.add("break", |(), _| async { Ok(json!("x".parse::<u8>()?)) });
    functions.add("panic", |(), call| async move {
        assert!(call.attempt_no() > 9, "attempt {} is not enough", call.attempt_no());
        Ok(())
    });
    functions.add("give up", |(), _| async { Err::<(), _>(TaskError::fatal("it is no use")) });
    functions.add("ask", |_: Greeting, _| async { Ok(()) });
    let node = place.node_with(functions).await;
    for (name, state, tries, code, message) in [
        ("give up", RunState::Failed, 1, "UNEXPECTED_ERROR", "it is no use"),
        ("ask", RunState::Failed, 1, "INVALID_INPUT", "arguments: missing field `who`"),
        ("refuse", RunState::Failed, 1, "INVALID_INPUT", "there is no such order"),
        ("break", RunState::Expired, 2, "UNEXPECTED_ERROR", "invalid digit found in string"),
        ("panic", RunState::Expired, 2, "UNEXPECTED_ERROR", "it panicked: attempt 2 is not enough"),
    ] {
        let twice = JobSpec { max_attempts: 2, ..spec(&function(name)) };
        let job = place.job(name, Trigger::Task, twice).await;
        let run = place.submit(&job, None).await;
        let run = place.ended(run).await;
        assert_eq!((run.state, run.counters.tries), (state, tries), "{name} {run:?}");
        assert_eq!(run.error_code.as_ref().map(ErrorCode::as_str), Some(code), "{name}");
        assert_eq!(place.message(run.id).await, message);
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_function_is_asked_to_stop_and_then_aborted() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("listens", |(), call| async move {
        call.stopped().await;
        call.log("tidied up");
        Ok(json!("half of it"))
    });
    functions.add("is deaf", |(), _| std::future::pending::<Result<(), TaskError>>());
    functions.add("is done anyway", |(), call| async move {
        call.stopped().await;
        Err::<(), _>(TaskError::new(ErrorCode::STORAGE_ERROR, "it was in the way"))
    });
    let node = place.node_with(functions).await;
    for name in ["listens", "is deaf", "is done anyway"] {
        let stop_grace = Some(Duration::from_millis(100));
        let patient = JobSpec { max_attempts: 3, ..spec(&Work { stop_grace, ..function(name) }) };
        let job = place.job(name, Trigger::Task, patient).await;
        let run = place.submit(&job, None).await;
        place.until_running(run).await;
        assert!(place.store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied());
        place.wake.all();
        let run = place.ended(run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 1), "{name} {run:?}");
        let expected: &[&str] = if name == "listens" { &["tidied up"] } else { &[] };
        assert_eq!(place.log(run.id).await, expected);
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_falls_silent_is_ended_and_one_that_shows_progress_is_not() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("busy", |(), call| async move {
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            call.progress();
        }
        Ok(())
    });
    functions.add("silent", |(), _| std::future::pending::<Result<(), TaskError>>());
    functions.add("stuck", |(), call| async move {
        call.progress();
        std::future::pending::<Result<(), TaskError>>().await
    });
    place.set(&[("progress_heartbeat_timeout", "200ms")]).await;
    let node = place.node_with(functions).await;
    let heartbeat_timeout = Some(Duration::from_millis(600));
    let stop_grace = Some(Duration::ZERO);
    let limited = |name| Work { heartbeat_timeout, stop_grace, ..function(name) };
    let (busy, silent) =
        (place.call("a", &limited("busy")).await, place.call("b", &limited("silent")).await);
    let code = |run: &tasuki_store::Run| run.error_code.as_ref().map(ToString::to_string);
    let silent = place.ended(silent).await;
    assert_eq!(
        (silent.state, code(&silent).as_deref()),
        (RunState::Failed, Some("HEARTBEAT_TIMEOUT"))
    );
    assert_eq!(place.ended(busy).await.state, RunState::Succeeded);

    // One that shows progress has a limit even where its job sets none.
    let stuck = place.call("c", &Work { stop_grace, ..function("stuck") }).await;
    assert_eq!(code(&place.ended(stuck).await).as_deref(), Some("HEARTBEAT_TIMEOUT"));
    node.stop().await;
    place.end().await;
}

/// However long it may take to stop: when its lease is over, somebody else may call it.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_does_not_outlive_a_lease_that_cannot_be_renewed() {
    struct Alive(watch::Sender<bool>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.send_replace(false);
        }
    }
    let place = Place::new().await;
    let lease = [("lease_ttl", "3s"), ("lease_renew", "200ms"), ("outage_tolerance", "1s")];
    let end = [("kill_margin", "900ms"), ("stop_grace", "1m")];
    place.set(&[&lease[..], &end[..]].concat()).await;
    let (alive, mut seen) = watch::channel(false);
    let mut functions = Functions::default();
    functions.add("is deaf", move |(), _| {
        alive.send_replace(true);
        let alive = Alive(alive.clone());
        async move {
            let _alive = alive;
            std::future::pending::<Result<(), TaskError>>().await
        }
    });
    let node = place.node_with(functions).await;
    let run = place.call("deaf", &function("is deaf")).await;
    seen.wait_for(|alive| *alive).await.unwrap();
    let held = place.hold();
    let gone = tokio::time::timeout(Duration::from_secs(3), seen.wait_for(|alive| !alive)).await;
    assert!(gone.is_ok(), "its lease is over and it is still there");
    held.release();
    assert_eq!(place.ended(run).await.state, RunState::Failed);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_somebody_who_has_its_function() {
    let place = Place::new().await;
    let mut node = place.node().await;
    let run = place.call("later", &function("new")).await;
    for _ in 0..2 {
        assert_eq!(place.store.run(run).await.unwrap().unwrap().state, RunState::Pending);
        node.stop().await;
        let mut functions = Functions::default();
        functions.add("old", |(), _| async { Ok(()) });
        node = place.node_with(functions).await;
        let run = place.call(&format!("old {}", node.worker_id()), &function("old")).await;
        assert_eq!(place.ended(run).await.state, RunState::Succeeded);
    }
    node.stop().await;
    let mut functions = Functions::default();
    functions.add("new", |(), _| async { Ok(()) });
    let node = place.node_with(functions).await;
    assert_eq!(place.ended(run).await.state, RunState::Succeeded);
    node.stop().await;
    place.end().await;
}
