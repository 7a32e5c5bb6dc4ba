//! Bearer tokens, for deployments in which a service mesh does TLS.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tasuki::node::clock_and_random::{Clock, RealClock};
use tasuki::node::coordination::node_rpc::{OrderResponse, Peers as _};
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_cluster::signed_token::{MAX_CLOCK_SKEW, TOKEN_LIFETIME, TokenKeyFiles, TokenSigner};
use tasuki_cluster::{Identity, RpcAuthMethod, RpcCallerRole};
use tasuki_core::Epoch;
use tasuki_proto::v1;
use tasuki_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::fixtures::{
    FakeNode, OffsetClock, RELOAD_INTERVAL, TempFolder, node_identity, observer_identity, peer_of,
    ping_until_response, start_server, wait_until,
};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const OTHER_KEY: &str = "fedcba9876543210fedcba9876543210";

fn keys(current: &str, previous: Option<&str>) -> TempFolder {
    let folder = TempFolder::new();
    folder.write("current", current);
    if let Some(previous) = previous {
        folder.write("previous", previous);
    }
    folder
}

fn files(folder: &TempFolder) -> TokenKeyFiles {
    let previous = folder.path().join("previous");
    TokenKeyFiles {
        current: folder.path().join("current"),
        previous: previous.exists().then_some(previous),
    }
}

fn tokens(folder: &TempFolder, identity: Identity) -> Arc<TokenSigner> {
    tokens_at(folder, identity, Arc::new(RealClock))
}

fn tokens_at(folder: &TempFolder, identity: Identity, clock: Arc<dyn Clock>) -> Arc<TokenSigner> {
    TokenSigner::open(files(folder), identity, clock, RELOAD_INTERVAL).unwrap()
}

#[tokio::test]
async fn rpc_token_a_token_is_valid_for_a_minute() {
    let folder = keys(KEY, None);
    let clock = OffsetClock::new(0);
    let ours = tokens_at(&folder, node_identity("here"), clock.clone());
    let token =
        tokens_at(&folder, node_identity("there"), Arc::new(FrozenClock::now())).create_own_token();
    let (life, skew) = (TOKEN_LIFETIME.as_secs() as i64, MAX_CLOCK_SKEW.as_secs() as i64);
    // One second of tolerance on each side, because the clock advances during the test.
    let cases = [
        (0, true),
        (life + skew - 2, true),
        (life + skew + 1, false),
        (-skew, true),
        (-skew - 2, false),
        (-1_000_000, false),
        (1_000_000, false),
    ];
    for (seconds, valid) in cases {
        clock.seconds.store(seconds, Ordering::Relaxed);
        assert_eq!(
            ours.verify(&token).is_ok(),
            valid,
            "{seconds} s later: {:?}",
            ours.verify(&token)
        );
    }
    clock.seconds.store(0, Ordering::Relaxed);
    assert_eq!(ours.verify(&token), Ok(node_identity("there")));
}

/// A clock that always returns the same instant.
struct FrozenClock(jiff::Timestamp);

impl FrozenClock {
    fn now() -> Self {
        Self(RealClock.wall_clock())
    }
}

impl Clock for FrozenClock {
    fn boottime(&self) -> u64 {
        0
    }

    fn wall_clock(&self) -> jiff::Timestamp {
        self.0
    }
}

#[tokio::test]
async fn rpc_token_an_invalid_token_is_refused() {
    let folder = keys(KEY, None);
    let ours = tokens(&folder, node_identity("here"));
    let token = tokens(&folder, observer_identity()).create_own_token();
    assert_eq!(ours.verify(&token), Ok(observer_identity()));
    let (payload, signature) = token.rsplit_once(':').unwrap();
    let invalid = [
        String::new(),
        ":".to_owned(),
        payload.to_owned(),
        format!("{payload}:"),
        format!("{payload}:{}", &signature[..62]),
        format!("{payload}:{signature}00"),
        format!("{payload}:{}", signature.replace(|c: char| c.is_ascii_digit(), "x")),
        format!("{}:{signature}", payload.replace("observer", "node")),
        format!("{}:{signature}", payload.replace("test", "prod")),
        format!("{payload}9:{signature}"),
        "é".repeat(3000),
    ];
    for token in invalid {
        assert!(ours.verify(&token).is_err(), "{token:?}");
    }
    let other_key = tokens(&keys(OTHER_KEY, None), observer_identity()).create_own_token();
    assert!(ours.verify(&other_key).is_err(), "another key");
    let other_cluster = Identity::new("other", RpcCallerRole::Node, "a").unwrap();
    assert!(
        ours.verify(&tokens(&folder, other_cluster).create_own_token()).is_err(),
        "another cluster"
    );
}

