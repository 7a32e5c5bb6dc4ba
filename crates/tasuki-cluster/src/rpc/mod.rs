//! Calls between nodes through gRPC: the server of each node and the client for the other nodes.
//!
//! A call is only a hint: its receiver reads the database before it acts. So a call is sent at most twice and never waits
//! longer than its deadline. What a lost call announced is found with the next heartbeat.

mod accept;
mod authenticate_and_authorize;
mod client;
mod connect;
mod convert;
mod server;
mod service;

pub use client::RpcPeers;
pub use server::{RpcServer, ServerLimits};
