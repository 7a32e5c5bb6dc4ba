//! Fixtures: a fake node, certificates, a clock that can be moved, and temporary folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use tasuki::node::clock_and_random::{Clock, RealClock};
use tasuki::node::coordination::coordinator_trait::ClusterRole;
use tasuki::node::coordination::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, NodeRpc, OrderResponse, Peer, PeerUnreachable,
    Peers as _, StartOrder, WorkerStatus,
};
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_cluster::tls::dev::{DevAuthority, ValidityPeriod};
use tasuki_cluster::tls::{MutualTls, TlsFiles};
use tasuki_cluster::{Identity, RpcAuthMethod, RpcCallerRole};
use tasuki_core::{Epoch, RunId, WorkerId};
use tokio::sync::{Notify, Semaphore};

pub(crate) const CLUSTER: &str = "test";
/// Interval at which the tests reload certificate and key files.
pub(crate) const RELOAD_INTERVAL: Duration = Duration::from_millis(20);

/// A fake node that records the requests it receives.
pub(crate) struct FakeNode {
    pub(crate) id: WorkerId,
    pub(crate) newest: Mutex<Epoch>,
    pub(crate) received: Mutex<Vec<ReceivedRequest>>,
    /// Orders wait here while no permits are available.
    pub(crate) gate: Semaphore,
    /// Notified when an order arrives.
    pub(crate) order_arrived: Notify,
    pub(crate) response: Mutex<OrderResponse>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReceivedRequest {
    Start(StartOrder),
    Cancel(CancelHint),
    Drain(Epoch),
    Confirm(DetachedWorkerContinueRequest),
    Reload(i64),
}

impl FakeNode {
    pub(crate) fn new(id: u128) -> Arc<Self> {
        Arc::new(Self {
            id: WorkerId::from_random(id),
            newest: Mutex::new(Epoch(1)),
            received: Mutex::default(),
            gate: Semaphore::new(1_000_000),
            order_arrived: Notify::new(),
            response: Mutex::new(OrderResponse::Accepted),
        })
    }

    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    /// From now on orders receive no response.
    pub(crate) fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX >> 8);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(1_000_000);
    }

    async fn handle_order(&self, epoch: Epoch, request: ReceivedRequest) -> OrderResponse {
        self.order_arrived.notify_one();
        let _permit = self.gate.acquire().await.unwrap();
        let mut newest = self.newest.lock().unwrap();
        if epoch < *newest {
            return OrderResponse::OldEpoch(*newest);
        }
        *newest = epoch;
        self.received.lock().unwrap().push(request);
        self.response.lock().unwrap().clone()
    }
}

#[async_trait]
impl NodeRpc for FakeNode {
    fn worker_id(&self) -> WorkerId {
        self.id
    }

    fn status(&self) -> WorkerStatus {
        WorkerStatus {
            worker: self.id,
            node: "ノード1".parse().unwrap(),
            role: ClusterRole::Subleader,
            epoch: *self.newest.lock().unwrap(),
            load: 3,
            runs: vec![RunId(7), RunId(8)],
            detached: true,
            draining: false,
        }
    }

    async fn start(&self, order: StartOrder) -> OrderResponse {
        self.handle_order(order.epoch, ReceivedRequest::Start(order)).await
    }

    async fn cancel(&self, order: CancelHint) -> OrderResponse {
        self.handle_order(order.epoch, ReceivedRequest::Cancel(order)).await
    }

    async fn drain(&self, epoch: Epoch) -> OrderResponse {
        self.handle_order(epoch, ReceivedRequest::Drain(epoch)).await
    }

    async fn may_confirm_for(&self, _: &str, _: WorkerId) -> Result<bool, PeerUnreachable> {
        Ok(true)
    }

    async fn confirm(
        &self,
        request: DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        self.received.lock().unwrap().push(ReceivedRequest::Confirm(request.clone()));
        match request.runs.first() {
            Some((run, _)) => Ok(vec![*run]),
            None => Err(PeerUnreachable("this worker is neither leader nor subleader".to_owned())),
        }
    }

    async fn reload(&self, version: i64) -> OrderResponse {
        self.handle_order(Epoch(i64::MAX), ReceivedRequest::Reload(version)).await
    }
}

/// The real clock plus an offset in seconds.
#[derive(Default)]
pub(crate) struct OffsetClock {
    pub(crate) seconds: AtomicI64,
}

impl OffsetClock {
    pub(crate) fn new(seconds: i64) -> Arc<Self> {
        Arc::new(Self { seconds: AtomicI64::new(seconds) })
    }
}

impl Clock for OffsetClock {
    fn boottime(&self) -> u64 {
        let offset = self.seconds.load(Ordering::Relaxed).max(0) as u64;
        RealClock.boottime() + offset * 1_000_000
    }

