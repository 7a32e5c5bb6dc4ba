//! Outages of Redis: every call returns an error, and most of them immediately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tasuki::node::coordination::coordinator_trait::Coordinator;
use tasuki_core::{Epoch, RunId};
use tasuki_store::Notification;
use tokio::net::{TcpListener, TcpStream};

use super::fixtures::{LONG, eventually, new_worker, presence, redis};
use super::servers::{PASSWORD, RedisServer};

/// Backoff of the coordinator after a failed connection.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

/// Starts a server that accepts connections and passes them to a function. Returns its URL and the number of connections.
async fn start_fake_server(
    handle: impl Fn(TcpStream) + Send + 'static,
) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            handle(stream);
        }
    });
    (url, connections)
}

/// Calls until the server has this many connections; every call must fail. Returns the number of calls.
async fn call_until_connections(
    coordinator: &dyn Coordinator,
    connections: &AtomicU64,
    expected: u64,
) -> u64 {
    let began = Instant::now();
    let mut calls = 0;
    while connections.load(Ordering::Relaxed) < expected {
        assert!(coordinator.acquire_election_lock(new_worker(), LONG).await.is_err());
        calls += 1;
        tokio::task::yield_now().await;
    }
    // On every machine, however slow, there is a backoff between two connections.
    let backoffs = (began.elapsed().as_millis() / RECONNECT_BACKOFF.as_millis()) as u64;
    assert!(expected <= backoffs + 1, "{expected} connections in {backoffs} backoffs");
    calls
}

/// Only one caller at a time connects, after the backoff; all others are refused immediately, so there are many calls.
#[tokio::test]
async fn few_calls_reach_a_server_that_closes_connections() {
    let (url, connections) = start_fake_server(drop).await;
    let coordinator = redis(&url, "tasuki").0;
    let calls = call_until_connections(&coordinator, &connections, 4).await;
    assert!(calls > 100, "only {calls} calls for 4 connections");
}

/// While one caller waits for a server that accepts connections but never responds, the others are refused.
#[tokio::test]
async fn one_caller_waits_for_a_server_that_hangs() {
    let open_streams = std::sync::Mutex::new(Vec::new());
    let (url, connections) =
        start_fake_server(move |stream| open_streams.lock().unwrap().push(stream)).await;
    let coordinator = redis(&url, "tasuki").0;
    // No failure is known at first, so all callers wait for the one that connects.
    let many = (0..100).map(|_| coordinator.acquire_election_lock(new_worker(), LONG));
    assert!(join_all(many).await.iter().all(Result::is_err));
    let connecting = eventually("the backoff is over", async || {
        let many = (0..100).map(|_| coordinator.acquire_election_lock(new_worker(), LONG));
        // In the order in which the calls return.
        let refused: Vec<_> = many.collect::<FuturesUnordered<_>>().collect().await;
        let refused = refused.into_iter().map(|refused| refused.unwrap_err().to_string());
        let connecting =
            refused.enumerate().filter(|(_, message)| !message.contains("a moment ago"));
        let connecting: Vec<usize> = connecting.map(|(position, _)| position).collect();
        (!connecting.is_empty()).then_some(connecting)
    });
    assert_eq!(connecting.await, [99], "one caller connects, and no other waits for it");
    // Hundreds of calls, but only two connections.
    eventually("there are two connections", async || {
        (connections.load(Ordering::Relaxed) == 2).then_some(())
    })
    .await;
}

/// Every call returns an error; none hangs, panics or returns a false result.
#[tokio::test]
async fn every_call_fails_without_a_server() {
    let mut server = RedisServer::standalone();
    server.kill();
    let coordinator = redis(&server.url(), "tasuki").0;
    let worker = new_worker();
    let presence = presence(worker, "east");
    for _ in 0..3 {
        assert!(coordinator.acquire_election_lock(worker, LONG).await.is_err());
        assert!(coordinator.publish_leader(worker, Epoch(1), LONG).await.is_err());
        assert!(coordinator.remove_leader(worker).await.is_err());
        assert!(coordinator.find_leader().await.is_err());
        assert!(coordinator.mark_term_ended(worker, Epoch(1)).await.is_err());
        assert!(coordinator.acquire_subleader(worker, &presence.node, LONG).await.is_err());
        assert!(coordinator.publish_presence(&presence, LONG).await.is_err());
        assert!(coordinator.remove_presence(worker).await.is_err());
        assert!(coordinator.mark_detached(worker, LONG).await.is_err());
        assert!(coordinator.publish_leased_runs(worker, &[RunId(1)], LONG).await.is_err());
        assert!(coordinator.notify(Notification::default()).await.is_err());
        assert!(coordinator.subscribe().await.is_err());
    }
    server.start();
    eventually("the server is available again", async || {
        coordinator.acquire_election_lock(worker, LONG).await.ok()
    })
    .await;
}

/// An open connection stops responding: calls in progress fail in time. When the server continues, calls succeed again.
#[tokio::test]
async fn calls_fail_while_a_server_is_frozen_and_succeed_after_it() {
    let server = RedisServer::standalone();
    let retrying = redis(&server.url(), "tasuki");
    let (coordinator, worker) = (retrying.0.clone(), new_worker());
    retrying.publish_leader(worker, Epoch(2), LONG).await.unwrap();
    server.freeze();
    let presence = presence(worker, "east");
    let many = (0..50).map(|_| coordinator.publish_presence(&presence, LONG));
    assert!(join_all(many).await.iter().all(Result::is_err));
    assert!(coordinator.find_leader().await.is_err());
    server.thaw();
    assert_eq!(retrying.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(2)));
    // Abandoned connections are closed: one connection is the coordinator's, one is that of this query.
    eventually("the old connection is closed", async || {
        (server.run_command::<String>(&["INFO", "clients"]).contains("connected_clients:2\r"))
            .then_some(())
    })
    .await;
}

/// A server that became a replica refuses writes: the connection is closed, because the primary is another server.
#[tokio::test]
async fn the_connection_to_a_server_that_became_a_replica_is_closed() {
    let server = RedisServer::standalone();
    let retrying = redis(&server.url(), "tasuki");
    let (coordinator, worker) = (retrying.0.clone(), new_worker());
    retrying.publish_leader(worker, Epoch(2), LONG).await.unwrap();
    server.run_command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually("the server refuses writes", async || {
        let refused =
            coordinator.publish_leader(worker, Epoch(2), LONG).await.unwrap_err().to_string();
        assert!(!refused.contains(PASSWORD));
        refused.contains("read only replica").then_some(())
    })
    .await;
    server.run_command::<()>(&["REPLICAOF", "NO", "ONE"]);
    retrying.publish_leader(worker, Epoch(2), LONG).await.unwrap();
}
