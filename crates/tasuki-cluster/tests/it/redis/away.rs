//! A Redis that is away: every call comes back, and most of them at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tasuki::node::coordination::coordinate::Coordinator;
use tasuki_core::{Epoch, RunId};
use tasuki_store::News;
use tokio::net::{TcpListener, TcpStream};

use super::place::{LONG, eventually, new_worker, presence, redis};
use super::servers::{PASSWORD, Server};

/// Nobody tries for so long after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Somebody who answers the door and then does this with whoever came. Counts them.
async fn doorkeeper(then: impl Fn(TcpStream) + Send + 'static) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let came = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&came);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            then(stream);
        }
    });
    (url, came)
}

/// Calls until somebody came to the door so often. Every call is refused.
async fn calls_until(place: &dyn Coordinator, came: &AtomicU64, often: u64) -> u64 {
    let began = Instant::now();
    let mut calls = 0;
    while came.load(Ordering::Relaxed) < often {
        assert!(place.stand(new_worker(), LONG).await.is_err());
        calls += 1;
        tokio::task::yield_now().await;
    }
    // However slow the machine: between two who came there was a pause.
    let pauses = (began.elapsed().as_millis() / PAUSE.as_millis()) as u64;
    assert!(often <= pauses + 1, "{often} came in {pauses} pauses");
    calls
}

/// One caller in a while finds out; all others are refused at once, which is why there are so many.
#[tokio::test]
async fn few_calls_reach_a_server_that_hangs_up() {
    let (url, came) = doorkeeper(drop).await;
    let place = redis(&url, "tasuki").0;
    let calls = calls_until(&place, &came, 4).await;
    assert!(calls > 100, "only {calls} calls while 4 found out");
}

/// While one caller waits for a server that takes connections and never answers, the others are refused.
#[tokio::test]
async fn one_caller_waits_for_a_server_that_hangs() {
    let kept = std::sync::Mutex::new(Vec::new());
    let (url, came) = doorkeeper(move |stream| kept.lock().unwrap().push(stream)).await;
    let place = redis(&url, "tasuki").0;
    // At first all wait for the one who tries; nothing is known to be wrong.
    let many = (0..100).map(|_| place.stand(new_worker(), LONG));
    assert!(join_all(many).await.iter().all(Result::is_err));
    let tried = eventually("the pause is over", async || {
        let many = (0..100).map(|_| place.stand(new_worker(), LONG));
        // In the order in which they come back.
        let refused: Vec<_> = many.collect::<FuturesUnordered<_>>().collect().await;
        let refused = refused.into_iter().map(|refused| refused.unwrap_err().to_string());
        let tried = refused.enumerate().filter(|(_, said)| !said.contains("a moment ago"));
        let tried: Vec<usize> = tried.map(|(place, _)| place).collect();
        (!tried.is_empty()).then_some(tried)
    });
    assert_eq!(tried.await, [99], "one tries, and nobody waits for it");
    // Hundreds of calls, and these came to the door.
    eventually("both came", async || (came.load(Ordering::Relaxed) == 2).then_some(())).await;
}

/// Every call says that it could not be asked; none hangs, none panics, none pretends.
#[tokio::test]
async fn every_call_is_refused() {
    let mut server = Server::standalone();
    server.kill();
    let place = redis(&server.url(), "tasuki").0;
    let worker = new_worker();
    let shown = presence(worker, "east");
    for _ in 0..3 {
        assert!(place.stand(worker, LONG).await.is_err());
        assert!(place.leads(worker, Epoch(1), LONG).await.is_err());
        assert!(place.resigns(worker).await.is_err());
        assert!(place.leader_seen().await.is_err());
        assert!(place.degrade(worker, Epoch(1)).await.is_err());
        assert!(place.watch(worker, &shown.node, LONG).await.is_err());
        assert!(place.show(&shown, LONG).await.is_err());
        assert!(place.hide(worker).await.is_err());
        assert!(place.detach(worker, LONG).await.is_err());
        assert!(place.carries(worker, &[RunId(1)], LONG).await.is_err());
        assert!(place.tell(News::default()).await.is_err());
        assert!(place.listen().await.is_err());
    }
    server.start();
    eventually("it is back", async || place.stand(worker, LONG).await.ok()).await;
}

/// A connection that was good goes silent: whoever is under way is answered in time, and when the server goes on,
/// so do we.
#[tokio::test]
async fn a_server_that_freezes_and_thaws() {
    let server = Server::standalone();
    let patient = redis(&server.url(), "tasuki");
    let (place, worker) = (patient.0.clone(), new_worker());
    patient.leads(worker, Epoch(2), LONG).await.unwrap();
    server.freeze();
    let shown = presence(worker, "east");
    let many = (0..50).map(|_| place.show(&shown, LONG));
    assert!(join_all(many).await.iter().all(Result::is_err));
    assert!(place.leader_seen().await.is_err());
    server.thaw();
    assert_eq!(patient.stand(worker, LONG).await.unwrap(), Some(Epoch(2)));
    // Clients that were given up are gone: one connection is ours, one asks.
    eventually("the old connection is closed", async || {
        (server.ask::<String>(&["INFO", "clients"]).contains("connected_clients:2\r")).then_some(())
    })
    .await;
}

/// A server that became a replica refuses to write; the connection is given up, for the primary is elsewhere.
#[tokio::test]
async fn a_server_that_became_a_replica_is_left() {
    let server = Server::standalone();
    let patient = redis(&server.url(), "tasuki");
    let (place, worker) = (patient.0.clone(), new_worker());
    patient.leads(worker, Epoch(2), LONG).await.unwrap();
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually("it refuses to write", async || {
        let refused = place.leads(worker, Epoch(2), LONG).await.unwrap_err().to_string();
        assert!(!refused.contains(PASSWORD));
        refused.contains("read only replica").then_some(())
    })
    .await;
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    patient.leads(worker, Epoch(2), LONG).await.unwrap();
}
