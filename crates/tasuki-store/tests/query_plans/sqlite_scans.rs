//! SQLite chooses the join order and may start with a table without statistics. No statement of a loop may scan all
//! runs of the history, whatever the statistics are.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};

use super::files_except;
use crate::Store;
use crate::db::sql::{Dialect, translate};

/// Tables that grow with the history; the first two are the aliases that the view `tasuki_run` uses.
const HISTORY_TABLES: [&str; 9] = [
    "run_data",
    "run_state",
    "tasuki_run",
    "tasuki_run_data",
    "tasuki_run_state",
    "tasuki_attempt",
    "tasuki_run_note",
    "tasuki_log",
    "tasuki_log_chunk",
];

/// Statements that may scan: the doctor runs this one only if it already knows that runs are missing.
const MAY_SCAN: [&str; 1] = ["doctor/check_events_without_runs"];

/// Inserts many runs without due rows.
const FILL_HISTORY: &str = "
with recursive made (n) as (select 1 union all select n + 1 from made where n < 2000)
insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive, origin, lane)
select 1 + n % 7, n, n, 1, 3, 3, 0, 'task', 'bulk' from made";

#[tokio::test]
async fn no_statement_on_sqlite_scans_all_runs() {
    let file = std::env::temp_dir().join(format!("tasuki_plans_{}.db", std::process::id()));
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let store = Store::open(&url, 1).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (situation, before) in [
        ("never analyzed", "select 0"),
        ("analyzed when empty", "analyze"),
        ("a long history", FILL_HISTORY),
        ("analyzed with a long history", "analyze"),
    ] {
        connection.execute(before).await.unwrap();
        for (name, text) in files_except("sqlite", &["migration"]) {
            if MAY_SCAN.contains(&name) {
                continue;
            }
            checked += 1;
            for step in history_scans(&mut connection, name, &text).await {
                wrong.push(format!("{situation}: {name}: {step}"));
            }
        }
    }
    connection.close().await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 500, "only {checked} statements were checked");
}

/// The steps of a statement's plan that scan a table of the history.
async fn history_scans(
    connection: &mut SqliteConnection,
    name: &'static str,
    text: &str,
) -> Vec<String> {
    let statement = translate(name, text, Dialect::Sqlite, false);
    let explain = sqlx::raw_sql(AssertSqlSafe(format!("explain query plan {}", statement.text)));
    let rows = connection.fetch_all(explain).await;
    let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}"));
    let steps = rows.iter().map(|row| row.get::<String, _>("detail"));
    steps
        .filter(|step| scanned_table(step).is_some_and(|found| is_history(&statement.text, found)))
        .collect()
}

/// The table that a step of the plan scans completely or copies, if it does.
fn scanned_table(step: &str) -> Option<&str> {
    let found =
        ["SCAN ", "MATERIALIZE ", "CO-ROUTINE "].iter().find_map(|how| step.strip_prefix(how))?;
    let (found, how) = found.split_once(' ').unwrap_or((found, ""));
    // A scan along an index ends as soon as enough rows are found.
    (!how.contains("INDEX")).then_some(found)
}

/// Whether `name` is a table of the history, or an alias of one in this statement.
fn is_history(text: &str, name: &str) -> bool {
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let is_alias = |pair: &[&str]| HISTORY_TABLES.contains(&pair[0]) && pair[1] == name;
    HISTORY_TABLES.contains(&name) || words.windows(2).any(is_alias)
}
