//! Tests of tasuki as a library: tasks, handlers and transactions of an application.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Connection as _, Executor as _};
use tasuki::operator::Error;
use tasuki::{Client, Context, JobDeclaration, TaskError, TaskSuccess};
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::{RunScope, RunState};
use tasuki_store::{Store, Writer};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A separate database for one test.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    server: Option<(String, String)>,
}

impl TestDatabase {
    pub(crate) async fn new(kind: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_client_{}_{count}", std::process::id());
        let variable = match kind {
            "sqlite" => {
                let file = std::env::temp_dir().join(format!("{name}.db"));
                let _ = std::fs::remove_file(&file);
                return Self { url: format!("sqlite:{}", file.display()), server: None };
            }
            "postgres" => "TASUKI_TEST_PG",
            _ => "TASUKI_TEST_MYSQL",
        };
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run ./test, which starts the server")
        });
        let admin = Store::open(&server, 1).await.unwrap();
        admin.execute_script(&format!("drop database if exists {name}")).await.unwrap();
        admin.execute_script(&format!("create database {name}")).await.unwrap();
        admin.close().await;
        let (front, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{front}/{name}"), server: Some((server.clone(), name)) }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url).await.unwrap()
    }

    /// Checks that the doctor finds no problem, then drops the database.
    pub(crate) async fn check_and_drop(self, client: Client) {
        let report = client.store().check_invariants(jiff::Timestamp::now).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
        client.store().close().await;
        match self.server {
            Some((server, name)) => {
                let admin = Store::open(&server, 1).await.unwrap();
                admin.execute_script(&format!("drop database {name}")).await.unwrap();
                admin.close().await;
            }
            None => {
                let file = self.url.trim_start_matches("sqlite:");
                for suffix in ["", "-wal", "-shm"] {
                    let _ = std::fs::remove_file(format!("{file}{suffix}"));
                }
            }
        }
    }
}

/// Generates one test per database from one function.
macro_rules! each_database {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn sqlite() {
                super::super::$name("sqlite").await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                super::super::$name("postgres").await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn mysql() {
                super::super::$name("mysql").await;
            }
        }
    )+};
}
pub(crate) use each_database;

mod on {
    each_database!(
        a_task_is_executed_and_its_result_is_stored,
        the_local_node_claims_a_submitted_task_in_the_same_commit,
        tasks_commit_and_roll_back_with_the_application
    );
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: u32,
}

async fn bill(order: Order, context: Context) -> Result<TaskSuccess, TaskError> {
    context.log(format!("bill for order {}", order.id));
    match (order.id, context.attempt_no()) {
        (13, 1) => Err(TaskError::fatal("there is no such order")),
        (_, 1) if order.id > 100 => Err("the printer is out of paper")?,
        _ => Ok(TaskSuccess::with_result(&json!({ "total": order.id * 2 }))?.rows_affected(1)),
    }
}

async fn a_task_is_executed_and_its_result_is_stored(kind: &str) {
    let database = TestDatabase::new(kind).await;
    let client = database.client().await;
    let job = JobDeclaration::task("bill").max_retries(1).backoff(Duration::ZERO, Duration::ZERO);
    let node =
        client.node_builder("here").unwrap().handler("bill", bill).job(job).start().await.unwrap();
    let good = client.submit("bill", &Order { id: 7 }).await.unwrap();
    let bad = client.submit("bill", &Order { id: 13 }).await.unwrap();
    let late = client.task("bill", &Order { id: 101 }).unwrap().idempotency_key("bill 101");
    let late = late.scope(RunScope::new("shop", "1").unwrap()).submit().await.unwrap();
    let second = client.task("bill", &Order { id: 101 }).unwrap().idempotency_key("bill 101");
    let second = second.submit().await.unwrap();
    assert_eq!((second.run, second.existed), (late.run, true));

    let run = client.wait_until_ended(good.run, TEST_TIMEOUT).await.unwrap().info.run;
    assert_eq!((run.state, run.rows_affected), (RunState::Succeeded, Some(1)));
    assert_eq!(run.result.as_deref(), Some(r#"{"total":14}"#));
    let run = client.wait_until_ended(bad.run, TEST_TIMEOUT).await.unwrap().info.run;
    assert_eq!(
        (run.state, run.counters.tries),
        (RunState::Failed, 1),
        "the error is not retryable"
    );
    let run = client.wait_until_ended(late.run, TEST_TIMEOUT).await.unwrap().info.run;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));
    let executions = client.list_executions(late.run).await.unwrap();
    assert_eq!(executions[0].error_message.as_deref(), Some("the printer is out of paper"));

    let retried = client.retry(bad.run, None).await.unwrap();
    assert_ne!(
        retried.run.state,
        RunState::Failed,
        "the run waits for its next try or has started it"
    );
    let run = client.wait_until_ended(bad.run, TEST_TIMEOUT).await.unwrap().info.run;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));

    let batch = (1..=50).map(|id| client.task("bill", &Order { id: 200 + id }).unwrap());
    let batch = client.submit_all(batch).await.unwrap();
    for created in batch {
        assert_eq!(
            client.wait_until_ended(created.run, TEST_TIMEOUT).await.unwrap().info.run.state,
            RunState::Succeeded
        );
    }
    node.stop().await;

    let late = client.task("bill", &Order { id: 1 }).unwrap().start_after(TEST_TIMEOUT * 100);
    let late = late.submit().await.unwrap();
    assert_eq!(client.cancel(late.run, None).await.unwrap().run.state, RunState::Canceled);
    let error = client.submit("unknown job", &()).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { kind: "job", .. }), "{error}");
    let error = client.submit("bill", &7).await.unwrap_err();
    assert!(error.to_string().starts_with("args: found other JSON"), "{error}");
    let unfit = std::collections::BTreeMap::from([("id", u128::MAX)]);
    let error = client.submit("bill", &unfit).await.unwrap_err();
    assert!(error.to_string().contains("number out of range"), "{error}");
    let fits = std::collections::BTreeMap::from([("id", u64::MAX)]);
    drop(client.task("bill", &fits).unwrap());
    database.check_and_drop(client).await;
}

