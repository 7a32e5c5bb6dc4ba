//! The gRPC service of a node: validates each request and passes it to the node's [`NodeRpc`].

use std::sync::Arc;

use tasuki::node::coordination::node_rpc::{DetachedWorkerContinueRequest, NodeRpc, OrderResponse};
use tasuki_core::RunId;
use tasuki_proto::v1;
use tasuki_proto::v1::worker_service_server::WorkerService;
use tonic::{Request, Response, Status};

use super::convert::{self, InvalidMessage};
use crate::identity::Identity;
use crate::security::RpcAuthMethod;

pub(super) struct RpcService {
    pub(super) node: Arc<dyn NodeRpc>,
    pub(super) security: RpcAuthMethod,
}

impl RpcService {
    /// Refuses a request for another worker: an earlier or a later one at this address.
    fn check_worker_id(&self, worker_id: &str) -> Result<(), InvalidMessage> {
        let own = self.node.worker_id();
        if convert::parse_worker_id(worker_id)? == own {
            return Ok(());
        }
        Err(InvalidMessage(format!("this is worker {own}, not {worker_id}")))
    }

    /// Returns the runs that a detached worker may continue, if the caller may request that. The inner error is the reason
    /// why this node cannot decide.
    async fn confirm_for(
        &self,
        caller: &Identity,
        request: DetachedWorkerContinueRequest,
    ) -> Result<Result<Vec<RunId>, String>, Status> {
        if !self.is_shared_identity(caller) {
            match self.node.may_confirm_for(caller.name(), request.worker).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(%caller, worker_id = %request.worker, "a node requested a continuation for another node's worker");
                    return Err(Status::permission_denied(
                        "a node may request a continuation only for its own workers",
                    ));
                }
                Err(unreachable) => return Ok(Err(unreachable.0)),
            }
        }
        Ok(self.node.confirm(request).await.map_err(|unreachable| unreachable.0))
    }

    /// Whether the caller has the same identity as this node, and that identity is not the name of this node alone. Nodes
    /// that share a certificate cannot be distinguished, so the caller may then act for every worker.
    fn is_shared_identity(&self, caller: &Identity) -> bool {
        let own = self.security.identity();
        *caller == own && own.name() != self.node.status().node.as_str()
    }

    /// Calls `handle` with a valid order; responds with a refusal to an invalid one.
    async fn respond<T>(
        &self,
        worker_id: &str,
        order: Result<T, InvalidMessage>,
        handle: impl AsyncFnOnce(T) -> OrderResponse,
    ) -> Response<v1::OrderResponse> {
        let order = self.check_worker_id(worker_id).and(order);
        Response::new(match order {
            Ok(order) => convert::order_response(handle(order).await),
            Err(InvalidMessage(reason)) => convert::rejected_invalid(reason),
        })
    }
}

/// Returns the identity that the authorization layer has verified. A request without one is refused.
fn caller_identity<T>(request: &Request<T>) -> Result<Identity, Status> {
    let identity = request.extensions().get::<Identity>().cloned();
    identity.ok_or_else(|| Status::unauthenticated("the caller has no verified identity"))
}

#[tonic::async_trait]
impl WorkerService for RpcService {
    async fn ping(
        &self,
        _: Request<v1::PingRequest>,
    ) -> Result<Response<v1::PingResponse>, Status> {
        let worker_id = self.node.worker_id().to_string();
        Ok(Response::new(v1::PingResponse { worker_id }))
    }

    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(match self.check_worker_id(&request.get_ref().worker_id) {
            Ok(()) => convert::status_response(&self.node.status()),
            Err(InvalidMessage(reason)) => v1::GetStatusResponse {
                response: Some(convert::rejected_invalid(reason)),
                status: None,
            },
        }))
    }

    async fn start_job(
        &self,
        request: Request<v1::StartJobRequest>,
    ) -> Result<Response<v1::OrderResponse>, Status> {
        let request = request.into_inner();
        let order = convert::start_order_from(&request);
        let start = async |order| self.node.start(order).await;
        Ok(self.respond(&request.worker_id, order, start).await)
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::OrderResponse>, Status> {
        let request = request.into_inner();
        let order = convert::cancel_order_from(&request);
        let cancel = async |order| self.node.cancel(order).await;
        Ok(self.respond(&request.worker_id, order, cancel).await)
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::OrderResponse>, Status> {
        let request = request.into_inner();
        let epoch = convert::parse_epoch(request.leader_epoch);
        let drain = async |epoch| self.node.drain(epoch).await;
        Ok(self.respond(&request.worker_id, epoch, drain).await)
    }

    async fn confirm_continuation(
        &self,
        request: Request<v1::ConfirmContinuationRequest>,
    ) -> Result<Response<v1::ConfirmContinuationResponse>, Status> {
        let caller = caller_identity(&request)?;
        let message = request.into_inner();
        let is_for_this_worker = self.check_worker_id(&message.worker_id);
        let confirmed =
            match is_for_this_worker.and_then(|()| convert::continuation_request_from(&message)) {
                Ok(request) => self.confirm_for(&caller, request).await?,
                Err(InvalidMessage(reason)) => Err(reason),
            };
        Ok(Response::new(match confirmed {
            Ok(runs) => v1::ConfirmContinuationResponse {
                response: Some(convert::accepted()),
                run_ids: convert::run_numbers(&runs),
            },
            Err(reason) => v1::ConfirmContinuationResponse {
                response: Some(convert::rejected_invalid(reason)),
                run_ids: Vec::new(),
            },
        }))
    }

    async fn reload_settings(
        &self,
        request: Request<v1::ReloadSettingsRequest>,
    ) -> Result<Response<v1::OrderResponse>, Status> {
        let request = request.into_inner();
        let reload = async |version| self.node.reload(version).await;
        Ok(self.respond(&request.worker_id, Ok(request.version), reload).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_verified_identity_is_refused() {
        let mut request = Request::new(());
        assert_eq!(caller_identity(&request).unwrap_err().code(), tonic::Code::Unauthenticated);
        let identity: Identity = "tasuki://test/node/a".parse().unwrap();
        request.extensions_mut().insert(identity.clone());
        assert_eq!(caller_identity(&request).unwrap(), identity);
    }
}
