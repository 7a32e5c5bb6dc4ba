//! Decides what happens to a due run while another run of the same job and scope is active.
//!
//! The hold (one database row per job and scope) prevents two runs at the same time. This module only decides
//! what the leader does with a due run when another run owns the hold.

use jiff::Timestamp;

use crate::run::{RunState, SkipReason};
use crate::string_enum::string_enum;
use crate::{Origin, RunId};

string_enum! {
    /// A job's policy for a run that is due while another run of the same job and scope is active.
    pub enum ConcurrencyPolicy, "concurrency policy" {
        /// One run at a time: a run of a schedule is skipped, any other run waits.
        Forbid = "forbid",
        /// Any number of runs at a time.
        Allow = "allow",
        /// One run at a time: the newer run replaces the older one, which is canceled.
        Replace = "replace",
    }
}

impl ConcurrencyPolicy {
    /// Whether a run must acquire the hold of its (job, scope) before it is assigned or claimed.
    pub fn needs_hold(self) -> bool {
        match self {
            Self::Forbid | Self::Replace => true,
            Self::Allow => false,
        }
    }
}

/// A waiting run, as the decision needs it.
#[derive(Debug, Clone, Copy)]
pub struct RunToAdmit {
    /// The id of the run.
    pub run: RunId,
    /// The planned instant of the run.
    pub scheduled_for: Timestamp,
    /// What created the run.
    pub origin: Origin,
    /// Whether the run is due.
    pub is_due: bool,
    /// The state of the run. A run that waits for a retry is not skipped.
    pub state: RunState,
    /// The number of times the run was started.
    pub tries: u32,
    /// Whether the job's misfire policy catches up missed slots: then the run waits and is not skipped.
    pub catches_up: bool,
}

/// The active run that owns the hold.
#[derive(Debug, Clone, Copy)]
pub struct RunWithHold {
    /// The id of the run.
    pub run: RunId,
    /// The state of the run: ASSIGNED or RUNNING.
    pub state: RunState,
    /// The planned instant of the run.
    pub scheduled_for: Timestamp,
    /// Whether the run is due.
    pub is_due: bool,
    /// Whether a cancel of the run was already requested.
    pub cancel_requested: bool,
}

/// What the leader does with a waiting run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConcurrencyDecision {
    /// Assign the run, and acquire the hold if the policy needs it.
    Proceed,
    /// Leave the run waiting and decide again later.
    Wait,
    /// Skip the run (T12).
    Skip(SkipReason),
    /// Cancel the owner of the hold (T9 or T10) and older waiting runs (T9), then wait.
    Replace(RunId),
}

