//! Coordination between nodes: the coordinator (Redis, or the database alone), RPC calls to other nodes, and the
//! service that answers such calls.

pub mod coordinator;
pub mod peers;
pub(crate) mod rpc_handler;
