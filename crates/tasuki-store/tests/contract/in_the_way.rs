//! Nothing stands in another's way: a run that must wait, a worker's other work, an answer that was lost.

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{ErrorCode, RunId, RunState, WorkerId};
use tasuki_store::{AssignBatch, ClaimBatch, ClaimResult, AttemptReport, AttemptResult, NewWorker, Renewed};

use crate::given::{AHEAD, GRACE, Like, REASSIGN, TTL, TestStore, contract, failed, noon};

fn queue() -> Like {
    Like { lane: "q", ..Like::default() }
}

fn one_at_a_time() -> Like {
    Like { concurrency: ConcurrencyPolicy::Forbid, ..queue() }
}

async fn given_worker(store: &TestStore, slots: u32) -> WorkerId {
    let id = WorkerId::from_random(store.number() << 64);
    let node = "node".parse().unwrap();
    let new =
        NewWorker { id, node, pid: None, address: None, labels: None, slots, function_slots: 100 };
    store.register_worker(&new).await.unwrap();
    id
}

contract! {
    /// The answer was lost and nothing else is there to be claimed: the repeat must not say "nothing".
    async fn a_claim_that_took_everything_says_so_when_repeated(store: TestStore) {
        let job = store.given_job(&queue()).await;
        store.given_waiting(&job, &queue()).await;
        let (token, runs) = store.try_claim("q", 5).await;
        assert_eq!(runs.len(), 1);
        let batch = ClaimBatch { worker: store.worker, token, lane: "q", most: 5, lease_ttl: TTL };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::Before);
        assert_eq!(store.claim(&ClaimBatch { token: store.token(), ..batch }).await.unwrap(), ClaimResult::Runs(vec![]));
    }

    /// What it took waits for its next try, and its lease has not been closed yet: it takes nothing before its time.
    async fn a_claim_whose_runs_wait_again_says_so_when_repeated(store: TestStore) {
        let job = store.given_job(&queue()).await;
        let run = store.given_waiting(&job, &queue()).await;
        let (token, _) = store.try_claim("q", 5).await;
        let ending = AttemptReport::new(token, run, failed(ErrorCode::UNEXPECTED_ERROR));
        assert!(store.finish_open(&ending).await.unwrap().is_applied());
        assert_eq!(store.run_now(run).await.state, RunState::RetryWait);
        let batch = ClaimBatch { worker: store.worker, token, lane: "q", most: 5, lease_ttl: TTL };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::Before);
        assert_eq!(store.run_now(run).await.state, RunState::RetryWait);
        assert!(store.close_if_empty(token).await.is_ok());
    }

    async fn a_run_that_must_wait_does_not_stop_its_lane(store: TestStore) {
        let (busy, free) = (store.given_job(&one_at_a_time()).await, store.given_job(&queue()).await);
        store.given_waiting(&busy, &one_at_a_time()).await;
        let (token, first) = store.try_claim("q", 1).await;
        let second = store.given_waiting(&busy, &one_at_a_time()).await;
        let behind = store.given_waiting(&free, &queue()).await;
        let (_, runs) = store.try_claim("q", 1).await;
        assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [behind]);
        assert_eq!(store.try_claim("q", 1).await.1, []);
        assert!(store.finish(token, first[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.try_claim("q", 1).await.1[0].id, second);
    }

    /// Lost together with others once, due again, and its hold is another's.
    async fn nor_does_one_that_goes_alone(store: TestStore) {
        let (busy, free) = (store.given_job(&one_at_a_time()).await, store.given_job(&queue()).await);
        let lost = store.given_waiting(&busy, &one_at_a_time()).await;
        store.given_waiting(&free, &queue()).await;
        assert_eq!(store.try_claim("q", 2).await.1.len(), 2);
        store.at(3600);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap().unwrap();
        assert!(store.run_now(lost).await.counters.alone);
        // The next run of the same job takes the hold before the lost one is due again.
        store.given_waiting(&busy, &one_at_a_time()).await;
        assert_eq!(store.try_claim("q", 1).await.1.len(), 1);
        store.at(7200);
        let behind: Vec<RunId> = {
            let mut runs = Vec::new();
            for _ in 0..3 {
                runs.push(store.given_waiting(&free, &queue()).await);
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

    async fn a_run_that_must_wait_takes_no_room_from_another(store: TestStore) {
        let small = given_worker(store, 1).await;
        let like = Like { concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let (busy, free) = (store.given_job(&like).await, store.given_job(&Like::default()).await);
        let holder = store.given_waiting(&busy, &like).await;
        store.given_running(holder).await;
        store.given_waiting(&busy, &like).await;
        let behind = store.given_waiting(&free, &Like::default()).await;
        let wanted = store.due("", noon(), 10).await.unwrap();
        assert_eq!(wanted.len(), 2);
        let batch = AssignBatch {
            epoch: store.epoch, worker: small, token: store.token(), runs: &wanted, assign_ahead: AHEAD, reassign_after: REASSIGN,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [behind]);
    }

    /// Functions and commands have slots of their own.
    async fn what_a_worker_claimed_takes_no_room_from_what_it_is_given(store: TestStore) {
        let small = given_worker(store, 1).await;
        let (function, command) = (store.given_job(&queue()).await, store.given_job(&Like::default()).await);
        for _ in 0..3 {
            store.given_waiting(&function, &queue()).await;
        }
        let claim = ClaimBatch { worker: small, token: store.token(), lane: "q", most: 3, lease_ttl: TTL };
        assert!(matches!(store.claim(&claim).await.unwrap(), ClaimResult::Runs(runs) if runs.len() == 3));
        let runs = [store.given_waiting(&command, &Like::default()).await, store.given_waiting(&command, &Like::default()).await];
        let wanted = store.due("", noon(), 10).await.unwrap();
        let batch = AssignBatch {
            epoch: store.epoch, worker: small, token: store.token(), runs: &wanted, assign_ahead: AHEAD, reassign_after: REASSIGN,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), runs[..1]);
    }

    async fn a_lease_renewed_twice_in_one_go_is_held_twice(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let told = store.renew_many(store.worker, &[token, token], TTL).await.unwrap();
        assert_eq!(told[0], told[1]);
        assert!(matches!(&told[0], Renewed::Held { runs, .. } if runs.len() == 1));
    }
}
