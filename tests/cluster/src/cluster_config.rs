//! Configuration of a test cluster.

use std::path::PathBuf;

use crate::database::DatabaseKind;

/// The binary, the servers and the options of a test cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Path of the `tasuki` binary.
    pub binary: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// The database server that all nodes share.
    pub database: DatabaseKind,
    /// The Redis servers that all nodes share, if any.
    pub redis: RedisKind,
    /// Default settings, or shorter intervals and timeouts.
    pub pace: Pace,
    /// Whether connections go through proxies, which can block them. Without proxies the connections are direct.
    pub proxies: bool,
    /// Whether the folder with the logs of the nodes is kept after a successful test. After a failure it is always kept.
    pub keep_logs: bool,
}

/// The kind of Redis deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisKind {
    /// No Redis: the nodes share only the database.
    None,
    /// One server.
    One,
    /// A primary, a replica and three sentinels. Not behind proxies, because sentinels announce the real addresses.
    Sentinel,
    /// Redis Cluster with three primaries, which announce the addresses of their proxies.
    Cluster,
}

/// How short the intervals and timeouts of the cluster are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Default settings. The documented time bounds hold for these.
    Default,
    /// Shorter intervals and timeouts, for tests.
    Quick,
}

/// The settings of [`Pace::Quick`]: short enough for a test, and long enough for a busy machine.
pub(crate) const QUICK_SETTINGS: [(&str, &str); 22] = [
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
    // Many tries: on a busy machine the first requests may time out.
    ("continuation_retry_count", "10"),
    ("stop_grace", "500ms"),
    ("skip_late_after", "1m"),
];
