//! Guards that other guards usually hide. Each case builds the state that only one guard refuses; some of these states
//! need SQL that tasuki itself never executes.

use jiff::SignedDuration;
use tasuki_core::{AttemptErrorCode, RunId, RunState, WorkerId};
use tasuki_store::{AssignRequest, ClaimRequest, ClaimResult, Error, NewRun, NewWorker, Writer};

use crate::fixtures::{ASSIGN_AHEAD, REASSIGN_AFTER, RunOptions, TTL, TestStore, contract, noon};

const LANE: &str = "q";

fn in_lane() -> RunOptions {
    RunOptions { lane: LANE, ..RunOptions::default() }
}

/// Assigns a run to a worker; returns whether it was assigned. An error for a damaged row assigns nothing.
async fn is_assigned(store: &TestStore, worker: WorkerId, run: RunId) -> bool {
    let due_run = store.read_due_run(run).await;
    let request = AssignRequest {
        epoch: store.epoch,
        worker,
        token: store.new_token(),
        runs: &[due_run],
        assign_ahead: ASSIGN_AHEAD,
        reassign_after: REASSIGN_AFTER,
    };
    match store.assign(&request).await {
        Ok(assigned) => assigned == [run],
        Err(Error::Broken(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Claims runs of the lane for a worker and returns their ids.
async fn claim(store: &TestStore, worker: WorkerId) -> Vec<RunId> {
    try_claim(store, worker).await.unwrap()
}

async fn try_claim(store: &TestStore, worker: WorkerId) -> Result<Vec<RunId>, Error> {
    let request = ClaimRequest {
        worker,
        token: store.new_token(),
        lane: LANE,
        max_runs: 10,
        lease_ttl: TTL,
        after: None,
    };
    match store.claim(&request).await? {
        ClaimResult::Runs(runs) => Ok(runs.iter().map(|run| run.id).collect()),
        ClaimResult::AlreadyClaimed => panic!("a new token was already used"),
    }
}

/// Asserts that a claim of damaged rows started nothing: it found nothing, or it failed.
fn assert_starts_nothing(claimed: Result<Vec<RunId>, Error>) {
    match claimed {
        Ok(runs) => assert_eq!(runs, []),
        Err(error) => assert!(matches!(error, Error::Broken(_)), "{error:?}"),
    }
}

/// Registers a worker with this number of slots for assigned runs.
async fn given_worker_with_slots(store: &TestStore, number: u128, slots: u32) -> WorkerId {
    let id = WorkerId::from_random(number);
    let worker = NewWorker {
        id,
        node: "node".parse().unwrap(),
        pid: None,
        address: None,
        labels: None,
        slots,
        function_slots: 100,
    };
    store.register_worker(&worker).await.unwrap();
    id
}

contract! {
    async fn a_worker_that_must_not_start_runs_gets_none(store: TestStore) {
        let run = store.given_due_run().await;
        let job = store.given_job(&in_lane()).await;
        let in_lane = store.given_waiting_run(&job, &in_lane()).await;
        for (number, condition) in (10..).zip(["draining", "detached", "dead", "gone"]) {
            let worker = given_worker_with_slots(store, number, 10).await;
            assert!(match condition {
                "draining" => store.drain_worker("test", worker).await.unwrap(),
                "detached" => store.detach_worker(Writer::Api, "test", worker, "test").await.unwrap(),
                "dead" => store.mark_worker_dead(worker, &"node".parse().unwrap()).await.unwrap(),
                _ => store.mark_worker_gone(worker).await.unwrap(),
            });
            assert!(!is_assigned(store, worker, run).await, "{condition}");
            assert_eq!(claim(store, worker).await, [], "{condition}");
        }
        assert!(is_assigned(store, store.worker, run).await);
        assert_eq!(claim(store, store.worker).await, [in_lane]);
    }

    async fn a_claim_takes_no_future_run(store: TestStore) {
        let job = store.given_job(&in_lane()).await;
        let later = NewRun { scheduled_for: Some(noon() + SignedDuration::from_secs(5)), ..NewRun::task(&job) };
        let run = store.create_or_find_runs(Writer::Api, &[later]).await.unwrap()[0].run;
        assert_eq!(claim(store, store.worker).await, []);
        assert_eq!(store.read_run(run).await.state, RunState::Pending);
        store.set_time(5);
        assert_eq!(claim(store, store.worker).await, [run]);
    }

    /// The skip time counts until the first start. After it, the run is only skipped.
    async fn a_run_is_not_assigned_or_claimed_after_its_skip_time(store: TestStore) {
        let options = RunOptions { skip_after: Some(10), ..RunOptions::default() };
        let claimed_options = RunOptions { skip_after: Some(10), ..in_lane() };
        let (job, claimed_job) = (store.given_job(&options).await, store.given_job(&claimed_options).await);
        let run = store.given_waiting_run(&job, &options).await;
        let claimed = store.given_waiting_run(&claimed_job, &claimed_options).await;
        store.set_time(11);
        assert!(!is_assigned(store, store.worker, run).await);
        assert_eq!(claim(store, store.worker).await, []);
        store.set_time(10);
        assert!(is_assigned(store, store.worker, run).await, "the skip time itself is not too late");
        assert_eq!(claim(store, store.worker).await, [claimed]);
    }

    async fn a_retry_has_no_skip_time(store: TestStore) {
        let options = RunOptions { skip_after: Some(10), ..RunOptions::default() };
        let claimed_options = RunOptions { skip_after: Some(10), ..in_lane() };
        let (job, claimed_job) = (store.given_job(&options).await, store.given_job(&claimed_options).await);
        let run = store.given_waiting_run(&job, &options).await;
        let claimed = store.given_waiting_run(&claimed_job, &claimed_options).await;
        store.given_failure(run, AttemptErrorCode::UNEXPECTED_ERROR).await;
        let (token, runs) = store.try_claim(LANE, 1).await;
        assert_eq!(runs[0].id, claimed);
        let failure = crate::fixtures::failed_result(AttemptErrorCode::UNEXPECTED_ERROR);
        assert!(store.finish_run(token, claimed, &failure).await.unwrap().is_applied());
        store.set_time(60);
        assert!(is_assigned(store, store.worker, run).await);
        assert_eq!(claim(store, store.worker).await, [claimed]);
    }

    /// Assigned runs use a slot only shortly before they are due; running runs use one.
    async fn slots_are_used_by_running_runs_and_by_runs_that_are_due_soon(store: TestStore) {
        let worker = given_worker_with_slots(store, 10, 1).await;
        let job = store.given_job(&RunOptions::default()).await;
        let later = NewRun { scheduled_for: Some(noon() + SignedDuration::from_secs(20)), ..NewRun::task(&job) };
        let ahead = store.create_or_find_runs(Writer::Api, &[later]).await.unwrap()[0].run;
        assert!(is_assigned(store, worker, ahead).await);
        let (first, second) = (store.given_due_run().await, store.given_due_run().await);
        assert!(is_assigned(store, worker, first).await, "a run that is assigned ahead uses no slot");
        assert!(!is_assigned(store, worker, second).await);
        let token = store.read_run(first).await.token.unwrap();
        assert!(store.start(worker, token, &[first], TTL).await.unwrap().remove(0).is_applied());
        assert!(!is_assigned(store, worker, second).await, "a running run uses a slot");
    }

    /// A run that was returned to the queue and assigned again is in the lists of two leases, but uses one slot.
    async fn a_run_uses_one_slot_even_if_two_leases_list_it(store: TestStore) {
        let worker = given_worker_with_slots(store, 10, 3).await;
        let runs = [store.given_due_run().await, store.given_due_run().await, store.given_due_run().await];
        let due_runs = [store.read_due_run(runs[0]).await, store.read_due_run(runs[1]).await];
        let token = store.new_token();
        let request = AssignRequest {
            epoch: store.epoch,
            worker,
            token,
            runs: &due_runs,
            assign_ahead: ASSIGN_AHEAD,
            reassign_after: REASSIGN_AFTER,
        };
        assert_eq!(store.assign(&request).await.unwrap(), [runs[0], runs[1]]);
        assert!(store.release(token, runs[0]).await.unwrap().is_applied());
        assert!(is_assigned(store, worker, runs[0]).await);
        assert!(is_assigned(store, worker, runs[2]).await, "two of three slots are used");
    }

    /// A due row without a waiting run, or of a run with a cancel request or without tries left, starts nothing.
    async fn a_wrong_due_row_starts_no_run(store: TestStore) {
        store.skip_doctor();
        let job = store.given_job(&in_lane()).await;
        let run = store.given_waiting_run(&job, &in_lane()).await;
        assert_eq!(claim(store, store.worker).await, [run]);
        let (assigned, due_at) = (store.given_due_run().await, noon().as_microsecond());
        let token = store.given_assigned(assigned).await;
        for (lane, run) in [(LANE, run), ("", assigned)] {
            let insert = format!("insert into tasuki_due (lane, due_at, run_id, exclusive) values ('{lane}', {due_at}, {run}, 0)");
            store.execute_script(&insert).await.unwrap();
        }
        let before = store.read_run(run).await;
        assert_starts_nothing(try_claim(store, store.worker).await);
        assert_eq!(store.read_run(run).await, before);
        assert!(!is_assigned(store, store.worker, assigned).await);
        assert_eq!(store.read_run(assigned).await.token, Some(token));
    }

    async fn a_waiting_run_with_a_cancel_request_does_not_start(store: TestStore) {
        store.skip_doctor();
        let job = store.given_job(&in_lane()).await;
        let claimed = store.given_waiting_run(&job, &in_lane()).await;
        let assigned = store.given_due_run().await;
        for run in [claimed, assigned] {
            let update = format!("update tasuki_run set cancel_requested_at = 1, cancel_requested_by = 'test' where id = {run}");
            store.execute_script(&update).await.unwrap();
        }
        assert_starts_nothing(try_claim(store, store.worker).await);
        assert_eq!(store.read_run(claimed).await.state, RunState::Pending);
        assert!(!is_assigned(store, store.worker, assigned).await);
    }
}
