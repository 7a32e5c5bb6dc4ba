//! A whole node on a real database, with real commands.

use std::time::Duration;

use serde_json::json;
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{ErrorCode, RunState};

use crate::place::{Place, command, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fires_every_second_runs_and_its_output_is_kept() {
    let place = Place::new().await;
    let node = place.node().await;
    let job = place.every("hello", "1s", &command(&["echo", "hi"])).await;
    let runs = place.runs_of(job, 2, RunState::is_ended).await;
    for run in &runs[..2] {
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
        assert_eq!(place.log(run.id).await, ["hi"]);
        assert_eq!(run.exit_code, Some(0));
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_gets_its_arguments_and_says_what_came_of_it() {
    let place = Place::new().await;
    let node = place.node().await;
    let script = r#"echo "$0 $TASUKI_JOB $TASUKI_ATTEMPT" >&2; printf '{"result": %s, "rows_affected": 3}' "$TASUKI_ARGS" > "$TASUKI_RESULT_FILE""#;
    let work = Work {
        args: json!({"who": "world"}).as_object().unwrap().clone(),
        ..Work::new(What::Command(["sh", "-c", script, "{who}"].map(str::to_owned).to_vec()))
    };
    let job = place.task("args", &work).await;
    let run = place.submit(&job, Some(json!({"who": "a b"}))).await;
    let run = place.ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    assert_eq!(run.result.as_deref(), Some(r#"{"who":"a b"}"#));
    assert_eq!(place.log(run.id).await, ["a b args 1"]);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_their_reasons() {
    let place = Place::new().await;
    let node = place.node().await;
    let table = [
        (shell("exit 3"), RunState::Failed, "UNEXPECTED_ERROR", "exit code 3"),
        (
            command(&["/no/such/program"]),
            RunState::Failed,
            "NOT_FOUND",
            "not found: /no/such/program: No such file",
        ),
        (
            Work { directory: Some("/no/such/place".to_owned()), ..command(&["true"]) },
            RunState::Failed,
            "NOT_FOUND",
            "not found: /no/such/place: No such file",
        ),
        (
            command(&["/etc/passwd"]),
            RunState::Failed,
            "INVALID_INPUT",
            "it cannot be run: /etc/passwd: Permission denied",
        ),
        (shell("kill -9 $$"), RunState::Failed, "UNEXPECTED_ERROR", "ended by signal 9"),
        (
            command(&["echo", "{day}"]),
            RunState::Failed,
            "INVALID_INPUT",
            "arguments: found no value",
        ),
        (
            Work { timeout: Some(Duration::from_millis(200)), ..command(&["sleep", "60"]) },
            RunState::TimedOut,
            "RUNTIME_TIMEOUT",
            "stopped: it ran longer",
        ),
        (
            Work {
                heartbeat_timeout: Some(Duration::from_millis(200)),
                ..shell("echo a; sleep 60")
            },
            RunState::Failed,
            "HEARTBEAT_TIMEOUT",
            "stopped: nothing was heard",
        ),
    ];
    let mut runs = Vec::new();
    for (number, (work, ..)) in table.iter().enumerate() {
        let job = place.task(&format!("job {number}"), work).await;
        runs.push(place.submit(&job, None).await);
    }
    for (run, (work, state, code, message)) in runs.into_iter().zip(&table) {
        let run = place.ended(run).await;
        assert_eq!(run.state, *state, "{work:?} {run:?}");
        assert_eq!(run.error_code.as_ref().map(ErrorCode::as_str), Some(*code));
        let executions = place.store.executions(run.id).await.unwrap();
        let told = executions.last().and_then(|last| last.error_message.clone()).unwrap();
        assert!(told.starts_with(message), "{told}");
    }
    node.stop().await;
    place.end().await;
}

/// A job prints more than is held in memory and ends while the database takes nothing: its last lines are
/// in a pipe that nobody reads, and are read when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_lines_are_kept_however_long_the_database_takes() {
    // More than is held, less than that and what a pipe holds.
    const LINES: usize = 15_000;
    let place = Place::new().await;
    let node = place.node().await;
    let script = format!(
        "while [ ! -e '{0}/go' ]; do sleep 0.01; done; seq {LINES}; touch '{0}/printed'",
        place.data.display()
    );
    let job = place.task("chatty", &shell(&script)).await;
    let run = place.submit(&job, None).await;
    place.runs_of(job.id, 1, |state| state == RunState::Running).await;
    let held = place.hold();
    std::fs::write(place.data.join("go"), "").unwrap();
    place.until("all is printed", async || place.data.join("printed").exists().then_some(())).await;
    // That long it takes, and not until something happens: what used to be lost was lost to a clock.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    held.release();
    let run = place.ended(run).await;
    assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    let log = place.log(run.id).await;
    assert_eq!((log.len(), log.last().map(String::as_str)), (LINES, Some("15000")));
    node.stop().await;
    place.end().await;
}