    fn wall_clock(&self) -> Timestamp {
        RealClock.wall_clock() + SignedDuration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
}

/// A temporary folder, removed when it is dropped.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("tasuki-rpc-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces a file atomically.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let temporary = self.0.join(format!("{name}.new"));
        fs::write(&temporary, content).unwrap();
        fs::rename(temporary, self.0.join(name)).unwrap();
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn authority() -> DevAuthority {
    DevAuthority::new(valid_days(30)).unwrap()
}

/// Valid from 30 days ago until this many days from now.
pub(crate) fn valid_days(days: i64) -> ValidityPeriod {
    valid_between(-30, days)
}

/// Valid between two times, in days from now.
pub(crate) fn valid_between(from: i64, until: i64) -> ValidityPeriod {
    let (now, offset) = (Timestamp::now(), |days: i64| SignedDuration::from_hours(24 * days));
    ValidityPeriod { from: now + offset(from), until: now + offset(until) }
}

pub(crate) fn node_identity(name: &str) -> Identity {
    Identity::new(CLUSTER, RpcCallerRole::Node, name).unwrap()
}

pub(crate) fn observer_identity() -> Identity {
    Identity::new(CLUSTER, RpcCallerRole::Observer, "probe").unwrap()
}

/// Creates a folder with a certificate for an identity, its key, and the authority.
pub(crate) fn create_cert_folder(authority: &DevAuthority, identity: &Identity) -> TempFolder {
    let folder = TempFolder::new();
    let (certificate, key) = authority.issue_certificate(identity, valid_days(30)).unwrap();
    folder.write("tls.crt", &certificate);
    folder.write("tls.key", &key);
    folder.write("ca.crt", authority.pem());
    folder
}

pub(crate) fn open_tls(folder: &TempFolder) -> Arc<MutualTls> {
    open_tls_for(folder, CLUSTER, Arc::new(RealClock)).unwrap()
}

pub(crate) fn open_tls_for(
    folder: &TempFolder,
    cluster: &str,
    clock: Arc<dyn Clock>,
) -> Result<Arc<MutualTls>, tasuki_cluster::security::Error> {
    MutualTls::open(TlsFiles::in_folder(folder.path()), cluster, clock, RELOAD_INTERVAL)
}

/// Two nodes with certificates of the same authority: a fake node with a server, and a client.
pub(crate) struct ServerAndClient {
    pub(crate) node: Arc<FakeNode>,
    pub(crate) server: RpcServer,
    pub(crate) authority: DevAuthority,
    pub(crate) peers: RpcPeers,
    pub(crate) peer: Peer,
    _folders: [TempFolder; 2],
}

impl ServerAndClient {
    pub(crate) async fn start() -> Self {
        Self::start_with(ServerLimits::default()).await
    }

    pub(crate) async fn start_with(limits: ServerLimits) -> Self {
        let authority = authority();
        let folders =
            ["server", "client"].map(|name| create_cert_folder(&authority, &node_identity(name)));
        let [of_server, of_client] =
            [&folders[0], &folders[1]].map(|folder| RpcAuthMethod::Mtls(open_tls(folder)));
        let node = FakeNode::new(1);
        let server = start_server(&node, of_server, limits).await;
        let peer = peer_of(&node, &server);
        let peers = RpcPeers::new(of_client, Arc::new(RealClock));
        Self { node, server, authority, peers, peer, _folders: folders }
    }

    /// A client with the certificate in another folder.
    pub(crate) fn client_with(&self, folder: &TempFolder) -> RpcPeers {
        RpcPeers::new(RpcAuthMethod::Mtls(open_tls(folder)), Arc::new(RealClock))
    }
}

pub(crate) async fn start_server(
    node: &Arc<FakeNode>,
    security: RpcAuthMethod,
    limits: ServerLimits,
) -> RpcServer {
    let any_port = "127.0.0.1:0".parse().unwrap();
    RpcServer::start(any_port, node.clone(), security, limits).await.unwrap()
}

pub(crate) fn peer_of(node: &FakeNode, server: &RpcServer) -> Peer {
    Peer { worker: node.id, address: Some(server.address().to_string()) }
}

/// Waits until a condition holds; fails after far longer than it should take.
pub(crate) async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Pings until there is a response, and returns the worker id in it. On a busy machine a single ping may time out.
pub(crate) async fn ping_until_response(peers: &RpcPeers, peer: &Peer) -> WorkerId {
    let began = Instant::now();
    loop {
        match peers.ping(peer).await {
            Ok(worker) => return worker,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(20), "{error}"),
        }
    }
}

pub(crate) async fn responds(peers: &RpcPeers, peer: &Peer) -> bool {
    ping_until_response(peers, peer).await == peer.worker
}
