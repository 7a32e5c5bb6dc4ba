//! The store's specification: every promise written once, kept by every database.

// In a test an unwrap is an assertion.
#![allow(clippy::unwrap_used)]

mod given;

mod doctor;
mod leader;
mod matrix;
mod rules;
mod run_life;
mod schema;
