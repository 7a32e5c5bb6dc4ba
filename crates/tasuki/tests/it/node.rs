//! Tests of a whole node with a real database and real commands.

use std::time::Duration;

use serde_json::json;
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{AttemptErrorCode, RunState};

use crate::node_fixture::{NodeFixture, command, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fires_every_second_runs_and_its_output_is_kept() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let job = fixture.create_every_job("hello", "1s", &command(&["echo", "hi"])).await;
    let runs = fixture.wait_for_runs(job, 2, RunState::is_ended).await;
    for run in &runs[..2] {
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
        assert_eq!(fixture.read_log(run.id).await, ["hi"]);
        assert_eq!(run.exit_code, Some(0));
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_gets_its_arguments_and_stores_its_result() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let script = r#"echo "$0 $TASUKI_JOB $TASUKI_ATTEMPT" >&2; printf '{"result": %s, "rows_affected": 3}' "$TASUKI_ARGS" > "$TASUKI_RESULT_FILE""#;
    let work = WorkSpec {
        args: json!({"who": "world"}).as_object().unwrap().clone(),
        ..WorkSpec::new(WorkAction::Command(
            ["sh", "-c", script, "{who}"].map(str::to_owned).to_vec(),
        ))
    };
    let job = fixture.create_task_job("args", &work).await;
    let run = fixture.submit(&job, Some(json!({"who": "a b"}))).await;
    let run = fixture.wait_until_ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    assert_eq!(run.result.as_deref(), Some(r#"{"who":"a b"}"#));
    assert_eq!(fixture.read_log(run.id).await, ["a b args 1"]);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_has_an_error_code_and_message() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let table = [
        (shell("exit 3"), RunState::Failed, "UNEXPECTED_ERROR", "exit code 3"),
        (
            command(&["/no/such/program"]),
            RunState::Failed,
            "NOT_FOUND",
            "not found: /no/such/program: No such file",
        ),
        (
            WorkSpec { directory: Some("/no/such/place".to_owned()), ..command(&["true"]) },
            RunState::Failed,
            "NOT_FOUND",
            "not found: /no/such/place: No such file",
        ),
        (
            command(&["/etc/passwd"]),
            RunState::Failed,
            "INVALID_INPUT",
            "cannot be executed: /etc/passwd: Permission denied",
        ),
        (shell("kill -9 $$"), RunState::Failed, "UNEXPECTED_ERROR", "ended by signal 9"),
        (
            command(&["echo", "{day}"]),
            RunState::Failed,
            "INVALID_INPUT",
            "arguments: found no value",
        ),
        (
            WorkSpec { timeout: Some(Duration::from_millis(200)), ..command(&["sleep", "60"]) },
            RunState::TimedOut,
            "RUNTIME_TIMEOUT",
            "stopped: it ran longer",
        ),
        (
            WorkSpec {
                heartbeat_timeout: Some(Duration::from_millis(200)),
                ..shell("echo a; sleep 60")
            },
            RunState::Failed,
            "HEARTBEAT_TIMEOUT",
            "stopped: no output or heartbeat",
        ),
    ];
    let mut runs = Vec::new();
    for (number, (work, ..)) in table.iter().enumerate() {
        let job = fixture.create_task_job(&format!("job {number}"), work).await;
        runs.push(fixture.submit(&job, None).await);
    }
    for (run, (work, state, code, message)) in runs.into_iter().zip(&table) {
        let run = fixture.wait_until_ended(run).await;
        assert_eq!(run.state, *state, "{work:?} {run:?}");
        assert_eq!(run.error_code.as_ref().map(AttemptErrorCode::as_str), Some(*code));
        let executions = fixture.store.list_executions(run.id).await.unwrap();
        let found = executions.last().and_then(|last| last.error_message.clone()).unwrap();
        assert!(found.starts_with(message), "{found}");
    }
    node.stop().await;
    fixture.finish().await;
}

/// A job prints more than the worker buffers and ends while the database is locked. Its last lines stay in the pipe and
/// are read once the worker has buffer space again.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_complete_after_a_long_database_outage() {
    // More than the worker's buffer holds, less than the buffer and the pipe together.
    const LINES: usize = 15_000;
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let script = format!(
        "while [ ! -e '{0}/go' ]; do sleep 0.01; done; seq {LINES}; touch '{0}/printed'",
        fixture.dir.display()
    );
    let job = fixture.create_task_job("chatty", &shell(&script)).await;
    let run = fixture.submit(&job, None).await;
    fixture.wait_for_runs(job.id, 1, |state| state == RunState::Running).await;
    let held = fixture.lock_database();
    std::fs::write(fixture.dir.join("go"), "").unwrap();
    fixture
        .wait_until("all is printed", async || fixture.dir.join("printed").exists().then_some(()))
        .await;
    // A fixed time, because the lines used to be lost after a timeout.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    held.release();
    let run = fixture.wait_until_ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    let log = fixture.read_log(run.id).await;
    assert_eq!((log.len(), log.last().map(String::as_str)), (LINES, Some("15000")));
    node.stop().await;
    fixture.finish().await;
}
