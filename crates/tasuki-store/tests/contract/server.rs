//! The database server itself is killed ten times under load: what it had said is so still is, and
//! everything else is something that may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tasuki_core::{Epoch, RunState};
use tasuki_store::{Dialect, Error, Store};
use tokio::task::JoinHandle;

use crate::busy::{Busy, Dice, Told, assert_clean};
use crate::private::Server;

const KILLS: u32 = 10;
const TASKS: usize = 4;

/// What the tasks of a load share with the one who kills.
#[derive(Default)]
struct Load {
    /// How many ends were acknowledged.
    ended: AtomicU64,
    /// How many calls got no answer.
    unanswered: AtomicU64,
    stop: AtomicBool,
}

/// Makes moves, whether the server is there or not, until it is told to stop.
async fn keep_busy(mut busy: Busy, load: Arc<Load>) -> Told {
    while !load.stop.load(Ordering::Relaxed) {
        let (ended, unanswered) = (busy.told.ended.len(), busy.unanswered);
        match busy.move_something().await {
            Ok(()) | Err(Error::Fenced(_)) => {}
            Err(error) if error.is_contention() => {}
            Err(error) if error.is_unavailable() => busy.unanswered += 1,
            Err(error) => panic!("{error}: {error:?}"),
        }
        load.ended.fetch_add((busy.told.ended.len() - ended) as u64, Ordering::Relaxed);
        load.unanswered.fetch_add(busy.unanswered - unanswered, Ordering::Relaxed);
    }
    busy.told
}

/// Waits until so many more ends are acknowledged.
async fn progress(load: &Load, tasks: &[JoinHandle<Told>], ends: u64) {
    let wanted = load.ended.load(Ordering::Relaxed) + ends;
    while load.ended.load(Ordering::Relaxed) < wanted {
        assert!(!tasks.iter().any(JoinHandle::is_finished), "a task of the load gave up");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What was acknowledged, before a crash or after the last one, is there.
async fn assert_kept(store: &Store, told: &Told) {
    for &run in &told.made {
        assert!(store.run(run).await.unwrap().is_some(), "run {run} was made and is gone");
    }
    for end in &told.ended {
        let run = store.run(end.run).await.unwrap().unwrap();
        let carried = run.state.is_carried() && run.token == Some(end.token);
        assert!(!carried, "run {} was {} and is {} again", run.id, end.state, run.state);
        if end.state == RunState::Succeeded {
            assert_eq!((run.state, run.token), (RunState::Succeeded, Some(end.token)));
        }
        // Whatever became of the run since, the same report finds its own ending.
        let again = store.finish(end.token, end.run, &end.finish).await.unwrap();
        assert!(again.is_applied(), "run {} was {}: {again:?}", run.id, end.state);
    }
}

fn the_server_killed_ten_times(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut server = Server::new(dialect).await;
        let store = Store::open(&server.url, 2).await.unwrap();
        store.migrate().await.unwrap();
        let load = Arc::new(Load::default());
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let busy = Busy::new(&server.url).await.unwrap();
            tasks.push(tokio::spawn(keep_busy(busy, Arc::clone(&load))));
        }
        let mut dice = Dice(std::process::id().into());
        for _ in 0..KILLS {
            progress(&load, &tasks, 20 + dice.roll(40)).await;
            server.kill();
            server.start().await;
        }
        progress(&load, &tasks, 20).await;
        load.stop.store(true, Ordering::Relaxed);
        let mut minted = Vec::new();
        for task in tasks {
            let told = task.await.unwrap();
            assert_kept(&store, &told).await;
            minted.extend(told.minted);
        }
        minted.sort_unstable();
        let terms: Vec<Epoch> =
            store.terms().await.unwrap().iter().map(|term| term.epoch).collect();
        assert!(minted.is_sorted_by(|one, next| one < next), "an epoch was minted twice");
        assert!(minted.iter().all(|epoch| terms.contains(epoch)), "a term is forgotten");
        let unanswered = load.unanswered.load(Ordering::Relaxed);
        assert!(unanswered > 0, "no call was under way when the server was killed");
        assert_clean(&store).await;
        store.close().await;
    });
}

#[test]
fn the_server_killed_ten_times_postgres() {
    the_server_killed_ten_times(Dialect::Postgres);
}

#[test]
fn the_server_killed_ten_times_mysql() {
    the_server_killed_ten_times(Dialect::MySql);
}
