//! What is not started, or lost, or in the way.

use super::*;
use futures_util::FutureExt as _;
use tasuki_core::ErrorCode;
use tasuki_store::{Writer, NewRun};

const STEP: SignedDuration = SignedDuration::from_millis(500);

impl World {
    async fn task(&self, definition: &JobDefinition) -> RunId {
        let name = format!("job {}", self.hands.launched.lock().unwrap().len());
        let job = self.create(&name, definition).await;
        self.submit(&job).await
    }

    async fn submit(&self, job: &Job) -> RunId {
        let run = NewRun::task(&job.newest);
        self.store.create(Writer::Api, &[run]).await.unwrap()[0].run
    }

    async fn run(&self, run: RunId) -> Run {
        self.store.run(run).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_run_that_nobody_starts_goes_round_until_it_is_given_up() {
    let world = World::at("12:00:00").await;
    let run = world.task(&World::definition(Trigger::Task, "", false)).await;
    let mut states = Vec::new();
    // The worker shows that it is alive, and does nothing.
    for second in 0..90 {
        world.jump(at("12:00:00") + SignedDuration::from_secs(second));
        world.worker.pulse().await.unwrap();
        world.lead().await;
        let state = world.run(run).await.state;
        if states.last() != Some(&state) {
            states.push(state);
        }
    }
    let run = world.run(run).await;
    assert_eq!(run.state, RunState::Expired, "{states:?}");
    assert_eq!((run.counters.releases, run.counters.tries), (3, 0), "max_releases of its job");
    assert_eq!(world.store.executions(run.id).await.unwrap().len(), 3);
    world.end().await;
}

#[tokio::test]
async fn a_run_that_is_overdue_when_it_is_assigned_is_started_and_not_given_back() {
    let world = World::at("12:00:00").await;
    let run = world.task(&World::definition(Trigger::Task, "", false)).await;
    world.turn().await;
    world.jump(at("12:10:00"));
    let late = world.task(&World::definition(Trigger::Task, "", false)).await;
    world.jump(at("12:20:00"));
    world.work().await;
    world.turn().await;
    for run in [run, late] {
        let run = world.run(run).await;
        assert_eq!((run.state, run.counters.attempt_no), (RunState::Succeeded, 1));
    }
    world.end().await;
}

#[tokio::test]
async fn lost_runs_are_left_alone_while_recovery_is_off() {
    let world = World::with_patience("12:00:00").await;
    world.set(&[("recovery_enabled", "false")]).await;
    let mut job = World::definition(Trigger::Task, "", false);
    job.spec.max_attempts = 2;
    let run = world.task(&job).await;
    // Nobody knows what is assigned before the first heartbeat.
    world.turn().await;
    world.turn().await;
    assert_eq!(world.run(run).await.state, RunState::Running);
    world.jump(at("13:00:00"));
    world.lead().await;
    assert_eq!(world.run(run).await.state, RunState::Running, "an hour silent, and left alone");
    world.set(&[("recovery_enabled", "true")]).await;
    world.lead().await;
    assert_eq!(world.run(run).await.state, RunState::RetryWait);
    let lost = world.store.executions(run).await.unwrap().remove(0);
    assert_eq!(lost.error_code.as_ref().map(ErrorCode::as_str), Some("HEARTBEAT_TIMEOUT"));
    world.end().await;
}

/// One that must wait for another of its kind is due, and yet nothing can be done about it.
#[tokio::test]
async fn a_claimer_does_not_spin_while_something_is_in_the_way() {
    let world = World::with_patience("12:00:00").await;
    let mut job = World::definition(Trigger::Task, "", true);
    job.spec.concurrency = ConcurrencyPolicy::Forbid;
    let job = world.create("one at a time", &job).await;
    let (first, second) = (world.submit(&job).await, world.submit(&job).await);
    world.worker.pulse().await.unwrap();
    world.worker.claim().await.unwrap();
    assert_eq!(world.run(first).await.state, RunState::Running);
    world.jump(at("12:00:01"));
    let next = world.worker.claim().await.unwrap();
    assert_eq!(next, None, "nothing comes up, and what waits is for whoever ends the first");

    // Something that comes up is seen behind it.
    let later = World::definition(every("1s", None), "", true);
    world.create("later", &later).await;
    world.lead().await;
    let next = world.worker.claim().await.unwrap();
    assert_eq!(next, Some(2_000_000), "12:00:02");
    world.hands.end(first);
    world.worker.report_all().await.unwrap();
    world.go_on_to(at("12:00:02"), STEP).await;
    assert_eq!(world.run(second).await.state, RunState::Running);
    world.end().await;
}

/// Who ran something keeps its name there, as good as it can be told.
#[tokio::test]
async fn a_worker_that_nobody_has_heard_of_for_a_week_is_forgotten() {
    let world = World::at("12:00:00").await;
    let run = world.task(&World::definition(Trigger::Task, "", true)).await;
    let other = WorkerId::from_random(8 << 70);
    let (pid, address, labels) = (None, None, None);
    let (slots, function_slots) = (0, 0);
    let node = "there".parse().unwrap();
    let row = NewWorker { id: other, node, pid, address, labels, slots, function_slots };
    world.store.register_worker(&row).await.unwrap();
    world.turn().await;
    world.turn().await;
    let me = world.worker.id();
    assert_eq!(world.run(run).await.worker, Some(me));
    let days = |days: i64| at("12:00:00") + SignedDuration::from_hours(24 * days);
    for (day, left) in [(6, vec![me, other]), (8, vec![me])] {
        world.jump(days(day));
        world.turn().await;
        assert!(world.leader.forget_workers().await.unwrap());
        let mut workers: Vec<_> = world.store.workers().await.unwrap();
        workers.sort_by_key(|worker| worker.id);
        assert_eq!(workers.iter().map(|worker| worker.id).collect::<Vec<_>>(), left, "day {day}");
    }
    // Its own turn comes when another leads.
    let week = Duration::from_hours(7 * 24);
    let epoch = world.leader.term().unwrap();
    for (day, deleted) in [(20, 0), (21, 1)] {
        world.jump(days(day));
        let told = world.store.forget_workers(epoch, week, other, 10).await.unwrap();
        assert_eq!(told.deleted, deleted, "first it counts as gone, then its row goes");
    }
    let (now, sentences) = world.operator.explain(run).await.unwrap();
    assert_eq!(now.run.worker, Some(me));
    assert!(sentences.iter().any(|told| told.contains(&format!("worker {me}"))), "{sentences:?}");
    assert_eq!(world.operator.run_detail(run).await.unwrap().executions[0].worker, me);
}

/// However many there are, and whatever people have switched off: it is no part of recovery.
#[tokio::test]
async fn workers_are_forgotten_page_after_page() {
    let world = World::at("12:00:00").await;
    let me = world.worker.id();
    for number in 0..1_001 {
        let id = WorkerId::from_random((8 << 70) + (number << 16));
        let (pid, address, labels) = (None, None, None);
        let node = "there".parse().unwrap();
        let row = NewWorker { id, node, pid, address, labels, slots: 0, function_slots: 0 };
        world.store.register_worker(&row).await.unwrap();
    }
    assert!(!world.leader.forget_workers().await.unwrap(), "it does not lead");
    for (day, left) in [(8, 1_001), (9, 0)] {
        world.jump(at("12:00:00") + SignedDuration::from_hours(24 * day));
        world.turn().await;
        assert!(world.leader.forget_workers().await.unwrap());
        let rows = world.store.workers().await.unwrap();
        assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [me]);
        let epoch = world.leader.term().unwrap();
        world.jump(at("12:00:00") + SignedDuration::from_hours(24 * day + 1));
        let week = Duration::from_hours(7 * 24);
        let told = world.store.forget_workers(epoch, week, me, 5_000).await.unwrap();
        assert_eq!(told.deleted, left, "day {day}");
    }
}

/// Who looks after what a worker carries rests while it carries nothing, and hears of it when it does.
#[tokio::test]
async fn a_worker_that_has_long_carried_nothing_is_not_looked_after_until_it_does() {
    let world = World::with_patience("12:00:00").await;
    let worker = Arc::clone(&world.worker);
    let rests = || worker.carries(Duration::ZERO);
    // It has just begun.
    rests().await;
    world.jump(at("12:00:30"));
    let mut rested = std::pin::pin!(rests());
    assert_eq!(rested.as_mut().now_or_never(), None);
    let run = world.task(&World::definition(Trigger::Task, "", true)).await;
    world.work().await;
    assert_eq!(world.run(run).await.state, RunState::Running);
    rested.await;
    world.jump(at("12:01:00"));
    // Long ago, but it is still there.
    rests().await;
    world.hands.end(run);
    world.work().await;
    let mut rested = std::pin::pin!(rests());
    assert_eq!(rested.as_mut().now_or_never(), None);
    let run = world.task(&World::definition(Trigger::Task, "", false)).await;
    world.lead().await;
    assert_eq!(world.run(run).await.state, RunState::Assigned);
    rested.await;
    world.work().await;
    world.hands.end(run);
    world.work().await;
    world.end().await;
}
