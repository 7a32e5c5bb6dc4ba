//! A run that must wait does not block other runs of its lane or of its worker, and a repeated claim after a lost
//! response is recognised.

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{AttemptErrorCode, RunId, RunState, WorkerId};
use tasuki_store::{
    AssignRequest, AttemptReport, AttemptResult, ClaimRequest, ClaimResult, NewWorker, RenewResult,
};

use crate::fixtures::{
    ASSIGN_AHEAD, GRACE, REASSIGN_AFTER, RunOptions, TTL, TestStore, contract, failed_result, noon,
};

fn in_queue() -> RunOptions {
    RunOptions { lane: "q", ..RunOptions::default() }
}

fn one_run_at_a_time() -> RunOptions {
    RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..in_queue() }
}

async fn given_worker_with_slots(store: &TestStore, slots: u32) -> WorkerId {
    let id = WorkerId::from_random(store.next_number() << 64);
    let node = "node".parse().unwrap();
    let new =
        NewWorker { id, node, pid: None, address: None, labels: None, slots, function_slots: 100 };
    store.register_worker(&new).await.unwrap();
    id
}

contract! {
    /// The response was lost and the lane is empty now: the repeated claim must not return an empty result.
    async fn a_repeated_claim_is_recognised_when_the_lane_is_empty(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        store.given_waiting_run(&job, &in_queue()).await;
        let (token, runs) = store.try_claim("q", 5).await;
        assert_eq!(runs.len(), 1);
        let batch = ClaimRequest { worker: store.worker, token, lane: "q", max_runs: 5, lease_ttl: TTL, after: None };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::AlreadyClaimed);
        assert_eq!(store.claim(&ClaimRequest { token: store.new_token(), ..batch }).await.unwrap(), ClaimResult::Runs(vec![]));
    }

    /// The claimed run waits for its retry, and its lease is not closed yet: the repeated claim is recognised, and
    /// does not take the run before its time.
    async fn a_repeated_claim_is_recognised_when_its_run_waits_for_a_retry(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let run = store.given_waiting_run(&job, &in_queue()).await;
        let (token, _) = store.try_claim("q", 5).await;
        let ending = AttemptReport::new(token, run, failed_result(AttemptErrorCode::UNEXPECTED_ERROR));
        assert!(store.finish(std::slice::from_ref(&ending), &[]).await.unwrap()[0].is_applied());
        assert_eq!(store.read_run(run).await.state, RunState::RetryWait);
        let batch = ClaimRequest { worker: store.worker, token, lane: "q", max_runs: 5, lease_ttl: TTL, after: None };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::AlreadyClaimed);
        assert_eq!(store.read_run(run).await.state, RunState::RetryWait);
        assert!(store.close_lease_if_empty(token).await.is_ok());
    }

    async fn a_run_that_waits_for_a_hold_does_not_block_its_lane(store: TestStore) {
        let (busy, free) = (store.given_job(&one_run_at_a_time()).await, store.given_job(&in_queue()).await);
        store.given_waiting_run(&busy, &one_run_at_a_time()).await;
        let (token, first) = store.try_claim("q", 1).await;
        let second = store.given_waiting_run(&busy, &one_run_at_a_time()).await;
        let behind = store.given_waiting_run(&free, &in_queue()).await;
        let (_, runs) = store.try_claim("q", 1).await;
        assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [behind]);
        assert_eq!(store.try_claim("q", 1).await.1, []);
        assert!(store.finish_run(token, first[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.try_claim("q", 1).await.1[0].id, second);
    }

    /// A run that was lost together with others must be claimed alone (isolated). While another run has its hold, it
    /// does not block the lane.
    async fn an_isolated_run_that_waits_does_not_block_its_lane(store: TestStore) {
        let (busy, free) = (store.given_job(&one_run_at_a_time()).await, store.given_job(&in_queue()).await);
        let lost = store.given_waiting_run(&busy, &one_run_at_a_time()).await;
        store.given_waiting_run(&free, &in_queue()).await;
        assert_eq!(store.try_claim("q", 2).await.1.len(), 2);
        store.set_time(3600);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap().unwrap();
        assert!(store.read_run(lost).await.counters.isolated);
        // The next run of the same job takes the hold before the lost one is due again.
        store.given_waiting_run(&busy, &one_run_at_a_time()).await;
        assert_eq!(store.try_claim("q", 1).await.1.len(), 1);
        store.set_time(7200);
        let behind: Vec<RunId> = {
            let mut runs = Vec::new();
            for _ in 0..3 {
                runs.push(store.given_waiting_run(&free, &in_queue()).await);
            }
            runs
        };
        let mut claimed = Vec::new();
        for _ in 0..3 {
            claimed.extend(store.try_claim("q", 10).await.1.into_iter().map(|run| run.id));
        }
        assert!(behind.iter().all(|run| claimed.contains(run)), "{claimed:?} without {behind:?}");
        assert!(!claimed.contains(&lost));
    }

    async fn a_run_that_waits_for_a_hold_takes_no_slot(store: TestStore) {
        let small = given_worker_with_slots(store, 1).await;
        let options = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let (busy, free) = (store.given_job(&options).await, store.given_job(&RunOptions::default()).await);
        let holder = store.given_waiting_run(&busy, &options).await;
        store.given_running(holder).await;
        store.given_waiting_run(&busy, &options).await;
        let behind = store.given_waiting_run(&free, &RunOptions::default()).await;
        let due_runs = store.list_due_in_lane("", noon(), 10).await.unwrap();
        assert_eq!(due_runs.len(), 2);
        let batch = AssignRequest {
            epoch: store.epoch, worker: small, token: store.new_token(), runs: &due_runs, assign_ahead: ASSIGN_AHEAD, reassign_after: REASSIGN_AFTER,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [behind]);
    }

    /// Functions and commands have separate slots.
    async fn claimed_functions_take_no_slots_of_assigned_commands(store: TestStore) {
        let small = given_worker_with_slots(store, 1).await;
        let (function, command) = (store.given_job(&in_queue()).await, store.given_job(&RunOptions::default()).await);
        for _ in 0..3 {
            store.given_waiting_run(&function, &in_queue()).await;
        }
        let claim = ClaimRequest { worker: small, token: store.new_token(), lane: "q", max_runs: 3, lease_ttl: TTL, after: None };
        assert!(matches!(store.claim(&claim).await.unwrap(), ClaimResult::Runs(runs) if runs.len() == 3));
        let runs = [store.given_waiting_run(&command, &RunOptions::default()).await, store.given_waiting_run(&command, &RunOptions::default()).await];
        let due_runs = store.list_due_in_lane("", noon(), 10).await.unwrap();
        let batch = AssignRequest {
            epoch: store.epoch, worker: small, token: store.new_token(), runs: &due_runs, assign_ahead: ASSIGN_AHEAD, reassign_after: REASSIGN_AFTER,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), runs[..1]);
    }

    async fn a_token_listed_twice_is_renewed_twice(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let renewed = store.renew(store.worker, &[token, token], TTL).await.unwrap();
        assert_eq!(renewed[0], renewed[1]);
        assert!(matches!(&renewed[0], RenewResult::Held { runs, .. } if runs.len() == 1));
    }
}
