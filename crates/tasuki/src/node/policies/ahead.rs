//! A job is changed while its next runs are already made and given to a worker.

use super::*;
use crate::operator::JobDraft;

/// Looks, often enough that nothing is missed by much.
const STEP: SignedDuration = SignedDuration::from_millis(500);

/// Every ten seconds. At 12:00:39 what fires at 12:00:40, 12:00:50 and 12:01:00 is assigned already.
async fn a_second_before_it_fires(claimed: bool) -> (World, Job) {
    let world = World::at("12:00:00").await;
    let definition = World::definition(every("10s", None), "old", claimed);
    let job = world.create("job", &definition).await;
    world.go_on_to(at("12:00:39"), STEP).await;
    let fired = ["12:00:10", "12:00:20", "12:00:30"].map(|at| (at.to_owned(), "old".to_owned()));
    assert_eq!(world.launched(), fired);
    let ahead = if claimed { RunState::Pending } else { RunState::Assigned };
    let slots = world.slots(job.id, ahead).await;
    assert_eq!(slots[..2], ["12:00:40", "12:00:50"], "{ahead}");
    (world, job)
}

impl World {
    /// Goes on until 12:01:30 and tells what fired, as seconds and what.
    async fn fires(&self) -> String {
        self.go_on_to(at("12:01:30"), STEP).await;
        let fired: Vec<String> =
            self.launched().into_iter().map(|(at, what)| format!("{} {what}", &at[3..])).collect();
        fired.join(", ")
    }

    fn draft(&self, job: &Job) -> JobDraft {
        JobDraft::of(job).unwrap()
    }
}

const ALL_NEW: &str = "00:40 new, 00:50 new, 01:00 new, 01:10 new, 01:20 new, 01:30 new";

#[tokio::test]
async fn an_edited_command_takes_effect_a_second_before_it_fires() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        let mut draft = world.draft(&job);
        draft.work.description = Some("new".to_owned());
        let (_, withdrawn) = world.operator.edit_job(&by(), job.seen(), &draft).await.unwrap();
        assert!(withdrawn.len() >= 2, "{withdrawn:?}");
        assert_eq!(world.fires().await, ALL_NEW);
        for run in withdrawn {
            let run = world.store.run(run).await.unwrap().unwrap();
            assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 0));
        }
        world.end().await;
    }
}

#[tokio::test]
async fn an_edited_schedule_fires_at_its_new_times_and_never_in_the_past() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        let trigger = every("15s", None);
        let draft = JobDraft { trigger, ..world.draft(&job) };
        world.operator.edit_job(&by(), job.seen(), &draft).await.unwrap();
        assert_eq!(world.fires().await, "00:45 old, 01:00 old, 01:15 old, 01:30 old");
        world.end().await;
    }
    // A time of the day that has just passed is for tomorrow; an hour unwatched makes no difference.
    for (away, made_before) in [("12:00:39", &[][..]), ("13:00:39", &["12:00:40", "12:00:50"])] {
        let (world, job) = a_second_before_it_fires(false).await;
        world.jump(at(away));
        let trigger = time(ScheduleKind::DailyAt, "12:00", None);
        let draft = JobDraft { trigger, ..world.draft(&job) };
        let (edited, _) = world.operator.edit_job(&by(), job.seen(), &draft).await.unwrap();
        assert_eq!(edited.next_fire, Some("2026-11-17T12:00:00Z".parse().unwrap()));
        world.go_on_to(at(away) + SignedDuration::from_mins(1), STEP).await;
        assert_eq!(world.launched(), []);
        assert_eq!(world.slots(job.id, RunState::Skipped).await, made_before);
        world.end().await;
    }
}

#[tokio::test]
async fn a_disabled_job_does_not_fire_and_an_enabled_one_fires_from_then_on() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        let (off, _) = world.operator.disable_job(&by(), job.seen()).await.unwrap();
        assert_eq!(off.next_fire, None);
        world.go_on_to(at("12:01:05"), STEP).await;
        assert_eq!(world.launched(), []);
        world.operator.enable_job(&by(), &off.job, off.job.seen()).await.unwrap();
        assert_eq!(world.fires().await, "01:10 old, 01:20 old, 01:30 old");
        world.end().await;
    }
}

/// Off and on again at once: what was withdrawn is made anew, and fires once.
#[tokio::test]
async fn a_job_switched_off_and_on_before_it_fires_loses_no_slot() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        let (off, _) = world.operator.disable_job(&by(), job.seen()).await.unwrap();
        world.turn().await;
        world.operator.enable_job(&by(), &off.job, off.job.seen()).await.unwrap();
        assert_eq!(world.fires().await, ALL_NEW.replace("new", "old"));
        world.end().await;
    }
}

