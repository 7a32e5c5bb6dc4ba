//! Mutual TLS: which clients and servers are accepted, and replacing certificates while nodes call each other.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::node_rpc::{OrderResponse, Peer, Peers as _};
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_cluster::tls::dev::{DevAuthority, ValidityPeriod};
use tasuki_cluster::{Identity, RpcAuthMethod, RpcCallerRole};
use tasuki_core::Epoch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::fixtures::{
    FakeNode, OffsetClock, ReceivedRequest, ServerAndClient, TempFolder, authority,
    create_cert_folder, node_identity, observer_identity, open_tls, open_tls_for, peer_of,
    ping_until_response, responds, start_server, valid_between, valid_days, wait_until,
};
use crate::untrusted_peer;

const DAY: i64 = 24 * 60 * 60;

/// Checks that the calls of a client fail and do not reach the node; returns the error.
async fn expect_refused(pair: &ServerAndClient, peers: &RpcPeers) -> String {
    let error = peers.drain(&pair.peer, Epoch(2)).await.unwrap_err();
    assert_eq!(pair.node.received(), [], "{error}");
    assert!(peers.ping(&pair.peer).await.is_err(), "a ping must fail too");
    assert!(responds(&pair.peers, &pair.peer).await, "the server still answers other clients");
    error.to_string()
}

#[tokio::test]
async fn rpc_tls_a_client_without_a_certificate_is_refused() {
    let pair = ServerAndClient::start().await;
    let stream = TcpStream::connect(pair.server.address()).await.unwrap();
    let server_name = "tasuki".try_into().unwrap();
    let stream = TlsConnector::from(untrusted_peer::client()).connect(server_name, stream).await;
    // In TLS 1.3 the refusal arrives after the client has finished its part of the handshake.
    let mut stream = stream.unwrap();
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let alert = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert!(alert.to_string().contains("CertificateRequired"), "{alert}");
    assert!(responds(&pair.peers, &pair.peer).await, "the server still answers other clients");
}

#[tokio::test]
async fn rpc_tls_a_client_without_tls_is_refused() {
    let pair = ServerAndClient::start().await;
    let mut stream = TcpStream::connect(pair.server.address()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    assert!(!response.windows(4).any(|four| four == b"HTTP"), "{response:?}");
    assert!(responds(&pair.peers, &pair.peer).await, "the server still answers other clients");
}

#[tokio::test]
async fn rpc_tls_a_client_of_another_authority_is_refused() {
    let pair = ServerAndClient::start().await;
    let other = authority();
    // The client trusts the server's authority, but not the other way round.
    let folder = create_cert_folder(&other, &node_identity("client"));
    folder.write("ca.crt", &format!("{}{}", other.pem(), pair.authority.pem()));
    let why = expect_refused(&pair, &pair.client_with(&folder)).await;
    assert!(why.contains("UnknownCA"), "{why}");
}

#[tokio::test]
async fn rpc_tls_a_server_of_another_authority_receives_no_request() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&authority(), &node_identity("client"));
    let why = expect_refused(&pair, &pair.client_with(&folder)).await;
    assert!(why.contains("UnknownIssuer"), "{why}");
}

#[tokio::test]
async fn rpc_tls_a_client_with_an_expired_certificate_is_refused() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &node_identity("client"));
    // The certificate expired yesterday; the clock of the client is two days behind.
    rewrite(&folder, &pair.authority, &node_identity("client"), valid_between(-9, -1));
    let peers = RpcPeers::new(
        RpcAuthMethod::Mtls(open_with_clock_offset(&folder, -2 * DAY)),
        Arc::new(RealClock),
    );
    let why = expect_refused(&pair, &peers).await;
    assert!(why.contains("CertificateExpired"), "{why}");
    let error = open_tls_for(&folder, "test", Arc::new(RealClock)).unwrap_err();
    assert!(
        error.to_string().contains("expired"),
        "with a correct clock the client refuses it itself: {error}"
    );
}

#[tokio::test]
async fn rpc_tls_a_server_with_an_expired_certificate_receives_no_request() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &node_identity("client"));
    rewrite(&folder, &pair.authority, &node_identity("client"), valid_days(900));
    let peers = RpcPeers::new(
        RpcAuthMethod::Mtls(open_with_clock_offset(&folder, 31 * DAY)),
        Arc::new(RealClock),
    );
    let why = expect_refused(&pair, &peers).await;
    assert!(why.contains("expired"), "{why}");
}

