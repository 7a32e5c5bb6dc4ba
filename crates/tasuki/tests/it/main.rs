//! Integration tests of the node and its parts through the public API.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod client;
mod concurrency;
mod events;
mod every_second;
mod examples;
mod functions;
mod kill_recovery;
mod node;
mod node_fixture;
mod presence;
mod queues;
mod retry_and_drain;
mod spawner;
mod test_node;
