//! Calls between nodes through real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, ORDER_TIMEOUT, OrderResponse, Peer, PeerUnreachable,
    Peers as _, StartOrder,
};
use tasuki_cluster::RpcAuthMethod;
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_core::{Epoch, LeaseToken, RunId, WorkerId};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::fixtures::{
    FakeNode, OffsetClock, ReceivedRequest, ServerAndClient, create_cert_folder, node_identity,
    open_tls, peer_of, ping_until_response, responds, start_server, wait_until,
};

pub(crate) fn order(epoch: i64) -> StartOrder {
    let due_at = |us| Timestamp::from_microsecond(us).unwrap();
    StartOrder {
        epoch: Epoch(epoch),
        token: LeaseToken::from_random(5),
        runs: vec![(RunId(1), due_at(1_700_000_000_000_001)), (RunId(2), due_at(0))],
    }
}

pub(crate) fn cancel(epoch: i64) -> CancelHint {
    CancelHint { epoch: Epoch(epoch), runs: vec![RunId(3)] }
}

#[tokio::test]
async fn rpc_every_call_is_received_and_answered() {
    let ServerAndClient { node, peers, peer, server: _server, .. } =
        &ServerAndClient::start().await;
    assert_eq!(ping_until_response(peers, peer).await, node.id);
    assert_eq!(
        peers.status(peer).await,
        Ok(tasuki::node::coordination::node_rpc::NodeRpc::status(&**node))
    );
    assert_eq!(peers.start(peer, &order(2)).await, Ok(OrderResponse::Accepted));
    assert_eq!(peers.cancel(peer, &cancel(2)).await, Ok(OrderResponse::Accepted));
    assert_eq!(peers.drain(peer, Epoch(2)).await, Ok(OrderResponse::Accepted));
    let runs =
        vec![(RunId(9), LeaseToken::from_random(9)), (RunId(10), LeaseToken::from_random(10))];
    let request = DetachedWorkerContinueRequest { worker: WorkerId::from_random(4), runs };
    assert_eq!(peers.confirm(peer, &request).await, Ok(vec![RunId(9)]));
    assert_eq!(peers.reload(peer, 41).await, Ok(OrderResponse::Accepted));
    let expected = [
        ReceivedRequest::Start(order(2)),
        ReceivedRequest::Cancel(cancel(2)),
        ReceivedRequest::Drain(Epoch(2)),
        ReceivedRequest::Confirm(request),
        ReceivedRequest::Reload(41),
    ];
    assert_eq!(node.received(), expected);
}

#[tokio::test]
async fn rpc_every_refusal_is_returned_as_a_response() {
    let pair = ServerAndClient::start().await;
    let refusals = [
        OrderResponse::OldEpoch(Epoch(8)),
        OrderResponse::Detached,
        OrderResponse::Draining,
        OrderResponse::AlreadyRunning,
        OrderResponse::Invalid("理由".to_owned()),
    ];
    for refusal in refusals {
        *pair.node.response.lock().unwrap() = refusal.clone();
        assert_eq!(pair.peers.start(&pair.peer, &order(2)).await, Ok(refusal));
    }
    // A node that cannot decide returns an error, so that the worker asks another node.
    let request =
        DetachedWorkerContinueRequest { worker: WorkerId::from_random(4), runs: Vec::new() };
    let error = pair.peers.confirm(&pair.peer, &request).await.unwrap_err();
    assert_eq!(error.0, "this worker is neither leader nor subleader");
}

#[tokio::test]
async fn rpc_an_order_of_an_old_epoch_is_refused_and_a_newer_one_accepted() {
    let pair = ServerAndClient::start().await;
    assert_eq!(pair.peers.start(&pair.peer, &order(5)).await, Ok(OrderResponse::Accepted));
    let refused = Ok(OrderResponse::OldEpoch(Epoch(5)));
    assert_eq!(pair.peers.start(&pair.peer, &order(4)).await, refused);
    assert_eq!(pair.peers.cancel(&pair.peer, &cancel(4)).await, refused);
    assert_eq!(pair.peers.drain(&pair.peer, Epoch(4)).await, refused);
    assert_eq!(pair.node.received(), [ReceivedRequest::Start(order(5))]);
    assert_eq!(pair.peers.start(&pair.peer, &order(6)).await, Ok(OrderResponse::Accepted));
}

#[tokio::test]
async fn rpc_an_order_for_another_worker_at_the_address_is_refused() {
    let pair = ServerAndClient::start().await;
    let peer = Peer { worker: WorkerId::from_random(99), ..pair.peer.clone() };
    assert_eq!(
        ping_until_response(&pair.peers, &peer).await,
        pair.node.id,
        "a ping returns the actual worker id"
    );
    let responses = [
        pair.peers.start(&peer, &order(2)).await,
        pair.peers.cancel(&peer, &cancel(2)).await,
        pair.peers.drain(&peer, Epoch(2)).await,
        pair.peers.reload(&peer, 2).await,
    ];
    let refusal = format!("this is worker {}, not {}", pair.node.id, peer.worker);
    for response in responses {
        assert_eq!(response, Ok(OrderResponse::Invalid(refusal.clone())));
    }
    assert_eq!(pair.peers.status(&peer).await, Err(PeerUnreachable(refusal.clone())));
    let request =
        DetachedWorkerContinueRequest { worker: WorkerId::from_random(4), runs: Vec::new() };
    assert_eq!(pair.peers.confirm(&peer, &request).await, Err(PeerUnreachable(refusal)));
    assert_eq!(pair.node.received(), []);
}

