//! Whose turn it is among lanes, with hours between two looks.

use super::*;
use futures_util::FutureExt as _;
use tasuki_core::{Lane, Priority};
use tasuki_store::{Writer, NewRun, Task};

/// As many as the worker runs at once.
const SLOTS: usize = 50;

impl World {
    async fn submit_all(&self, job: &Job, priority: Priority, count: usize) -> Vec<RunId> {
        let lane = Lane { priority, ..Lane::new(FUNCTION) }.to_string();
        let runs = vec![NewRun { lane: Some(lane), ..NewRun::task(&job.newest) }; count];
        let made = self.store.create(Writer::Api, &runs).await.unwrap();
        made.into_iter().map(|made| made.run).collect()
    }

    /// All that runs ends, and is reported.
    async fn end_all(&self) -> usize {
        let open: Vec<RunId> =
            self.hands.open.lock().unwrap().iter().map(|(key, _)| RunId(key.run)).collect();
        open.iter().for_each(|run| self.hands.end(*run));
        self.worker.report_all().await.unwrap();
        open.len()
    }

    /// A job of which one run waits for the other.
    async fn one_at_a_time(&self) -> Job {
        let mut definition = Self::definition(Trigger::Task, "one at a time", true);
        definition.spec.concurrency = ConcurrencyPolicy::Forbid;
        self.create("single", &definition).await
    }

    fn runs_now(&self, run: RunId) -> bool {
        self.hands.open.lock().unwrap().iter().any(|(key, _)| key.run == run.0)
    }
}

async fn with_job() -> (World, Job) {
    let world = World::with_patience("12:00:00").await;
    let job = world.create("job", &World::definition(Trigger::Task, "", true)).await;
    world.worker.pulse().await.unwrap();
    (world, job)
}

#[tokio::test]
async fn what_has_a_head_start_goes_before_what_waits_already() {
    let (world, job) = with_job().await;
    let normal = world.submit_all(&job, Priority::Normal, 2 * SLOTS).await;
    world.jump(at("12:30:00"));
    let high = world.submit_all(&job, Priority::High, 1).await[0];
    let low = world.submit_all(&job, Priority::Low, 1).await[0];
    world.work().await;
    assert!(world.runs_now(high), "half an hour is less than its head start");
    // The lane that was first gave one; the rest of the room went to what comes next.
    assert!(world.runs_now(normal[SLOTS - 2]) && !world.runs_now(normal[SLOTS - 1]));
    assert_eq!(world.end_all().await, SLOTS);
    world.work().await;
    assert!(!world.runs_now(low));
    assert_eq!(world.end_all().await, SLOTS);
    world.work().await;
    assert!(world.runs_now(low));
    assert_eq!(world.end_all().await, 2);
    world.work().await;
    world.end().await;
}

/// While it looks whether something waits, it knows what it knew before.
#[tokio::test]
async fn what_is_submitted_during_a_look_is_carried_at_once() {
    let (world, job) = with_job().await;
    let task = [Task::new(Arc::new(job.newest.clone()))];
    assert!(world.worker.take_in(&task).await.unwrap().is_none(), "it has never looked");
    world.work().await;
    let (looked, taken) = tokio::join!(world.worker.claim(), world.worker.take_in(&task));
    looked.unwrap();
    assert!(world.runs_now(taken.unwrap().expect("nothing waits")[0].run));
    // Something does wait: nobody is passed over.
    let waits = world.submit_all(&job, Priority::Low, SLOTS).await;
    world.worker.claim().await.unwrap();
    assert!(world.runs_now(waits[0]));
    assert!(world.worker.take_in(&task).await.unwrap().is_none());
    assert_eq!(world.end_all().await, SLOTS);
    world.work().await;
    assert_eq!(world.end_all().await, 1);
    world.end().await;
}

/// What was taken in while it looked is counted when it claims what it found.
#[tokio::test]
async fn who_is_taken_in_during_a_look_leaves_less_room() {
    let (world, job) = with_job().await;
    world.work().await;
    // Nobody told the worker.
    let due = world.submit_all(&job, Priority::High, SLOTS).await;
    let tasks = vec![Task::new(Arc::new(job.newest.clone())); 3];
    let (looked, taken) = tokio::join!(world.worker.claim(), world.worker.take_in(&tasks));
    looked.unwrap();
    assert_eq!(taken.unwrap().expect("nothing waits there").len(), tasks.len());
    world.work().await;
    assert_eq!(due.iter().filter(|run| world.runs_now(**run)).count(), SLOTS - tasks.len());
    assert_eq!(world.end_all().await, SLOTS);
    world.work().await;
    assert_eq!(world.end_all().await, tasks.len());
    world.end().await;
}

