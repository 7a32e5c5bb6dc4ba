//! Integration tests of the `tasuki` binary, and of the script `./test` that runs all tests.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod api_server;
mod apply;
mod bench;
mod cert;
mod cluster;
mod cross_node_hints;
mod database;
mod end_to_end;
mod fake_job_server;
mod fake_server;
mod follow;
mod full_disk;
mod jobs;
mod killed_node;
mod misbehaving_jobs;
mod operators;
mod runs;
mod schedule;
mod server;
mod test_script;
mod up;
