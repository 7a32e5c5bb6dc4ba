//! The store's specification: every promise written once, kept by every database.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod busy;
mod full;
mod given;
mod like;
mod private;

mod audit;
mod batches;
mod confirm;
mod crash;
mod doctor;
mod dropped;
mod events;
mod fence;
mod in_the_way;
mod inputs;
mod intake;
mod jobs;
mod jobs_ahead;
mod lanes;
mod leader;
mod lists;
mod logs;
mod looks;
mod matrix;
mod news;
mod old_leader;
mod races;
mod real_clock;
mod retention;
mod rules;
mod run_life;
mod schema;
mod server;
mod settings;
mod stretches;
mod tokens;
