//! Conversion between protobuf messages and the types of `tasuki`. All received messages are validated here.

use jiff::Timestamp;
use tasuki::node::coordination::coordinator_trait::ClusterRole;
use tasuki::node::coordination::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, OrderResponse, PeerUnreachable, StartOrder,
    WorkerStatus,
};
use tasuki_core::{Epoch, InvalidInput, LeaseToken, NodeName, RunId, WorkerId};
use tasuki_proto::v1;
use tasuki_proto::v1::order_response::Result as OrderResult;
use tasuki_proto::v1::worker_status::Role;

/// Maximum number of runs in one message; more than a leader assigns with one order.
const MAX_RUNS: usize = 10_000;

/// A received message is invalid; contains the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidMessage(pub(super) String);

impl From<InvalidInput> for InvalidMessage {
    fn from(invalid: InvalidInput) -> Self {
        Self(invalid.to_string())
    }
}

impl InvalidMessage {
    fn new(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

pub(super) fn parse_worker_id(text: &str) -> Result<WorkerId, InvalidMessage> {
    Ok(text.parse()?)
}

fn parse_run_id(number: i64) -> Result<RunId, InvalidMessage> {
    if number > 0 {
        Ok(RunId(number))
    } else {
        Err(InvalidMessage::new("run_id must be at least 1"))
    }
}

fn parse_run_ids(numbers: &[i64]) -> Result<Vec<RunId>, InvalidMessage> {
    check_run_count(numbers)?.iter().map(|number| parse_run_id(*number)).collect()
}

fn check_run_count<T>(runs: &[T]) -> Result<&[T], InvalidMessage> {
    if runs.len() > MAX_RUNS {
        return Err(InvalidMessage(format!(
            "{} runs are more than the maximum of {MAX_RUNS}",
            runs.len()
        )));
    }
    Ok(runs)
}

/// Validates the epoch of an order. Epochs start at 1.
pub(super) fn parse_epoch(number: i64) -> Result<Epoch, InvalidMessage> {
    let invalid = InvalidMessage::new("leader_epoch must be at least 1");
    if number > 0 { Ok(Epoch(number)) } else { Err(invalid) }
}

fn parse_lease_token(bytes: &[u8]) -> Result<LeaseToken, InvalidMessage> {
    let bytes =
        bytes.try_into().map_err(|_| InvalidMessage::new("lease_token must be sixteen bytes"))?;
    Ok(LeaseToken::from_bytes(bytes))
}

pub(super) fn start_order_from(
    request: &v1::StartJobRequest,
) -> Result<StartOrder, InvalidMessage> {
    let parse_assigned_run = |assigned: &v1::AssignedRun| {
        let due_at = Timestamp::from_microsecond(assigned.due_at_us)
            .map_err(|_| InvalidMessage::new("due_at_us is out of range"))?;
        if assigned.wait_us < 0 {
            return Err(InvalidMessage::new("wait_us must be at least 0"));
        }
        Ok((parse_run_id(assigned.run_id)?, due_at))
    };
    Ok(StartOrder {
        epoch: parse_epoch(request.leader_epoch)?,
        token: parse_lease_token(&request.lease_token)?,
        runs: check_run_count(&request.runs)?
            .iter()
            .map(parse_assigned_run)
            .collect::<Result<_, _>>()?,
    })
}

/// `now` is the sender's wall clock. It only determines `wait_us`, which is for monitoring.
pub(super) fn start_request(
    worker: WorkerId,
    order: &StartOrder,
    now: Timestamp,
) -> v1::StartJobRequest {
    let assigned_run = |&(run, due_at): &(RunId, Timestamp)| {
        let due_at_us = due_at.as_microsecond();
        let wait_us = due_at_us.saturating_sub(now.as_microsecond()).max(0);
        v1::AssignedRun { run_id: run.0, due_at_us, wait_us }
    };
    v1::StartJobRequest {
        worker_id: worker.to_string(),
        leader_epoch: order.epoch.0,
        lease_token: order.token.as_bytes().to_vec(),
        runs: order.runs.iter().map(assigned_run).collect(),
    }
}

pub(super) fn cancel_order_from(
    request: &v1::CancelJobRequest,
) -> Result<CancelHint, InvalidMessage> {
    Ok(CancelHint {
        epoch: parse_epoch(request.leader_epoch)?,
        runs: parse_run_ids(&request.run_ids)?,
    })
}

pub(super) fn cancel_request(worker: WorkerId, order: &CancelHint) -> v1::CancelJobRequest {
    v1::CancelJobRequest {
        worker_id: worker.to_string(),
        leader_epoch: order.epoch.0,
        run_ids: run_numbers(&order.runs),
    }
}

pub(super) fn continuation_request_from(
    message: &v1::ConfirmContinuationRequest,
) -> Result<DetachedWorkerContinueRequest, InvalidMessage> {
    let parse_leased_run = |leased: &v1::LeasedRun| {
        Ok((parse_run_id(leased.run_id)?, parse_lease_token(&leased.lease_token)?))
    };
    Ok(DetachedWorkerContinueRequest {
        worker: parse_worker_id(&message.detached_worker_id)?,
        runs: check_run_count(&message.runs)?
            .iter()
            .map(parse_leased_run)
            .collect::<Result<_, InvalidMessage>>()?,
    })
}

pub(super) fn confirm_request(
    worker: WorkerId,
    request: &DetachedWorkerContinueRequest,
) -> v1::ConfirmContinuationRequest {
    let leased_run = |(run, token): &(RunId, LeaseToken)| v1::LeasedRun {
        run_id: run.0,
        lease_token: token.as_bytes().to_vec(),
    };
    v1::ConfirmContinuationRequest {
        worker_id: worker.to_string(),
        detached_worker_id: request.worker.to_string(),
        runs: request.runs.iter().map(leased_run).collect(),
    }
}

/// Returns the runs that the detached worker may continue. Runs that were not in the request are ignored.
pub(super) fn confirmed_runs(
    response: v1::ConfirmContinuationResponse,
    request: &DetachedWorkerContinueRequest,
) -> Result<Vec<RunId>, PeerUnreachable> {
    require_accepted(response.response)?;
    let runs = parse_run_ids(&response.run_ids).map_err(invalid_response)?;
    let was_requested = |run: &RunId| request.runs.iter().any(|(requested, _)| requested == run);
    Ok(runs.into_iter().filter(was_requested).collect())
}

pub(super) fn run_numbers(runs: &[RunId]) -> Vec<i64> {
    runs.iter().map(|run| run.0).collect()
}

pub(super) fn accepted() -> v1::OrderResponse {
    order_response(OrderResponse::Accepted)
}

pub(super) fn rejected_invalid(reason: impl Into<String>) -> v1::OrderResponse {
    order_response(OrderResponse::Invalid(reason.into()))
}

pub(super) fn order_response(response: OrderResponse) -> v1::OrderResponse {
    let (result, newest_epoch, message) = match response {
        OrderResponse::Accepted => (OrderResult::Accepted, 0, String::new()),
        OrderResponse::OldEpoch(newest) => (OrderResult::RejectedOldEpoch, newest.0, String::new()),
        OrderResponse::Detached => (OrderResult::RejectedDetached, 0, String::new()),
        OrderResponse::Draining => (OrderResult::RejectedDraining, 0, String::new()),
        OrderResponse::AlreadyRunning => (OrderResult::RejectedAlreadyRunning, 0, String::new()),
        OrderResponse::Invalid(reason) => (OrderResult::RejectedInvalid, 0, reason),
    };
    v1::OrderResponse { result: result.into(), newest_epoch, message }
}

pub(super) fn order_response_from(
    response: v1::OrderResponse,
) -> Result<OrderResponse, PeerUnreachable> {
    Ok(match OrderResult::try_from(response.result) {
        Ok(OrderResult::Accepted) => OrderResponse::Accepted,
        Ok(OrderResult::RejectedOldEpoch) => {
            OrderResponse::OldEpoch(parse_epoch(response.newest_epoch).map_err(invalid_response)?)
        }
        Ok(OrderResult::RejectedDetached) => OrderResponse::Detached,
        Ok(OrderResult::RejectedDraining) => OrderResponse::Draining,
        Ok(OrderResult::RejectedAlreadyRunning) => OrderResponse::AlreadyRunning,
        Ok(OrderResult::RejectedInvalid) => OrderResponse::Invalid(response.message),
        Ok(OrderResult::Unknown) | Err(_) => {
            return Err(PeerUnreachable("the result in its response is unknown".to_owned()));
        }
    })
}

/// Checks that a request was accepted. A refused or missing result means that there is no usable response.
fn require_accepted(response: Option<v1::OrderResponse>) -> Result<(), PeerUnreachable> {
    match order_response_from(response.unwrap_or_default())? {
        OrderResponse::Accepted => Ok(()),
        OrderResponse::Invalid(reason) => Err(PeerUnreachable(reason)),
        refusal => Err(PeerUnreachable(format!("the request was refused: {refusal:?}"))),
    }
}

fn invalid_response(InvalidMessage(reason): InvalidMessage) -> PeerUnreachable {
    PeerUnreachable(format!("its response is invalid: {reason}"))
}

pub(super) fn status_response(status: &WorkerStatus) -> v1::GetStatusResponse {
    let role = match status.role {
        ClusterRole::Leader => Role::Leader,
        ClusterRole::Subleader => Role::Subleader,
        ClusterRole::Worker => Role::Worker,
    };
    let status = v1::WorkerStatus {
        worker_id: status.worker.to_string(),
        node: status.node.to_string(),
        role: role.into(),
        newest_epoch: status.epoch.0,
        load: status.load,
        run_ids: run_numbers(&status.runs),
        detached: status.detached,
        draining: status.draining,
    };
    v1::GetStatusResponse { response: Some(accepted()), status: Some(status) }
}

pub(super) fn worker_status_from(
    response: v1::GetStatusResponse,
) -> Result<WorkerStatus, PeerUnreachable> {
    require_accepted(response.response)?;
    let status = response.status.unwrap_or_default();
    parse_worker_status(&status).map_err(invalid_response)
}

fn parse_worker_status(status: &v1::WorkerStatus) -> Result<WorkerStatus, InvalidMessage> {
    let role = match Role::try_from(status.role) {
        Ok(Role::Leader) => ClusterRole::Leader,
        Ok(Role::Subleader) => ClusterRole::Subleader,
        Ok(Role::Worker) => ClusterRole::Worker,
        Ok(Role::Unknown) | Err(_) => {
            return Err(InvalidMessage::new("its role is unknown"));
        }
    };
    Ok(WorkerStatus {
        worker: parse_worker_id(&status.worker_id)?,
        node: status.node.parse::<NodeName>()?,
        role,
        // A worker that knows no leader sends 0.
        epoch: Epoch(status.newest_epoch.max(0)),
        load: status.load,
        runs: parse_run_ids(&status.run_ids)?,
        detached: status.detached,
        draining: status.draining,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> v1::StartJobRequest {
        let assigned = v1::AssignedRun { run_id: 7, due_at_us: 1_000_000, wait_us: 5 };
        v1::StartJobRequest {
            worker_id: WorkerId::from_random(1).to_string(),
            leader_epoch: 3,
            lease_token: vec![9; 16],
            runs: vec![assigned],
        }
    }

    #[test]
    fn an_invalid_start_request_is_refused() {
        assert!(start_order_from(&request()).is_ok());
        let cases: [(&str, fn(&mut v1::StartJobRequest)); 8] = [
            ("no epoch", |it| it.leader_epoch = 0),
            ("a negative epoch", |it| it.leader_epoch = i64::MIN),
            ("no token", |it| it.lease_token.clear()),
            ("a token that is too long", |it| it.lease_token.push(1)),
            ("a negative run id", |it| it.runs[0].run_id = -1),
            ("an instant out of range", |it| it.runs[0].due_at_us = i64::MAX),
            ("a negative wait", |it| it.runs[0].wait_us = -1),
            ("too many runs", |it| it.runs = vec![it.runs[0]; MAX_RUNS + 1]),
        ];
        for (case, make_invalid) in cases {
            let mut request = request();
            make_invalid(&mut request);
            assert!(start_order_from(&request).is_err(), "{case}");
        }
    }

    #[test]
    fn a_start_order_round_trips_and_contains_the_remaining_wait() {
        let at = |us| Timestamp::from_microsecond(us).unwrap();
        let token = LeaseToken::from_random(4);
        let runs = vec![(RunId(1), at(10_000_000)), (RunId(2), at(1))];
        let order = StartOrder { epoch: Epoch(2), token, runs };
        let request = start_request(WorkerId::from_random(1), &order, at(4_000_000));
        assert_eq!(start_order_from(&request), Ok(order));
        assert_eq!(request.runs.iter().map(|run| run.wait_us).collect::<Vec<_>>(), [6_000_000, 0]);
    }

    #[test]
    fn a_response_with_an_unknown_result_is_an_error() {
        for result in [0, 7, -1] {
            let response = v1::OrderResponse { result, ..Default::default() };
            assert!(order_response_from(response).is_err(), "{result}");
        }
        assert!(worker_status_from(v1::GetStatusResponse::default()).is_err());
        let response = Some(accepted());
        assert!(worker_status_from(v1::GetStatusResponse { response, status: None }).is_err());
    }

    #[test]
    fn only_requested_runs_are_confirmed() {
        let request = DetachedWorkerContinueRequest {
            worker: WorkerId::from_random(1),
            runs: vec![(RunId(1), LeaseToken::from_random(1))],
        };
        let response =
            |run_ids| v1::ConfirmContinuationResponse { response: Some(accepted()), run_ids };
        assert_eq!(confirmed_runs(response(vec![2, 1]), &request), Ok(vec![RunId(1)]));
        assert!(confirmed_runs(response(vec![0]), &request).is_err());
        assert!(confirmed_runs(Default::default(), &request).is_err());
    }
}
