//! The binary as a user meets it, and the script that tests everything.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod database;
mod fake;
mod jobs;
mod runs;
mod schedule;
mod workshop;
