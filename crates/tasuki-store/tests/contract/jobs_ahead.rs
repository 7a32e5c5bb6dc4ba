//! What was planned ahead does not fire from an old definition, and what still stands fires.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::{Misfire, Moment, plan};
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::{JobId, Origin, RunId, RunState, Schedule, Scope};
use tasuki_store::{
    AssignBatch, Writer, CursorMove, Dialect, Error, AttemptResult, Job, JobChange, JobCreated,
    JobDefinition, JobSpec, NewRun, RunFilter, Store, Trigger,
};

use crate::given::{AHEAD, Like, REASSIGN, TTL, TestStore, contract, noon, run_in_parallel};

fn after_noon(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

fn every(value: &str) -> Schedule {
    Schedule::parse(ScheduleKind::Every, value, "UTC", DstChoice::default()).unwrap()
}

fn on(schedule: Schedule, like: &Like) -> JobDefinition {
    let trigger = Trigger::Time { schedule, misfire: None };
    JobDefinition { trigger, enabled: true, spec: like.spec() }
}

/// A job of every ten seconds, at noon.
async fn given_job(store: &TestStore, like: &Like) -> Job {
    let definition = on(every("10s"), like);
    let name = "report".parse().unwrap();
    match store.create_job("ann", &name, &definition, Some(after_noon(10))).await.unwrap() {
        JobCreated::Made(job) => *job,
        JobCreated::NameTaken => panic!("the name is taken"),
    }
}

/// What a leader does with a job that it read: runs up to half a minute ahead.
async fn plan_from(store: &TestStore, job: &Job) -> Result<Option<Vec<RunId>>, Error> {
    let now = store.clock();
    let until = now + AHEAD;
    let mut made = Vec::new();
    for cursor in store.cursors(until, 10).await?.into_iter().filter(|cursor| cursor.job == job.id)
    {
        let schedule = job.schedule()?.unwrap();
        let moment = Moment { cursor: cursor.next_fire, now, until };
        let batch = 100.try_into().unwrap();
        let plan = plan(&schedule, Misfire::SkipLate(AHEAD), moment, batch);
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
        let to = CursorMove {
            job: job.seen(),
            scope: cursor.scope,
            from: cursor.next_fire,
            to: plan.cursor,
        };
        let Some(created) = store.create_slots(store.epoch, &to, &runs).await? else {
            return Ok(None);
        };
        made.extend(created.iter().filter(|one| !one.existed).map(|one| one.run));
    }
    Ok(Some(made))
}

async fn planned(store: &TestStore, job: &Job) -> Vec<RunId> {
    plan_from(store, job).await.unwrap().expect("nobody else plans")
}

#[track_caller]
fn applied(change: JobChange) -> (Job, Vec<RunId>) {
    match change {
        JobChange::Applied { job, withdrawn } => (job, withdrawn),
        JobChange::Lost(now) => panic!("lost to {now:?}"),
    }
}

/// Where the cursor for everything stands, as far as anybody looks.
async fn cursor(store: &Store, job: JobId) -> Option<Timestamp> {
    let far = after_noon(365 * 86_400);
    let cursors = store.cursors(far, 100).await.unwrap();
    let of_job = cursors.into_iter().find(|one| one.job == job && one.scope == Scope::default());
    of_job.map(|one| one.next_fire)
}

fn more_tries(like: &Like) -> Like {
    Like { max_attempts: 9, ..like.clone() }
}

contract! {
    /// One was planned by somebody else, one was edited since, one has a run of that slot already; the rest is made.
    async fn the_slots_of_many_schedules_are_made_in_one_write(store: TestStore) {
        let mut jobs = Vec::new();
        for name in ["planned", "edited", "made", "other"] {
            let definition = on(every("10s"), &Like::default());
            let name = name.parse().unwrap();
            let made = store.create_job("ann", &name, &definition, Some(after_noon(10))).await;
            let JobCreated::Made(job) = made.unwrap() else { panic!("the name is taken") };
            jobs.push(*job);
        }
        let slots = |job: &'_ Job, seconds: &[i64]| -> (CursorMove, Vec<Timestamp>) {
            let at: Vec<Timestamp> = seconds.iter().map(|&second| after_noon(second)).collect();
            let to = at.last().map(|&last| last + SignedDuration::from_secs(10));
            (CursorMove { job: job.seen(), scope: Scope::default(), from: after_noon(10), to }, at)
        };
        let runs = |job: &Job, at: &[Timestamp]| -> Vec<(Timestamp, tasuki_core::Slot)> {
            let schedule = job.schedule().unwrap().unwrap();
            let fire = |at: &Timestamp| schedule.next_after(*at - SignedDuration::from_secs(1)).unwrap();
            at.iter().map(|at| (*at, fire(at).slot)).collect()
        };
        fn of<'a>(job: &'a Job, slots: &[(Timestamp, tasuki_core::Slot)]) -> Vec<NewRun<'a>> {
            let run = |&(at, slot): &(Timestamp, tasuki_core::Slot)| NewRun {
                origin: Origin::Time,
                slot: Some(slot),
                scheduled_for: Some(at),
                ..NewRun::task(&job.newest)
            };
            slots.iter().map(run).collect()
        }
        let (moved, at) = slots(&jobs[0], &[10]);
        let first = of(&jobs[0], &runs(&jobs[0], &at));
        assert!(store.create_slots(store.epoch, &moved, &first).await.unwrap().is_some());
        let edited = on(every("10s"), &more_tries(&Like::default()));
        let _ = applied(store.edit_job("ann", jobs[1].seen(), &edited, Some(after_noon(10))).await.unwrap());
        let (_, at) = slots(&jobs[2], &[20]);
        let there = store.create(Writer::Leader(store.epoch), &of(&jobs[2], &runs(&jobs[2], &at))).await.unwrap();

        let batch: Vec<tasuki_store::Slots<'_>> = jobs
            .iter()
            .map(|job| {
                let (moved, at) = slots(job, &[10, 20, 30]);
                (moved, of(job, &runs(job, &at)))
            })
            .collect();
        let made = store.create_slots_of_many(store.epoch, &batch).await.unwrap();
        assert_eq!((made.len(), &made[0], &made[1]), (4, &None, &None));
        let existed = |made: &Option<Vec<tasuki_store::Created>>| -> Vec<bool> {
            made.iter().flatten().map(|one| one.existed).collect()
        };
        assert_eq!(existed(&made[2]), [false, true, false]);
        assert_eq!(made[2].as_ref().unwrap()[1].run, there[0].run);
        assert_eq!(existed(&made[3]), [false; 3]);
        for run in made[3].iter().flatten() {
            assert_eq!(store.run_now(run.run).await.job, jobs[3].id);
        }
        for (job, expected) in jobs.iter().zip([20, 10, 40, 40]) {
            assert_eq!(cursor(store, job.id).await, Some(after_noon(expected)), "{}", job.name);
        }
    }

    async fn an_edit_withdraws_what_has_not_started_and_frees_its_slot(store: TestStore) {
        let like = Like { concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let job = given_job(store, &like).await;
        let runs = planned(store, &job).await;
        assert_eq!(runs.len(), 3);
        assert_eq!(cursor(store, job.id).await, Some(after_noon(40)));
        let token = store.given_assigned(runs[0]).await;
        let slots: Vec<_> = [store.run_now(runs[0]).await, store.run_now(runs[1]).await].into_iter().map(|run| run.slot).collect();

        store.at(5);
        let edit = on(every("10s"), &more_tries(&like));
        let (now, withdrawn) = applied(store.edit_job("bob", job.seen(), &edit, Some(after_noon(10))).await.unwrap());
        assert_eq!(withdrawn, runs);
        for &run in &runs {
            let run = store.run_now(run).await;
            assert_eq!((run.state, run.reason.as_deref()), (RunState::Canceled, Some("edit of its job, version 2")));
            assert_eq!((run.counters.tries, run.cancel_requested_at), (0, Some(after_noon(5))));
        }
        assert_eq!(store.leases_of(store.worker).await.unwrap(), [], "the lease went with its run");
        store.at(10);
        assert!(!store.try_start(token, runs[0]).await.is_applied(), "its worker comes too late");

        store.at(6);
        let anew = planned(store, &now).await;
        assert_eq!(anew.len(), 3);
        let (first, second) = (store.run_now(anew[0]).await, store.run_now(anew[1]).await);
        assert_eq!([first.slot.clone(), second.slot], [slots[0].clone(), slots[1].clone()], "the slots stand");
        assert_eq!((first.job_version, first.max_attempts, first.scheduled_for), (2, 9, after_noon(10)));
        assert!(store.try_assign(store.wanted(anew[0]).await).await.is_some(), "the hold was given back");
        let head = store.audit_head().await.unwrap().seq;
        let told = store.audit_list(head - 1, 1).await.unwrap().remove(0);
        assert!(told.after.unwrap().contains(r#""withdrawn":3"#));
    }

    async fn what_is_due_started_or_asked_for_goes_on(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let runs = planned(store, &job).await;
        let task = NewRun { scheduled_for: Some(after_noon(25)), ..NewRun::task(&job.newest) };
        let task = store.create(Writer::Api, &[task]).await.unwrap()[0].run;
        store.at(20);
        let token = store.given_running(runs[0]).await;
        let edit = on(every("10s"), &more_tries(&Like::default()));
        let (now, withdrawn) = applied(store.edit_job("bob", job.seen(), &edit, Some(after_noon(30))).await.unwrap());
        assert_eq!(withdrawn, runs[2..], "only what lies ahead");
        assert_eq!(store.run_now(runs[0]).await.state, RunState::Running);
        assert_eq!(store.run_now(runs[1]).await.state, RunState::Pending, "it is due");
        assert_eq!(store.run_now(task).await.state, RunState::Pending, "somebody asked for it");
        assert!(store.finish(token, runs[0], &AttemptResult::default()).await.unwrap().is_applied());
        let anew = planned(store, &now).await;
        assert_eq!(store.run_now(anew[0]).await.scheduled_for, after_noon(30));
    }

    /// A run that was given back counts as unstarted; one that waits for its next try does not.
    async fn what_was_given_back_is_withdrawn_too(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let runs = planned(store, &job).await;
        let token = store.given_assigned(runs[0]).await;
        assert!(store.release(token, runs[0]).await.unwrap().is_applied());
        let (_, withdrawn) = applied(store.disable_job("bob", job.seen()).await.unwrap());
        assert_eq!(withdrawn, runs);
    }

    async fn a_change_that_concerns_no_slot_leaves_them_alone(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let runs = planned(store, &job).await;
        let until = Some(after_noon(3600));
        let (paused, withdrawn) = applied(store.pause_job("bob", job.seen(), "move", until).await.unwrap());
        assert_eq!(withdrawn, runs);
        let (told, withdrawn) = applied(store.pause_job("bob", paused.seen(), "moving", until).await.unwrap());
        assert_eq!((told.paused_reason.as_deref(), withdrawn), (Some("moving"), vec![]));
        assert_eq!(cursor(store, job.id).await, until);
    }

    /// The cursor stands where the leader read it, yet the definition is another.
    async fn a_leader_that_read_the_old_definition_plans_nothing(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let edit = on(every("10s"), &more_tries(&Like::default()));
        let (now, _) = applied(store.edit_job("bob", job.seen(), &edit, Some(after_noon(10))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, Some(after_noon(10)));
        assert_eq!(plan_from(store, &job).await.unwrap(), None);
        assert_eq!(cursor(store, job.id).await, Some(after_noon(10)), "nothing moved");
        assert_eq!(planned(store, &now).await.len(), 3);
    }

    async fn an_edit_never_fires_the_past(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        store.at(3600);
        let edit = on(every("20s"), &Like::default());
        let (now, _) = applied(store.edit_job("bob", job.seen(), &edit, Some(after_noon(20))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, Some(after_noon(3600)), "whatever the caller says");
        let first = planned(store, &now).await[0];
        assert_eq!(store.run_now(first).await.scheduled_for, after_noon(3600));
    }

    async fn a_job_that_was_changed_or_deleted_gets_no_cursor(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let tenant = Scope::new("tenant", "7").unwrap();
        let edit = on(every("20s"), &Like::default());
        let (edited, _) = applied(store.edit_job("bob", job.seen(), &edit, Some(after_noon(20))).await.unwrap());
        assert!(!store.put_cursor(job.seen(), &tenant, after_noon(10)).await.unwrap(), "edited");
        applied(store.delete_job("bob", edited.seen()).await.unwrap());
        assert!(!store.put_cursor(edited.seen(), &tenant, after_noon(10)).await.unwrap(), "deleted");
        assert_eq!(store.cursors(after_noon(86_400), 10).await.unwrap(), []);
    }

    async fn what_is_off_is_not_planned_and_comes_back_where_it_is_told(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let tenant = Scope::new("tenant", "7").unwrap();
        assert!(store.put_cursor(job.seen(), &tenant, after_noon(10)).await.unwrap());
        let (off, _) = applied(store.disable_job("bob", job.seen()).await.unwrap());
        assert_eq!(store.cursors(after_noon(86_400), 10).await.unwrap(), []);
        let (edited, _) = applied(store.edit_job("bob", off.seen(), &JobDefinition { enabled: false, ..on(every("1m"), &Like::default()) }, Some(after_noon(60))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "still off");
        store.at(100);
        let (on, _) = applied(store.enable_job("bob", edited.seen(), Some(after_noon(120))).await.unwrap());
        let cursors = store.cursors(after_noon(86_400), 10).await.unwrap();
        assert_eq!(cursors.iter().map(|one| one.next_fire).collect::<Vec<_>>(), [after_noon(120); 2], "every scope");
        let (paused, _) = applied(store.pause_job("bob", on.seen(), "move", None).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None);
        let (off, _) = applied(store.disable_job("bob", paused.seen()).await.unwrap());
        let (resumed, _) = applied(store.resume_job("bob", off.seen(), Some(after_noon(120))).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "it is disabled still");
        let (on, _) = applied(store.enable_job("bob", resumed.seen(), Some(after_noon(120))).await.unwrap());
        let task = JobDefinition { trigger: Trigger::Task, ..self::on(every("1m"), &Like::default()) };
        let (task, _) = applied(store.edit_job("bob", on.seen(), &task, None).await.unwrap());
        assert_eq!(cursor(store, job.id).await, None, "no schedule");
        let _ = applied(store.delete_job("bob", task.seen()).await.unwrap());
    }

    /// Paused and resumed before its time: the slot fires, once.
    async fn a_slot_that_stands_again_fires(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let first = planned(store, &job).await;
        let (paused, withdrawn) = applied(store.pause_job("bob", job.seen(), "oh", None).await.unwrap());
        assert_eq!(withdrawn, first);
        store.at(5);
        let (resumed, _) = applied(store.resume_job("bob", paused.seen(), Some(after_noon(10))).await.unwrap());
        let again = planned(store, &resumed).await;
        assert_eq!(store.run_now(again[0]).await.scheduled_for, after_noon(10));
        let schedule = resumed.schedule().unwrap().unwrap();
        let slot = schedule.next_after(after_noon(5)).unwrap().slot;
        let twice = NewRun { origin: Origin::Time, slot: Some(slot), scheduled_for: Some(after_noon(10)), ..NewRun::task(&job.newest) };
        let made = store.create(Writer::Leader(store.epoch), &[twice]).await.unwrap();
        assert_eq!((made[0].run, made[0].existed), (again[0], true));
    }

    async fn a_deleted_job_is_not_planned_and_a_new_one_begins_anew(store: TestStore) {
        let job = given_job(store, &Like::default()).await;
        let runs = planned(store, &job).await;
        let (_, withdrawn) = applied(store.delete_job("bob", job.seen()).await.unwrap());
        assert_eq!((withdrawn, cursor(store, job.id).await), (runs, None));
        assert!(store.cursors(Timestamp::MAX, 10).await.unwrap().is_empty());
        let again = given_job(store, &Like::default()).await;
        assert_eq!(again.id, job.id);
        let runs = planned(store, &again).await;
        assert_eq!(store.run_now(runs[0]).await.scheduled_for, after_noon(10));
    }
}

/// Somebody edits while a leader plans from what it read and assigns: afterwards there is no unstarted
/// run of another version than the newest.
fn edit_while_leading(dialect: Dialect) {
    run_in_parallel(dialect, 6, |store| async move {
        let job = given_job(&store, &Like::default()).await;
        for round in 0..30 {
            let seen = store.job_by_id(job.id).await.unwrap().unwrap();
            let (led, read) = (Arc::clone(&store), seen.clone());
            let leader = tokio::spawn(async move {
                match lead(&led, &read).await {
                    Err(error) if error.is_contention() => {}
                    answer => answer.unwrap(),
                }
            });
            let spec = JobSpec { max_attempts: 2 + round, ..Like::default().spec() };
            let edit = JobDefinition { spec, ..on(every("1s"), &Like::default()) };
            let changed = loop {
                match store.edit_job("bob", seen.seen(), &edit, Some(after_noon(1))).await {
                    Err(error) if error.is_contention() => {}
                    answer => break applied(answer.unwrap()).0,
                }
            };
            leader.await.unwrap();
            let of_old = unstarted(&store, job.id).await;
            let newest = changed.newest.version;
            let of_old: Vec<_> = of_old.into_iter().filter(|(_, made)| *made != newest).collect();
            assert_eq!(of_old, [], "round {round}");
            // Something for the next edit to withdraw.
            if round % 2 == 0 {
                lead(&store, &changed).await.unwrap();
            }
        }
    });
}

/// Runs that may still start, each with its version.
async fn unstarted(store: &TestStore, job: JobId) -> Vec<(RunId, i64)> {
    let filter = RunFilter { job: Some(job), ..RunFilter::default() };
    let page = store.runs(&filter, None, 200).await.unwrap();
    let open = page.runs.into_iter().filter(|run| !run.state.is_ended());
    open.map(|run| (run.id, run.job_version)).collect()
}

/// One turn: plans from what it read, gives away what waits.
async fn lead(store: &TestStore, job: &Job) -> Result<(), Error> {
    plan_from(store, job).await?;
    let wanted = store.due("", after_noon(15), 10).await?;
    let batch = AssignBatch {
        epoch: store.epoch,
        worker: store.worker,
        token: store.token(),
        runs: &wanted,
        assign_ahead: AHEAD,
        reassign_after: REASSIGN,
    };
    let given = store.assign(&batch).await?;
    let started = store.start(store.worker, batch.token, &given, TTL).await?;
    assert!(started.iter().all(|outcome| !outcome.is_applied()), "before its time");
    Ok(())
}

mod nothing_old_stays_ahead {
    use super::*;

    #[test]
    fn sqlite() {
        edit_while_leading(Dialect::Sqlite);
    }

    #[test]
    fn postgres() {
        edit_while_leading(Dialect::Postgres);
    }

    #[test]
    fn mysql() {
        edit_while_leading(Dialect::MySql);
    }
}
