//! Decides whether a run is retried after an attempt that failed, and after what delay.

use std::time::Duration;

use crate::exit::ClassifiedFailure;
use crate::run::RunCounters;
use crate::{AttemptErrorCode, InvalidInput, RunState};

/// The delay before a retry: it doubles with each try, from a base up to a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter_percent: u8,
}

impl Backoff {
    /// The delay is `base` before the second try, twice that before the third, and at most `cap`.
    /// `jitter_percent` (0 to 100) is the share of each delay that a random number may subtract.
    pub fn new(base: Duration, cap: Duration, jitter_percent: u8) -> Result<Self, InvalidInput> {
        if cap < base {
            let found = format!("{cap:?}");
            let expected = format!("at least the first delay, {base:?}");
            return Err(InvalidInput::with_described_value("backoff cap", found, expected));
        }
        if jitter_percent > 100 {
            let found = format!("{jitter_percent} %");
            return Err(InvalidInput::with_described_value("backoff jitter", found, "0 to 100 %"));
        }
        Ok(Self { base, cap, jitter_percent })
    }

    /// The delay after try number `tries` failed. `random` is any random number; without jitter it has no
    /// effect.
    pub fn delay(&self, tries: u32, random: u32) -> Duration {
        let doublings = tries.saturating_sub(1).min(63);
        let factor = 1u128 << doublings;
        let full = (self.base.as_micros().saturating_mul(factor)).min(self.cap.as_micros());
        let max_jitter = full * u128::from(self.jitter_percent) / 100;
        let jitter = max_jitter * u128::from(random) / u128::from(u32::MAX);
        let micros = u64::try_from(full - jitter).unwrap_or(u64::MAX);
        Duration::from_micros(micros)
    }
}

/// The state of a run when its attempt ends.
#[derive(Debug, Clone, Copy)]
pub struct RunAtAttemptEnd {
    /// The run's counters, including the try that ended.
    pub counters: RunCounters,
    /// The run's copy of its job's `max_attempts`.
    pub max_attempts: u32,
    /// Whether a cancel was requested.
    pub cancel_requested: bool,
}

/// The next state of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// RETRY_WAIT: the next try starts after this delay.
    Retry(Duration),
    /// The run ends in this state.
    End(RunState),
}

