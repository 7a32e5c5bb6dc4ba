//! Scenarios with runs that are not started, lost or blocked by a hold, and with workers that are pruned.

use super::*;
use futures_util::FutureExt as _;
use tasuki_core::AttemptErrorCode;
use tasuki_store::{NewRun, Writer};

const STEP: SignedDuration = SignedDuration::from_millis(500);

impl Scenario {
    async fn create_job_and_run(&self, definition: &JobDefinition) -> RunId {
        let name = format!("job {}", self.executor.launched.lock().unwrap().len());
        let job = self.create_job(&name, definition).await;
        self.submit(&job).await
    }

    async fn submit(&self, job: &Job) -> RunId {
        let run = NewRun::task(&job.newest);
        self.store.create_or_find_runs(Writer::Api, &[run]).await.unwrap()[0].run
    }

    async fn find_run(&self, run: RunId) -> Run {
        self.store.find_run(run).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn an_unstarted_run_is_reassigned_until_it_expires() {
    let scenario = Scenario::starting_at("12:00:00").await;
    let run = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", false)).await;
    let mut states = Vec::new();
    // The worker sends heartbeats and starts nothing.
    for second in 0..90 {
        scenario.set_time(at("12:00:00") + SignedDuration::from_secs(second));
        scenario.worker.heartbeat().await.unwrap();
        scenario.run_leader().await;
        let state = scenario.find_run(run).await.state;
        if states.last() != Some(&state) {
            states.push(state);
        }
    }
    let run = scenario.find_run(run).await;
    assert_eq!(run.state, RunState::Expired, "{states:?}");
    assert_eq!((run.counters.releases, run.counters.tries), (3, 0), "max_releases of its job");
    assert_eq!(scenario.store.list_executions(run.id).await.unwrap().len(), 3);
    scenario.check_and_finish().await;
}

#[tokio::test]
async fn a_run_overdue_at_assignment_is_started_and_not_released() {
    let scenario = Scenario::starting_at("12:00:00").await;
    let run = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", false)).await;
    scenario.run_leader_and_worker().await;
    scenario.set_time(at("12:10:00"));
    let late = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", false)).await;
    scenario.set_time(at("12:20:00"));
    scenario.run_worker().await;
    scenario.run_leader_and_worker().await;
    for run in [run, late] {
        let run = scenario.find_run(run).await;
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Succeeded, 1));
    }
    scenario.check_and_finish().await;
}

#[tokio::test]
async fn lost_runs_are_not_recovered_while_recovery_is_off() {
    let scenario = Scenario::with_manual_completion("12:00:00").await;
    scenario.change_settings(&[("recovery_enabled", "false")]).await;
    let mut job = Scenario::definition(Trigger::Task, "", false);
    job.spec.max_attempts = 2;
    let run = scenario.create_job_and_run(&job).await;
    // The worker learns of assigned runs only with its first heartbeat.
    scenario.run_leader_and_worker().await;
    scenario.run_leader_and_worker().await;
    assert_eq!(scenario.find_run(run).await.state, RunState::Running);
    scenario.set_time(at("13:00:00"));
    scenario.run_leader().await;
    assert_eq!(
        scenario.find_run(run).await.state,
        RunState::Running,
        "not recovered after an hour without heartbeats"
    );
    scenario.change_settings(&[("recovery_enabled", "true")]).await;
    scenario.run_leader().await;
    assert_eq!(scenario.find_run(run).await.state, RunState::RetryWait);
    let lost = scenario.store.list_executions(run).await.unwrap().remove(0);
    assert_eq!(lost.error_code.as_ref().map(AttemptErrorCode::as_str), Some("HEARTBEAT_TIMEOUT"));
    scenario.check_and_finish().await;
}

/// A run of a forbid job is due, but the hold of another run blocks it.
#[tokio::test]
async fn the_claim_loop_does_not_spin_on_a_blocked_run() {
    let scenario = Scenario::with_manual_completion("12:00:00").await;
    let mut job = Scenario::definition(Trigger::Task, "", true);
    job.spec.concurrency = ConcurrencyPolicy::Forbid;
    let job = scenario.create_job("one at a time", &job).await;
    let (first, second) = (scenario.submit(&job).await, scenario.submit(&job).await);
    scenario.worker.heartbeat().await.unwrap();
    scenario.worker.claim_and_launch().await.unwrap();
    assert_eq!(scenario.find_run(first).await.state, RunState::Running);
    scenario.set_time(at("12:00:01"));
    let next = scenario.worker.claim_and_launch().await.unwrap();
    assert_eq!(
        next, None,
        "nothing is due later, and the waiting run is claimed when the first one ends"
    );

    // A run that is due later is found behind the blocked one.
    let later = Scenario::definition(every_trigger("1s", None), "", true);
    scenario.create_job("later", &later).await;
    scenario.run_leader().await;
    let next = scenario.worker.claim_and_launch().await.unwrap();
    assert_eq!(next, Some(2_000_000), "12:00:02");
    scenario.executor.complete(first);
    scenario.worker.report_all().await.unwrap();
    scenario.advance_to(at("12:00:02"), STEP).await;
    assert_eq!(scenario.find_run(second).await.state, RunState::Running);
    scenario.check_and_finish().await;
}

