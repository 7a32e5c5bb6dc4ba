//! The state of a run, and the other enumerated columns of its row.

use super::transition;
use crate::string_enum::string_enum;

string_enum! {
    /// The state of a run. Only the database row is authoritative.
    pub enum RunState, "run state" {
        /// Created, and waiting to be assigned or claimed.
        Pending = "PENDING",
        /// Assigned to a worker that has not started it yet.
        Assigned = "ASSIGNED",
        /// Started: the worker may have a process for it.
        Running = "RUNNING",
        /// Was assigned but not started, and waits for another worker.
        Orphaned = "ORPHANED",
        /// An attempt ended without success, and the run waits for the next one.
        RetryWait = "RETRY_WAIT",
        /// Ended with success.
        Succeeded = "SUCCEEDED",
        /// Ended with a failure. No automatic retry follows.
        Failed = "FAILED",
        /// Ended because an attempt exceeded its timeout.
        TimedOut = "TIMED_OUT",
        /// Ended by a cancel.
        Canceled = "CANCELED",
        /// Ended without a start: it was too late, or another run of the job was active.
        Skipped = "SKIPPED",
        /// Ended because it used up its tries or releases, or because its expiry time passed.
        Expired = "EXPIRED",
    }
}

impl RunState {
    /// The state of every new run.
    pub const INITIAL: Self = Self::Pending;

    /// Whether a transition leads from this state to `next`. Only transitions of the table exist. A
    /// transition that keeps the state does not count.
    pub const fn may_become(self, next: Self) -> bool {
        transition::is_state_change(self, next)
    }

    /// Whether the run waits to be assigned or claimed. Exactly the waiting runs have a due row.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Orphaned | Self::RetryWait)
    }

    /// Whether a worker holds a lease of the run.
    pub const fn is_leased(self) -> bool {
        matches!(self, Self::Assigned | Self::Running)
    }

    /// Whether the run has ended. Only a manual retry (T14) can change it again, and only in some of the
    /// end states.
    pub const fn is_ended(self) -> bool {
        !self.is_waiting() && !self.is_leased()
    }
}

string_enum! {
    /// How one attempt ended.
    pub enum AttemptOutcome, "attempt outcome" {
        /// The work succeeded.
        Succeeded = "SUCCEEDED",
        /// The work failed.
        Failed = "FAILED",
        /// The attempt exceeded its timeout.
        TimedOut = "TIMED_OUT",
        /// The run was canceled.
        Canceled = "CANCELED",
        /// Its lease expired, or its worker was reported dead. How much of the work was done is unknown.
        Lost = "LOST",
        /// It was assigned, and released by the worker or taken back by the leader before it started.
        Released = "RELEASED",
    }
}

string_enum! {
    /// What created a run.
    pub enum Origin, "origin" {
        /// A slot of a schedule.
        Time = "time",
        /// An event.
        Event = "event",
        /// A task submitted by an application.
        Task = "task",
        /// A user triggered the job.
        Manual = "manual",
        /// A user reran an ended run.
        Rerun = "rerun",
    }
}

string_enum! {
    /// Why a run was skipped.
    pub enum SkipReason, "skip reason" {
        /// It was later than its misfire policy allows.
        Late = "LATE",
        /// Another run of the job was running or due, and the job forbids two runs at the same time.
        Concurrent = "CONCURRENT",
    }
}

string_enum! {
    /// Whether a detached worker waits for permission to continue the run (001 §7.3).
    pub enum Continuation, "continuation" {
        /// The worker is not detached, or has got its answer.
        None = "NONE",
        /// The worker has requested permission. Its lease stays valid until the deadline, so that the run
        /// is not recovered in the meantime.
        Confirming = "CONFIRMING",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_exactly_one_of_waiting_leased_and_ended() {
        for &state in RunState::ALL {
            let kinds = [state.is_waiting(), state.is_leased(), state.is_ended()];
            assert_eq!(kinds.iter().filter(|&&kind| kind).count(), 1, "{state}");
        }
    }

    #[test]
    fn final_states_have_no_transitions() {
        for &end in &[RunState::Succeeded, RunState::Canceled, RunState::Skipped] {
            for &next in RunState::ALL {
                assert!(!end.may_become(next), "{end} -> {next}");
            }
        }
    }
}
