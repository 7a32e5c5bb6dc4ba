//! tasuki inside a program: its tasks, its handlers, its transactions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Connection as _, Executor as _};
use tasuki::operator::Error;
use tasuki::{Client, Context, Done, Job, TaskError};
use tasuki_core::misfire::Misfire;
use tasuki_core::{RunState, Scope};
use tasuki_store::{Writer, Store};

const ENOUGH: Duration = Duration::from_secs(30);

/// A database of its own for each test.
pub(crate) struct Base {
    pub(crate) url: String,
    server: Option<(String, String)>,
}

impl Base {
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
        admin.script(&format!("drop database if exists {name}")).await.unwrap();
        admin.script(&format!("create database {name}")).await.unwrap();
        admin.close().await;
        let (front, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{front}/{name}"), server: Some((server.clone(), name)) }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url).await.unwrap()
    }

    /// Everything must be as the doctor wants it; then nothing is left.
    pub(crate) async fn end(self, client: Client) {
        let report = client.store().doctor(jiff::Timestamp::now).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
        client.store().close().await;
        match self.server {
            Some((server, name)) => {
                let admin = Store::open(&server, 1).await.unwrap();
                admin.script(&format!("drop database {name}")).await.unwrap();
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

/// Makes one test for each database from one function.
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
        a_task_is_handled_and_its_result_is_kept,
        a_task_starts_with_the_commit_that_makes_it,
        tasks_are_part_of_a_transaction
    );
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: u32,
}

async fn bill(order: Order, context: Context) -> Result<Done, TaskError> {
    context.log(format!("bill for order {}", order.id));
    match (order.id, context.attempt_no()) {
        (13, 1) => Err(TaskError::fatal("there is no such order")),
        (_, 1) if order.id > 100 => Err("the printer is out of paper")?,
        _ => Ok(Done::with(&json!({ "total": order.id * 2 }))?.rows_affected(1)),
    }
}

async fn a_task_is_handled_and_its_result_is_kept(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let job = Job::task("bill").max_retries(1).backoff(Duration::ZERO, Duration::ZERO);
    let node = client.node("here").unwrap().handler("bill", bill).job(job).start().await.unwrap();
    let good = client.submit("bill", &Order { id: 7 }).await.unwrap();
    let bad = client.submit("bill", &Order { id: 13 }).await.unwrap();
    let late = client.task("bill", &Order { id: 101 }).unwrap().key("bill 101");
    let late = late.scope(Scope::new("shop", "1").unwrap()).submit().await.unwrap();
    let again = client.task("bill", &Order { id: 101 }).unwrap().key("bill 101");
    let again = again.submit().await.unwrap();
    assert_eq!((again.run, again.existed), (late.run, true));

    let run = client.wait(good.run, ENOUGH).await.unwrap().now.run;
    assert_eq!((run.state, run.rows_affected), (RunState::Succeeded, Some(1)));
    assert_eq!(run.result.as_deref(), Some(r#"{"total":14}"#));
    let run = client.wait(bad.run, ENOUGH).await.unwrap().now.run;
    assert_eq!((run.state, run.counters.tries), (RunState::Failed, 1), "it said not to try again");
    let run = client.wait(late.run, ENOUGH).await.unwrap().now.run;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));
    let executions = client.executions(late.run).await.unwrap();
    assert_eq!(executions[0].error_message.as_deref(), Some("the printer is out of paper"));

    let retried = client.retry(bad.run, None).await.unwrap();
    assert_ne!(retried.run.state, RunState::Failed, "it waits for its next try, or has begun it");
    let run = client.wait(bad.run, ENOUGH).await.unwrap().now.run;
    assert_eq!((run.state, run.counters.tries), (RunState::Succeeded, 2));

    let many = (1..=50).map(|id| client.task("bill", &Order { id: 200 + id }).unwrap());
    let many = client.submit_all(many).await.unwrap();
    for made in many {
        assert_eq!(client.wait(made.run, ENOUGH).await.unwrap().now.run.state, RunState::Succeeded);
    }
    node.stop().await;

    let late = client.task("bill", &Order { id: 1 }).unwrap().after(ENOUGH * 100);
    let late = late.submit().await.unwrap();
    assert_eq!(client.cancel(late.run, None).await.unwrap().run.state, RunState::Canceled);
    let refused = client.submit("unheard of", &()).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound { what: "job", .. }), "{refused}");
    let refused = client.submit("bill", &7).await.unwrap_err();
    assert!(refused.to_string().starts_with("args: found other JSON"), "{refused}");
    let unfit = std::collections::BTreeMap::from([("id", u128::MAX)]);
    let refused = client.submit("bill", &unfit).await.unwrap_err();
    assert!(refused.to_string().contains("number out of range"), "{refused}");
    let fits = std::collections::BTreeMap::from([("id", u64::MAX)]);
    drop(client.task("bill", &fits).unwrap());
    base.end(client).await;
}

