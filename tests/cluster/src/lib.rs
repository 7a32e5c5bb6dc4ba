//! A cluster to break: real servers, real `tasuki node` processes, wires between all of them that can be cut,
//! healed, slowed and cut one way, and one judge of what became of it.
//!
//! A [`Cluster`] is started from a [`Plan`]; a [`Fault`] breaks something in it and heals it again; what jobs
//! wrote into one file while they ran, and what the database says, is judged by one judge. Everything
//! that is started ends with the value that stands for it.

#![allow(clippy::unwrap_used, reason = "a kit for tests: what does not work ends the test")]

mod chaos;
mod cluster;
mod crowd;
mod database;
mod faults;
mod judge;
mod load;
mod net;
mod place;
mod plan;
mod process;
pub mod redis;
mod rules;
mod servers;
mod wire;
mod witness;

pub use chaos::{Chaos, Told};
pub use cluster::Cluster;
pub use crowd::Crowd;
pub use database::DatabaseKind;
pub use faults::{Fault, all_faults};
pub use judge::{Bound, Measured, Verdict};
pub use net::{Net, Party};
pub use place::{PATIENCE, free_port, sweep, until};
pub use plan::{Pace, Plan, RedisKind};
pub use wire::{Flow, Way};
