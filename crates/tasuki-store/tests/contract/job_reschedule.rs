//! Rescheduling: a change of a job cancels its planned runs that have not started and frees their slots; the slots of
//! the new definition are planned again.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::{MisfirePolicy, PlanInput, plan_slots};
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::{JobId, Origin, RunId, RunScope, RunState, Schedule};
use tasuki_store::{
    AssignRequest, AttemptResult, Dialect, Error, Job, JobChangeResult, JobCreateResult,
    JobDefinition, JobVersionSpec, NewRun, RunFilter, ScheduleCursor, ScheduleCursorMove, Store,
    Trigger, Writer,
};

use crate::fixtures::{
    ASSIGN_AHEAD, REASSIGN_AFTER, RunOptions, TTL, TestStore, contract, noon, run_in_parallel,
};

fn after_noon(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

fn every(value: &str) -> Schedule {
    Schedule::parse(ScheduleKind::Every, value, "UTC", DstRuleOverrides::default()).unwrap()
}

fn time_definition(schedule: Schedule, options: &RunOptions) -> JobDefinition {
    let trigger = Trigger::Time { schedule, misfire: None };
    JobDefinition { trigger, enabled: true, spec: options.spec() }
}

/// Creates a job that fires every ten seconds; the test time is noon.
async fn given_job(store: &TestStore, options: &RunOptions) -> Job {
    let definition = time_definition(every("10s"), options);
    let name = "report".parse().unwrap();
    match store.create_job("ann", &name, &definition, Some(after_noon(10))).await.unwrap() {
        JobCreateResult::Created(job) => *job,
        JobCreateResult::NameTaken => panic!("the name is taken"),
    }
}

/// Plans like a leader that has read `job`: creates the runs of the next 30 seconds. `None`: the job changed meanwhile.
async fn plan_as_leader(store: &TestStore, job: &Job) -> Result<Option<Vec<RunId>>, Error> {
    let now = store.test_time();
    let until = now + ASSIGN_AHEAD;
    let mut created_runs = Vec::new();
    for cursor in
        store.list_due_cursors(until, 10).await?.into_iter().filter(|cursor| cursor.job == job.id)
    {
        let schedule = job.parse_stored_schedule()?.unwrap();
        let input = PlanInput { cursor: cursor.next_fire, now, horizon: until };
        let batch = 100.try_into().unwrap();
        let plan = plan_slots(&schedule, MisfirePolicy::SkipLate(ASSIGN_AHEAD), input, batch);
        let runs: Vec<NewRun<'_>> = plan
            .runs
            .iter()
            .map(|planned| NewRun {
                origin: Origin::Time,
                slot: Some(planned.fire.slot),
                scheduled_for: Some(planned.fire.at),
                ..NewRun::task(&job.newest)
            })
            .collect();
        let to = ScheduleCursorMove {
            job: job.expected_version(),
            scope: cursor.scope,
            from: cursor.next_fire,
            to: plan.cursor,
        };
        let Some(created) = store.create_scheduled_one(store.epoch, &to, &runs).await? else {
            return Ok(None);
        };
        created_runs.extend(created.iter().filter(|one| !one.existed).map(|one| one.run));
    }
    Ok(Some(created_runs))
}

async fn expect_planned(store: &TestStore, job: &Job) -> Vec<RunId> {
    plan_as_leader(store, job).await.unwrap().expect("the job was not changed meanwhile")
}

#[track_caller]
fn expect_applied(change: JobChangeResult) -> (Job, Vec<RunId>) {
    match change {
        JobChangeResult::Applied { job, canceled_runs } => (job, canceled_runs),
        JobChangeResult::Lost(now) => panic!("lost to {now:?}"),
    }
}

/// The cursor of the default scope: the next fire of the job within a year.
async fn cursor(store: &Store, job: JobId) -> Option<Timestamp> {
    let far = after_noon(365 * 86_400);
    let cursors = store.list_due_cursors(far, 100).await.unwrap();
    let of_job = cursors.into_iter().find(|one| one.job == job && one.scope == RunScope::default());
    of_job.map(|one| one.next_fire)
}

fn more_tries(options: &RunOptions) -> RunOptions {
    RunOptions { max_attempts: 9, ..options.clone() }
}

contract! {
    /// One call plans four schedules. One was already planned, one was edited since it was read, one has a run of a
    /// slot already; the other runs are created.
    async fn the_slots_of_many_schedules_are_created_in_one_write(store: TestStore) {
        let mut jobs = Vec::new();
        for name in ["planned", "edited", "existing", "other"] {
            let definition = time_definition(every("10s"), &RunOptions::default());
            let name = name.parse().unwrap();
            let created = store.create_job("ann", &name, &definition, Some(after_noon(10))).await;
            let JobCreateResult::Created(job) = created.unwrap() else { panic!("the name is taken") };
            jobs.push(*job);
        }
        let slots = |job: &'_ Job, seconds: &[i64]| -> (ScheduleCursorMove, Vec<Timestamp>) {
            let at: Vec<Timestamp> = seconds.iter().map(|&second| after_noon(second)).collect();
            let to = at.last().map(|&last| last + SignedDuration::from_secs(10));
            (ScheduleCursorMove { job: job.expected_version(), scope: RunScope::default(), from: after_noon(10), to }, at)
        };
        let runs = |job: &Job, at: &[Timestamp]| -> Vec<(Timestamp, tasuki_core::ScheduleSlotKey)> {
            let schedule = job.parse_stored_schedule().unwrap().unwrap();
            let fire = |at: &Timestamp| schedule.next_after(*at - SignedDuration::from_secs(1)).unwrap();
            at.iter().map(|at| (*at, fire(at).slot)).collect()
        };
        fn new_runs<'a>(job: &'a Job, slots: &[(Timestamp, tasuki_core::ScheduleSlotKey)]) -> Vec<NewRun<'a>> {
            let run = |&(at, slot): &(Timestamp, tasuki_core::ScheduleSlotKey)| NewRun {
                origin: Origin::Time,
                slot: Some(slot),
                scheduled_for: Some(at),
                ..NewRun::task(&job.newest)
            };
            slots.iter().map(run).collect()
        }
        let (moved, at) = slots(&jobs[0], &[10]);
        let first = new_runs(&jobs[0], &runs(&jobs[0], &at));
        assert!(store.create_scheduled_one(store.epoch, &moved, &first).await.unwrap().is_some());
        let edited = time_definition(every("10s"), &more_tries(&RunOptions::default()));
        let _ = expect_applied(store.edit_job("ann", jobs[1].expected_version(), &edited, Some(after_noon(10))).await.unwrap());
        let (_, at) = slots(&jobs[2], &[20]);
        let existing = store.create_or_find_runs(Writer::Leader(store.epoch), &new_runs(&jobs[2], &runs(&jobs[2], &at))).await.unwrap();

        let batch: Vec<tasuki_store::CursorMoveWithRuns<'_>> = jobs
            .iter()
            .map(|job| {
                let (moved, at) = slots(job, &[10, 20, 30]);
                (moved, new_runs(job, &runs(job, &at)))
            })
            .collect();
        let created_runs = store.create_scheduled(store.epoch, &batch).await.unwrap();
        assert_eq!((created_runs.len(), &created_runs[0], &created_runs[1]), (4, &None, &None));
        let existed = |slots: &Option<Vec<tasuki_store::CreatedRun>>| -> Vec<bool> {
            slots.iter().flatten().map(|one| one.existed).collect()
        };
        assert_eq!(existed(&created_runs[2]), [false, true, false]);
        assert_eq!(created_runs[2].as_ref().unwrap()[1].run, existing[0].run);
        assert_eq!(existed(&created_runs[3]), [false; 3]);
        for run in created_runs[3].iter().flatten() {
            assert_eq!(store.read_run(run.run).await.job, jobs[3].id);
        }
        for (job, expected) in jobs.iter().zip([20, 10, 40, 40]) {
            assert_eq!(cursor(store, job.id).await, Some(after_noon(expected)), "{}", job.name);
        }
    }

    async fn an_edit_cancels_unstarted_runs_and_frees_their_slots(store: TestStore) {
        let options = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let job = given_job(store, &options).await;
        let runs = expect_planned(store, &job).await;
        assert_eq!(runs.len(), 3);
        assert_eq!(cursor(store, job.id).await, Some(after_noon(40)));
        let token = store.given_assigned(runs[0]).await;
        let slots: Vec<_> = [store.read_run(runs[0]).await, store.read_run(runs[1]).await].into_iter().map(|run| run.slot).collect();

        store.set_time(5);
        let edit = time_definition(every("10s"), &more_tries(&options));
        let (now, canceled_runs) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(10))).await.unwrap());
        assert_eq!(canceled_runs, runs);
        for &run in &runs {
            let run = store.read_run(run).await;
            assert_eq!((run.state, run.reason.as_deref()), (RunState::Canceled, Some("edit of its job, version 2")));
            assert_eq!((run.counters.tries, run.cancel_requested_at), (0, Some(after_noon(5))));
        }
        assert_eq!(store.list_leases_of_worker(store.worker).await.unwrap(), [], "the lease is deleted with its run");
        store.set_time(10);
        assert!(!store.try_start(token, runs[0]).await.is_applied(), "a canceled run cannot be started");

        store.set_time(6);
        let planned_again = expect_planned(store, &now).await;
        assert_eq!(planned_again.len(), 3);
        let (first, second) = (store.read_run(planned_again[0]).await, store.read_run(planned_again[1]).await);
        assert_eq!([first.slot.clone(), second.slot], [slots[0].clone(), slots[1].clone()], "the same slots are planned again");
        assert_eq!((first.job_version, first.max_attempts, first.scheduled_for), (2, 9, after_noon(10)));
        assert!(store.try_assign(store.read_due_run(planned_again[0]).await).await.is_some(), "the hold was released");
        let head = store.find_audit_head().await.unwrap().seq;
        let entry = store.list_audit_entries_after(head - 1, 1).await.unwrap().remove(0);
        assert!(entry.after.unwrap().contains(r#""canceled_runs":3"#));
    }

    async fn an_edit_keeps_due_started_and_submitted_runs(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let runs = expect_planned(store, &job).await;
        let task = NewRun { scheduled_for: Some(after_noon(25)), ..NewRun::task(&job.newest) };
        let task = store.create_or_find_runs(Writer::Api, &[task]).await.unwrap()[0].run;
        store.set_time(20);
        let token = store.given_running(runs[0]).await;
        let edit = time_definition(every("10s"), &more_tries(&RunOptions::default()));
        let (now, canceled_runs) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(30))).await.unwrap());
        assert_eq!(canceled_runs, runs[2..], "only runs of the future are canceled");
        assert_eq!(store.read_run(runs[0]).await.state, RunState::Running);
        assert_eq!(store.read_run(runs[1]).await.state, RunState::Pending, "a due run stays");
        assert_eq!(store.read_run(task).await.state, RunState::Pending, "a submitted task stays");
        assert!(store.finish_run(token, runs[0], &AttemptResult::default()).await.unwrap().is_applied());
        let planned_again = expect_planned(store, &now).await;
        assert_eq!(store.read_run(planned_again[0]).await.scheduled_for, after_noon(30));
    }

    /// A released run counts as not started. (A run that waits for its retry does not.)
    async fn a_released_run_is_canceled_too(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let runs = expect_planned(store, &job).await;
        let token = store.given_assigned(runs[0]).await;
        assert!(store.release(token, runs[0]).await.unwrap().is_applied());
        let (_, canceled_runs) = expect_applied(store.disable_job("bob", job.expected_version()).await.unwrap());
        assert_eq!(canceled_runs, runs);
    }

    async fn a_change_that_concerns_no_slot_cancels_no_run(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let runs = expect_planned(store, &job).await;
        let until = Some(after_noon(3600));
        let (paused, canceled_runs) = expect_applied(store.pause_job("bob", job.expected_version(), "move", until).await.unwrap());
        assert_eq!(canceled_runs, runs);
        let (changed, canceled_runs) = expect_applied(store.pause_job("bob", paused.expected_version(), "moving", until).await.unwrap());
        assert_eq!((changed.paused_reason.as_deref(), canceled_runs), (Some("moving"), vec![]));
        assert_eq!(cursor(store, job.id).await, until);
    }

    /// The cursor is still the one that the leader read, but the definition has changed.
    async fn a_leader_with_an_old_definition_plans_nothing(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let edit = time_definition(every("10s"), &more_tries(&RunOptions::default()));
        let (now, _) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(10))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, Some(after_noon(10)));
        assert_eq!(plan_as_leader(store, &job).await.unwrap(), None);
        assert_eq!(cursor(store, job.id).await, Some(after_noon(10)), "the cursor did not move");
        assert_eq!(expect_planned(store, &now).await.len(), 3);
    }

    async fn an_edit_never_fires_past_slots(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        store.set_time(3600);
        let edit = time_definition(every("20s"), &RunOptions::default());
        let (now, _) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(20))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, Some(after_noon(3600)), "the cursor is never in the past, even if the caller requests it");
        let first = expect_planned(store, &now).await[0];
        assert_eq!(store.read_run(first).await.scheduled_for, after_noon(3600));
    }

    async fn a_job_that_was_changed_or_deleted_gets_no_cursor(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let tenant = RunScope::new("tenant", "7").unwrap();
        let edit = time_definition(every("20s"), &RunOptions::default());
        let (edited, _) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(20))).await.unwrap());
        assert!(!store.create_schedule_cursor(job.expected_version(), &tenant, after_noon(10)).await.unwrap(), "the job was edited");
        expect_applied(store.delete_job("bob", edited.expected_version()).await.unwrap());
        assert!(!store.create_schedule_cursor(edited.expected_version(), &tenant, after_noon(10)).await.unwrap(), "the job was deleted");
        assert_eq!(store.list_due_cursors(after_noon(86_400), 10).await.unwrap(), []);
    }

    async fn a_cursor_is_ended_only_with_the_version_and_the_position_that_were_read(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let tenant = RunScope::new("tenant", "7").unwrap();
        assert!(store.create_schedule_cursor(job.expected_version(), &tenant, after_noon(10)).await.unwrap());
        let edit = time_definition(every("20s"), &RunOptions::default());
        let (edited, _) = expect_applied(store.edit_job("bob", job.expected_version(), &edit, Some(after_noon(10))).await.unwrap());
        let cursors = store.list_cursors_of_job(job.id).await.unwrap();
        let read = cursors.into_iter().find(|cursor| cursor.scope == tenant).unwrap();
        assert_eq!(read.next_fire, after_noon(10));
        assert!(!store.delete_schedule_cursor(job.expected_version(), &read).await.unwrap(), "the job was edited");
        let moved = ScheduleCursor { next_fire: after_noon(30), ..read.clone() };
        assert!(!store.delete_schedule_cursor(edited.expected_version(), &moved).await.unwrap(), "another position");
        assert!(store.delete_schedule_cursor(edited.expected_version(), &read).await.unwrap());
        assert!(!store.delete_schedule_cursor(edited.expected_version(), &read).await.unwrap(), "it has ended");
    }

    async fn a_disabled_job_is_not_planned_until_it_is_enabled(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let tenant = RunScope::new("tenant", "7").unwrap();
        assert!(store.create_schedule_cursor(job.expected_version(), &tenant, after_noon(10)).await.unwrap());
        let (disabled, _) = expect_applied(store.disable_job("bob", job.expected_version()).await.unwrap());
        assert_eq!(store.list_due_cursors(after_noon(86_400), 10).await.unwrap(), []);
        let (edited, _) = expect_applied(store.edit_job("bob", disabled.expected_version(), &JobDefinition { enabled: false, ..time_definition(every("1m"), &RunOptions::default()) }, Some(after_noon(60))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "the job is still disabled");
        store.set_time(100);
        let (enabled, _) = expect_applied(store.enable_job("bob", edited.expected_version(), Some(after_noon(120))).await.unwrap());
        let cursors = store.list_due_cursors(after_noon(86_400), 10).await.unwrap();
        assert_eq!(cursors.iter().map(|one| one.next_fire).collect::<Vec<_>>(), [after_noon(120); 2], "the cursor of every scope");
        let (paused, _) = expect_applied(store.pause_job("bob", enabled.expected_version(), "move", None).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None);
        let (disabled, _) = expect_applied(store.disable_job("bob", paused.expected_version()).await.unwrap());
        let (resumed, _) = expect_applied(store.resume_job("bob", disabled.expected_version(), Some(after_noon(120))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "the job is still disabled");
        let (enabled, _) = expect_applied(store.enable_job("bob", resumed.expected_version(), Some(after_noon(120))).await.unwrap());
        let task = JobDefinition { trigger: Trigger::Task, ..time_definition(every("1m"), &RunOptions::default()) };
        let (task, _) = expect_applied(store.edit_job("bob", enabled.expected_version(), &task, None).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "a task has no schedule");
        let _ = expect_applied(store.delete_job("bob", task.expected_version()).await.unwrap());
    }

    /// A job is paused and resumed before the slot: the slot fires once.
    async fn a_freed_slot_fires_once_after_resume(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let first = expect_planned(store, &job).await;
        let (paused, canceled_runs) = expect_applied(store.pause_job("bob", job.expected_version(), "oh", None).await.unwrap());
        assert_eq!(canceled_runs, first);
        store.set_time(5);
        let (resumed, _) = expect_applied(store.resume_job("bob", paused.expected_version(), Some(after_noon(10))).await.unwrap());
        let again = expect_planned(store, &resumed).await;
        assert_eq!(store.read_run(again[0]).await.scheduled_for, after_noon(10));
        let schedule = resumed.parse_stored_schedule().unwrap().unwrap();
        let slot = schedule.next_after(after_noon(5)).unwrap().slot;
        let twice = NewRun { origin: Origin::Time, slot: Some(slot), scheduled_for: Some(after_noon(10)), ..NewRun::task(&job.newest) };
        let created_runs = store.create_or_find_runs(Writer::Leader(store.epoch), &[twice]).await.unwrap();
        assert_eq!((created_runs[0].run, created_runs[0].existed), (again[0], true));
    }

    async fn a_deleted_job_is_not_planned_and_a_new_one_starts_again(store: TestStore) {
        let job = given_job(store, &RunOptions::default()).await;
        let runs = expect_planned(store, &job).await;
        let (_, canceled_runs) = expect_applied(store.delete_job("bob", job.expected_version()).await.unwrap());
        assert_eq!((canceled_runs, cursor(store, job.id).await), (runs, None));
        assert!(store.list_due_cursors(Timestamp::MAX, 10).await.unwrap().is_empty());
        let again = given_job(store, &RunOptions::default()).await;
        assert_eq!(again.id, job.id);
        let runs = expect_planned(store, &again).await;
        assert_eq!(store.read_run(runs[0]).await.scheduled_for, after_noon(10));
    }
}

/// A user edits the job while a leader plans and assigns from the version that it read: afterwards there is no
/// unstarted run of an old version.
fn edit_during_planning(dialect: Dialect) {
    run_in_parallel(dialect, 6, |store| async move {
        let job = given_job(&store, &RunOptions::default()).await;
        for round in 0..30 {
            let seen = store.find_job_by_id(job.id).await.unwrap().unwrap();
            let (leader_store, read) = (Arc::clone(&store), seen.clone());
            let leader = tokio::spawn(async move {
                match plan_and_assign(&leader_store, &read).await {
                    Err(error) if error.is_contention() => {}
                    answer => answer.unwrap(),
                }
            });
            let spec = JobVersionSpec { max_attempts: 2 + round, ..RunOptions::default().spec() };
            let edit =
                JobDefinition { spec, ..time_definition(every("1s"), &RunOptions::default()) };
            let changed = loop {
                match store
                    .edit_job("bob", seen.expected_version(), &edit, Some(after_noon(1)))
                    .await
                {
                    Err(error) if error.is_contention() => {}
                    answer => break expect_applied(answer.unwrap()).0,
                }
            };
            leader.await.unwrap();
            let open_runs = list_open_runs(&store, job.id).await;
            let newest = changed.newest.version;
            let old_runs: Vec<_> =
                open_runs.into_iter().filter(|(_, version)| *version != newest).collect();
            assert_eq!(old_runs, [], "round {round}");
            // Plans runs that the next edit has to cancel.
            if round % 2 == 0 {
                plan_and_assign(&store, &changed).await.unwrap();
            }
        }
    });
}

/// The runs of the job that have not ended, each with its job version.
async fn list_open_runs(store: &TestStore, job: JobId) -> Vec<(RunId, i64)> {
    let filter = RunFilter { job: Some(job), ..RunFilter::default() };
    let page = store.list_runs(&filter, None, 200).await.unwrap();
    let open = page.runs.into_iter().filter(|run| !run.state.is_ended());
    open.map(|run| (run.id, run.job_version)).collect()
}

/// One pass of a leader: plans from the job that it read, and assigns due runs.
async fn plan_and_assign(store: &TestStore, job: &Job) -> Result<(), Error> {
    plan_as_leader(store, job).await?;
    let due_runs = store.list_due_in_lane("", after_noon(15), 10).await?;
    let batch = AssignRequest {
        epoch: store.epoch,
        worker: store.worker,
        token: store.new_token(),
        runs: &due_runs,
        assign_ahead: ASSIGN_AHEAD,
        reassign_after: REASSIGN_AFTER,
    };
    let assigned = store.assign(&batch).await?;
    let started = store.start(store.worker, batch.token, &assigned, TTL).await?;
    assert!(
        started.iter().all(|outcome| !outcome.is_applied()),
        "a run cannot be started before its time"
    );
    Ok(())
}

mod no_unstarted_run_of_an_old_version_after_an_edit {
    use super::*;

    #[test]
    fn sqlite() {
        edit_during_planning(Dialect::Sqlite);
    }

    #[test]
    fn postgres() {
        edit_during_planning(Dialect::Postgres);
    }

    #[test]
    fn mysql() {
        edit_during_planning(Dialect::MySql);
    }
}
