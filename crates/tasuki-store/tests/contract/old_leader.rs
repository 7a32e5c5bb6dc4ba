//! A leader that was stopped and wakes up when another has been elected: whatever it was about to write, nothing of it lands.
//! Its successor makes the same write at once, so it is the term that stood in the way and nothing else.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::run::SkipReason;
use tasuki_core::schedule::{Fire, ScheduleKind};
use tasuki_core::{Epoch, EventId, Origin, RunState, Schedule, Scope, WorkerId};
use tasuki_store::{
    AssignBatch, Writer, CursorMove, Error, JobVersion, Lease, NewEvent, NewRun, Run, DueRun,
};

use crate::given::{AHEAD, GRACE, Like, REASSIGN, TTL, TestStore, contract, noon, seen};

/// Everything that a leader writes.
#[derive(Debug, Clone, Copy)]
enum Write {
    Create,
    CreateSlots,
    TakeEvent,
    PassEvent,
    RefuseEvent,
    Assign,
    Orphan,
    Recover,
    Skip,
    Expire,
    /// For `replace`: what waits, what was given, what runs.
    CancelWaiting,
    CancelAssigned,
    CancelRunning,
    Detach,
    Forget,
}

const ALL: [Write; 15] = [
    Write::Create,
    Write::CreateSlots,
    Write::TakeEvent,
    Write::PassEvent,
    Write::RefuseEvent,
    Write::Assign,
    Write::Orphan,
    Write::Recover,
    Write::Skip,
    Write::Expire,
    Write::CancelWaiting,
    Write::CancelAssigned,
    Write::CancelRunning,
    Write::Detach,
    Write::Forget,
];

/// There is something to do for each of them.
struct Scene {
    job: JobVersion,
    fire: Fire,
    events: [EventId; 3],
    wanted: DueRun,
    assigned: Run,
    lapsed: Lease,
    late: Run,
    old: Run,
    cancels: [Run; 3],
    silent: WorkerId,
    vanished: WorkerId,
}

