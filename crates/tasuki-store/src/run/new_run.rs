//! What is said of a run before it is there.

use jiff::Timestamp;
use tasuki_core::{EventId, Origin, RunId, Scope, Slot};

use crate::JobVersion;
use crate::run::due;

/// A run to be made.
#[derive(Debug, Clone)]
pub struct NewRun<'a> {
    /// Of which job.
    pub job: &'a JobVersion,
    /// What makes it.
    pub origin: Origin,
    /// For what.
    pub scope: Scope,
    /// Its planned instant; now, unless said.
    pub scheduled_for: Option<Timestamp>,
    /// Its slot, if a schedule makes it.
    pub slot: Option<Slot>,
    /// The same key twice is the same run. 1 to 191 characters, no space around them.
    pub idempotency_key: Option<String>,
    /// The event that makes it.
    pub event: Option<EventId>,
    /// The run it repeats.
    pub rerun_of: Option<RunId>,
    /// What it is given, as JSON; at most 1 MiB.
    pub args: Option<String>,
    /// Too late after this.
    pub skip_at: Option<Timestamp>,
    /// Given up after this.
    pub expires_at: Option<Timestamp>,
    /// Where it waits to be claimed, if not where its job says.
    pub lane: Option<String>,
}

impl<'a> NewRun<'a> {
    /// A task of a job, to be run now.
    pub fn task(job: &'a JobVersion) -> Self {
        Self {
            job,
            origin: Origin::Task,
            scope: Scope::default(),
            scheduled_for: None,
            slot: None,
            idempotency_key: None,
            event: None,
            rerun_of: None,
            args: None,
            skip_at: None,
            expires_at: None,
            lane: None,
        }
    }
}

impl NewRun<'_> {
    /// Whether it may exist already.
    pub(crate) fn has_key(&self) -> bool {
        self.slot.is_some() || self.idempotency_key.is_some()
    }

    /// Whether it cannot exist already, and differs from another such run in what it is given alone.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let same_job = || std::ptr::eq(self.job, other.job) || self.job == other.job;
        !self.has_key()
            && same_job()
            && self.lane == other.lane
            && self.scope == other.scope
            && (self.origin, self.event, self.rerun_of)
                == (other.origin, other.event, other.rerun_of)
            && (self.scheduled_for, self.skip_at, self.expires_at)
                == (other.scheduled_for, other.skip_at, other.expires_at)
    }

    /// How many runs like this one may wait in one row: those that somebody claims, and that need nothing looked at before.
    pub(crate) fn in_each_row(&self) -> i64 {
        let plain = !self.lane().is_empty()
            && !self.job.spec.concurrency.needs_hold()
            && self.skip_at.is_none()
            && self.expires_at.is_none();
        if plain { due::STRETCH } else { 1 }
    }

    /// Where it waits.
    pub(crate) fn lane(&self) -> &str {
        self.lane.as_deref().unwrap_or(&self.job.spec.lane)
    }
}
