//! tasuki as a library: what a node does, and what people may ask of it.

mod handler;
pub mod node;
pub mod operator;
pub mod output;
pub mod spawner;
mod wake;

pub use handler::{Arguments, Context, Done, Functions, TaskError};
pub use operator::Operator;
pub use wake::Wake;

#[cfg(test)]
mod sim;
