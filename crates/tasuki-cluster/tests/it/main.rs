//! The cluster's parts against real servers.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod asks;
mod fake;
mod redis;
mod rpc;
mod stranger;
mod tls;
mod token;
