//! Three node processes on one PostgreSQL database under full load, of which one is killed every few seconds: every
//! task succeeds once, and no two calls for one task run at the same time.
//!
//! With `TASUKI_LONG=1` it runs in full: a kill every 10 seconds for 5 minutes. The printed numbers are measurements,
//! not guarantees.

mod node_processes;
mod trace_checker;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sqlx::Row as _;
use sqlx::postgres::{PgPool, PgRow};
use tasuki::Client;
use tasuki::node::clock_and_random::{OsRandom, Random as _};
use tasuki_store::SettingsChangeResult;
use tokio::sync::watch;

use crate::client::TestDatabase;
use crate::node_fixture::wait_until;
use node_processes::{JOB, NodeProcesses, Task};
use trace_checker::History;

const PROCESSES: usize = 3;
/// Number of waiting tasks to keep up: more than three processes finish in one polling interval.
const BACKLOG: i64 = 2_000;
const BATCH: usize = 500;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(120);

/// Short enough that the runs of a killed process are recovered within seconds, and long enough that a live process
/// loses no lease on a busy machine.
const SHORT_TIMEOUTS: [(&str, &str); 19] = [
    ("function_slots", "16"),
    ("leader_tick", "100ms"),
    ("assign_ahead", "1s"),
    ("leader_renew", "200ms"),
    ("leader_ttl", "1s"),
    ("leader_margin", "200ms"),
    ("leader_stale", "1s"),
    ("subleader_check", "100ms"),
    ("heartbeat_interval", "200ms"),
    ("heartbeat_ttl", "1s"),
    ("lease_renew", "500ms"),
    ("lease_ttl", "4s"),
    ("outage_tolerance", "1s"),
    ("kill_margin", "500ms"),
    ("steal_grace", "200ms"),
    ("continuation_retry_count", "1"),
    ("continuation_retry_interval", "100ms"),
    ("stop_grace", "500ms"),
    ("recovery_interval", "100ms"),
];

/// Number of kills, and the time between two kills.
fn kill_schedule() -> (usize, Duration) {
    match std::env::var_os("TASUKI_LONG") {
        Some(_) => (30, Duration::from_secs(10)),
        None => (7, Duration::from_millis(2_500)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_succeeds_once_while_nodes_are_killed() {
    let began = Instant::now();
    let base = TestDatabase::new("postgres").await;
    let client = base.client().await;
    let pool = PgPool::connect(&base.url).await.unwrap();
    let version = client.store().load_settings().await.unwrap().version;
    let changed = client.store().change_settings("test", version, &SHORT_TIMEOUTS).await.unwrap();
    assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");

    let mut nodes = NodeProcesses::new(&base.url, PROCESSES);
    wait_until(TIMEOUT, "a node has declared its job", async || {
        client.operator().get_job(JOB).await.ok()
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let load = tokio::spawn(keep_submitting(client.clone(), pool.clone(), stopped));
    let (kills, interval) = kill_schedule();
    let mut next = tokio::time::Instant::now();
    for kill in 0..kills {
        next += interval;
        tokio::time::sleep_until(next).await;
        nodes.kill_and_restart(kill);
        if kill % 2 == 0 {
            check_database(&client).await;
        }
    }
    stop.send(true).unwrap();
    let (submitted, min_waiting) = load.await.unwrap();
    wait_until(TIMEOUT, "no run waits and no lease is left", async || {
        (count(&pool, OPEN).await == 0).then_some(())
    })
    .await;

    let processes = nodes.stop().await;
    let summary = trace_checker::check_history(&submitted, &read_history(&pool).await, processes);
    assert!(summary.interrupted > 0, "no kill interrupted a call: {summary:?}");
    assert!(min_waiting > 0, "the queue was empty at times");
    drop(nodes);
    pool.close().await;
    base.check_and_drop(client).await;
    let seconds = began.elapsed().as_secs_f64();
    let (runs, calls) = (summary.runs, summary.executions);
    println!(
        "{runs} tasks, {calls} calls, {kills} kills in {seconds:.1} s, at least {min_waiting} waiting"
    );
    println!("{summary:?}");
}

/// Submits tasks so that there are always more than the nodes finish. Returns the submitted runs, and the minimum
/// number of waiting tasks that was seen once the backlog was full.
async fn keep_submitting(
    client: Client,
    pool: PgPool,
    stopped: watch::Receiver<bool>,
) -> (BTreeSet<i64>, i64) {
    let (mut submitted, mut min_waiting) = (BTreeSet::new(), BACKLOG);
    while !*stopped.borrow() {
        let waiting = count(&pool, WAITING).await;
        if waiting >= BACKLOG {
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        }
        if submitted.len() > BACKLOG as usize {
            min_waiting = min_waiting.min(waiting);
        }
        let tasks: Vec<Task> =
            (0..BATCH).map(|_| Task { takes_ms: random_duration_ms() }).collect();
        let tasks = tasks.iter().map(|task| client.task(JOB, task).unwrap());
        let created = client.submit_all(tasks).await.unwrap();
        submitted.extend(created.iter().map(|created| created.run.0));
    }
    (submitted, min_waiting)
}

/// Duration of a task in milliseconds: mostly below 50 ms, sometimes seconds.
fn random_duration_ms() -> u64 {
    let random = OsRandom.next_u128();
    let (short, long) = (random % 50, 1_000 + random % 2_000);
    let duration = if (random / 2_000).is_multiple_of(200) { long } else { short };
    duration as u64
}

/// Checks the database while the nodes work and are killed: the doctor must find nothing.
async fn check_database(client: &Client) {
    let report = client.store().check_invariants(jiff::Timestamp::now).await.unwrap();
    let findings: Vec<_> = report.findings().collect();
    assert!(findings.is_empty(), "{findings:?}");
}

/// A due row may stand for a range of runs.
const WAITING: &str = "select coalesce(sum(extra_runs + 1), 0)::bigint from tasuki_due";
const OPEN: &str = "select (select count(*) from tasuki_due) + (select count(*) from tasuki_lease)";

async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query(query).fetch_one(pool).await.unwrap().get(0)
}

/// Reads the history with SQL, not through the store, because this test also tests the store.
async fn read_history(pool: &PgPool) -> History {
    let rows = async |query: &'static str| sqlx::query(query).fetch_all(pool).await.unwrap();
    let states = rows("select id, state from tasuki_run").await;
    let attempts = rows(
        "select run_id, attempt_no::bigint, outcome, worker_id::text from tasuki_attempt
         union all
         select id, attempt_no::bigint, outcome, worker_id::text from tasuki_run",
    )
    .await;
    let workers = rows("select id::text, node, pid::bigint from tasuki_worker").await;
    let attempt = |row: &PgRow| ((row.get(0), row.get(1)), (row.get(2), row.get(3)));
    let worker = |row: &PgRow| (row.get(0), (row.get(1), row.get::<i64, _>(2) as u32));
    let history = History {
        states: states.iter().map(|row| (row.get(0), row.get(1))).collect(),
        attempts: attempts.iter().map(attempt).collect(),
        workers: workers.iter().map(worker).collect(),
    };
    assert_eq!(history.attempts.len(), attempts.len(), "an attempt is stored twice");
    history
}
