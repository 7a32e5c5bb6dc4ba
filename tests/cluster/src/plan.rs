//! What a cluster is made of, and how quickly things happen in it.

use std::path::PathBuf;

use crate::database::DatabaseKind;

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `tasuki` to run.
    pub binary: PathBuf,
    /// How many nodes.
    pub nodes: usize,
    /// On which database.
    pub database: DatabaseKind,
    /// With which Redis.
    pub redis: RedisKind,
    /// How quickly things happen.
    pub pace: Pace,
    /// Whether there are wires to cut. Without them nothing lies between the nodes.
    pub wires: bool,
    /// Whether what the nodes told is left in its folder, as it is where a test fails.
    pub keep: bool,
}

/// With which Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisKind {
    /// None: the database alone.
    None,
    /// One server.
    One,
    /// A primary, a replica and three sentinels. Not behind wires: sentinels name addresses of their own.
    Sentinel,
    /// Three primaries. They announce where their wires begin.
    Cluster,
}

/// How quickly things happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// With the settings as they are: what the bounds are promised for.
    Default,
    /// With settings that suit a test.
    Quick,
}

/// Quick enough for a test, and slow enough for a machine with much else to do.
pub(crate) const QUICK: [(&str, &str); 22] = [
    ("leader_tick", "100ms"),
    ("assign_ahead", "3s"),
    ("leader_renew", "200ms"),
    ("leader_ttl", "2500ms"),
    ("leader_margin", "200ms"),
    ("leader_stale", "2500ms"),
    ("subleader_check", "200ms"),
    ("heartbeat_interval", "200ms"),
    ("heartbeat_ttl", "1500ms"),
    ("worker_detach_grace", "1s"),
    ("reassign_after", "3s"),
    ("recovery_interval", "200ms"),
    ("retry_backoff", "50ms"),
    ("retry_backoff_cap", "100ms"),
    ("lease_renew", "500ms"),
    ("lease_ttl", "8s"),
    ("outage_tolerance", "4s"),
    ("kill_margin", "1s"),
    ("steal_grace", "500ms"),
    // Somebody answers in the end, however much else goes on.
    ("continuation_retry_count", "10"),
    ("stop_grace", "500ms"),
    ("skip_late_after", "1m"),
];
