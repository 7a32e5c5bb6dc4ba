//! Tests of RPC and Redis with real sockets and servers.

// In tests, unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod continuation;
mod fixtures;
mod redis;
mod rpc;
mod tls;
mod token;
mod untrusted_peer;
