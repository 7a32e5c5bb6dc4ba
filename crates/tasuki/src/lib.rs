//! tasuki as a library: nodes that run jobs, clients that submit tasks, and the operator for queries and actions.

mod client;
mod handler;
mod job_declaration;
pub mod line_splitter;
pub mod node;
pub mod operator;
pub mod spawner;
pub mod testing;
mod wakeups_and_hints;

pub use crate::wakeups_and_hints::in_process_wakeups::Wakeups;
pub use client::{Client, NewTask};
pub use handler::{Context, HandlerArgsFromJson, HandlerRegistry, TaskError, TaskSuccess};
pub use job_declaration::JobDeclaration;
pub use node::{Node, ProviderError, ScopeProvider};
pub use operator::{Error, Operator};
pub use tasuki_core::Priority;

#[cfg(test)]
mod sim;

/// Compiles the examples of the guide as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/rust.md")]
mod guide {}
