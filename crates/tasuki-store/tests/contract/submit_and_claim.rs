//! Submit and claim: a worker creates tasks and claims them in one write (T0 and T1c).

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{LeaseToken, RunState};
use tasuki_store::{
    AttemptResult, ClaimRequest, Error, JobVersion, NewRun, RenewResult, RunFilter, StartedRun,
    Writer,
};

use crate::fixtures::{GRACE, RunOptions, TTL, TestStore, contract, noon};

const LANE: &str = "function mail";

fn in_mail_lane() -> RunOptions {
    RunOptions { lane: LANE, ..RunOptions::default() }
}

fn task_with_args(job: &JobVersion, args: &str) -> NewRun<'static> {
    NewRun { args: Some(args.to_owned()), ..NewRun::task(Box::leak(Box::new(job.clone()))) }
}

async fn submit_and_claim(
    store: &TestStore,
    token: LeaseToken,
    tasks: &[NewRun<'_>],
) -> Result<Vec<StartedRun>, Error> {
    let limit = tasks.len() as u32;
    let batch = ClaimRequest {
        worker: store.worker,
        token,
        lane: LANE,
        max_runs: limit,
        lease_ttl: TTL,
        after: None,
    };
    store.submit_and_claim(&batch, tasks).await
}

async fn count_runs(store: &TestStore) -> usize {
    store.list_runs(&RunFilter::default(), None, 100).await.unwrap().runs.len()
}

contract! {
    async fn submitted_and_claimed_tasks_run_under_one_lease_in_order(store: TestStore) {
        let (job, other) = (store.given_job(&in_mail_lane()).await, store.given_job(&in_mail_lane()).await);
        let tasks: Vec<_> = (0..7)
            .map(|n| task_with_args(if n % 3 == 0 { &other } else { &job }, &format!(r#"{{"n":{n}}}"#)))
            .collect();
        let token = store.new_token();
        let claimed = submit_and_claim(store, token, &tasks).await.unwrap();
        assert_eq!(claimed.len(), 7);
        for (claimed, task) in claimed.iter().zip(&tasks) {
            assert_eq!((claimed.job, &claimed.args), (task.job.job, &task.args));
            assert_eq!((claimed.attempt_no, claimed.tries, claimed.scheduled_for), (1, 1, noon()));
            let run = store.read_run(claimed.id).await;
            assert_eq!((run.state, run.lane.as_str()), (RunState::Running, LANE));
        }
        assert!(store.list_due_in_lane(LANE, noon(), 10).await.unwrap().is_empty());
        let renewed = store.renew_one(token).await;
        assert!(matches!(renewed, RenewResult::Held { runs, .. } if runs.len() == 7));
        for claimed in &claimed {
            assert!(store.finish_run(token, claimed.id, &AttemptResult::default()).await.unwrap().is_applied());
        }
        assert_eq!(store.read_run(claimed[0].id).await.state, RunState::Succeeded);
    }

    /// A lost run is recovered like any other claimed run.
    async fn a_lost_task_is_claimed_again(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let claimed = submit_and_claim(store, store.new_token(), &[task_with_args(&job, "{}")]).await.unwrap();
        store.set_time(3_600);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap().unwrap();
        store.set_time(7_200);
        let (token, again) = store.try_claim(LANE, 5).await;
        assert_eq!(again.iter().map(|run| (run.id, run.attempt_no)).collect::<Vec<_>>(), [(claimed[0].id, 2)]);
        assert!(store.finish_run(token, claimed[0].id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    async fn nothing_is_created_while_a_run_waits_in_the_lane(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let later = NewRun { scheduled_for: Some(noon() + SignedDuration::from_secs(9)), ..task_with_args(&job, "{}") };
        store.create_or_find_runs(Writer::Api, &[later]).await.unwrap();
        assert_eq!(submit_and_claim(store, store.new_token(), &[task_with_args(&job, "{}")]).await.unwrap().len(), 1);
        store.set_time(9);
        assert_eq!(submit_and_claim(store, store.new_token(), &[task_with_args(&job, "{}")]).await.unwrap(), []);
        assert_eq!(count_runs(store).await, 2);
    }

    async fn a_draining_worker_creates_nothing(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        store.drain_worker("test", store.worker).await.unwrap();
        assert_eq!(submit_and_claim(store, store.new_token(), &[task_with_args(&job, "{}")]).await.unwrap(), []);
        assert_eq!(count_runs(store).await, 0);
    }

    async fn only_plain_tasks_are_accepted_and_all_or_none(store: TestStore) {
        let job = store.given_job(&in_mail_lane()).await;
        let exclusive = store.given_job(&RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..in_mail_lane() }).await;
        let elsewhere = NewRun { lane: Some("low default/mail".to_owned()), ..task_with_args(&job, "{}") };
        let keyed = NewRun { idempotency_key: Some("k".to_owned()), ..task_with_args(&job, "{}") };
        let timed = NewRun { scheduled_for: Some(noon()), ..task_with_args(&job, "{}") };
        for odd in [task_with_args(&exclusive, "{}"), elsewhere, keyed, timed] {
            let refused = submit_and_claim(store, store.new_token(), &[task_with_args(&job, "{}"), odd]).await.unwrap_err();
            assert!(refused.to_string().contains("expected a task of lane"), "{refused}");
        }
        let token = store.new_token();
        assert_eq!(submit_and_claim(store, token, &[]).await.unwrap(), [], "an empty request creates nothing");
        submit_and_claim(store, token, &[task_with_args(&job, "{}")]).await.expect("the empty request did not use the token");
        assert!(submit_and_claim(store, token, &[task_with_args(&job, "{}")]).await.is_err(), "a token identifies one lease");
        assert_eq!(count_runs(store).await, 1);
    }
}
