//! T0 to T15: every move a run can make, as one table.
//!
//! The guards of the store, the triggers in the databases, the contract tests and the table in
//! ARCHITECTURE.md are all made from, or compared with, what stands here. Nothing else happens.

use std::fmt::Write as _;

use super::RunState::{
    self, Assigned, Canceled, Expired, Failed, Orphaned, Pending, RetryWait, Running, Skipped,
    Succeeded, TimedOut,
};
use crate::string_enum::words;

words! {
    /// What is done to a run: the same word in SQL files, methods, logs, metrics, REST and CLI.
    pub enum Verb, "verb" {
        /// A run comes into being.
        Create = "create",
        /// The leader gives it to a worker.
        Assign = "assign",
        /// A worker takes and starts it.
        Claim = "claim",
        /// The worker it was given to starts it.
        Start = "start",
        /// Its worker shows that it still carries it.
        Renew = "renew",
        /// Its worker reports the end of the attempt.
        Finish = "finish",
        /// The leader takes it back unstarted.
        Orphan = "orphan",
        /// Its worker gives it back unstarted.
        Release = "release",
        /// The supervisor takes it from a lease that lapsed.
        Recover = "recover",
        /// Somebody asks that it does not go on.
        Cancel = "cancel",
        /// The leader passes it over.
        Skip = "skip",
        /// The leader gives it up.
        Expire = "expire",
        /// Somebody gives an ended run one more try.
        Retry = "retry",
        /// A detached worker asks whether it may go on.
        Confirm = "confirm",
    }
}

impl Verb {
    /// Whether this verb does anything to a run in `state`.
    pub fn applies_to(self, state: RunState) -> bool {
        TABLE
            .iter()
            .filter(|transition| transition.verb == self)
            .any(|transition| transition.moves.iter().any(|step| step.starts_at(state)))
    }

    /// The states a run in `state` can be in after this verb, itself included where it may stay.
    pub fn targets(self, state: RunState) -> Vec<RunState> {
        let reached = |next: RunState| {
            TABLE.iter().filter(|transition| transition.verb == self).any(|transition| {
                transition.moves.iter().any(|step| match *step {
                    Move::Enter(_) => false,
                    Move::Go(from, to) => holds(from, state) && holds(to, next),
                    Move::Stay(at) => next as u8 == state as u8 && holds(at, state),
                })
            })
        };
        RunState::ALL.iter().copied().filter(|&next| reached(next)).collect()
    }
}

