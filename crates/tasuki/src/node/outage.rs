//! What the loops tell of ticks that failed. Each is tried again, so a database that is away is told once, and its
//! return; not by every loop at every try.
//!
//! Whether it is away the heartbeat knows, which asks all the time: a tick that failed while heartbeats were answered says
//! something of itself only. One statement that is always too slow is no outage, and neither is what was stuck on a
//! connection that died and is given up when the database has long been back.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tasuki_store::Error;

#[derive(Default)]
pub(crate) struct Outage {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// When the database last answered a heartbeat.
    answered: Option<Instant>,
    /// Since when it has not answered.
    since: Option<Instant>,
    /// When it was back after the last time.
    back: Option<Instant>,
}

/// What a database that did not answer a tick says.
#[derive(Debug, PartialEq, Eq)]
enum Says {
    /// It is away since now.
    Away,
    /// It is away, or was, as was told.
    Known,
    /// It answers others.
    OfItself,
}

impl Outage {
    /// Does a tick. One that failed is told, and tried again.
    pub(crate) async fn told<T>(
        &self,
        verb: &'static str,
        tick: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        let begun = Instant::now();
        match tick.await {
            Ok(done) => return Some(done),
            Err(error) if error.is_contention() => {
                tracing::debug!(verb, %error, "it gave way to another");
            }
            Err(error) if error.is_unavailable() => match self.seen().failed(begun) {
                Says::Away => {
                    tracing::warn!(verb, %error, "the database does not answer; what runs goes on, and is told later");
                }
                Says::Known => tracing::debug!(verb, %error, "it could not be done now"),
                Says::OfItself => tracing::warn!(verb, %error, "it could not be done now"),
            },
            Err(error) => tracing::warn!(verb, %error, "it could not be done now"),
        }
        None
    }

    /// The database has answered a heartbeat.
    pub(crate) fn answered(&self) {
        let now = Instant::now();
        if let Some(since) = self.seen().answers(now) {
            let seconds = (now - since).as_secs();
            tracing::info!(seconds, "the database answers again");
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Since when it had not, if it had not.
    fn answers(&mut self, now: Instant) -> Option<Instant> {
        self.answered = Some(now);
        let since = self.since.take();
        self.back = since.map(|_| now).or(self.back);
        since
    }

    /// A tick that began then was not answered.
    fn failed(&mut self, begun: Instant) -> Says {
        let before = |one: Option<Instant>| one.is_some_and(|one| begun <= one);
        if self.since.is_some() || before(self.back) {
            return Says::Known;
        }
        if before(self.answered) {
            return Says::OfItself;
        }
        self.since = Some(begun);
        Says::Away
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
    fn an_outage_is_told_once_and_so_is_its_end() {
        let mut seen = Seen::default();
        assert_eq!(seen.failed(at(1)), Says::Away, "it was never there");
        assert_eq!(seen.failed(at(2)), Says::Known);
        assert_eq!(seen.answers(at(3)), Some(at(1)));
        assert_eq!(seen.answers(at(4)), None);
        assert_eq!(seen.failed(at(5)), Says::Away, "the next one is told again");
    }

    #[test]
    fn one_that_is_slow_while_heartbeats_are_answered_is_no_outage() {
        let mut seen = Seen::default();
        for second in 0..20 {
            assert_eq!(seen.answers(at(second)), None, "nothing to return from");
            if second >= 5 {
                assert_eq!(seen.failed(at(second - 5)), Says::OfItself);
            }
        }
    }

    #[test]
    fn what_was_stuck_in_an_outage_begins_no_other() {
        let mut seen = Seen::default();
        seen.answers(at(1));
        assert_eq!(seen.failed(at(2)), Says::Away);
        assert_eq!(seen.answers(at(10)), Some(at(2)));
        assert_eq!(seen.failed(at(9)), Says::Known, "given up when it was back");
        seen.answers(at(11));
        assert_eq!(seen.failed(at(10)), Says::Known);
        assert_eq!(seen.failed(at(11)), Says::OfItself, "and this began later");
    }

    #[tokio::test]
    async fn a_tick_that_asked_nothing_says_nothing_of_the_database() {
        let outage = Outage::default();
        assert_eq!(outage.told("plan", std::future::ready(Ok(1))).await, Some(1));
        assert!(outage.seen().since.is_none());
        let failed = std::future::ready(Err(Error::timed_out()));
        assert_eq!(outage.told::<()>("plan", failed).await, None);
        assert_eq!(outage.told("plan", std::future::ready(Ok(1))).await, Some(1));
        assert!(outage.seen().since.is_some(), "it goes on");
    }
}
