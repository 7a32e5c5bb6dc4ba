//! Batches: a statement that handles many runs gives each run the same result as a statement for that run alone.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{AttemptErrorCode, LeaseToken, RunId, RunScope, RunState, WorkerId};
use tasuki_store::{
    AssignRequest, AttemptReport, AttemptResult, ClaimRequest, ClaimResult, Error, JobVersion,
    NewRun, NewWorker, Outcome, RenewResult, StartedRun, Writer,
};

use crate::fixtures::{
    ASSIGN_AHEAD, REASSIGN_AFTER, RunOptions, TTL, TestStore, contract, count_applied,
    failed_result, noon,
};

/// Creates `count` runs of a job; the arguments of each are its number.
async fn given_many(store: &TestStore, job: &JobVersion, count: usize) -> Vec<RunId> {
    let new = |number| NewRun { args: Some(format!("{{\"n\":{number}}}")), ..NewRun::task(job) };
    let runs: Vec<NewRun<'_>> = (0..count).map(new).collect();
    let created = store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
    assert!(created.iter().all(|created| !created.existed));
    created.into_iter().map(|created| created.run).collect()
}

fn in_queue() -> RunOptions {
    RunOptions { lane: "q", ..RunOptions::default() }
}

contract! {
    /// More runs than fit into one insert statement are created in the order of the request.
    async fn a_large_batch_is_created_completely_and_in_order(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let runs = given_many(store, &job, 1_203).await;
        assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 1_203);
        assert_eq!(store.list_due_in_lane("q", noon(), 2_000).await.unwrap().len(), 1_203);
        for number in [0, 499, 500, 1_202] {
            let args = store.read_run(runs[number]).await.args;
            assert_eq!(args, Some(format!("{{\"n\":{number}}}")));
        }
        assert_eq!(store.create_or_find_runs(Writer::Api, &[]).await.unwrap(), []);
    }

    /// A batch may contain keys of existing runs; the other runs of the batch are created.
    async fn each_key_of_a_batch_creates_one_run(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let with = |key: Option<&str>| NewRun { idempotency_key: key.map(str::to_owned), ..NewRun::task(&job) };
        let first = store.create_or_find_runs(Writer::Api, &[with(Some("a"))]).await.unwrap();
        let batch = [with(Some("b")), with(None), with(Some("a")), with(None), with(Some("c"))];
        let created = store.create_or_find_runs(Writer::Api, &batch).await.unwrap();
        assert_eq!(created.iter().map(|one| one.existed).collect::<Vec<_>>(), [false, false, true, false, false]);
        assert_eq!(created[2].run, first[0].run);
        assert_eq!(store.create_or_find_runs(Writer::Api, &batch[..1]).await.unwrap()[0].run, created[0].run);
        assert_eq!(store.list_due_in_lane("q", noon(), 10).await.unwrap().len(), 5);
    }

    async fn runs_of_a_batch_may_differ_in_everything(store: TestStore) {
        let (one, two) = (store.given_job(&in_queue()).await, store.given_job(&RunOptions::default()).await);
        let later = noon() + SignedDuration::from_secs(60);
        let runs = [
            NewRun { args: Some("1".to_owned()), ..NewRun::task(&one) },
            NewRun { scope: RunScope::new("tenant", "7").unwrap(), scheduled_for: Some(later), ..NewRun::task(&two) },
            NewRun { expires_at: Some(later), ..NewRun::task(&one) },
        ];
        let created = store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
        let first = store.read_run(created[0].run).await;
        assert_eq!((first.job, first.args.as_deref(), first.lane.as_str()), (one.job, Some("1"), "q"));
        let second = store.read_run(created[1].run).await;
        assert_eq!((second.job, second.scope.id(), second.scheduled_for, second.args), (two.job, "7", later, None));
        let third = store.read_run(created[2].run).await;
        assert_eq!((third.expires_at, third.scheduled_for), (Some(later), noon()));
    }

    /// Everything except the arguments; some runs have no arguments.
    async fn runs_of_a_batch_may_share_everything_but_arguments(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let at = |seconds| Some(noon() + SignedDuration::from_secs(seconds));
        let run_with_args = |args: Option<&str>| NewRun {
            args: args.map(str::to_owned),
            scope: RunScope::new("tenant", "7").unwrap(),
            scheduled_for: at(60),
            skip_at: at(90),
            expires_at: at(80),
            lane: Some("elsewhere".to_owned()),
            ..NewRun::task(&job)
        };
        let created = store.create_or_find_runs(Writer::Api, &[run_with_args(None), run_with_args(Some("1")), run_with_args(None)]).await.unwrap();
        for (created, args) in created.iter().zip([None, Some("1"), None]) {
            let run = store.read_run(created.run).await;
            assert_eq!((run.job, run.args.as_deref(), run.lane.as_str()), (job.job, args, "elsewhere"));
            assert_eq!((run.scope.kind(), run.scope.id(), run.state), ("tenant", "7", RunState::Pending));
            assert_eq!((run.scheduled_for, run.skip_at, run.expires_at), (noon() + SignedDuration::from_secs(60), at(90), at(80)));
        }
        // The run may start until the earlier of expires_at (80 s) and skip_at (90 s).
        store.set_time(85);
        assert_eq!(store.list_due_in_lane("elsewhere", noon() + SignedDuration::from_secs(60), 10).await.unwrap().len(), 3);
        assert_eq!(store.try_claim("elsewhere", 10).await.1, []);
        store.set_time(75);
        assert_eq!(store.try_claim("elsewhere", 10).await.1.len(), 3);
    }

    /// Each result is stored with its own run, whatever characters it contains.
    async fn each_success_of_a_batch_keeps_its_own_result(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 5).await;
        let (token, runs) = store.try_claim("q", 10).await;
        let odd = "{\"text\":\"\\\"quoted\\\" \\\\ 'single' \u{1f38b} \u{65e5}\u{672c}\\n\"}";
        let results = [Some(odd), None, Some("[]"), Some("\"\""), Some("null")];
        let ends: Vec<(RunId, AttemptResult)> = runs.iter().zip(results).enumerate().map(|(number, (run, result))| {
            let number = number as i64;
            let finish = AttemptResult {
                result: result.map(str::to_owned),
                exit_code: (number > 0).then_some(number - 1),
                rows_affected: (number > 1).then_some(number * 10),
                log_ref: (number > 2).then(|| format!("s3://bucket/{number}")),
                ..AttemptResult::default()
            };
            (run.id, finish)
        }).collect();
        let outcomes = store.finish_runs(token, &ends).await.unwrap();
        assert!(outcomes.iter().all(Outcome::is_applied));
        for ((run, finish), result) in ends.iter().zip(results) {
            let row = store.read_run(*run).await;
            assert_eq!((row.state, row.result.as_deref(), row.exit_code), (RunState::Succeeded, result, finish.exit_code));
            let last = store.list_executions(*run).await.unwrap().pop().unwrap();
            assert_eq!((last.rows_affected, &last.log_ref), (finish.rows_affected, &finish.log_ref));
        }
        assert_eq!(store.list_leases_of_worker(store.worker).await.unwrap(), [], "the lease is deleted with its last run");
    }

    /// One report call with all kinds of results returns the right outcome for each run.
    async fn one_report_call_may_contain_all_kinds_of_results(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 6).await;
        let (token, runs) = store.try_claim("q", 5).await;
        let (_, others) = store.try_claim("q", 1).await;
        let good = AttemptResult::default;
        let ends = [
            (runs[0].id, good()),
            (runs[1].id, failed_result(AttemptErrorCode::UNEXPECTED_ERROR)),
            (others[0].id, good()),
            (runs[2].id, failed_result(AttemptErrorCode::INVALID_INPUT)),
            (runs[3].id, good()),
            (runs[0].id, good()),
        ];
        let outcomes = store.finish_runs(token, &ends).await.unwrap();
        let states: Vec<Option<RunState>> = outcomes.iter().map(|one| match one {
            Outcome::Applied(finished) => Some(finished.state),
            _ => None,
        }).collect();
        let succeeded = Some(RunState::Succeeded);
        assert_eq!(states, [succeeded, Some(RunState::RetryWait), None, Some(RunState::Failed), succeeded, succeeded]);
        assert_eq!(store.read_run(others[0].id).await.state, RunState::Running, "a run of another lease is not changed");
        let renewed = store.renew_one(token).await;
        assert!(matches!(renewed, RenewResult::Held { runs: left, .. } if left.len() == 1 && left[0].run == runs[4].id));
        store.finish_runs(token, &[(runs[4].id, good())]).await.unwrap();
        assert_eq!(store.renew_one(token).await, RenewResult::Gone);
    }

    /// Many reports under one token, for several jobs, while another claim runs; one report has the token of another
    /// lease.
    async fn many_results_are_reported_together_during_a_claim(store: TestStore) {
        let jobs = [store.given_job(&in_queue()).await, store.given_job(&in_queue()).await];
        for job in &jobs {
            given_many(store, job, 30).await;
        }
        let (token, runs) = store.try_claim("q", 40).await;
        assert_eq!(runs.len(), 40);
        let end = |claimed: &StartedRun| AttemptReport::new(token, claimed.id, AttemptResult::default());
        let ends: Vec<AttemptReport> = runs.iter().map(end).collect();
        // The caller asks to close the lease, but the lease still has runs.
        let closing = [token];
        let (outcomes, (other, others)) = tokio::join!(store.finish(&ends[..30], &closing), store.try_claim("q", 12));
        assert_eq!((count_applied(outcomes.unwrap()), others.len()), (30, 12));
        let held = store.renew_one(token).await;
        assert!(matches!(held, RenewResult::Held { runs, .. } if runs.len() == 10));
        let wrong = AttemptReport { run: others[0].id, ..ends[0].clone() };
        let rest: Vec<AttemptReport> = ends[30..].iter().cloned().chain([wrong]).collect();
        let outcomes = store.finish(&rest, &closing).await.unwrap();
        assert_eq!(count_applied(outcomes), 10, "one was reported under the token of another lease");
        assert_eq!(store.renew_one(token).await, RenewResult::Gone);
        assert_eq!(store.read_run(others[0].id).await.state, RunState::Running);
        let ends: Vec<(RunId, AttemptResult)> = others.iter().map(|claimed| (claimed.id, AttemptResult::default())).collect();
        assert_eq!(count_applied(store.finish_runs(other, &ends).await.unwrap()), 12);
        assert_eq!(store.renew_one(other).await, RenewResult::Gone);
        // A repeated report is recognised, and nothing is counted twice.
        assert_eq!(count_applied(store.finish_runs(other, &ends).await.unwrap()), 12);
    }

    /// One call reports runs of several leases. A lease is closed if the caller requests it and no run is left.
    async fn one_call_reports_runs_of_several_leases(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 7).await;
        let mut claimed = Vec::new();
        for limit in [2, 2, 3] {
            claimed.push(store.try_claim("q", limit).await);
        }
        let ending = |lease: usize, run: usize| {
            let (token, runs) = &claimed[lease];
            AttemptReport::new(*token, runs[run].id, AttemptResult::default())
        };
        let wrong = AttemptReport { token: claimed[0].0, ..ending(2, 1) };
        let ends = [ending(2, 0), ending(0, 1), wrong, ending(1, 0), ending(0, 0)];
        // The request to close the lease of `claimed[1]` is wrong: that lease still has a run.
        let outcomes = store.finish(&ends, &[claimed[1].0, claimed[0].0]).await.unwrap();
        let outcomes: Vec<bool> = outcomes.iter().map(Outcome::is_applied).collect();
        assert_eq!(outcomes, [true, true, false, true, true], "one was reported under the token of another lease");
        assert_eq!(store.renew_one(claimed[0].0).await, RenewResult::Gone);
        for (lease, left) in [(1, 1), (2, 2)] {
            let held = store.renew_one(claimed[lease].0).await;
            assert!(matches!(held, RenewResult::Held { runs, .. } if runs.len() == left), "lease {lease}");
        }
        // The remaining runs. No request closes the third lease, so it stays, empty, until it expires.
        let outcomes = store.finish(&[ending(1, 1), ending(2, 1), ending(2, 2)], &[claimed[1].0]).await.unwrap();
        assert_eq!(count_applied(outcomes), 3);
        assert_eq!(store.renew_one(claimed[1].0).await, RenewResult::Gone);
        let left: Vec<LeaseToken> = store.list_leases_of_worker(store.worker).await.unwrap().iter().map(|lease| lease.token).collect();
        assert_eq!(left, [claimed[2].0]);
        assert!(store.finish(&[], &[claimed[2].0]).await.unwrap().is_empty());
        assert_eq!(store.list_leases_of_worker(store.worker).await.unwrap(), []);
    }

    /// Runs with consecutive ids under different leases: each is finished under its own lease, and keeps its own result.
    async fn runs_with_consecutive_ids_are_finished_under_their_own_leases(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 12).await;
        let [first, second, third] = [store.try_claim("q", 4).await, store.try_claim("q", 4).await, store.try_claim("q", 4).await];
        let end = |token: LeaseToken, claimed: &StartedRun| AttemptReport::new(token, claimed.id, AttemptResult::default());
        let mut ends: Vec<AttemptReport> = first.1.iter().map(|claimed| end(first.0, claimed)).collect();
        ends.extend(second.1.iter().map(|claimed| end(second.0, claimed)));
        ends[6].attempt_result.result = Some("7".to_owned());
        // One run was reported before; the last four are reported with a token that is not theirs.
        assert!(store.finish_run(first.0, ends[2].run, &AttemptResult::default()).await.unwrap().is_applied());
        ends.extend(third.1.iter().map(|claimed| end(second.0, claimed)));
        let outcomes = store.finish(&ends, &[first.0, second.0]).await.unwrap();
        let outcomes: Vec<bool> = outcomes.iter().map(Outcome::is_applied).collect();
        assert_eq!(outcomes, [[true; 4], [true; 4], [false; 4]].concat());
        for (index, ending) in ends.iter().enumerate() {
            let run = store.read_run(ending.run).await;
            let state = if index < 8 { RunState::Succeeded } else { RunState::Running };
            assert_eq!((run.state, run.result.as_deref()), (state, (index == 6).then_some("7")), "number {index}");
        }
        assert_eq!(store.renew_one(first.0).await, RenewResult::Gone);
        assert!(matches!(store.renew_one(third.0).await, RenewResult::Held { runs, .. } if runs.len() == 4));
    }

    /// The ids of one batch are allocated together, also during concurrent batches, so that one due row can stand for an
    /// id range. MySQL needs a few inserts for a batch, hence the limit of eight gaps.
    async fn concurrent_batches_get_nearly_contiguous_ids(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let submit = async |_| given_many(store, &job, 300).await;
        for _ in 0..5 {
            for runs in futures_util::future::join_all((0..4).map(submit)).await {
                let gaps = runs.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0).count();
                assert!(gaps < 8, "{gaps} gaps from {} to {}", runs[0], runs[299]);
            }
        }
    }

    /// A claim can continue behind the last run of the previous claim. A later claim from the start finds what it
    /// skipped.
    async fn a_claim_continues_behind_the_previous_claim(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 5).await;
        let (token, first) = store.try_claim("q", 2).await;
        let behind = (first[1].due_at, first[1].id);
        let lost = first[0].id;
        assert!(store.finish_run(token, lost, &failed_result(AttemptErrorCode::UNEXPECTED_ERROR)).await.unwrap().is_applied());
        store.set_time(3600);
        let next = ClaimRequest { worker: store.worker, token: store.new_token(), lane: "q", max_runs: 2, lease_ttl: TTL, after: Some(behind) };
        let ClaimResult::Runs(second) = store.claim(&next).await.unwrap() else { panic!("the token is new") };
        let ids = |runs: &[StartedRun]| runs.iter().map(|run| run.id).collect::<Vec<_>>();
        assert_eq!(second.len(), 2);
        assert!(ids(&second).iter().all(|run| !ids(&first).contains(run)));
        let (_, rest) = store.try_claim("q", 10).await;
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert!(ids(&rest).contains(&lost));
    }

    async fn a_batch_of_reports_releases_the_holds(store: TestStore) {
        let options = RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..in_queue() };
        let (one, two) = (store.given_job(&options).await, store.given_job(&options).await);
        let free = store.given_job(&in_queue()).await;
        for job in [&one, &one, &two, &free, &two, &free] {
            store.given_waiting_run(job, &options).await;
        }
        let (token, runs) = store.try_claim("q", 10).await;
        assert_eq!(runs.iter().map(|run| run.job).collect::<Vec<_>>(), [one.job, two.job, free.job, free.job]);
        let ends: Vec<(RunId, AttemptResult)> = runs.iter().map(|run| (run.id, AttemptResult::default())).collect();
        store.finish_runs(token, &ends).await.unwrap();
        let (_, runs) = store.try_claim("q", 10).await;
        assert_eq!(runs.iter().map(|run| run.job).collect::<Vec<_>>(), [one.job, two.job]);
    }

    /// Assigns as many runs as the worker has free slots, in the requested order, under one lease.
    async fn a_worker_is_assigned_no_more_runs_than_free_slots(store: TestStore) {
        let small = WorkerId::from_random(7);
        let new = NewWorker {
            id: small, node: "node".parse().unwrap(), pid: None, address: None, labels: None, slots: 3, function_slots: 1,
        };
        store.register_worker(&new).await.unwrap();
        let job = store.given_job(&RunOptions::default()).await;
        let runs = given_many(store, &job, 5).await;
        let mut due_runs = store.list_due_in_lane("", noon(), 10).await.unwrap();
        due_runs.reverse();
        let token = store.new_token();
        let batch = AssignRequest {
            epoch: store.epoch, worker: small, token, runs: &due_runs, assign_ahead: ASSIGN_AHEAD, reassign_after: REASSIGN_AFTER,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [runs[4], runs[3], runs[2]]);
        assert_eq!(store.assign(&AssignRequest { token: store.new_token(), ..batch.clone() }).await.unwrap(), []);
        let started = store.start(small, token, &[runs[0], runs[4], runs[3]], TTL).await.unwrap();
        assert!(matches!(started[0], Outcome::Lost(_)), "the run was never assigned");
        let Outcome::Applied(claimed) = &started[1] else { panic!("{:?}", started[1]) };
        assert_eq!((claimed.id, claimed.attempt_no, claimed.tries, claimed.args.as_deref()), (runs[4], 1, 1, Some("{\"n\":4}")));
        let late = AssignRequest { epoch: tasuki_core::Epoch(store.epoch.0 - 1), token: store.new_token(), ..batch.clone() };
        assert!(matches!(store.assign(&late).await, Err(Error::Fenced(_))));
        assert!(store.drain_worker("test", small).await.unwrap());
        store.finish_runs(token, &[(runs[4], AttemptResult::default()), (runs[3], AttemptResult::default())]).await.unwrap();
        assert_eq!(store.assign(&AssignRequest { token: store.new_token(), ..batch }).await.unwrap(), [], "the worker is draining");
    }

    /// One call renews all leases of a worker. The results include leases that are gone.
    async fn leases_are_renewed_together(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        given_many(store, &job, 3).await;
        let claims = [store.try_claim("q", 2).await, store.try_claim("q", 1).await];
        store.set_time(20);
        let tokens = [claims[0].0, store.new_token(), claims[1].0];
        let outcomes = store.renew(store.worker, &tokens, TTL).await.unwrap();
        let renewed: Vec<Option<usize>> = outcomes.iter().map(|one| match one {
            RenewResult::Held { runs, detached: false } => Some(runs.len()),
            _ => None,
        }).collect();
        assert_eq!(renewed, [Some(2), None, Some(1)]);
        for lease in store.list_leases_of_worker(store.worker).await.unwrap() {
            assert_eq!(lease.lease_until, noon() + SignedDuration::from_secs(50));
        }
        assert_eq!(store.renew(WorkerId::from_random(99), &tokens[..1], TTL).await.unwrap(), [RenewResult::Gone]);
        assert!(store.detach_worker(Writer::Api, "test", store.worker, "test").await.unwrap());
        let outcomes = store.renew(store.worker, &tokens[..1], TTL).await.unwrap();
        assert!(matches!(&outcomes[..], [RenewResult::Held { detached: true, .. }]));
    }
}