/// However many claims are under way: together they take no more than there is room for.
#[tokio::test]
async fn claims_that_are_under_way_at_once_share_the_room() {
    let slots = 3_500;
    let world = World::new("12:00:00", false, slots).await;
    let job = world.create("job", &World::definition(Trigger::Task, "", true)).await;
    world.worker.pulse().await.unwrap();
    world.submit_all(&job, Priority::Normal, 8_000).await;
    let open = || world.hands.open.lock().unwrap().len();
    world.work().await;
    assert_eq!(open(), slots as usize);
    let some: Vec<RunId> = world
        .hands
        .open
        .lock()
        .unwrap()
        .iter()
        .take(2_600)
        .map(|(key, _)| RunId(key.run))
        .collect();
    some.iter().for_each(|run| world.hands.end(*run));
    world.worker.report_all().await.unwrap();
    world.work().await;
    assert_eq!(open(), slots as usize);
    while world.end_all().await > 0 {
        world.work().await;
    }
    world.end().await;
}

/// Work of normal priority never ends, and yet a low one has its turn, an hour after it would have had it.
#[tokio::test]
async fn nothing_starves() {
    let (world, job) = with_job().await;
    let low = world.submit_all(&job, Priority::Low, 1).await[0];
    world.submit_all(&job, Priority::Normal, SLOTS).await;
    let mut started = None;
    for minutes in (0..=100).step_by(10) {
        world.jump(at("12:00:00") + SignedDuration::from_mins(minutes));
        let newest = world.submit_all(&job, Priority::Normal, SLOTS).await;
        world.work().await;
        assert!(!world.runs_now(newest[0]) || minutes == 0, "there is always more to do");
        if world.runs_now(low) {
            started = Some(minutes);
            break;
        }
        assert_eq!(world.end_all().await, SLOTS);
    }
    // Until 13:10 what was submitted until 13:00 is before it.
    assert_eq!(started, Some(80));
    while world.end_all().await > 0 {
        world.work().await;
    }
    world.end().await;
}

/// What is due first cannot be claimed: another of its kind runs. What waits in other lanes goes on.
#[tokio::test]
async fn a_lane_in_which_nothing_can_be_claimed_stops_no_other() {
    let (world, job) = with_job().await;
    let single = world.one_at_a_time().await;
    let one_by_one = world.submit_all(&single, Priority::Highest, 2).await;
    let normal = world.submit_all(&job, Priority::Normal, 3).await;
    world.jump(at("12:00:01"));
    world.work().await;
    assert!(world.runs_now(one_by_one[0]) && !world.runs_now(one_by_one[1]));
    assert!(normal.iter().all(|run| world.runs_now(*run)));
    // It is asked for when something is due, not all the time.
    assert_eq!(world.worker.claim().await.unwrap(), None);
    while world.end_all().await > 0 {
        world.work().await;
    }
    assert_eq!(world.store.run(one_by_one[1]).await.unwrap().unwrap().state, RunState::Succeeded);
    world.end().await;
}

#[tokio::test]
async fn what_comes_due_behind_what_is_blocked_is_waited_for() {
    let (world, job) = with_job().await;
    let single = world.one_at_a_time().await;
    world.submit_all(&single, Priority::Normal, 2).await;
    let soon = at("12:00:00") + SignedDuration::from_millis(800);
    let later = NewRun { scheduled_for: Some(soon), ..NewRun::task(&job.newest) };
    world.store.create(Writer::Api, &[later]).await.unwrap();
    world.work().await;
    assert_eq!(world.hands.open.lock().unwrap().len(), 1);
    assert_eq!(world.worker.claim().await.unwrap(), Some(800_000));
    world.jump(soon);
    world.work().await;
    assert_eq!(world.end_all().await, 2);
    world.work().await;
    world.end_all().await;
    world.end().await;
}

/// Somebody waited for it, and nobody else tells them.
#[tokio::test]
async fn an_end_that_gives_back_a_hold_wakes_whoever_claims() {
    let (world, job) = with_job().await;
    let single = world.one_at_a_time().await;
    for (job, wakes) in [(&job, false), (&single, true)] {
        world.submit_all(job, Priority::Normal, 1).await;
        world.work().await;
        let _ = world.wake.claims_woken().now_or_never();
        assert_eq!(world.end_all().await, 1);
        assert_eq!(world.wake.claims_woken().now_or_never().is_some(), wakes);
    }
    world.work().await;
    world.end().await;
}
