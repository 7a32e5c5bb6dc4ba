//! The life of a run: its states, the moves between them, and what each move counts.

mod counters;
mod state;
pub mod transition;

pub use counters::{Counters, Loss};
pub use state::{AttemptOutcome, Continuation, Origin, RunState, SkipReason};
