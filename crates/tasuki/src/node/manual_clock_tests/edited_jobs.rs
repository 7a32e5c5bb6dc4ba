//! Scenarios in which a job is changed while its next runs are already created and assigned.

use super::*;
use crate::operator::JobDraft;

/// Step of the clock, small enough that runs start almost on time.
const STEP: SignedDuration = SignedDuration::from_millis(500);

/// A job that fires every ten seconds, at 12:00:39: the runs of 12:00:40, 12:00:50 and 12:01:00 exist already.
async fn a_second_before_the_next_fire(claimed: bool) -> (Scenario, Job) {
    let scenario = Scenario::starting_at("12:00:00").await;
    let definition = Scenario::definition(every_trigger("10s", None), "old", claimed);
    let job = scenario.create_job("job", &definition).await;
    scenario.advance_to(at("12:00:39"), STEP).await;
    let fired = ["12:00:10", "12:00:20", "12:00:30"].map(|at| (at.to_owned(), "old".to_owned()));
    assert_eq!(scenario.take_launched(), fired);
    let ahead = if claimed { RunState::Pending } else { RunState::Assigned };
    let slots = scenario.slots_in_state(job.id, ahead).await;
    assert_eq!(slots[..2], ["12:00:40", "12:00:50"], "{ahead}");
    (scenario, job)
}

impl Scenario {
    /// Advances to 12:01:30 and returns the launches as minute, second and description.
    async fn launches_until_the_end(&self) -> String {
        self.advance_to(at("12:01:30"), STEP).await;
        let fired: Vec<String> = self
            .take_launched()
            .into_iter()
            .map(|(at, what)| format!("{} {what}", &at[3..]))
            .collect();
        fired.join(", ")
    }

    fn draft(&self, job: &Job) -> JobDraft {
        JobDraft::from_job(job).unwrap()
    }
}

const ALL_NEW: &str = "00:40 new, 00:50 new, 01:00 new, 01:10 new, 01:20 new, 01:30 new";

#[tokio::test]
async fn an_edited_command_takes_effect_a_second_before_it_fires() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        let mut draft = scenario.draft(&job);
        draft.work.description = Some("new".to_owned());
        let (_, canceled) =
            scenario.operator.edit_job(&by(), job.expected_version(), &draft).await.unwrap();
        assert!(canceled.len() >= 2, "{canceled:?}");
        assert_eq!(scenario.launches_until_the_end().await, ALL_NEW);
        for run in canceled {
            let run = scenario.store.find_run(run).await.unwrap().unwrap();
            assert_eq!((run.state, run.counters.tries), (RunState::Canceled, 0));
        }
        scenario.check_and_finish().await;
    }
}

#[tokio::test]
async fn an_edited_schedule_fires_at_its_new_times_and_never_in_the_past() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        let trigger = every_trigger("15s", None);
        let draft = JobDraft { trigger, ..scenario.draft(&job) };
        scenario.operator.edit_job(&by(), job.expected_version(), &draft).await.unwrap();
        assert_eq!(
            scenario.launches_until_the_end().await,
            "00:45 old, 01:00 old, 01:15 old, 01:30 old"
        );
        scenario.check_and_finish().await;
    }
    // A time of the day that has just passed is for tomorrow; an hour unwatched makes no difference.
    for (away, made_before) in [("12:00:39", &[][..]), ("13:00:39", &["12:00:40", "12:00:50"])] {
        let (scenario, job) = a_second_before_the_next_fire(false).await;
        scenario.set_time(at(away));
        let trigger = time_trigger(ScheduleKind::DailyAt, "12:00", None);
        let draft = JobDraft { trigger, ..scenario.draft(&job) };
        let (edited, _) =
            scenario.operator.edit_job(&by(), job.expected_version(), &draft).await.unwrap();
        assert_eq!(edited.next_fire, Some("2026-11-17T12:00:00Z".parse().unwrap()));
        scenario.advance_to(at(away) + SignedDuration::from_mins(1), STEP).await;
        assert_eq!(scenario.take_launched(), []);
        assert_eq!(scenario.slots_in_state(job.id, RunState::Skipped).await, made_before);
        scenario.check_and_finish().await;
    }
}

#[tokio::test]
async fn a_disabled_job_does_not_fire_and_an_enabled_one_fires_from_then_on() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        let (off, _) = scenario.operator.disable_job(&by(), job.expected_version()).await.unwrap();
        assert_eq!(off.next_fire, None);
        scenario.advance_to(at("12:01:05"), STEP).await;
        assert_eq!(scenario.take_launched(), []);
        scenario.operator.enable_job(&by(), &off.job, off.job.expected_version()).await.unwrap();
        assert_eq!(scenario.launches_until_the_end().await, "01:10 old, 01:20 old, 01:30 old");
        scenario.check_and_finish().await;
    }
}

/// Disabled and immediately enabled again: the canceled runs are created again, and each slot fires once.
#[tokio::test]
async fn a_job_switched_off_and_on_before_it_fires_loses_no_slot() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        let (off, _) = scenario.operator.disable_job(&by(), job.expected_version()).await.unwrap();
        scenario.run_leader_and_worker().await;
        scenario.operator.enable_job(&by(), &off.job, off.job.expected_version()).await.unwrap();
        assert_eq!(scenario.launches_until_the_end().await, ALL_NEW.replace("new", "old"));
        scenario.check_and_finish().await;
    }
}

