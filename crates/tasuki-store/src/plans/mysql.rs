//! What a write reads it locks on InnoDB, also what it does not want: a statement that goes through a
//! whole table, because there are few rows in it, waits for everybody, and two of them for each other.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};

use super::files;
use crate::Store;
use crate::sql::{Dialect, translate};

/// These look at all workers, now and then.
const OF_ALL: [&str; 2] = ["worker/delete", "worker/forget"];

#[tokio::test]
async fn no_write_on_mysql_goes_through_a_table_however_few_rows_it_has() {
    let server = std::env::var("TASUKI_TEST_MYSQL")
        .expect("TASUKI_TEST_MYSQL is not set: run ./test, which starts the server");
    let name = format!("tasuki_plans_{}", std::process::id());
    let mut admin = MySqlConnection::connect(&server).await.unwrap();
    run(&mut admin, &format!("drop database if exists {name}")).await;
    run(&mut admin, &format!("create database {name}")).await;
    let (start, _) = server.rsplit_once('/').unwrap();
    let url = format!("{start}/{name}");
    let store = Store::open(&url, 1).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut session = MySqlConnection::connect(&url).await.unwrap();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (situation, before) in [("empty", "do 0"), ("a few rows", FEW)] {
        run(&mut session, before).await;
        for (name, text) in writes() {
            let found = whole_tables(&mut session, &text).await;
            seen += 1;
            if found.is_empty() == OF_ALL.contains(&name) {
                wrong.push(format!("{situation}: {name} goes through {found:?}"));
            }
        }
    }
    session.close().await.unwrap();
    run(&mut admin, &format!("drop database {name}")).await;
    admin.close().await.unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "{seen} statements are too few to be all");
}

/// Everything that locks rows it finds, with values instead of parameters.
fn writes() -> BTreeMap<&'static str, String> {
    let locks = |text: &str| {
        text.starts_with("update") || text.starts_with("delete") || text.contains("for update")
    };
    let all = files("mysql").into_iter().map(|(name, text)| {
        let ready = translate(name, &text, Dialect::MySql, false);
        let mut parts = ready.text.split('?');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (part, name) in parts.zip(&ready.names) {
            text.push_str(match name.as_str() {
                _ if text.ends_with("limit ") => "10",
                "ids" => "'[1]'",
                "places" | "runs" | "ends" => "'[[1, 1]]'",
                // Good for a number, too, and no index on texts is of use for a number.
                _ => "'1'",
            });
            text.push_str(part);
        }
        (name, text)
    });
    all.filter(|(_, text)| locks(text)).collect()
}

/// The tables of which every row would be read.
async fn whole_tables(session: &mut MySqlConnection, text: &str) -> Vec<String> {
    let explain = sqlx::raw_sql(AssertSqlSafe(format!("explain {text}")));
    let rows = session.fetch_all(explain).await.unwrap_or_else(|error| panic!("{error}: {text}"));
    let word = |row: &sqlx::mysql::MySqlRow, column: &str| -> Option<String> {
        row.try_get_unchecked(column).unwrap()
    };
    let whole = rows.iter().filter(|row| {
        let is_list = word(row, "Extra").is_some_and(|extra| extra.contains("Table function"));
        !is_list && matches!(word(row, "type").as_deref(), Some("ALL" | "index"))
    });
    whole.filter_map(|row| word(row, "table")).collect()
}

async fn run(session: &mut MySqlConnection, text: &str) {
    let done = session.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await;
    done.unwrap_or_else(|error| panic!("{error}: {text}"));
}

const FEW: &str = "
insert into tasuki_job (id, name, trigger_type, created_at, updated_at)
    values (1, 'one', 'task', 1, 1), (2, 'two', 'task', 1, 1), (3, 'three', 'task', 1, 1);
insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive, origin,
        lane)
    select id, 1, 1, 1, 3, 3, 0, 'task', 'bulk' from tasuki_job;
insert into tasuki_due (lane, due_at, run_id, exclusive) select lane, scheduled_for, id, exclusive from tasuki_run;
insert into tasuki_event (event_type, dedupe_key) select 'sold', id from tasuki_run;
insert into tasuki_cursor (job_id, scope_id, next_fire) select id, id, 1 from tasuki_job";
