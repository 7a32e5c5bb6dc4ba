//! Every state with every verb: applied exactly where the table says so.

use tasuki_core::run::SkipReason;
use tasuki_core::run::transition::Verb;
use tasuki_core::{ErrorCode, RunState};
use tasuki_store::{Writer, AttemptResult, Renewed};

use crate::given::{GRACE, Like, TTL, TestStore, contract, failed};

contract! {
    async fn every_state_with_every_verb(store: TestStore) {
        for &verb in Verb::ALL {
            if verb == Verb::Create {
                continue; // it has no state to come from
            }
            for &state in RunState::ALL {
                store.at(0);
                let applied = try_verb(store, verb, state).await;
                assert_eq!(applied, verb.applies_to(state), "{verb} in {state}");
            }
        }
    }
}

/// Whether the verb moved (or touched) a run in this state, with everything but the state in favour.
pub(crate) async fn try_verb(store: &TestStore, verb: Verb, state: RunState) -> bool {
    let lane = if verb == Verb::Claim { "queue" } else { "" };
    let like = match verb {
        // Only a run that has a time to pass can be late or expire.
        Verb::Skip => Like { skip_after: Some(5), ..Like::default() },
        Verb::Expire => Like { expire_after: Some(5), ..Like::default() },
        _ => Like::default(),
    };
    let run = store.given_run_like(state, &like).await;
    if !lane.is_empty() && state.is_waiting() {
        // Runs of a queue are brought into their state by assignment like any other, then moved over.
        let typed = format!(
            "update tasuki_run set lane = '{lane}' where id = {id}; update tasuki_due set lane = '{lane}' where run_id = {id}",
            id = run.id
        );
        store.script(&typed).await.unwrap();
    }
    let before = store.run_now(run.id).await;
    let token = run.token.unwrap_or_else(|| store.token());
    match verb {
        Verb::Create => unreachable!("looked at above"),
        Verb::Assign => {
            store.at(40);
            store.try_assign(store.wanted(run.id).await).await.is_some()
        }
        Verb::Claim => {
            store.at(40);
            store.try_claim("queue", 10).await.1.iter().any(|claimed| claimed.id == run.id)
        }
        Verb::Start => store.try_start(token, run.id).await.is_applied(),
        Verb::Renew => match store.renew(store.worker, token, TTL).await.unwrap() {
            Renewed::Held { runs, .. } => runs.iter().any(|one| one.run == run.id),
            Renewed::Gone => false,
        },
        Verb::Finish => {
            let first = store.finish(token, run.id, &AttemptResult::default()).await.unwrap().is_applied();
            // Its own ending, told again, is no second move.
            first && before.state == RunState::Running
        }
        Verb::Orphan => {
            store.at(20);
            store.orphan(store.epoch, run.id, token).await.unwrap().is_applied()
        }
        Verb::Release => store.release(token, run.id).await.unwrap().is_applied(),
        Verb::Recover => {
            store.at(100);
            let lapsed = store.lapsed(GRACE, 100).await.unwrap();
            let Some(lease) = lapsed.into_iter().find(|lease| lease.runs.contains(&run.id)) else {
                return false;
            };
            let recovered = store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().unwrap();
            recovered.iter().any(|one| one.run == run.id)
        }
        Verb::Cancel => store.cancel(Writer::Api, run.id, "test", None).await.unwrap().is_applied(),
        Verb::Skip => {
            store.at(10);
            store.skip(store.epoch, run.id, SkipReason::Late).await.unwrap().is_applied()
        }
        Verb::Expire => {
            store.at(10);
            store.expire(store.epoch, run.id).await.unwrap().is_applied()
        }
        Verb::Retry => store.retry(run.id, "test", None).await.unwrap().is_applied(),
        Verb::Confirm => !store.confirm(&[(run.id, token)], TTL).await.unwrap().is_empty(),
    }
}

contract! {
    /// The ends a failing attempt can have, each reached.
    async fn every_end_of_an_attempt(store: TestStore) {
        for (max_attempts, code, cancel, expected) in [
            (3, ErrorCode::UNEXPECTED_ERROR, false, RunState::RetryWait),
            (1, ErrorCode::UNEXPECTED_ERROR, false, RunState::Failed),
            (1, ErrorCode::RUNTIME_TIMEOUT, false, RunState::TimedOut),
            (3, ErrorCode::INVALID_INPUT, false, RunState::Failed),
            (3, ErrorCode::UNEXPECTED_ERROR, true, RunState::Canceled),
        ] {
            let like = Like { max_attempts, ..Like::default() };
            let run = store.given_run_like(RunState::Running, &like).await;
            if cancel {
                assert!(store.cancel(Writer::Api, run.id, "test", None).await.unwrap().is_applied());
            }
            let finished = store.finish(run.token.unwrap(), run.id, &failed(code)).await.unwrap();
            assert_eq!(finished.applied().unwrap().state, expected);
            assert_eq!(store.run_now(run.id).await.state, expected);
        }
    }
}
