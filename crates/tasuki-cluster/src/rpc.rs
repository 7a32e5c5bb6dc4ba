//! Calls between nodes: the port that each serves, and how the others are reached.
//!
//! Nothing said here is believed: an order makes its receiver look at the database. So a call is made at
//! most twice, waits no longer than its deadline, and what does not arrive is found with a heartbeat.

mod access;
mod client;
mod connect;
mod convert;
mod incoming;
mod server;
mod service;

pub use client::RpcPeers;
pub use server::{Limits, RpcServer};
