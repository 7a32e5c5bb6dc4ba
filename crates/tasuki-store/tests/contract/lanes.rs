//! Lanes: a run waits in the lane that was requested, and one query returns the earliest due time of several lanes.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Lane, Priority, RunId};
use tasuki_store::{
    AttemptResult, JobVersion, LanePosition, NewRun, PendingTask, SubmitBatcher, Writer,
};

use crate::fixtures::{ASSIGN_AHEAD, RunOptions, TestStore, contract, noon};

/// The default lane of the job. Some of its runs request another lane.
const DEFAULT_LANE: &str = "function mail";

fn in_mail_lane() -> RunOptions {
    RunOptions { lane: DEFAULT_LANE, ..RunOptions::default() }
}

fn urgent() -> String {
    Lane { priority: Priority::Highest, queue: "郵便".parse().unwrap(), ..Lane::new("mail") }
        .to_string()
}

fn in_lane(job: &JobVersion, lane: &str) -> NewRun<'static> {
    NewRun { lane: Some(lane.to_owned()), ..NewRun::task(Box::leak(Box::new(job.clone()))) }
}

fn later(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

contract! {
    /// The requested lane is kept for single runs, batches, runs with a key, and tasks of the batching submitter.
    async fn a_run_waits_in_the_requested_lane(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let urgent = urgent();
        let key = |key: &str| Some(key.to_owned());
        let keyed = NewRun { idempotency_key: key("k"), ..in_lane(&job, &urgent) };
        let all = [NewRun::task(&job), in_lane(&job, &urgent), in_lane(&job, "low default/mail"), keyed.clone()];
        let created = store.create_or_find_runs(Writer::Api, &all[..3]).await.unwrap();
        let found = store.create_or_find_runs(Writer::Api, &all[2..]).await.unwrap();
        let again = store.create_or_find_runs(Writer::Api, &[keyed]).await.unwrap();
        assert_eq!((again[0].run, again[0].existed), (found[1].run, true));
        let (enqueuer, work) = SubmitBatcher::new((*store).clone());
        let task = PendingTask { lane: Some(urgent.clone()), ..PendingTask::new(job.clone().into()) };
        let single = tokio::select! {
            created = enqueuer.submit(task) => created.unwrap(),
            () = work => unreachable!("the worker of the queue ends only when all its handles are dropped"),
        };
        for (run, lane) in [
            (created[0].run, DEFAULT_LANE),
            (created[1].run, &urgent),
            (created[2].run, "low default/mail"),
            (found[1].run, &urgent),
            (single.run, &urgent),
        ] {
            assert_eq!(store.read_run(run).await.lane, lane);
            assert!(store.list_due_in_lane(lane, noon(), 10).await.unwrap().iter().any(|one| one.run == run));
        }
        let (token, claimed) = store.try_claim(&urgent, 10).await;
        assert_eq!(claimed.len(), 3);
        for run in claimed {
            assert!(store.finish_run(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
    }

    async fn a_lane_cannot_bypass_the_leader(store: TestStore) {
        let assigned = store.given_job(&RunOptions::default()).await;
        let refused = store.create_or_find_runs(Writer::Api, &[in_lane(&assigned, DEFAULT_LANE)]).await.unwrap_err();
        let expected = "lane: found \"function mail\", expected no lane, because the leader assigns the runs of this job";
        assert!(refused.to_string().ends_with(expected), "{refused}");
        let claimed = store.given_job(&in_mail_lane()).await;
        let refused = store.create_or_find_runs(Writer::Api, &[in_lane(&claimed, "")]).await.unwrap_err();
        assert!(refused.to_string().contains("lane: found nothing"), "{refused}");
    }

    async fn one_query_returns_the_earliest_due_time_of_each_lane(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let urgent = urgent();
        let at = |lane: &str, seconds| NewRun { scheduled_for: Some(later(seconds)), ..in_lane(&job, lane) };
        let runs = [at(DEFAULT_LANE, -60), at(DEFAULT_LANE, -90), at(&urgent, 3), at("low default/mail", 100)];
        store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
        let lanes = [&urgent, DEFAULT_LANE, "unused lane", "low default/mail"];
        let positions: Vec<_> = lanes.iter().map(|lane| LanePosition::start_of(lane)).collect();
        let firsts = store.find_lane_due_times(&positions, ASSIGN_AHEAD).await.unwrap();
        assert_eq!(firsts.clock, noon());
        assert_eq!(firsts.due_at, [Some(later(3)), Some(later(-90)), None, None]);
        store.set_time(1);
        assert_eq!(store.find_lane_due_times(&positions, ASSIGN_AHEAD).await.unwrap().clock, later(1));
        assert_eq!(store.find_lane_due_times(&[], ASSIGN_AHEAD).await.unwrap().due_at, []);
        store.set_time(100);
        let firsts = store.find_lane_due_times(&positions, ASSIGN_AHEAD).await.unwrap();
        assert_eq!(firsts.due_at[3], Some(later(100)));
    }

    async fn a_query_can_continue_from_a_position(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let at = |seconds| NewRun { scheduled_for: Some(later(seconds)), ..NewRun::task(&job) };
        let created = store.create_or_find_runs(Writer::Api, &[at(-60), at(-30), at(-10)]).await.unwrap();
        let behind = |seconds, run| [LanePosition { lane: DEFAULT_LANE, due_at: later(seconds), run }];
        let first = async |place: [LanePosition<'static>; 1]| store.find_lane_due_times(&place, ASSIGN_AHEAD).await.unwrap().due_at[0];
        let (token, claimed) = store.try_claim(DEFAULT_LANE, 1).await;
        assert_eq!(claimed[0].id, created[0].run);
        assert_eq!(first(behind(-60, claimed[0].id)).await, Some(later(-30)));
        assert_eq!(first(behind(-29, RunId(0))).await, Some(later(-10)));
        assert_eq!(first(behind(-9, RunId(0))).await, None);
        assert!(store.finish_run(token, claimed[0].id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    /// An expired run is never claimed, even before the leader has marked it as EXPIRED.
    async fn an_expired_run_is_not_claimed(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let until = |seconds| NewRun { expires_at: Some(later(seconds)), ..NewRun::task(&job) };
        let new = [until(5), until(7), NewRun { slot: None, ..NewRun::task(&job) }];
        let created = store.create_or_find_runs(Writer::Api, &new).await.unwrap();
        let keyed = NewRun { idempotency_key: Some("k".to_owned()), ..until(5) };
        let keyed = store.create_or_find_runs(Writer::Api, &[keyed]).await.unwrap()[0].run;
        store.set_time(6);
        let (token, claimed) = store.try_claim(DEFAULT_LANE, 10).await;
        assert_eq!(claimed.iter().map(|run| run.id).collect::<Vec<_>>(), [created[1].run, created[2].run]);
        for run in claimed {
            assert!(store.finish_run(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
        for run in [created[0].run, keyed] {
            assert!(store.expire_waiting_run(store.epoch, run).await.unwrap().is_applied());
        }
    }
}
