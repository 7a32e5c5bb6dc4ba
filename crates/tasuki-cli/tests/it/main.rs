//! The binary as a user meets it, and the script that tests everything.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod database;
mod fake;
mod jobs;
mod killed;
mod nasty;
mod runs;
mod schedule;
mod up;
mod workshop;