/// Decides about a waiting run.
///
/// Under `forbid`, only runs of a schedule are skipped. A task, an event or a manual run is work that
/// was explicitly requested, so it waits; so does a slot of a job that catches up missed slots. If the
/// owner of the hold is only assigned and not yet due, the run waits: it is not skipped because of a
/// run that starts later.
pub fn decide_concurrency(
    policy: ConcurrencyPolicy,
    waiting: &RunToAdmit,
    owner: Option<&RunWithHold>,
) -> ConcurrencyDecision {
    let Some(owner) = owner.filter(|_| policy.needs_hold()) else {
        return ConcurrencyDecision::Proceed;
    };
    if !waiting.is_due {
        return ConcurrencyDecision::Wait;
    }
    match policy {
        ConcurrencyPolicy::Allow => ConcurrencyDecision::Proceed,
        ConcurrencyPolicy::Forbid => {
            let skippable = waiting.origin == Origin::Time
                && !waiting.catches_up
                && waiting.tries == 0
                && waiting.state.may_become(RunState::Skipped);
            let owner_is_active = owner.state == RunState::Running || owner.is_due;
            match skippable && owner_is_active {
                true => ConcurrencyDecision::Skip(SkipReason::Concurrent),
                false => ConcurrencyDecision::Wait,
            }
        }
        ConcurrencyPolicy::Replace => {
            let is_later = (waiting.scheduled_for, waiting.run) > (owner.scheduled_for, owner.run);
            match is_later && !owner.cancel_requested {
                true => ConcurrencyDecision::Replace(owner.run),
                false => ConcurrencyDecision::Wait,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConcurrencyPolicy::{Allow, Forbid, Replace};

    fn waiting() -> RunToAdmit {
        RunToAdmit {
            run: RunId(20),
            scheduled_for: Timestamp::from_second(200).unwrap(),
            origin: Origin::Time,
            is_due: true,
            state: RunState::Pending,
            tries: 0,
            catches_up: false,
        }
    }

    fn owner() -> RunWithHold {
        RunWithHold {
            run: RunId(10),
            state: RunState::Running,
            scheduled_for: Timestamp::from_second(100).unwrap(),
            is_due: true,
            cancel_requested: false,
        }
    }

    #[test]
    fn the_decision_follows_the_policy() {
        let skip = ConcurrencyDecision::Skip(SkipReason::Concurrent);
        let later = Timestamp::from_second(900).unwrap();
        let assigned = RunWithHold { state: RunState::Assigned, ..owner() };
        let table = [
            ("no other run", Forbid, waiting(), None, ConcurrencyDecision::Proceed),
            ("no other run", Replace, waiting(), None, ConcurrencyDecision::Proceed),
            ("overlap is allowed", Allow, waiting(), Some(owner()), ConcurrencyDecision::Proceed),
            (
                "not due yet",
                Forbid,
                RunToAdmit { is_due: false, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "not due yet",
                Replace,
                RunToAdmit { is_due: false, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            ("a scheduled run while another runs", Forbid, waiting(), Some(owner()), skip),
            ("a scheduled run while another is due", Forbid, waiting(), Some(assigned), skip),
            (
                "the owner is not due yet",
                Forbid,
                waiting(),
                Some(RunWithHold { is_due: false, ..assigned }),
                ConcurrencyDecision::Wait,
            ),
            (
                "a retry is not skipped",
                Forbid,
                RunToAdmit { tries: 1, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "a manual retry is not skipped",
                Forbid,
                RunToAdmit { state: RunState::RetryWait, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "a job that catches up waits",
                Forbid,
                RunToAdmit { catches_up: true, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "an event is not skipped",
                Forbid,
                RunToAdmit { origin: Origin::Event, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "a task is not skipped",
                Forbid,
                RunToAdmit { origin: Origin::Task, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "a manual run is not skipped",
                Forbid,
                RunToAdmit { origin: Origin::Manual, ..waiting() },
                Some(owner()),
                ConcurrencyDecision::Wait,
            ),
            (
                "the newer run replaces",
                Replace,
                waiting(),
                Some(owner()),
                ConcurrencyDecision::Replace(RunId(10)),
            ),
            (
                "the newer run replaces an assigned one",
                Replace,
                waiting(),
                Some(assigned),
                ConcurrencyDecision::Replace(RunId(10)),
            ),
            (
                "a cancel is requested only once",
                Replace,
                waiting(),
                Some(RunWithHold { cancel_requested: true, ..owner() }),
                ConcurrencyDecision::Wait,
            ),
            (
                "the older run does not replace",
                Replace,
                waiting(),
                Some(RunWithHold { scheduled_for: later, ..owner() }),
                ConcurrencyDecision::Wait,
            ),
            (
                "the id decides between equal times",
                Replace,
                waiting(),
                Some(RunWithHold { scheduled_for: waiting().scheduled_for, ..owner() }),
                ConcurrencyDecision::Replace(RunId(10)),
            ),
        ];
        for (why, policy, waiting, owner, expected) in table {
            let found = decide_concurrency(policy, &waiting, owner.as_ref());
            assert_eq!(found, expected, "{why} ({policy})");
            if let ConcurrencyDecision::Skip(_) = found {
                assert!(waiting.state.may_become(RunState::Skipped), "{why}");
            }
        }
    }
}
