//! What is handed in: one that is wrong is refused by name, or made right, and never costs its
//! neighbours anything.

use std::sync::Arc;

use tasuki_core::{ErrorCode, LeaseToken, RunId, RunState};
use tasuki_store::{
    Writer, Created, Dialect, Enqueuer, AttemptResult, JobDefinition, JobSpec, NewRun, Store, Task,
    Trigger,
};

use crate::given::{Like, TestStore, contract, failed, noon};

fn q() -> Like {
    Like { lane: "q", ..Like::default() }
}

/// So many runs that one worker has started in one go.
async fn given_started(store: &TestStore, count: usize) -> (LeaseToken, Vec<RunId>) {
    let job = store.given_job(&q()).await;
    let new: Vec<_> = (0..count).map(|_| NewRun::task(&job)).collect();
    store.create(Writer::Api, &new).await.unwrap();
    let (token, runs) = store.try_claim("q", count as u32).await;
    assert_eq!(runs.len(), count);
    (token, runs.iter().map(|run| run.id).collect())
}

fn gave(result: impl Into<String>) -> AttemptResult {
    AttemptResult { result: Some(result.into()), ..AttemptResult::default() }
}

contract! {
    /// PostgreSQL keeps no NUL in a text.
    async fn a_nul_in_what_a_job_says_is_marked_and_costs_nobody_anything(store: TestStore) {
        let (token, runs) = given_started(store, 4).await;
        let spoke = AttemptResult { log_ref: Some("log\0".to_owned()), ..gave("a\0b") };
        let erred = AttemptResult { error_message: Some("bad \0 byte".to_owned()), ..failed(ErrorCode::INVALID_INPUT) };
        let ends = [(runs[0], gave("1")), (runs[1], spoke), (runs[2], erred), (runs[3], gave("2"))];
        let told = store.finish_many(token, &ends).await.unwrap();
        assert!(told.iter().all(tasuki_store::Outcome::is_applied));
        let mut rows = Vec::new();
        for run in runs {
            rows.push(store.run_now(run).await);
        }
        assert_eq!((rows[0].result.as_deref(), rows[3].result.as_deref()), (Some("1"), Some("2")));
        assert_eq!((rows[1].state, rows[1].result.as_deref()), (RunState::Succeeded, Some("a\u{fffd}b")));
        assert_eq!(rows[2].state, RunState::Failed);
        let said = store.executions(rows[1].id).await.unwrap().remove(0);
        assert_eq!(said.log_ref.as_deref(), Some("log\u{fffd}"));
        let said = store.executions(rows[2].id).await.unwrap().remove(0);
        assert_eq!(said.error_message.as_deref(), Some("bad \u{fffd} byte"));
    }

    async fn a_result_that_is_too_long_fails_its_own_run_and_says_so(store: TestStore) {
        let (token, runs) = given_started(store, 4).await;
        let erred = AttemptResult { result: Some("x".repeat(65_537)), error_message: Some("no".to_owned()), ..failed(ErrorCode::NOT_FOUND) };
        let ends = [(runs[0], gave("x".repeat(65_537))), (runs[1], gave("x".repeat(65_536))), (runs[2], erred), (runs[3], gave("2"))];
        let told = store.finish_many(token, &ends).await.unwrap();
        let states: Vec<_> = told.into_iter().map(|one| one.applied().unwrap().state).collect();
        let expected = [RunState::Failed, RunState::Succeeded, RunState::Failed, RunState::Succeeded];
        assert_eq!(states, expected);
        let said = store.executions(runs[0]).await.unwrap().remove(0);
        assert_eq!(said.error_code, Some(ErrorCode::RESULT_TOO_LONG));
        assert_eq!(said.error_message.as_deref(), Some("the result has 65537 bytes, at most 65536 are kept"));
        assert_eq!(store.run_now(runs[0]).await.result, None);
        assert_eq!(store.run_now(runs[1]).await.result.unwrap().len(), 65_536);
        let said = store.executions(runs[2]).await.unwrap().remove(0);
        assert_eq!((said.error_code, said.error_message.as_deref()), (Some(ErrorCode::NOT_FOUND), Some("no")));
        let again = store.finish_many(token, &ends).await.unwrap();
        assert!(again.iter().all(tasuki_store::Outcome::is_applied), "its own ending");
    }

    async fn alone_it_ends_the_same_way(store: TestStore) {
        let (token, runs) = given_started(store, 2).await;
        let told = store.finish(token, runs[0], &gave("x".repeat(70_000))).await.unwrap().applied().unwrap();
        assert_eq!(told.state, RunState::Failed);
        let told = store.finish(token, runs[1], &gave("\0")).await.unwrap().applied().unwrap();
        assert_eq!(told.state, RunState::Succeeded);
        assert!(store.leases_of(store.worker).await.unwrap().is_empty(), "closed");
    }

    async fn a_message_is_cut_where_it_gets_too_long(store: TestStore) {
        let (token, runs) = given_started(store, 1).await;
        let erred = AttemptResult { error_message: Some("日".repeat(1 << 20)), ..failed(ErrorCode::INVALID_INPUT) };
        assert!(store.finish(token, runs[0], &erred).await.unwrap().is_applied());
        let said = store.executions(runs[0]).await.unwrap().remove(0).error_message.unwrap();
        assert!(said.len() <= 65_536 && said.ends_with("日…"), "{}", said.len());
    }

    /// Together they are longer than any statement may be on MySQL.
    async fn long_results_travel_in_several_trips(store: TestStore) {
        let (token, runs) = given_started(store, 200).await;
        // Inside of JSON each of these takes six bytes.
        let ends: Vec<_> = runs.iter().map(|run| (*run, gave("\u{1}".repeat(65_536)))).collect();
        let told = store.finish_many(token, &ends).await.unwrap();
        assert!(told.iter().all(tasuki_store::Outcome::is_applied));
        assert_eq!(store.run_now(runs[199]).await.result.unwrap().len(), 65_536);
        assert!(store.leases_of(store.worker).await.unwrap().is_empty(), "closed");
    }

    async fn long_arguments_travel_in_several_trips(store: TestStore) {
        let job = store.given_job(&q()).await;
        let long = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        let new: Vec<_> = (0..40).map(|_| NewRun { args: Some(long.clone()), ..NewRun::task(&job) }).collect();
        let made = store.create(Writer::Api, &new).await.unwrap();
        assert_eq!(store.run_now(made[39].run).await.args.unwrap().len(), 1 << 20);
    }

    async fn a_run_that_cannot_be_stored_is_refused_by_name(store: TestStore) {
        let job = store.given_job(&q()).await;
        let keyed = |key: &str| NewRun { idempotency_key: Some(key.to_owned()), ..NewRun::task(&job) };
        let given = |args: String| NewRun { args: Some(args), ..NewRun::task(&job) };
        for (wrong, expected) in [
            (keyed(""), "idempotency key: found nothing, expected 1 to 191 characters"),
            (keyed(&"日".repeat(192)), "idempotency key: found"),
            (keyed("a\0"), "idempotency key: found \"a\\0\", expected 1 to 191 characters"),
            (keyed("a "), "idempotency key: found \"a \", expected no space around it"),
            (keyed("\ta"), "idempotency key: found \"\\ta\", expected no space around it"),
            (given("\"a\0\"".to_owned()), "args: found a NUL character, expected JSON"),
            (given("x".repeat((1 << 20) + 1)), "args: found a longer one, expected at most 1048576 bytes"),
        ] {
            for author in [Writer::Api, Writer::Leader(store.epoch)] {
                let refused = store.create(author, &[NewRun::task(&job), wrong.clone()]).await.unwrap_err();
                assert!(refused.is_invalid_input() && refused.to_string().starts_with(expected), "{refused}");
            }
        }
        assert!(store.due("q", noon(), 10).await.unwrap().is_empty(), "all or none");
        let longest = store.create(Writer::Api, &[keyed(&"日".repeat(191)), given("1".to_owned())]).await.unwrap();
        assert!(longest.iter().all(|one| !one.existed));
    }

    async fn only_its_own_caller_hears_of_a_task_that_is_refused(store: TestStore) {
        let job = Arc::new(store.given_job(&q()).await);
        let (enqueuer, work) = Enqueuer::new((**store).clone());
        let task = |args: &str| Task { args: Some(args.to_owned()), ..Task::new(Arc::clone(&job)) };
        let asked = async {
            let told = tokio::join!(enqueuer.enqueue(task("1")), enqueuer.enqueue(task("\0")), enqueuer.enqueue(task("2")));
            drop(enqueuer);
            told
        };
        let ((one, wrong, other), ()) = tokio::join!(asked, work);
        assert!(wrong.unwrap_err().is_invalid_input());
        assert!(!one.unwrap().existed && !other.unwrap().existed);
    }

    /// To MySQL "q" and "q " are one lane, to the others two.
    async fn a_lane_has_no_space_around_it(store: TestStore) {
        let spec = JobSpec { lane: "q ".to_owned(), ..q().spec() };
        let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec };
        let refused = store.create_job("test", &"spaced".parse().unwrap(), &definition, None).await.unwrap_err();
        assert_eq!(refused.to_string(), "lane: found \"q \", expected no space around it");
    }

    /// The other databases have no limit of their own there.
    async fn what_does_not_fit_is_refused_and_never_cut(store: TestStore) {
        let typed = "insert into tasuki_event (event_type) values ('".to_owned() + &"x".repeat(500) + "')";
        let told = store.script(&typed).await;
        assert_eq!(told.is_err(), store.dialect() == Dialect::MySql);
    }

    /// As in a cluster of several servers that all write.
    async fn a_server_that_skips_ids_makes_runs_all_the_same(store: TestStore) {
        let job = store.given_job(&q()).await;
        let one = Store::open(&store.url, 1).await.unwrap();
        one.set_clock(Some(noon()));
        if store.dialect() == Dialect::MySql {
            one.script("set session auto_increment_increment = 2, auto_increment_offset = 2").await.unwrap();
        }
        let args = |number: usize| Some(number.to_string());
        let new: Vec<_> = (0..5).map(|number| NewRun { args: args(number), ..NewRun::task(&job) }).collect();
        // Another server's run lies between them.
        store.create(Writer::Api, &new[..1]).await.unwrap();
        let made = one.create(Writer::Api, &new).await.unwrap();
        for (number, one) in made.iter().enumerate() {
            assert_eq!(store.run_now(one.run).await.args, args(number));
        }
        assert_eq!(store.due("q", noon(), 10).await.unwrap().len(), 6);
        one.close().await;
    }

    async fn answers_come_in_the_order_of_the_questions(store: TestStore) {
        let job = store.given_job(&q()).await;
        let new = |key: Option<&str>, args: &str| NewRun {
            idempotency_key: key.map(str::to_owned), args: Some(args.to_owned()), ..NewRun::task(&job)
        };
        let runs = [new(Some("c"), "1"), new(None, "2"), new(Some("a"), "3"), new(None, "4"), new(Some("b"), "5"), new(Some("a"), "6")];
        for author in [Writer::Api, Writer::Leader(store.epoch)] {
            let made = store.create(author, &runs).await.unwrap();
            for (new, made) in runs[..5].iter().zip(&made) {
                assert_eq!(store.run_now(made.run).await.args, new.args);
            }
            assert_eq!((made[5].run, made[5].existed), (made[2].run, true));
        }
    }
}

/// The same keys arrive in opposite orders, many times over.
#[test]
fn keys_in_opposite_orders_do_not_wait_for_each_other() {
    for dialect in [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite] {
        crate::given::run_in_parallel(dialect, 4, async |store| {
            let job = store.given_job(&q()).await;
            for round in 0..20 {
                let keyed = |number: u32| NewRun {
                    idempotency_key: Some(format!("{round} {number}")),
                    ..NewRun::task(&job)
                };
                let up: Vec<_> = (0..50).map(keyed).collect();
                let down: Vec<_> = (0..50).rev().map(keyed).collect();
                let (one, other) =
                    tokio::join!(store.create(Writer::Api, &up), store.create(Writer::Api, &down));
                let (one, mut other) = (one.unwrap(), other.unwrap());
                other.reverse();
                let ids = |made: &[Created]| made.iter().map(|one| one.run).collect::<Vec<_>>();
                assert_eq!(ids(&one), ids(&other), "{dialect:?}, round {round}");
            }
        });
    }
}
