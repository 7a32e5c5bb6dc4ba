//! Coordination between nodes: the coordinator (Redis, or the database alone), RPC calls to other nodes, and the
//! service that answers such calls.

pub mod coordinator_trait;
pub mod node_rpc;
pub(crate) mod rpc_handler;
