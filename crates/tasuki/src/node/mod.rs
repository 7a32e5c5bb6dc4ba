//! The node.

pub mod attempt;
mod carry;
pub mod coordinate;
mod leader;
pub mod peers;
mod plan;
mod recipes;
mod worker;
pub mod world;

pub use leader::Leader;
pub use worker::Worker;
