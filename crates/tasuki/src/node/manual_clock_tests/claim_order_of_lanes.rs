//! Scenarios for the order in which workers claim from lanes, with hours between two polls.

use super::*;
use futures_util::FutureExt as _;
use tasuki_core::{Lane, Priority};
use tasuki_store::{NewRun, PendingTask, Writer};

/// Slots of the worker.
const SLOTS: usize = 50;

impl Scenario {
    async fn submit_all(&self, job: &Job, priority: Priority, count: usize) -> Vec<RunId> {
        let lane = Lane { priority, ..Lane::new(FUNCTION) }.to_string();
        let runs = vec![NewRun { lane: Some(lane), ..NewRun::task(&job.newest) }; count];
        let made = self.store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
        made.into_iter().map(|made| made.run).collect()
    }

    /// Completes and reports all running attempts; returns their number.
    async fn finish_all(&self) -> usize {
        let open: Vec<RunId> =
            self.executor.running.lock().unwrap().iter().map(|(key, _)| RunId(key.run)).collect();
        open.iter().for_each(|run| self.executor.complete(*run));
        self.worker.report_all().await.unwrap();
        open.len()
    }

    /// A job with the forbid policy: its runs execute one at a time.
    async fn create_forbid_job(&self) -> Job {
        let mut definition = Self::definition(Trigger::Task, "one at a time", true);
        definition.spec.concurrency = ConcurrencyPolicy::Forbid;
        self.create_job("single", &definition).await
    }

    fn is_running(&self, run: RunId) -> bool {
        self.executor.running.lock().unwrap().iter().any(|(key, _)| key.run == run.0)
    }
}

async fn with_job() -> (Scenario, Job) {
    let scenario = Scenario::with_manual_completion("12:00:00").await;
    let job = scenario.create_job("job", &Scenario::definition(Trigger::Task, "", true)).await;
    scenario.worker.heartbeat().await.unwrap();
    (scenario, job)
}

#[tokio::test]
async fn a_higher_priority_run_starts_before_runs_that_waited_for_less_than_its_head_start() {
    let (scenario, job) = with_job().await;
    let normal = scenario.submit_all(&job, Priority::Normal, 2 * SLOTS).await;
    scenario.set_time(at("12:30:00"));
    let high = scenario.submit_all(&job, Priority::High, 1).await[0];
    let low = scenario.submit_all(&job, Priority::Low, 1).await[0];
    scenario.run_worker().await;
    assert!(scenario.is_running(high), "half an hour is less than its head start");
    // The first lane had one run; the other slots went to the next lane.
    assert!(scenario.is_running(normal[SLOTS - 2]) && !scenario.is_running(normal[SLOTS - 1]));
    assert_eq!(scenario.finish_all().await, SLOTS);
    scenario.run_worker().await;
    assert!(!scenario.is_running(low));
    assert_eq!(scenario.finish_all().await, SLOTS);
    scenario.run_worker().await;
    assert!(scenario.is_running(low));
    assert_eq!(scenario.finish_all().await, 2);
    scenario.run_worker().await;
    scenario.check_and_finish().await;
}

/// During a poll the worker still uses the result of the previous poll.
#[tokio::test]
async fn a_task_submitted_during_a_poll_is_claimed_at_once() {
    let (scenario, job) = with_job().await;
    let task = [PendingTask::new(Arc::new(job.newest.clone()))];
    assert!(
        scenario.worker.submit_and_claim(&task).await.unwrap().is_none(),
        "the worker has not polled yet"
    );
    scenario.run_worker().await;
    let (polled, submitted) =
        tokio::join!(scenario.worker.claim_and_launch(), scenario.worker.submit_and_claim(&task));
    polled.unwrap();
    assert!(scenario.is_running(submitted.unwrap().expect("nothing waits")[0].run));
    // Runs are waiting now: a local submit must not overtake them.
    let waiting = scenario.submit_all(&job, Priority::Low, SLOTS).await;
    scenario.worker.claim_and_launch().await.unwrap();
    assert!(scenario.is_running(waiting[0]));
    assert!(scenario.worker.submit_and_claim(&task).await.unwrap().is_none());
    assert_eq!(scenario.finish_all().await, SLOTS);
    scenario.run_worker().await;
    assert_eq!(scenario.finish_all().await, 1);
    scenario.check_and_finish().await;
}

/// Tasks submitted locally during a poll reduce the number of runs that the worker claims after it.
#[tokio::test]
async fn tasks_submitted_during_a_poll_reduce_the_claim() {
    let (scenario, job) = with_job().await;
    scenario.run_worker().await;
    // Without a wake-up for the worker.
    let due = scenario.submit_all(&job, Priority::High, SLOTS).await;
    let tasks = vec![PendingTask::new(Arc::new(job.newest.clone())); 3];
    let (polled, submitted) =
        tokio::join!(scenario.worker.claim_and_launch(), scenario.worker.submit_and_claim(&tasks));
    polled.unwrap();
    assert_eq!(submitted.unwrap().expect("nothing waits there").len(), tasks.len());
    scenario.run_worker().await;
    assert_eq!(due.iter().filter(|run| scenario.is_running(**run)).count(), SLOTS - tasks.len());
    assert_eq!(scenario.finish_all().await, SLOTS);
    scenario.run_worker().await;
    assert_eq!(scenario.finish_all().await, tasks.len());
    scenario.check_and_finish().await;
}

