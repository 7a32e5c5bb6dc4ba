//! All transitions of a run, T0 to T15, as one table.
//!
//! The SQL guards of the store, the database triggers, the contract tests and the table in ARCHITECTURE.md are
//! generated from this table or compared with it. No other transition exists.

use std::fmt::Write as _;

use super::RunState::{
    self, Assigned, Canceled, Expired, Failed, Orphaned, Pending, RetryWait, Running, Skipped,
    Succeeded, TimedOut,
};
use crate::string_enum::string_enum;

string_enum! {
    /// An operation on a run. It has the same name in SQL files, methods, logs, metrics, REST and CLI.
    pub enum RunVerb, "verb" {
        /// The leader or the API creates the run.
        Create = "create",
        /// The leader assigns the run to a worker.
        Assign = "assign",
        /// A worker claims the run and starts it immediately.
        Claim = "claim",
        /// The assigned worker starts the run.
        Start = "start",
        /// The worker renews the lease of the run.
        Renew = "renew",
        /// The worker reports the end of the attempt.
        Finish = "finish",
        /// The leader takes back an assigned run that has not started.
        Orphan = "orphan",
        /// The worker gives back an assigned run that it has not started.
        Release = "release",
        /// The leader takes the run from an expired lease.
        Recover = "recover",
        /// A user or policy cancels the run.
        Cancel = "cancel",
        /// The leader skips the run.
        Skip = "skip",
        /// The leader gives up the run.
        Expire = "expire",
        /// A user gives an ended run one more try.
        Retry = "retry",
        /// A detached worker requests permission to continue the run.
        Confirm = "confirm",
    }
}

impl RunVerb {
    /// Whether some transition of this verb starts from `state`.
    pub fn applies_to(self, state: RunState) -> bool {
        TRANSITIONS
            .iter()
            .filter(|transition| transition.verb == self)
            .any(|transition| transition.state_effects.iter().any(|step| step.starts_from(state)))
    }

    /// The states that a run in `state` can have after this verb, including `state` if the verb can keep it.
    pub fn target_states(self, state: RunState) -> Vec<RunState> {
        let reached = |next: RunState| {
            TRANSITIONS.iter().filter(|transition| transition.verb == self).any(|transition| {
                transition.state_effects.iter().any(|step| match *step {
                    StateEffect::Create(_) => false,
                    StateEffect::Change(from, to) => contains(from, state) && contains(to, next),
                    StateEffect::Keep(at) => next as u8 == state as u8 && contains(at, state),
                })
            })
        };
        RunState::ALL.iter().copied().filter(|&next| reached(next)).collect()
    }
}

