//! The database server is killed ten times under load: every acknowledged write is still there, and the data is
//! consistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tasuki_core::{Epoch, RunState};
use tasuki_store::{AttemptReport, Dialect, Error, Store};
use tokio::task::JoinHandle;

use crate::private_server::PrivateServer;
use crate::random_load::{Acknowledged, RandomLoad, TestRandom, assert_doctor_clean};

const KILLS: u32 = 10;
const TASKS: usize = 4;

/// State that the load tasks share with the test that kills the server.
#[derive(Default)]
struct Load {
    /// Number of acknowledged reports.
    ended: AtomicU64,
    /// Number of calls that got no response.
    unanswered: AtomicU64,
    stop: AtomicBool,
}

/// Runs random operations until the stop flag is set, also while the server is down.
async fn run_load(mut client: RandomLoad, load: Arc<Load>) -> Acknowledged {
    while !load.stop.load(Ordering::Relaxed) {
        let (ended, unanswered) =
            (client.acknowledged.reported_ends.len(), client.unanswered_calls);
        match client.run_random_operation().await {
            Ok(()) | Err(Error::Fenced(_)) => {}
            Err(error) if error.is_contention() => {}
            Err(error) if error.is_unavailable() => client.unanswered_calls += 1,
            Err(error) => panic!("{error}: {error:?}"),
        }
        load.ended
            .fetch_add((client.acknowledged.reported_ends.len() - ended) as u64, Ordering::Relaxed);
        load.unanswered.fetch_add(client.unanswered_calls - unanswered, Ordering::Relaxed);
    }
    client.acknowledged
}

/// Waits until `ends` more reports are acknowledged.
async fn wait_for_reports(load: &Load, tasks: &[JoinHandle<Acknowledged>], ends: u64) {
    let target = load.ended.load(Ordering::Relaxed) + ends;
    while load.ended.load(Ordering::Relaxed) < target {
        assert!(!tasks.iter().any(JoinHandle::is_finished), "a load task has ended");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Asserts that every acknowledged write is in the database.
async fn assert_acknowledged_writes_exist(store: &Store, acknowledged: &Acknowledged) {
    for &run in &acknowledged.created {
        assert!(store.find_run(run).await.unwrap().is_some(), "run {run} was created and is gone");
    }
    for end in &acknowledged.reported_ends {
        let run = store.find_run(end.run).await.unwrap().unwrap();
        let held = run.state.is_leased() && run.token == Some(end.token);
        assert!(!held, "run {} was {} and is {} again", run.id, end.state, run.state);
        if end.state == RunState::Succeeded {
            assert_eq!((run.state, run.token), (RunState::Succeeded, Some(end.token)));
        }
        // Whatever happened to the run since, a repeated report is recognised.
        let report = AttemptReport::new(end.token, end.run, end.finish.clone());
        let again = store.finish(&[report], &[end.token]).await.unwrap().remove(0);
        assert!(again.is_applied(), "run {} was {}: {again:?}", run.id, end.state);
    }
}

fn kill_server_ten_times(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut server = PrivateServer::new(dialect).await;
        let store = Store::open(&server.url, 2).await.unwrap();
        store.migrate().await.unwrap();
        let load = Arc::new(Load::default());
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let client = RandomLoad::new(&server.url).await.unwrap();
            tasks.push(tokio::spawn(run_load(client, Arc::clone(&load))));
        }
        let mut random = TestRandom(std::process::id().into());
        for _ in 0..KILLS {
            wait_for_reports(&load, &tasks, 20 + random.below(40)).await;
            server.kill();
            server.start().await;
        }
        wait_for_reports(&load, &tasks, 20).await;
        load.stop.store(true, Ordering::Relaxed);
        let mut epochs = Vec::new();
        for task in tasks {
            let acknowledged = task.await.unwrap();
            assert_acknowledged_writes_exist(&store, &acknowledged).await;
            epochs.extend(acknowledged.epochs);
        }
        epochs.sort_unstable();
        let terms: Vec<Epoch> =
            store.list_terms().await.unwrap().iter().map(|term| term.epoch).collect();
        assert!(epochs.is_sorted_by(|one, next| one < next), "an epoch was used twice");
        assert!(epochs.iter().all(|epoch| terms.contains(epoch)), "a term is missing");
        let unanswered = load.unanswered.load(Ordering::Relaxed);
        assert!(unanswered > 0, "no call was running when the server was killed");
        assert_doctor_clean(&store).await;
        store.close().await;
    });
}

#[test]
fn acknowledged_writes_survive_server_crashes_postgres() {
    kill_server_ten_times(Dialect::Postgres);
}

#[test]
fn acknowledged_writes_survive_server_crashes_mysql() {
    kill_server_ten_times(Dialect::MySql);
}
