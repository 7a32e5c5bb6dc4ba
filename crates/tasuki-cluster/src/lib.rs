//! Cluster support: coordination through Redis, and calls between nodes through gRPC with mutual TLS.
//!
//! Nothing here decides anything. All data and calls are hints that make a node read the database sooner, and the database
//! decides. So hints may be lost, late, repeated or empty.

pub mod identity;
pub mod redis;
mod reload;
pub mod rpc;
pub mod security;
pub mod signed_token;
pub mod tls;

pub use identity::{Identity, RpcCallerRole};
pub use reload::RELOAD_INTERVAL;
pub use security::RpcAuthMethod;
