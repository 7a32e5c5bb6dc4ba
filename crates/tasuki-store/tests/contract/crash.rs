//! A process that makes moves in a loop is killed at any moment, fifty times: what it leaves behind
//! is always something that may be.

use std::process::{Command, Stdio};
use std::time::Duration;

use tasuki_core::RunId;
use tasuki_store::{Dialect, Store};

use crate::busy::{Busy, Dice, assert_clean};
use crate::given::Place;

const KILLS: u64 = 50;
const URL: &str = "TASUKI_TEST_CRASH_URL";

/// What is run as a process of its own and killed; by itself it must leave a clean database too.
#[test]
fn a_bit_of_everything_leaves_a_clean_database() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if let Ok(url) = std::env::var(URL) {
            Busy::new(&url).await.unwrap().work(u64::MAX).await;
        }
        let place = Place::new(Dialect::Sqlite).await;
        let store = Store::open(&place.url, 1).await.unwrap();
        store.migrate().await.unwrap();
        Busy::new(&place.url).await.unwrap().work(300).await;
        assert_clean(&store).await;
        store.close().await;
        place.remove().await;
    });
}

async fn newest(store: &Store) -> Option<RunId> {
    store.runs(&Default::default(), None, 1).await.unwrap().runs.first().map(|run| run.id)
}

fn killed_at_any_moment(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new(dialect).await;
        let store = Store::open(&place.url, 2).await.unwrap();
        store.migrate().await.unwrap();
        let mut dice = Dice(std::process::id().into());
        for round in 0..KILLS {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["crash::a_bit_of_everything_leaves_a_clean_database", "--exact"])
                .env(URL, &place.url)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // It lives until it has made a run, and then for as long as chance will have it.
            let before = newest(&store).await;
            while newest(&store).await == before {
                assert!(child.try_wait().unwrap().is_none(), "it ended by itself in round {round}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(dice.roll(200))).await;
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself in round {round}");
            child.kill().unwrap();
            child.wait().unwrap();
            if round % 10 == 9 {
                assert_clean(&store).await;
            }
        }
        assert_clean(&store).await;
        store.close().await;
        place.remove().await;
    });
}

#[test]
fn killed_at_any_moment_sqlite() {
    killed_at_any_moment(Dialect::Sqlite);
}

#[test]
fn killed_at_any_moment_postgres() {
    killed_at_any_moment(Dialect::Postgres);
}

#[test]
fn killed_at_any_moment_mysql() {
    killed_at_any_moment(Dialect::MySql);
}
