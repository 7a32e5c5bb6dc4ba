//! tasuki as a library: what a node does, and what people may ask of it.

mod client;
mod declare;
mod handler;
pub mod node;
mod notify;
pub mod operator;
pub mod output;
pub mod spawner;
pub mod testing;

pub use crate::notify::wake::Wake;
pub use client::{Client, NewTask};
pub use declare::Job;
pub use handler::{Arguments, Context, Done, Functions, TaskError};
pub use node::{Node, ProviderError, ScopeProvider};
pub use operator::{Error, Operator};
pub use tasuki_core::Priority;

#[cfg(test)]
mod sim;

/// The guide is tried with the documentation's own tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/rust.md")]
mod guide {}
