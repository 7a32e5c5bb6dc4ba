//! Who is let in, whom we talk to, and certificates that are replaced while nodes talk.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tasuki::node::coordination::peers::{Answer, Peer, Peers as _};
use tasuki::node::world::RealClock;
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_cluster::tls::dev::{Authority, Valid};
use tasuki_cluster::{Identity, PeerRole, Security};
use tasuki_core::Epoch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::fake::{
    Fake, Folder, Heard, Moved, Two, authority, between, certified, days, is_there, node, observer,
    open, open_as, peer, pinged, serve, until,
};
use crate::stranger;

const DAY: i64 = 24 * 60 * 60;

/// What a call by somebody ends with, and whether anything of it was heard.
async fn refused(two: &Two, peers: &RpcPeers) -> String {
    let silent = peers.drain(&two.peer, Epoch(2)).await.unwrap_err();
    assert_eq!(two.fake.heard(), [], "{silent}");
    assert!(peers.ping(&two.peer).await.is_err(), "not even a ping");
    assert!(is_there(&two.peers, &two.peer).await, "others are still served");
    silent.to_string()
}

#[tokio::test]
async fn rpc_tls_who_shows_no_certificate_is_refused() {
    let two = Two::start().await;
    let stream = TcpStream::connect(two.server.address()).await.unwrap();
    let anybody = "tasuki".try_into().unwrap();
    let stream = TlsConnector::from(stranger::client()).connect(anybody, stream).await;
    // In TLS 1.3 the refusal comes after what the client takes for the end of the handshake.
    let mut stream = stream.unwrap();
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let alert = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert!(alert.to_string().contains("CertificateRequired"), "{alert}");
    assert!(is_there(&two.peers, &two.peer).await, "others are still served");
}

#[tokio::test]
async fn rpc_tls_who_does_not_even_speak_tls_is_refused() {
    let two = Two::start().await;
    let mut stream = TcpStream::connect(two.server.address()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard).await;
    assert!(!heard.windows(4).any(|four| four == b"HTTP"), "{heard:?}");
    assert!(is_there(&two.peers, &two.peer).await, "others are still served");
}

#[tokio::test]
async fn rpc_tls_who_was_signed_by_another_authority_is_refused() {
    let two = Two::start().await;
    let other = authority();
    // It believes us; we do not believe it.
    let folder = certified(&other, &node("caller"));
    folder.write("ca.crt", &format!("{}{}", other.pem(), two.authority.pem()));
    let why = refused(&two, &two.caller(&folder)).await;
    assert!(why.contains("UnknownCA"), "{why}");
}

#[tokio::test]
async fn rpc_tls_a_server_of_another_authority_is_not_told_anything() {
    let two = Two::start().await;
    let folder = certified(&authority(), &node("caller"));
    let why = refused(&two, &two.caller(&folder)).await;
    assert!(why.contains("UnknownIssuer"), "{why}");
}

#[tokio::test]
async fn rpc_tls_who_shows_an_expired_certificate_is_refused() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &node("caller"));
    // It ended yesterday; its holder believes it is the day before.
    rewrite(&folder, &two.authority, &node("caller"), between(-9, -1));
    let peers = RpcPeers::new(Security::Mtls(open_at(&folder, -2 * DAY)), Arc::new(RealClock));
    let why = refused(&two, &peers).await;
    assert!(why.contains("CertificateExpired"), "{why}");
    let error = open_as(&folder, "test", Arc::new(RealClock)).unwrap_err();
    assert!(error.to_string().contains("expired"), "its holder would have noticed: {error}");
}

#[tokio::test]
async fn rpc_tls_a_server_with_an_expired_certificate_is_not_told_anything() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &node("caller"));
    rewrite(&folder, &two.authority, &node("caller"), days(900));
    let peers = RpcPeers::new(Security::Mtls(open_at(&folder, 31 * DAY)), Arc::new(RealClock));
    let why = refused(&two, &peers).await;
    assert!(why.contains("expired"), "{why}");
}

