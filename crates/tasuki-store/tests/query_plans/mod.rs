//! Tests of query plans: each statement uses the index that was created for it, whatever the statistics of the tables
//! are, and updates of runs change no index. The statements are planned as the store prepares them, on connections of
//! the store's own pools.

mod expected;
mod explain;
mod fixture;
mod hot_updates;
mod mysql_scans;
mod sqlite_scans;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::db::connect::Pools;
use crate::db::connection_in_use::ServerConnection;
use crate::db::sql::{Dialect, Sql, translate};
use crate::db::{Db, params};
use expected::EXPECTED_PLANS;
use explain::{Prepared, execute};
use fixture::TestDatabase;

/// Folders without expected plans: the doctor reads whole tables and leaves the choice to the planner, and migrations
/// read a table with a few rows.
const EXCLUDED_FOLDERS: [&str; 2] = ["doctor", "migration"];

#[tokio::test]
async fn every_statement_uses_its_index_whatever_the_statistics_are() {
    let mut database = TestDatabase::new().await;
    let mut statements = Vec::new();
    for (name, text) in files("postgres") {
        // The store also sends the statement without this clause, where no conflict is possible.
        let plain = text.replace("on conflict do nothing", "");
        for text in BTreeSet::from([text, plain]) {
            let statement = translate(name, &text, Dialect::Postgres, false);
            statements.push(Prepared::new(&mut database.connection, statement).await);
        }
    }
    let mut wrong = Vec::new();
    for (situation, before) in [
        ("never analyzed", ""),
        ("analyzed when empty, then a burst", fixture::FILL_TABLES),
        ("analyzed when full, then drained", fixture::DRAIN_QUEUES),
        ("analyzed with a long history and short queues", ""),
    ] {
        execute(&mut database.connection, before).await;
        let Pools::Postgres(cache) = Pools::open(&database.url, 1).await.unwrap() else {
            panic!("the URL is not a PostgreSQL URL");
        };
        let mut connection = cache.acquire(None).await.unwrap();
        for statement in &statements {
            let found = statement.access_paths(&mut connection).await;
            if !expected_paths(statement.name).contains(&found) {
                wrong.push(format!("{situation}: {} uses {found:?}", statement.name));
            }
        }
        drop(connection);
        cache.close().await;
        execute(&mut database.connection, "analyze").await;
    }
    database.remove().await;
    assert!(wrong.is_empty(), "plans differ from the expected ones:\n{}", wrong.join("\n"));
}

/// Without this test, a new statement could be forgotten in the table of expected plans.
#[test]
fn every_statement_has_an_expected_plan() {
    let existing: BTreeSet<&str> = files("postgres").into_keys().collect();
    let listed: BTreeSet<&str> =
        EXPECTED_PLANS.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let mismatches: Vec<_> = existing.symmetric_difference(&listed).collect();
    assert!(
        mismatches.is_empty(),
        "files without an expected plan, or plans without a file: {mismatches:?}"
    );
}

/// The doctor reads whole tables, so read transactions use PostgreSQL's default planner settings.
#[tokio::test]
async fn a_read_transaction_uses_the_default_planner_settings() {
    static CHANGED: Sql = Sql::new(
        "changed",
        ["select count(*) as changed from pg_settings
           where (name like 'enable\\_%' or name = 'plan_cache_mode') and setting <> boot_val";
            3],
    );
    let database = TestDatabase::new().await;
    let db = Db::open(&database.url, 1).await.unwrap();
    let mut read = db.begin_read().await.unwrap();
    let changed = read.query(&CHANGED, params! {}).await.unwrap()[0].int("changed").unwrap();
    read.rollback().await.unwrap();
    assert_eq!(changed, 0, "number of planner settings that differ from the default");
    let changed = db.query(&CHANGED, params! {}).await.unwrap()[0].int("changed").unwrap();
    assert!(changed > 0, "afterwards the connection has its own planner settings again");
    db.close().await;
    database.remove().await;
}

/// A statement is planned only once, as long as a connection that has planned it is free.
#[tokio::test]
async fn a_statement_uses_the_connection_that_has_prepared_it() {
    static ONE: Sql = Sql::new("one", ["select pg_backend_pid() as pid"; 3]);
    static OTHER: Sql = Sql::new("other", ["select pg_backend_pid() as pid, 1 as other"; 3]);
    let database = TestDatabase::new().await;
    let db = Db::open(&database.url, 2).await.unwrap();
    let pid_of = async |sql| db.query(sql, params! {}).await.unwrap()[0].int("pid").unwrap();
    let first = pid_of(&ONE).await;
    let Pools::Postgres(cache) = db.pools() else { panic!("the URL is not a PostgreSQL URL") };
    let busy = ServerConnection::acquire(cache).await.unwrap();
    let second = pid_of(&OTHER).await;
    assert_ne!(first, second, "the first connection is busy");
    drop(busy);
    assert_eq!(
        (pid_of(&OTHER).await, pid_of(&ONE).await, pid_of(&OTHER).await),
        (second, first, second)
    );
    db.close().await;
    database.remove().await;
}

fn expected_paths(statement: &str) -> Vec<BTreeSet<String>> {
    let listed =
        EXPECTED_PLANS.iter().filter(|(_, names)| names.split_whitespace().any(|n| n == statement));
    listed.map(|(paths, _)| paths.iter().map(ToString::to_string).collect()).collect()
}

/// The statement files of one database by name, without the excluded folders.
fn files(dialect: &str) -> BTreeMap<&'static str, String> {
    files_except(dialect, &EXCLUDED_FOLDERS)
}

/// The statement files of one database by name, without these folders.
fn files_except(dialect: &str, excluded: &[&str]) -> BTreeMap<&'static str, String> {
    let mut files = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    for folder in root.read_dir().unwrap().map(Result::unwrap) {
        let folder_name = folder.file_name().into_string().unwrap();
        if excluded.contains(&&*folder_name) {
            continue;
        }
        for file in folder.path().read_dir().unwrap().map(Result::unwrap) {
            let file_name = file.file_name().into_string().unwrap();
            let (name, database) = file_name
                .strip_suffix(".sql")
                .unwrap()
                .split_once('.')
                .map_or((file_name.trim_end_matches(".sql"), None), |(name, database)| {
                    (name, Some(database))
                });
            let text = std::fs::read_to_string(file.path()).unwrap();
            let name: &'static str = format!("{folder_name}/{name}").leak();
            match database {
                Some(database) if database == dialect => drop(files.insert(name, text)),
                // A file for one database replaces the shared file.
                None => drop(files.entry(name).or_insert(text)),
                Some(_) => {}
            }
        }
    }
    files
}
