//! Scenarios with slots that were missed because no node ran for an hour.

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// The job fires every five minutes; no node runs from 12:01 to 13:02:30.
#[tokio::test]
async fn each_misfire_policy_after_an_hour_without_a_node() {
    let missed: Vec<String> =
        (1..=12).map(|n| clock_time(at("12:00:00") + SignedDuration::from_mins(5 * n))).collect();
    let table = [
        // Default of the setting `skip_late_after`: 300 s.
        (None, 1),
        (Some(MisfirePolicy::SkipLate(20 * MINUTE)), 4),
        (Some(MisfirePolicy::SkipLate(2 * MINUTE)), 0),
        (Some(MisfirePolicy::LatestOnly), 1),
        (Some(MisfirePolicy::EveryWithin(20 * MINUTE)), 4),
        (Some(MisfirePolicy::EveryWithin(2 * HOUR)), 12),
        (Some(MisfirePolicy::AtMost(2)), 2),
        (Some(MisfirePolicy::AtMost(100)), 12),
    ];
    for claimed in [false, true] {
        for concurrency in [ConcurrencyPolicy::Allow, ConcurrencyPolicy::Forbid] {
            let scenario = Scenario::starting_at("11:59:50").await;
            let mut jobs = Vec::new();
            for (number, (policy, _)) in table.iter().enumerate() {
                let mut job = Scenario::definition(every_trigger("5m", *policy), "", claimed);
                job.spec.concurrency = concurrency;
                jobs.push(scenario.create_job(&format!("job {number}"), &job).await.id);
            }
            let step = SignedDuration::from_secs(2);
            scenario.advance_to(at("12:01:00"), step).await;
            scenario.set_time(at("13:02:30"));
            scenario.advance_to(at("13:04:00"), step).await;
            for (job, (policy, caught_up)) in jobs.into_iter().zip(table) {
                let label = format!("{policy:?} {concurrency} claimed {claimed}");
                // How many of the remaining slots run depends on the concurrency policy: with a misfire policy that
                // does not catch up, a slot is skipped while another run of the job is running.
                let insists = policy.is_some_and(MisfirePolicy::catches_up);
                let (late, rest) = missed.split_at(missed.len() - caught_up);
                let runs = scenario.list_runs(job).await;
                let runs_of_slot = |slot: &String| {
                    runs.iter()
                        .filter(|run| clock_time(run.scheduled_for) == *slot)
                        .collect::<Vec<_>>()
                };
                for slot in late {
                    let [run] = runs_of_slot(slot)[..] else { panic!("{label}: {slot} {runs:?}") };
                    assert_eq!(run.state, RunState::Skipped, "{label}: {slot}");
                    assert_eq!(run.reason.as_deref(), Some("LATE"), "{label}: {slot}");
                }
                for slot in rest {
                    let [run] = runs_of_slot(slot)[..] else { panic!("{label}: {slot} {runs:?}") };
                    match (concurrency, insists) {
                        (ConcurrencyPolicy::Forbid, false) if run.state == RunState::Skipped => {
                            assert_eq!(
                                run.reason.as_deref(),
                                Some("CONCURRENT"),
                                "{label}: {slot}"
                            );
                        }
                        _ => assert_eq!(run.state, RunState::Succeeded, "{label}: {slot}"),
                    }
                }
                assert_eq!(
                    runs_of_slot(&"12:00:00".to_owned())[0].state,
                    RunState::Succeeded,
                    "{label}"
                );
                assert_eq!(runs.len(), 1 + missed.len(), "{label}: each slot has exactly one run");
            }
            scenario.check_and_finish().await;
        }
    }
}

#[tokio::test]
async fn an_hour_of_missed_seconds_creates_at_most_a_hundred_skipped_runs() {
    let scenario = Scenario::starting_at("11:59:50").await;
    let job = Scenario::definition(every_trigger("1s", None), "", true);
    let job = scenario.create_job("often", &job).await.id;
    scenario.advance_to(at("12:00:00"), SignedDuration::from_secs(1)).await;
    scenario.take_launched();
    scenario.set_time(at("13:00:00"));
    scenario.advance_to(at("13:00:05"), SignedDuration::from_secs(1)).await;
    let runs = scenario.list_runs(job).await;
    let count_runs = |state, reason: Option<&str>| {
        runs.iter().filter(|run| run.state == state && run.reason.as_deref() == reason).count()
    };
    // Runs created ahead before the stop, for up to half a minute, and a hundred more.
    let late = count_runs(RunState::Skipped, Some("LATE"));
    assert!((100..=130).contains(&late), "{late}");
    // Slots that are late by no more than the setting allows run, and so do the new ones.
    let succeeded = count_runs(RunState::Succeeded, None);
    let tolerated = 300 + 6;
    assert!((tolerated..=tolerated + 11).contains(&succeeded), "{succeeded}");
    let ahead = runs.iter().filter(|run| !run.state.is_ended()).count();
    assert!((15..=30).contains(&ahead), "{ahead} wait for their time");
    assert_eq!(runs.len(), late + succeeded + ahead);
    scenario.check_and_finish().await;
}

#[tokio::test]
async fn runs_assigned_before_the_stop_are_late_like_the_others() {
    for (policy, expected) in [
        (None, RunState::Skipped),
        (Some(MisfirePolicy::LatestOnly), RunState::Skipped),
        (Some(MisfirePolicy::EveryWithin(2 * HOUR)), RunState::Succeeded),
    ] {
        let scenario = Scenario::starting_at("11:59:46").await;
        let job = Scenario::definition(every_trigger("30m", policy), "", false);
        let job = scenario.create_job("report", &job).await.id;
        scenario.run_leader_and_worker().await;
        assert_eq!(scenario.slots_in_state(job, RunState::Assigned).await, ["12:00:00"]);
        scenario.set_time(at("13:15:00"));
        scenario.advance_to(at("13:15:20"), SignedDuration::from_secs(1)).await;
        let runs = scenario.list_runs(job).await;
        assert_eq!(runs[0].state, expected, "{policy:?} {:?}", runs[0]);
        assert_eq!(runs.len(), 3, "{policy:?}: 12:00, 12:30 and 13:00");
        scenario.check_and_finish().await;
    }
}
