//! What fails, is tried again, is given up, or is cut short because its node stops.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tasuki::Functions;
use tasuki_core::run::AttemptOutcome;
use tasuki_core::job_spec::Work;
use tasuki_core::{ErrorCode, RunState};
use tasuki_store::{Writer, JobSpec, NewRun, Run, Trigger};

use crate::place::{Place, command, shell, spec};

const BACKOFF: Duration = Duration::from_millis(100);

fn tried(times: u32, work: &Work) -> JobSpec {
    JobSpec { max_attempts: times, backoff: BACKOFF, ..spec(work) }
}

impl Place {
    /// Runs a job once, to its end.
    async fn once(&self, name: &str, spec: JobSpec) -> Run {
        let job = self.job(name, Trigger::Task, spec).await;
        let run = self.submit(&job, None).await;
        self.ended(run).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_tried_again_by_their_class() {
    let place = Place::new().await;
    let node = place.node().await;
    let tells = |code: &str| {
        shell(&format!(r#"printf '{{"error_code": "{code}"}}' > "$TASUKI_RESULT_FILE"; exit 1"#))
    };
    let named = |work: Work| Work { exit_codes: [(3, "NO_DATA".parse().unwrap())].into(), ..work };
    let retry_on = |code: &str, work| Work { retry_on: vec![code.to_owned()], ..named(work) };
    let fail_on = |code: &str, work| Work { fail_on: vec![code.to_owned()], ..named(work) };
    let timeout = Some(Duration::from_millis(100));
    let (expired, failed) = (RunState::Expired, RunState::Failed);
    let table = [
        ("a plain failure", shell("exit 1"), 3, expired, 3, "UNEXPECTED_ERROR"),
        ("one try only", shell("exit 1"), 1, failed, 1, "UNEXPECTED_ERROR"),
        ("a signal", shell("kill -9 $$"), 2, expired, 2, "UNEXPECTED_ERROR"),
        ("come back later", shell("exit 75"), 2, expired, 2, "UNEXPECTED_ERROR"),
        ("do not come back", fail_on("75", shell("exit 75")), 3, failed, 1, "UNEXPECTED_ERROR"),
        ("a named exit", named(shell("exit 3")), 2, expired, 2, "NO_DATA"),
        ("a named exit that stays", fail_on("NO_DATA", shell("exit 3")), 2, failed, 1, "NO_DATA"),
        ("the same by its number", fail_on("3", shell("exit 3")), 2, failed, 1, "NO_DATA"),
        ("an exit that will not", fail_on("1", shell("exit 1")), 3, failed, 1, "UNEXPECTED_ERROR"),
        ("bad input", tells("INVALID_INPUT"), 3, failed, 1, "INVALID_INPUT"),
        (
            "bad input that may pass",
            retry_on("INVALID_INPUT", tells("INVALID_INPUT")),
            2,
            expired,
            2,
            "INVALID_INPUT",
        ),
        ("storage", tells("STORAGE_ERROR"), 2, expired, 2, "STORAGE_ERROR"),
        ("a code of its own", tells("NO_PAPER"), 2, expired, 2, "NO_PAPER"),
        ("no such program", command(&["/no/such/program"]), 3, failed, 1, "NOT_FOUND"),
        (
            "too long",
            Work { timeout, ..command(&["sleep", "60"]) },
            1,
            RunState::TimedOut,
            1,
            "RUNTIME_TIMEOUT",
        ),
        (
            "too long twice",
            Work { timeout, ..command(&["sleep", "60"]) },
            2,
            expired,
            2,
            "RUNTIME_TIMEOUT",
        ),
    ];
    let mut runs = Vec::new();
    for (name, work, times, ..) in &table {
        let job = place.job(name, Trigger::Task, tried(*times, work)).await;
        runs.push(place.submit(&job, None).await);
    }
    for (run, (name, _, _, state, tries, code)) in runs.into_iter().zip(table) {
        let run = place.ended(run).await;
        assert_eq!((run.state, run.counters.tries), (state, tries), "{name}: {run:?}");
        assert_eq!(run.error_code.as_ref().map(ErrorCode::as_str), Some(code), "{name}");
        let executions = place.store.executions(run.id).await.unwrap();
        assert_eq!(executions.len(), tries as usize, "{name}");
        for (number, pair) in executions.windows(2).enumerate() {
            let waited = pair[1].started_at.unwrap().duration_since(pair[0].finished_at.unwrap());
            let least = BACKOFF * (1 << number);
            assert!(waited.unsigned_abs() >= least, "{name}: {waited}");
        }
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_first_and_then_succeeds_has_succeeded() {
    let place = Place::new().await;
    let node = place.node().await;
    let script = "echo try $TASUKI_ATTEMPT; test $TASUKI_ATTEMPT = 3";
    let run = place.once("third time", tried(4, &shell(script))).await;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 3));
    assert_eq!(run.error_code, None);
    let outcomes: Vec<_> =
        place.store.executions(run.id).await.unwrap().iter().map(|one| one.outcome).collect();
    let (failed, succeeded) = (Some(AttemptOutcome::Failed), Some(AttemptOutcome::Succeeded));
    assert_eq!(outcomes, [failed, failed, succeeded]);
    assert_eq!(place.log(run.id).await, ["try 3"]);
    let first = place.store.read_log(run.id, 1, 0, 10).await.unwrap().unwrap();
    assert_eq!(first.lines[0].text, "try 1");
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_longer_than_the_workers_room_is_worked_off_without_going_round() {
    let place = Place::new().await;
    let node = place.node_like(Functions::default(), |config| config.slots = Some(2)).await;
    let job = place.task("sleep", &command(&["sleep", "0.6"])).await;
    let runs = vec![NewRun::task(&job.newest); 8];
    let made = place.store.create(Writer::Api, &runs).await.unwrap();
    place.wake.all();
    for made in made {
        let run = place.ended(made.run).await;
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Succeeded, 1), "{run:?}");
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_finds_no_worker_in_time_expires() {
    let place = Place::new().await;
    let node = place.node().await;
    let labels = ["gpu".to_owned()].into();
    let job = JobSpec { labels, ..spec(&command(&["true"])) };
    let job = place.job("picky", Trigger::Task, job).await;
    let clock = place.store.clock().await.unwrap();
    let soon = Some(clock + SignedDuration::from_millis(300));
    let expiring = NewRun { expires_at: soon, ..NewRun::task(&job.newest) };
    let made = place.store.create(Writer::Api, &[expiring, NewRun::task(&job.newest)]).await;
    let [expiring, patient] = made.unwrap()[..] else { panic!("two were made") };
    place.wake.all();
    let run = place.ended(expiring.run).await;
    assert_eq!((run.state, run.counters.tries), (RunState::Expired, 0), "{run:?}");
    let patient = place.store.run(patient.run).await.unwrap().unwrap();
    assert_eq!(patient.state, RunState::Pending, "nobody is good for it, and it waits");
    let _ = place.store.cancel(Writer::Api, patient.id, "test", None).await.unwrap();
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_settings_are_in_force_while_the_node_runs() {
    let place = Place::new().await;
    let node = place.node_like(Functions::default(), |_| {}).await;
    let work = Work { stop_grace: Some(Duration::ZERO), ..command(&["sleep", "60"]) };
    place.set(&[("timeout", "100ms"), ("max_jobs_per_worker", "1")]).await;
    let told = async || {
        let worker = place.store.worker(node.worker_id()).await.unwrap().unwrap();
        (worker.slots == 1).then_some(())
    };
    place.until("the worker has one slot", told).await;
    let run = place.once("endless", spec(&work)).await;
    assert_eq!(run.state, RunState::TimedOut, "{run:?}");

    // One at a time now; two again when somebody says so.
    let meet = |name: &str| {
        let data = place.data.join(name).display().to_string();
        shell(&format!(
            "touch {data}.$TASUKI_RUN_ID; until [ $(ls {data}.* | wc -l) = 2 ]; do sleep 0.02; done"
        ))
    };
    let timeout = Some(Duration::from_secs(60));
    let job = place.task("pair", &Work { timeout, ..meet("pair") }).await;
    let pair = [place.submit(&job, None).await, place.submit(&job, None).await];
    let running = async || {
        let first = place.store.run(pair[0]).await.unwrap().unwrap();
        (first.state == RunState::Running).then_some(())
    };
    place.until("the first runs", running).await;
    assert!(!place.store.run(pair[1]).await.unwrap().unwrap().state.is_ended());
    place.set(&[("max_jobs_per_worker", "2")]).await;
    for run in pair {
        assert_eq!(place.ended(run).await.state, RunState::Succeeded);
    }
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_its_node_stops_may_finish() {
    let place = Place::new().await;
    let node = place.node().await;
    let go = place.data.join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done", go.display());
    let job = place.task("slow", &shell(&script)).await;
    let run = place.submit(&job, None).await;
    let later = {
        let clock = place.store.clock().await.unwrap();
        let at = Some(clock + SignedDuration::from_secs(5));
        let later = NewRun { scheduled_for: at, ..NewRun::task(&job.newest) };
        place.store.create(Writer::Api, &[later]).await.unwrap()[0].run
    };
    place.wake.all();
    for (run, state) in [(run, RunState::Running), (later, RunState::Assigned)] {
        let reached = async || {
            let found = place.store.run(run).await.unwrap().unwrap();
            (found.state == state).then_some(())
        };
        place.until(&format!("run {run} is {state}"), reached).await;
    }
    let worker = node.worker_id();
    let stopping = tokio::spawn(node.stop());
    let draining = async || {
        let worker = place.store.worker(worker).await.unwrap().unwrap();
        worker.draining_at.map(drop)
    };
    place.until("it drains", draining).await;
    std::fs::write(&go, "").unwrap();
    stopping.await.unwrap();
    assert_eq!(place.store.run(run).await.unwrap().unwrap().state, RunState::Succeeded);
    assert_eq!(place.log(run).await, ["done"]);
    // What had not begun was given back, for whoever comes next.
    let later = place.store.run(later).await.unwrap().unwrap();
    assert_eq!((later.state, later.counters.tries), (RunState::Orphaned, 0), "{later:?}");
    assert!(place.store.worker(worker).await.unwrap().unwrap().gone_at.is_some());
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_drain_is_stopped_and_tried_again_elsewhere() {
    let place = Place::new().await;
    let mut functions = Functions::default();
    functions.add("wait", |(), call| async move {
        if call.attempt_no() == 1 {
            call.stopped().await;
        }
        Ok(json!(call.attempt_no()))
    });
    let node = place
        .node_like(functions.clone(), |config| config.drain = Duration::from_millis(100))
        .await;
    let wait = Work::new(tasuki_core::job_spec::What::Function("wait".to_owned()));
    let script = shell("if [ $TASUKI_ATTEMPT = 1 ]; then exec sleep 60; fi");
    let mut runs = Vec::new();
    for (name, times, work) in [("twice", 2, &script), ("once", 1, &script), ("function", 2, &wait)]
    {
        let job = place.job(name, Trigger::Task, tried(times, work)).await;
        runs.push(place.submit(&job, None).await);
    }
    for run in &runs {
        let running = async || {
            let found = place.store.run(*run).await.unwrap().unwrap();
            (found.state == RunState::Running).then_some(())
        };
        place.until(&format!("run {run} runs"), running).await;
    }
    node.stop().await;
    for (run, state) in
        runs.iter().zip([RunState::RetryWait, RunState::Failed, RunState::RetryWait])
    {
        assert_eq!(place.store.run(*run).await.unwrap().unwrap().state, state);
        let ended = place.store.executions(*run).await.unwrap().remove(0);
        let code = ended.error_code.as_ref().map(ErrorCode::as_str);
        assert_eq!(code, Some("DRAINED"), "{ended:?}");
    }
    let node = place.node_with(functions).await;
    for run in [runs[0], runs[2]] {
        let run = place.ended(run).await;
        assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));
    }
    node.stop().await;
    place.end().await;
}
