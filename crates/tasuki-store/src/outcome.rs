//! Losing a race is a normal day.

use tasuki_core::{RunId, RunState, WorkerId};

/// What became of a guarded write.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is a fact.
    Applied(T),
    /// A little early: the same start may be tried again at its time.
    NotYet,
    /// Somebody else was first, or the time for it has passed. Nothing was written.
    Lost(Lost),
}

impl<T> Outcome<T> {
    /// Whether it is a fact.
    pub fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_))
    }

    /// The fact, if it is one.
    pub fn applied(self) -> Option<T> {
        match self {
            Self::Applied(fact) => Some(fact),
            Self::NotYet | Self::Lost(_) => None,
        }
    }
}

/// What stood in the way, for people; nothing branches on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Which run.
    pub run: RunId,
    /// Where it stands now; `None` if there is no such run.
    pub state: Option<RunState>,
    /// Who carries it now.
    pub worker: Option<WorkerId>,
}