/// Writes the application's own table and submits tasks in one transaction.
macro_rules! transaction {
    ($connection:ty, $database:expr, $client:expr, $commit:expr) => {{
        let url = $database.url.replace("sqlite:", "sqlite://");
        let mut app = <$connection>::connect(&url).await.unwrap();
        app.execute("create table if not exists orders (id integer)").await.unwrap();
        let mut transaction = app.begin().await.unwrap();
        transaction.execute("insert into orders values (1)").await.unwrap();
        let task = |id| $client.task("bill", &Order { id }).unwrap();
        let first = task(1)
            .idempotency_key("order 1")
            .submit_in_transaction(&mut transaction)
            .await
            .unwrap();
        let second = task(1)
            .idempotency_key("order 1")
            .submit_in_transaction(&mut transaction)
            .await
            .unwrap();
        assert_eq!((second.run, second.existed), (first.run, true));
        let batch = (21..=39).map(task);
        let batch = $client.submit_all_in_transaction(&mut *transaction, batch).await.unwrap();
        match $commit {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        app.close().await.unwrap();
        let mut runs = vec![first.run];
        runs.extend(batch.iter().map(|created| created.run));
        runs
    }};
}

async fn tasks_commit_and_roll_back_with_the_application(kind: &str) {
    let database = TestDatabase::new(kind).await;
    let client = database.client().await;
    let node = client.node_builder("here").unwrap().handler("bill", bill).start().await.unwrap();
    for commit in [false, true] {
        let runs = match kind {
            "sqlite" => transaction!(sqlx::SqliteConnection, database, client, commit),
            "postgres" => transaction!(sqlx::PgConnection, database, client, commit),
            _ => transaction!(sqlx::MySqlConnection, database, client, commit),
        };
        assert_eq!(runs.len(), 20);
        client.notify_committed();
        for run in runs {
            match commit {
                true => {
                    let ended = client.wait_until_ended(run, TEST_TIMEOUT).await.unwrap();
                    assert_eq!(ended.info.run.state, RunState::Succeeded);
                }
                false => {
                    let gone = client.get_run(run).await.unwrap_err();
                    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
                }
            }
        }
    }
    node.stop().await;
    database.check_and_drop(client).await;
}

#[tokio::test]
async fn a_transaction_on_another_kind_of_database_is_refused() {
    let database = TestDatabase::new("sqlite").await;
    let client = database.client().await;
    let node = client.node_builder("here").unwrap().handler("bill", bill).start().await.unwrap();
    let pg = std::env::var("TASUKI_TEST_PG").expect("run ./test, which starts the server");
    let mut elsewhere = sqlx::PgConnection::connect(&pg).await.unwrap();
    let task = client.task("bill", &Order { id: 1 }).unwrap();
    let error = task.submit_in_transaction(&mut elsewhere).await.unwrap_err();
    assert_eq!(error.to_string(), "transaction: found one on Postgres, expected one on Sqlite");
    let filter = tasuki_store::RunFilter::default();
    let none = client.store().list_runs(&filter, None, 10).await.unwrap();
    assert!(none.runs.is_empty());
    node.stop().await;
    database.check_and_drop(client).await;
}

/// The code defines the job; users decide whether it is enabled.
#[tokio::test]
async fn a_declaration_updates_the_definition_and_keeps_the_enabled_flag() {
    let database = TestDatabase::new("sqlite").await;
    let client = database.client().await;
    let by = tasuki::operator::Actor {
        name: "ann".to_owned(),
        address: None,
        role: tasuki_core::AccessRole::Admin,
    };
    let start = async |interval: &str| {
        let rolling = JobDeclaration::every("roll up", interval).unwrap().handler("bill");
        let rolling = rolling.misfire(MisfirePolicy::LatestOnly).args(&Order { id: 1 }).unwrap();
        let rolling = rolling.allow_stale_reentry(false).description("adds up");
        let node = client.node_builder("here").unwrap().handler("bill", bill).job(rolling);
        node.start().await.unwrap().stop().await;
        client.operator().get_job("roll up").await.unwrap().job
    };
    let first = start("1h").await;
    assert!(!first.newest.spec.retry_lost);
    assert_eq!((first.misfire, first.version), (Some(MisfirePolicy::LatestOnly), 1));
    assert_eq!(start("1h").await.version, 1, "the declaration did not change");
    client.operator().disable_job(&by, first.expected_version()).await.unwrap();
    let changed = start("2h").await;
    assert_eq!((changed.schedule_value.as_deref(), changed.enabled), (Some("2h"), false));
    // The default job of a handler is created if it does not exist, and otherwise not changed.
    let bills = client.operator().get_job("bill").await.unwrap().job;
    assert_eq!(bills.version, 1);
    database.check_and_drop(client).await;
}

/// Concurrent submits are batched, and each run is created once.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_callers_each_get_their_own_run() {
    let database = TestDatabase::new("sqlite").await;
    let client = database.client().await;
    let node = client.node_builder("here").unwrap().handler("bill", bill).start().await.unwrap();
    node.stop().await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16_u32 {
        let client = client.clone();
        callers.spawn(async move {
            let mut runs = Vec::new();
            for id in 0..20 {
                runs.push(client.submit("bill", &Order { id: caller * 100 + id }).await.unwrap());
            }
            runs
        });
    }
    let runs: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let different: std::collections::BTreeSet<_> = runs.iter().map(|created| created.run).collect();
    assert_eq!((runs.len(), different.len()), (320, 320));
    let job = client.operator().get_job("bill").await.unwrap().job;
    let stale = tasuki_store::NewRun::task(&job.newest);
    assert_eq!(client.store().create_or_find_runs(Writer::Api, &[stale]).await.unwrap().len(), 1);
    database.check_and_drop(client).await;
}