#[tokio::test]
async fn a_deleted_job_does_not_fire_and_its_name_can_be_used_again() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        scenario.operator.delete_job(&by(), job.expected_version()).await.unwrap();
        scenario.advance_to(at("12:01:05"), STEP).await;
        assert_eq!(scenario.take_launched(), []);
        let definition = Scenario::definition(every_trigger("10s", None), "new", claimed);
        scenario.create_job("job", &definition).await;
        assert_eq!(scenario.launches_until_the_end().await, "01:10 new, 01:20 new, 01:30 new");
        scenario.check_and_finish().await;
    }
}

#[tokio::test]
async fn a_paused_job_fires_again_when_somebody_resumes_it() {
    for claimed in [false, true] {
        let (scenario, job) = a_second_before_the_next_fire(claimed).await;
        let (paused, _) = scenario
            .operator
            .pause_job(&by(), job.expected_version(), "maintenance", None)
            .await
            .unwrap();
        assert_eq!(paused.next_fire, None);
        scenario.advance_to(at("12:01:05"), STEP).await;
        assert_eq!(scenario.take_launched(), []);
        scenario
            .operator
            .resume_job(&by(), &paused.job, paused.job.expected_version())
            .await
            .unwrap();
        assert_eq!(scenario.launches_until_the_end().await, "01:10 old, 01:20 old, 01:30 old");
        assert_eq!(
            scenario.slots_in_state(job.id, RunState::Skipped).await,
            [""; 0],
            "nothing was missed"
        );
        scenario.check_and_finish().await;
    }
}

#[tokio::test]
async fn a_pause_with_an_end_stops_at_that_instant() {
    for (until, expected) in [
        // A slot at the very end of the pause is no longer paused.
        ("12:01:00", "01:00 old, 01:10 old, 01:20 old, 01:30 old"),
        ("12:01:00.000001", "01:10 old, 01:20 old, 01:30 old"),
        ("12:01:25", "01:30 old"),
    ] {
        for claimed in [false, true] {
            let (scenario, job) = a_second_before_the_next_fire(claimed).await;
            let until = Some(at(until));
            let (paused, _) = scenario
                .operator
                .pause_job(&by(), job.expected_version(), "maintenance", until)
                .await
                .unwrap();
            let first = format!("12:{}", &expected[..5]);
            assert_eq!(paused.next_fire.map(clock_time), Some(first));
            // Edited during the pause, the job stays paused and then fires with its new definition.
            let mut draft = scenario.draft(&paused.job);
            draft.work.description = Some("new".to_owned());
            scenario.operator.edit_job(&by(), paused.job.expected_version(), &draft).await.unwrap();
            assert_eq!(scenario.launches_until_the_end().await, expected.replace("old", "new"));
            scenario.check_and_finish().await;
        }
    }
}

/// Shortens and extends a pause within the time for which runs are created ahead.
#[tokio::test]
async fn the_end_of_a_pause_can_be_moved() {
    let (scenario, job) = a_second_before_the_next_fire(false).await;
    let pause = async |job: &Job, until: &str| {
        let until = Some(at(until));
        scenario
            .operator
            .pause_job(&by(), job.expected_version(), "maintenance", until)
            .await
            .unwrap()
            .0
            .job
    };
    let paused = pause(&job, "12:00:50").await;
    scenario.run_leader_and_worker().await;
    assert_eq!(scenario.slots_in_state(job.id, RunState::Assigned).await, ["12:00:50", "12:01:00"]);
    let paused = pause(&paused, "12:01:20").await;
    scenario.run_leader_and_worker().await;
    assert_eq!(scenario.slots_in_state(job.id, RunState::Assigned).await, [""; 0]);
    scenario.advance_to(at("12:00:55"), STEP).await;
    scenario.operator.resume_job(&by(), &paused, paused.expected_version()).await.unwrap();
    assert_eq!(
        scenario.launches_until_the_end().await,
        "01:00 old, 01:10 old, 01:20 old, 01:30 old"
    );
    scenario.check_and_finish().await;
}

/// A running run uses its own copy of the job version, so it finishes although the job is deleted.
#[tokio::test]
async fn a_run_finishes_although_its_job_is_deleted() {
    let scenario = Scenario::with_manual_completion("12:00:00").await;
    let job = scenario
        .create_job("job", &Scenario::definition(every_trigger("10s", None), "old", false))
        .await;
    scenario.advance_to(at("12:00:10"), STEP).await;
    let running = scenario.list_runs(job.id).await.remove(0);
    assert_eq!(running.state, RunState::Running);
    scenario.operator.delete_job(&by(), job.expected_version()).await.unwrap();
    scenario.advance_to(at("12:00:30"), STEP).await;
    scenario.executor.complete(running.id);
    scenario.run_leader_and_worker().await;
    assert_eq!(scenario.slots_in_state(job.id, RunState::Succeeded).await, ["12:00:10"]);
    assert_eq!(scenario.take_launched().len(), 1);
    scenario.check_and_finish().await;
}
