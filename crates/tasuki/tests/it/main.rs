//! The node and its parts, tried from outside.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod client;
mod events;
mod every_second;
mod examples;
mod functions;
mod idle;
mod killed;
mod node;
mod place;
mod policies;
mod queues;
mod shown;
mod spawner;
mod supervisor;
mod testing;