#[tokio::test]
async fn rpc_a_missing_or_invalid_address_is_an_error() {
    let pair = ServerAndClient::start().await;
    let addresses = [
        None,
        Some(""),
        Some("host"),
        Some("127.0.0.1:1/path"),
        Some("a@127.0.0.1:1"),
        Some("127.0.0.1:99999"),
        Some("a b:1"),
        Some("http://127.0.0.1:1"),
    ];
    for address in addresses {
        let peer = Peer { worker: pair.node.id, address: address.map(str::to_owned) };
        assert!(pair.peers.ping(&peer).await.is_err(), "{address:?}");
    }
    assert_eq!(pair.peers.connection_count(), 0);
}

/// Tolerance for a busy machine: far above the timeout of a ping and below that of an order.
const TOLERANCE: Duration = Duration::from_millis(1_900);

#[tokio::test]
async fn rpc_a_server_that_never_completes_a_handshake_delays_a_call_at_most_to_its_timeout() {
    let pair = ServerAndClient::start().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Some(mute.local_addr().unwrap().to_string());
    let peer = Peer { worker: pair.node.id, address };
    let started = Instant::now();
    assert_eq!(
        pair.peers.ping(&peer).await,
        Err(PeerUnreachable("timed out after 300 ms".to_owned()))
    );
    assert!(started.elapsed() < TOLERANCE, "{:?}", started.elapsed());
    let started = Instant::now();
    assert!(pair.peers.start(&peer, &order(2)).await.is_err());
    assert!(started.elapsed() < ORDER_TIMEOUT + TOLERANCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn rpc_a_node_that_never_responds_delays_a_call_at_most_to_its_timeout() {
    let pair = ServerAndClient::start().await;
    pair.node.close_gate();
    let started = Instant::now();
    let error = pair.peers.start(&pair.peer, &order(2)).await.unwrap_err();
    assert!(started.elapsed() < ORDER_TIMEOUT + TOLERANCE, "{:?} {error}", started.elapsed());
    assert_eq!(
        ping_until_response(&pair.peers, &pair.peer).await,
        pair.node.id,
        "other calls are still answered"
    );
}

#[tokio::test]
async fn rpc_the_next_call_reaches_a_server_that_was_restarted() {
    let pair = ServerAndClient::start().await;
    assert!(responds(&pair.peers, &pair.peer).await);
    let address = pair.server.address();
    let folder = create_cert_folder(&pair.authority, &node_identity("server"));
    pair.server.stop(Duration::from_secs(10)).await;
    assert!(pair.peers.start(&pair.peer, &order(2)).await.is_err(), "the server is stopped");
    let security = RpcAuthMethod::Mtls(open_tls(&folder));
    let node = pair.node.clone();
    let _restarted =
        RpcServer::start(address, node, security, ServerLimits::default()).await.unwrap();
    assert_eq!(pair.peers.start(&pair.peer, &order(2)).await, Ok(OrderResponse::Accepted));
}

/// Starts a proxy that closes the first connections and forwards the others. Returns its address and the number of
/// connections so far.
async fn start_closing_proxy(closed: usize, target: SocketAddr) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if counter.fetch_add(1, Ordering::Relaxed) >= closed {
                let mut forwarded = TcpStream::connect(target).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut forwarded).await });
            }
        }
    });
    (address, connections)
}

#[tokio::test]
async fn rpc_a_call_is_sent_once_more_after_its_connection_broke() {
    let pair = ServerAndClient::start().await;
    let (address, connections) = start_closing_proxy(1, pair.server.address()).await;
    let peer = Peer { address: Some(address), ..pair.peer.clone() };
    assert_eq!(pair.peers.drain(&peer, Epoch(2)).await, Ok(OrderResponse::Accepted));
    assert_eq!(connections.load(Ordering::Relaxed), 2);

    let (address, connections) = start_closing_proxy(usize::MAX, pair.server.address()).await;
    let peer = Peer { address: Some(address), ..pair.peer.clone() };
    assert!(pair.peers.drain(&peer, Epoch(2)).await.is_err());
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    assert_eq!(pair.node.received(), [ReceivedRequest::Drain(Epoch(2))]);
}

