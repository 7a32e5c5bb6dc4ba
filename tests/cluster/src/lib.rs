//! A test kit for clusters: it starts real servers and real `tasuki node` processes behind TCP proxies, injects
//! faults, and checks the result.
//!
//! A [`Cluster`] is started from a [`ClusterConfig`]. A [`ClusterFault`] breaks something in it and heals it again: it kills
//! or stops a process, or blocks or delays a connection. Afterwards `checker.rs` compares the trace file, into which
//! the jobs write while they run, with the database. Every started process ends when its value is dropped.

#![allow(clippy::unwrap_used, reason = "a test kit: an error fails the test")]

mod chaos;
mod checker;
mod cluster;
mod cluster_config;
mod database;
mod faults;
mod invariants;
mod job_trace;
mod load;
mod network;
mod process;
mod proxy;
pub mod redis;
mod scale;
mod servers;
mod test_support;

pub use chaos::{Chaos, ChaosReport};
pub use checker::{CheckResult, Measurement, TimeBound};
pub use cluster::Cluster;
pub use cluster_config::{ClusterConfig, Pace, RedisKind};
pub use database::DatabaseKind;
pub use faults::{ClusterFault, all_faults};
pub use network::{NetworkEndpoint, ProxyNetwork};
pub use proxy::{LinkState, TrafficDirection};
pub use scale::ScaleBenchmark;
pub use test_support::{WAIT_TIMEOUT, free_port, remove_stale_folders, wait_until};