/// The application's own table and tasuki's in one transaction.
macro_rules! transaction {
    ($connection:ty, $base:expr, $client:expr, $commit:expr) => {{
        let url = $base.url.replace("sqlite:", "sqlite://");
        let mut app = <$connection>::connect(&url).await.unwrap();
        app.execute("create table if not exists orders (id integer)").await.unwrap();
        let mut transaction = app.begin().await.unwrap();
        transaction.execute("insert into orders values (1)").await.unwrap();
        let task = |id| $client.task("bill", &Order { id }).unwrap();
        let one = task(1).key("order 1").submit_in(&mut transaction).await.unwrap();
        let again = task(1).key("order 1").submit_in(&mut transaction).await.unwrap();
        assert_eq!((again.run, again.existed), (one.run, true));
        let many = (21..=39).map(task);
        let many = $client.submit_all_in(&mut *transaction, many).await.unwrap();
        match $commit {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        app.close().await.unwrap();
        let mut runs = vec![one.run];
        runs.extend(many.iter().map(|made| made.run));
        runs
    }};
}

async fn tasks_are_part_of_a_transaction(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let node = client.node("here").unwrap().handler("bill", bill).start().await.unwrap();
    for commit in [false, true] {
        let runs = match kind {
            "sqlite" => transaction!(sqlx::SqliteConnection, base, client, commit),
            "postgres" => transaction!(sqlx::PgConnection, base, client, commit),
            _ => transaction!(sqlx::MySqlConnection, base, client, commit),
        };
        assert_eq!(runs.len(), 20);
        client.committed();
        for run in runs {
            match commit {
                true => {
                    let ended = client.wait(run, ENOUGH).await.unwrap();
                    assert_eq!(ended.now.run.state, RunState::Succeeded);
                }
                false => {
                    let gone = client.run(run).await.unwrap_err();
                    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
                }
            }
        }
    }
    node.stop().await;
    base.end(client).await;
}

#[tokio::test]
async fn a_transaction_on_another_kind_of_database_is_refused() {
    let base = Base::new("sqlite").await;
    let client = base.client().await;
    let node = client.node("here").unwrap().handler("bill", bill).start().await.unwrap();
    let pg = std::env::var("TASUKI_TEST_PG").expect("run ./test, which starts the server");
    let mut elsewhere = sqlx::PgConnection::connect(&pg).await.unwrap();
    let task = client.task("bill", &Order { id: 1 }).unwrap();
    let refused = task.submit_in(&mut elsewhere).await.unwrap_err();
    assert_eq!(refused.to_string(), "transaction: found one on Postgres, expected one on Sqlite");
    let filter = tasuki_store::RunFilter::default();
    let none = client.store().runs(&filter, None, 10).await.unwrap();
    assert!(none.runs.is_empty());
    node.stop().await;
    base.end(client).await;
}

/// Code says what a job is; people say whether it is on.
#[tokio::test]
async fn a_job_is_what_the_code_says_and_as_people_left_it() {
    let base = Base::new("sqlite").await;
    let client = base.client().await;
    let by = tasuki::operator::Actor {
        name: "ann".to_owned(),
        address: None,
        role: tasuki_core::Role::Admin,
    };
    let start = async |interval: &str| {
        let rolling = Job::every("roll up", interval).unwrap().handler("bill");
        let rolling = rolling.catch_up(Misfire::LatestOnly).args(&Order { id: 1 }).unwrap();
        let rolling = rolling.allow_stale_reentry(false).description("adds up");
        let node = client.node("here").unwrap().handler("bill", bill).job(rolling);
        node.start().await.unwrap().stop().await;
        client.operator().job("roll up").await.unwrap().job
    };
    let first = start("1h").await;
    assert!(!first.newest.spec.retry_lost);
    assert_eq!((first.misfire, first.version), (Some(Misfire::LatestOnly), 1));
    assert_eq!(start("1h").await.version, 1, "nothing new was said");
    client.operator().disable_job(&by, first.seen()).await.unwrap();
    let changed = start("2h").await;
    assert_eq!((changed.schedule_value.as_deref(), changed.enabled), (Some("2h"), false));
    // A handler's own job is made where there is none, and left alone where there is one.
    let bills = client.operator().job("bill").await.unwrap().job;
    assert_eq!(bills.version, 1);
    base.end(client).await;
}

/// Callers at the same time travel together, and each run is made once.
#[tokio::test(flavor = "multi_thread")]
async fn many_callers_at_once_each_get_their_own_run() {
    let base = Base::new("sqlite").await;
    let client = base.client().await;
    let node = client.node("here").unwrap().handler("bill", bill).start().await.unwrap();
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
    let different: std::collections::BTreeSet<_> = runs.iter().map(|made| made.run).collect();
    assert_eq!((runs.len(), different.len()), (320, 320));
    let job = client.operator().job("bill").await.unwrap().job;
    let stale = tasuki_store::NewRun::task(&job.newest);
    assert_eq!(client.store().create(Writer::Api, &[stale]).await.unwrap().len(), 1);
    base.end(client).await;
}

/// Who submits tells the other processes, and a node listens.
#[tokio::test]
async fn what_one_process_submits_another_hears_of() {
    let base = Base::new("postgres").await;
    let (here, there) = (base.client().await, base.client().await);
    let node = here.node("here").unwrap().handler("bill", bill).start().await.unwrap();
    let mut admin = sqlx::PgConnection::connect(&base.url).await.unwrap();
    let listening = async {
        let sessions = "select count(*) from pg_stat_activity
             where datname = current_database() and query = 'LISTEN \"tasuki\"'";
        while sqlx::query_scalar::<_, i64>(sessions).fetch_one(&mut admin).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(ENOUGH, listening).await.expect("the node listens");
    let mut listener = there.store().listen().await.unwrap().unwrap();
    let made = there.submit("bill", &Order { id: 1 }).await.unwrap();
    let heard = tokio::time::timeout(ENOUGH, listener.heard()).await.expect("it is told");
    let heard = heard.unwrap().unwrap();
    assert!(heard.claims && !heard.leader && !heard.leases, "{heard:?}");
    let run = there.wait(made.run, ENOUGH).await.unwrap().now.run;
    assert_eq!(run.state, RunState::Succeeded);
    // After a transaction of the application it says so itself.
    there.committed();
    let heard = tokio::time::timeout(ENOUGH, listener.heard()).await.expect("it is told");
    assert!(heard.unwrap().unwrap().leader);
    listener.close().await;
    admin.close().await.unwrap();
    node.stop().await;
    there.store().close().await;
    base.end(here).await;
}

/// What is submitted where a node with room is runs from its first commit on, by itself and together with others.
async fn a_task_starts_with_the_commit_that_makes_it(kind: &str) {
    let base = Base::new(kind).await;
    let client = base.client().await;
    let node = client.node("here").unwrap().handler("bill", bill).job(Job::task("bill"));
    let node = node.start().await.unwrap();
    // The first ones may come before it has looked round. (Elsewhere the clock goes on within a commit.)
    let mut at_once = kind != "postgres";
    for _ in 0..200 {
        let made = client.submit("bill", &Order { id: 7 }).await.unwrap();
        let run = client.wait(made.run, ENOUGH).await.unwrap().now.run;
        assert_eq!(run.state, RunState::Succeeded);
        at_once |= run.started_at == Some(run.scheduled_for);
        if at_once {
            break;
        }
    }
    assert!(at_once);
    let callers = (0..40).map(async |id| {
        let made = client.submit("bill", &Order { id }).await.unwrap();
        client.wait(made.run, ENOUGH).await.unwrap().now.run
    });
    for (id, run) in join_all(callers).await.into_iter().enumerate() {
        let good = (RunState::Succeeded, Some(json!({ "total": id * 2 }).to_string()));
        match id {
            13 => assert_eq!(run.state, RunState::Failed),
            _ => assert_eq!((run.state, run.result), good),
        }
    }
    node.stop().await;
    base.end(client).await;
}
