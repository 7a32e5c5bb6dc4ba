//! Real requests to a real server, over an SQLite database of its own for each test.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod cluster;
mod documents;
mod jobs;
mod life;
mod logs;
mod people;
mod roles;
mod runs;
mod workshop;
