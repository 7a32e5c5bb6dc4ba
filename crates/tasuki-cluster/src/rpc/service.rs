//! What a node answers over the wire: each request checked, for us, and handed on.

use std::sync::Arc;

use tasuki::node::coordination::peers::{Answer, Called, Question};
use tasuki_core::RunId;
use tasuki_proto::v1;
use tasuki_proto::v1::worker_service_server::WorkerService;
use tonic::{Request, Response, Status};

use super::convert::{self, Malformed};
use crate::identity::Identity;
use crate::security::Security;

pub(super) struct Service {
    pub(super) called: Arc<dyn Called>,
    pub(super) security: Security,
}

impl Service {
    /// A request for an earlier incarnation at this address, or for a later one, is not for us.
    fn is_for_us(&self, worker_id: &str) -> Result<(), Malformed> {
        let here = self.called.worker();
        if convert::worker(worker_id)? == here {
            return Ok(());
        }
        Err(Malformed(format!("this is worker {here}, not {worker_id}")))
    }

    /// What may be gone on with, told to who may ask; or why that cannot be said.
    async fn confirm(
        &self,
        caller: &Identity,
        question: Question,
    ) -> Result<Result<Vec<RunId>, String>, Status> {
        if !self.is_shared(caller) {
            match self.called.may_ask(caller.name(), question.worker).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(%caller, worker_id = %question.worker, "a node asked for another's worker");
                    return Err(Status::permission_denied(
                        "a node may ask for its own workers only",
                    ));
                }
                Err(silent) => return Ok(Err(silent.0)),
            }
        }
        Ok(self.called.confirm(question).await.map_err(|silent| silent.0))
    }

    /// Whether a caller shows what this node shows itself, and what is not this node's alone: it says nothing of who asks.
    fn is_shared(&self, caller: &Identity) -> bool {
        let ours = self.security.identity();
        *caller == ours && ours.name() != self.called.status().node.as_str()
    }

    /// Hands on what makes sense, and refuses the rest.
    async fn answer<T>(
        &self,
        worker_id: &str,
        order: Result<T, Malformed>,
        act: impl AsyncFnOnce(T) -> Answer,
    ) -> Response<v1::Answer> {
        let order = self.is_for_us(worker_id).and(order);
        Response::new(match order {
            Ok(order) => convert::written(act(order).await),
            Err(Malformed(why)) => convert::invalid(why),
        })
    }
}

/// Who calls. Everybody who comes this far has shown it; should one not have, that is nobody's permission.
fn caller<T>(request: &Request<T>) -> Result<Identity, Status> {
    let caller = request.extensions().get::<Identity>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("nobody vouches for you"))
}

#[tonic::async_trait]
impl WorkerService for Service {
    async fn ping(
        &self,
        _: Request<v1::PingRequest>,
    ) -> Result<Response<v1::PingResponse>, Status> {
        let worker_id = self.called.worker().to_string();
        Ok(Response::new(v1::PingResponse { worker_id }))
    }

    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(match self.is_for_us(&request.get_ref().worker_id) {
            Ok(()) => convert::status_response(&self.called.status()),
            Err(Malformed(why)) => {
                v1::GetStatusResponse { answer: Some(convert::invalid(why)), status: None }
            }
        }))
    }

    async fn start_job(
        &self,
        request: Request<v1::StartJobRequest>,
    ) -> Result<Response<v1::Answer>, Status> {
        let request = request.into_inner();
        let order = convert::start_order(&request);
        let start = async |order| self.called.start(order).await;
        Ok(self.answer(&request.worker_id, order, start).await)
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::Answer>, Status> {
        let request = request.into_inner();
        let order = convert::cancel_order(&request);
        let cancel = async |order| self.called.cancel(order).await;
        Ok(self.answer(&request.worker_id, order, cancel).await)
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::Answer>, Status> {
        let request = request.into_inner();
        let epoch = convert::epoch(request.leader_epoch);
        let drain = async |epoch| self.called.drain(epoch).await;
        Ok(self.answer(&request.worker_id, epoch, drain).await)
    }

    async fn confirm_continuation(
        &self,
        request: Request<v1::ConfirmContinuationRequest>,
    ) -> Result<Response<v1::ConfirmContinuationResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let question = self.is_for_us(&request.worker_id);
        let confirmed = match question.and_then(|()| convert::question(&request)) {
            Ok(question) => self.confirm(&caller, question).await?,
            Err(Malformed(why)) => Err(why),
        };
        Ok(Response::new(match confirmed {
            Ok(runs) => v1::ConfirmContinuationResponse {
                answer: Some(convert::accept()),
                run_ids: convert::numbers(&runs),
            },
            Err(why) => v1::ConfirmContinuationResponse {
                answer: Some(convert::invalid(why)),
                run_ids: Vec::new(),
            },
        }))
    }

    async fn reload_settings(
        &self,
        request: Request<v1::ReloadSettingsRequest>,
    ) -> Result<Response<v1::Answer>, Status> {
        let request = request.into_inner();
        let reload = async |version| self.called.reload(version).await;
        Ok(self.answer(&request.worker_id, Ok(request.version), reload).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_nobody_vouches_for_is_nobody() {
        let mut request = Request::new(());
        assert_eq!(caller(&request).unwrap_err().code(), tonic::Code::Unauthenticated);
        let shown: Identity = "tasuki://test/node/a".parse().unwrap();
        request.extensions_mut().insert(shown.clone());
        assert_eq!(caller(&request).unwrap(), shown);
    }
}
