//! Calls between nodes, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tasuki::node::coordination::peers::{
    Answer, CancelOrder, ORDER, Peer, Peers as _, Question, Silent, StartOrder,
};
use tasuki::node::world::RealClock;
use tasuki_cluster::Security;
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_core::{Epoch, LeaseToken, RunId, WorkerId};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::fake::{
    Fake, Heard, Moved, Two, certified, is_there, node, open, peer, pinged, serve, until,
};

pub(crate) fn order(epoch: i64) -> StartOrder {
    let due_at = |us| Timestamp::from_microsecond(us).unwrap();
    StartOrder {
        epoch: Epoch(epoch),
        token: LeaseToken::from_random(5),
        runs: vec![(RunId(1), due_at(1_700_000_000_000_001)), (RunId(2), due_at(0))],
    }
}

pub(crate) fn cancel(epoch: i64) -> CancelOrder {
    CancelOrder { epoch: Epoch(epoch), runs: vec![RunId(3)] }
}

#[tokio::test]
async fn rpc_every_verb_goes_there_and_back() {
    let Two { fake, peers, peer, server: _server, .. } = &Two::start().await;
    assert_eq!(pinged(peers, peer).await, fake.id);
    assert_eq!(
        peers.status(peer).await,
        Ok(tasuki::node::coordination::peers::Called::status(&**fake))
    );
    assert_eq!(peers.start(peer, &order(2)).await, Ok(Answer::Accepted));
    assert_eq!(peers.cancel(peer, &cancel(2)).await, Ok(Answer::Accepted));
    assert_eq!(peers.drain(peer, Epoch(2)).await, Ok(Answer::Accepted));
    let runs =
        vec![(RunId(9), LeaseToken::from_random(9)), (RunId(10), LeaseToken::from_random(10))];
    let question = Question { worker: WorkerId::from_random(4), runs };
    assert_eq!(peers.confirm(peer, &question).await, Ok(vec![RunId(9)]));
    assert_eq!(peers.reload(peer, 41).await, Ok(Answer::Accepted));
    let heard = [
        Heard::Start(order(2)),
        Heard::Cancel(cancel(2)),
        Heard::Drain(Epoch(2)),
        Heard::Confirm(question),
        Heard::Reload(41),
    ];
    assert_eq!(fake.heard(), heard);
}

#[tokio::test]
async fn rpc_every_refusal_is_an_answer() {
    let two = Two::start().await;
    let refusals = [
        Answer::OldEpoch(Epoch(8)),
        Answer::Detached,
        Answer::Draining,
        Answer::AlreadyRunning,
        Answer::Invalid("理由".to_owned()),
    ];
    for refusal in refusals {
        *two.fake.answer.lock().unwrap() = refusal.clone();
        assert_eq!(two.peers.start(&two.peer, &order(2)).await, Ok(refusal));
    }
    // Who cannot confirm says so, and the next one is asked.
    let question = Question { worker: WorkerId::from_random(4), runs: Vec::new() };
    let silent = two.peers.confirm(&two.peer, &question).await.unwrap_err();
    assert_eq!(silent.0, "this worker neither leads nor stands ready to");
}

#[tokio::test]
async fn rpc_an_old_epoch_is_refused_and_a_newer_one_still_taken() {
    let two = Two::start().await;
    assert_eq!(two.peers.start(&two.peer, &order(5)).await, Ok(Answer::Accepted));
    let refused = Ok(Answer::OldEpoch(Epoch(5)));
    assert_eq!(two.peers.start(&two.peer, &order(4)).await, refused);
    assert_eq!(two.peers.cancel(&two.peer, &cancel(4)).await, refused);
    assert_eq!(two.peers.drain(&two.peer, Epoch(4)).await, refused);
    assert_eq!(two.fake.heard(), [Heard::Start(order(5))]);
    assert_eq!(two.peers.start(&two.peer, &order(6)).await, Ok(Answer::Accepted));
}

#[tokio::test]
async fn rpc_another_incarnation_at_the_address_takes_no_orders() {
    let two = Two::start().await;
    let peer = Peer { worker: WorkerId::from_random(99), ..two.peer.clone() };
    assert_eq!(pinged(&two.peers, &peer).await, two.fake.id, "it says who it is");
    let answers = [
        two.peers.start(&peer, &order(2)).await,
        two.peers.cancel(&peer, &cancel(2)).await,
        two.peers.drain(&peer, Epoch(2)).await,
        two.peers.reload(&peer, 2).await,
    ];
    let refusal = format!("this is worker {}, not {}", two.fake.id, peer.worker);
    for answer in answers {
        assert_eq!(answer, Ok(Answer::Invalid(refusal.clone())));
    }
    assert_eq!(two.peers.status(&peer).await, Err(Silent(refusal.clone())));
    let question = Question { worker: WorkerId::from_random(4), runs: Vec::new() };
    assert_eq!(two.peers.confirm(&peer, &question).await, Err(Silent(refusal)));
    assert_eq!(two.fake.heard(), []);
}

