//! The result of a guarded write. Losing a race is a normal result, not an error.

use tasuki_core::{RunId, RunState, WorkerId};

/// The result of a guarded write.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The write took effect.
    Applied(T),
    /// The run is not due yet. The same start may be tried again when it is due.
    NotYet,
    /// The write's conditions did not hold: another writer was first, or the deadline has passed. Nothing was written.
    Lost(LostWrite),
}

impl<T> Outcome<T> {
    /// Whether the write took effect.
    pub fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_))
    }

    /// Returns the value of a write that took effect.
    pub fn into_applied(self) -> Option<T> {
        match self {
            Self::Applied(value) => Some(value),
            Self::NotYet | Self::Lost(_) => None,
        }
    }
}

/// The current state of a run whose write was lost. For messages only; no code decides by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostWrite {
    /// The run that was not changed.
    pub run: RunId,
    /// Its current state; `None`: the run does not exist.
    pub state: Option<RunState>,
    /// The worker that holds its lease now; `None`: the run is not leased.
    pub worker: Option<WorkerId>,
}
