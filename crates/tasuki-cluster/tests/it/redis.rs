//! The coordinator on Redis: its contract on every kind of Redis, and outages.
//!
//! `./test` starts a server that all tests share; each test uses its own key prefix. A test that stops, clears or kills a
//! server starts one of its own.

mod contract;
mod failover;
mod fixtures;
mod notifications;
mod outage;
mod stored_data;
mod tls;

use cluster_kit::redis as servers;
