//! A former leader that was stopped and continues after a new election: every write of it is refused. Its successor
//! makes the same write successfully, so the term was the only reason for the refusal.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::run::SkipReason;
use tasuki_core::schedule::{Fire, ScheduleKind};
use tasuki_core::{Epoch, EventId, Origin, RunScope, RunState, Schedule, WorkerId};
use tasuki_store::{
    AssignRequest, DueRun, Error, JobVersion, Lease, NewEvent, NewRun, Run, ScheduleCursorMove,
    Writer,
};

use crate::fixtures::{
    ASSIGN_AHEAD, GRACE, REASSIGN_AFTER, RunOptions, TTL, TestStore, contract, expected_version,
    noon,
};

/// Every kind of write that a leader makes.
#[derive(Debug, Clone, Copy)]
enum Write {
    Create,
    CreateSlots,
    ProcessEvent,
    CloseUnmatchedEvent,
    CloseFailedEvent,
    Assign,
    Orphan,
    Recover,
    Skip,
    Expire,
    /// Cancels for the concurrency policy `replace`: a waiting, an assigned and a running run.
    CancelWaiting,
    CancelAssigned,
    CancelRunning,
    Detach,
    PruneWorkers,
}

const ALL_WRITES: [Write; 15] = [
    Write::Create,
    Write::CreateSlots,
    Write::ProcessEvent,
    Write::CloseUnmatchedEvent,
    Write::CloseFailedEvent,
    Write::Assign,
    Write::Orphan,
    Write::Recover,
    Write::Skip,
    Write::Expire,
    Write::CancelWaiting,
    Write::CancelAssigned,
    Write::CancelRunning,
    Write::Detach,
    Write::PruneWorkers,
];

/// Data with something to do for each kind of write.
struct TestData {
    job: JobVersion,
    fire: Fire,
    events: [EventId; 3],
    due_run: DueRun,
    assigned: Run,
    expired_lease: Lease,
    late: Run,
    old: Run,
    cancels: [Run; 3],
    silent: WorkerId,
    vanished: WorkerId,
}