#[tokio::test]
async fn rpc_tls_a_client_of_another_cluster_is_refused() {
    let pair = ServerAndClient::start().await;
    let other_cluster = Identity::new("other", RpcCallerRole::Node, "client").unwrap();
    let folder = create_cert_folder(&pair.authority, &other_cluster);
    assert!(
        open_tls_for(&folder, "test", Arc::new(RealClock)).is_err(),
        "the certificate is for another cluster"
    );
    let tls = open_tls_for(&folder, "other", Arc::new(RealClock)).unwrap();
    let why =
        expect_refused(&pair, &RpcPeers::new(RpcAuthMethod::Mtls(tls), Arc::new(RealClock))).await;
    assert!(why.contains("does not belong to the cluster"), "the client refuses first: {why}");

    // The other way round: a client that accepts every server is refused by it.
    let node = FakeNode::new(7);
    let tls = open_tls_for(&folder, "other", Arc::new(RealClock)).unwrap();
    let server = start_server(&node, RpcAuthMethod::Mtls(tls), ServerLimits::default()).await;
    assert!(pair.peers.drain(&peer_of(&node, &server), Epoch(2)).await.is_err());
    let config =
        untrusted_peer::client_with(&create_cert_folder(&pair.authority, &node_identity("client")));
    assert!(!untrusted_peer::is_accepted(server.address(), config).await);
    let config = untrusted_peer::client_with(&folder);
    assert!(
        untrusted_peer::is_accepted(server.address(), config.clone()).await,
        "a client of the same cluster is accepted"
    );
    assert!(!untrusted_peer::is_accepted(pair.server.address(), config).await);
}

#[tokio::test]
async fn rpc_tls_a_certificate_without_exactly_one_identity_is_refused() {
    let pair = ServerAndClient::start().await;
    let cases: [&[&str]; 4] = [
        &[],
        &["https://test/node/a"],
        &["tasuki://test/node/a", "tasuki://test/observer/a"],
        &["tasuki://test/root/a"],
    ];
    for names in cases {
        let folder = create_cert_folder(&pair.authority, &node_identity("client"));
        let (certificate, key) =
            pair.authority.issue_certificate_for_uris(names, valid_days(30)).unwrap();
        folder.write("tls.crt", &certificate);
        folder.write("tls.key", &key);
        assert!(open_tls_for(&folder, "test", Arc::new(RealClock)).is_err(), "{names:?}");
        let config = untrusted_peer::client_with(&folder);
        assert!(!untrusted_peer::is_accepted(pair.server.address(), config).await, "{names:?}");
    }
    let config =
        untrusted_peer::client_with(&create_cert_folder(&pair.authority, &node_identity("client")));
    assert!(untrusted_peer::is_accepted(pair.server.address(), config).await);
}

#[tokio::test]
async fn rpc_tls_an_observer_may_read_but_not_send_orders() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &observer_identity());
    let peers = pair.client_with(&folder);
    assert_eq!(ping_until_response(&peers, &pair.peer).await, pair.node.id);
    assert!(peers.status(&pair.peer).await.is_ok());
    let request = tasuki::node::coordination::node_rpc::DetachedWorkerContinueRequest {
        worker: pair.node.id,
        runs: Vec::new(),
    };
    let refusals = [
        peers.start(&pair.peer, &crate::rpc::order(2)).await.map(|_| ()),
        peers.cancel(&pair.peer, &crate::rpc::cancel(2)).await.map(|_| ()),
        peers.drain(&pair.peer, Epoch(2)).await.map(|_| ()),
        peers.reload(&pair.peer, 2).await.map(|_| ()),
        peers.confirm(&pair.peer, &request).await.map(|_| ()),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert!(error.0.starts_with("PermissionDenied"), "{error}");
    }
    assert_eq!(pair.node.received(), []);
}

#[tokio::test]
async fn rpc_tls_an_observer_cannot_serve_and_is_not_accepted_as_a_node() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &observer_identity());
    let security = RpcAuthMethod::Mtls(open_tls(&folder));
    let any_port = "127.0.0.1:0".parse().unwrap();
    let refused =
        RpcServer::start(any_port, pair.node.clone(), security, ServerLimits::default()).await;
    assert!(refused.unwrap_err().to_string().contains("has not the role node"));

    let listener = TcpListener::bind(any_port).await.unwrap();
    let address = Some(listener.local_addr().unwrap().to_string());
    let acceptor = TlsAcceptor::from(untrusted_peer::server(&folder));
    let serving = tokio::spawn(async move {
        // The client tries a second time after a broken connection.
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err(), "the client completed the handshake");
        }
    });
    let error = pair.peers.drain(&Peer { worker: pair.node.id, address }, Epoch(2)).await;
    let error = error.unwrap_err();
    assert!(error.0.contains("has not the role node"), "{error}");
    serving.await.unwrap();
}

