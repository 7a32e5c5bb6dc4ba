//! [`NewRun`]: the values from which a run is created.

use jiff::Timestamp;
use tasuki_core::{EventId, Origin, RunId, RunScope, ScheduleSlotKey};

use crate::JobVersion;
use crate::run::due_table;

/// A run to create.
#[derive(Debug, Clone)]
pub struct NewRun<'a> {
    /// Job version that the run belongs to.
    pub job: &'a JobVersion,
    /// What creates the run.
    pub origin: Origin,
    /// Scope that the run works on.
    pub scope: RunScope,
    /// Planned instant; `None` is now.
    pub scheduled_for: Option<Timestamp>,
    /// Slot, if a schedule creates the run. A second run for the same job, scope and slot finds this one.
    pub slot: Option<ScheduleSlotKey>,
    /// Key that identifies the request: a second request with the same key finds this run. 1 to 191 characters,
    /// without spaces at either end.
    pub idempotency_key: Option<String>,
    /// Event that creates the run.
    pub event: Option<EventId>,
    /// Ended run that this run repeats.
    pub rerun_of: Option<RunId>,
    /// Arguments of the job, as JSON; at most 1 MiB.
    pub args: Option<String>,
    /// Instant after which the run is skipped, if it has never started.
    pub skip_at: Option<Timestamp>,
    /// Instant after which the run expires while it waits.
    pub expires_at: Option<Timestamp>,
    /// Lane in which the run waits; `None` is the lane of its job.
    pub lane: Option<String>,
}

impl<'a> NewRun<'a> {
    /// A task of a job, due now.
    pub fn task(job: &'a JobVersion) -> Self {
        Self {
            job,
            origin: Origin::Task,
            scope: RunScope::default(),
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
    /// Whether the run has a slot or an idempotency key, so that it may exist already.
    pub(crate) fn has_key(&self) -> bool {
        self.slot.is_some() || self.idempotency_key.is_some()
    }

    /// Whether neither run can exist already and all their values are equal, except the arguments.
    pub(crate) fn differs_only_in_args(&self, other: &Self) -> bool {
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

    /// Maximum number of runs like this one in one due row. More than 1 only for claimable runs that need no check
    /// before they start: no hold, no `skip_at`, no `expires_at`.
    pub(crate) fn max_runs_per_due_row(&self) -> i64 {
        let plain = !self.lane().is_empty()
            && !self.job.spec.concurrency.needs_hold()
            && self.skip_at.is_none()
            && self.expires_at.is_none();
        if plain { due_table::MAX_ID_RANGE } else { 1 }
    }

    /// Approximate size in a statement, in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        200 + self.args.as_ref().map_or(0, String::len)
    }

    /// Lane in which the run waits.
    pub(crate) fn lane(&self) -> &str {
        self.lane.as_deref().unwrap_or(&self.job.spec.lane)
    }
}
