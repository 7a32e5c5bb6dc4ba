//! RPC between nodes: messages, the client trait [`Peers`] and the server trait [`NodeRpc`].
//!
//! Every message is a hint: the receiver checks the database, or writes to it with a guard. So a message may be lost,
//! late, repeated or forged without harm.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tasuki_core::{Epoch, LeaseToken, NodeName, RunId, WorkerId};

use super::coordinator_trait::ClusterRole;

/// A worker to call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Id of the worker. A later worker at the same address has another id and does not answer for this one.
    pub worker: WorkerId,
    /// RPC address from the worker's row; `None`: it can only be called within its process.
    pub address: Option<String>,
}

/// Order of the leader to start assigned runs. It is sent before the runs are due, so that they start on time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOrder {
    /// Epoch of the leader that assigned the runs.
    pub epoch: Epoch,
    /// Token of the lease that the worker holds for these runs.
    pub token: LeaseToken,
    /// The assigned runs, each with its due instant.
    pub runs: Vec<(RunId, Timestamp)>,
}

/// Order to check runs now, because a cancel was requested for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelHint {
    /// Newest epoch that the sender knows.
    pub epoch: Epoch,
    /// Runs with a cancel request.
    pub runs: Vec<RunId>,
}

/// Request of a detached worker to go on with runs that it still executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachedWorkerContinueRequest {
    /// The detached worker.
    pub worker: WorkerId,
    /// Runs that the worker executes, each with the token of its lease.
    pub runs: Vec<(RunId, LeaseToken)>,
}

/// Response of a worker to an order. A refusal is a response, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderResponse {
    /// The worker accepted the order.
    Accepted,
    /// The order is from an old term; the newest epoch that the worker knows is this one.
    OldEpoch(Epoch),
    /// The worker is detached.
    Detached,
    /// The worker drains: it starts no new runs.
    Draining,
    /// The worker already has these runs.
    AlreadyRunning,
    /// The order is malformed or for another worker.
    Invalid(String),
}

/// Current state of a worker, as it reports itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Node on which the worker runs.
    pub node: NodeName,
    /// Role of the worker at the moment.
    pub role: ClusterRole,
    /// Newest epoch that the worker knows.
    pub epoch: Epoch,
    /// Number of runs that the worker holds.
    pub load: u32,
    /// Some of these runs; the list is bounded.
    pub runs: Vec<RunId>,
    /// Whether the worker is detached.
    pub detached: bool,
    /// Whether the worker drains: it starts no new runs.
    pub draining: bool,
}

/// A worker did not respond in time, or its response could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no response: {0}")]
pub struct PeerUnreachable(pub String);

/// Client side of the RPC between nodes.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Checks that a worker responds, and returns the id of the worker at that address.
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, PeerUnreachable>;

    /// Fetches the current state of a worker.
    async fn status(&self, peer: &Peer) -> Result<WorkerStatus, PeerUnreachable>;

    /// Orders a worker to start assigned runs. If the order is lost, the worker finds them with its next heartbeat.
    async fn start(
        &self,
        peer: &Peer,
        order: &StartOrder,
    ) -> Result<OrderResponse, PeerUnreachable>;

    /// Orders a worker to check runs for which a cancel was requested.
    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable>;

    /// Informs a worker that it was drained or detached.
    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable>;

    /// Asks a leader or subleader which runs a detached worker may go on with.
    async fn confirm(
        &self,
        peer: &Peer,
        request: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable>;

    /// Informs a worker that there are settings of this version.
    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable>;
}

/// Server side of the RPC between nodes: the RPC server calls it for each request that arrives at the node's port.
#[async_trait]
pub trait NodeRpc: Send + Sync {
    /// Id of the worker in this process.
    fn worker_id(&self) -> WorkerId;

    /// Current state of the worker.
    fn status(&self) -> WorkerStatus;

    /// Accepts or refuses an order to start assigned runs.
    async fn start(&self, order: StartOrder) -> OrderResponse;

