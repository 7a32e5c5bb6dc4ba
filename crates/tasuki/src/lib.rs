//! tasuki as a library: what a node does.

pub mod output;
pub mod spawner;