/// Runs keep the id of a pruned worker, and `explain` still shows it.
#[tokio::test]
async fn a_worker_without_a_heartbeat_for_a_week_is_pruned() {
    let scenario = Scenario::starting_at("12:00:00").await;
    let run = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", true)).await;
    let other = WorkerId::from_random(8 << 70);
    let (pid, address, labels) = (None, None, None);
    let (slots, function_slots) = (0, 0);
    let node = "there".parse().unwrap();
    let row = NewWorker { id: other, node, pid, address, labels, slots, function_slots };
    scenario.store.register_worker(&row).await.unwrap();
    scenario.run_leader_and_worker().await;
    scenario.run_leader_and_worker().await;
    let me = scenario.worker.id();
    assert_eq!(scenario.find_run(run).await.worker, Some(me));
    let days = |days: i64| at("12:00:00") + SignedDuration::from_hours(24 * days);
    for (day, left) in [(6, vec![me, other]), (8, vec![me])] {
        scenario.set_time(days(day));
        scenario.run_leader_and_worker().await;
        assert!(scenario.leader.prune_workers().await.unwrap());
        let mut workers: Vec<_> = scenario.store.list_workers().await.unwrap();
        workers.sort_by_key(|worker| worker.id);
        assert_eq!(workers.iter().map(|worker| worker.id).collect::<Vec<_>>(), left, "day {day}");
    }
    // This worker itself can be pruned once another worker is leader.
    let week = Duration::from_hours(7 * 24);
    let epoch = scenario.leader.active_epoch().unwrap();
    for (day, deleted) in [(20, 0), (21, 1)] {
        scenario.set_time(days(day));
        let pruned = scenario.store.prune_workers(epoch, week, other, 10).await.unwrap();
        assert_eq!(pruned.deleted, deleted, "first it is marked as gone, then its row is deleted");
    }
    let (now, sentences) = scenario.operator.explain_run(run).await.unwrap();
    assert_eq!(now.run.worker, Some(me));
    assert!(
        sentences.iter().any(|sentence| sentence.contains(&format!("worker {me}"))),
        "{sentences:?}"
    );
    assert_eq!(scenario.operator.get_run_detail(run).await.unwrap().executions[0].worker, me);
}

/// Pruning handles more workers than one page, and works while recovery is switched off.
#[tokio::test]
async fn workers_are_pruned_page_by_page() {
    let scenario = Scenario::starting_at("12:00:00").await;
    let me = scenario.worker.id();
    for number in 0..1_001 {
        let id = WorkerId::from_random((8 << 70) + (number << 16));
        let (pid, address, labels) = (None, None, None);
        let node = "there".parse().unwrap();
        let row = NewWorker { id, node, pid, address, labels, slots: 0, function_slots: 0 };
        scenario.store.register_worker(&row).await.unwrap();
    }
    assert!(!scenario.leader.prune_workers().await.unwrap(), "it is not leader");
    for (day, left) in [(8, 1_001), (9, 0)] {
        scenario.set_time(at("12:00:00") + SignedDuration::from_hours(24 * day));
        scenario.run_leader_and_worker().await;
        assert!(scenario.leader.prune_workers().await.unwrap());
        let rows = scenario.store.list_workers().await.unwrap();
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [me]);
        let epoch = scenario.leader.active_epoch().unwrap();
        scenario.set_time(at("12:00:00") + SignedDuration::from_hours(24 * day + 1));
        let week = Duration::from_hours(7 * 24);
        let pruned = scenario.store.prune_workers(epoch, week, me, 5_000).await.unwrap();
        assert_eq!(pruned.deleted, left, "day {day}");
    }
}

/// The loops that check leased runs wait while the worker holds none, and continue as soon as it holds one.
#[tokio::test]
async fn lease_loops_pause_while_a_worker_holds_no_runs() {
    let scenario = Scenario::with_manual_completion("12:00:00").await;
    let worker = Arc::clone(&scenario.worker);
    let wait = || worker.wait_interval_or_next_lease(Duration::ZERO);
    // The worker has just started.
    wait().await;
    scenario.set_time(at("12:00:30"));
    let mut waiting = std::pin::pin!(wait());
    assert_eq!(waiting.as_mut().now_or_never(), None);
    let run = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", true)).await;
    scenario.run_worker().await;
    assert_eq!(scenario.find_run(run).await.state, RunState::Running);
    waiting.await;
    scenario.set_time(at("12:01:00"));
    // The run was claimed long ago and still runs.
    wait().await;
    scenario.executor.complete(run);
    scenario.run_worker().await;
    let mut waiting = std::pin::pin!(wait());
    assert_eq!(waiting.as_mut().now_or_never(), None);
    let run = scenario.create_job_and_run(&Scenario::definition(Trigger::Task, "", false)).await;
    scenario.run_leader().await;
    assert_eq!(scenario.find_run(run).await.state, RunState::Assigned);
    waiting.await;
    scenario.run_worker().await;
    scenario.executor.complete(run);
    scenario.run_worker().await;
    scenario.check_and_finish().await;
}
