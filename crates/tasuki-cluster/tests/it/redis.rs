//! The coordinator on Redis: what it promises, on every kind of Redis, and what happens when one goes away.
//!
//! `./test` starts the server that all tests share, each under a prefix of its own. A server that a test stops,
//! empties or kills is the test's own.

mod away;
mod contract;
mod failover;
mod kept;
mod news;
mod place;
mod tls;

use cluster_kit::redis as servers;
