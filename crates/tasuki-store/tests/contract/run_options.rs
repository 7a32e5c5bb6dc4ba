//! Options of the jobs and runs that tests create.

use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_store::{JobKind, JobVersionSpec};

/// Options of a test's job and run, besides the state of the run.
#[derive(Debug, Clone)]
pub(crate) struct RunOptions {
    pub(crate) lane: &'static str,
    pub(crate) concurrency: ConcurrencyPolicy,
    pub(crate) max_attempts: u32,
    pub(crate) skip_after: Option<i64>,
    pub(crate) expire_after: Option<i64>,
}

impl Default for RunOptions {
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

impl RunOptions {
    pub(crate) fn spec(&self) -> JobVersionSpec {
        JobVersionSpec {
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
