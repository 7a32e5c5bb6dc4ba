//! A process that runs random operations in a loop is killed fifty times at random moments. The database must be
//! consistent after each kill.

use std::process::{Command, Stdio};
use std::time::Duration;

use tasuki_core::RunId;
use tasuki_store::{Dialect, Store};

use crate::fixtures::TestDatabase;
use crate::random_load::{RandomLoad, TestRandom, assert_doctor_clean};

const KILLS: u64 = 50;
const URL: &str = "TASUKI_TEST_CRASH_URL";

/// The child process that [`kill_at_random_moments`] kills. Without the environment variable it is a test of its own:
/// random operations leave a consistent database.
#[test]
fn random_operations_leave_a_consistent_database() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if let Ok(url) = std::env::var(URL) {
            RandomLoad::new(&url).await.unwrap().run_operations(u64::MAX).await;
        }
        let place = TestDatabase::new(Dialect::Sqlite).await;
        let store = Store::open(&place.url, 1).await.unwrap();
        store.migrate().await.unwrap();
        RandomLoad::new(&place.url).await.unwrap().run_operations(300).await;
        assert_doctor_clean(&store).await;
        store.close().await;
        place.remove().await;
    });
}

async fn newest_run(store: &Store) -> Option<RunId> {
    store.list_runs(&Default::default(), None, 1).await.unwrap().runs.first().map(|run| run.id)
}

fn kill_at_random_moments(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = TestDatabase::new(dialect).await;
        let store = Store::open(&place.url, 2).await.unwrap();
        store.migrate().await.unwrap();
        let mut random = TestRandom(std::process::id().into());
        for round in 0..KILLS {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["process_crash::random_operations_leave_a_consistent_database", "--exact"])
                .env(URL, &place.url)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // The child runs until it has created a run, and then for a random time.
            let before = newest_run(&store).await;
            while newest_run(&store).await == before {
                assert!(
                    child.try_wait().unwrap().is_none(),
                    "the child ended before the kill in round {round}"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(random.below(200))).await;
            assert!(
                child.try_wait().unwrap().is_none(),
                "the child ended before the kill in round {round}"
            );
            child.kill().unwrap();
            child.wait().unwrap();
            if round % 10 == 9 {
                assert_doctor_clean(&store).await;
            }
        }
        assert_doctor_clean(&store).await;
        store.close().await;
        place.remove().await;
    });
}

#[test]
fn a_killed_process_leaves_a_consistent_database_sqlite() {
    kill_at_random_moments(Dialect::Sqlite);
}

#[test]
fn a_killed_process_leaves_a_consistent_database_postgres() {
    kill_at_random_moments(Dialect::Postgres);
}

#[test]
fn a_killed_process_leaves_a_consistent_database_mysql() {
    kill_at_random_moments(Dialect::MySql);
}
