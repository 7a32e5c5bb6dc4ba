//! Tokens, for where TLS ends before it reaches us.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tasuki::node::coordination::peers::{Answer, Peers as _};
use tasuki::node::world::{Clock, RealClock};
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_cluster::token::{LIFE, SKEW, TokenFiles, Tokens};
use tasuki_cluster::{Identity, PeerRole, Security};
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

use crate::fake::{Fake, Folder, LOOK_EVERY, Moved, node, observer, peer, pinged, serve, until};

const KEY: &str = "0123456789abcdef0123456789abcdef";
const OTHER_KEY: &str = "fedcba9876543210fedcba9876543210";

fn keys(current: &str, previous: Option<&str>) -> Folder {
    let folder = Folder::new();
    folder.write("current", current);
    if let Some(previous) = previous {
        folder.write("previous", previous);
    }
    folder
}

fn files(folder: &Folder) -> TokenFiles {
    let previous = folder.path().join("previous");
    TokenFiles {
        current: folder.path().join("current"),
        previous: previous.exists().then_some(previous),
    }
}

fn tokens(folder: &Folder, identity: Identity) -> Arc<Tokens> {
    tokens_at(folder, identity, Arc::new(RealClock))
}

fn tokens_at(folder: &Folder, identity: Identity, clock: Arc<dyn Clock>) -> Arc<Tokens> {
    Tokens::open(files(folder), identity, clock, LOOK_EVERY).unwrap()
}

#[tokio::test]
async fn rpc_token_a_token_lives_for_a_minute() {
    let folder = keys(KEY, None);
    let clock = Moved::by(0);
    let ours = tokens_at(&folder, node("here"), clock.clone());
    let token = tokens_at(&folder, node("there"), Arc::new(StandsStill::now())).sign();
    let (life, skew) = (LIFE.as_secs() as i64, SKEW.as_secs() as i64);
    // A second to each side: the clock goes on while this is tried.
    let cases = [
        (0, true),
        (life + skew - 2, true),
        (life + skew + 1, false),
        (-skew, true),
        (-skew - 2, false),
        (-1_000_000, false),
        (1_000_000, false),
    ];
    for (seconds, good) in cases {
        clock.seconds.store(seconds, Ordering::Relaxed);
        assert_eq!(ours.check(&token).is_ok(), good, "{seconds} s later: {:?}", ours.check(&token));
    }
    clock.seconds.store(0, Ordering::Relaxed);
    assert_eq!(ours.check(&token), Ok(node("there")));
}

/// A clock that shows one instant.
struct StandsStill(jiff::Timestamp);

impl StandsStill {
    fn now() -> Self {
        Self(RealClock.wall())
    }
}

impl Clock for StandsStill {
    fn boottime(&self) -> u64 {
        0
    }

    fn wall(&self) -> jiff::Timestamp {
        self.0
    }
}

#[tokio::test]
async fn rpc_token_what_is_not_quite_a_token_is_none() {
    let folder = keys(KEY, None);
    let ours = tokens(&folder, node("here"));
    let token = tokens(&folder, observer()).sign();
    assert_eq!(ours.check(&token), Ok(observer()));
    let (said, mark) = token.rsplit_once(':').unwrap();
    let wrong = [
        String::new(),
        ":".to_owned(),
        said.to_owned(),
        format!("{said}:"),
        format!("{said}:{}", &mark[..62]),
        format!("{said}:{mark}00"),
        format!("{said}:{}", mark.replace(|c: char| c.is_ascii_digit(), "x")),
        format!("{}:{mark}", said.replace("observer", "node")),
        format!("{}:{mark}", said.replace("test", "prod")),
        format!("{said}9:{mark}"),
        "é".repeat(3000),
    ];
    for wrong in wrong {
        assert!(ours.check(&wrong).is_err(), "{wrong:?}");
    }
    let other_key = tokens(&keys(OTHER_KEY, None), observer()).sign();
    assert!(ours.check(&other_key).is_err(), "another key");
    let stranger = Identity::new("other", PeerRole::Node, "a").unwrap();
    assert!(ours.check(&tokens(&folder, stranger).sign()).is_err(), "another cluster");
}

#[tokio::test]
async fn rpc_token_a_short_key_is_refused() {
    let folder = keys("too short\n", None);
    let opened = Tokens::open(files(&folder), node("here"), Arc::new(RealClock), LOOK_EVERY);
    assert!(opened.unwrap_err().to_string().ends_with("a key has at least 32 bytes"));
    folder.write("current", KEY);
    let ours = tokens(&folder, node("here"));
    folder.write("current", "too short");
    until("it is refused", || ours.refused() == 1).await;
    assert!(ours.check(&ours.sign()).is_ok(), "the old one is kept");
}

struct Called {
    fake: Arc<Fake>,
    server: RpcServer,
    keys: Folder,
}

impl Called {
    async fn start() -> Self {
        let keys = keys(KEY, Some(OTHER_KEY));
        let fake = Fake::new(1);
        let security = Security::Token(tokens(&keys, node("callee")));
        Self { server: serve(&fake, security, Limits::default()).await, fake, keys }
    }

