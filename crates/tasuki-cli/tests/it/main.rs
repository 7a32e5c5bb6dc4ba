//! The binary as a user meets it, and the script that tests everything.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod apply;
mod bench;
mod cert;
mod cluster;
mod database;
mod fake;
mod follow;
mod full;
mod jobs;
mod keeper;
mod killed;
mod nasty;
mod operators;
mod real;
mod runs;
mod schedule;
mod server;
mod told;
mod up;
mod whole;
mod workshop;
