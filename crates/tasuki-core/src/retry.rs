//! What follows when an attempt ends without success.

use std::time::Duration;

use crate::exit::Failure;
use crate::run::Counters;
use crate::{ErrorCode, Invalid, RunState};

/// How long to wait before the next try: doubling from a base up to a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter_percent: u8,
}

impl Backoff {
    /// Waits `base` before the second try, twice that before the third, never more than `cap`.
    /// `jitter_percent` is the share of each wait that dice may take away: 0 is none, 100 is all.
    pub fn new(base: Duration, cap: Duration, jitter_percent: u8) -> Result<Self, Invalid> {
        if cap < base {
            let found = format!("{cap:?}");
            let expected = format!("at least the first wait, {base:?}");
            return Err(Invalid::described("backoff cap", found, expected));
        }
        if jitter_percent > 100 {
            let found = format!("{jitter_percent} %");
            return Err(Invalid::described("backoff jitter", found, "0 to 100 %"));
        }
        Ok(Self { base, cap, jitter_percent })
    }

    /// The wait after the `tries`-th start failed. `dice` is any random number; with no jitter it
    /// does not matter.
    pub fn wait(&self, tries: u32, dice: u32) -> Duration {
        let doublings = tries.saturating_sub(1).min(63);
        let factor = 1u128 << doublings;
        let full = (self.base.as_micros().saturating_mul(factor)).min(self.cap.as_micros());
        let most_taken = full * u128::from(self.jitter_percent) / 100;
        let taken = most_taken * u128::from(dice) / u128::from(u32::MAX);
        let micros = u64::try_from(full - taken).unwrap_or(u64::MAX);
        Duration::from_micros(micros)
    }
}

/// What a run's row says at the moment its attempt ends.
#[derive(Debug, Clone, Copy)]
pub struct AtTheEnd {
    /// Its counters, the ended try included.
    pub counters: Counters,
    /// The job's max_attempts as copied into the run.
    pub max_attempts: u32,
    /// Whether a cancel was asked.
    pub cancel_asked: bool,
}

/// What becomes of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// RETRY_WAIT; `next_retry_at` is the database's clock plus this.
    Retry(Duration),
    /// An end.
    End(RunState),
}

