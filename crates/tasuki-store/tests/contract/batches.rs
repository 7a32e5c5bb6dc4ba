//! Batches: what moves together ends up exactly as if each had moved alone.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{ErrorCode, LeaseToken, RunId, RunState, Scope, WorkerId};
use tasuki_store::{
    AssignBatch, Writer, ClaimBatch, ClaimResult, AttemptReport, Error, AttemptResult, JobVersion, NewRun, NewWorker,
    Outcome, Renewed, Taken,
};

use crate::given::{AHEAD, Like, REASSIGN, TTL, TestStore, applied, contract, failed, noon};

/// So many runs of a job, each with its number as arguments.
async fn given_many(store: &TestStore, job: &JobVersion, count: usize) -> Vec<RunId> {
    let new = |number| NewRun { args: Some(format!("{{\"n\":{number}}}")), ..NewRun::task(job) };
    let runs: Vec<NewRun<'_>> = (0..count).map(new).collect();
    let created = store.create(Writer::Api, &runs).await.unwrap();
    assert!(created.iter().all(|created| !created.existed));
    created.into_iter().map(|created| created.run).collect()
}

fn like_queue() -> Like {
    Like { lane: "q", ..Like::default() }
}

contract! {
    /// More than any single insert carries, in the order they were given.
    async fn a_bulk_is_made_whole_and_in_order(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let runs = given_many(store, &job, 1_203).await;
        assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 1_203);
        assert_eq!(store.due("q", noon(), 2_000).await.unwrap().len(), 1_203);
        for number in [0, 499, 500, 1_202] {
            let args = store.run_now(runs[number]).await.args;
            assert_eq!(args, Some(format!("{{\"n\":{number}}}")));
        }
        assert_eq!(store.create(Writer::Api, &[]).await.unwrap(), []);
    }

    /// A batch may hold what exists already, also twice; the rest of it is made.
    async fn keys_in_a_bulk_make_one_run_each(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let with = |key: Option<&str>| NewRun { idempotency_key: key.map(str::to_owned), ..NewRun::task(&job) };
        let first = store.create(Writer::Api, &[with(Some("a"))]).await.unwrap();
        let batch = [with(Some("b")), with(None), with(Some("a")), with(None), with(Some("c"))];
        let made = store.create(Writer::Api, &batch).await.unwrap();
        assert_eq!(made.iter().map(|one| one.existed).collect::<Vec<_>>(), [false, false, true, false, false]);
        assert_eq!(made[2].run, first[0].run);
        assert_eq!(store.create(Writer::Api, &batch[..1]).await.unwrap()[0].run, made[0].run);
        assert_eq!(store.due("q", noon(), 10).await.unwrap().len(), 5);
    }

    async fn runs_of_a_bulk_may_differ_in_everything(store: TestStore) {
        let (one, two) = (store.given_job(&like_queue()).await, store.given_job(&Like::default()).await);
        let later = noon() + SignedDuration::from_secs(60);
        let runs = [
            NewRun { args: Some("1".to_owned()), ..NewRun::task(&one) },
            NewRun { scope: Scope::new("tenant", "7").unwrap(), scheduled_for: Some(later), ..NewRun::task(&two) },
            NewRun { expires_at: Some(later), ..NewRun::task(&one) },
        ];
        let made = store.create(Writer::Api, &runs).await.unwrap();
        let first = store.run_now(made[0].run).await;
        assert_eq!((first.job, first.args.as_deref(), first.lane.as_str()), (one.job, Some("1"), "q"));
        let second = store.run_now(made[1].run).await;
        assert_eq!((second.job, second.scope.id(), second.scheduled_for, second.args), (two.job, "7", later, None));
        let third = store.run_now(made[2].run).await;
        assert_eq!((third.expires_at, third.scheduled_for), (Some(later), noon()));
    }

    /// All but what they are given; some are given nothing.
    async fn runs_of_a_bulk_may_share_everything(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let at = |seconds| Some(noon() + SignedDuration::from_secs(seconds));
        let like = |args: Option<&str>| NewRun {
            args: args.map(str::to_owned),
            scope: Scope::new("tenant", "7").unwrap(),
            scheduled_for: at(60),
            skip_at: at(90),
            expires_at: at(80),
            lane: Some("elsewhere".to_owned()),
            ..NewRun::task(&job)
        };
        let made = store.create(Writer::Api, &[like(None), like(Some("1")), like(None)]).await.unwrap();
        for (made, args) in made.iter().zip([None, Some("1"), None]) {
            let run = store.run_now(made.run).await;
            assert_eq!((run.job, run.args.as_deref(), run.lane.as_str()), (job.job, args, "elsewhere"));
            assert_eq!((run.scope.kind(), run.scope.id(), run.state), ("tenant", "7", RunState::Pending));
            assert_eq!((run.scheduled_for, run.skip_at, run.expires_at), (noon() + SignedDuration::from_secs(60), at(90), at(80)));
        }
        // What comes first of the two is what it waits for.
        store.at(85);
        assert_eq!(store.due("elsewhere", noon() + SignedDuration::from_secs(60), 10).await.unwrap().len(), 3);
        assert_eq!(store.try_claim("elsewhere", 10).await.1, []);
        store.at(75);
        assert_eq!(store.try_claim("elsewhere", 10).await.1.len(), 3);
    }

    /// What each gave back stands on its own row, whatever it contains.
    async fn successes_that_travel_together_keep_what_they_said(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 5).await;
        let (token, runs) = store.try_claim("q", 10).await;
        let odd = "{\"said\":\"\\\"quoted\\\" \\\\ 'single' \u{1f38b} \u{65e5}\u{672c}\\n\"}";
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
        let told = store.finish_many(token, &ends).await.unwrap();
        assert!(told.iter().all(Outcome::is_applied));
        for ((run, finish), result) in ends.iter().zip(results) {
            let row = store.run_now(*run).await;
            assert_eq!((row.state, row.result.as_deref(), row.exit_code), (RunState::Succeeded, result, finish.exit_code));
            let last = store.executions(*run).await.unwrap().pop().unwrap();
            assert_eq!((last.rows_affected, &last.log_ref), (finish.rows_affected, &finish.log_ref));
        }
        assert_eq!(store.leases_of(store.worker).await.unwrap(), [], "the lease ended with its last run");
    }

    /// One report with everything in it: each is told its own.
    async fn a_report_may_hold_all_kinds_of_ends(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 6).await;
        let (token, runs) = store.try_claim("q", 5).await;
        let (_, others) = store.try_claim("q", 1).await;
        let good = AttemptResult::default;
        let ends = [
            (runs[0].id, good()),
            (runs[1].id, failed(ErrorCode::UNEXPECTED_ERROR)),
            (others[0].id, good()),
            (runs[2].id, failed(ErrorCode::INVALID_INPUT)),
            (runs[3].id, good()),
            (runs[0].id, good()),
        ];
        let told = store.finish_many(token, &ends).await.unwrap();
        let states: Vec<Option<RunState>> = told.iter().map(|one| match one {
            Outcome::Applied(finished) => Some(finished.state),
            _ => None,
        }).collect();
        let succeeded = Some(RunState::Succeeded);
        assert_eq!(states, [succeeded, Some(RunState::RetryWait), None, Some(RunState::Failed), succeeded, succeeded]);
        assert_eq!(store.run_now(others[0].id).await.state, RunState::Running, "another's run is not touched");
        let carried = store.renew(store.worker, token, TTL).await.unwrap();
        assert!(matches!(carried, Renewed::Held { runs: left, .. } if left.len() == 1 && left[0].run == runs[4].id));
        store.finish_many(token, &[(runs[4].id, good())]).await.unwrap();
        assert_eq!(store.renew(store.worker, token, TTL).await.unwrap(), Renewed::Gone);
    }

    /// Many ends under one token, of several jobs, while others claim; and among them one that is not the worker's.
    async fn many_ends_are_told_in_one_go_while_others_claim(store: TestStore) {
        let jobs = [store.given_job(&like_queue()).await, store.given_job(&like_queue()).await];
        for job in &jobs {
            given_many(store, job, 30).await;
        }
        let (token, runs) = store.try_claim("q", 40).await;
        assert_eq!(runs.len(), 40);
        let end = |taken: &Taken| AttemptReport::new(token, taken.id, AttemptResult::default());
        let ends: Vec<AttemptReport> = runs.iter().map(end).collect();
        // It is mistaken: something else is under it.
        let closing = [token];
        let (told, (other, others)) = tokio::join!(store.finish_all(&ends[..30], &closing), store.try_claim("q", 12));
        assert_eq!((applied(told.unwrap()), others.len()), (30, 12));
        let held = store.renew(store.worker, token, TTL).await.unwrap();
        assert!(matches!(held, Renewed::Held { runs, .. } if runs.len() == 10));
        let wrong = AttemptReport { run: others[0].id, ..ends[0].clone() };
        let rest: Vec<AttemptReport> = ends[30..].iter().cloned().chain([wrong]).collect();
        let told = store.finish_all(&rest, &closing).await.unwrap();
        assert_eq!(applied(told), 10, "one was reported under the token of another");
        assert_eq!(store.renew(store.worker, token, TTL).await.unwrap(), Renewed::Gone);
        assert_eq!(store.run_now(others[0].id).await.state, RunState::Running);
        let ends: Vec<(RunId, AttemptResult)> = others.iter().map(|taken| (taken.id, AttemptResult::default())).collect();
        assert_eq!(applied(store.finish_many(other, &ends).await.unwrap()), 12);
        assert_eq!(store.renew(store.worker, other, TTL).await.unwrap(), Renewed::Gone);
        // Told again, it is known; nothing is counted twice.
        assert_eq!(applied(store.finish_many(other, &ends).await.unwrap()), 12);
    }

    /// Ends under several leases travel together; a lease is closed where its worker says so and nothing is left.
    async fn ends_under_several_leases_are_one_report(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 7).await;
        let mut claimed = Vec::new();
        for most in [2, 2, 3] {
            claimed.push(store.try_claim("q", most).await);
        }
        let ending = |lease: usize, run: usize| {
            let (token, runs) = &claimed[lease];
            AttemptReport::new(*token, runs[run].id, AttemptResult::default())
        };
        let wrong = AttemptReport { token: claimed[0].0, ..ending(2, 1) };
        let ends = [ending(2, 0), ending(0, 1), wrong, ending(1, 0), ending(0, 0)];
        // It is mistaken about the second: something else is under it.
        let told = store.finish_all(&ends, &[claimed[1].0, claimed[0].0]).await.unwrap();
        let told: Vec<bool> = told.iter().map(Outcome::is_applied).collect();
        assert_eq!(told, [true, true, false, true, true], "one was reported under the token of another");
        assert_eq!(store.renew(store.worker, claimed[0].0, TTL).await.unwrap(), Renewed::Gone);
        for (lease, left) in [(1, 1), (2, 2)] {
            let held = store.renew(store.worker, claimed[lease].0, TTL).await.unwrap();
            assert!(matches!(held, Renewed::Held { runs, .. } if runs.len() == left), "lease {lease}");
        }
        // The rest, and nothing is said of one that is empty then: it stays until it lapses.
        let told = store.finish_all(&[ending(1, 1), ending(2, 1), ending(2, 2)], &[claimed[1].0]).await.unwrap();
        assert_eq!(applied(told), 3);
        assert_eq!(store.renew(store.worker, claimed[1].0, TTL).await.unwrap(), Renewed::Gone);
        let left: Vec<LeaseToken> = store.leases_of(store.worker).await.unwrap().iter().map(|lease| lease.token).collect();
        assert_eq!(left, [claimed[2].0]);
        assert!(store.finish_all(&[], &[claimed[2].0]).await.unwrap().is_empty());
        assert_eq!(store.leases_of(store.worker).await.unwrap(), []);
    }

    /// Their ids follow one another, and so do those of others: each is ended under its own lease, and keeps what it said.
    async fn neighbours_are_told_apart(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 12).await;
        let [first, second, third] = [store.try_claim("q", 4).await, store.try_claim("q", 4).await, store.try_claim("q", 4).await];
        let end = |token: LeaseToken, taken: &Taken| AttemptReport::new(token, taken.id, AttemptResult::default());
        let mut ends: Vec<AttemptReport> = first.1.iter().map(|taken| end(first.0, taken)).collect();
        ends.extend(second.1.iter().map(|taken| end(second.0, taken)));
        ends[6].finish.result = Some("7".to_owned());
        // One of them was heard of before; the last are not the worker's under that token.
        assert!(store.finish(first.0, ends[2].run, &AttemptResult::default()).await.unwrap().is_applied());
        ends.extend(third.1.iter().map(|taken| end(second.0, taken)));
        let told = store.finish_all(&ends, &[first.0, second.0]).await.unwrap();
        let told: Vec<bool> = told.iter().map(Outcome::is_applied).collect();
        assert_eq!(told, [[true; 4], [true; 4], [false; 4]].concat());
        for (index, ending) in ends.iter().enumerate() {
            let run = store.run_now(ending.run).await;
            let state = if index < 8 { RunState::Succeeded } else { RunState::Running };
            assert_eq!((run.state, run.result.as_deref()), (state, (index == 6).then_some("7")), "number {index}");
        }
        assert_eq!(store.renew(store.worker, first.0, TTL).await.unwrap(), Renewed::Gone);
        assert!(matches!(store.renew(store.worker, third.0, TTL).await.unwrap(), Renewed::Held { runs, .. } if runs.len() == 4));
    }

    /// Ids are drawn together, whoever else draws, so that those who come together can wait together. On MySQL they
    /// travel in a few inserts.
    async fn many_who_submit_at_once_do_not_part_what_came_together(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        let submit = async |_| given_many(store, &job, 300).await;
        for _ in 0..5 {
            for runs in futures_util::future::join_all((0..4).map(submit)).await {
                let parted = runs.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0).count();
                assert!(parted < 8, "{parted} times from {} to {}", runs[0], runs[299]);
            }
        }
    }

    /// From behind the last of a claim the next goes on, and nothing is left out for good.
    async fn a_claim_goes_on_from_where_the_last_ended(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 5).await;
        let (token, first) = store.try_claim("q", 2).await;
        let behind = (first[1].due_at, first[1].id);
        let lost = first[0].id;
        assert!(store.finish(token, lost, &failed(ErrorCode::UNEXPECTED_ERROR)).await.unwrap().is_applied());
        store.at(3600);
        let next = ClaimBatch { worker: store.worker, token: store.token(), lane: "q", most: 2, lease_ttl: TTL };
        let ClaimResult::Runs(second) = store.claim_after(&next, behind).await.unwrap() else { panic!("a fresh token") };
        let ids = |runs: &[Taken]| runs.iter().map(|run| run.id).collect::<Vec<_>>();
        assert_eq!(second.len(), 2);
        assert!(ids(&second).iter().all(|run| !ids(&first).contains(run)));
        let (_, rest) = store.try_claim("q", 10).await;
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert!(ids(&rest).contains(&lost));
    }

    async fn holds_come_back_with_a_batch(store: TestStore) {
        let like = Like { concurrency: ConcurrencyPolicy::Forbid, ..like_queue() };
        let (one, two) = (store.given_job(&like).await, store.given_job(&like).await);
        let free = store.given_job(&like_queue()).await;
        for job in [&one, &one, &two, &free, &two, &free] {
            store.given_waiting(job, &like).await;
        }
        let (token, runs) = store.try_claim("q", 10).await;
        assert_eq!(runs.iter().map(|run| run.job).collect::<Vec<_>>(), [one.job, two.job, free.job, free.job]);
        let ends: Vec<(RunId, AttemptResult)> = runs.iter().map(|run| (run.id, AttemptResult::default())).collect();
        store.finish_many(token, &ends).await.unwrap();
        let (_, runs) = store.try_claim("q", 10).await;
        assert_eq!(runs.iter().map(|run| run.job).collect::<Vec<_>>(), [one.job, two.job]);
    }

    /// As many as fit, in the order they are wanted, and under one lease.
    async fn a_worker_is_given_no_more_than_it_has_room_for(store: TestStore) {
        let small = WorkerId::from_random(7);
        let new = NewWorker {
            id: small, node: "node".parse().unwrap(), pid: None, address: None, labels: None, slots: 3, function_slots: 1,
        };
        store.register_worker(&new).await.unwrap();
        let job = store.given_job(&Like::default()).await;
        let runs = given_many(store, &job, 5).await;
        let mut wanted = store.due("", noon(), 10).await.unwrap();
        wanted.reverse();
        let token = store.token();
        let batch = AssignBatch {
            epoch: store.epoch, worker: small, token, runs: &wanted, assign_ahead: AHEAD, reassign_after: REASSIGN,
        };
        assert_eq!(store.assign(&batch).await.unwrap(), [runs[4], runs[3], runs[2]]);
        assert_eq!(store.assign(&AssignBatch { token: store.token(), ..batch.clone() }).await.unwrap(), []);
        let started = store.start(small, token, &[runs[0], runs[4], runs[3]], TTL).await.unwrap();
        assert!(matches!(started[0], Outcome::Lost(_)), "it was never given");
        let Outcome::Applied(taken) = &started[1] else { panic!("{:?}", started[1]) };
        assert_eq!((taken.id, taken.attempt_no, taken.tries, taken.args.as_deref()), (runs[4], 1, 1, Some("{\"n\":4}")));
        let late = AssignBatch { epoch: tasuki_core::Epoch(store.epoch.0 - 1), token: store.token(), ..batch.clone() };
        assert!(matches!(store.assign(&late).await, Err(Error::Fenced(_))));
        assert!(store.drain_worker("test", small).await.unwrap());
        store.finish_many(token, &[(runs[4], AttemptResult::default()), (runs[3], AttemptResult::default())]).await.unwrap();
        assert_eq!(store.assign(&AssignBatch { token: store.token(), ..batch }).await.unwrap(), [], "it is draining");
    }

    /// All leases of a worker at once; what was taken away is told among them.
    async fn leases_are_renewed_together(store: TestStore) {
        let job = store.given_job(&like_queue()).await;
        given_many(store, &job, 3).await;
        let claims = [store.try_claim("q", 2).await, store.try_claim("q", 1).await];
        store.at(20);
        let tokens = [claims[0].0, store.token(), claims[1].0];
        let told = store.renew_many(store.worker, &tokens, TTL).await.unwrap();
        let carried: Vec<Option<usize>> = told.iter().map(|one| match one {
            Renewed::Held { runs, detached: false } => Some(runs.len()),
            _ => None,
        }).collect();
        assert_eq!(carried, [Some(2), None, Some(1)]);
        for lease in store.leases_of(store.worker).await.unwrap() {
            assert_eq!(lease.lease_until, noon() + SignedDuration::from_secs(50));
        }
        assert_eq!(store.renew_many(WorkerId::from_random(99), &tokens[..1], TTL).await.unwrap(), [Renewed::Gone]);
        assert!(store.detach_worker(Writer::Api, "test", store.worker, "test").await.unwrap());
        let told = store.renew_many(store.worker, &tokens[..1], TTL).await.unwrap();
        assert!(matches!(&told[..], [Renewed::Held { detached: true, .. }]));
    }
}
