//! Tests of the REST API: real requests to a real server. Each test has its own SQLite database.

// In tests, unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod cluster;
mod documents;
mod fixtures;
mod jobs;
mod logs;
mod roles;
mod runs;
mod server_lifecycle;
mod tokens_and_audit;