/// Authority and certificates are replaced in three steps while several clients call all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rpc_tls_no_call_fails_while_certificates_are_replaced() {
    let (old, new) = (authority(), authority());
    let server_folder = create_cert_folder(&old, &node_identity("server"));
    let client_folder = create_cert_folder(&old, &node_identity("client"));
    let (server_tls, client_tls) = (open_tls(&server_folder), open_tls(&client_folder));
    let node = FakeNode::new(1);
    let mut limits = ServerLimits::default();
    limits.connection_age = std::time::Duration::from_millis(50);
    let server = start_server(&node, RpcAuthMethod::Mtls(server_tls.clone()), limits).await;
    let peers =
        Arc::new(RpcPeers::new(RpcAuthMethod::Mtls(client_tls.clone()), Arc::new(RealClock)));

    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (peers, peer) = (peers.clone(), peer_of(&node, &server));
            let (stop, calls) = (stop.clone(), calls.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(OrderResponse::Accepted));
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let wait_for_more_calls = async || {
        let enough = calls.load(Ordering::Relaxed) + 200;
        let failed = || callers.iter().any(tokio::task::JoinHandle::is_finished);
        wait_until("more calls have succeeded", || {
            failed() || calls.load(Ordering::Relaxed) >= enough
        })
        .await;
    };
    let wait_until_in_use = async |generation| {
        let both = [&server_tls, &client_tls];
        wait_until("both nodes use the new files", || {
            both.iter().all(|tls| tls.generation() == generation)
        })
        .await;
    };

    wait_for_more_calls().await;
    for folder in [&server_folder, &client_folder] {
        folder.write("ca.crt", &format!("{}{}", old.pem(), new.pem()));
    }
    wait_until_in_use(2).await;
    wait_for_more_calls().await;
    for (folder, name) in [(&server_folder, "server"), (&client_folder, "client")] {
        // Certificate and key are pair files: between them they do not fit.
        rewrite(folder, &new, &node_identity(name), valid_days(30));
    }
    wait_until_in_use(3).await;
    wait_for_more_calls().await;
    for folder in [&server_folder, &client_folder] {
        folder.write("ca.crt", new.pem());
    }
    wait_until_in_use(4).await;
    wait_for_more_calls().await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }

    // The new certificate is really in use.
    let of_old = untrusted_peer::client_with(&create_cert_folder(&old, &node_identity("client")));
    assert!(!untrusted_peer::is_accepted(server.address(), of_old).await);
    let of_new = untrusted_peer::client_with(&create_cert_folder(&new, &node_identity("client")));
    assert!(untrusted_peer::is_accepted(server.address(), of_new).await);
}

#[tokio::test]
async fn rpc_tls_invalid_new_files_are_refused_and_the_previous_ones_stay_in_use() {
    let pair = ServerAndClient::start().await;
    let folder = create_cert_folder(&pair.authority, &node_identity("client"));
    let tls = open_tls(&folder);
    let peers = RpcPeers::new(RpcAuthMethod::Mtls(tls.clone()), Arc::new(RealClock));
    let (good_certificate, good_key) = (read(&folder, "tls.crt"), read(&folder, "tls.key"));
    let (_, key_of_another) =
        pair.authority.issue_certificate(&node_identity("client"), valid_days(30)).unwrap();
    let issue = |authority: &DevAuthority, identity: &Identity, valid| {
        authority.issue_certificate(identity, valid).unwrap()
    };
    let other_cluster = Identity::new("other", RpcCallerRole::Node, "client").unwrap();
    let bad = [
        ("garbage", ("-----BEGIN NONSENSE".to_owned(), good_key.clone())),
        ("nothing", (String::new(), good_key.clone())),
        ("no key", (good_certificate.clone(), String::new())),
        ("another key", (good_certificate.clone(), key_of_another)),
        ("expired", issue(&pair.authority, &node_identity("client"), valid_between(-2, -1))),
        ("not valid yet", issue(&pair.authority, &node_identity("client"), valid_between(1, 2))),
        ("another authority", issue(&authority(), &node_identity("client"), valid_days(30))),
        ("another cluster", issue(&pair.authority, &other_cluster, valid_days(30))),
    ];
    for (what, (certificate, key)) in bad {
        let before = tls.refused_reloads();
        folder.write("tls.key", &key);
        folder.write("tls.crt", &certificate);
        wait_until(what, || tls.refused_reloads() > before).await;
        assert_eq!(tls.generation(), 1, "{what}");
        assert_eq!(ping_until_response(&peers, &pair.peer).await, pair.node.id, "{what}");
        folder.write("tls.key", &good_key);
        folder.write("tls.crt", &good_certificate);
    }
    let before = tls.refused_reloads();
    fs::remove_file(folder.path().join("ca.crt")).unwrap();
    wait_until("a missing file", || tls.refused_reloads() > before).await;
    assert_eq!(ping_until_response(&peers, &pair.peer).await, pair.node.id);

    folder.write("ca.crt", pair.authority.pem());
    rewrite(&folder, &pair.authority, &node_identity("client_folder-2"), valid_days(30));
    wait_until("the valid certificate is in use", || tls.generation() == 2).await;
    assert_eq!(tls.identity(), node_identity("client_folder-2"));
    assert_eq!(pair.node.received(), Vec::<ReceivedRequest>::new());
}

fn read(folder: &TempFolder, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap()
}

fn rewrite(
    folder: &TempFolder,
    authority: &DevAuthority,
    identity: &Identity,
    valid: ValidityPeriod,
) {
    let (certificate, key) = authority.issue_certificate(identity, valid).unwrap();
    folder.write("tls.crt", &certificate);
    folder.write("tls.key", &key);
}

/// Opens the files with a clock that is this many seconds ahead.
fn open_with_clock_offset(
    folder: &TempFolder,
    seconds: i64,
) -> Arc<tasuki_cluster::tls::MutualTls> {
    open_tls_for(folder, "test", OffsetClock::new(seconds)).unwrap()
}
