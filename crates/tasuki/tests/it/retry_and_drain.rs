//! Tests of failures on whole nodes: retries, giving up, and the drain of a node that stops.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tasuki::HandlerRegistry;
use tasuki_core::run::AttemptOutcome;
use tasuki_core::work_spec::WorkSpec;
use tasuki_core::{AttemptErrorCode, RunState};
use tasuki_store::{JobVersionSpec, NewRun, Run, Trigger, Writer};

use crate::node_fixture::{NodeFixture, command, shell, spec};

const BACKOFF: Duration = Duration::from_millis(100);

fn spec_with_attempts(max_attempts: u32, work: &WorkSpec) -> JobVersionSpec {
    JobVersionSpec { max_attempts, backoff: BACKOFF, ..spec(work) }
}

impl NodeFixture {
    /// Creates a job, submits one run of it, and waits until the run has ended.
    async fn run_once(&self, name: &str, spec: JobVersionSpec) -> Run {
        let job = self.create_job(name, Trigger::Task, spec).await;
        let run = self.submit(&job, None).await;
        self.wait_until_ended(run).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_retried_by_error_code() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let writes_code = |code: &str| {
        shell(&format!(r#"printf '{{"error_code": "{code}"}}' > "$TASUKI_RESULT_FILE"; exit 1"#))
    };
    let named =
        |work: WorkSpec| WorkSpec { exit_codes: [(3, "NO_DATA".parse().unwrap())].into(), ..work };
    let retry_on = |code: &str, work| WorkSpec { retry_on: vec![code.to_owned()], ..named(work) };
    let fail_on = |code: &str, work| WorkSpec { fail_on: vec![code.to_owned()], ..named(work) };
    let timeout = Some(Duration::from_millis(100));
    let (expired, failed) = (RunState::Expired, RunState::Failed);
    let table = [
        ("a plain failure", shell("exit 1"), 3, expired, 3, "UNEXPECTED_ERROR"),
        ("one attempt only", shell("exit 1"), 1, failed, 1, "UNEXPECTED_ERROR"),
        ("a signal", shell("kill -9 $$"), 2, expired, 2, "UNEXPECTED_ERROR"),
        ("exit code 75 (try again)", shell("exit 75"), 2, expired, 2, "UNEXPECTED_ERROR"),
        (
            "exit code 75 in fail_on",
            fail_on("75", shell("exit 75")),
            3,
            failed,
            1,
            "UNEXPECTED_ERROR",
        ),
        ("a named exit code", named(shell("exit 3")), 2, expired, 2, "NO_DATA"),
        (
            "a named exit code in fail_on",
            fail_on("NO_DATA", shell("exit 3")),
            2,
            failed,
            1,
            "NO_DATA",
        ),
        ("a number in fail_on", fail_on("3", shell("exit 3")), 2, failed, 1, "NO_DATA"),
        ("exit code 1 in fail_on", fail_on("1", shell("exit 1")), 3, failed, 1, "UNEXPECTED_ERROR"),
        ("invalid input", writes_code("INVALID_INPUT"), 3, failed, 1, "INVALID_INPUT"),
        (
            "invalid input in retry_on",
            retry_on("INVALID_INPUT", writes_code("INVALID_INPUT")),
            2,
            expired,
            2,
            "INVALID_INPUT",
        ),
        ("a storage error", writes_code("STORAGE_ERROR"), 2, expired, 2, "STORAGE_ERROR"),
        ("a code of the job", writes_code("NO_PAPER"), 2, expired, 2, "NO_PAPER"),
        ("no such program", command(&["/no/such/program"]), 3, failed, 1, "NOT_FOUND"),
        (
            "a timeout",
            WorkSpec { timeout, ..command(&["sleep", "60"]) },
            1,
            RunState::TimedOut,
            1,
            "RUNTIME_TIMEOUT",
        ),
        (
            "a timeout in two attempts",
            WorkSpec { timeout, ..command(&["sleep", "60"]) },
            2,
            expired,
            2,
            "RUNTIME_TIMEOUT",
        ),
    ];
    let mut runs = Vec::new();
    for (name, work, max_attempts, ..) in &table {
        let job =
            fixture.create_job(name, Trigger::Task, spec_with_attempts(*max_attempts, work)).await;
        runs.push(fixture.submit(&job, None).await);
    }
    for (run, (name, _, _, state, tries, code)) in runs.into_iter().zip(table) {
        let run = fixture.wait_until_ended(run).await;
        assert_eq!((run.state, run.counters.tries), (state, tries), "{name}: {run:?}");
        assert_eq!(run.error_code.as_ref().map(AttemptErrorCode::as_str), Some(code), "{name}");
        let executions = fixture.store.list_executions(run.id).await.unwrap();
        assert_eq!(executions.len(), tries as usize, "{name}");
        for (number, pair) in executions.windows(2).enumerate() {
            let delay = pair[1].started_at.unwrap().duration_since(pair[0].finished_at.unwrap());
            let min_delay = BACKOFF * (1 << number);
            assert!(delay.unsigned_abs() >= min_delay, "{name}: {delay}");
        }
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_succeeds_after_failed_attempts() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let script = "echo try $TASUKI_ATTEMPT; test $TASUKI_ATTEMPT = 3";
    let run = fixture.run_once("third time", spec_with_attempts(4, &shell(script))).await;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 3));
    assert_eq!(run.error_code, None);
    let outcomes: Vec<_> = fixture
        .store
        .list_executions(run.id)
        .await
        .unwrap()
        .iter()
        .map(|attempt| attempt.outcome)
        .collect();
    let (failed, succeeded) = (Some(AttemptOutcome::Failed), Some(AttemptOutcome::Succeeded));
    assert_eq!(outcomes, [failed, failed, succeeded]);
    assert_eq!(fixture.read_log(run.id).await, ["try 3"]);
    let first = fixture.store.read_log(run.id, 1, 0, 10).await.unwrap().unwrap();
    assert_eq!(first.lines[0].text, "try 1");
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_runs_than_slots_need_no_extra_attempts() {
    let fixture = NodeFixture::new().await;
    let node = fixture
        .start_configured_node(HandlerRegistry::default(), |config| config.slots = Some(2))
        .await;
    let job = fixture.create_task_job("sleep", &command(&["sleep", "0.6"])).await;
    let runs = vec![NewRun::task(&job.newest); 8];
    let created = fixture.store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
    fixture.wakeups.wake_all();
    for created in created {
        let run = fixture.wait_until_ended(created.run).await;
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Succeeded, 1), "{run:?}");
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_matching_worker_expires() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let labels = ["gpu".to_owned()].into();
    let job = JobVersionSpec { labels, ..spec(&command(&["true"])) };
    let job = fixture.create_job("picky", Trigger::Task, job).await;
    let clock = fixture.store.read_clock().await.unwrap();
    let soon = Some(clock + SignedDuration::from_millis(300));
    let expiring = NewRun { expires_at: soon, ..NewRun::task(&job.newest) };
    let created = fixture
        .store
        .create_or_find_runs(Writer::Api, &[expiring, NewRun::task(&job.newest)])
        .await;
    let [expiring, patient] = created.unwrap()[..] else { panic!("two runs were created") };
    fixture.wakeups.wake_all();
    let run = fixture.wait_until_ended(expiring.run).await;
    assert_eq!((run.state, run.counters.tries), (RunState::Expired, 0), "{run:?}");
    let patient = fixture.store.find_run(patient.run).await.unwrap().unwrap();
    assert_eq!(patient.state, RunState::Pending, "no worker has its label, so it waits");
    let _ = fixture.store.cancel(Writer::Api, patient.id, "test", None).await.unwrap();
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_settings_apply_to_a_running_node() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_configured_node(HandlerRegistry::default(), |_| {}).await;
    let work = WorkSpec { stop_grace: Some(Duration::ZERO), ..command(&["sleep", "60"]) };
    fixture.change_settings(&[("timeout", "100ms"), ("max_jobs_per_worker", "1")]).await;
    let has_one_slot = async || {
        let worker = fixture.store.find_worker(node.worker_id()).await.unwrap().unwrap();
        (worker.slots == 1).then_some(())
    };
    fixture.wait_until("the worker has one slot", has_one_slot).await;
    let run = fixture.run_once("endless", spec(&work)).await;
    assert_eq!(run.state, RunState::TimedOut, "{run:?}");

    // One slot now, and two after the next change of the settings.
    let wait_for_both = |name: &str| {
        let data = fixture.dir.join(name).display().to_string();
        shell(&format!(
            "touch {data}.$TASUKI_RUN_ID; until [ $(ls {data}.* | wc -l) = 2 ]; do sleep 0.02; done"
        ))
    };
    let timeout = Some(Duration::from_secs(60));
    let job = fixture.create_task_job("pair", &WorkSpec { timeout, ..wait_for_both("pair") }).await;
    let pair = [fixture.submit(&job, None).await, fixture.submit(&job, None).await];
    let running = async || {
        let first = fixture.store.find_run(pair[0]).await.unwrap().unwrap();
        (first.state == RunState::Running).then_some(())
    };
    fixture.wait_until("the first runs", running).await;
    assert!(!fixture.store.find_run(pair[1]).await.unwrap().unwrap().state.is_ended());
    fixture.change_settings(&[("max_jobs_per_worker", "2")]).await;
    for run in pair {
        assert_eq!(fixture.wait_until_ended(run).await.state, RunState::Succeeded);
    }
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_attempts_finish_during_drain() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let go = fixture.dir.join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done", go.display());
    let job = fixture.create_task_job("slow", &shell(&script)).await;
    let run = fixture.submit(&job, None).await;
    let later = {
        let clock = fixture.store.read_clock().await.unwrap();
        let at = Some(clock + SignedDuration::from_secs(5));
        let later = NewRun { scheduled_for: at, ..NewRun::task(&job.newest) };
        fixture.store.create_or_find_runs(Writer::Api, &[later]).await.unwrap()[0].run
    };
    fixture.wakeups.wake_all();
    for (run, state) in [(run, RunState::Running), (later, RunState::Assigned)] {
        let reached = async || {
            let found = fixture.store.find_run(run).await.unwrap().unwrap();
            (found.state == state).then_some(())
        };
        fixture.wait_until(&format!("run {run} is {state}"), reached).await;
    }
    let worker = node.worker_id();
    let stopping = tokio::spawn(node.stop());
    let draining = async || {
        let worker = fixture.store.find_worker(worker).await.unwrap().unwrap();
        worker.draining_at.map(drop)
    };
    fixture.wait_until("the worker drains", draining).await;
    std::fs::write(&go, "").unwrap();
    stopping.await.unwrap();
    assert_eq!(fixture.store.find_run(run).await.unwrap().unwrap().state, RunState::Succeeded);
    assert_eq!(fixture.read_log(run).await, ["done"]);
    // The run that had not started was released for the next worker.
    let later = fixture.store.find_run(later).await.unwrap().unwrap();
    assert_eq!((later.state, later.counters.tries), (RunState::Orphaned, 0), "{later:?}");
    assert!(fixture.store.find_worker(worker).await.unwrap().unwrap().gone_at.is_some());
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_outlast_the_drain_are_stopped_and_retried() {
    let fixture = NodeFixture::new().await;
    let mut functions = HandlerRegistry::default();
    functions.register("wait", |(), call| async move {
        if call.attempt_no() == 1 {
            call.wait_for_stop().await;
        }
        Ok(json!(call.attempt_no()))
    });
    let node = fixture
        .start_configured_node(functions.clone(), |config| {
            config.drain_timeout = Duration::from_millis(100);
        })
        .await;
    let wait = WorkSpec::new(tasuki_core::work_spec::WorkAction::Function("wait".to_owned()));
    let script = shell("if [ $TASUKI_ATTEMPT = 1 ]; then exec sleep 60; fi");
    let mut runs = Vec::new();
    for (name, max_attempts, work) in
        [("twice", 2, &script), ("once", 1, &script), ("function", 2, &wait)]
    {
        let job =
            fixture.create_job(name, Trigger::Task, spec_with_attempts(max_attempts, work)).await;
        runs.push(fixture.submit(&job, None).await);
    }
    for run in &runs {
        let running = async || {
            let found = fixture.store.find_run(*run).await.unwrap().unwrap();
            (found.state == RunState::Running).then_some(())
        };
        fixture.wait_until(&format!("run {run} runs"), running).await;
    }
    node.stop().await;
    for (run, state) in
        runs.iter().zip([RunState::RetryWait, RunState::Failed, RunState::RetryWait])
    {
        assert_eq!(fixture.store.find_run(*run).await.unwrap().unwrap().state, state);
        let ended = fixture.store.list_executions(*run).await.unwrap().remove(0);
        let code = ended.error_code.as_ref().map(AttemptErrorCode::as_str);
        assert_eq!(code, Some("DRAINED"), "{ended:?}");
    }
    let node = fixture.start_node_with(functions).await;
    for run in [runs[0], runs[2]] {
        let run = fixture.wait_until_ended(run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));
    }
    node.stop().await;
    fixture.finish().await;
}
