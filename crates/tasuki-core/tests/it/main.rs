//! Integration tests: generated documents, a brute-force oracle, and comparison with croniter.

// In tests, `unwrap` is an assertion.
#![allow(clippy::unwrap_used)]

mod croniter;
mod documents;
mod model;
mod oracle;
