//! Inputs: an invalid run or result is refused with the name of the field, or corrected, and does not affect the other
//! items of its batch.

use std::sync::Arc;

use tasuki_core::{AttemptErrorCode, LeaseToken, RunId, RunState};
use tasuki_store::{
    AttemptResult, CreatedRun, Dialect, JobDefinition, JobVersionSpec, NewRun, PendingTask, Store,
    SubmitBatcher, Trigger, Writer,
};

use crate::fixtures::{RunOptions, TestStore, contract, failed_result, noon};

fn in_queue() -> RunOptions {
    RunOptions { lane: "q", ..RunOptions::default() }
}

/// Starts `count` runs under one lease.
async fn given_started(store: &TestStore, count: usize) -> (LeaseToken, Vec<RunId>) {
    let job = store.given_job(&in_queue()).await;
    let new: Vec<_> = (0..count).map(|_| NewRun::task(&job)).collect();
    store.create_or_find_runs(Writer::Api, &new).await.unwrap();
    let (token, runs) = store.try_claim("q", count as u32).await;
    assert_eq!(runs.len(), count);
    (token, runs.iter().map(|run| run.id).collect())
}

fn result_of(result: impl Into<String>) -> AttemptResult {
    AttemptResult { result: Some(result.into()), ..AttemptResult::default() }
}