#[tokio::test]
async fn rpc_who_has_no_address_or_a_senseless_one_is_silent() {
    let two = Two::start().await;
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
        let peer = Peer { worker: two.fake.id, address: address.map(str::to_owned) };
        assert!(two.peers.ping(&peer).await.is_err(), "{address:?}");
    }
    assert_eq!(two.peers.lines(), 0);
}

/// Far above the deadline of a ping and below that of an order: the machine may be busy.
const A_WHILE: Duration = Duration::from_millis(1_900);

#[tokio::test]
async fn rpc_who_accepts_and_never_answers_costs_no_more_than_the_deadline() {
    let two = Two::start().await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Some(mute.local_addr().unwrap().to_string());
    let peer = Peer { worker: two.fake.id, address };
    let began = Instant::now();
    assert_eq!(two.peers.ping(&peer).await, Err(Silent("not within 300 ms".to_owned())));
    assert!(began.elapsed() < A_WHILE, "{:?}", began.elapsed());
    let began = Instant::now();
    assert!(two.peers.start(&peer, &order(2)).await.is_err());
    assert!(began.elapsed() < ORDER + A_WHILE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn rpc_who_hears_an_order_and_never_answers_costs_no_more_than_the_deadline() {
    let two = Two::start().await;
    two.fake.close_gate();
    let began = Instant::now();
    let silent = two.peers.start(&two.peer, &order(2)).await.unwrap_err();
    assert!(began.elapsed() < ORDER + A_WHILE, "{:?} {silent}", began.elapsed());
    assert_eq!(pinged(&two.peers, &two.peer).await, two.fake.id, "others are still heard");
}

#[tokio::test]
async fn rpc_who_comes_back_at_its_address_is_reached_by_the_next_call() {
    let two = Two::start().await;
    assert!(is_there(&two.peers, &two.peer).await);
    let address = two.server.address();
    let folder = certified(&two.authority, &node("callee"));
    two.server.stop(Duration::from_secs(10)).await;
    assert!(two.peers.start(&two.peer, &order(2)).await.is_err(), "nobody is there");
    let security = Security::Mtls(open(&folder));
    let called = two.fake.clone();
    let _again = RpcServer::start(address, called, security, Limits::default()).await.unwrap();
    assert_eq!(two.peers.start(&two.peer, &order(2)).await, Ok(Answer::Accepted));
}

/// Hangs up on the first so many, and connects the rest to somebody. Counts those who came.
async fn hangs_up(first: usize, then: SocketAddr) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let came = Arc::new(AtomicUsize::new(0));
    let counted = came.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if counted.fetch_add(1, Ordering::Relaxed) >= first {
                let mut there = TcpStream::connect(then).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut there).await });
            }
        }
    });
    (address, came)
}

#[tokio::test]
async fn rpc_a_connection_that_breaks_is_tried_once_more_and_no_more() {
    let two = Two::start().await;
    let (address, came) = hangs_up(1, two.server.address()).await;
    let peer = Peer { address: Some(address), ..two.peer.clone() };
    assert_eq!(two.peers.drain(&peer, Epoch(2)).await, Ok(Answer::Accepted));
    assert_eq!(came.load(Ordering::Relaxed), 2);

    let (address, came) = hangs_up(usize::MAX, two.server.address()).await;
    let peer = Peer { address: Some(address), ..two.peer.clone() };
    assert!(two.peers.drain(&peer, Epoch(2)).await.is_err());
    assert_eq!(came.load(Ordering::Relaxed), 2);
    assert_eq!(two.fake.heard(), [Heard::Drain(Epoch(2))]);
}

