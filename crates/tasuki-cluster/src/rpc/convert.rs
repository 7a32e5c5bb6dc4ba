//! Between the words of the wire and our own. Whatever comes in is checked here.

use jiff::Timestamp;
use tasuki::node::coordination::coordinate::Role;
use tasuki::node::coordination::peers::{
    Answer, CancelOrder, Question, Silent, StartOrder, Status,
};
use tasuki_core::{Epoch, Invalid, LeaseToken, NodeName, RunId, WorkerId};
use tasuki_proto::v1;
use tasuki_proto::v1::answer::Result as Verdict;

/// As many runs as one message may name; more than a leader gives at once.
const MOST_RUNS: usize = 10_000;

/// Why a message makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl From<Invalid> for Malformed {
    fn from(invalid: Invalid) -> Self {
        Self(invalid.to_string())
    }
}

impl Malformed {
    fn new(why: &str) -> Self {
        Self(why.to_owned())
    }
}

pub(super) fn worker(written: &str) -> Result<WorkerId, Malformed> {
    Ok(written.parse()?)
}

fn run(number: i64) -> Result<RunId, Malformed> {
    if number > 0 { Ok(RunId(number)) } else { Err(Malformed::new("run_id is from 1 upwards")) }
}

fn runs(numbers: &[i64]) -> Result<Vec<RunId>, Malformed> {
    few(numbers)?.iter().map(|number| run(*number)).collect()
}

fn few<T>(listed: &[T]) -> Result<&[T], Malformed> {
    if listed.len() > MOST_RUNS {
        return Err(Malformed(format!("{} runs are more than {MOST_RUNS}", listed.len())));
    }
    Ok(listed)
}

/// An order is given in a term, and terms are counted from one.
pub(super) fn epoch(number: i64) -> Result<Epoch, Malformed> {
    let wrong = Malformed::new("leader_epoch is from 1 upwards");
    if number > 0 { Ok(Epoch(number)) } else { Err(wrong) }
}

fn token(bytes: &[u8]) -> Result<LeaseToken, Malformed> {
    let sixteen = bytes.try_into().map_err(|_| Malformed::new("lease_token is sixteen bytes"))?;
    Ok(LeaseToken::from_bytes(sixteen))
}

pub(super) fn start_order(request: &v1::StartJobRequest) -> Result<StartOrder, Malformed> {
    let due = |one: &v1::DueRun| {
        let due_at = Timestamp::from_microsecond(one.due_at_us)
            .map_err(|_| Malformed::new("due_at_us is no instant"))?;
        if one.wait_us < 0 {
            return Err(Malformed::new("wait_us is from 0 upwards"));
        }
        Ok((run(one.run_id)?, due_at))
    };
    Ok(StartOrder {
        epoch: epoch(request.leader_epoch)?,
        token: token(&request.lease_token)?,
        runs: few(&request.runs)?.iter().map(due).collect::<Result<_, _>>()?,
    })
}

/// `now` is what the wall clock says: the wait is told to people, not counted by.
pub(super) fn start_request(
    worker: WorkerId,
    order: &StartOrder,
    now: Timestamp,
) -> v1::StartJobRequest {
    let due = |&(run, due_at): &(RunId, Timestamp)| {
        let due_at_us = due_at.as_microsecond();
        let wait_us = due_at_us.saturating_sub(now.as_microsecond()).max(0);
        v1::DueRun { run_id: run.0, due_at_us, wait_us }
    };
    v1::StartJobRequest {
        worker_id: worker.to_string(),
        leader_epoch: order.epoch.0,
        lease_token: order.token.as_bytes().to_vec(),
        runs: order.runs.iter().map(due).collect(),
    }
}

pub(super) fn cancel_order(request: &v1::CancelJobRequest) -> Result<CancelOrder, Malformed> {
    Ok(CancelOrder { epoch: epoch(request.leader_epoch)?, runs: runs(&request.run_ids)? })
}

pub(super) fn cancel_request(worker: WorkerId, order: &CancelOrder) -> v1::CancelJobRequest {
    v1::CancelJobRequest {
        worker_id: worker.to_string(),
        leader_epoch: order.epoch.0,
        run_ids: numbers(&order.runs),
    }
}