contract! {
    /// PostgreSQL cannot store NUL in a text, so every database stores U+FFFD instead.
    async fn a_nul_in_a_result_is_replaced_and_the_batch_is_stored(store: TestStore) {
        let (token, runs) = given_started(store, 4).await;
        let with_nul = AttemptResult { log_ref: Some("log\0".to_owned()), ..result_of("a\0b") };
        let failure = AttemptResult { error_message: Some("bad \0 byte".to_owned()), ..failed_result(AttemptErrorCode::INVALID_INPUT) };
        let ends = [(runs[0], result_of("1")), (runs[1], with_nul), (runs[2], failure), (runs[3], result_of("2"))];
        let outcomes = store.finish_runs(token, &ends).await.unwrap();
        assert!(outcomes.iter().all(tasuki_store::Outcome::is_applied));
        let mut rows = Vec::new();
        for run in runs {
            rows.push(store.read_run(run).await);
        }
        assert_eq!((rows[0].result.as_deref(), rows[3].result.as_deref()), (Some("1"), Some("2")));
        assert_eq!((rows[1].state, rows[1].result.as_deref()), (RunState::Succeeded, Some("a\u{fffd}b")));
        assert_eq!(rows[2].state, RunState::Failed);
        let attempt = store.list_executions(rows[1].id).await.unwrap().remove(0);
        assert_eq!(attempt.log_ref.as_deref(), Some("log\u{fffd}"));
        let attempt = store.list_executions(rows[2].id).await.unwrap().remove(0);
        assert_eq!(attempt.error_message.as_deref(), Some("bad \u{fffd} byte"));
    }

    async fn a_too_long_result_fails_only_its_own_run(store: TestStore) {
        let (token, runs) = given_started(store, 4).await;
        let failure = AttemptResult { result: Some("x".repeat(65_537)), error_message: Some("no".to_owned()), ..failed_result(AttemptErrorCode::NOT_FOUND) };
        let ends = [(runs[0], result_of("x".repeat(65_537))), (runs[1], result_of("x".repeat(65_536))), (runs[2], failure), (runs[3], result_of("2"))];
        let outcomes = store.finish_runs(token, &ends).await.unwrap();
        let states: Vec<_> = outcomes.into_iter().map(|one| one.into_applied().unwrap().state).collect();
        let expected = [RunState::Failed, RunState::Succeeded, RunState::Failed, RunState::Succeeded];
        assert_eq!(states, expected);
        let attempt = store.list_executions(runs[0]).await.unwrap().remove(0);
        assert_eq!(attempt.error_code, Some(AttemptErrorCode::RESULT_TOO_LONG));
        assert_eq!(attempt.error_message.as_deref(), Some("the result has 65537 bytes; the maximum is 65536"));
        assert_eq!(store.read_run(runs[0]).await.result, None);
        assert_eq!(store.read_run(runs[1]).await.result.unwrap().len(), 65_536);
        let attempt = store.list_executions(runs[2]).await.unwrap().remove(0);
        assert_eq!((attempt.error_code, attempt.error_message.as_deref()), (Some(AttemptErrorCode::NOT_FOUND), Some("no")));
        let again = store.finish_runs(token, &ends).await.unwrap();
        assert!(again.iter().all(tasuki_store::Outcome::is_applied), "the repeated reports are recognised");
    }

    async fn a_single_report_handles_invalid_results_the_same_way(store: TestStore) {
        let (token, runs) = given_started(store, 2).await;
        let outcomes = store.finish_run(token, runs[0], &result_of("x".repeat(70_000))).await.unwrap().into_applied().unwrap();
        assert_eq!(outcomes.state, RunState::Failed);
        let outcomes = store.finish_run(token, runs[1], &result_of("\0")).await.unwrap().into_applied().unwrap();
        assert_eq!(outcomes.state, RunState::Succeeded);
        assert!(store.list_leases_of_worker(store.worker).await.unwrap().is_empty(), "the lease is closed");
    }

    async fn a_too_long_error_message_is_truncated(store: TestStore) {
        let (token, runs) = given_started(store, 1).await;
        let failure = AttemptResult { error_message: Some("日".repeat(1 << 20)), ..failed_result(AttemptErrorCode::INVALID_INPUT) };
        assert!(store.finish_run(token, runs[0], &failure).await.unwrap().is_applied());
        let attempt = store.list_executions(runs[0]).await.unwrap().remove(0).error_message.unwrap();
        assert!(attempt.len() <= 65_536 && attempt.ends_with("日…"), "{}", attempt.len());
    }

    /// Together the results exceed the maximum statement size of MySQL.
    async fn long_results_are_stored_in_several_statements(store: TestStore) {
        let (token, runs) = given_started(store, 200).await;
        // In JSON each of these characters takes six bytes.
        let ends: Vec<_> = runs.iter().map(|run| (*run, result_of("\u{1}".repeat(65_536)))).collect();
        let outcomes = store.finish_runs(token, &ends).await.unwrap();
        assert!(outcomes.iter().all(tasuki_store::Outcome::is_applied));
        assert_eq!(store.read_run(runs[199]).await.result.unwrap().len(), 65_536);
        assert!(store.list_leases_of_worker(store.worker).await.unwrap().is_empty(), "the lease is closed");
    }

    async fn long_arguments_are_stored_in_several_statements(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let long = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        let new: Vec<_> = (0..40).map(|_| NewRun { args: Some(long.clone()), ..NewRun::task(&job) }).collect();
        let created = store.create_or_find_runs(Writer::Api, &new).await.unwrap();
        assert_eq!(store.read_run(created[39].run).await.args.unwrap().len(), 1 << 20);
    }

    async fn an_invalid_run_is_refused_with_the_field_name(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let keyed = |key: &str| NewRun { idempotency_key: Some(key.to_owned()), ..NewRun::task(&job) };
        let with_args = |args: String| NewRun { args: Some(args), ..NewRun::task(&job) };
        for (wrong, expected) in [
            (keyed(""), "idempotency key: found nothing, expected 1 to 191 characters"),
            (keyed(&"日".repeat(192)), "idempotency key: found"),
            (keyed("a\0"), "idempotency key: found \"a\\0\", expected 1 to 191 characters"),
            (keyed("a "), "idempotency key: found \"a \", expected no whitespace around it"),
            (keyed("\ta"), "idempotency key: found \"\\ta\", expected no whitespace around it"),
            (with_args("\"a\0\"".to_owned()), "args: found a NUL character, expected JSON"),
            (with_args("x".repeat((1 << 20) + 1)), "args: found a longer value, expected at most 1048576 bytes"),
        ] {
            for writer in [Writer::Api, Writer::Leader(store.epoch)] {
                let refused = store.create_or_find_runs(writer, &[NewRun::task(&job), wrong.clone()]).await.unwrap_err();
                assert!(refused.is_invalid_input() && refused.to_string().starts_with(expected), "{refused}");
            }
        }
        assert!(store.list_due_in_lane("q", noon(), 10).await.unwrap().is_empty(), "a refused batch creates no run");
        let longest = store.create_or_find_runs(Writer::Api, &[keyed(&"日".repeat(191)), with_args("1".to_owned())]).await.unwrap();
        assert!(longest.iter().all(|one| !one.existed));
    }

    async fn a_refused_task_is_reported_only_to_its_caller(store: TestStore) {
        let job = Arc::new(store.given_job(&in_queue()).await);
        let (enqueuer, work) = SubmitBatcher::new((**store).clone());
        let task = |args: &str| PendingTask { args: Some(args.to_owned()), ..PendingTask::new(Arc::clone(&job)) };
        let submissions = async {
            let outcomes = tokio::join!(enqueuer.submit(task("1")), enqueuer.submit(task("\0")), enqueuer.submit(task("2")));
            drop(enqueuer);
            outcomes
        };
        let ((one, wrong, other), ()) = tokio::join!(submissions, work);
        assert!(wrong.unwrap_err().is_invalid_input());
        assert!(!one.unwrap().existed && !other.unwrap().existed);
    }

    /// MySQL compares "q" and "q " as equal, the other databases do not.
    async fn a_lane_with_surrounding_space_is_refused(store: TestStore) {
        let spec = JobVersionSpec { lane: "q ".to_owned(), ..in_queue().spec() };
        let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec };
        let refused = store.create_job("test", &"spaced".parse().unwrap(), &definition, None).await.unwrap_err();
        assert_eq!(refused.to_string(), "lane: found \"q \", expected no whitespace around it");
    }

    /// Only MySQL limits the length of this column.
    async fn a_too_long_sql_value_is_refused_and_never_truncated(store: TestStore) {
        let sql = "insert into tasuki_event (event_type) values ('".to_owned() + &"x".repeat(500) + "')";
        let outcomes = store.execute_script(&sql).await;
        assert_eq!(outcomes.is_err(), store.dialect() == Dialect::MySql);
    }

    /// In a MySQL cluster with several writable servers, ids are allocated in steps greater than one.
    async fn a_server_that_allocates_ids_in_steps_creates_runs(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let one = Store::open(&store.url, 1).await.unwrap();
        one.set_clock(Some(noon()));
        if store.dialect() == Dialect::MySql {
            one.execute_script("set session auto_increment_increment = 2, auto_increment_offset = 2").await.unwrap();
        }
        let args = |number: usize| Some(number.to_string());
        let new: Vec<_> = (0..5).map(|number| NewRun { args: args(number), ..NewRun::task(&job) }).collect();
        // The run of another server lies between them.
        store.create_or_find_runs(Writer::Api, &new[..1]).await.unwrap();
        let created = one.create_or_find_runs(Writer::Api, &new).await.unwrap();
        for (number, one) in created.iter().enumerate() {
            assert_eq!(store.read_run(one.run).await.args, args(number));
        }
        assert_eq!(store.list_due_in_lane("q", noon(), 10).await.unwrap().len(), 6);
        one.close().await;
    }

    async fn created_runs_are_returned_in_the_order_of_the_request(store: TestStore) {
        let job = store.given_job(&in_queue()).await;
        let new = |key: Option<&str>, args: &str| NewRun {
            idempotency_key: key.map(str::to_owned), args: Some(args.to_owned()), ..NewRun::task(&job)
        };
        let runs = [new(Some("c"), "1"), new(None, "2"), new(Some("a"), "3"), new(None, "4"), new(Some("b"), "5"), new(Some("a"), "6")];
        for writer in [Writer::Api, Writer::Leader(store.epoch)] {
            let created = store.create_or_find_runs(writer, &runs).await.unwrap();
            for (new, created) in runs[..5].iter().zip(&created) {
                assert_eq!(store.read_run(created.run).await.args, new.args);
            }
            assert_eq!((created[5].run, created[5].existed), (created[2].run, true));
        }
    }
}

/// Two batches with the same keys in opposite orders do not deadlock.
#[test]
fn concurrent_batches_with_keys_in_opposite_orders_do_not_deadlock() {
    for dialect in [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite] {
        crate::fixtures::run_in_parallel(dialect, 4, async |store| {
            let job = store.given_job(&in_queue()).await;
            for round in 0..20 {
                let keyed = |number: u32| NewRun {
                    idempotency_key: Some(format!("{round} {number}")),
                    ..NewRun::task(&job)
                };
                let up: Vec<_> = (0..50).map(keyed).collect();
                let down: Vec<_> = (0..50).rev().map(keyed).collect();
                let (one, other) = tokio::join!(
                    store.create_or_find_runs(Writer::Api, &up),
                    store.create_or_find_runs(Writer::Api, &down)
                );
                let (one, mut other) = (one.unwrap(), other.unwrap());
                other.reverse();
                let ids =
                    |created: &[CreatedRun]| created.iter().map(|one| one.run).collect::<Vec<_>>();
                assert_eq!(ids(&one), ids(&other), "{dialect:?}, round {round}");
            }
        });
    }
}