    /// Accepts or refuses an order to check runs for which a cancel was requested.
    async fn cancel(&self, order: CancelHint) -> OrderResponse;

    /// Accepts or refuses the information that the worker was drained or detached.
    async fn drain(&self, epoch: Epoch) -> OrderResponse;

    /// Whether a caller with this node name may request a continuation for a worker. A node may do so only for its own
    /// workers.
    async fn may_confirm_for(
        &self,
        caller: &str,
        worker: WorkerId,
    ) -> Result<bool, PeerUnreachable>;

    /// Returns the runs of the request that the detached worker may go on with.
    async fn confirm(
        &self,
        request: DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable>;

    /// Accepts the information that there are settings of this version.
    async fn reload(&self, version: i64) -> OrderResponse;
}

/// Timeout of a ping.
pub const PING_TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout of every other call.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(2);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{} at {address}", self.worker),
            None => write!(f, "{}", self.worker),
        }
    }
}

/// Calls workers in this process directly. A node that is alone opens no port.
#[derive(Clone, Default)]
pub struct InProcessPeers {
    workers: Arc<Mutex<Vec<Weak<dyn NodeRpc>>>>,
}

impl InProcessPeers {
    /// Registers the RPC service of a worker, which can be called for as long as the service lives.
    pub fn register(&self, service: &Arc<dyn NodeRpc>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|known| known.strong_count() > 0);
        workers.push(Arc::downgrade(service));
    }

    fn find(&self, peer: &Peer) -> Result<Arc<dyn NodeRpc>, PeerUnreachable> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut services = workers.iter().filter_map(Weak::upgrade);
        let found = services.find(|service| service.worker_id() == peer.worker);
        found.ok_or_else(|| PeerUnreachable("the worker is not in this process".to_owned()))
    }
}

#[async_trait]
impl Peers for InProcessPeers {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, PeerUnreachable> {
        Ok(self.find(peer)?.worker_id())
    }

    async fn status(&self, peer: &Peer) -> Result<WorkerStatus, PeerUnreachable> {
        Ok(self.find(peer)?.status())
    }

    async fn start(
        &self,
        peer: &Peer,
        order: &StartOrder,
    ) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.find(peer)?.start(order.clone()).await)
    }

    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.find(peer)?.cancel(order.clone()).await)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.find(peer)?.drain(epoch).await)
    }

    async fn confirm(
        &self,
        peer: &Peer,
        request: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        self.find(peer)?.confirm(request.clone()).await
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.find(peer)?.reload(version).await)
    }
}

/// Routes calls: workers of this process are called directly, all others through `remote`.
pub(crate) struct PeerRouter {
    pub(crate) local: InProcessPeers,
    pub(crate) remote: Option<Arc<dyn Peers>>,
}

impl PeerRouter {
    fn route(&self, peer: &Peer) -> Result<&dyn Peers, PeerUnreachable> {
        match (self.local.find(peer), &self.remote) {
            (Ok(_), _) => Ok(&self.local),
            (Err(_), Some(remote)) => Ok(&**remote),
            (Err(error), None) => Err(error),
        }
    }
}

#[async_trait]
impl Peers for PeerRouter {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, PeerUnreachable> {
        self.route(peer)?.ping(peer).await
    }

    async fn status(&self, peer: &Peer) -> Result<WorkerStatus, PeerUnreachable> {
        self.route(peer)?.status(peer).await
    }

    async fn start(
        &self,
        peer: &Peer,
        order: &StartOrder,
    ) -> Result<OrderResponse, PeerUnreachable> {
        self.route(peer)?.start(peer, order).await
    }

    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable> {
        self.route(peer)?.cancel(peer, order).await
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable> {
        self.route(peer)?.drain(peer, epoch).await
    }

    async fn confirm(
        &self,
        peer: &Peer,
        request: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        self.route(peer)?.confirm(peer, request).await
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable> {
        self.route(peer)?.reload(peer, version).await
    }
}
