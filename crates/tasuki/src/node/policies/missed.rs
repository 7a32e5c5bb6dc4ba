//! An hour in which nobody was there.

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// Every five minutes, nobody there from 12:01 to 13:02:30.
#[tokio::test]
async fn after_an_hour_away_each_policy_does_what_its_owner_wants() {
    let missed: Vec<String> =
        (1..=12).map(|n| clock_time(at("12:00:00") + SignedDuration::from_mins(5 * n))).collect();
    let table = [
        // The settings say 300 s.
        (None, 1),
        (Some(Misfire::SkipLate(20 * MINUTE)), 4),
        (Some(Misfire::SkipLate(2 * MINUTE)), 0),
        (Some(Misfire::LatestOnly), 1),
        (Some(Misfire::EveryWithin(20 * MINUTE)), 4),
        (Some(Misfire::EveryWithin(2 * HOUR)), 12),
        (Some(Misfire::AtMost(2)), 2),
        (Some(Misfire::AtMost(100)), 12),
    ];
    for claimed in [false, true] {
        for concurrency in [ConcurrencyPolicy::Allow, ConcurrencyPolicy::Forbid] {
            let world = World::at("11:59:50").await;
            let mut jobs = Vec::new();
            for (number, (policy, _)) in table.iter().enumerate() {
                let mut job = World::definition(every("5m", *policy), "", claimed);
                job.spec.concurrency = concurrency;
                jobs.push(world.create(&format!("job {number}"), &job).await.id);
            }
            let step = SignedDuration::from_secs(2);
            world.go_on_to(at("12:01:00"), step).await;
            world.jump(at("13:02:30"));
            world.go_on_to(at("13:04:00"), step).await;
            for (job, (policy, caught_up)) in jobs.into_iter().zip(table) {
                let shown = format!("{policy:?} {concurrency} claimed {claimed}");
                // How many of those that may run find their turn is a matter of concurrency: who does
                // not insist on missed slots has them skipped while another runs.
                let insists = policy.is_some_and(Misfire::catches_up);
                let (late, rest) = missed.split_at(missed.len() - caught_up);
                let runs = world.runs(job).await;
                let of = |slot: &String| {
                    runs.iter()
                        .filter(|run| clock_time(run.scheduled_for) == *slot)
                        .collect::<Vec<_>>()
                };
                for slot in late {
                    let [run] = of(slot)[..] else { panic!("{shown}: {slot} {runs:?}") };
                    assert_eq!(run.state, RunState::Skipped, "{shown}: {slot}");
                    assert_eq!(run.reason.as_deref(), Some("LATE"), "{shown}: {slot}");
                }
                for slot in rest {
                    let [run] = of(slot)[..] else { panic!("{shown}: {slot} {runs:?}") };
                    match (concurrency, insists) {
                        (ConcurrencyPolicy::Forbid, false) if run.state == RunState::Skipped => {
                            assert_eq!(
                                run.reason.as_deref(),
                                Some("CONCURRENT"),
                                "{shown}: {slot}"
                            );
                        }
                        _ => assert_eq!(run.state, RunState::Succeeded, "{shown}: {slot}"),
                    }
                }
                assert_eq!(of(&"12:00:00".to_owned())[0].state, RunState::Succeeded, "{shown}");
                assert_eq!(runs.len(), 1 + missed.len(), "{shown}: none lost, none doubled");
            }
            world.end().await;
        }
    }
}

#[tokio::test]
async fn an_hour_of_missed_seconds_leaves_a_hundred_runs_to_look_at_and_goes_on() {
    let world = World::at("11:59:50").await;
    let job = World::definition(every("1s", None), "", true);
    let job = world.create("often", &job).await.id;
    world.go_on_to(at("12:00:00"), SignedDuration::from_secs(1)).await;
    world.launched();
    world.jump(at("13:00:00"));
    world.go_on_to(at("13:00:05"), SignedDuration::from_secs(1)).await;
    let runs = world.runs(job).await;
    let such = |state, reason: Option<&str>| {
        runs.iter().filter(|run| run.state == state && run.reason.as_deref() == reason).count()
    };
    // What had been made ahead of the stop, up to half a minute of it, and a hundred more.
    let late = such(RunState::Skipped, Some("LATE"));
    assert!((100..=130).contains(&late), "{late}");
    // What is late by no more than the settings allow runs, and the new ones with it.
    let succeeded = such(RunState::Succeeded, None);
    let tolerated = 300 + 6;
    assert!((tolerated..=tolerated + 11).contains(&succeeded), "{succeeded}");
    let ahead = runs.iter().filter(|run| !run.state.is_ended()).count();
    assert!((15..=30).contains(&ahead), "{ahead} wait for their time");
    assert_eq!(runs.len(), late + succeeded + ahead);
    world.end().await;
}

#[tokio::test]
async fn what_was_assigned_before_the_stop_is_late_like_the_rest() {
    for (policy, expected) in [
        (None, RunState::Skipped),
        (Some(Misfire::LatestOnly), RunState::Skipped),
        (Some(Misfire::EveryWithin(2 * HOUR)), RunState::Succeeded),
    ] {
        let world = World::at("11:59:46").await;
        let job = World::definition(every("30m", policy), "", false);
        let job = world.create("report", &job).await.id;
        world.turn().await;
        assert_eq!(world.slots(job, RunState::Assigned).await, ["12:00:00"]);
        world.jump(at("13:15:00"));
        world.go_on_to(at("13:15:20"), SignedDuration::from_secs(1)).await;
        let runs = world.runs(job).await;
        assert_eq!(runs[0].state, expected, "{policy:?} {:?}", runs[0]);
        assert_eq!(runs.len(), 3, "{policy:?}: 12:00, 12:30 and 13:00");
        world.end().await;
    }
}
