//! Lanes: a run waits where it is told to, and one look shows the first of each of several.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Lane, Priority, RunId};
use tasuki_store::{Writer, Enqueuer, AttemptResult, JobVersion, LanePlace, NewRun, Task};

use crate::given::{AHEAD, Like, TestStore, contract, noon};

/// The job's own lane, and one that some of its runs are told to wait in.
const USUAL: &str = "function mail";

fn mail() -> Like {
    Like { lane: USUAL, ..Like::default() }
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
    /// One by one, as a set, with a key, together with others, and by hand: the run waits where it was told to.
    async fn a_run_waits_in_the_lane_it_is_told(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let urgent = urgent();
        let key = |key: &str| Some(key.to_owned());
        let keyed = NewRun { idempotency_key: key("k"), ..in_lane(&job, &urgent) };
        let all = [NewRun::task(&job), in_lane(&job, &urgent), in_lane(&job, "low default/mail"), keyed.clone()];
        let made = store.create(Writer::Api, &all[..3]).await.unwrap();
        let found = store.create(Writer::Api, &all[2..]).await.unwrap();
        let again = store.create(Writer::Api, &[keyed]).await.unwrap();
        assert_eq!((again[0].run, again[0].existed), (found[1].run, true));
        let (enqueuer, work) = Enqueuer::new((*store).clone());
        let task = Task { lane: Some(urgent.clone()), ..Task::new(job.clone().into()) };
        let single = tokio::select! {
            made = enqueuer.enqueue(task) => made.unwrap(),
            () = work => unreachable!("it works as long as there is somebody to ask it"),
        };
        for (run, lane) in [
            (made[0].run, USUAL),
            (made[1].run, &urgent),
            (made[2].run, "low default/mail"),
            (found[1].run, &urgent),
            (single.run, &urgent),
        ] {
            assert_eq!(store.run_now(run).await.lane, lane);
            assert!(store.due(lane, noon(), 10).await.unwrap().iter().any(|one| one.run == run));
        }
        let (token, taken) = store.try_claim(&urgent, 10).await;
        assert_eq!(taken.len(), 3);
        for run in taken {
            assert!(store.finish(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
    }

    async fn a_lane_is_no_way_round_the_leader(store: TestStore) {
        let assigned = store.given_job(&Like::default()).await;
        let refused = store.create(Writer::Api, &[in_lane(&assigned, USUAL)]).await.unwrap_err();
        let wanted = "lane: found \"function mail\", expected none where the leader assigns";
        assert!(refused.to_string().ends_with(wanted), "{refused}");
        let claimed = store.given_job(&mail()).await;
        let refused = store.create(Writer::Api, &[in_lane(&claimed, "")]).await.unwrap_err();
        assert!(refused.to_string().contains("lane: found nothing"), "{refused}");
    }

    async fn one_look_shows_the_first_of_each_lane(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let urgent = urgent();
        let at = |lane: &str, seconds| NewRun { scheduled_for: Some(later(seconds)), ..in_lane(&job, lane) };
        let runs = [at(USUAL, -60), at(USUAL, -90), at(&urgent, 3), at("low default/mail", 100)];
        store.create(Writer::Api, &runs).await.unwrap();
        let lanes = [&urgent, USUAL, "nobody's", "low default/mail"];
        let asked: Vec<_> = lanes.iter().map(|lane| LanePlace::start_of(lane)).collect();
        let firsts = store.firsts(&asked, AHEAD).await.unwrap();
        assert_eq!(firsts.clock, noon());
        assert_eq!(firsts.due, [Some(later(3)), Some(later(-90)), None, None]);
        store.at(1);
        assert_eq!(store.firsts(&asked, AHEAD).await.unwrap().clock, later(1));
        assert_eq!(store.firsts(&[], AHEAD).await.unwrap().due, []);
        store.at(100);
        let firsts = store.firsts(&asked, AHEAD).await.unwrap();
        assert_eq!(firsts.due[3], Some(later(100)));
    }

    async fn a_look_goes_on_from_a_place(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let at = |seconds| NewRun { scheduled_for: Some(later(seconds)), ..NewRun::task(&job) };
        let made = store.create(Writer::Api, &[at(-60), at(-30), at(-10)]).await.unwrap();
        let behind = |seconds, run| [LanePlace { lane: USUAL, at: later(seconds), run }];
        let first = async |place: [LanePlace<'static>; 1]| store.firsts(&place, AHEAD).await.unwrap().due[0];
        let (token, taken) = store.try_claim(USUAL, 1).await;
        assert_eq!(taken[0].id, made[0].run);
        assert_eq!(first(behind(-60, taken[0].id)).await, Some(later(-30)));
        assert_eq!(first(behind(-29, RunId(0))).await, Some(later(-10)));
        assert_eq!(first(behind(-9, RunId(0))).await, None);
        assert!(store.finish(token, taken[0].id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    /// It is given up, however late whoever does that comes.
    async fn what_has_expired_is_not_claimed(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let until = |seconds| NewRun { expires_at: Some(later(seconds)), ..NewRun::task(&job) };
        let new = [until(5), until(7), NewRun { slot: None, ..NewRun::task(&job) }];
        let made = store.create(Writer::Api, &new).await.unwrap();
        let keyed = NewRun { idempotency_key: Some("k".to_owned()), ..until(5) };
        let keyed = store.create(Writer::Api, &[keyed]).await.unwrap()[0].run;
        store.at(6);
        let (token, taken) = store.try_claim(USUAL, 10).await;
        assert_eq!(taken.iter().map(|run| run.id).collect::<Vec<_>>(), [made[1].run, made[2].run]);
        for run in taken {
            assert!(store.finish(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
        for run in [made[0].run, keyed] {
            assert!(store.expire(store.epoch, run).await.unwrap().is_applied());
        }
    }
}
