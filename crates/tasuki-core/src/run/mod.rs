//! The life cycle of a run: its states, the transitions between them, and the counters that they change.

mod counters;
mod state;
pub mod transition;

pub use counters::{LossKind, RunCounters};
pub use state::{AttemptOutcome, Continuation, Origin, RunState, SkipReason};
