//! Every verb in every state: it is applied exactly where the transition table allows it.

use tasuki_core::run::SkipReason;
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{AttemptErrorCode, RunState};
use tasuki_store::{AttemptResult, RenewResult, Writer};

use crate::fixtures::{GRACE, RunOptions, TTL, TestStore, contract, failed_result};

contract! {
    async fn every_verb_is_applied_only_in_its_states(store: TestStore) {
        for &verb in RunVerb::ALL {
            if verb == RunVerb::Create {
                continue; // a created run has no previous state
            }
            for &state in RunState::ALL {
                store.set_time(0);
                let applied = try_verb(store, verb, state).await;
                assert_eq!(applied, verb.applies_to(state), "{verb} in {state}");
            }
        }
    }
}

/// Applies a verb to a run in this state; all other conditions of the verb are met. Returns whether it was applied.
pub(crate) async fn try_verb(store: &TestStore, verb: RunVerb, state: RunState) -> bool {
    let lane = if verb == RunVerb::Claim { "queue" } else { "" };
    let options = match verb {
        // Only a run with such a deadline can be skipped or expire.
        RunVerb::Skip => RunOptions { skip_after: Some(5), ..RunOptions::default() },
        RunVerb::Expire => RunOptions { expire_after: Some(5), ..RunOptions::default() },
        _ => RunOptions::default(),
    };
    let run = store.given_run_with(state, &options).await;
    if !lane.is_empty() && state.is_waiting() {
        // The run was brought into its state by assignment; it is moved into a claimable lane afterwards.
        let sql = format!(
            "update tasuki_run set lane = '{lane}' where id = {id}; update tasuki_due set lane = '{lane}' where run_id = {id}",
            id = run.id
        );
        store.execute_script(&sql).await.unwrap();
    }
    let before = store.read_run(run.id).await;
    let token = run.token.unwrap_or_else(|| store.new_token());
    match verb {
        RunVerb::Create => unreachable!("the caller leaves create out"),
        RunVerb::Assign => {
            store.set_time(40);
            store.try_assign(store.read_due_run(run.id).await).await.is_some()
        }
        RunVerb::Claim => {
            store.set_time(40);
            store.try_claim("queue", 10).await.1.iter().any(|claimed| claimed.id == run.id)
        }
        RunVerb::Start => store.try_start(token, run.id).await.is_applied(),
        RunVerb::Renew => match store.renew_one(token).await {
            RenewResult::Held { runs, .. } => runs.iter().any(|one| one.run == run.id),
            RenewResult::Gone => false,
        },
        RunVerb::Finish => {
            let first = store
                .finish_run(token, run.id, &AttemptResult::default())
                .await
                .unwrap()
                .is_applied();
            // A repeated report of an ended run is accepted, but it is not a transition.
            first && before.state == RunState::Running
        }
        RunVerb::Orphan => {
            store.set_time(20);
            store.orphan(store.epoch, run.id, token).await.unwrap().is_applied()
        }
        RunVerb::Release => store.release(token, run.id).await.unwrap().is_applied(),
        RunVerb::Recover => {
            store.set_time(100);
            let expired = store.list_expired_leases(GRACE, 100).await.unwrap();
            let Some(lease) = expired.into_iter().find(|lease| lease.runs.contains(&run.id)) else {
                return false;
            };
            let recovered = store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().unwrap();
            recovered.iter().any(|one| one.run == run.id)
        }
        RunVerb::Cancel => {
            store.cancel(Writer::Api, run.id, "test", None).await.unwrap().is_applied()
        }
        RunVerb::Skip => {
            store.set_time(10);
            store.skip(store.epoch, run.id, SkipReason::Late).await.unwrap().is_applied()
        }
        RunVerb::Expire => {
            store.set_time(10);
            store.expire_waiting_run(store.epoch, run.id).await.unwrap().is_applied()
        }
        RunVerb::Retry => store.retry_manually(run.id, "test", None).await.unwrap().is_applied(),
        RunVerb::Confirm => {
            !store.begin_confirming_after_detach(&[(run.id, token)], TTL).await.unwrap().is_empty()
        }
    }
}

contract! {
    /// Each possible end of a failed attempt.
    async fn every_end_of_a_failed_attempt(store: TestStore) {
        for (max_attempts, code, cancel, expected) in [
            (3, AttemptErrorCode::UNEXPECTED_ERROR, false, RunState::RetryWait),
            (1, AttemptErrorCode::UNEXPECTED_ERROR, false, RunState::Failed),
            (1, AttemptErrorCode::RUNTIME_TIMEOUT, false, RunState::TimedOut),
            (3, AttemptErrorCode::INVALID_INPUT, false, RunState::Failed),
            (3, AttemptErrorCode::UNEXPECTED_ERROR, true, RunState::Canceled),
        ] {
            let options = RunOptions { max_attempts, ..RunOptions::default() };
            let run = store.given_run_with(RunState::Running, &options).await;
            if cancel {
                assert!(store.cancel(Writer::Api, run.id, "test", None).await.unwrap().is_applied());
            }
            let finished = store.finish_run(run.token.unwrap(), run.id, &failed_result(code)).await.unwrap();
            assert_eq!(finished.into_applied().unwrap().state, expected);
            assert_eq!(store.read_run(run.id).await.state, expected);
        }
    }
}