#[tokio::test]
async fn rpc_stopping_lets_a_call_finish_and_takes_no_more() {
    let two = Two::start().await;
    let address = two.server.address();
    two.fake.close_gate();
    let (peers, peer) = (Arc::new(two.peers), two.peer);
    let under_way = tokio::spawn({
        let (peers, peer) = (peers.clone(), peer.clone());
        async move { peers.start(&peer, &order(2)).await }
    });
    two.fake.waiting.notified().await;
    let stopping = tokio::spawn(two.server.stop(Duration::from_secs(10)));
    until_refused(address).await;
    two.fake.open_gate();
    assert_eq!(under_way.await.unwrap(), Ok(Answer::Accepted));
    stopping.await.unwrap();
}

async fn until_refused(address: SocketAddr) {
    let began = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "the port stays open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn rpc_stopping_cuts_off_who_never_finishes() {
    let two = Two::start().await;
    two.fake.close_gate();
    let (peers, peer) = (Arc::new(two.peers), two.peer);
    let under_way = tokio::spawn(async move { peers.start(&peer, &order(2)).await });
    two.fake.waiting.notified().await;
    two.server.stop(Duration::from_millis(10)).await;
    assert!(under_way.await.unwrap().is_err());
    // The call was dropped with its connection: nobody holds the one who was called any more.
    let fake = two.fake;
    until("the connection ends", || Arc::strong_count(&fake) == 1).await;
}

#[tokio::test]
async fn rpc_no_more_connections_than_allowed() {
    let mut limits = Limits::default();
    limits.connections = 1;
    let two = Two::start_with(limits).await;
    assert!(is_there(&two.peers, &two.peer).await);
    let folder = certified(&two.authority, &node("third"));
    let third = two.caller(&folder);
    assert!(third.drain(&two.peer, Epoch(2)).await.is_err(), "there is no place");
    assert!(is_there(&two.peers, &two.peer).await, "who is in stays in");
    drop(two.peers);
    let began = Instant::now();
    while third.drain(&two.peer, Epoch(2)).await != Ok(Answer::Accepted) {
        assert!(began.elapsed() < Duration::from_secs(30), "the place is never given back");
    }
}

#[tokio::test]
async fn rpc_those_who_never_finish_a_handshake_hold_up_nobody() {
    let mut limits = Limits::default();
    (limits.handshakes, limits.handshake) = (2, Duration::from_millis(50));
    let two = Two::start_with(limits).await;
    let mut strangers = Vec::new();
    for _ in 0..10 {
        strangers.push(TcpStream::connect(two.server.address()).await.unwrap());
    }
    let began = Instant::now();
    while two.peers.drain(&two.peer, Epoch(2)).await != Ok(Answer::Accepted) {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody gets in");
    }
    drop(strangers);
}

#[tokio::test]
async fn rpc_connections_are_replaced_and_nobody_notices() {
    let mut limits = Limits::default();
    limits.connection_age = Duration::from_millis(30);
    let two = Two::start_with(limits).await;
    for call in 0..300 {
        assert_eq!(two.peers.drain(&two.peer, Epoch(2)).await, Ok(Answer::Accepted), "call {call}");
    }
}

#[tokio::test]
async fn rpc_lines_that_are_not_used_are_forgotten() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &node("caller"));
    let clock = Moved::by(0);
    let peers = RpcPeers::new(Security::Mtls(open(&folder)), clock.clone());
    assert!(is_there(&peers, &two.peer).await);
    let other = Fake::new(2);
    let folder = certified(&two.authority, &node("other"));
    let server = serve(&other, Security::Mtls(open(&folder)), Limits::default()).await;
    clock.seconds.store(3_600, Ordering::Relaxed);
    assert!(is_there(&peers, &peer(&other, &server)).await);
    assert_eq!(peers.lines(), 1);
}

#[tokio::test]
async fn rpc_an_address_may_be_ipv6_or_a_name() {
    let two = Two::start().await;
    let port = two.server.address().port();
    let peer = Peer { address: Some(format!("localhost:{port}")), ..two.peer.clone() };
    assert_eq!(pinged(&two.peers, &peer).await, two.fake.id);
    let folder = certified(&two.authority, &node("callee"));
    let (called, security) = (two.fake.clone(), Security::Mtls(open(&folder)));
    let address = "[::1]:0".parse().unwrap();
    // Some machines have no IPv6 at all.
    let Ok(server) = RpcServer::start(address, called, security, Limits::default()).await else {
        return;
    };
    let peer = Peer { address: Some(server.address().to_string()), ..two.peer };
    let peers = RpcPeers::new(
        Security::Mtls(open(&certified(&two.authority, &node("caller")))),
        Arc::new(RealClock),
    );
    assert_eq!(pinged(&peers, &peer).await, two.fake.id);
}