#[tokio::test]
async fn rpc_token_a_short_key_is_refused() {
    let folder = keys("too short\n", None);
    let opened = TokenSigner::open(
        files(&folder),
        node_identity("here"),
        Arc::new(RealClock),
        RELOAD_INTERVAL,
    );
    assert!(opened.unwrap_err().to_string().ends_with("a key must have at least 32 bytes"));
    folder.write("current", KEY);
    let ours = tokens(&folder, node_identity("here"));
    folder.write("current", "too short");
    wait_until("the short key is refused", || ours.refused_reloads() == 1).await;
    assert!(ours.verify(&ours.create_own_token()).is_ok(), "the previous key stays in use");
}

struct TokenServer {
    node: Arc<FakeNode>,
    server: RpcServer,
    keys: TempFolder,
}

impl TokenServer {
    async fn start() -> Self {
        let keys = keys(KEY, Some(OTHER_KEY));
        let node = FakeNode::new(1);
        let security = RpcAuthMethod::Token(tokens(&keys, node_identity("server")));
        Self { server: start_server(&node, security, ServerLimits::default()).await, node, keys }
    }

    fn client_with(&self, tokens: Arc<TokenSigner>) -> RpcPeers {
        RpcPeers::new(RpcAuthMethod::Token(tokens), Arc::new(RealClock))
    }

    async fn channel(&self) -> Channel {
        let uri = format!("http://{}", self.server.address());
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }
}

#[tokio::test]
async fn rpc_token_calls_work_without_tls() {
    let server = TokenServer::start().await;
    let peer = peer_of(&server.node, &server.server);
    for folder in [&server.keys, &keys(OTHER_KEY, None)] {
        let peers = server.client_with(tokens(folder, node_identity("client")));
        assert_eq!(ping_until_response(&peers, &peer).await, server.node.id);
        assert_eq!(
            peers.drain(&peer, Epoch(2)).await,
            Ok(OrderResponse::Accepted),
            "both keys are accepted"
        );
    }
}

#[tokio::test]
async fn rpc_token_an_unauthorized_caller_is_refused() {
    let server = TokenServer::start().await;
    let peer = peer_of(&server.node, &server.server);
    let (good, bad) = (&server.keys, &keys("another key, which is long enough", None));
    let other_cluster = Identity::new("other", RpcCallerRole::Node, "a").unwrap();
    let callers = [
        ("another key", tokens(bad, node_identity("client")), "Unauthenticated"),
        ("another cluster", tokens(good, other_cluster), "Unauthenticated"),
        (
            "expired",
            tokens_at(good, node_identity("client"), OffsetClock::new(-70)),
            "Unauthenticated",
        ),
        (
            "a wrong clock",
            tokens_at(good, node_identity("client"), OffsetClock::new(70)),
            "Unauthenticated",
        ),
        ("an observer", tokens(good, observer_identity()), "PermissionDenied"),
    ];
    for (what, tokens, code) in callers {
        let error = server.client_with(tokens).drain(&peer, Epoch(2)).await.unwrap_err();
        assert!(error.0.starts_with(code), "{what}: {error}");
    }
    let mut client = WorkerServiceClient::new(server.channel().await);
    let status = client.ping(v1::PingRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "no token at all");
    assert_eq!(server.node.received(), []);
    let observer_peers = server.client_with(tokens(good, observer_identity()));
    assert_eq!(
        ping_until_response(&observer_peers, &peer).await,
        server.node.id,
        "an observer may ping"
    );
}