/// Decides between another try and an end.
///
/// A cancel wins over everything. A failure that another try may mend gets one while tries are left;
/// when they are spent the run is EXPIRED, which says "gave up", unless the job never had more than
/// one: then it simply FAILED or TIMED_OUT.
pub fn decide(run: &AtTheEnd, failure: &Failure, backoff: &Backoff, dice: u32) -> Next {
    if run.cancel_asked {
        return Next::End(RunState::Canceled);
    }
    if failure.retryable && run.counters.has_tries_left() {
        return Next::Retry(backoff.wait(run.counters.tries, dice));
    }
    if failure.retryable && run.max_attempts > 1 {
        return Next::End(RunState::Expired);
    }
    match failure.code == ErrorCode::RUNTIME_TIMEOUT {
        true => Next::End(RunState::TimedOut),
        false => Next::End(RunState::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::FailureRules;
    use proptest::prelude::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn backoff() -> Backoff {
        Backoff::new(seconds(30), seconds(900), 0).unwrap()
    }

    fn run(tries: u32, max_attempts: u32, cancel_asked: bool) -> AtTheEnd {
        let counters = Counters { attempt_no: tries, tries, ..Counters::new(max_attempts) };
        AtTheEnd { counters, max_attempts, cancel_asked }
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let waits: Vec<u64> = (1..=8).map(|tries| backoff().wait(tries, 7).as_secs()).collect();
        assert_eq!(waits, [30, 60, 120, 240, 480, 900, 900, 900]);
        assert_eq!(backoff().wait(u32::MAX, 0), seconds(900));
    }

    #[test]
    fn jitter_takes_away_up_to_its_share() {
        let full = Backoff::new(seconds(30), seconds(900), 100).unwrap();
        assert_eq!(full.wait(1, 0), seconds(30));
        assert_eq!(full.wait(1, u32::MAX), seconds(0));
        let half = Backoff::new(seconds(30), seconds(900), 50).unwrap();
        assert_eq!(half.wait(2, u32::MAX), seconds(30));
    }

    #[test]
    fn nonsense_is_refused() {
        let cap = Backoff::new(seconds(30), seconds(10), 0).unwrap_err();
        assert_eq!(
            cap.to_string(),
            "backoff cap: found 10s, expected at least the first wait, 30s"
        );
        assert!(Backoff::new(seconds(1), seconds(1), 101).is_err());
    }

    #[test]
    fn the_decision() {
        let retry = |wait| Next::Retry(seconds(wait));
        let end = Next::End;
        use RunState::{Canceled, Expired, Failed, TimedOut};
        let table = [
            // tries, max_attempts, cancel asked, code, what follows
            (1, 1, false, ErrorCode::UNEXPECTED_ERROR, end(Failed)),
            (1, 1, false, ErrorCode::RUNTIME_TIMEOUT, end(TimedOut)),
            (1, 1, false, ErrorCode::HEARTBEAT_TIMEOUT, end(Failed)),
            (1, 4, false, ErrorCode::UNEXPECTED_ERROR, retry(30)),
            (3, 4, false, ErrorCode::STORAGE_ERROR, retry(120)),
            (4, 4, false, ErrorCode::STORAGE_ERROR, end(Expired)),
            (4, 4, false, ErrorCode::RUNTIME_TIMEOUT, end(Expired)),
            (1, 4, false, ErrorCode::INVALID_INPUT, end(Failed)),
            (4, 4, false, ErrorCode::NOT_FOUND, end(Failed)),
            (1, 4, false, ErrorCode::DRAINED, retry(30)),
            (1, 4, true, ErrorCode::DRAINED, end(Canceled)),
            (4, 4, true, ErrorCode::INVALID_INPUT, end(Canceled)),
        ];
        for (tries, max_attempts, cancel_asked, code, expected) in table {
            let failure = FailureRules::default().failure(code.clone(), None);
            let found = decide(&run(tries, max_attempts, cancel_asked), &failure, &backoff(), 0);
            assert_eq!(found, expected, "{code}, try {tries} of {max_attempts}");
        }
    }

    #[test]
    fn a_try_given_by_hand_does_not_turn_a_failure_into_an_expiry() {
        let counters = Counters::new(1).claimed().retried_by_hand().claimed();
        let run = AtTheEnd { counters, max_attempts: 1, cancel_asked: false };
        let failure = FailureRules::default().failure(ErrorCode::UNEXPECTED_ERROR, None);
        assert_eq!(decide(&run, &failure, &backoff(), 0), Next::End(RunState::Failed));
    }

    proptest! {
        /// Whatever the numbers, what is decided is a move the table allows, and a wait is in bounds.
        #[test]
        fn a_decision_is_a_legal_move(
            tries in 1u32..50, allowed in 0u32..50, max in 1u32..50,
            cancel in any::<bool>(), which in 0..ErrorCode::KNOWN.len(), jitter in 0u8..=100, dice: u32,
        ) {
            let counters = Counters { attempt_no: tries, tries, tries_allowed: tries.max(allowed), releases: 0, alone: false };
            let run = AtTheEnd { counters, max_attempts: max, cancel_asked: cancel };
            let failure = FailureRules::default().failure(ErrorCode::KNOWN[which].0.clone(), None);
            let backoff = Backoff::new(seconds(30), seconds(900), jitter).unwrap();
            match decide(&run, &failure, &backoff, dice) {
                Next::Retry(wait) => {
                    prop_assert!(counters.has_tries_left() && !cancel);
                    prop_assert!(wait <= seconds(900));
                }
                Next::End(state) => prop_assert!(RunState::Running.may_become(state)),
            }
        }
    }
}