#[tokio::test]
async fn a_deleted_job_does_not_fire_and_its_name_can_be_used_again() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        world.operator.delete_job(&by(), job.seen()).await.unwrap();
        world.go_on_to(at("12:01:05"), STEP).await;
        assert_eq!(world.launched(), []);
        let definition = World::definition(every("10s", None), "new", claimed);
        world.create("job", &definition).await;
        assert_eq!(world.fires().await, "01:10 new, 01:20 new, 01:30 new");
        world.end().await;
    }
}

#[tokio::test]
async fn a_paused_job_fires_again_when_somebody_resumes_it() {
    for claimed in [false, true] {
        let (world, job) = a_second_before_it_fires(claimed).await;
        let (paused, _) =
            world.operator.pause_job(&by(), job.seen(), "a look", None).await.unwrap();
        assert_eq!(paused.next_fire, None);
        world.go_on_to(at("12:01:05"), STEP).await;
        assert_eq!(world.launched(), []);
        world.operator.resume_job(&by(), &paused.job, paused.job.seen()).await.unwrap();
        assert_eq!(world.fires().await, "01:10 old, 01:20 old, 01:30 old");
        assert_eq!(world.slots(job.id, RunState::Skipped).await, [""; 0], "nothing was missed");
        world.end().await;
    }
}

#[tokio::test]
async fn a_pause_with_an_end_ends_by_itself_on_the_instant() {
    for (until, expected) in [
        // A slot at the very end of the pause is no longer paused.
        ("12:01:00", "01:00 old, 01:10 old, 01:20 old, 01:30 old"),
        ("12:01:00.000001", "01:10 old, 01:20 old, 01:30 old"),
        ("12:01:25", "01:30 old"),
    ] {
        for claimed in [false, true] {
            let (world, job) = a_second_before_it_fires(claimed).await;
            let until = Some(at(until));
            let (paused, _) =
                world.operator.pause_job(&by(), job.seen(), "a look", until).await.unwrap();
            let first = format!("12:{}", &expected[..5]);
            assert_eq!(paused.next_fire.map(clock_time), Some(first));
            // Changed meanwhile, it is still paused, and then fires from what it is.
            let mut draft = world.draft(&paused.job);
            draft.work.description = Some("new".to_owned());
            world.operator.edit_job(&by(), paused.job.seen(), &draft).await.unwrap();
            assert_eq!(world.fires().await, expected.replace("old", "new"));
            world.end().await;
        }
    }
}

/// A pause that is cut short, and one that is made longer, within what is planned ahead.
#[tokio::test]
async fn the_end_of_a_pause_can_be_moved() {
    let (world, job) = a_second_before_it_fires(false).await;
    let pause = async |job: &Job, until: &str| {
        let until = Some(at(until));
        world.operator.pause_job(&by(), job.seen(), "a look", until).await.unwrap().0.job
    };
    let paused = pause(&job, "12:00:50").await;
    world.turn().await;
    assert_eq!(world.slots(job.id, RunState::Assigned).await, ["12:00:50", "12:01:00"]);
    let paused = pause(&paused, "12:01:20").await;
    world.turn().await;
    assert_eq!(world.slots(job.id, RunState::Assigned).await, [""; 0]);
    world.go_on_to(at("12:00:55"), STEP).await;
    world.operator.resume_job(&by(), &paused, paused.seen()).await.unwrap();
    assert_eq!(world.fires().await, "01:00 old, 01:10 old, 01:20 old, 01:30 old");
    world.end().await;
}

/// What is due already goes on from its copy, whatever becomes of its job.
#[tokio::test]
async fn what_runs_when_its_job_is_deleted_finishes() {
    let world = World::with_patience("12:00:00").await;
    let job = world.create("job", &World::definition(every("10s", None), "old", false)).await;
    world.go_on_to(at("12:00:10"), STEP).await;
    let running = world.runs(job.id).await.remove(0);
    assert_eq!(running.state, RunState::Running);
    world.operator.delete_job(&by(), job.seen()).await.unwrap();
    world.go_on_to(at("12:00:30"), STEP).await;
    world.hands.end(running.id);
    world.turn().await;
    assert_eq!(world.slots(job.id, RunState::Succeeded).await, ["12:00:10"]);
    assert_eq!(world.launched().len(), 1);
    world.end().await;
}