/// The new key is configured everywhere as `previous`, then it signs, then the old key is removed. No call fails.
#[tokio::test]
async fn rpc_token_no_call_fails_while_keys_are_replaced() {
    const NEW_KEY: &str = "a new key that is long enough for it";
    let server = TokenServer::start().await;
    let on_server = tokens(&server.keys, node_identity("server"));
    let folder = keys(KEY, Some(OTHER_KEY));
    let on_client = tokens(&folder, node_identity("client"));
    let (peer, peers) =
        (peer_of(&server.node, &server.server), server.client_with(on_client.clone()));
    let steps = [("previous", NEW_KEY), ("current", NEW_KEY), ("previous", OTHER_KEY)];
    for (generation, (name, key)) in (2..).zip(steps) {
        for keys in [&server.keys, &folder] {
            keys.write(name, key);
            assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(OrderResponse::Accepted), "{name}");
        }
        let both = [&on_server, &on_client];
        wait_until("both nodes use the new key", || {
            both.iter().all(|tokens| tokens.generation() == generation)
        })
        .await;
        assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(OrderResponse::Accepted), "{name}");
    }
}

fn with_token<T>(tokens: &TokenSigner, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = format!("Bearer {}", tokens.create_own_token()).parse().unwrap();
    request.metadata_mut().insert("authorization", header);
    request
}

#[tokio::test]
async fn rpc_token_an_invalid_request_is_refused_and_reaches_no_node() {
    let server = TokenServer::start().await;
    let on_client = tokens(&server.keys, node_identity("client"));
    let mut client = WorkerServiceClient::new(server.channel().await);
    let worker_id = server.node.id.to_string();
    let empty = v1::StartJobRequest::default();
    let orders = [
        empty.clone(),
        v1::StartJobRequest { worker_id: "me".to_owned(), ..empty.clone() },
        v1::StartJobRequest { worker_id: worker_id.clone(), ..empty.clone() },
        v1::StartJobRequest { worker_id: worker_id.clone(), leader_epoch: -4, ..empty.clone() },
        v1::StartJobRequest {
            worker_id: worker_id.clone(),
            leader_epoch: 4,
            lease_token: vec![1; 15],
            ..empty
        },
    ];
    for order in orders {
        let case = format!("{order:?}");
        let response = client.start_job(with_token(&on_client, order)).await.unwrap().into_inner();
        assert_eq!(response.result(), v1::order_response::Result::RejectedInvalid, "{case}");
        assert!(!response.message.is_empty(), "{case}");
    }
    let huge = v1::PingRequest { worker_id: "x".repeat(2 << 20) };
    let status = client.ping(with_token(&on_client, huge)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let ping = v1::PingRequest { worker_id };
    assert!(client.ping(with_token(&on_client, ping)).await.is_ok(), "the server still responds");
    assert_eq!(server.node.received(), []);
}

#[tokio::test]
async fn rpc_token_an_observer_may_use_reflection() {
    let server = TokenServer::start().await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let request = || ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let probe = tokens(&server.keys, observer_identity());
    let request_stream = with_token(&probe, tokio_stream::once(request()));
    let mut responses = client.server_reflection_info(request_stream).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = response else {
        panic!("not a list: {response:?}")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["tasuki.v1.WorkerService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let status = client.server_reflection_info(tokio_stream::once(request())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "a caller without a token is refused");
}

#[tokio::test]
async fn rpc_token_an_observer_may_check_health() {
    let server = TokenServer::start().await;
    let mut client = HealthClient::new(server.channel().await);
    let request = || HealthCheckRequest { service: "tasuki.v1.WorkerService".to_owned() };
    let probe = tokens(&server.keys, observer_identity());
    let healthy = client.check(with_token(&probe, request())).await.unwrap().into_inner();
    assert_eq!(healthy.status, 1, "SERVING");
    let status = client.check(request()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "a caller without a token is refused");
}