/// A submit notifies the other processes through PostgreSQL.
#[tokio::test]
async fn a_submit_in_one_process_wakes_a_node_in_another() {
    let database = TestDatabase::new("postgres").await;
    let (local, remote) = (database.client().await, database.client().await);
    let node = local.node_builder("here").unwrap().handler("bill", bill).start().await.unwrap();
    let mut admin = sqlx::PgConnection::connect(&database.url).await.unwrap();
    let listening = async {
        let sessions = "select count(*) from pg_stat_activity
             where datname = current_database() and query = 'LISTEN \"tasuki\"'";
        while sqlx::query_scalar::<_, i64>(sessions).fetch_one(&mut admin).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, listening).await.expect("the node listens");
    let mut listener = remote.store().listen().await.unwrap().unwrap();
    let created = remote.submit("bill", &Order { id: 1 }).await.unwrap();
    let notification = tokio::time::timeout(TEST_TIMEOUT, listener.receive())
        .await
        .expect("a notification arrives");
    let notification = notification.unwrap().unwrap();
    assert!(
        notification.wake_claims && !notification.wake_planner && !notification.wake_renew_loop,
        "{notification:?}"
    );
    let run = remote.wait_until_ended(created.run, TEST_TIMEOUT).await.unwrap().info.run;
    assert_eq!(run.state, RunState::Succeeded);
    // After its own transaction, the application must notify the nodes itself.
    remote.notify_committed();
    let notification = tokio::time::timeout(TEST_TIMEOUT, listener.receive())
        .await
        .expect("a notification arrives");
    assert!(notification.unwrap().unwrap().wake_planner);
    listener.close().await;
    admin.close().await.unwrap();
    node.stop().await;
    remote.store().close().await;
    database.check_and_drop(local).await;
}

/// If a node with a free slot runs in the submitting process, a task is RUNNING from its first commit on, submitted
/// alone or together with others.
async fn the_local_node_claims_a_submitted_task_in_the_same_commit(kind: &str) {
    let database = TestDatabase::new(kind).await;
    let client = database.client().await;
    let node = client
        .node_builder("here")
        .unwrap()
        .handler("bill", bill)
        .job(JobDeclaration::task("bill"));
    let node = node.start().await.unwrap();
    // The first tasks may be submitted before the node's first poll. On the other databases the clock advances within a
    // commit, so the comparison below works on PostgreSQL only.
    let mut at_once = kind != "postgres";
    for _ in 0..200 {
        let created = client.submit("bill", &Order { id: 7 }).await.unwrap();
        let run = client.wait_until_ended(created.run, TEST_TIMEOUT).await.unwrap().info.run;
        assert_eq!(run.state, RunState::Succeeded);
        at_once |= run.started_at == Some(run.scheduled_for);
        if at_once {
            break;
        }
    }
    assert!(at_once);
    let callers = (0..40).map(async |id| {
        let created = client.submit("bill", &Order { id }).await.unwrap();
        client.wait_until_ended(created.run, TEST_TIMEOUT).await.unwrap().info.run
    });
    for (id, run) in join_all(callers).await.into_iter().enumerate() {
        let good = (RunState::Succeeded, Some(json!({ "total": id * 2 }).to_string()));
        match id {
            13 => assert_eq!(run.state, RunState::Failed),
            _ => assert_eq!((run.state, run.result), good),
        }
    }
    node.stop().await;
    database.check_and_drop(client).await;
}
