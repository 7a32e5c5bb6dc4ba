//! What is true of jobs and runs, written once.
//!
//! Every other part of tasuki asks this crate: which moves of a run exist ([`run`]), what follows
//! when an attempt fails ([`retry`]), when a schedule fires next ([`schedule`]), what to do about
//! slots that were missed ([`misfire`]) or siblings that still run ([`concurrency`]), which worker
//! takes a run ([`assign`]) or where it waits to be taken ([`lane`]), what a command's arguments become ([`argv`]), what its end means
//! ([`exit`]), and how a cluster is tuned ([`settings`]).
//!
//! The promise: plain types and pure functions. The same question gets the same answer on every
//! node, in every test and in every replay of a simulation.
//!
//! Deliberately not here: I/O, async, a clock, randomness. Whoever calls brings the instant and the
//! dice. The one look outside is the time-zone database, which jiff reads and caches by itself.

pub mod argv;
pub mod assign;
pub mod concurrency;
pub mod duration;
pub mod error_code;
pub mod exit;
pub mod filter;
pub mod id;
mod invalid;
pub mod lane;
mod language;
pub mod misfire;
mod did_you_mean;
pub mod retry;
mod role;
pub mod run;
pub mod schedule;
pub mod settings;
mod string_enum;
pub mod job_spec;

pub use error_code::ErrorCode;
pub use id::{Epoch, EventId, JobId, JobName, LeaseToken, NodeName, RunId, Scope, WorkerId};
pub use invalid::Invalid;
pub use lane::{Lane, Priority, Queue};
pub use language::Language;
pub use role::Role;
pub use run::{AttemptOutcome, Origin, RunState};
pub use schedule::{Schedule, Slot};
pub use settings::Settings;
pub use job_spec::Work;
