//! Names of the Redis keys. All have one prefix and one hash tag: in a Redis Cluster they are on one server, where a script
//! can access all of them.

use tasuki_core::{NodeName, RunId, WorkerId};

/// Builds the names of keys under one prefix.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    tag: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { tag: format!("{{{prefix}}}") }
    }

    /// Election lock. A string with a ttl: the worker id.
    pub(super) fn leader_lock(&self) -> String {
        format!("{}:leader:lock", self.tag)
    }

    /// Highest published epoch. A string.
    pub(super) fn leader_epoch(&self) -> String {
        format!("{}:leader:epoch", self.tag)
    }

    /// Last published leader. A string: worker id, epoch, microseconds.
    pub(super) fn leader_last_seen(&self) -> String {
        format!("{}:leader:last_seen_ts", self.tag)
    }

    /// Leader whose term was ended. A string: worker id, epoch.
    pub(super) fn leader_degrade(&self) -> String {
        format!("{}:leader:degrade", self.tag)
    }

    /// Lock of the subleader of a node. A string with a ttl: the worker id.
    pub(super) fn subleader_lock(&self, node: &NodeName) -> String {
        format!("{}:subleader:{node}:lock", self.tag)
    }

    /// Present workers. A sorted set: worker id by the microsecond at which its presence expires.
    pub(super) fn workers(&self) -> String {
        format!("{}:workers", self.tag)
    }

    /// Presence of a worker. A hash with a ttl; its fields are in `presence.rs`.
    pub(super) fn worker(&self, worker: WorkerId) -> String {
        format!("{}:worker:{worker}", self.tag)
    }

    /// Mark of a detached worker. A string with a ttl.
    pub(super) fn detach(&self, worker: WorkerId) -> String {
        format!("{}:detach:{worker}", self.tag)
    }

    /// Worker that holds a leased run. A string with a ttl: the worker id.
    pub(super) fn run_lease(&self, run: RunId) -> String {
        format!("{}:jobrun:lease:{run}", self.tag)
    }

    /// Channel of notifications between nodes.
    pub(super) fn notifications(&self) -> String {
        format!("{}:wake", self.tag)
    }
}