#[tokio::test]
async fn rpc_tls_who_is_of_another_cluster_is_refused() {
    let two = Two::start().await;
    let stranger = Identity::new("other", PeerRole::Node, "caller").unwrap();
    let folder = certified(&two.authority, &stranger);
    assert!(open_as(&folder, "test", Arc::new(RealClock)).is_err(), "it is not for this cluster");
    let tls = open_as(&folder, "other", Arc::new(RealClock)).unwrap();
    let why = refused(&two, &RpcPeers::new(Security::Mtls(tls), Arc::new(RealClock))).await;
    assert!(why.contains("another cluster"), "the client refuses first: {why}");

    // The other way round: a client that talks to anybody is not let in.
    let fake = Fake::new(7);
    let tls = open_as(&folder, "other", Arc::new(RealClock)).unwrap();
    let server = serve(&fake, Security::Mtls(tls), Limits::default()).await;
    assert!(two.peers.drain(&peer(&fake, &server), Epoch(2)).await.is_err());
    let config = stranger::client_as(&certified(&two.authority, &node("caller")));
    assert!(!stranger::is_let_in(server.address(), config).await);
    let config = stranger::client_as(&folder);
    assert!(stranger::is_let_in(server.address(), config.clone()).await, "one of its own is");
    assert!(!stranger::is_let_in(two.server.address(), config).await);
}

#[tokio::test]
async fn rpc_tls_a_certificate_without_an_identity_or_with_two_is_nobodys() {
    let two = Two::start().await;
    let lists: [&[&str]; 4] = [
        &[],
        &["https://test/node/a"],
        &["tasuki://test/node/a", "tasuki://test/observer/a"],
        &["tasuki://test/root/a"],
    ];
    for names in lists {
        let folder = certified(&two.authority, &node("caller"));
        let (certificate, key) = two.authority.certify_names(names, days(30)).unwrap();
        folder.write("tls.crt", &certificate);
        folder.write("tls.key", &key);
        assert!(open_as(&folder, "test", Arc::new(RealClock)).is_err(), "{names:?}");
        let config = stranger::client_as(&folder);
        assert!(!stranger::is_let_in(two.server.address(), config).await, "{names:?}");
    }
    let config = stranger::client_as(&certified(&two.authority, &node("caller")));
    assert!(stranger::is_let_in(two.server.address(), config).await);
}

#[tokio::test]
async fn rpc_tls_an_observer_may_look_and_not_order() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &observer());
    let peers = two.caller(&folder);
    assert_eq!(pinged(&peers, &two.peer).await, two.fake.id);
    assert!(peers.status(&two.peer).await.is_ok());
    let question =
        tasuki::node::coordination::peers::Question { worker: two.fake.id, runs: Vec::new() };
    let refusals = [
        peers.start(&two.peer, &crate::rpc::order(2)).await.map(|_| ()),
        peers.cancel(&two.peer, &crate::rpc::cancel(2)).await.map(|_| ()),
        peers.drain(&two.peer, Epoch(2)).await.map(|_| ()),
        peers.reload(&two.peer, 2).await.map(|_| ()),
        peers.confirm(&two.peer, &question).await.map(|_| ()),
    ];
    for refusal in refusals {
        let silent = refusal.unwrap_err();
        assert!(silent.0.starts_with("PermissionDenied"), "{silent}");
    }
    assert_eq!(two.fake.heard(), []);
}

#[tokio::test]
async fn rpc_tls_an_observer_cannot_serve_and_is_not_believed_to_be_a_node() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &observer());
    let security = Security::Mtls(open(&folder));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let refused = RpcServer::start(anywhere, two.fake.clone(), security, Limits::default()).await;
    assert!(refused.unwrap_err().to_string().contains("is no node"));

    let listener = TcpListener::bind(anywhere).await.unwrap();
    let address = Some(listener.local_addr().unwrap().to_string());
    let acceptor = TlsAcceptor::from(stranger::server(&folder));
    let serving = tokio::spawn(async move {
        // A broken connection is tried once more.
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            assert!(acceptor.accept(stream).await.is_err(), "it got as far as a request");
        }
    });
    let silent = two.peers.drain(&Peer { worker: two.fake.id, address }, Epoch(2)).await;
    let silent = silent.unwrap_err();
    assert!(silent.0.contains("is no node"), "{silent}");
    serving.await.unwrap();
}