fn later(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

impl Scene {
    async fn set(store: &TestStore) -> Self {
        let [silent, vanished] = [31, 32].map(WorkerId::from_random);
        store.register(silent).await;
        store.register(vanished).await;
        let job = store.given_job(&Like::default()).await;
        let schedule = Schedule::parse(ScheduleKind::Every, "5m", "UTC", Default::default());
        let fire = schedule.unwrap().next_after(noon()).unwrap();
        assert!(store.put_cursor(seen(&job), &Scope::default(), fire.at).await.unwrap());
        let mut events = [EventId(0); 3];
        for event in &mut events {
            let told = NewEvent {
                event_type: "x",
                source: "test",
                dedupe_key: None,
                job_name: None,
                payload: None,
            };
            *event = store.emit(&told).await.unwrap().event;
        }
        let pending = store.given_run(RunState::Pending).await;
        let skips = Like { skip_after: Some(20), ..Like::default() };
        let expires = Like { expire_after: Some(20), ..Like::default() };
        let assigned = store.given_run(RunState::Assigned).await;
        let lost = store.given_run(RunState::Running).await.token.unwrap();
        let late = store.given_run_like(RunState::Pending, &skips).await;
        let old = store.given_run_like(RunState::Pending, &expires).await;
        store.at(40);
        let mut cancels = Vec::new();
        for state in [RunState::Pending, RunState::Assigned, RunState::Running] {
            cancels.push(store.given_run(state).await);
        }
        Self {
            job,
            fire,
            events,
            wanted: store.wanted(pending.id).await,
            assigned,
            lapsed: store.lease(lost).await.unwrap().unwrap(),
            late,
            old,
            cancels: cancels.try_into().unwrap(),
            silent,
            vanished,
        }
    }

    /// A leader of this term writes. Whether it is a fact then.
    async fn write(&self, store: &TestStore, write: Write, epoch: Epoch) -> Result<bool, Error> {
        let author = Writer::Leader(epoch);
        let [paid, unwanted, broken] = self.events;
        let applied = match write {
            Write::Create => {
                let made = store.create(author, &[NewRun::task(&self.job)]).await?;
                made.iter().all(|made| !made.existed)
            }
            Write::CreateSlots => {
                let run = NewRun {
                    origin: Origin::Time,
                    slot: Some(self.fire.slot),
                    scheduled_for: Some(self.fire.at),
                    ..NewRun::task(&self.job)
                };
                let (scope, from, to) = (Scope::default(), self.fire.at, Some(later(900)));
                let cursor = CursorMove { job: seen(&self.job), scope, from, to };
                store.create_slots(epoch, &cursor, &[run]).await?.is_some()
            }
            Write::TakeEvent => {
                let (jobs, runs) = ([seen(&self.job)], [NewRun::task(&self.job)]);
                store.take_event(epoch, paid, &jobs, &runs).await?.is_some()
            }
            Write::PassEvent => store.pass_event(epoch, unwanted).await?,
            Write::RefuseEvent => store.refuse_event(epoch, broken, "no JSON").await?,
            Write::Assign => {
                let batch = AssignBatch {
                    epoch,
                    worker: store.worker,
                    token: store.token(),
                    runs: &[self.wanted],
                    assign_ahead: AHEAD,
                    reassign_after: REASSIGN,
                };
                store.assign(&batch).await? == [self.wanted.run]
            }
            Write::Orphan => {
                let (run, token) = (self.assigned.id, self.assigned.token.unwrap());
                store.orphan(epoch, run, token).await?.is_applied()
            }
            Write::Recover => store.recover(epoch, &self.lapsed, GRACE, 0).await?.is_some(),
            Write::Skip => store.skip(epoch, self.late.id, SkipReason::Late).await?.is_applied(),
            Write::Expire => store.expire(epoch, self.old.id).await?.is_applied(),
            Write::CancelWaiting => {
                store.cancel(author, self.cancels[0].id, "replace", None).await?.is_applied()
            }
            Write::CancelAssigned => {
                store.cancel(author, self.cancels[1].id, "replace", None).await?.is_applied()
            }
            Write::CancelRunning => {
                store.cancel(author, self.cancels[2].id, "replace", None).await?.is_applied()
            }
            Write::Detach => {
                store.detach_worker(author, "leader", self.silent, "no heartbeat").await?
            }
            Write::Forget => {
                let age = Duration::from_secs(30);
                store.forget_workers(epoch, age, store.worker, 10).await?;
                store.worker(self.vanished).await?.is_none_or(|worker| worker.gone_at.is_some())
            }
        };
        Ok(applied)
    }
}

/// All there is, row by row.
async fn everything(store: &TestStore) -> Vec<String> {
    let mut rows = Vec::new();
    for run in store.runs(&Default::default(), None, 100).await.unwrap().runs {
        rows.push(format!("{run:?} {:?}", store.notes(run.id).await.unwrap()));
        let tried = store.executions(run.id).await.unwrap();
        rows.push(format!("{tried:?}"));
    }
    for worker in store.workers().await.unwrap() {
        let leases = store.leases_of(worker.id).await.unwrap();
        rows.push(format!("{worker:?} {leases:?}"));
    }
    rows.push(format!("{:?}", store.due("", later(3600), 100).await.unwrap()));
    rows.push(format!("{:?}", store.cursors(later(3600), 100).await.unwrap()));
    rows.push(format!("{:?}", store.events(None, 100).await.unwrap()));
    rows
}

contract! {
    async fn a_leader_that_wakes_up_too_late_lands_no_write(store: TestStore) {
        let scene = Scene::set(store).await;
        let (old, rival) = (store.epoch, WorkerId::from_random(2));
        let new = store.mint(rival, old, Epoch(0), TTL).await.unwrap().unwrap();
        let before = everything(store).await;
        for write in ALL {
            let late = scene.write(store, write, old).await;
            assert!(matches!(late, Err(Error::Fenced(epoch)) if epoch == old), "{write:?}: {late:?}");
            assert_eq!(everything(store).await, before, "{write:?} left something behind");
        }
        // What concerns its own term only is told, and is nothing either.
        assert!(!store.renew_term(store.worker, old, TTL, TTL).await.unwrap());
        assert!(!store.depose("it", old).await.unwrap());
        assert_eq!(store.mint(store.worker, old, Epoch(0), TTL).await.unwrap(), None);
        assert_eq!(everything(store).await, before);
        assert_eq!(store.leader().await.unwrap().holder, Some(rival));
        for write in ALL {
            assert!(scene.write(store, write, new).await.unwrap(), "{write:?}: its successor does it");
        }
    }
}
