//! On InnoDB a write locks every row that it reads, even rows that do not match. So a write that scans a table (the
//! optimizer prefers a scan if the table has few rows) waits for all other transactions, and two of them deadlock.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

use super::files;
use crate::Store;
use crate::db::sql::{Dialect, translate};

/// Statements that may read all workers, because they run rarely.
const SCANS_ALL_WORKERS: [&str; 2] = ["worker/delete_gone", "worker/mark_silent_gone"];
const WORKER_TABLES: [&str; 2] = ["tasuki_worker", "o"];

#[tokio::test]
async fn no_write_on_mysql_scans_a_table_however_few_rows_it_has() {
    let mut database = TestDatabase::new("plans").await;
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (situation, before) in [("empty", "do 0"), ("a few rows", FEW_ROWS)] {
        run(&mut database.connection, before).await;
        for (name, text) in locking_statements() {
            let mut found = scanned_tables(&mut database.connection, &text).await;
            checked += 1;
            if SCANS_ALL_WORKERS.contains(&name) {
                found.retain(|table| !WORKER_TABLES.contains(&&**table));
            }
            if !found.is_empty() {
                wrong.push(format!("{situation}: {name} scans {found:?}"));
            }
        }
    }
    database.remove().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 100, "only {checked} statements were checked");
}

/// In the row format of the table of runs, a row must fit into half a page, except for the long part of its texts.
#[tokio::test]
async fn the_longest_run_fits_into_a_page_of_mysql() {
    let mut database = TestDatabase::new("longest").await;
    let (name, kind, text) = ("\u{1f3ee}".repeat(191), "\u{1f3ee}".repeat(100), "x".repeat(65_536));
    let (text_64, text_16) = ("x".repeat(64), "x".repeat(16));
    run(
        &mut database.connection,
        &format!(
            "insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive,
                 origin, scope_kind, scope_id, lane, slot, idempotency_key, args)
             values (1, 1, 1, 1, 3, 3, 0, 'time', '{kind}', '{name}', '{name}', '{text_64}', '{name}', '{text}');
             update tasuki_run set event_id = 1, rerun_of = 1, next_retry_at = 1, skip_at = 1, expires_at = 1, worker_id = '{text_16}',
                 lease_token = '{text_16}', epoch = 1, assigned_at = 1, start_by = 1, started_at = 1, cancel_requested_at = 1,
                 cancel_requested_by = '{name}', continuation = 'CONFIRMING', continuation_started_at = 1,
                 continuation_deadline = 1, finished_at = 1, failed_at = 1, state = 'CANCELED', outcome = 'CANCELED', exit_code = 1,
                 exit_signal = 1, error_code = '{text_64}', error_message = '{text}', result = '{text}', rows_affected = 1,
                 log_ref = '{text}', reason = '{text}'"
        ),
    )
    .await;
    database.remove().await;
}

/// A migrated database, with a connection that does not belong to a store.
struct TestDatabase {
    connection: MySqlConnection,
    admin: MySqlConnection,
    name: String,
}

impl TestDatabase {
    async fn new(test: &str) -> Self {
        let server = std::env::var("TASUKI_TEST_MYSQL")
            .expect("TASUKI_TEST_MYSQL is not set: run ./test, which starts the server");
        let name = format!("tasuki_{test}_{}", std::process::id());
        let mut admin = MySqlConnection::connect(&server).await.unwrap();
        run(&mut admin, &format!("drop database if exists {name}")).await;
        run(&mut admin, &format!("create database {name}")).await;
        let (start, _) = server.rsplit_once('/').unwrap();
        let url = format!("{start}/{name}");
        let store = Store::open(&url, 1).await.unwrap();
        store.migrate().await.unwrap();
        store.close().await;
        let connection = MySqlConnection::connect(&url).await.unwrap();
        Self { connection, admin, name }
    }

    async fn remove(mut self) {
        self.connection.close().await.unwrap();
        run(&mut self.admin, &format!("drop database {}", self.name)).await;
        self.admin.close().await.unwrap();
    }
}