#[tokio::test]
async fn rpc_stop_lets_a_call_finish_and_refuses_new_ones() {
    let pair = ServerAndClient::start().await;
    let address = pair.server.address();
    pair.node.close_gate();
    let (peers, peer) = (Arc::new(pair.peers), pair.peer);
    let call = tokio::spawn({
        let (peers, peer) = (peers.clone(), peer.clone());
        async move { peers.start(&peer, &order(2)).await }
    });
    pair.node.order_arrived.notified().await;
    let stopping = tokio::spawn(pair.server.stop(Duration::from_secs(10)));
    wait_until_refused(address).await;
    pair.node.open_gate();
    assert_eq!(call.await.unwrap(), Ok(OrderResponse::Accepted));
    stopping.await.unwrap();
}

async fn wait_until_refused(address: SocketAddr) {
    let started = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(started.elapsed() < Duration::from_secs(30), "the port is still open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn rpc_stop_aborts_a_call_that_never_finishes() {
    let pair = ServerAndClient::start().await;
    pair.node.close_gate();
    let (peers, peer) = (Arc::new(pair.peers), pair.peer);
    let call = tokio::spawn(async move { peers.start(&peer, &order(2)).await });
    pair.node.order_arrived.notified().await;
    pair.server.stop(Duration::from_millis(10)).await;
    assert!(call.await.unwrap().is_err());
    // The server drops the call together with its connection, and with it the last reference to the node.
    let node = pair.node;
    wait_until("the connection is closed", || Arc::strong_count(&node) == 1).await;
}

#[tokio::test]
async fn rpc_the_number_of_connections_is_limited() {
    let mut limits = ServerLimits::default();
    limits.connections = 1;
    let pair = ServerAndClient::start_with(limits).await;
    assert!(responds(&pair.peers, &pair.peer).await);
    let folder = create_cert_folder(&pair.authority, &node_identity("third"));
    let third = pair.client_with(&folder);
    assert!(third.drain(&pair.peer, Epoch(2)).await.is_err(), "the limit is reached");
    assert!(responds(&pair.peers, &pair.peer).await, "the open connection stays");
    drop(pair.peers);
    let started = Instant::now();
    while third.drain(&pair.peer, Epoch(2)).await != Ok(OrderResponse::Accepted) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "a closed connection is still counter"
        );
    }
}

#[tokio::test]
async fn rpc_clients_that_never_finish_a_handshake_do_not_block_others() {
    let mut limits = ServerLimits::default();
    (limits.handshakes, limits.handshake) = (2, Duration::from_millis(50));
    let pair = ServerAndClient::start_with(limits).await;
    let mut idle_clients = Vec::new();
    for _ in 0..10 {
        idle_clients.push(TcpStream::connect(pair.server.address()).await.unwrap());
    }
    let started = Instant::now();
    while pair.peers.drain(&pair.peer, Epoch(2)).await != Ok(OrderResponse::Accepted) {
        assert!(started.elapsed() < Duration::from_secs(30), "no connection is accepted");
    }
    drop(idle_clients);
}

#[tokio::test]
async fn rpc_no_call_fails_while_connections_are_replaced() {
    let mut limits = ServerLimits::default();
    limits.connection_age = Duration::from_millis(30);
    let pair = ServerAndClient::start_with(limits).await;
    for call in 0..300 {
        assert_eq!(
            pair.peers.drain(&pair.peer, Epoch(2)).await,
            Ok(OrderResponse::Accepted),
            "call {call}"
        );
    }
}

#[tokio::test]
async fn rpc_idle_connections_are_closed() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &node_identity("client"));
    let clock = OffsetClock::new(0);
    let peers = RpcPeers::new(RpcAuthMethod::Mtls(open_tls(&folder)), clock.clone());
    assert!(responds(&peers, &pair.peer).await);
    let other = FakeNode::new(2);
    let folder = create_cert_folder(&pair.authority, &node_identity("other"));
    let server =
        start_server(&other, RpcAuthMethod::Mtls(open_tls(&folder)), ServerLimits::default()).await;
    clock.seconds.store(3_600, Ordering::Relaxed);
    assert!(responds(&peers, &peer_of(&other, &server)).await);
    assert_eq!(peers.connection_count(), 1);
}

#[tokio::test]
async fn rpc_an_address_may_be_an_ipv6_address_or_a_host_name() {
    let pair = ServerAndClient::start().await;
    let port = pair.server.address().port();
    let peer = Peer { address: Some(format!("localhost:{port}")), ..pair.peer.clone() };
    assert_eq!(ping_until_response(&pair.peers, &peer).await, pair.node.id);
    let folder = create_cert_folder(&pair.authority, &node_identity("server"));
    let (node, security) = (pair.node.clone(), RpcAuthMethod::Mtls(open_tls(&folder)));
    let address = "[::1]:0".parse().unwrap();
    // Some machines have no IPv6.
    let Ok(server) = RpcServer::start(address, node, security, ServerLimits::default()).await
    else {
        return;
    };
    let peer = Peer { address: Some(server.address().to_string()), ..pair.peer };
    let peers = RpcPeers::new(
        RpcAuthMethod::Mtls(open_tls(&create_cert_folder(
            &pair.authority,
            &node_identity("client"),
        ))),
        Arc::new(RealClock),
    );
    assert_eq!(ping_until_response(&peers, &peer).await, pair.node.id);
}
