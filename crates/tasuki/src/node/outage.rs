//! What the loops tell of ticks that failed. Each is tried again, so a database that is away is told once, and its
//! return; not by every loop at every try.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tasuki_store::Error;

#[derive(Default)]
pub(crate) struct Outage {
    since: Mutex<Option<Instant>>,
}

impl Outage {
    /// A tick that failed is told, and tried again.
    pub(crate) fn told<T>(&self, verb: &'static str, tick: Result<T, Error>) -> Option<T> {
        match tick {
            Ok(done) => return Some(done),
            Err(error) if error.is_contention() => {
                tracing::debug!(verb, %error, "it gave way to another");
            }
            Err(error) if error.is_unavailable() && !self.begins() => {
                tracing::debug!(verb, %error, "it could not be done now");
            }
            Err(error) if error.is_unavailable() => {
                tracing::warn!(verb, %error, "the database does not answer; what runs goes on, and is told later");
            }
            Err(error) => tracing::warn!(verb, %error, "it could not be done now"),
        }
        None
    }

    /// The database has answered.
    pub(crate) fn over(&self) {
        if let Some(since) = self.since().take() {
            tracing::info!(seconds = since.elapsed().as_secs(), "the database answers again");
        }
    }

    /// Whether nobody has told of it yet.
    fn begins(&self) -> bool {
        let mut since = self.since();
        let begins = since.is_none();
        since.get_or_insert_with(Instant::now);
        begins
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_once() {
        let outage = Outage::default();
        assert_eq!(outage.told("plan", Ok(1)), Some(1));
        assert!(outage.since().is_none());
        assert_eq!(outage.told::<()>("plan", Err(Error::timed_out())), None);
        assert!(!outage.begins(), "it has begun");
        // A tick that asked nothing says nothing of the database.
        assert_eq!(outage.told("plan", Ok(1)), Some(1));
        assert!(!outage.begins(), "it goes on");
        outage.over();
        assert!(outage.begins(), "the next one is told again");
    }
}
