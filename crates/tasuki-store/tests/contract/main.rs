//! Contract tests of the store: each test states one promise and runs on SQLite, PostgreSQL and MySQL/MariaDB.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod disk_full;
mod fixtures;
mod private_server;
mod random_load;
mod run_options;

mod audit;
mod batches;
mod confirm;
mod doctor;
mod dropped_calls;
mod events;
mod head_of_line_blocking;
mod id_ranges;
mod inputs;
mod job_reschedule;
mod jobs;
mod lanes;
mod leader;
mod lists;
mod lock_waits;
mod logs;
mod notifications;
mod old_leader;
mod process_crash;
mod races;
mod read_queries;
mod real_clock;
mod retention;
mod run_lifecycle;
mod schema;
mod server_crash;
mod settings;
mod single_guards;
mod sql_constraints;
mod state_verb_matrix;
mod submit_and_claim;
mod tokens;
