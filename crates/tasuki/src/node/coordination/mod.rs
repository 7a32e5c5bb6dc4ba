//! Coordination between nodes: the coordinator (Redis or the database), calls to other nodes, and the service that answers them.

pub(crate) mod called;
pub mod coordinate;
pub mod peers;