/// Concurrent claims together take no more runs than there are free slots.
#[tokio::test]
async fn concurrent_claims_together_stay_within_the_slots() {
    let slots = 3_500;
    let scenario = Scenario::new("12:00:00", false, slots).await;
    let job = scenario.create_job("job", &Scenario::definition(Trigger::Task, "", true)).await;
    scenario.worker.heartbeat().await.unwrap();
    scenario.submit_all(&job, Priority::Normal, 8_000).await;
    let running_count = || scenario.executor.running.lock().unwrap().len();
    scenario.run_worker().await;
    assert_eq!(running_count(), slots as usize);
    let running: Vec<RunId> = scenario
        .executor
        .running
        .lock()
        .unwrap()
        .iter()
        .take(2_600)
        .map(|(key, _)| RunId(key.run))
        .collect();
    running.iter().for_each(|run| scenario.executor.complete(*run));
    scenario.worker.report_all().await.unwrap();
    scenario.run_worker().await;
    assert_eq!(running_count(), slots as usize);
    while scenario.finish_all().await > 0 {
        scenario.run_worker().await;
    }
    scenario.check_and_finish().await;
}

/// A low-priority run is started an hour later than a normal one, although normal-priority runs never stop arriving.
#[tokio::test]
async fn low_priority_does_not_starve() {
    let (scenario, job) = with_job().await;
    let low = scenario.submit_all(&job, Priority::Low, 1).await[0];
    scenario.submit_all(&job, Priority::Normal, SLOTS).await;
    let mut started = None;
    for minutes in (0..=100).step_by(10) {
        scenario.set_time(at("12:00:00") + SignedDuration::from_mins(minutes));
        let newest = scenario.submit_all(&job, Priority::Normal, SLOTS).await;
        scenario.run_worker().await;
        assert!(!scenario.is_running(newest[0]) || minutes == 0, "there is always more to do");
        if scenario.is_running(low) {
            started = Some(minutes);
            break;
        }
        assert_eq!(scenario.finish_all().await, SLOTS);
    }
    // Until 13:10, normal runs submitted before 13:00 come first.
    assert_eq!(started, Some(80));
    while scenario.finish_all().await > 0 {
        scenario.run_worker().await;
    }
    scenario.check_and_finish().await;
}

/// The run that is due first cannot be claimed because of a hold; runs in other lanes are claimed all the same.
#[tokio::test]
async fn a_blocked_lane_does_not_block_other_lanes() {
    let (scenario, job) = with_job().await;
    let single = scenario.create_forbid_job().await;
    let one_by_one = scenario.submit_all(&single, Priority::Highest, 2).await;
    let normal = scenario.submit_all(&job, Priority::Normal, 3).await;
    scenario.set_time(at("12:00:01"));
    scenario.run_worker().await;
    assert!(scenario.is_running(one_by_one[0]) && !scenario.is_running(one_by_one[1]));
    assert!(normal.iter().all(|run| scenario.is_running(*run)));
    // The claim loop polls again when a run becomes due, not all the time.
    assert_eq!(scenario.worker.claim_and_launch().await.unwrap(), None);
    while scenario.finish_all().await > 0 {
        scenario.run_worker().await;
    }
    assert_eq!(
        scenario.store.find_run(one_by_one[1]).await.unwrap().unwrap().state,
        RunState::Succeeded
    );
    scenario.check_and_finish().await;
}

#[tokio::test]
async fn a_run_due_behind_a_blocked_run_sets_the_next_poll() {
    let (scenario, job) = with_job().await;
    let single = scenario.create_forbid_job().await;
    scenario.submit_all(&single, Priority::Normal, 2).await;
    let soon = at("12:00:00") + SignedDuration::from_millis(800);
    let later = NewRun { scheduled_for: Some(soon), ..NewRun::task(&job.newest) };
    scenario.store.create_or_find_runs(Writer::Api, &[later]).await.unwrap();
    scenario.run_worker().await;
    assert_eq!(scenario.executor.running.lock().unwrap().len(), 1);
    assert_eq!(scenario.worker.claim_and_launch().await.unwrap(), Some(800_000));
    scenario.set_time(soon);
    scenario.run_worker().await;
    assert_eq!(scenario.finish_all().await, 2);
    scenario.run_worker().await;
    scenario.finish_all().await;
    scenario.check_and_finish().await;
}

/// A run may be waiting for the hold, and nothing else would wake the claim loop.
#[tokio::test]
async fn releasing_a_hold_wakes_the_claim_loop() {
    let (scenario, job) = with_job().await;
    let single = scenario.create_forbid_job().await;
    for (job, wakes) in [(&job, false), (&single, true)] {
        scenario.submit_all(job, Priority::Normal, 1).await;
        scenario.run_worker().await;
        let _ = scenario.wakeups.wait_for_claim_wakeup().now_or_never();
        assert_eq!(scenario.finish_all().await, 1);
        assert_eq!(scenario.wakeups.wait_for_claim_wakeup().now_or_never().is_some(), wakes);
    }
    scenario.run_worker().await;
    scenario.check_and_finish().await;
}
