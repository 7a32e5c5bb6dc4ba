//! What a run has used up, and who pays for what.
//!
//! `attempt_no` counts assignments and claims, `tries` counts starts, and only tries are charged
//! against a budget: an outage in which nothing starts eats no retries. `tries_allowed` only ever
//! rises. `releases` bounds how often a run can be handed round without starting.

/// The four numbers and one flag on a run's row that decide what may still happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Assignments and claims so far; numbers the attempts without gaps.
    pub attempt_no: u32,
    /// Starts so far.
    pub tries: u32,
    /// Starts allowed: begins as max_attempts and only rises.
    pub tries_allowed: u32,
    /// Times it was given back or taken back unstarted since it last started.
    pub releases: u32,
    /// Was lost together with others once: from now on it shares no lease, so that the next loss
    /// shows whose fault it is.
    pub alone: bool,
}

/// How a run was lost (T8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It was the only one RUNNING under its lease.
    Single,
    /// Others were RUNNING under the same lease: any of them may have been the poison.
    Together,
}

impl Counters {
    /// A new run of a job that allows `max_attempts` starts.
    pub fn new(max_attempts: u32) -> Self {
        Self { attempt_no: 0, tries: 0, tries_allowed: max_attempts, releases: 0, alone: false }
    }

    /// T1: given to a worker.
    pub fn assigned(self) -> Self {
        Self { attempt_no: self.attempt_no + 1, ..self }
    }

    /// T2: started.
    pub fn started(self) -> Self {
        Self { tries: self.tries + 1, releases: 0, ..self }
    }

    /// T1c: taken and started in one.
    pub fn claimed(self) -> Self {
        self.assigned().started()
    }

    /// T7, T7w, T8 of an assigned run: back without a start.
    pub fn released(self) -> Self {
        Self { releases: self.releases + 1, ..self }
    }

    /// T8 of a running run. One that fell together with others is not charged, once: it gets its try
    /// back and is flagged to go alone. A job with a single attempt gets none back: its owner said
    /// that it is not to be started twice.
    pub fn lost(self, loss: Loss, max_attempts: u32) -> Self {
        match loss {
            Loss::Together if max_attempts > 1 && !self.alone => {
                Self { tries_allowed: self.tries_allowed + 1, alone: true, ..self }
            }
            Loss::Together | Loss::Single => self,
        }
    }

    /// T14: somebody gives it one more try.
    pub fn retried_by_hand(self) -> Self {
        Self { tries_allowed: self.tries_allowed + 1, releases: 0, ..self }
    }

    /// Whether it may start again.
    pub fn has_tries_left(self) -> bool {
        self.tries < self.tries_allowed
    }

    /// Whether it was handed round often enough to give it up (T13).
    pub fn is_worn_out(self, max_releases: u32) -> bool {
        self.releases >= max_releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_outage_eats_no_retries() {
        let mut run = Counters::new(3);
        for _ in 0..10 {
            run = run.assigned().released();
        }
        assert_eq!((run.attempt_no, run.tries, run.releases), (10, 0, 10));
        assert!(run.has_tries_left());
        assert!(run.is_worn_out(10) && !run.is_worn_out(11));
        assert_eq!(run.assigned().started().releases, 0);
    }

    #[test]
    fn a_loss_with_others_is_forgiven_once_and_the_next_is_charged() {
        let first = Counters::new(2).claimed().lost(Loss::Together, 2);
        assert_eq!((first.tries, first.tries_allowed, first.alone), (1, 3, true));
        // It goes alone now; should a stale snapshot say otherwise, it is charged all the same.
        let second = first.claimed().lost(Loss::Together, 2);
        assert_eq!((second.tries, second.tries_allowed), (2, 3));
    }

    #[test]
    fn a_single_attempt_stays_single() {
        let lost = Counters::new(1).claimed().lost(Loss::Together, 1);
        assert!(!lost.has_tries_left());
        assert!(!lost.alone);
    }

    #[test]
    fn a_loss_alone_is_charged() {
        let lost = Counters::new(2).claimed().lost(Loss::Single, 2);
        assert_eq!((lost.tries, lost.tries_allowed, lost.alone), (1, 2, false));
    }

    #[test]
    fn a_retry_by_hand_buys_exactly_one_try() {
        let spent = Counters::new(1).claimed();
        let again = spent.assigned().released().retried_by_hand();
        assert!(again.has_tries_left());
        assert_eq!(again.releases, 0);
        assert!(!again.claimed().has_tries_left());
    }

    proptest! {
        /// I8: whatever happens in whatever order, tries stay within what is allowed, attempts are
        /// at least as many as tries, and what only rises only rises.
        #[test]
        fn budgets_hold_in_any_order(max in 1u32..5, steps in prop::collection::vec(0u8..6, 0..60)) {
            let mut run = Counters::new(max);
            for step in steps {
                let before = run;
                run = match step {
                    0 if run.has_tries_left() => run.claimed(),
                    1 => run.assigned().released(),
                    2 if run.has_tries_left() => run.assigned().started(),
                    3 if run.tries > 0 => run.lost(Loss::Together, max),
                    4 if run.tries > 0 => run.lost(Loss::Single, max),
                    5 if !run.has_tries_left() => run.retried_by_hand(),
                    _ => run,
                };
                prop_assert!(run.tries <= run.tries_allowed);
                prop_assert!(run.tries <= run.attempt_no);
                prop_assert!(run.tries_allowed >= before.tries_allowed);
                prop_assert!(run.attempt_no >= before.attempt_no);
                prop_assert!(run.alone >= before.alone);
            }
        }
    }
}
