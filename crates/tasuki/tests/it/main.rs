//! The node's parts, tried from outside.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod spawner;