/// The effect of a transition on the state.
#[derive(Debug, Clone, Copy)]
pub enum StateEffect {
    /// A new run gets this state.
    Create(RunState),
    /// The state changes from one of the first list to one of the second list.
    Change(&'static [RunState], &'static [RunState]),
    /// The row changes, the state stays.
    Keep(&'static [RunState]),
}

impl StateEffect {
    fn starts_from(&self, state: RunState) -> bool {
        match *self {
            Self::Create(_) => false,
            Self::Change(from, _) => contains(from, state),
            Self::Keep(at) => contains(at, state),
        }
    }
}

/// One row of the transition table.
#[derive(Debug, Clone, Copy)]
pub struct TransitionRow {
    /// The number by which documents and tests cite the transition: `T0` to `T15`.
    pub number: &'static str,
    /// The operation.
    pub verb: RunVerb,
    /// The changes of state.
    pub state_effects: &'static [StateEffect],
    /// Who performs the operation.
    pub actor: &'static str,
    /// The conditions that the write itself checks. F is the fence: the leader's epoch is still current.
    pub guard: &'static str,
    /// What else changes in the same database transaction.
    pub effects: &'static str,
}

/// The transition table of a run.
pub const TRANSITIONS: &[TransitionRow] = &[
    TransitionRow {
        number: "T0",
        verb: RunVerb::Create,
        state_effects: &[StateEffect::Create(Pending)],
        actor: "leader (time, event); API (task, trigger, rerun)",
        guard: "F for the leader; the cursor and the job are unchanged since they were read; unique keys (a conflict returns the existing run)",
        effects: "the cursor advances; the event gets processed_at; due row added; command, limits and policy are copied into the run",
    },
    TransitionRow {
        number: "T1",
        verb: RunVerb::Assign,
        state_effects: &[StateEffect::Change(WAITING, &[Assigned])],
        actor: "leader",
        guard: "F; due row deleted; state and attempt_no as read; no cancel requested; due within assign_ahead; skip_at not passed; worker active and with a free slot; hold acquired if the policy needs it",
        effects: "attempt_no + 1; new token; epoch; start_by; lease",
    },
    TransitionRow {
        number: "T1c",
        verb: RunVerb::Claim,
        state_effects: &[StateEffect::Change(WAITING, &[Running])],
        actor: "worker, jobs with dispatch `claim`",
        guard: "worker active, neither detached nor draining; due row deleted; state; due_at <= clock; neither skip_at nor expires_at passed; no cancel requested; hold acquired if the policy needs it",
        effects: "as T1 and T2 together; never more runs than free slots. Together with T0, in one write, for plain tasks that are submitted in the worker's own process while no run waits in their lane",
    },
    TransitionRow {
        number: "T2",
        verb: RunVerb::Start,
        state_effects: &[StateEffect::Change(&[Assigned], &[Running])],
        actor: "worker",
        guard: "lease found by token; token; state; the run's worker is the caller and not detached; no cancel requested; due_at <= clock < start_by (if clock < due_at, the result is NotYet instead of Lost)",
        effects: "tries + 1; releases = 0; started_at; lease_until. The process is spawned only after this",
    },
    TransitionRow {
        number: "T3",
        verb: RunVerb::Renew,
        state_effects: &[StateEffect::Keep(LEASED)],
        actor: "worker",
        guard: "lease found by token",
        effects: "lease_until; heartbeat_at. Without a lease row, the worker kills the processes and writes nothing",
    },
    TransitionRow {
        number: "T4",
        verb: RunVerb::Finish,
        state_effects: &[StateEffect::Change(&[Running], &[Succeeded])],
        actor: "worker",
        guard: "token; state (a success has precedence over a requested cancel)",
        effects: "outcome stored in the run; hold released",
    },
    TransitionRow {
        number: "T5",
        verb: RunVerb::Finish,
        state_effects: &[StateEffect::Change(&[Running], &[RetryWait])],
        actor: "worker",
        guard: "token; state; no cancel requested; failure retryable; tries left",
        effects: "next_retry_at; attempt appended; due row added; hold released",
    },
    TransitionRow {
        number: "T6",
        verb: RunVerb::Finish,
        state_effects: &[StateEffect::Change(&[Running], &[Failed, TimedOut, Expired])],
        actor: "worker",
        guard: "token; state; no cancel requested",
        effects: "outcome and reason stored in the run; hold released",
    },
    TransitionRow {
        number: "T7",
        verb: RunVerb::Orphan,
        state_effects: &[StateEffect::Change(&[Assigned], &[Orphaned])],
        actor: "leader",
        guard: "F; token as read; state; start_by < clock, or worker detached or gone",
        effects: "attempt RELEASED appended; releases + 1; due row added; hold released",
    },
    TransitionRow {
        number: "T7w",
        verb: RunVerb::Release,
        state_effects: &[StateEffect::Change(&[Assigned], &[Orphaned])],
        actor: "worker, draining or without a free slot",
        guard: "token; state",
        effects: "as T7",
    },
    TransitionRow {
        number: "T8",
        verb: RunVerb::Recover,
        state_effects: &[
            StateEffect::Change(&[Running], &[RetryWait, Expired, Failed, Canceled]),
            StateEffect::Change(&[Assigned], &[Orphaned]),
        ],
        actor: "leader",
        guard: "F; lease deleted, because lease_until + steal_grace < clock or its worker was reported dead; token of the lease; state",
        effects: "attempt LOST (HEARTBEAT_TIMEOUT) or RELEASED appended, or stored in the run if the run ends; retry decision, including a requested cancel; due row added; hold released",
    },
    TransitionRow {
        number: "T9",
        verb: RunVerb::Cancel,
        state_effects: &[StateEffect::Change(
            &[Pending, Orphaned, RetryWait, Assigned],
            &[Canceled],
        )],
        actor: "API; any change of the job (its future runs); `replace`",
        guard: "state; F for the leader",
        effects: "due row deleted; hold released; audit; if the job changed, the slot can be planned again",
    },
    TransitionRow {
        number: "T10",
        verb: RunVerb::Cancel,
        state_effects: &[StateEffect::Keep(&[Running])],
        actor: "API; `replace`",
        guard: "state; no cancel requested yet; F for the leader",
        effects: "cancel_requested_at and cancel_requested_by; audit; a hint to the worker",
    },
    TransitionRow {
        number: "T11",
        verb: RunVerb::Finish,
        state_effects: &[StateEffect::Change(&[Running], &[Canceled])],
        actor: "worker, after its process tree is gone",
        guard: "token; state; cancel requested",
        effects: "outcome stored in the run; hold released",
    },
    TransitionRow {
        number: "T12",
        verb: RunVerb::Skip,
        state_effects: &[StateEffect::Change(&[Pending, Orphaned], &[Skipped])],
        actor: "leader",
        guard: "F; due row deleted; tries = 0; skip_at < clock (LATE), or the run is due, the policy is `forbid` and the hold is owned by a run that is RUNNING or due (CONCURRENT)",
        effects: "reason",
    },
    TransitionRow {
        number: "T13",
        verb: RunVerb::Expire,
        state_effects: &[StateEffect::Change(WAITING, &[Expired])],
        actor: "leader",
        guard: "F; due row deleted; expires_at < clock, or max_releases reached without a start",
        effects: "reason",
    },
    TransitionRow {
        number: "T14",
        verb: RunVerb::Retry,
        state_effects: &[StateEffect::Change(&[Failed, TimedOut, Expired], &[RetryWait])],
        actor: "API",
        guard: "state (a succeeded run cannot be retried by accident)",
        effects: "last attempt appended if it is still stored in the run; cancel, expiry, skip_at and releases cleared; tries_allowed + 1; due row added; audit",
    },
    TransitionRow {
        number: "T15",
        verb: RunVerb::Confirm,
        state_effects: &[StateEffect::Keep(&[Running])],
        actor: "worker",
        guard: "token; state; for CONFIRMING -> NONE also: the deadline has not passed",
        effects: "continuation NONE <-> CONFIRMING, with its start and a deadline that is never later than the end of the lease",
    },
];

const WAITING: &[RunState] = &[Pending, Orphaned, RetryWait];
const LEASED: &[RunState] = &[Assigned, Running];

/// Every legal change of state, once each. The database triggers allow exactly these.
pub fn list_state_changes() -> impl Iterator<Item = (RunState, RunState)> {
    RunState::ALL
        .iter()
        .flat_map(|&from| RunState::ALL.iter().map(move |&to| (from, to)))
        .filter(|&(from, to)| from.may_become(to))
}

/// Whether some transition changes the state `from` to `to`. It is a const fn, hence the index loops.
pub(super) const fn is_state_change(from: RunState, to: RunState) -> bool {
    let mut row = 0;
    while row < TRANSITIONS.len() {
        let moves = TRANSITIONS[row].state_effects;
        let mut step = 0;
        while step < moves.len() {
            if let StateEffect::Change(sources, targets) = moves[step]
                && contains(sources, from)
                && contains(targets, to)
            {
                return true;
            }
            step += 1;
        }
        row += 1;
    }
    false
}

const fn contains(states: &[RunState], wanted: RunState) -> bool {
    let mut index = 0;
    while index < states.len() {
        if states[index] as u8 == wanted as u8 {
            return true;
        }
        index += 1;
    }
    false
}

/// The table as Markdown, as it stands in ARCHITECTURE.md.
pub fn transition_table_markdown() -> String {
    let mut text = String::from(
        "| # | verb | from -> to | actor | guard, checked by the write itself | effects, in the same transaction |\n|---|---|---|---|---|---|\n",
    );
    for row in TRANSITIONS {
        let moves: Vec<String> = row.state_effects.iter().map(describe_effect).collect();
        let cells =
            [row.number, row.verb.as_str(), &moves.join("; "), row.actor, row.guard, row.effects];
        writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a string cannot fail");
    }
    text
}

fn describe_effect(step: &StateEffect) -> String {
    match step {
        StateEffect::Create(state) => format!("none -> {state}"),
        StateEffect::Change(from, to) => format!("{} -> {}", join_states(from), join_states(to)),
        StateEffect::Keep(at) => format!("{}, stays", join_states(at)),
    }
}

fn join_states(states: &[RunState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_t0_to_t15_once_each() {
        let numbers: Vec<&str> = TRANSITIONS.iter().map(|row| row.number).collect();
        let expected = "T0 T1 T1c T2 T3 T4 T5 T6 T7 T7w T8 T9 T10 T11 T12 T13 T14 T15";
        assert_eq!(numbers.join(" "), expected);
    }

    /// The same rules listed by state, so that a mistake in the table is noticed.
    #[test]
    fn the_legal_state_changes_are_exactly_these() {
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
            let found: Vec<RunState> = list_state_changes()
                .filter(|&(start, _)| start == from)
                .map(|(_, to)| to)
                .collect();
            assert_eq!(found, targets, "from {from}");
        }
    }

    #[test]
    fn a_new_run_is_pending() {
        for row in TRANSITIONS {
            for step in row.state_effects {
                if let StateEffect::Create(state) = step {
                    assert_eq!((row.number, *state), ("T0", RunState::INITIAL));
                }
            }
        }
    }

    #[test]
    fn every_verb_is_in_the_table_and_applies_to_the_right_states() {
        let applies = |verb: RunVerb| -> Vec<RunState> {
            RunState::ALL.iter().copied().filter(|&state| verb.applies_to(state)).collect()
        };
        let expected = [
            (RunVerb::Create, vec![]),
            (RunVerb::Assign, vec![Pending, Orphaned, RetryWait]),
            (RunVerb::Claim, vec![Pending, Orphaned, RetryWait]),
            (RunVerb::Start, vec![Assigned]),
            (RunVerb::Renew, vec![Assigned, Running]),
            (RunVerb::Finish, vec![Running]),
            (RunVerb::Orphan, vec![Assigned]),
            (RunVerb::Release, vec![Assigned]),
            (RunVerb::Recover, vec![Assigned, Running]),
            (RunVerb::Cancel, vec![Pending, Assigned, Running, Orphaned, RetryWait]),
            (RunVerb::Skip, vec![Pending, Orphaned]),
            (RunVerb::Expire, vec![Pending, Orphaned, RetryWait]),
            (RunVerb::Retry, vec![Failed, TimedOut, Expired]),
            (RunVerb::Confirm, vec![Running]),
        ];
        assert_eq!(expected.len(), RunVerb::ALL.len());
        for (verb, states) in expected {
            assert!(TRANSITIONS.iter().any(|row| row.verb == verb), "{verb} has no row");
            assert_eq!(applies(verb), states, "{verb}");
        }
    }

    #[test]
    fn target_states_follow_from_the_table() {
        assert_eq!(RunVerb::Renew.target_states(Running), [Running]);
        assert_eq!(RunVerb::Cancel.target_states(Running), [Running]);
        assert_eq!(RunVerb::Recover.target_states(Assigned), [Orphaned]);
        assert_eq!(RunVerb::Recover.target_states(Running), [RetryWait, Failed, Canceled, Expired]);
        assert!(RunVerb::Retry.target_states(Succeeded).is_empty());
    }

    #[test]
    fn every_state_can_reach_an_end_state() {
        for &start in RunState::ALL {
            let mut reached = vec![start];
            let mut next = 0;
            while next < reached.len() {
                let here = reached[next];
                for (_, to) in list_state_changes().filter(|&(from, _)| from == here) {
                    if !reached.contains(&to) {
                        reached.push(to);
                    }
                }
                next += 1;
            }
            assert!(
                reached.iter().any(|state| state.is_ended()),
                "{start} cannot reach an end state"
            );
        }
    }
}