/// What a transition does to the state.
#[derive(Debug, Clone, Copy)]
pub enum Move {
    /// A row appears in this state.
    Enter(RunState),
    /// From any of the first to one of the second.
    Go(&'static [RunState], &'static [RunState]),
    /// The row changes, its state does not.
    Stay(&'static [RunState]),
}

impl Move {
    fn starts_at(&self, state: RunState) -> bool {
        match *self {
            Self::Enter(_) => false,
            Self::Go(from, _) => holds(from, state),
            Self::Stay(at) => holds(at, state),
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Transition {
    /// `T0` to `T15`, as designs, notes and tests cite it.
    pub number: &'static str,
    /// What is done.
    pub verb: Verb,
    /// From where to where.
    pub moves: &'static [Move],
    /// Who does it.
    pub who: &'static str,
    /// What must hold, compared in the write itself. F is the fence by the leader's epoch.
    pub guard: &'static str,
    /// What becomes true in the same transaction.
    pub effects: &'static str,
}

/// The whole life of a run.
pub const TABLE: &[Transition] = &[
    Transition {
        number: "T0",
        verb: Verb::Create,
        moves: &[Move::Enter(Pending)],
        who: "leader (time, event); API (task, run now, rerun)",
        guard: "F for the leader; the cursor, then the job, is what was read; unique keys (a conflict returns the existing run)",
        effects: "cursor moves on; event gets processed_at; due row; command, limits and policy are copied into the run",
    },
    Transition {
        number: "T1",
        verb: Verb::Assign,
        moves: &[Move::Go(WAITING, &[Assigned])],
        who: "leader",
        guard: "F; due row deleted; state and attempt_no as read; no cancel asked; due within assign_ahead; skip_at not passed; worker active and with room; hold taken if the policy needs it",
        effects: "attempt_no + 1; new token; epoch; start_by; lease",
    },
    Transition {
        number: "T1c",
        verb: Verb::Claim,
        moves: &[Move::Go(WAITING, &[Running])],
        who: "worker, jobs with dispatch `claim`",
        guard: "worker active, neither detached nor draining; due row deleted; state; due_at <= clock; neither skip_at nor expires_at passed; no cancel asked; hold taken if the policy needs it",
        effects: "as T1 and T2 together; never more runs than free slots. Together with T0, in one write, for plain tasks that are submitted in the worker's own process while nothing waits in their lane",
    },
    Transition {
        number: "T2",
        verb: Verb::Start,
        moves: &[Move::Go(&[Assigned], &[Running])],
        who: "worker",
        guard: "lease by token; token; state; worker is me and not detached; no cancel asked; due_at <= clock < start_by (a little early is NotYet, not Lost)",
        effects: "tries + 1; releases back to 0; started_at; lease_until. Only then is the process spawned",
    },
    Transition {
        number: "T3",
        verb: Verb::Renew,
        moves: &[Move::Stay(CARRIED)],
        who: "worker",
        guard: "the lease row by token",
        effects: "lease_until; heartbeat_at. No row: kill, write nothing",
    },
    Transition {
        number: "T4",
        verb: Verb::Finish,
        moves: &[Move::Go(&[Running], &[Succeeded])],
        who: "worker",
        guard: "token; state (a success wins over a cancel asked)",
        effects: "outcome on the row; hold given back",
    },
    Transition {
        number: "T5",
        verb: Verb::Finish,
        moves: &[Move::Go(&[Running], &[RetryWait])],
        who: "worker",
        guard: "token; state; no cancel asked; retryable; tries left",
        effects: "next_retry_at; attempt appended; due row; hold given back",
    },
    Transition {
        number: "T6",
        verb: Verb::Finish,
        moves: &[Move::Go(&[Running], &[Failed, TimedOut, Expired])],
        who: "worker",
        guard: "token; state; no cancel asked",
        effects: "outcome and reason on the row; hold given back",
    },
    Transition {
        number: "T7",
        verb: Verb::Orphan,
        moves: &[Move::Go(&[Assigned], &[Orphaned])],
        who: "leader",
        guard: "F; token as read; state; start_by < clock, or worker detached or gone",
        effects: "attempt RELEASED appended; releases + 1; due row; hold given back",
    },
    Transition {
        number: "T7w",
        verb: Verb::Release,
        moves: &[Move::Go(&[Assigned], &[Orphaned])],
        who: "worker, draining or full",
        guard: "token; state",
        effects: "as T7",
    },
    Transition {
        number: "T8",
        verb: Verb::Recover,
        moves: &[
            Move::Go(&[Running], &[RetryWait, Expired, Failed, Canceled]),
            Move::Go(&[Assigned], &[Orphaned]),
        ],
        who: "leader (supervisor)",
        guard: "F; lease deleted: lease_until + steal_grace < clock, or its worker was reported dead; token as on the lease; state",
        effects: "attempt LOST (HEARTBEAT_TIMEOUT) or RELEASED appended, or on the row where the run ends; retry decision, cancel included; due row; hold given back",
    },
    Transition {
        number: "T9",
        verb: Verb::Cancel,
        moves: &[Move::Go(&[Pending, Orphaned, RetryWait, Assigned], &[Canceled])],
        who: "API; any change of the job (what lies ahead); `replace`",
        guard: "state; F for the leader",
        effects: "due row deleted; hold given back; audit; slot left free if the job changed",
    },
    Transition {
        number: "T10",
        verb: Verb::Cancel,
        moves: &[Move::Stay(&[Running])],
        who: "API; `replace`",
        guard: "state; none asked yet; F for the leader",
        effects: "cancel_requested_at and by; audit; the worker is nudged",
    },
    Transition {
        number: "T11",
        verb: Verb::Finish,
        moves: &[Move::Go(&[Running], &[Canceled])],
        who: "worker, after its process tree is gone",
        guard: "token; state; cancel asked",
        effects: "outcome on the row; hold given back",
    },
    Transition {
        number: "T12",
        verb: Verb::Skip,
        moves: &[Move::Go(&[Pending, Orphaned], &[Skipped])],
        who: "leader",
        guard: "F; due row deleted; tries = 0; skip_at < clock (LATE), or due and `forbid` with the hold taken by a run that is RUNNING or itself due (CONCURRENT)",
        effects: "reason",
    },
    Transition {
        number: "T13",
        verb: Verb::Expire,
        moves: &[Move::Go(WAITING, &[Expired])],
        who: "leader",
        guard: "F; due row deleted; expires_at < clock, or max_releases reached without a start",
        effects: "reason",
    },
    Transition {
        number: "T14",
        verb: Verb::Retry,
        moves: &[Move::Go(&[Failed, TimedOut, Expired], &[RetryWait])],
        who: "API",
        guard: "state (so a succeeded run can never rerun by accident)",
        effects: "last attempt appended if the row still holds one; cancel, expiry, skip_at and releases cleared; tries_allowed + 1; due row; audit",
    },
    Transition {
        number: "T15",
        verb: Verb::Confirm,
        moves: &[Move::Stay(&[Running])],
        who: "worker",
        guard: "token; state; the deadline, for going back",
        effects: "continuation NONE <-> CONFIRMING; its start and deadline, which never outlives the lease",
    },
];

const WAITING: &[RunState] = &[Pending, Orphaned, RetryWait];
const CARRIED: &[RunState] = &[Assigned, Running];

/// Every legal change of state, once each: what the triggers let through.
pub fn changes() -> impl Iterator<Item = (RunState, RunState)> {
    RunState::ALL
        .iter()
        .flat_map(|&from| RunState::ALL.iter().map(move |&to| (from, to)))
        .filter(|&(from, to)| from.may_become(to))
}

/// Whether some transition leads from one state to the other. A const fn, hence the plain loops.
pub(super) const fn leads(from: RunState, to: RunState) -> bool {
    let mut row = 0;
    while row < TABLE.len() {
        let moves = TABLE[row].moves;
        let mut step = 0;
        while step < moves.len() {
            if let Move::Go(sources, targets) = moves[step]
                && holds(sources, from)
                && holds(targets, to)
            {
                return true;
            }
            step += 1;
        }
        row += 1;
    }
    false
}

const fn holds(states: &[RunState], wanted: RunState) -> bool {
    let mut index = 0;
    while index < states.len() {
        if states[index] as u8 == wanted as u8 {
            return true;
        }
        index += 1;
    }
    false
}

/// The table as ARCHITECTURE.md prints it.
pub fn markdown() -> String {
    let mut text = String::from(
        "| # | verb | from -> to | who | guard, in the write itself | with it, in the same transaction |\n|---|---|---|---|---|---|\n",
    );
    for row in TABLE {
        let moves: Vec<String> = row.moves.iter().map(describe).collect();
        let cells =
            [row.number, row.verb.as_str(), &moves.join("; "), row.who, row.guard, row.effects];
        writeln!(text, "| {} |", cells.join(" | ")).expect("a string takes all that is written");
    }
    text
}

fn describe(step: &Move) -> String {
    match step {
        Move::Enter(state) => format!("none -> {state}"),
        Move::Go(from, to) => format!("{} -> {}", list(from), list(to)),
        Move::Stay(at) => format!("{}, stays", list(at)),
    }
}

fn list(states: &[RunState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_from_t0_to_t15_once_each() {
        let numbers: Vec<&str> = TABLE.iter().map(|row| row.number).collect();
        let expected = "T0 T1 T1c T2 T3 T4 T5 T6 T7 T7w T8 T9 T10 T11 T12 T13 T14 T15";
        assert_eq!(numbers.join(" "), expected);
    }

    /// The same rules written the other way round, so that a slip in the table is noticed.
    #[test]
    fn the_changes_are_these_and_no_others() {
        let expected = [
            (Pending, vec![Assigned, Running, Canceled, Skipped, Expired]),
            (Assigned, vec![Running, Orphaned, Canceled]),
            (Running, vec![RetryWait, Succeeded, Failed, TimedOut, Canceled, Expired]),
            (Orphaned, vec![Assigned, Running, Canceled, Skipped, Expired]),
            (RetryWait, vec![Assigned, Running, Canceled, Expired]),
            (Succeeded, vec![]),
            (Failed, vec![RetryWait]),
            (TimedOut, vec![RetryWait]),
            (Canceled, vec![]),
            (Skipped, vec![]),
            (Expired, vec![RetryWait]),
        ];
        assert_eq!(expected.len(), RunState::ALL.len());
        for (from, targets) in expected {
            let found: Vec<RunState> =
                changes().filter(|&(start, _)| start == from).map(|(_, to)| to).collect();
            assert_eq!(found, targets, "from {from}");
        }
    }

    #[test]
    fn a_run_enters_only_as_pending() {
        for row in TABLE {
            for step in row.moves {
                if let Move::Enter(state) = step {
                    assert_eq!((row.number, *state), ("T0", RunState::FIRST));
                }
            }
        }
    }

    #[test]
    fn every_verb_is_in_the_table_and_knows_where_it_applies() {
        let applies = |verb: Verb| -> Vec<RunState> {
            RunState::ALL.iter().copied().filter(|&state| verb.applies_to(state)).collect()
        };
        let expected = [
            (Verb::Create, vec![]),
            (Verb::Assign, vec![Pending, Orphaned, RetryWait]),
            (Verb::Claim, vec![Pending, Orphaned, RetryWait]),
            (Verb::Start, vec![Assigned]),
            (Verb::Renew, vec![Assigned, Running]),
            (Verb::Finish, vec![Running]),
            (Verb::Orphan, vec![Assigned]),
            (Verb::Release, vec![Assigned]),
            (Verb::Recover, vec![Assigned, Running]),
            (Verb::Cancel, vec![Pending, Assigned, Running, Orphaned, RetryWait]),
            (Verb::Skip, vec![Pending, Orphaned]),
            (Verb::Expire, vec![Pending, Orphaned, RetryWait]),
            (Verb::Retry, vec![Failed, TimedOut, Expired]),
            (Verb::Confirm, vec![Running]),
        ];
        assert_eq!(expected.len(), Verb::ALL.len());
        for (verb, states) in expected {
            assert!(TABLE.iter().any(|row| row.verb == verb), "{verb} has no row");
            assert_eq!(applies(verb), states, "{verb}");
        }
    }

    #[test]
    fn targets_follow_from_the_table() {
        assert_eq!(Verb::Renew.targets(Running), [Running]);
        assert_eq!(Verb::Cancel.targets(Running), [Running]);
        assert_eq!(Verb::Recover.targets(Assigned), [Orphaned]);
        assert_eq!(Verb::Recover.targets(Running), [RetryWait, Failed, Canceled, Expired]);
        assert!(Verb::Retry.targets(Succeeded).is_empty());
    }

    #[test]
    fn from_everywhere_an_end_can_be_reached() {
        for &start in RunState::ALL {
            let mut reached = vec![start];
            let mut next = 0;
            while next < reached.len() {
                let here = reached[next];
                for (_, to) in changes().filter(|&(from, _)| from == here) {
                    if !reached.contains(&to) {
                        reached.push(to);
                    }
                }
                next += 1;
            }
            assert!(reached.iter().any(|state| state.is_ended()), "{start} is a trap");
        }
    }
}