/// Decides between a retry and the end of the run.
///
/// A requested cancel has precedence. A retryable failure is retried while tries are left. Without
/// tries left, the run becomes EXPIRED (gave up after retries); if the job allows only one attempt, it
/// becomes FAILED or TIMED_OUT.
pub fn decide_retry(
    run: &RunAtAttemptEnd,
    failure: &ClassifiedFailure,
    backoff: &Backoff,
    random: u32,
) -> RetryDecision {
    if run.cancel_requested {
        return RetryDecision::End(RunState::Canceled);
    }
    if failure.retryable && run.counters.has_tries_left() {
        return RetryDecision::Retry(backoff.delay(run.counters.tries, random));
    }
    if failure.retryable && run.max_attempts > 1 {
        return RetryDecision::End(RunState::Expired);
    }
    match failure.code == AttemptErrorCode::RUNTIME_TIMEOUT {
        true => RetryDecision::End(RunState::TimedOut),
        false => RetryDecision::End(RunState::Failed),
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

    fn run(tries: u32, max_attempts: u32, cancel_asked: bool) -> RunAtAttemptEnd {
        let counters = RunCounters { attempt_no: tries, tries, ..RunCounters::new(max_attempts) };
        RunAtAttemptEnd { counters, max_attempts, cancel_requested: cancel_asked }
    }

    #[test]
    fn the_delay_doubles_up_to_the_cap() {
        let delays: Vec<u64> = (1..=8).map(|tries| backoff().delay(tries, 7).as_secs()).collect();
        assert_eq!(delays, [30, 60, 120, 240, 480, 900, 900, 900]);
        assert_eq!(backoff().delay(u32::MAX, 0), seconds(900));
    }

    #[test]
    fn jitter_subtracts_at_most_its_share() {
        let full = Backoff::new(seconds(30), seconds(900), 100).unwrap();
        assert_eq!(full.delay(1, 0), seconds(30));
        assert_eq!(full.delay(1, u32::MAX), seconds(0));
        let half = Backoff::new(seconds(30), seconds(900), 50).unwrap();
        assert_eq!(half.delay(2, u32::MAX), seconds(30));
    }

    #[test]
    fn a_cap_below_the_base_or_a_jitter_above_100_percent_is_an_error() {
        let cap = Backoff::new(seconds(30), seconds(10), 0).unwrap_err();
        assert_eq!(
            cap.to_string(),
            "backoff cap: found 10s, expected at least the first delay, 30s"
        );
        assert!(Backoff::new(seconds(1), seconds(1), 101).is_err());
    }

    #[test]
    fn the_decision_depends_on_failure_tries_and_cancel() {
        let retry = |wait| RetryDecision::Retry(seconds(wait));
        let end = RetryDecision::End;
        use RunState::{Canceled, Expired, Failed, TimedOut};
        let table = [
            // tries, max_attempts, cancel requested, error code, expected decision
            (1, 1, false, AttemptErrorCode::UNEXPECTED_ERROR, end(Failed)),
            (1, 1, false, AttemptErrorCode::RUNTIME_TIMEOUT, end(TimedOut)),
            (1, 1, false, AttemptErrorCode::HEARTBEAT_TIMEOUT, end(Failed)),
            (1, 4, false, AttemptErrorCode::UNEXPECTED_ERROR, retry(30)),
            (3, 4, false, AttemptErrorCode::STORAGE_ERROR, retry(120)),
            (4, 4, false, AttemptErrorCode::STORAGE_ERROR, end(Expired)),
            (4, 4, false, AttemptErrorCode::RUNTIME_TIMEOUT, end(Expired)),
            (1, 4, false, AttemptErrorCode::INVALID_INPUT, end(Failed)),
            (4, 4, false, AttemptErrorCode::NOT_FOUND, end(Failed)),
            (1, 4, false, AttemptErrorCode::DRAINED, retry(30)),
            (1, 4, true, AttemptErrorCode::DRAINED, end(Canceled)),
            (4, 4, true, AttemptErrorCode::INVALID_INPUT, end(Canceled)),
        ];
        for (tries, max_attempts, cancel_asked, code, expected) in table {
            let failure = FailureRules::default().classify_code(code.clone(), None);
            let found =
                decide_retry(&run(tries, max_attempts, cancel_asked), &failure, &backoff(), 0);
            assert_eq!(found, expected, "{code}, try {tries} of {max_attempts}");
        }
    }

    #[test]
    fn a_run_with_one_attempt_ends_as_failed_also_after_a_manual_retry() {
        let counters = RunCounters::new(1).after_claim().with_one_more_try().after_claim();
        let run = RunAtAttemptEnd { counters, max_attempts: 1, cancel_requested: false };
        let failure =
            FailureRules::default().classify_code(AttemptErrorCode::UNEXPECTED_ERROR, None);
        assert_eq!(
            decide_retry(&run, &failure, &backoff(), 0),
            RetryDecision::End(RunState::Failed)
        );
    }

    proptest! {
        /// Every decision is a legal transition, and every delay is within its bounds.
        #[test]
        fn a_decision_is_a_legal_transition(
            tries in 1u32..50, allowed in 0u32..50, max in 1u32..50,
            cancel in any::<bool>(), which in 0..AttemptErrorCode::BUILT_IN.len(), jitter in 0u8..=100, random: u32,
        ) {
            let counters = RunCounters { attempt_no: tries, tries, tries_allowed: tries.max(allowed), releases: 0, isolated: false };
            let run = RunAtAttemptEnd { counters, max_attempts: max, cancel_requested: cancel };
            let failure = FailureRules::default().classify_code(AttemptErrorCode::BUILT_IN[which].0.clone(), None);
            let backoff = Backoff::new(seconds(30), seconds(900), jitter).unwrap();
            match decide_retry(&run, &failure, &backoff, random) {
                RetryDecision::Retry(wait) => {
                    prop_assert!(counters.has_tries_left() && !cancel);
                    prop_assert!(wait <= seconds(900));
                }
                RetryDecision::End(state) => prop_assert!(RunState::Running.may_become(state)),
            }
        }
    }
}
