//! Two runs of one job and scope at once: whose turn is it?
//!
//! The hold (one row per job and scope) is what really keeps two apart; this decides what a run
//! that is due does when it finds the hold taken.

use jiff::Timestamp;

use crate::run::{RunState, SkipReason};
use crate::string_enum::words;
use crate::{Origin, RunId};

words! {
    /// A job's answer to a run that is due while another is under way.
    pub enum ConcurrencyPolicy, "concurrency policy" {
        /// Never two at once: a slot that comes meanwhile is skipped, anything else waits.
        Forbid = "forbid",
        /// As many as come.
        Allow = "allow",
        /// The newer takes the place of the older.
        Replace = "replace",
    }
}

impl ConcurrencyPolicy {
    /// Whether runs take the hold of their (job, scope).
    pub fn needs_hold(self) -> bool {
        match self {
            Self::Forbid | Self::Replace => true,
            Self::Allow => false,
        }
    }
}

/// A run that wants to go.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Which.
    pub run: RunId,
    /// Its planned instant.
    pub scheduled_for: Timestamp,
    /// What made it.
    pub origin: Origin,
    /// Whether its time has come.
    pub is_due: bool,
    /// Where it waits: what is to be tried again is not skipped.
    pub state: RunState,
    /// How often it was started.
    pub tries: u32,
    /// Whether its job wants missed slots caught up: then they take turns.
    pub catches_up: bool,
}

/// The run that holds the hold.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    /// Which.
    pub run: RunId,
    /// ASSIGNED or RUNNING.
    pub state: RunState,
    /// Its planned instant.
    pub scheduled_for: Timestamp,
    /// Whether its own time has come.
    pub is_due: bool,
    /// Whether somebody has asked it to stop already.
    pub cancel_asked: bool,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Go: take the hold if the policy needs one.
    Go,
    /// Stay in due and ask again later.
    Wait,
    /// Pass this run over (T12).
    Skip(SkipReason),
    /// Ask the holder to stop (T9 or T10), cancel older waiting siblings (T9), and wait.
    Replace(RunId),
}

/// What a waiting run does.
///
/// Under `forbid` only slots of a schedule are skipped: a task, an event or a run asked for by a
/// person stands for work that somebody wants done, so it waits; so does a slot of a job that wants
/// its missed slots caught up. A holder that is merely assigned
/// for later blocks nothing that is due now for good, so nothing is skipped on its account.
pub fn turn(policy: ConcurrencyPolicy, waiting: &Waiting, holder: Option<&Holder>) -> Turn {
    let Some(holder) = holder.filter(|_| policy.needs_hold()) else { return Turn::Go };
    if !waiting.is_due {
        return Turn::Wait;
    }
    match policy {
        ConcurrencyPolicy::Allow => Turn::Go,
        ConcurrencyPolicy::Forbid => {
            let skippable = waiting.origin == Origin::Time
                && !waiting.catches_up
                && waiting.tries == 0
                && waiting.state.may_become(RunState::Skipped);
            let under_way = holder.state == RunState::Running || holder.is_due;
            match skippable && under_way {
                true => Turn::Skip(SkipReason::Concurrent),
                false => Turn::Wait,
            }
        }
        ConcurrencyPolicy::Replace => {
            let is_later =
                (waiting.scheduled_for, waiting.run) > (holder.scheduled_for, holder.run);
            match is_later && !holder.cancel_asked {
                true => Turn::Replace(holder.run),
                false => Turn::Wait,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConcurrencyPolicy::{Allow, Forbid, Replace};

    fn waiting() -> Waiting {
        Waiting {
            run: RunId(20),
            scheduled_for: Timestamp::from_second(200).unwrap(),
            origin: Origin::Time,
            is_due: true,
            state: RunState::Pending,
            tries: 0,
            catches_up: false,
        }
    }

    fn holder() -> Holder {
        Holder {
            run: RunId(10),
            state: RunState::Running,
            scheduled_for: Timestamp::from_second(100).unwrap(),
            is_due: true,
            cancel_asked: false,
        }
    }

    #[test]
    fn whose_turn() {
        let skip = Turn::Skip(SkipReason::Concurrent);
        let later = Timestamp::from_second(900).unwrap();
        let assigned = Holder { state: RunState::Assigned, ..holder() };
        let table = [
            ("nobody in the way", Forbid, waiting(), None, Turn::Go),
            ("nobody in the way", Replace, waiting(), None, Turn::Go),
            ("allowed anyway", Allow, waiting(), Some(holder()), Turn::Go),
            (
                "not due yet",
                Forbid,
                Waiting { is_due: false, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "not due yet",
                Replace,
                Waiting { is_due: false, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            ("a slot while one runs", Forbid, waiting(), Some(holder()), skip),
            ("a slot while one is about to", Forbid, waiting(), Some(assigned), skip),
            (
                "one merely planned",
                Forbid,
                waiting(),
                Some(Holder { is_due: false, ..assigned }),
                Turn::Wait,
            ),
            (
                "a retry is not skipped",
                Forbid,
                Waiting { tries: 1, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "nor one tried again by hand",
                Forbid,
                Waiting { state: RunState::RetryWait, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "caught-up slots take turns",
                Forbid,
                Waiting { catches_up: true, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "an event is not lost",
                Forbid,
                Waiting { origin: Origin::Event, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "nor a task",
                Forbid,
                Waiting { origin: Origin::Task, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            (
                "nor what a person asked",
                Forbid,
                Waiting { origin: Origin::Manual, ..waiting() },
                Some(holder()),
                Turn::Wait,
            ),
            ("the newer replaces", Replace, waiting(), Some(holder()), Turn::Replace(RunId(10))),
            ("also one not started", Replace, waiting(), Some(assigned), Turn::Replace(RunId(10))),
            (
                "asked once is enough",
                Replace,
                waiting(),
                Some(Holder { cancel_asked: true, ..holder() }),
                Turn::Wait,
            ),
            (
                "the older does not",
                Replace,
                waiting(),
                Some(Holder { scheduled_for: later, ..holder() }),
                Turn::Wait,
            ),
            (
                "ties go by id",
                Replace,
                waiting(),
                Some(Holder { scheduled_for: waiting().scheduled_for, ..holder() }),
                Turn::Replace(RunId(10)),
            ),
        ];
        for (why, policy, waiting, holder, expected) in table {
            let found = turn(policy, &waiting, holder.as_ref());
            assert_eq!(found, expected, "{why} ({policy})");
            if let Turn::Skip(_) = found {
                assert!(waiting.state.may_become(RunState::Skipped), "{why}");
            }
        }
    }
}