fn later(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

impl TestData {
    async fn create(store: &TestStore) -> Self {
        let [silent, vanished] = [31, 32].map(WorkerId::from_random);
        store.given_worker(silent).await;
        store.given_worker(vanished).await;
        let job = store.given_job(&RunOptions::default()).await;
        let schedule = Schedule::parse(ScheduleKind::Every, "5m", "UTC", Default::default());
        let fire = schedule.unwrap().next_after(noon()).unwrap();
        assert!(
            store
                .create_schedule_cursor(expected_version(&job), &RunScope::default(), fire.at)
                .await
                .unwrap()
        );
        let mut events = [EventId(0); 3];
        for event in &mut events {
            let new_event = NewEvent {
                event_type: "x",
                source: "test",
                dedupe_key: None,
                job_name: None,
                payload: None,
            };
            *event = store.emit_event(&new_event).await.unwrap().event;
        }
        let pending = store.given_run(RunState::Pending).await;
        let skips = RunOptions { skip_after: Some(20), ..RunOptions::default() };
        let expires = RunOptions { expire_after: Some(20), ..RunOptions::default() };
        let assigned = store.given_run(RunState::Assigned).await;
        let lost = store.given_run(RunState::Running).await.token.unwrap();
        let late = store.given_run_with(RunState::Pending, &skips).await;
        let old = store.given_run_with(RunState::Pending, &expires).await;
        store.set_time(40);
        let mut cancels = Vec::new();
        for state in [RunState::Pending, RunState::Assigned, RunState::Running] {
            cancels.push(store.given_run(state).await);
        }
        Self {
            job,
            fire,
            events,
            due_run: store.read_due_run(pending.id).await,
            assigned,
            expired_lease: store.find_lease(lost).await.unwrap().unwrap(),
            late,
            old,
            cancels: cancels.try_into().unwrap(),
            silent,
            vanished,
        }
    }

    /// Makes a write as the leader of this term. Returns whether it was applied.
    async fn write(&self, store: &TestStore, write: Write, epoch: Epoch) -> Result<bool, Error> {
        let writer = Writer::Leader(epoch);
        let [paid, unwanted, broken] = self.events;
        let applied = match write {
            Write::Create => {
                let created = store.create_or_find_runs(writer, &[NewRun::task(&self.job)]).await?;
                created.iter().all(|created| !created.existed)
            }
            Write::CreateSlots => {
                let run = NewRun {
                    origin: Origin::Time,
                    slot: Some(self.fire.slot),
                    scheduled_for: Some(self.fire.at),
                    ..NewRun::task(&self.job)
                };
                let (scope, from, to) = (RunScope::default(), self.fire.at, Some(later(900)));
                let cursor =
                    ScheduleCursorMove { job: expected_version(&self.job), scope, from, to };
                store.create_scheduled_one(epoch, &cursor, &[run]).await?.is_some()
            }
            Write::ProcessEvent => {
                let (jobs, runs) = ([expected_version(&self.job)], [NewRun::task(&self.job)]);
                store.process_event(epoch, paid, &jobs, &runs).await?.is_some()
            }
            Write::CloseUnmatchedEvent => store.close_unmatched_event(epoch, unwanted).await?,
            Write::CloseFailedEvent => store.close_failed_event(epoch, broken, "no JSON").await?,
            Write::Assign => {
                let batch = AssignRequest {
                    epoch,
                    worker: store.worker,
                    token: store.new_token(),
                    runs: &[self.due_run],
                    assign_ahead: ASSIGN_AHEAD,
                    reassign_after: REASSIGN_AFTER,
                };
                store.assign(&batch).await? == [self.due_run.run]
            }
            Write::Orphan => {
                let (run, token) = (self.assigned.id, self.assigned.token.unwrap());
                store.orphan(epoch, run, token).await?.is_applied()
            }
            Write::Recover => store.recover(epoch, &self.expired_lease, GRACE, 0).await?.is_some(),
            Write::Skip => store.skip(epoch, self.late.id, SkipReason::Late).await?.is_applied(),
            Write::Expire => store.expire_waiting_run(epoch, self.old.id).await?.is_applied(),
            Write::CancelWaiting => {
                store.cancel(writer, self.cancels[0].id, "replace", None).await?.is_applied()
            }
            Write::CancelAssigned => {
                store.cancel(writer, self.cancels[1].id, "replace", None).await?.is_applied()
            }
            Write::CancelRunning => {
                store.cancel(writer, self.cancels[2].id, "replace", None).await?.is_applied()
            }
            Write::Detach => {
                store.detach_worker(writer, "leader", self.silent, "no heartbeat").await?
            }
            Write::PruneWorkers => {
                let age = Duration::from_secs(30);
                store.prune_workers(epoch, age, store.worker, 10).await?;
                store
                    .find_worker(self.vanished)
                    .await?
                    .is_none_or(|worker| worker.gone_at.is_some())
            }
        };
        Ok(applied)
    }
}

/// All data of the database that these writes could change, row by row.
async fn read_all_data(store: &TestStore) -> Vec<String> {
    let mut rows = Vec::new();
    for run in store.list_runs(&Default::default(), None, 100).await.unwrap().runs {
        rows.push(format!("{run:?} {:?}", store.list_rare_transitions(run.id).await.unwrap()));
        let tried = store.list_executions(run.id).await.unwrap();
        rows.push(format!("{tried:?}"));
    }
    for worker in store.list_workers().await.unwrap() {
        let leases = store.list_leases_of_worker(worker.id).await.unwrap();
        rows.push(format!("{worker:?} {leases:?}"));
    }
    rows.push(format!("{:?}", store.list_due_in_lane("", later(3600), 100).await.unwrap()));
    rows.push(format!("{:?}", store.list_due_cursors(later(3600), 100).await.unwrap()));
    rows.push(format!("{:?}", store.list_events(None, 100).await.unwrap()));
    rows
}

contract! {
    async fn a_former_leader_can_make_no_write(store: TestStore) {
        let data = TestData::create(store).await;
        let (old, rival) = (store.epoch, WorkerId::from_random(2));
        let new = store.take_leadership(rival, old, Epoch(0), TTL).await.unwrap().unwrap();
        let before = read_all_data(store).await;
        for write in ALL_WRITES {
            let late = data.write(store, write, old).await;
            assert!(matches!(late, Err(Error::Fenced(epoch)) if epoch == old), "{write:?}: {late:?}");
            assert_eq!(read_all_data(store).await, before, "{write:?} left something behind");
        }
        // The writes about its own term are not fenced errors; they return that nothing was changed.
        assert!(!store.renew_leadership(store.worker, old, TTL, TTL).await.unwrap());
        assert!(!store.end_term("it", old).await.unwrap());
        assert_eq!(store.take_leadership(store.worker, old, Epoch(0), TTL).await.unwrap(), None);
        assert_eq!(read_all_data(store).await, before);
        assert_eq!(store.get_leader_record().await.unwrap().holder, Some(rival));
        for write in ALL_WRITES {
            assert!(data.write(store, write, new).await.unwrap(), "{write:?}: the successor can do it");
        }
    }
}
