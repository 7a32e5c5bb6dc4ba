//! The life of a run, promise by promise.

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::SkipReason;
use tasuki_core::{AttemptOutcome, ErrorCode, Origin, RunState, Scope, WorkerId};
use tasuki_store::{
    Writer, Canceled, ClaimBatch, ClaimResult, CursorMove, AttemptResult, MOST_CLAIMED, NewRun, NewWorker,
    Outcome, Recovered, Renewed, Seen,
};

use crate::given::{GRACE, Like, TTL, TestStore, applied, at_once, contract, failed, noon};

contract! {
    /// The same order arrives twice at once; exactly one start is applied.
    async fn only_one_start_wins(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let token = run.token.unwrap();
        let outcomes = at_once(store.try_start(token, run.id), store.try_start(token, run.id)).await;
        assert_eq!(applied(outcomes), 1);
        assert_eq!(store.run_now(run.id).await.counters.tries, 1);
    }

    async fn a_start_that_is_a_little_early_is_not_yet(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let soon = noon() + jiff::SignedDuration::from_secs(10);
        let new = NewRun { scheduled_for: Some(soon), ..NewRun::task(&job) };
        let id = store.create(Writer::Api, &[new]).await.unwrap()[0].run;
        let token = store.given_assigned(id).await;
        assert_eq!(store.try_start(token, id).await, Outcome::NotYet);
        store.at(10);
        assert!(store.try_start(token, id).await.is_applied());
    }

    async fn a_start_after_its_time_is_lost(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        store.at(15);
        let Outcome::Lost(lost) = store.try_start(run.token.unwrap(), run.id).await else { panic!("too late") };
        assert_eq!((lost.state, lost.worker), (Some(RunState::Assigned), Some(store.worker)));
    }

    async fn a_detached_worker_starts_nothing_and_is_told(store: TestStore) {
        let assigned = store.given_run(RunState::Assigned).await;
        let running = store.given_run(RunState::Running).await;
        assert!(store.detach_worker(Writer::Api, "test", store.worker, "silent").await.unwrap());
        assert!(!store.try_start(assigned.token.unwrap(), assigned.id).await.is_applied());
        let renewed = store.renew(store.worker, running.token.unwrap(), TTL).await.unwrap();
        let Renewed::Held { runs, detached } = renewed else { panic!("its lease holds") };
        assert_eq!((runs.len(), detached), (1, true));
        assert!(store.finish(running.token.unwrap(), running.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(store.orphan(store.epoch, assigned.id, assigned.token.unwrap()).await.unwrap().is_applied(), "at once");
    }

    async fn work_is_given_only_to_those_who_take_it(store: TestStore) {
        let run = store.given_run(RunState::Pending).await;
        assert!(store.drain_worker("test", store.worker).await.unwrap());
        assert_eq!(store.try_assign(store.wanted(run.id).await).await, None);
        assert!(!store.wanted(run.id).await.exclusive);
        assert_eq!(store.due("", noon(), 10).await.unwrap().len(), 1, "it still waits");
    }

    async fn a_finish_told_again_is_applied_and_changes_nothing(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let finish = AttemptResult { exit_code: Some(0), result: Some("{}".to_owned()), ..AttemptResult::default() };
        assert!(store.finish(token, run.id, &finish).await.unwrap().is_applied());
        let after = store.run_now(run.id).await;
        assert!(store.finish(token, run.id, &finish).await.unwrap().is_applied());
        assert_eq!(store.run_now(run.id).await, after);
        assert_eq!(after.result.as_deref(), Some("{}"));
    }

    async fn a_failed_try_told_again_is_found_among_the_attempts(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let finish = failed(ErrorCode::STORAGE_ERROR);
        for _ in 0..2 {
            let finished = store.finish(token, run.id, &finish).await.unwrap().applied().unwrap();
            assert_eq!(finished.state, RunState::RetryWait);
        }
        let after = store.run_now(run.id).await;
        assert_eq!((after.counters.tries, after.token), (1, None));
        assert_eq!(after.next_retry_at, Some(noon() + jiff::SignedDuration::from_secs(30)));
    }

    async fn a_token_that_was_replaced_finishes_nothing(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let old = run.token.unwrap();
        assert!(store.release(old, run.id).await.unwrap().is_applied());
        let new = store.given_running(run.id).await;
        assert_ne!(old, new);
        assert!(!store.finish(old, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(!store.release(old, run.id).await.unwrap().is_applied());
        assert!(store.finish(new, run.id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    async fn a_success_wins_over_a_cancel_that_was_asked(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let asked = store.cancel(Writer::Api, run.id, "ann", Some("wrong day")).await.unwrap();
        assert_eq!(asked, Outcome::Applied(Canceled::Asked));
        assert!(!store.cancel(Writer::Api, run.id, "bob", None).await.unwrap().is_applied(), "asked once");
        let Renewed::Held { runs, .. } = store.renew(store.worker, run.token.unwrap(), TTL).await.unwrap() else { panic!("held") };
        assert!(runs[0].cancel_asked);
        let finished = store.finish(run.token.unwrap(), run.id, &AttemptResult::default()).await.unwrap();
        assert_eq!(finished.applied().unwrap().state, RunState::Succeeded);
    }

    async fn a_canceled_assignment_never_starts(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let canceled = store.cancel(Writer::Api, run.id, "ann", None).await.unwrap();
        assert_eq!(canceled, Outcome::Applied(Canceled::Ended));
        assert!(!store.try_start(run.token.unwrap(), run.id).await.is_applied());
        assert_eq!(store.leases_of(store.worker).await.unwrap(), [], "its lease went with it");
    }

    /// A lease with one run running and another only assigned: one is lost, the other orphaned.
    async fn recovery_takes_everything_of_a_lapsed_lease(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let (one, two) = (store.given_waiting(&job, &Like::default()).await, store.given_waiting(&job, &Like::default()).await);
        let wanted = [store.wanted(one).await, store.wanted(two).await];
        let token = store.token();
        let batch = tasuki_store::AssignBatch {
            epoch: store.epoch, worker: store.worker, token, runs: &wanted, assign_ahead: TTL, reassign_after: TTL,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [one, two]);
        assert!(store.try_start(token, one).await.is_applied());
        store.at(33);
        assert_eq!(store.lapsed(GRACE, 10).await.unwrap(), [], "in its grace");
        store.at(34);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        let recovered = store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap();
        assert_eq!(recovered, Some(vec![
            Recovered { run: one, state: RunState::RetryWait },
            Recovered { run: two, state: RunState::Orphaned },
        ]));
        assert_eq!(store.run_now(one).await.counters.tries_allowed, 3, "lost alone, charged");
        assert_eq!(store.run_now(two).await.counters.releases, 1);
        assert_eq!(store.renew(store.worker, token, TTL).await.unwrap(), Renewed::Gone);
        assert!(!store.finish(token, one, &AttemptResult::default()).await.unwrap().is_applied(), "too late");
        assert!(!store.try_start(token, two).await.is_applied());
        assert_eq!(store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap(), None, "once");
    }

    async fn a_renewal_in_between_wins_over_recovery(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        store.at(40);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        let renewed = store.renew(store.worker, run.token.unwrap(), TTL).await.unwrap();
        assert!(matches!(renewed, Renewed::Held { .. }));
        assert_eq!(store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap(), None);
        assert_eq!(store.run_now(run.id).await.state, RunState::Running);
    }

    /// Two that fall together are forgiven once and go alone from then on.
    async fn what_is_lost_together_is_not_charged_and_goes_alone(store: TestStore) {
        let like = Like { lane: "queue", max_attempts: 2, ..Like::default() };
        let job = store.given_job(&like).await;
        let (one, two) = (store.given_waiting(&job, &like).await, store.given_waiting(&job, &like).await);
        assert_eq!(store.try_claim("queue", 10).await.1.len(), 2);
        store.at(40);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap().unwrap();
        for id in [one, two] {
            let counters = store.run_now(id).await.counters;
            assert_eq!((counters.tries, counters.tries_allowed, counters.alone), (1, 3, true));
        }
        store.at(100);
        let (_, first) = store.try_claim("queue", 10).await;
        let (_, second) = store.try_claim("queue", 10).await;
        assert_eq!((first.len(), second.len()), (1, 1), "taken singly");
        store.at(200);
        for lease in store.lapsed(GRACE, 10).await.unwrap() {
            store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().unwrap();
        }
        assert_eq!(store.run_now(one).await.counters.tries_allowed, 3, "charged this time");
    }

    async fn a_worker_reported_dead_need_not_be_waited_for(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        assert_eq!(store.lapsed(GRACE, 10).await.unwrap(), []);
        assert!(!store.report_dead(store.worker, &"elsewhere".parse().unwrap()).await.unwrap());
        assert!(store.report_dead(store.worker, &"node".parse().unwrap()).await.unwrap());
        assert!(store.heartbeat(store.worker).await.unwrap().is_none(), "an incarnation does not come back");
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        let recovered = store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap().unwrap();
        assert_eq!(recovered, [Recovered { run: run.id, state: RunState::RetryWait }]);
    }

    async fn a_worker_may_get_more_room_or_less_until_it_is_dead(store: TestStore) {
        assert!(store.resize_worker(store.worker, 3, 7).await.unwrap());
        let worker = store.worker(store.worker).await.unwrap().unwrap();
        assert_eq!((worker.slots, worker.function_slots), (3, 7));
        assert!(store.report_dead(store.worker, &"node".parse().unwrap()).await.unwrap());
        assert!(!store.resize_worker(store.worker, 1, 1).await.unwrap());
    }

    async fn a_lost_run_that_was_canceled_is_canceled(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        assert!(store.cancel(Writer::Api, run.id, "ann", None).await.unwrap().is_applied());
        store.at(40);
        let lapsed = store.lapsed(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &lapsed[0], GRACE, 0).await.unwrap().unwrap();
        let after = store.run_now(run.id).await;
        assert_eq!((after.state, after.outcome), (RunState::Canceled, Some(AttemptOutcome::Lost)));
    }

    /// The hold: one run of a (job, scope) at a time, by assignment and by claim.
    async fn forbid_lets_one_through(store: TestStore) {
        let like = Like { concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let job = store.given_job(&like).await;
        let (one, two) = (store.given_waiting(&job, &like).await, store.given_waiting(&job, &like).await);
        let token = store.given_assigned(one).await;
        assert_eq!(store.try_assign(store.wanted(two).await).await, None);
        assert_eq!(store.due("", noon(), 10).await.unwrap().len(), 1, "it keeps its due row");
        assert!(store.try_start(token, one).await.is_applied());
        assert!(store.skip(store.epoch, two, SkipReason::Concurrent).await.unwrap().is_applied());
        assert!(store.finish(token, one, &AttemptResult::default()).await.unwrap().is_applied());
        let three = store.given_waiting(&job, &like).await;
        assert!(store.try_assign(store.wanted(three).await).await.is_some(), "the hold was given back");
    }

    async fn claims_respect_the_hold_and_the_lane(store: TestStore) {
        let like = Like { lane: "mail", concurrency: ConcurrencyPolicy::Forbid, ..Like::default() };
        let job = store.given_job(&like).await;
        store.given_waiting(&job, &like).await;
        store.given_waiting(&job, &like).await;
        assert_eq!(store.try_claim("other", 10).await.1, []);
        let (token, runs) = store.try_claim("mail", 10).await;
        assert_eq!(runs.len(), 1);
        assert_eq!(store.try_claim("mail", 10).await.1, []);
        assert!(store.finish(token, runs[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.try_claim("mail", 10).await.1.len(), 1);
    }

    async fn a_claim_repeated_with_its_token_says_so(store: TestStore) {
        let like = Like { lane: "q", ..Like::default() };
        let job = store.given_job(&like).await;
        store.given_waiting(&job, &like).await;
        let (token, runs) = store.try_claim("q", 1).await;
        assert_eq!(runs[0].tries, 1);
        store.given_waiting(&job, &like).await;
        let batch = ClaimBatch { worker: store.worker, token, lane: "q", most: 1, lease_ttl: TTL };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::Before);
        assert_eq!(store.due("q", noon(), 10).await.unwrap().len(), 1, "nothing was taken");
    }

    async fn one_run_for_a_slot_and_the_cursor_moves_with_it(store: TestStore) {
        let schedule = tasuki_core::Schedule::parse(
            tasuki_core::schedule::ScheduleKind::Every, "5m", "UTC", Default::default()).unwrap();
        let job = store.given_job(&Like::default()).await;
        let fire = schedule.next_after(noon()).unwrap();
        assert!(store.put_cursor(crate::given::seen(&job), &Scope::default(), fire.at).await.unwrap());
        assert!(!store.put_cursor(crate::given::seen(&job), &Scope::default(), noon()).await.unwrap(), "already there");
        let new = NewRun {
            origin: Origin::Time, slot: Some(fire.slot), scheduled_for: Some(fire.at), ..NewRun::task(&job)
        };
        let next = schedule.next_after(fire.at).unwrap().at;
        let seen = Seen { job: job.job, version: job.version };
        let cursor = CursorMove { job: seen, scope: Scope::default(), from: fire.at, to: Some(next) };
        let made = store.create_slots(store.epoch, &cursor, std::slice::from_ref(&new)).await.unwrap().unwrap();
        assert!(!made[0].existed);
        assert_eq!(store.create_slots(store.epoch, &cursor, std::slice::from_ref(&new)).await.unwrap(), None, "it has moved");
        let again = store.create(Writer::Leader(store.epoch), &[new]).await.unwrap();
        assert_eq!((again[0].run, again[0].existed), (made[0].run, true));
    }

    async fn the_same_key_is_the_same_run(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let new = NewRun { idempotency_key: Some("order 7".to_owned()), ..NewRun::task(&job) };
        let first = store.create(Writer::Api, &[new.clone(), new.clone()]).await.unwrap();
        assert_eq!((first[0].existed, first[1].existed), (false, true));
        assert_eq!(first[0].run, first[1].run);
        assert_eq!(store.due("", noon(), 10).await.unwrap().len(), 1);
    }

    async fn a_retry_by_hand_gives_one_more_try(store: TestStore) {
        let run = store.given_run(RunState::Failed).await;
        assert!(store.retry(run.id, "ann", Some("fixed")).await.unwrap().is_applied());
        assert!(!store.retry(run.id, "ann", None).await.unwrap().is_applied());
        let after = store.run_now(run.id).await;
        assert_eq!(after.counters.tries_allowed, run.counters.tries_allowed + 1);
        assert_eq!((after.outcome, after.finished_at, after.token), (None, None, None));
        let token = store.given_running(run.id).await;
        assert!(store.finish(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(!store.retry(run.id, "ann", None).await.unwrap().is_applied(), "history does not move");
    }

    async fn a_rerun_is_a_new_run(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let id = store.given_waiting(&job, &Like::default()).await;
        assert!(!store.rerun("ann", &job, id).await.unwrap().is_applied(), "it has not ended");
        let token = store.given_running(id).await;
        assert!(store.finish(token, id, &AttemptResult::default()).await.unwrap().is_applied());
        let new = store.rerun("ann", &job, id).await.unwrap().applied().unwrap();
        assert_eq!(store.run_now(new).await.origin, Origin::Rerun);
        assert_eq!(store.run_now(id).await.state, RunState::Succeeded);
    }

    async fn what_is_handed_round_too_often_expires(store: TestStore) {
        let run = store.given_run(RunState::Pending).await;
        for round in 0..3 {
            assert!(!store.expire(store.epoch, run.id).await.unwrap().is_applied(), "round {round}");
            let token = store.given_assigned(run.id).await;
            assert!(store.release(token, run.id).await.unwrap().is_applied());
        }
        assert!(store.expire(store.epoch, run.id).await.unwrap().is_applied());
        let after = store.run_now(run.id).await;
        assert_eq!((after.state, after.reason.as_deref()), (RunState::Expired, Some("MAX_RELEASES")));
    }

    /// Whoever asks for everything gets a batch.
    async fn a_claim_takes_only_so_many(store: TestStore) {
        let wide = WorkerId::from_random(5);
        let new = NewWorker {
            id: wide, node: "node".parse().unwrap(), pid: None, address: None, labels: None,
            slots: 0, function_slots: 2 * MOST_CLAIMED,
        };
        store.register_worker(&new).await.unwrap();
        let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
        let waiting = vec![NewRun::task(&job); MOST_CLAIMED as usize + 1];
        assert_eq!(store.create(Writer::Api, &waiting).await.unwrap().len(), waiting.len());
        let batch = ClaimBatch { worker: wide, token: store.token(), lane: "q", most: u32::MAX, lease_ttl: TTL };
        let ClaimResult::Runs(taken) = store.claim(&batch).await.unwrap() else { panic!("a fresh token") };
        assert_eq!(taken.len(), MOST_CLAIMED as usize);
    }

    async fn another_worker_cannot_renew_or_start(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let rival = WorkerId::from_random(77);
        store.register(rival).await;
        assert_eq!(store.renew(rival, run.token.unwrap(), TTL).await.unwrap(), Renewed::Gone);
        let started = store.start(rival, run.token.unwrap(), &[run.id], TTL).await.unwrap();
        assert_eq!(applied(started), 0);
    }
}
