//! The rules of jobs and runs, as plain types and pure functions. Every other crate uses them.
//!
//! The modules: the states of a run and the transitions between them ([`run`]), retries ([`retry`]),
//! schedules ([`schedule`]), missed slots ([`plan_scheduled_runs`]), overlapping runs of one job ([`concurrency`]),
//! the choice of a worker ([`assign`]), the queues of waiting runs ([`queue_lane`]), command lines ([`argv_template`]),
//! exit statuses ([`exit`]), and the settings of a cluster ([`settings`]).
//!
//! Promise: the same input gives the same result on every node, in every test and in every replay of
//! a simulation.
//!
//! Deliberately absent: I/O, async, a clock, randomness. The caller passes the current time and random
//! numbers. The one exception is the time-zone database, which the crate jiff reads and caches.

mod access_role;
pub mod argv_template;
pub mod assign;
pub mod attempt_error_code;
pub mod concurrency;
mod did_you_mean;
pub mod duration;
pub mod event_trigger_match;
pub mod exit;
pub mod id;
mod invalid_input;
pub mod plan_scheduled_runs;
pub mod queue_lane;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod settings;
mod string_enum;
mod text_language;
pub mod work_spec;

pub use access_role::AccessRole;
pub use attempt_error_code::AttemptErrorCode;
pub use id::{Epoch, EventId, JobId, JobName, LeaseToken, NodeName, RunId, RunScope, WorkerId};
pub use invalid_input::InvalidInput;
pub use queue_lane::{Lane, Priority, QueueName};
pub use run::{AttemptOutcome, Origin, RunState};
pub use schedule::{Schedule, ScheduleSlotKey};
pub use settings::Settings;
pub use text_language::Language;
pub use work_spec::WorkSpec;
