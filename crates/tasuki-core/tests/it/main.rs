//! What needs something outside the crate to be shown: documents, oracles, other implementations.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod croniter;
mod documents;
mod model;
mod oracle;