/// All statements that lock the rows they read, with values instead of parameters.
fn locking_statements() -> BTreeMap<&'static str, String> {
    let locks = |text: &str| {
        let lock_clauses = ["for update", "lock in share mode"];
        let is_write = text.starts_with("update") || text.starts_with("delete");
        is_write || lock_clauses.iter().any(|clause| text.contains(clause))
    };
    let all = files("mysql").into_iter().map(|(name, text)| {
        let statement = translate(name, &text, Dialect::MySql, false);
        let mut parts = statement.text.split('?');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (part, name) in parts.zip(&statement.param_names) {
            text.push_str(match name.as_str() {
                _ if text.ends_with("limit ") => "10",
                "ids" => "'[1]'",
                // Includes most of the rows, so that the optimizer is tempted to scan.
                "last" => "'3'",
                "lane" => "'bulk'",
                "due_rows" | "positions" | "runs" | "reports" => "'[[1, 1]]'",
                // A text works for numeric columns too, but a number would not work for an index on a text column.
                _ => "'1'",
            });
            text.push_str(part);
        }
        (name, text)
    });
    all.filter(|(_, text)| locks(text)).collect()
}

/// The tables that the plan of the statement scans completely.
async fn scanned_tables(connection: &mut MySqlConnection, text: &str) -> Vec<String> {
    let explain = sqlx::raw_sql(AssertSqlSafe(format!("explain {text}")));
    let rows =
        connection.fetch_all(explain).await.unwrap_or_else(|error| panic!("{error}: {text}"));
    let column = |row: &sqlx::mysql::MySqlRow, name: &str| -> Option<String> {
        row.try_get_unchecked(name).unwrap()
    };
    let whole = rows.iter().filter(|row| {
        let is_list = column(row, "Extra").is_some_and(|extra| extra.contains("Table function"));
        // A locking select does not lock the rows that its subqueries read.
        let part = column(row, "select_type").unwrap_or_default();
        let is_subquery = text.starts_with("select") && !matches!(&*part, "PRIMARY" | "SIMPLE");
        !is_list && !is_subquery && matches!(column(row, "type").as_deref(), Some("ALL" | "index"))
    });
    whole.filter_map(|row| column(row, "table")).collect()
}

async fn run(connection: &mut MySqlConnection, text: &str) {
    let done = connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    done.unwrap_or_else(|error| panic!("{error}: {text}"));
}

const FEW_ROWS: &str = "
insert into tasuki_job (id, name, trigger_type, created_at, updated_at)
    values (1, 'one', 'task', 1, 1), (2, 'two', 'task', 1, 1), (3, 'three', 'task', 1, 1);
insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive, origin,
        lane)
    select id, 1, 1, 1, 3, 3, 0, 'task', 'bulk' from tasuki_job;
insert into tasuki_due (lane, due_at, run_id, exclusive) select lane, scheduled_for, id, exclusive from tasuki_run;
insert into tasuki_event (event_type, dedupe_key) select 'sold', id from tasuki_run;
insert into tasuki_cursor (job_id, scope_id, next_fire) select id, id, 1 from tasuki_job;
insert into tasuki_worker (id, node, slots, function_slots, started_at, heartbeat_at)
    select unhex(md5(id)), 'node', 8, 8, 1, 1 from tasuki_job;
insert into tasuki_lease (token, worker_id, lease_until, heartbeat_at, run_ids)
    select unhex(md5(id)), unhex(md5(id)), 1, 1, concat('[', id, ']') from tasuki_run;
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select job_id, scope_kind, scope_id, id, unhex(md5(id)) from tasuki_run;
insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at, finished_at)
    select id, 1, 'FAILED', unhex(md5(id)), unhex(md5(id)), 1, 1, 1, 1 from tasuki_run;
insert into tasuki_run_note (run_id, attempt_no, verb, actor, at) select id, 1, 'cancel', 'test', 1 from tasuki_run;
insert into tasuki_log (run_id, attempt_no) select id, 1 from tasuki_run;
insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
    select id, 1, 0, 0, 1, 'line' from tasuki_run;
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
    select id, id, 'SUCCEEDED', unhex(md5(id)), 0, 1, 1, 1 from tasuki_job;
insert into tasuki_api_token (name, token_hash, role, created_at, created_by)
    select name, unhex(sha2(id, 256)), 'viewer', 1, 'test' from tasuki_job";
