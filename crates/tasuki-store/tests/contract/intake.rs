//! Tasks that a worker carries from the moment they are there: T0 and T1c in one write.

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, RunState};
use tasuki_store::{
    Writer, ClaimBatch, Error, AttemptResult, JobVersion, NewRun, Renewed, RunFilter, Taken,
};

use crate::given::{GRACE, Like, TTL, TestStore, contract, noon};

const LANE: &str = "function mail";

fn mail() -> Like {
    Like { lane: LANE, ..Like::default() }
}

fn given(job: &JobVersion, args: &str) -> NewRun<'static> {
    NewRun { args: Some(args.to_owned()), ..NewRun::task(Box::leak(Box::new(job.clone()))) }
}

async fn take_in(
    store: &TestStore,
    token: LeaseToken,
    tasks: &[NewRun<'_>],
) -> Result<Vec<Taken>, Error> {
    let most = tasks.len() as u32;
    let batch = ClaimBatch { worker: store.worker, token, lane: LANE, most, lease_ttl: TTL };
    store.take_in(&batch, tasks).await
}

async fn count(store: &TestStore) -> usize {
    store.runs(&RunFilter::default(), None, 100).await.unwrap().runs.len()
}

contract! {
    async fn what_is_taken_in_runs_under_a_lease_in_the_order_it_came(store: TestStore) {
        let (job, other) = (store.given_job(&mail()).await, store.given_job(&mail()).await);
        let tasks: Vec<_> = (0..7)
            .map(|n| given(if n % 3 == 0 { &other } else { &job }, &format!(r#"{{"n":{n}}}"#)))
            .collect();
        let token = store.token();
        let taken = take_in(store, token, &tasks).await.unwrap();
        assert_eq!(taken.len(), 7);
        for (taken, task) in taken.iter().zip(&tasks) {
            assert_eq!((taken.job, &taken.args), (task.job.job, &task.args));
            assert_eq!((taken.attempt_no, taken.tries, taken.scheduled_for), (1, 1, noon()));
            let run = store.run_now(taken.id).await;
            assert_eq!((run.state, run.lane.as_str()), (RunState::Running, LANE));
        }
        assert!(store.due(LANE, noon(), 10).await.unwrap().is_empty());
        let renewed = store.renew(store.worker, token, TTL).await.unwrap();
        assert!(matches!(renewed, Renewed::Held { runs, .. } if runs.len() == 7));
        for taken in &taken {
            assert!(store.finish(token, taken.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
        assert_eq!(store.run_now(taken[0].id).await.state, RunState::Succeeded);
    }

    /// What is lost comes back as anything else that was claimed.
    async fn what_was_taken_in_and_lost_is_claimed_again(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let taken = take_in(store, store.token(), &[given(&job, "{}")]).await.unwrap();
        store.at(3_600);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap().unwrap();
        store.at(7_200);
        let (token, again) = store.try_claim(LANE, 5).await;
        assert_eq!(again.iter().map(|run| (run.id, run.attempt_no)).collect::<Vec<_>>(), [(taken[0].id, 2)]);
        assert!(store.finish(token, taken[0].id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    async fn nothing_is_made_where_somebody_waits(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let later = NewRun { scheduled_for: Some(noon() + SignedDuration::from_secs(9)), ..given(&job, "{}") };
        store.create(Writer::Api, &[later]).await.unwrap();
        assert_eq!(take_in(store, store.token(), &[given(&job, "{}")]).await.unwrap().len(), 1);
        store.at(9);
        assert_eq!(take_in(store, store.token(), &[given(&job, "{}")]).await.unwrap(), []);
        assert_eq!(count(store).await, 2);
    }

    async fn a_worker_that_takes_no_work_takes_none_in(store: TestStore) {
        let job = store.given_job(&mail()).await;
        store.drain_worker("test", store.worker).await.unwrap();
        assert_eq!(take_in(store, store.token(), &[given(&job, "{}")]).await.unwrap(), []);
        assert_eq!(count(store).await, 0);
    }

    async fn only_plain_tasks_are_taken_in_and_all_or_none(store: TestStore) {
        let job = store.given_job(&mail()).await;
        let alone = store.given_job(&Like { concurrency: ConcurrencyPolicy::Forbid, ..mail() }).await;
        let elsewhere = NewRun { lane: Some("low default/mail".to_owned()), ..given(&job, "{}") };
        let keyed = NewRun { idempotency_key: Some("k".to_owned()), ..given(&job, "{}") };
        let timed = NewRun { scheduled_for: Some(noon()), ..given(&job, "{}") };
        for odd in [given(&alone, "{}"), elsewhere, keyed, timed] {
            let refused = take_in(store, store.token(), &[given(&job, "{}"), odd]).await.unwrap_err();
            assert!(refused.to_string().contains("expected a plain task of lane"), "{refused}");
        }
        let token = store.token();
        assert_eq!(take_in(store, token, &[]).await.unwrap(), [], "none are none");
        take_in(store, token, &[given(&job, "{}")]).await.expect("nothing came of it");
        assert!(take_in(store, token, &[given(&job, "{}")]).await.is_err(), "a token is for one lease");
        assert_eq!(count(store).await, 1);
    }
}
