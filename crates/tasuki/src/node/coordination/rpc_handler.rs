//! The node's RPC service. It does not trust its callers: an order only makes the worker read the database sooner,
//! and the worker acts on what it finds there.

use std::sync::Arc;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, RunState, WorkerId};
use tasuki_store::{LeasedRun, Store};

use super::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, NodeRpc, OrderResponse, PeerUnreachable, StartOrder,
    WorkerStatus,
};
use crate::Wakeups;
use crate::node::leader::Leader;
use crate::node::store_timeout::with_timeout;
use crate::node::worker::Worker;

/// Maximum number of runs that a worker lists in its status and in its presence.
pub(in crate::node) const MAX_LISTED_RUNS: usize = 100;

/// RPC service of a node.
pub(crate) struct NodeService {
    pub(crate) node: NodeName,
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) store: Store,
    pub(crate) wakeups: Wakeups,
}

impl NodeService {
    /// Refuses an order from an old term. If the order's epoch is newer than the known one, requests a heartbeat.
    fn check_epoch(&self, epoch: Epoch) -> Option<OrderResponse> {
        let newest = self.worker.newest_epoch();
        if epoch > newest {
            // There may be a newer leader. Only the database can confirm that.
            self.worker.request_heartbeat();
        }
        (epoch < newest).then_some(OrderResponse::OldEpoch(newest))
    }
}

#[async_trait]
impl NodeRpc for NodeService {
    fn worker_id(&self) -> WorkerId {
        self.worker.id()
    }

    fn status(&self) -> WorkerStatus {
        let leased = self.worker.leased_runs();
        WorkerStatus {
            worker: self.worker.id(),
            node: self.node.clone(),
            role: self.leader.role(),
            epoch: self.worker.newest_epoch(),
            load: leased.len() as u32,
            runs: leased.into_iter().take(MAX_LISTED_RUNS).collect(),
            detached: self.worker.is_detached(),
            draining: self.worker.is_draining(),
        }
    }

    async fn start(&self, order: StartOrder) -> OrderResponse {
        if let Some(refusal) = self.check_epoch(order.epoch) {
            return refusal;
        }
        if order.runs.is_empty() {
            return OrderResponse::Invalid("the order contains no run".to_owned());
        }
        if self.worker.is_detached() {
            return OrderResponse::Detached;
        }
        if self.worker.is_draining() {
            return OrderResponse::Draining;
        }
        match self.worker.accept_order(&order) {
            true => OrderResponse::Accepted,
            false => OrderResponse::AlreadyRunning,
        }
    }

    async fn cancel(&self, order: CancelHint) -> OrderResponse {
        if let Some(refusal) = self.check_epoch(order.epoch) {
            return refusal;
        }
        tracing::debug!(worker_id = %self.worker.id(), runs = order.runs.len(), "received a cancel hint");
        self.wakeups.wake_renew_loop();
        OrderResponse::Accepted
    }

    async fn drain(&self, epoch: Epoch) -> OrderResponse {
        if let Some(refusal) = self.check_epoch(epoch) {
            return refusal;
        }
        tracing::debug!(worker_id = %self.worker.id(), "received a drain or detach hint");
        self.worker.request_heartbeat();
        OrderResponse::Accepted
    }

    async fn may_confirm_for(
        &self,
        caller: &str,
        worker: WorkerId,
    ) -> Result<bool, PeerUnreachable> {
        let row = with_timeout(self.store.find_worker(worker)).await;
        let row = row.map_err(|error| PeerUnreachable(error.to_string()))?;
        // An unknown worker holds no runs, so the response reveals nothing.
        Ok(row.is_none_or(|row| row.node.as_str() == caller))
    }

    async fn confirm(
        &self,
        request: DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        // Any node can answer this, because the database decides.
        let leased = with_timeout(self.store.list_leased_runs_of_worker(request.worker)).await;
        let leased = leased.map_err(|error| PeerUnreachable(error.to_string()))?;
        let runs = request.runs.into_iter().filter(|(run, token)| {
            let matches =
                |leased_run: &&LeasedRun| leased_run.run == *run && leased_run.token == *token;
            leased
                .iter()
                .find(matches)
                .is_some_and(|leased_run| leased_run.state == RunState::Running)
        });
        Ok(runs.map(|(run, _)| run).collect())
    }

    async fn reload(&self, version: i64) -> OrderResponse {
        if self.worker.settings_version() < Some(version) {
            tracing::debug!(worker_id = %self.worker.id(), version, "received a settings hint");
            self.worker.request_heartbeat();
        }
        OrderResponse::Accepted
    }
}
