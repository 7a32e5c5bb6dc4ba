//! The counters of a run: attempts, tries and releases.
//!
//! `attempt_no` counts assignments and claims, `tries` counts starts. Only tries are limited, so an
//! outage during which no run starts uses up no retries. `tries_allowed` only rises. `releases` limits
//! how often a run can be assigned without starting.

/// The counters in a run's row. They decide whether the run may be assigned and retried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCounters {
    /// The number of assignments and claims so far: the number of the current attempt, without gaps.
    pub attempt_no: u32,
    /// The number of starts so far.
    pub tries: u32,
    /// The number of starts allowed: initially `max_attempts`, and only rising.
    pub tries_allowed: u32,
    /// The number of times it was assigned and not started (released or orphaned) since its last start.
    pub releases: u32,
    /// Whether the run must not share a lease with other runs. It is set when the run was lost together
    /// with other runs of one lease: after the next loss it is clear which run causes the crash.
    pub isolated: bool,
}

/// Whether a run was lost alone or together with other runs (T8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// The run was the only RUNNING run of its lease.
    Single,
    /// Other runs of the same lease were RUNNING too: any of them may have crashed the worker.
    Shared,
}

impl RunCounters {
    /// The counters of a new run that may start `max_attempts` times.
    pub fn new(max_attempts: u32) -> Self {
        Self { attempt_no: 0, tries: 0, tries_allowed: max_attempts, releases: 0, isolated: false }
    }

    /// The counters after an assignment (T1).
    pub fn after_assign(self) -> Self {
        Self { attempt_no: self.attempt_no + 1, ..self }
    }

    /// The counters after a start (T2).
    pub fn after_start(self) -> Self {
        Self { tries: self.tries + 1, releases: 0, ..self }
    }

    /// The counters after a claim (T1c): assigned and started at the same time.
    pub fn after_claim(self) -> Self {
        self.after_assign().after_start()
    }

    /// The counters after an assigned run was taken back or released without a start (T7, T7w, T8).
    pub fn after_release(self) -> Self {
        Self { releases: self.releases + 1, ..self }
    }

    /// The counters after a RUNNING run was lost (T8). If other runs were lost with it, the run gets one
    /// additional try, once, and is isolated from then on. A job with a single attempt gets none: its
    /// owner decided that it must not start twice.
    pub fn with_extra_try_after_shared_loss(self, loss: LossKind, max_attempts: u32) -> Self {
        match loss {
            LossKind::Shared if max_attempts > 1 && !self.isolated => {
                Self { tries_allowed: self.tries_allowed + 1, isolated: true, ..self }
            }
            LossKind::Shared | LossKind::Single => self,
        }
    }

    /// The counters after a manual retry (T14): one more try.
    pub fn with_one_more_try(self) -> Self {
        Self { tries_allowed: self.tries_allowed + 1, releases: 0, ..self }
    }

    /// Whether the run may start again.
    pub fn has_tries_left(self) -> bool {
        self.tries < self.tries_allowed
    }

    /// Whether the run was released so often without a start that it expires (T13).
    pub fn releases_exhausted(self, max_releases: u32) -> bool {
        self.releases >= max_releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn releases_without_a_start_use_up_no_tries() {
        let mut run = RunCounters::new(3);
        for _ in 0..10 {
            run = run.after_assign().after_release();
        }
        assert_eq!((run.attempt_no, run.tries, run.releases), (10, 0, 10));
        assert!(run.has_tries_left());
        assert!(run.releases_exhausted(10) && !run.releases_exhausted(11));
        assert_eq!(run.after_assign().after_start().releases, 0);
    }

    #[test]
    fn a_shared_loss_gives_one_additional_try_only_once() {
        let first =
            RunCounters::new(2).after_claim().with_extra_try_after_shared_loss(LossKind::Shared, 2);
        assert_eq!((first.tries, first.tries_allowed, first.isolated), (1, 3, true));
        // The run is isolated now. Even if a stale observation reports a shared loss, it uses up a try.
        let second = first.after_claim().with_extra_try_after_shared_loss(LossKind::Shared, 2);
        assert_eq!((second.tries, second.tries_allowed), (2, 3));
    }

    #[test]
    fn a_job_with_one_attempt_gets_no_additional_try() {
        let lost =
            RunCounters::new(1).after_claim().with_extra_try_after_shared_loss(LossKind::Shared, 1);
        assert!(!lost.has_tries_left());
        assert!(!lost.isolated);
    }

    #[test]
    fn a_single_loss_uses_up_its_try() {
        let lost =
            RunCounters::new(2).after_claim().with_extra_try_after_shared_loss(LossKind::Single, 2);
        assert_eq!((lost.tries, lost.tries_allowed, lost.isolated), (1, 2, false));
    }

    #[test]
    fn a_manual_retry_gives_exactly_one_try() {
        let spent = RunCounters::new(1).after_claim();
        let again = spent.after_assign().after_release().with_one_more_try();
        assert!(again.has_tries_left());
        assert_eq!(again.releases, 0);
        assert!(!again.after_claim().has_tries_left());
    }

    proptest! {
        /// I8: in any order of transitions, tries never exceed `tries_allowed` or attempts, and the
        /// counters that may only rise never fall.
        #[test]
        fn counters_stay_consistent_in_any_order(max in 1u32..5, steps in prop::collection::vec(0u8..6, 0..60)) {
            let mut run = RunCounters::new(max);
            for step in steps {
                let before = run;
                run = match step {
                    0 if run.has_tries_left() => run.after_claim(),
                    1 => run.after_assign().after_release(),
                    2 if run.has_tries_left() => run.after_assign().after_start(),
                    3 if run.tries > 0 => run.with_extra_try_after_shared_loss(LossKind::Shared, max),
                    4 if run.tries > 0 => run.with_extra_try_after_shared_loss(LossKind::Single, max),
                    5 if !run.has_tries_left() => run.with_one_more_try(),
                    _ => run,
                };
                prop_assert!(run.tries <= run.tries_allowed);
                prop_assert!(run.tries <= run.attempt_no);
                prop_assert!(run.tries_allowed >= before.tries_allowed);
                prop_assert!(run.attempt_no >= before.attempt_no);
                prop_assert!(run.isolated >= before.isolated);
            }
        }
    }
}