    fn caller(&self, tokens: Arc<Tokens>) -> RpcPeers {
        RpcPeers::new(Security::Token(tokens), Arc::new(RealClock))
    }

    async fn channel(&self) -> Channel {
        let uri = format!("http://{}", self.server.address());
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }
}

#[tokio::test]
async fn rpc_token_calls_go_there_and_back_without_tls() {
    let called = Called::start().await;
    let peer = peer(&called.fake, &called.server);
    for folder in [&called.keys, &keys(OTHER_KEY, None)] {
        let peers = called.caller(tokens(folder, node("caller")));
        assert_eq!(pinged(&peers, &peer).await, called.fake.id);
        assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(Answer::Accepted), "both keys are good");
    }
}

#[tokio::test]
async fn rpc_token_who_is_not_known_is_refused() {
    let called = Called::start().await;
    let peer = peer(&called.fake, &called.server);
    let (good, bad) = (&called.keys, &keys("another key, which is long enough", None));
    let stranger = Identity::new("other", PeerRole::Node, "a").unwrap();
    let callers = [
        ("another key", tokens(bad, node("caller")), "Unauthenticated"),
        ("another cluster", tokens(good, stranger), "Unauthenticated"),
        ("expired", tokens_at(good, node("caller"), Moved::by(-70)), "Unauthenticated"),
        ("a wrong clock", tokens_at(good, node("caller"), Moved::by(70)), "Unauthenticated"),
        ("an observer", tokens(good, observer()), "PermissionDenied"),
    ];
    for (what, tokens, code) in callers {
        let silent = called.caller(tokens).drain(&peer, Epoch(2)).await.unwrap_err();
        assert!(silent.0.starts_with(code), "{what}: {silent}");
    }
    let mut client = WorkerServiceClient::new(called.channel().await);
    let status = client.ping(v1::PingRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "no token at all");
    assert_eq!(called.fake.heard(), []);
    let looks = called.caller(tokens(good, observer()));
    assert_eq!(pinged(&looks, &peer).await, called.fake.id, "an observer may look");
}

/// The new key goes round as `previous`, then signs, then the old one goes. No call fails.
#[tokio::test]
async fn rpc_token_keys_are_replaced_without_one_failed_call() {
    const NEW_KEY: &str = "a new key that is long enough for it";
    let called = Called::start().await;
    let callee = tokens(&called.keys, node("callee"));
    let folder = keys(KEY, Some(OTHER_KEY));
    let caller = tokens(&folder, node("caller"));
    let (peer, peers) = (peer(&called.fake, &called.server), called.caller(caller.clone()));
    let steps = [("previous", NEW_KEY), ("current", NEW_KEY), ("previous", OTHER_KEY)];
    for (generation, (name, key)) in (2..).zip(steps) {
        for one in [&called.keys, &folder] {
            one.write(name, key);
            assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(Answer::Accepted), "{name}");
        }
        let both = [&callee, &caller];
        until("it is used", || both.iter().all(|one| one.generation() == generation)).await;
        assert_eq!(peers.drain(&peer, Epoch(2)).await, Ok(Answer::Accepted), "{name}");
    }
}

fn with_token<T>(tokens: &Tokens, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let shown = format!("Bearer {}", tokens.sign()).parse().unwrap();
    request.metadata_mut().insert("authorization", shown);
    request
}

#[tokio::test]
async fn rpc_token_what_makes_no_sense_is_refused_and_harms_nobody() {
    let called = Called::start().await;
    let caller = tokens(&called.keys, node("caller"));
    let mut client = WorkerServiceClient::new(called.channel().await);
    let worker_id = called.fake.id.to_string();
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
        let said = format!("{order:?}");
        let answer = client.start_job(with_token(&caller, order)).await.unwrap().into_inner();
        assert_eq!(answer.result(), v1::answer::Result::RejectedInvalid, "{said}");
        assert!(!answer.message.is_empty(), "{said}");
    }
    let huge = v1::PingRequest { worker_id: "x".repeat(2 << 20) };
    let status = client.ping(with_token(&caller, huge)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let ping = v1::PingRequest { worker_id };
    assert!(client.ping(with_token(&caller, ping)).await.is_ok(), "it still answers");
    assert_eq!(called.fake.heard(), []);
}

#[tokio::test]
async fn rpc_token_an_observer_is_told_what_a_node_understands() {
    let called = Called::start().await;
    let mut client = ServerReflectionClient::new(called.channel().await);
    let question = || ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let probe = tokens(&called.keys, observer());
    let asked = with_token(&probe, tokio_stream::once(question()));
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("not a list: {answer:?}")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["tasuki.v1.WorkerService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let status = client.server_reflection_info(tokio_stream::once(question())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "nobody else is told");
}

#[tokio::test]
async fn rpc_token_health_is_told_to_an_observer() {
    let called = Called::start().await;
    let mut client = HealthClient::new(called.channel().await);
    let question = || HealthCheckRequest { service: "tasuki.v1.WorkerService".to_owned() };
    let probe = tokens(&called.keys, observer());
    let healthy = client.check(with_token(&probe, question())).await.unwrap().into_inner();
    assert_eq!(healthy.status, 1, "SERVING");
    let status = client.check(question()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "nobody else is told");
}