pub(super) fn question(request: &v1::ConfirmContinuationRequest) -> Result<Question, Malformed> {
    let carried = |one: &v1::CarriedRun| Ok((run(one.run_id)?, token(&one.lease_token)?));
    Ok(Question {
        worker: worker(&request.asking_worker_id)?,
        runs: few(&request.runs)?.iter().map(carried).collect::<Result<_, Malformed>>()?,
    })
}

pub(super) fn confirm_request(
    worker: WorkerId,
    question: &Question,
) -> v1::ConfirmContinuationRequest {
    let carried = |(run, token): &(RunId, LeaseToken)| v1::CarriedRun {
        run_id: run.0,
        lease_token: token.as_bytes().to_vec(),
    };
    v1::ConfirmContinuationRequest {
        worker_id: worker.to_string(),
        asking_worker_id: question.worker.to_string(),
        runs: question.runs.iter().map(carried).collect(),
    }
}

/// What the worker may go on with: of what it asked about, and of nothing else.
pub(super) fn confirmed(
    response: v1::ConfirmContinuationResponse,
    question: &Question,
) -> Result<Vec<RunId>, Silent> {
    accepted(response.answer)?;
    let runs = runs(&response.run_ids).map_err(senseless)?;
    let asked = |run: &RunId| question.runs.iter().any(|(known, _)| known == run);
    Ok(runs.into_iter().filter(asked).collect())
}

pub(super) fn numbers(runs: &[RunId]) -> Vec<i64> {
    runs.iter().map(|run| run.0).collect()
}

pub(super) fn accept() -> v1::Answer {
    written(Answer::Accepted)
}

pub(super) fn invalid(why: impl Into<String>) -> v1::Answer {
    written(Answer::Invalid(why.into()))
}

pub(super) fn written(answer: Answer) -> v1::Answer {
    let (result, newest_epoch, message) = match answer {
        Answer::Accepted => (Verdict::Accepted, 0, String::new()),
        Answer::OldEpoch(newest) => (Verdict::RejectedOldEpoch, newest.0, String::new()),
        Answer::Detached => (Verdict::RejectedDetached, 0, String::new()),
        Answer::Draining => (Verdict::RejectedDraining, 0, String::new()),
        Answer::AlreadyRunning => (Verdict::RejectedAlreadyRunning, 0, String::new()),
        Answer::Invalid(why) => (Verdict::RejectedInvalid, 0, why),
    };
    v1::Answer { result: result.into(), newest_epoch, message }
}

pub(super) fn read(answer: v1::Answer) -> Result<Answer, Silent> {
    Ok(match Verdict::try_from(answer.result) {
        Ok(Verdict::Accepted) => Answer::Accepted,
        Ok(Verdict::RejectedOldEpoch) => {
            Answer::OldEpoch(epoch(answer.newest_epoch).map_err(senseless)?)
        }
        Ok(Verdict::RejectedDetached) => Answer::Detached,
        Ok(Verdict::RejectedDraining) => Answer::Draining,
        Ok(Verdict::RejectedAlreadyRunning) => Answer::AlreadyRunning,
        Ok(Verdict::RejectedInvalid) => Answer::Invalid(answer.message),
        Ok(Verdict::Unknown) | Err(_) => {
            return Err(Silent("it answered in words we do not know".to_owned()));
        }
    })
}

/// A question has no answer unless somebody accepts it.
fn accepted(answer: Option<v1::Answer>) -> Result<(), Silent> {
    match read(answer.unwrap_or_default())? {
        Answer::Accepted => Ok(()),
        Answer::Invalid(why) => Err(Silent(why)),
        refusal => Err(Silent(format!("it refused: {refusal:?}"))),
    }
}

fn senseless(Malformed(why): Malformed) -> Silent {
    Silent(format!("its answer makes no sense: {why}"))
}

pub(super) fn status_response(status: &Status) -> v1::GetStatusResponse {
    let role = match status.role {
        Role::Leader => v1::status::Role::Leader,
        Role::Subleader => v1::status::Role::Subleader,
        Role::Worker => v1::status::Role::Worker,
    };
    let status = v1::Status {
        worker_id: status.worker.to_string(),
        node: status.node.to_string(),
        role: role.into(),
        newest_epoch: status.epoch.0,
        load: status.load,
        run_ids: numbers(&status.runs),
        detached: status.detached,
        draining: status.draining,
    };
    v1::GetStatusResponse { answer: Some(accept()), status: Some(status) }
}

