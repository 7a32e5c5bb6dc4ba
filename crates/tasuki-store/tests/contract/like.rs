//! What the runs of a test are like.

use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_store::{JobKind, JobSpec};

/// What a run is like, beyond its state.
#[derive(Debug, Clone)]
pub(crate) struct Like {
    pub(crate) lane: &'static str,
    pub(crate) concurrency: ConcurrencyPolicy,
    pub(crate) max_attempts: u32,
    pub(crate) skip_after: Option<i64>,
    pub(crate) expire_after: Option<i64>,
}

impl Default for Like {
    fn default() -> Self {
        Self {
            lane: "",
            concurrency: ConcurrencyPolicy::Allow,
            max_attempts: 3,
            skip_after: None,
            expire_after: None,
        }
    }
}

impl Like {
    pub(crate) fn spec(&self) -> JobSpec {
        JobSpec {
            kind: JobKind::Command,
            spec: r#"{"command":["true"]}"#.to_owned(),
            lane: self.lane.to_owned(),
            concurrency: self.concurrency,
            max_attempts: self.max_attempts,
            max_releases: 3,
            backoff: Duration::from_secs(30),
            backoff_cap: Duration::from_secs(900),
            jitter_percent: 0,
            retry_lost: true,
            labels: Default::default(),
        }
    }
}
