//! Simulated network: RPC between nodes and the coordinator, with delays, losses and repetitions.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::Notification;

use super::state::SimState;
use crate::node::coordination::coordinator_trait::{
    Coordinator, CoordinatorUnreachable, Presence, PublishedLeader, Subscription, WorkerMarks,
};
use crate::node::coordination::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, NodeRpc, OrderResponse, Peer, PeerUnreachable,
    Peers, StartOrder, WorkerStatus,
};

/// A start order that is not delivered yet.
pub(super) struct OrderInFlight {
    pub(super) to: WorkerId,
    pub(super) order: StartOrder,
}

/// RPC services of all running nodes.
#[derive(Clone, Default)]
pub(super) struct NodeDirectory(Arc<Mutex<Vec<(usize, Weak<dyn NodeRpc>)>>>);

impl NodeDirectory {
    pub(super) fn register(&self, host: usize, service: &Arc<dyn NodeRpc>) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|(_, node)| node.strong_count() > 0);
        nodes.push((host, Arc::downgrade(service)));
    }

    fn find(&self, peer: &Peer) -> Option<(usize, Arc<dyn NodeRpc>)> {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut up = nodes.iter().filter_map(|(host, node)| Some((*host, node.upgrade()?)));
        up.find(|(_, node)| node.worker_id() == peer.worker)
    }
}

/// RPC client of a simulated node. The simulation delivers start orders late, twice or not at all. Other calls may fail.
pub(super) struct SimPeers {
    pub(super) state: SimState,
    pub(super) nodes: NodeDirectory,
}

impl SimPeers {
    async fn connect(&self, peer: &Peer) -> Result<Arc<dyn NodeRpc>, PeerUnreachable> {
        self.state.pause().await;
        let service = self.nodes.find(peer);
        let inner = &mut *self.state.lock();
        let lost = !inner.no_faults && inner.rng.chance(200);
        match service {
            Some((host, service)) if !lost && !inner.frozen[host] => Ok(service),
            Some(_) | None => Err(PeerUnreachable("simulated loss".to_owned())),
        }
    }
}

#[async_trait]
impl Peers for SimPeers {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, PeerUnreachable> {
        Ok(self.connect(peer).await?.worker_id())
    }

    async fn status(&self, peer: &Peer) -> Result<WorkerStatus, PeerUnreachable> {
        Ok(self.connect(peer).await?.status())
    }

    async fn start(
        &self,
        peer: &Peer,
        order: &StartOrder,
    ) -> Result<OrderResponse, PeerUnreachable> {
        {
            let inner = &mut *self.state.lock();
            let times = match inner.no_faults {
                true => 1,
                false => inner.rng.pick_weighted(&[(15, 0), (70, 1), (15, 2)]),
            };
            for _ in 0..times {
                inner
                    .orders_in_flight
                    .push(OrderInFlight { to: peer.worker, order: order.clone() });
            }
        }
        self.state.pause().await;
        Ok(OrderResponse::Accepted)
    }

    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.connect(peer).await?.cancel(order.clone()).await)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.connect(peer).await?.drain(epoch).await)
    }

    async fn confirm(
        &self,
        peer: &Peer,
        request: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        let _others = self.state.disable_pauses();
        let confirmed = self.connect(peer).await?.confirm(request.clone()).await;
        self.state.log(|| format!("{} may go on with {confirmed:?}", request.worker));
        confirmed
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable> {
        Ok(self.connect(peer).await?.reload(version).await)
    }
}

/// A coordinator that is sometimes unreachable.
pub(super) struct SimCoordinator {
    pub(super) state: SimState,
    pub(super) inner: Arc<dyn Coordinator>,
}

impl SimCoordinator {
    async fn fail_sometimes(&self) -> Result<(), CoordinatorUnreachable> {
        self.state.pause().await;
        let inner = &mut *self.state.lock();
        match !inner.no_faults && inner.rng.chance(50) {
            true => Err(CoordinatorUnreachable("simulated loss".to_owned())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Coordinator for SimCoordinator {
    async fn acquire_election_lock(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<Option<Epoch>, CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.acquire_election_lock(worker, ttl).await
    }

    async fn publish_leader(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.publish_leader(worker, epoch, ttl).await
    }

    async fn remove_leader(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.remove_leader(worker).await
    }

    async fn find_leader(&self) -> Result<Option<PublishedLeader>, CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.find_leader().await
    }

    async fn mark_term_ended(
        &self,
        leader: WorkerId,
        epoch: Epoch,
    ) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.mark_term_ended(leader, epoch).await
    }

    async fn acquire_subleader(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.acquire_subleader(worker, node, ttl).await
    }

    async fn publish_presence(
        &self,
        presence: &Presence,
        ttl: Duration,
    ) -> Result<WorkerMarks, CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.publish_presence(presence, ttl).await
    }

    async fn remove_presence(&self, worker: WorkerId) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.remove_presence(worker).await
    }

    async fn mark_detached(
        &self,
        worker: WorkerId,
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.mark_detached(worker, ttl).await
    }

    async fn publish_leased_runs(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.publish_leased_runs(worker, runs, ttl).await
    }

    async fn notify(&self, notification: Notification) -> Result<(), CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.notify(notification).await
    }

    async fn subscribe(&self) -> Result<Option<Box<dyn Subscription>>, CoordinatorUnreachable> {
        self.fail_sometimes().await?;
        self.inner.subscribe().await
    }
}
