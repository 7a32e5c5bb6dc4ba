//! The planner must not choose: whatever the statistics say, each statement reaches its tables by the
//! index that was made for it, and a run is updated in place. Statements are looked at as the store
//! prepares them, in sessions of the store's own pools.

mod given;
mod mysql;
mod plan;
mod sqlite;
mod table;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::db::connect::Pools;
use crate::db::session::Session;
use crate::db::sql::{Dialect, Sql, translate};
use crate::db::{Db, params};
use given::Place;
use plan::{Prepared, run};
use table::PLANS;

/// The doctor reads whole tables and has the planner choose; migrations read a table of a few rows.
const FOLDERS_OF_OTHERS: [&str; 2] = ["doctor", "migration"];

#[tokio::test]
async fn every_statement_goes_by_its_index_whatever_the_statistics_say() {
    let mut place = Place::new().await;
    let mut statements = Vec::new();
    for (name, text) in files("postgres") {
        // The store also asks without it, where no conflict is possible.
        let plain = text.replace("on conflict do nothing", "");
        for text in BTreeSet::from([text, plain]) {
            let ready = translate(name, &text, Dialect::Postgres, false);
            statements.push(Prepared::new(&mut place.session, ready).await);
        }
    }
    let mut wrong = Vec::new();
    for (situation, before) in [
        ("never analyzed", ""),
        ("analyzed when empty, then a burst", given::BURST),
        ("analyzed when full, then drained", given::DRAIN),
        ("analyzed with a long history and short queues", ""),
    ] {
        run(&mut place.session, before).await;
        let Pools::Postgres(hand) = Pools::open(&place.url, 1).await.unwrap() else {
            panic!("the URL is not PostgreSQL's");
        };
        let mut session = hand.take(None).await.unwrap();
        for statement in &statements {
            let found = statement.plan(&mut session).await;
            if !wanted(statement.name).contains(&found) {
                wrong.push(format!("{situation}: {} goes {found:?}", statement.name));
            }
        }
        drop(session);
        hand.close().await;
        run(&mut place.session, "analyze").await;
    }
    place.remove().await;
    assert!(wrong.is_empty(), "not as in the table:\n{}", wrong.join("\n"));
}

/// A statement that is not in the table would be one that nobody looks at.
#[test]
fn every_statement_is_in_the_table() {
    let there: BTreeSet<&str> = files("postgres").into_keys().collect();
    let listed: BTreeSet<&str> =
        PLANS.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let odd: Vec<_> = there.symmetric_difference(&listed).collect();
    assert!(odd.is_empty(), "a file without a plan, or a plan without a file: {odd:?}");
}

/// The doctor looks at whole tables: its transactions leave the choice to the planner.
#[tokio::test]
async fn a_look_has_the_planner_choose() {
    static CHANGED: Sql = Sql::new(
        "changed",
        ["select count(*) as changed from pg_settings
           where (name like 'enable\\_%' or name = 'plan_cache_mode') and setting <> boot_val";
            3],
    );
    let place = Place::new().await;
    let db = Db::open(&place.url, 1).await.unwrap();
    let mut look = db.look().await.unwrap();
    let changed = look.rows(&CHANGED, params! {}).await.unwrap()[0].int("changed").unwrap();
    look.rollback().await.unwrap();
    assert_eq!(changed, 0, "settings that are not the planner's own");
    let changed = db.rows(&CHANGED, params! {}).await.unwrap()[0].int("changed").unwrap();
    assert!(changed > 0, "and afterwards the session goes by index again");
    db.close().await;
    place.remove().await;
}

/// Planned once, as long as one who has planned it is free.
#[tokio::test]
async fn a_statement_goes_to_the_session_that_has_said_it() {
    static ONE: Sql = Sql::new("one", ["select pg_backend_pid() as pid"; 3]);
    static OTHER: Sql = Sql::new("other", ["select pg_backend_pid() as pid, 1 as other"; 3]);
    let place = Place::new().await;
    let db = Db::open(&place.url, 2).await.unwrap();
    let on = async |sql| db.rows(sql, params! {}).await.unwrap()[0].int("pid").unwrap();
    let first = on(&ONE).await;
    let Pools::Postgres(hand) = db.pools() else { panic!("the URL is not PostgreSQL's") };
    let busy = Session::take(hand).await.unwrap();
    let second = on(&OTHER).await;
    assert_ne!(first, second, "the one that was used last was busy");
    drop(busy);
    assert_eq!((on(&OTHER).await, on(&ONE).await, on(&OTHER).await), (second, first, second));
    db.close().await;
    place.remove().await;
}

fn wanted(statement: &str) -> Vec<BTreeSet<String>> {
    let listed = PLANS.iter().filter(|(_, names)| names.split_whitespace().any(|n| n == statement));
    listed.map(|(ways, _)| ways.iter().map(ToString::to_string).collect()).collect()
}

/// The files of statements that one database is given, by name.
fn files(of: &str) -> BTreeMap<&'static str, String> {
    files_but(of, &FOLDERS_OF_OTHERS)
}

/// The same but for some folders.
fn files_but(of: &str, others: &[&str]) -> BTreeMap<&'static str, String> {
    let mut files = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    for folder in root.read_dir().unwrap().map(Result::unwrap) {
        let folder_name = folder.file_name().into_string().unwrap();
        if others.contains(&&*folder_name) {
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
                Some(database) if database == of => drop(files.insert(name, text)),
                // Where a database has a file of its own, that one counts.
                None => drop(files.entry(name).or_insert(text)),
                Some(_) => {}
            }
        }
    }
    files
}
