//! The words a run's row can hold.

use super::transition;
use crate::string_enum::words;

words! {
    /// Where a run stands. The database row is the only authority on it.
    pub enum RunState, "run state" {
        /// Made, and waiting to be assigned or claimed.
        Pending = "PENDING",
        /// Given to a worker that has not started it yet.
        Assigned = "ASSIGNED",
        /// Started: its worker may have a process.
        Running = "RUNNING",
        /// Was assigned but never started; waiting for another worker.
        Orphaned = "ORPHANED",
        /// An attempt ended without success; waiting for the next one.
        RetryWait = "RETRY_WAIT",
        /// Ended well.
        Succeeded = "SUCCEEDED",
        /// Ended badly, and nothing will try again by itself.
        Failed = "FAILED",
        /// Ended by its time limit.
        TimedOut = "TIMED_OUT",
        /// Ended because somebody asked.
        Canceled = "CANCELED",
        /// Never started: too late, or a sibling was running.
        Skipped = "SKIPPED",
        /// Ended because its tries, its releases or its time ran out.
        Expired = "EXPIRED",
    }
}

impl RunState {
    /// The only state in which a run enters the table.
    pub const FIRST: Self = Self::Pending;

    /// Whether some transition leads from here to there. A move that is not in the table does not
    /// happen; staying where one is is not a move.
    pub const fn may_become(self, next: Self) -> bool {
        transition::leads(self, next)
    }

    /// Waits to be assigned or claimed: exactly then it has a due row.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Pending | Self::Orphaned | Self::RetryWait)
    }

    /// Is carried by a worker: exactly then it is under a lease.
    pub const fn is_carried(self) -> bool {
        matches!(self, Self::Assigned | Self::Running)
    }

    /// Has ended. Only a retry by hand (T14) can move it again, and not every end allows that.
    pub const fn is_ended(self) -> bool {
        !self.is_waiting() && !self.is_carried()
    }
}

words! {
    /// How one attempt ended.
    pub enum AttemptOutcome, "attempt outcome" {
        /// The work was done.
        Succeeded = "SUCCEEDED",
        /// The work failed.
        Failed = "FAILED",
        /// The time limit passed.
        TimedOut = "TIMED_OUT",
        /// Somebody asked for it to stop.
        Canceled = "CANCELED",
        /// Its lease lapsed, or its worker was reported dead: nobody knows how far it got.
        Lost = "LOST",
        /// It was assigned and given back, or taken back, before it started.
        Released = "RELEASED",
    }
}

words! {
    /// What brought a run about.
    pub enum Origin, "origin" {
        /// A slot of a schedule.
        Time = "time",
        /// An event row.
        Event = "event",
        /// Submitted through the API as a task.
        Task = "task",
        /// Somebody ran the job now.
        Manual = "manual",
        /// Somebody ran an ended run again.
        Rerun = "rerun",
    }
}

words! {
    /// Why a run was skipped.
    pub enum SkipReason, "skip reason" {
        /// Its time had passed by more than its misfire policy allows.
        Late = "LATE",
        /// A sibling was running or due, and the job forbids two at once.
        Concurrent = "CONCURRENT",
    }
}

words! {
    /// Whether a detached worker is still asking if it may go on (001 §7.3).
    pub enum Continuation, "continuation" {
        /// Nothing is in doubt.
        None = "NONE",
        /// The worker asks; its lease holds until the deadline, so nobody reassigns meanwhile.
        Confirming = "CONFIRMING",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_waits_or_is_carried_or_has_ended() {
        for &state in RunState::ALL {
            let kinds = [state.is_waiting(), state.is_carried(), state.is_ended()];
            assert_eq!(kinds.iter().filter(|&&kind| kind).count(), 1, "{state}");
        }
    }

    #[test]
    fn history_does_not_move() {
        for &end in &[RunState::Succeeded, RunState::Canceled, RunState::Skipped] {
            for &next in RunState::ALL {
                assert!(!end.may_become(next), "{end} -> {next}");
            }
        }
    }
}
