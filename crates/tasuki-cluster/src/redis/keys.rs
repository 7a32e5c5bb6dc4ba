//! The keys, all under one prefix and one hash tag: in a cluster they are on one node, where a script can reach
//! all of them.

use tasuki_core::{NodeName, RunId, WorkerId};

/// Names keys.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    tag: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { tag: format!("{{{prefix}}}") }
    }

    /// Who may try for the lead. A string that lapses: the worker.
    pub(super) fn leader_lock(&self) -> String {
        format!("{}:leader:lock", self.tag)
    }

    /// The highest epoch that was told of. A string.
    pub(super) fn leader_epoch(&self) -> String {
        format!("{}:leader:epoch", self.tag)
    }

    /// The leader as it was last seen. A string: worker, epoch, microseconds.
    pub(super) fn leader_last_seen(&self) -> String {
        format!("{}:leader:last_seen", self.tag)
    }

    /// The leader whose term was ended. A string: worker, epoch.
    pub(super) fn leader_degrade(&self) -> String {
        format!("{}:leader:degrade", self.tag)
    }

    /// Who watches the leader for a node. A string that lapses: the worker.
    pub(super) fn subleader_lock(&self, node: &NodeName) -> String {
        format!("{}:subleader:{node}:lock", self.tag)
    }

    /// Those that are there. A sorted set of workers by the microsecond at which they are there no longer.
    pub(super) fn workers(&self) -> String {
        format!("{}:workers", self.tag)
    }

    /// What a worker shows of itself. A hash that lapses.
    pub(super) fn worker(&self, worker: WorkerId) -> String {
        format!("{}:worker:{worker}", self.tag)
    }

    /// That a worker was detached. A string that lapses.
    pub(super) fn detach(&self, worker: WorkerId) -> String {
        format!("{}:detach:{worker}", self.tag)
    }

    /// Who carries a run. A string that lapses: the worker.
    pub(super) fn run_lease(&self, run: RunId) -> String {
        format!("{}:run:lease:{run}", self.tag)
    }

    /// Where news is told. A channel.
    pub(super) fn wake(&self) -> String {
        format!("{}:wake", self.tag)
    }
}
