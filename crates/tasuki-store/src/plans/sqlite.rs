//! SQLite chooses the order in which it joins, and puts the table first that it knows least of: a statement of a loop must not
//! go through all the runs there ever were, whatever was counted and when.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};

use super::files_but;
use crate::Store;
use crate::db::sql::{Dialect, translate};

/// What grows with all that was ever done; the first two as the view of runs calls them.
const HISTORY: [&str; 9] = [
    "birth",
    "life",
    "tasuki_run",
    "tasuki_run_birth",
    "tasuki_run_life",
    "tasuki_attempt",
    "tasuki_run_note",
    "tasuki_log",
    "tasuki_log_chunk",
];

/// Where the doctor looks once it knows that something is missing.
const OF_ALL: [&str; 1] = ["doctor/events_missing"];

/// Many that ended, and none that waits.
const PAST: &str = "
with recursive made (n) as (select 1 union all select n + 1 from made where n < 2000)
insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive, origin, lane)
select 1 + n % 7, n, n, 1, 3, 3, 0, 'task', 'bulk' from made";

#[tokio::test]
async fn no_statement_on_sqlite_goes_through_all_runs() {
    let file = std::env::temp_dir().join(format!("tasuki_plans_{}.db", std::process::id()));
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let store = Store::open(&url, 1).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut session = SqliteConnection::connect(&url).await.unwrap();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (situation, before) in [
        ("never analyzed", "select 0"),
        ("analyzed when empty", "analyze"),
        ("a long history", PAST),
        ("analyzed with a long history", "analyze"),
    ] {
        session.execute(before).await.unwrap();
        for (name, text) in files_but("sqlite", &["migration"]) {
            if OF_ALL.contains(&name) {
                continue;
            }
            seen += 1;
            for step in whole_tables(&mut session, name, &text).await {
                wrong.push(format!("{situation}: {name}: {step}"));
            }
        }
    }
    session.close().await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 500, "{seen} statements are too few to be all");
}

/// The steps of a statement that read every row of what grows.
async fn whole_tables(
    session: &mut SqliteConnection,
    name: &'static str,
    text: &str,
) -> Vec<String> {
    let ready = translate(name, text, Dialect::Sqlite, false);
    let explain = sqlx::raw_sql(AssertSqlSafe(format!("explain query plan {}", ready.text)));
    let rows = session.fetch_all(explain).await;
    let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}"));
    let steps = rows.iter().map(|row| row.get::<String, _>("detail"));
    steps.filter(|step| scanned(step).is_some_and(|found| is_history(&ready.text, found))).collect()
}

/// What a step goes through from its first row to its last, or puts aside as a whole, if it does.
fn scanned(step: &str) -> Option<&str> {
    let found =
        ["SCAN ", "MATERIALIZE ", "CO-ROUTINE "].iter().find_map(|how| step.strip_prefix(how))?;
    let (found, how) = found.split_once(' ').unwrap_or((found, ""));
    // In the order of an index it ends where enough was found.
    (!how.contains("INDEX")).then_some(found)
}

/// Whether a statement calls something by this name that grows.
fn is_history(text: &str, name: &str) -> bool {
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let called = |pair: &[&str]| HISTORY.contains(&pair[0]) && pair[1] == name;
    HISTORY.contains(&name) || words.windows(2).any(called)
}
