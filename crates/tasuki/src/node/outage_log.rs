//! Logs failed ticks of the loops. Every tick is retried, so without this module each loop would log an unavailable
//! database at each retry. Here the start and the end of an outage are logged once.
//!
//! The heartbeat, which runs all the time, tells whether the database is available. A tick that failed although a
//! heartbeat succeeded after the tick began is the tick's own problem: a statement that is always too slow is no outage,
//! and neither is a statement that hung on a dead connection and failed after the database was available again.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tasuki_store::Error;

/// Runs ticks and logs their failures, without repeating the same outage.
#[derive(Default)]
pub(crate) struct OutageLog {
    state: Mutex<DatabaseState>,
}

#[derive(Default)]
struct DatabaseState {
    /// Instant of the last successful heartbeat.
    last_heartbeat_at: Option<Instant>,
    /// Start of the current outage, if there is one.
    unavailable_since: Option<Instant>,
    /// End of the last outage.
    recovered_at: Option<Instant>,
}

/// What a tick that got no response from the database indicates.
#[derive(Debug, PartialEq, Eq)]
enum TickFailure {
    /// An outage begins with this failure.
    OutageStarted,
    /// The failure belongs to an outage that is already logged.
    DuringOutage,
    /// The database responds to heartbeats; only this tick failed.
    TickOnly,
}

impl OutageLog {
    /// Runs a tick and logs its failure. `None`: the tick failed; the caller retries it.
    pub(crate) async fn run_and_log_failure<T>(
        &self,
        verb: &'static str,
        tick: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        let started_at = Instant::now();
        match tick.await {
            Ok(output) => return Some(output),
            Err(error) if error.is_contention() => {
                tracing::debug!(verb, %error, "a tick conflicted with another transaction; it is retried");
            }
            Err(error) if error.is_unavailable() => match self.state().classify_failure(started_at)
            {
                TickFailure::OutageStarted => {
                    tracing::warn!(verb, %error, "the database does not respond; running attempts continue and are reported later");
                }
                TickFailure::DuringOutage => {
                    tracing::debug!(verb, %error, "a tick failed; it is retried");
                }
                TickFailure::TickOnly => {
                    tracing::warn!(verb, %error, "a tick failed; it is retried");
                }
            },
            Err(error) => tracing::warn!(verb, %error, "a tick failed; it is retried"),
        }
        None
    }

    /// Records a successful heartbeat, and logs the end of an outage.
    pub(crate) fn record_heartbeat_success(&self) {
        let now = Instant::now();
        if let Some(since) = self.state().record_heartbeat(now) {
            let seconds = (now - since).as_secs();
            tracing::info!(seconds, "the database responds again");
        }
    }

    fn state(&self) -> MutexGuard<'_, DatabaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DatabaseState {
    /// Records a successful heartbeat. Returns the start of the outage that it ends, if there was one.
    fn record_heartbeat(&mut self, now: Instant) -> Option<Instant> {
        self.last_heartbeat_at = Some(now);
        let since = self.unavailable_since.take();
        self.recovered_at = since.map(|_| now).or(self.recovered_at);
        since
    }

    /// Classifies the failure of a tick that began at this instant.
    fn classify_failure(&mut self, started_at: Instant) -> TickFailure {
        let before =
            |instant: Option<Instant>| instant.is_some_and(|instant| started_at <= instant);
        if self.unavailable_since.is_some() || before(self.recovered_at) {
            return TickFailure::DuringOutage;
        }
        if before(self.last_heartbeat_at) {
            return TickFailure::TickOnly;
        }
        self.unavailable_since = Some(started_at);
        TickFailure::OutageStarted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Instant {
        static NOON: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *NOON.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    #[test]
    fn an_outage_and_its_end_are_logged_once() {
        let mut state = DatabaseState::default();
        assert_eq!(
            state.classify_failure(at(1)),
            TickFailure::OutageStarted,
            "no heartbeat has succeeded yet"
        );
        assert_eq!(state.classify_failure(at(2)), TickFailure::DuringOutage);
        assert_eq!(state.record_heartbeat(at(3)), Some(at(1)));
        assert_eq!(state.record_heartbeat(at(4)), None);
        assert_eq!(
            state.classify_failure(at(5)),
            TickFailure::OutageStarted,
            "the next outage is logged again"
        );
    }

    #[test]
    fn a_slow_tick_while_heartbeats_succeed_is_no_outage() {
        let mut state = DatabaseState::default();
        for second in 0..20 {
            assert_eq!(state.record_heartbeat(at(second)), None, "there is no outage to end");
            if second >= 5 {
                assert_eq!(state.classify_failure(at(second - 5)), TickFailure::TickOnly);
            }
        }
    }

    #[test]
    fn a_tick_stuck_since_an_outage_starts_no_second_outage() {
        let mut state = DatabaseState::default();
        state.record_heartbeat(at(1));
        assert_eq!(state.classify_failure(at(2)), TickFailure::OutageStarted);
        assert_eq!(state.record_heartbeat(at(10)), Some(at(2)));
        assert_eq!(
            state.classify_failure(at(9)),
            TickFailure::DuringOutage,
            "it failed after the outage had ended"
        );
        state.record_heartbeat(at(11));
        assert_eq!(state.classify_failure(at(10)), TickFailure::DuringOutage);
        assert_eq!(
            state.classify_failure(at(11)),
            TickFailure::TickOnly,
            "this tick began after the outage"
        );
    }

    #[tokio::test]
    async fn a_successful_tick_does_not_end_an_outage() {
        let outage = OutageLog::default();
        assert_eq!(outage.run_and_log_failure("plan", std::future::ready(Ok(1))).await, Some(1));
        assert!(outage.state().unavailable_since.is_none());
        let failed = std::future::ready(Err(Error::timeout()));
        assert_eq!(outage.run_and_log_failure::<()>("plan", failed).await, None);
        assert_eq!(outage.run_and_log_failure("plan", std::future::ready(Ok(1))).await, Some(1));
        assert!(outage.state().unavailable_since.is_some(), "the outage continues");
    }
}
