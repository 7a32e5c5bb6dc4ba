//! The lifecycle of a run: create, assign, claim, start, renew, finish, cancel, recover, retry and rerun.

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::SkipReason;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, Origin, RunScope, RunState, WorkerId};
use tasuki_store::{
    AttemptResult, CancelResult, ClaimRequest, ClaimResult, DueRun, ExpectedVersion, MAX_CLAIM,
    NewRun, NewWorker, Outcome, RecoveredRun, RenewResult, ScheduleCursorMove, Writer,
};

use crate::fixtures::{
    GRACE, RunOptions, TTL, TestStore, contract, count_applied, failed_result, noon, run_both,
};

contract! {
    /// If the clock is set back after the start, the end has the time of the start: on the row and in the history.
    async fn an_attempt_never_ends_before_its_start(store: TestStore) {
        let options = RunOptions { max_attempts: 2, ..RunOptions::default() };
        let runs = [
            store.given_run_with(RunState::Running, &options).await,
            store.given_run_with(RunState::Running, &options).await,
            store.given_run_with(RunState::Running, &RunOptions::default()).await,
            store.given_run_with(RunState::Running, &options).await,
        ];
        store.set_time(-300);
        let started = runs.each_ref().map(|run| run.started_at.unwrap());
        let [success, retried, failed, canceled] = &runs;
        let results = [
            (success, AttemptResult::default()),
            (retried, failed_result(AttemptErrorCode::UNEXPECTED_ERROR)),
            (failed, failed_result(AttemptErrorCode::INVALID_INPUT)),
            (canceled, failed_result(AttemptErrorCode::CANCELED)),
        ];
        store.cancel(Writer::Api, canceled.id, "test", None).await.unwrap().into_applied().unwrap();
        for (run, result) in &results {
            assert!(store.finish_run(run.token.unwrap(), run.id, result).await.unwrap().is_applied());
        }
        for (index, state) in [(0, RunState::Succeeded), (2, RunState::Failed), (3, RunState::Canceled)] {
            let ended = store.read_run(runs[index].id).await;
            assert_eq!((ended.state, ended.finished_at), (state, Some(started[index])));
        }
        let executions = store.list_executions(retried.id).await.unwrap();
        assert_eq!((executions[0].started_at, executions[0].finished_at), (Some(started[1]), Some(started[1])));
    }

    /// The same StartJob order arrives twice at the same time; exactly one start is applied.
    async fn only_one_of_two_starts_is_applied(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let token = run.token.unwrap();
        let outcomes = run_both(store.try_start(token, run.id), store.try_start(token, run.id)).await;
        assert_eq!(count_applied(outcomes), 1);
        assert_eq!(store.read_run(run.id).await.counters.tries, 1);
    }

    async fn a_start_before_the_due_time_returns_not_yet(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let soon = noon() + jiff::SignedDuration::from_secs(10);
        let new = NewRun { scheduled_for: Some(soon), ..NewRun::task(&job) };
        let id = store.create_or_find_runs(Writer::Api, &[new]).await.unwrap()[0].run;
        let token = store.given_assigned(id).await;
        assert_eq!(store.try_start(token, id).await, Outcome::NotYet);
        store.set_time(10);
        assert!(store.try_start(token, id).await.is_applied());
    }

    async fn a_start_after_its_deadline_is_lost(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        store.set_time(15);
        let Outcome::Lost(lost) = store.try_start(run.token.unwrap(), run.id).await else { panic!("a late start must be lost") };
        assert_eq!((lost.state, lost.worker), (Some(RunState::Assigned), Some(store.worker)));
    }

    async fn a_detached_worker_starts_nothing_and_learns_it_from_a_renewal(store: TestStore) {
        let assigned = store.given_run(RunState::Assigned).await;
        let running = store.given_run(RunState::Running).await;
        assert!(store.detach_worker(Writer::Api, "test", store.worker, "silent").await.unwrap());
        assert!(!store.try_start(assigned.token.unwrap(), assigned.id).await.is_applied());
        let renewed = store.renew_one(running.token.unwrap()).await;
        let RenewResult::Held { runs, detached } = renewed else { panic!("the lease is still valid") };
        assert_eq!((runs.len(), detached), (1, true));
        assert!(store.finish_run(running.token.unwrap(), running.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(store.orphan(store.epoch, assigned.id, assigned.token.unwrap()).await.unwrap().is_applied(), "its run can be orphaned at once");
    }

    async fn a_draining_worker_is_assigned_no_run(store: TestStore) {
        let run = store.given_run(RunState::Pending).await;
        assert!(store.drain_worker("test", store.worker).await.unwrap());
        assert_eq!(store.try_assign(store.read_due_run(run.id).await).await, None);
        assert!(!store.read_due_run(run.id).await.exclusive);
        assert_eq!(store.list_due_in_lane("", noon(), 10).await.unwrap().len(), 1, "the run still waits");
    }

    async fn a_repeated_report_is_applied_and_changes_nothing(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let finish = AttemptResult { exit_code: Some(0), result: Some("{}".to_owned()), ..AttemptResult::default() };
        assert!(store.finish_run(token, run.id, &finish).await.unwrap().is_applied());
        let after = store.read_run(run.id).await;
        assert!(store.finish_run(token, run.id, &finish).await.unwrap().is_applied());
        assert_eq!(store.read_run(run.id).await, after);
        assert_eq!(after.result.as_deref(), Some("{}"));
    }

    async fn a_repeated_report_of_a_failed_attempt_is_recognised(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let token = run.token.unwrap();
        let finish = failed_result(AttemptErrorCode::STORAGE_ERROR);
        for _ in 0..2 {
            let finished = store.finish_run(token, run.id, &finish).await.unwrap().into_applied().unwrap();
            assert_eq!(finished.state, RunState::RetryWait);
        }
        let after = store.read_run(run.id).await;
        assert_eq!((after.counters.tries, after.token), (1, None));
        assert_eq!(after.next_retry_at, Some(noon() + jiff::SignedDuration::from_secs(30)));
    }

    async fn a_replaced_token_finishes_nothing(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let old = run.token.unwrap();
        assert!(store.release(old, run.id).await.unwrap().is_applied());
        let new = store.given_running(run.id).await;
        assert_ne!(old, new);
        assert!(!store.finish_run(old, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(!store.release(old, run.id).await.unwrap().is_applied());
        assert!(store.finish_run(new, run.id, &AttemptResult::default()).await.unwrap().is_applied());
    }

    async fn a_success_wins_over_a_requested_cancel(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        let requested = store.cancel(Writer::Api, run.id, "ann", Some("wrong day")).await.unwrap();
        assert_eq!(requested, Outcome::Applied(CancelResult::Requested));
        assert!(!store.cancel(Writer::Api, run.id, "bob", None).await.unwrap().is_applied(), "the cancel is requested only once");
        let RenewResult::Held { runs, .. } = store.renew_one(run.token.unwrap()).await else { panic!("the lease is held") };
        assert!(runs[0].cancel_requested);
        let finished = store.finish_run(run.token.unwrap(), run.id, &AttemptResult::default()).await.unwrap();
        assert_eq!(finished.into_applied().unwrap().state, RunState::Succeeded);
    }

    async fn a_canceled_assignment_never_starts(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let canceled = store.cancel(Writer::Api, run.id, "ann", None).await.unwrap();
        assert_eq!(canceled, Outcome::Applied(CancelResult::Canceled));
        assert!(!store.try_start(run.token.unwrap(), run.id).await.is_applied());
        assert_eq!(store.list_leases_of_worker(store.worker).await.unwrap(), [], "the lease is deleted with its run");
    }

    /// Recovering a lease with a running and an assigned run: the first attempt is lost, the second run is orphaned.
    async fn recovery_takes_all_runs_of_an_expired_lease(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let (one, two) = (store.given_waiting_run(&job, &RunOptions::default()).await, store.given_waiting_run(&job, &RunOptions::default()).await);
        let due_runs = [store.read_due_run(one).await, store.read_due_run(two).await];
        let token = store.new_token();
        let batch = tasuki_store::AssignRequest {
            epoch: store.epoch, worker: store.worker, token, runs: &due_runs, assign_ahead: TTL, reassign_after: TTL,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [one, two]);
        assert!(store.try_start(token, one).await.is_applied());
        store.set_time(33);
        assert_eq!(store.list_expired_leases(GRACE, 10).await.unwrap(), [], "the lease is still in its grace period");
        store.set_time(34);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        let recovered = store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap();
        assert_eq!(recovered, Some(vec![
            RecoveredRun { run: one, state: RunState::RetryWait },
            RecoveredRun { run: two, state: RunState::Orphaned },
        ]));
        assert_eq!(store.read_run(one).await.counters.tries_allowed, 3, "a run that is lost alone uses up a try");
        assert_eq!(store.read_run(two).await.counters.releases, 1);
        assert_eq!(store.renew_one(token).await, RenewResult::Gone);
        assert!(!store.finish_run(token, one, &AttemptResult::default()).await.unwrap().is_applied(), "a recovered run cannot be finished");
        assert!(!store.try_start(token, two).await.is_applied());
        assert_eq!(store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap(), None, "a lease is recovered once");
    }

    async fn a_renewal_in_between_wins_over_recovery(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        store.set_time(40);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        let renewed = store.renew_one(run.token.unwrap()).await;
        assert!(matches!(renewed, RenewResult::Held { .. }));
        assert_eq!(store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap(), None);
        assert_eq!(store.read_run(run.id).await.state, RunState::Running);
    }

    /// Runs that are lost together keep their try, because one of them may have crashed the worker; from then on each
    /// of them is claimed alone.
    async fn runs_lost_together_keep_their_tries_and_are_isolated(store: TestStore) {
        let options = RunOptions { lane: "queue", max_attempts: 2, ..RunOptions::default() };
        let job = store.given_job(&options).await;
        let (one, two) = (store.given_waiting_run(&job, &options).await, store.given_waiting_run(&job, &options).await);
        assert_eq!(store.try_claim("queue", 10).await.1.len(), 2);
        store.set_time(40);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap().unwrap();
        for id in [one, two] {
            let counters = store.read_run(id).await.counters;
            assert_eq!((counters.tries, counters.tries_allowed, counters.isolated), (1, 3, true));
        }
        store.set_time(100);
        let (_, first) = store.try_claim("queue", 10).await;
        let (_, second) = store.try_claim("queue", 10).await;
        assert_eq!((first.len(), second.len()), (1, 1), "each is claimed alone");
        store.set_time(200);
        for lease in store.list_expired_leases(GRACE, 10).await.unwrap() {
            store.recover(store.epoch, &lease, GRACE, 0).await.unwrap().unwrap();
        }
        assert_eq!(store.read_run(one).await.counters.tries_allowed, 3, "the second loss uses up a try");
    }

    async fn leases_of_a_dead_worker_are_recovered_at_once(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        assert_eq!(store.list_expired_leases(GRACE, 10).await.unwrap(), []);
        assert!(!store.mark_worker_dead(store.worker, &"elsewhere".parse().unwrap()).await.unwrap());
        assert!(store.mark_worker_dead(store.worker, &"node".parse().unwrap()).await.unwrap());
        assert!(store.record_heartbeat(store.worker).await.unwrap().is_none(), "a dead incarnation cannot send heartbeats");
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        let recovered = store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap().unwrap();
        assert_eq!(recovered, [RecoveredRun { run: run.id, state: RunState::RetryWait }]);
    }

    async fn a_worker_can_be_resized_until_it_is_dead(store: TestStore) {
        assert!(store.resize_worker(store.worker, 3, 7).await.unwrap());
        let worker = store.find_worker(store.worker).await.unwrap().unwrap();
        assert_eq!((worker.slots, worker.function_slots), (3, 7));
        assert!(store.mark_worker_dead(store.worker, &"node".parse().unwrap()).await.unwrap());
        assert!(!store.resize_worker(store.worker, 1, 1).await.unwrap());
    }

    async fn a_lost_run_that_was_canceled_is_canceled(store: TestStore) {
        let run = store.given_run(RunState::Running).await;
        assert!(store.cancel(Writer::Api, run.id, "ann", None).await.unwrap().is_applied());
        store.set_time(40);
        let expired = store.list_expired_leases(GRACE, 10).await.unwrap();
        store.recover(store.epoch, &expired[0], GRACE, 0).await.unwrap().unwrap();
        let after = store.read_run(run.id).await;
        assert_eq!((after.state, after.outcome), (RunState::Canceled, Some(AttemptOutcome::Lost)));
    }

    /// A hold allows one run of a (job, scope) at a time, for assignments and for claims.
    async fn forbid_allows_one_run_at_a_time(store: TestStore) {
        let options = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let job = store.given_job(&options).await;
        let (one, two) = (store.given_waiting_run(&job, &options).await, store.given_waiting_run(&job, &options).await);
        let token = store.given_assigned(one).await;
        assert_eq!(store.try_assign(store.read_due_run(two).await).await, None);
        assert_eq!(store.list_due_in_lane("", noon(), 10).await.unwrap().len(), 1, "the waiting run keeps its due row");
        assert!(store.try_start(token, one).await.is_applied());
        assert!(store.skip(store.epoch, two, SkipReason::Concurrent).await.unwrap().is_applied());
        assert!(store.finish_run(token, one, &AttemptResult::default()).await.unwrap().is_applied());
        let three = store.given_waiting_run(&job, &options).await;
        assert!(store.try_assign(store.read_due_run(three).await).await.is_some(), "the hold was released");
    }

    async fn claims_respect_the_hold_and_the_lane(store: TestStore) {
        let options = RunOptions { lane: "mail", concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() };
        let job = store.given_job(&options).await;
        store.given_waiting_run(&job, &options).await;
        store.given_waiting_run(&job, &options).await;
        assert_eq!(store.try_claim("other", 10).await.1, []);
        let (token, runs) = store.try_claim("mail", 10).await;
        assert_eq!(runs.len(), 1);
        assert_eq!(store.try_claim("mail", 10).await.1, []);
        assert!(store.finish_run(token, runs[0].id, &AttemptResult::default()).await.unwrap().is_applied());
        assert_eq!(store.try_claim("mail", 10).await.1.len(), 1);
    }

    async fn a_claim_repeated_with_its_token_is_recognised(store: TestStore) {
        let options = RunOptions { lane: "q", ..RunOptions::default() };
        let job = store.given_job(&options).await;
        store.given_waiting_run(&job, &options).await;
        let (token, runs) = store.try_claim("q", 1).await;
        assert_eq!(runs[0].tries, 1);
        store.given_waiting_run(&job, &options).await;
        let batch = ClaimRequest { worker: store.worker, token, lane: "q", max_runs: 1, lease_ttl: TTL, after: None };
        assert_eq!(store.claim(&batch).await.unwrap(), ClaimResult::AlreadyClaimed);
        assert_eq!(store.list_due_in_lane("q", noon(), 10).await.unwrap().len(), 1, "the repeated claim takes no run");
    }

    async fn a_slot_has_one_run_and_moves_the_cursor(store: TestStore) {
        let schedule = tasuki_core::Schedule::parse(
            tasuki_core::schedule::ScheduleKind::Every, "5m", "UTC", Default::default()).unwrap();
        let job = store.given_job(&RunOptions::default()).await;
        let fire = schedule.next_after(noon()).unwrap();
        assert!(store.create_schedule_cursor(crate::fixtures::expected_version(&job), &RunScope::default(), fire.at).await.unwrap());
        assert!(!store.create_schedule_cursor(crate::fixtures::expected_version(&job), &RunScope::default(), noon()).await.unwrap(), "the cursor exists already");
        let new = NewRun {
            origin: Origin::Time, slot: Some(fire.slot), scheduled_for: Some(fire.at), ..NewRun::task(&job)
        };
        let next = schedule.next_after(fire.at).unwrap().at;
        let seen = ExpectedVersion { job: job.job, version: job.version };
        let cursor = ScheduleCursorMove { job: seen, scope: RunScope::default(), from: fire.at, to: Some(next) };
        let created = store.create_scheduled_one(store.epoch, &cursor, std::slice::from_ref(&new)).await.unwrap().unwrap();
        assert!(!created[0].existed);
        assert_eq!(store.create_scheduled_one(store.epoch, &cursor, std::slice::from_ref(&new)).await.unwrap(), None, "the cursor has moved");
        let again = store.create_or_find_runs(Writer::Leader(store.epoch), &[new]).await.unwrap();
        assert_eq!((again[0].run, again[0].existed), (created[0].run, true));
    }

    async fn a_repeated_slot_finds_the_run_of_its_own_job_and_scope(store: TestStore) {
        let schedule = tasuki_core::Schedule::parse(
            tasuki_core::schedule::ScheduleKind::Every, "5m", "UTC", Default::default()).unwrap();
        let jobs = [store.given_job(&RunOptions::default()).await, store.given_job(&RunOptions::default()).await];
        let scopes = [RunScope::default(), RunScope::new("tenant", "7").unwrap()];
        let slot = Some(schedule.next_after(noon()).unwrap().slot);
        let new: Vec<NewRun<'_>> = jobs
            .iter()
            .flat_map(|job| scopes.iter().map(move |scope| (job, scope)))
            .map(|(job, scope)| NewRun { origin: Origin::Time, slot, scope: scope.clone(), ..NewRun::task(job) })
            .collect();
        let created = store.create_or_find_runs(Writer::Leader(store.epoch), &new).await.unwrap();
        assert!(created.iter().all(|one| !one.existed));
        for (new, first) in new.iter().zip(created) {
            let again = store.create_or_find_runs(Writer::Leader(store.epoch), std::slice::from_ref(new)).await.unwrap();
            assert_eq!((again[0].run, again[0].existed), (first.run, true));
        }
    }

    async fn a_run_is_assigned_only_as_it_was_read_and_shortly_before_it_is_due(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let later = noon() + jiff::SignedDuration::from_hours(1);
        let new = [NewRun { scheduled_for: Some(later), ..NewRun::task(&job) }, NewRun::task(&job)];
        let created = store.create_or_find_runs(Writer::Leader(store.epoch), &new).await.unwrap();
        let [early, due] = [store.read_due_run(created[0].run).await, store.read_due_run(created[1].run).await];
        assert_eq!(store.try_assign(early).await, None, "it is due in an hour");
        assert_eq!(store.try_assign(DueRun { attempt_no: due.attempt_no + 1, ..due }).await, None, "another attempt was read");
        assert!(store.try_assign(due).await.is_some());
    }

    async fn one_idempotency_key_creates_one_run(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let new = NewRun { idempotency_key: Some("order 7".to_owned()), ..NewRun::task(&job) };
        let first = store.create_or_find_runs(Writer::Api, &[new.clone(), new.clone()]).await.unwrap();
        assert_eq!((first[0].existed, first[1].existed), (false, true));
        assert_eq!(first[0].run, first[1].run);
        assert_eq!(store.list_due_in_lane("", noon(), 10).await.unwrap().len(), 1);
    }

    async fn a_manual_retry_adds_one_try(store: TestStore) {
        let run = store.given_run(RunState::Failed).await;
        assert!(store.retry_manually(run.id, "ann", Some("fixed")).await.unwrap().is_applied());
        assert!(!store.retry_manually(run.id, "ann", None).await.unwrap().is_applied());
        let after = store.read_run(run.id).await;
        assert_eq!(after.counters.tries_allowed, run.counters.tries_allowed + 1);
        assert_eq!((after.outcome, after.finished_at, after.token), (None, None, None));
        let token = store.given_running(run.id).await;
        assert!(store.finish_run(token, run.id, &AttemptResult::default()).await.unwrap().is_applied());
        assert!(!store.retry_manually(run.id, "ann", None).await.unwrap().is_applied(), "a succeeded run cannot be retried");
    }

    async fn a_rerun_is_a_new_run(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let id = store.given_waiting_run(&job, &RunOptions::default()).await;
        assert!(!store.rerun("ann", &job, id).await.unwrap().is_applied(), "the run has not ended");
        let token = store.given_running(id).await;
        assert!(store.finish_run(token, id, &AttemptResult::default()).await.unwrap().is_applied());
        let new = store.rerun("ann", &job, id).await.unwrap().into_applied().unwrap();
        assert_eq!(store.read_run(new).await.origin, Origin::Rerun);
        assert_eq!(store.read_run(id).await.state, RunState::Succeeded);
    }

    async fn a_run_released_too_often_expires(store: TestStore) {
        let run = store.given_run(RunState::Pending).await;
        for round in 0..3 {
            assert!(!store.expire_waiting_run(store.epoch, run.id).await.unwrap().is_applied(), "round {round}");
            let token = store.given_assigned(run.id).await;
            assert!(store.release(token, run.id).await.unwrap().is_applied());
        }
        assert!(store.expire_waiting_run(store.epoch, run.id).await.unwrap().is_applied());
        let after = store.read_run(run.id).await;
        assert_eq!((after.state, after.reason.as_deref()), (RunState::Expired, Some("MAX_RELEASES")));
    }

    /// A claim that requests more than the maximum gets the maximum.
    async fn a_claim_takes_at_most_the_maximum(store: TestStore) {
        let wide = WorkerId::from_random(5);
        let new = NewWorker {
            id: wide, node: "node".parse().unwrap(), pid: None, address: None, labels: None,
            slots: 0, function_slots: 2 * MAX_CLAIM,
        };
        store.register_worker(&new).await.unwrap();
        let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
        let waiting = vec![NewRun::task(&job); MAX_CLAIM as usize + 1];
        assert_eq!(store.create_or_find_runs(Writer::Api, &waiting).await.unwrap().len(), waiting.len());
        let batch = ClaimRequest { worker: wide, token: store.new_token(), lane: "q", max_runs: u32::MAX, lease_ttl: TTL, after: None };
        let ClaimResult::Runs(claimed) = store.claim(&batch).await.unwrap() else { panic!("the token is new") };
        assert_eq!(claimed.len(), MAX_CLAIM as usize);
    }

    async fn another_worker_cannot_renew_or_start(store: TestStore) {
        let run = store.given_run(RunState::Assigned).await;
        let rival = WorkerId::from_random(77);
        store.given_worker(rival).await;
        assert_eq!(store.renew(rival, &[run.token.unwrap()], TTL).await.unwrap(), [RenewResult::Gone]);
        let started = store.start(rival, run.token.unwrap(), &[run.id], TTL).await.unwrap();
        assert_eq!(count_applied(started), 0);
    }
}