/// A new pair comes from a new authority, in three steps, while several nodes call all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rpc_tls_certificates_are_replaced_under_load_without_one_failed_call() {
    let (old, new) = (authority(), authority());
    let callee = certified(&old, &node("callee"));
    let caller = certified(&old, &node("caller"));
    let (server_tls, client_tls) = (open(&callee), open(&caller));
    let fake = Fake::new(1);
    let mut limits = Limits::default();
    limits.connection_age = std::time::Duration::from_millis(50);
    let server = serve(&fake, Security::Mtls(server_tls.clone()), limits).await;
    let peers = Arc::new(RpcPeers::new(Security::Mtls(client_tls.clone()), Arc::new(RealClock)));

    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (peers, peer) = (peers.clone(), peer(&fake, &server));
            let (over, calls) = (over.clone(), calls.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(Answer::Accepted));
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let some_more_calls = async || {
        let enough = calls.load(Ordering::Relaxed) + 200;
        let failed = || callers.iter().any(tokio::task::JoinHandle::is_finished);
        until("calls go on", || failed() || calls.load(Ordering::Relaxed) >= enough).await;
    };
    let in_use = async |generation| {
        let both = [&server_tls, &client_tls];
        until("both use it", || both.iter().all(|tls| tls.generation() == generation)).await;
    };

    some_more_calls().await;
    for folder in [&callee, &caller] {
        folder.write("ca.crt", &format!("{}{}", old.pem(), new.pem()));
    }
    in_use(2).await;
    some_more_calls().await;
    for (folder, name) in [(&callee, "callee"), (&caller, "caller")] {
        // Certificate and key are two files: between them they do not fit.
        rewrite(folder, &new, &node(name), days(30));
    }
    in_use(3).await;
    some_more_calls().await;
    for folder in [&callee, &caller] {
        folder.write("ca.crt", new.pem());
    }
    in_use(4).await;
    some_more_calls().await;
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }

    // It is really the new one that counts.
    let of_old = stranger::client_as(&certified(&old, &node("caller")));
    assert!(!stranger::is_let_in(server.address(), of_old).await);
    let of_new = stranger::client_as(&certified(&new, &node("caller")));
    assert!(stranger::is_let_in(server.address(), of_new).await);
}

#[tokio::test]
async fn rpc_tls_a_bad_new_pair_is_refused_and_the_old_one_kept() {
    let two = Two::start().await;
    let folder = certified(&two.authority, &node("caller"));
    let tls = open(&folder);
    let peers = RpcPeers::new(Security::Mtls(tls.clone()), Arc::new(RealClock));
    let (good_certificate, good_key) = (read(&folder, "tls.crt"), read(&folder, "tls.key"));
    let (_, key_of_another) = two.authority.certify(&node("caller"), days(30)).unwrap();
    let made = |authority: &Authority, identity: &Identity, valid| {
        authority.certify(identity, valid).unwrap()
    };
    let stranger = Identity::new("other", PeerRole::Node, "caller").unwrap();
    let bad = [
        ("garbage", ("-----BEGIN NONSENSE".to_owned(), good_key.clone())),
        ("nothing", (String::new(), good_key.clone())),
        ("no key", (good_certificate.clone(), String::new())),
        ("another key", (good_certificate.clone(), key_of_another)),
        ("expired", made(&two.authority, &node("caller"), between(-2, -1))),
        ("not valid yet", made(&two.authority, &node("caller"), between(1, 2))),
        ("another authority", made(&authority(), &node("caller"), days(30))),
        ("another cluster", made(&two.authority, &stranger, days(30))),
    ];
    for (what, (certificate, key)) in bad {
        let before = tls.refused();
        folder.write("tls.key", &key);
        folder.write("tls.crt", &certificate);
        until(what, || tls.refused() > before).await;
        assert_eq!(tls.generation(), 1, "{what}");
        assert_eq!(pinged(&peers, &two.peer).await, two.fake.id, "{what}");
        folder.write("tls.key", &good_key);
        folder.write("tls.crt", &good_certificate);
    }
    let before = tls.refused();
    fs::remove_file(folder.path().join("ca.crt")).unwrap();
    until("a missing file", || tls.refused() > before).await;
    assert_eq!(pinged(&peers, &two.peer).await, two.fake.id);

    folder.write("ca.crt", two.authority.pem());
    rewrite(&folder, &two.authority, &node("caller-2"), days(30));
    until("a good one is used", || tls.generation() == 2).await;
    assert_eq!(tls.identity(), node("caller-2"));
    assert_eq!(two.fake.heard(), Vec::<Heard>::new());
}

fn read(folder: &Folder, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap()
}

fn rewrite(folder: &Folder, authority: &Authority, identity: &Identity, valid: Valid) {
    let (certificate, key) = authority.certify(identity, valid).unwrap();
    folder.write("tls.crt", &certificate);
    folder.write("tls.key", &key);
}

/// Opened by somebody whose clock is so many seconds ahead.
fn open_at(folder: &Folder, seconds: i64) -> Arc<tasuki_cluster::tls::Tls> {
    open_as(folder, "test", Moved::by(seconds)).unwrap()
}
