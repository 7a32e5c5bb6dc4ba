//! Three processes on one PostgreSQL under full load, and every now and then one of them is killed: every task
//! succeeds once, and no two calls for one task are alive at the same time.
//!
//! With `TASUKI_LONG=1` in full: a kill every 10 seconds for 5 minutes. What it prints are figures, not promises.

mod crew;
mod witness;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sqlx::Row as _;
use sqlx::postgres::{PgPool, PgRow};
use tasuki::Client;
use tasuki::node::world::{Dice as _, RealDice};
use tasuki_store::SettingsChange;
use tokio::sync::watch;

use crate::client::Base;
use crate::place::until;
use crew::{Crew, JOB, Task};
use witness::History;

const PROCESSES: usize = 3;
/// More waits than three processes do while nobody looks.
const BACKLOG: i64 = 2_000;
const BATCH: usize = 500;
const LOOK: Duration = Duration::from_millis(50);
const ENOUGH: Duration = Duration::from_secs(120);

/// Small enough that what a killed process had comes back within seconds, and large enough that no process that
/// lives loses anything on a busy machine.
const SETTINGS: [(&str, &str); 19] = [
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

/// How many kills, and how long between two of them.
fn size() -> (usize, Duration) {
    match std::env::var_os("TASUKI_LONG") {
        Some(_) => (30, Duration::from_secs(10)),
        None => (7, Duration::from_millis(2_500)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_killed_again_and_again_and_every_task_succeeds_once() {
    let began = Instant::now();
    let base = Base::new("postgres").await;
    let client = base.client().await;
    let pool = PgPool::connect(&base.url).await.unwrap();
    let seen = client.store().settings().await.unwrap().version;
    let changed = client.store().change_settings("test", seen, &SETTINGS).await.unwrap();
    assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");

    let mut crew = Crew::new(&base.url, PROCESSES);
    until(ENOUGH, "a node has declared its job", async || client.operator().job(JOB).await.ok())
        .await;
    let (stop, stopped) = watch::channel(false);
    let load = tokio::spawn(load(client.clone(), pool.clone(), stopped));
    let (kills, interval) = size();
    let mut next = tokio::time::Instant::now();
    for kill in 0..kills {
        next += interval;
        tokio::time::sleep_until(next).await;
        crew.kill(kill);
        if kill % 2 == 0 {
            looks_healthy(&client).await;
        }
    }
    stop.send(true).unwrap();
    let (submitted, least) = load.await.unwrap();
    until(ENOUGH, "nothing waits and nothing is carried", async || {
        (count(&pool, OPEN).await == 0).then_some(())
    })
    .await;

    let lives = crew.stop().await;
    let seen = witness::judge(&submitted, &history(&pool).await, lives);
    assert!(seen.cut_off > 0, "no kill hit anything: {seen:?}");
    assert!(least > 0, "there was not always something to do");
    drop(crew);
    pool.close().await;
    base.end(client).await;
    let took = began.elapsed().as_secs_f64();
    let (runs, calls) = (seen.runs, seen.executions);
    println!("{runs} tasks, {calls} calls, {kills} kills in {took:.1} s, at least {least} waiting");
    println!("{seen:?}");
}

/// Submits tasks so that there is always more to do than is done. Returns what was submitted, and the least that
/// was seen to wait once there was enough.
async fn load(
    client: Client,
    pool: PgPool,
    stopped: watch::Receiver<bool>,
) -> (BTreeSet<i64>, i64) {
    let (mut submitted, mut least) = (BTreeSet::new(), BACKLOG);
    while !*stopped.borrow() {
        let waiting = count(&pool, WAITING).await;
        if waiting >= BACKLOG {
            tokio::time::sleep(LOOK).await;
            continue;
        }
        if submitted.len() > BACKLOG as usize {
            least = least.min(waiting);
        }
        let tasks: Vec<Task> = (0..BATCH).map(|_| Task { takes: takes() }).collect();
        let tasks = tasks.iter().map(|task| client.task(JOB, task).unwrap());
        let made = client.submit_all(tasks).await.unwrap();
        submitted.extend(made.iter().map(|made| made.run.0));
    }
    (submitted, least)
}

/// Most tasks take a moment, some take seconds.
fn takes() -> u64 {
    let roll = RealDice.roll();
    let (moment, seconds) = (roll % 50, 1_000 + roll % 2_000);
    let takes = if (roll / 2_000).is_multiple_of(200) { seconds } else { moment };
    takes as u64
}

/// In the middle of everything, too, nothing is stored that may not be.
async fn looks_healthy(client: &Client) {
    let report = client.store().doctor(jiff::Timestamp::now).await.unwrap();
    let findings: Vec<_> = report.findings().collect();
    assert!(findings.is_empty(), "{findings:?}");
}

/// A row in due may stand for several.
const WAITING: &str = "select coalesce(sum(more + 1), 0)::bigint from tasuki_due";
const OPEN: &str = "select (select count(*) from tasuki_due) + (select count(*) from tasuki_lease)";

async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query(query).fetch_one(pool).await.unwrap().get(0)
}

/// Read past the store, which is on trial.
async fn history(pool: &PgPool) -> History {
    let rows = async |query: &'static str| sqlx::query(query).fetch_all(pool).await.unwrap();
    let states = rows("select id, state from tasuki_run").await;
    let attempts = rows(
        "select run_id, attempt_no::bigint, outcome, worker_id::text from tasuki_attempt
         union all
         select id, attempt_no::bigint, outcome, worker_id::text from tasuki_run",
    )
    .await;
    let workers = rows("select id::text, node, pid::bigint from tasuki_worker").await;
    let of_attempt = |row: &PgRow| ((row.get(0), row.get(1)), (row.get(2), row.get(3)));
    let of_worker = |row: &PgRow| (row.get(0), (row.get(1), row.get::<i64, _>(2) as u32));
    let history = History {
        states: states.iter().map(|row| (row.get(0), row.get(1))).collect(),
        attempts: attempts.iter().map(of_attempt).collect(),
        workers: workers.iter().map(of_worker).collect(),
    };
    assert_eq!(history.attempts.len(), attempts.len(), "an attempt stands in two places");
    history
}