pub(super) fn status(response: v1::GetStatusResponse) -> Result<Status, Silent> {
    accepted(response.answer)?;
    let status = response.status.unwrap_or_default();
    status_of(&status).map_err(senseless)
}

fn status_of(status: &v1::Status) -> Result<Status, Malformed> {
    let role = match v1::status::Role::try_from(status.role) {
        Ok(v1::status::Role::Leader) => Role::Leader,
        Ok(v1::status::Role::Subleader) => Role::Subleader,
        Ok(v1::status::Role::Worker) => Role::Worker,
        Ok(v1::status::Role::Unknown) | Err(_) => {
            return Err(Malformed::new("its role is unknown"));
        }
    };
    Ok(Status {
        worker: worker(&status.worker_id)?,
        node: status.node.parse::<NodeName>()?,
        role,
        // A worker that has heard of no leader knows of none.
        epoch: Epoch(status.newest_epoch.max(0)),
        load: status.load,
        runs: runs(&status.run_ids)?,
        detached: status.detached,
        draining: status.draining,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> v1::StartJobRequest {
        let due = v1::DueRun { run_id: 7, due_at_us: 1_000_000, wait_us: 5 };
        v1::StartJobRequest {
            worker_id: WorkerId::from_random(1).to_string(),
            leader_epoch: 3,
            lease_token: vec![9; 16],
            runs: vec![due],
        }
    }

    #[test]
    fn an_order_that_makes_no_sense_is_malformed() {
        assert!(start_order(&request()).is_ok());
        let breaks: [(&str, fn(&mut v1::StartJobRequest)); 8] = [
            ("no epoch", |it| it.leader_epoch = 0),
            ("an epoch below zero", |it| it.leader_epoch = i64::MIN),
            ("no token", |it| it.lease_token.clear()),
            ("a long token", |it| it.lease_token.push(1)),
            ("a run below one", |it| it.runs[0].run_id = -1),
            ("no instant", |it| it.runs[0].due_at_us = i64::MAX),
            ("a wait below zero", |it| it.runs[0].wait_us = -1),
            ("too many", |it| it.runs = vec![it.runs[0]; MOST_RUNS + 1]),
        ];
        for (what, break_it) in breaks {
            let mut request = request();
            break_it(&mut request);
            assert!(start_order(&request).is_err(), "{what}");
        }
    }

    #[test]
    fn an_order_reads_back_and_says_how_long_is_to_wait() {
        let at = |us| Timestamp::from_microsecond(us).unwrap();
        let token = LeaseToken::from_random(4);
        let runs = vec![(RunId(1), at(10_000_000)), (RunId(2), at(1))];
        let order = StartOrder { epoch: Epoch(2), token, runs };
        let request = start_request(WorkerId::from_random(1), &order, at(4_000_000));
        assert_eq!(start_order(&request), Ok(order));
        assert_eq!(request.runs.iter().map(|run| run.wait_us).collect::<Vec<_>>(), [6_000_000, 0]);
    }

    #[test]
    fn an_answer_in_unknown_words_is_none() {
        for result in [0, 7, -1] {
            let answer = v1::Answer { result, ..Default::default() };
            assert!(read(answer).is_err(), "{result}");
        }
        assert!(status(v1::GetStatusResponse::default()).is_err());
        let answer = Some(accept());
        assert!(status(v1::GetStatusResponse { answer, status: None }).is_err());
    }

    #[test]
    fn nothing_is_confirmed_that_was_not_asked() {
        let question = Question {
            worker: WorkerId::from_random(1),
            runs: vec![(RunId(1), LeaseToken::from_random(1))],
        };
        let response =
            |run_ids| v1::ConfirmContinuationResponse { answer: Some(accept()), run_ids };
        assert_eq!(confirmed(response(vec![2, 1]), &question), Ok(vec![RunId(1)]));
        assert!(confirmed(response(vec![0]), &question).is_err());
        assert!(confirmed(Default::default(), &question).is_err());
    }
}
