//! Events: told, and looked at.

use tasuki_core::{EventId, Invalid, JobName};
use tasuki_store::{Emitted, Event, NewEvent};

use super::{Error, Operator};

/// The longest type.
const LONGEST_TYPE: usize = 191;

/// An event to be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventDraft {
    /// What happened: `order.paid`.
    pub event_type: String,
    /// Who tells it.
    pub source: String,
    /// The same key twice from one source is the same event.
    pub dedupe_key: Option<String>,
    /// The one job it is for.
    pub job: Option<String>,
    /// What goes with it, as JSON.
    pub payload: Option<String>,
}

impl Operator {
    /// Tells an event. One for a job that is not there is refused: nobody would ever take it.
    pub async fn emit(&self, event: &EventDraft) -> Result<Emitted, Error> {
        if !is_type(&event.event_type) {
            let expected = "1 to 191 letters, digits and . _ - : /";
            return Err(Invalid::typed("event type", &event.event_type, expected).into());
        }
        let job: Option<JobName> = match &event.job {
            Some(name) => Some(self.stored_job(name).await?.name.parse()?),
            None => None,
        };
        let emitted = self
            .store
            .emit(&NewEvent {
                event_type: &event.event_type,
                source: &event.source,
                dedupe_key: event.dedupe_key.as_deref(),
                job_name: job.as_ref(),
                payload: event.payload.as_deref(),
            })
            .await?;
        self.wake.all();
        Ok(emitted)
    }

    /// Events, newest first, from before one on.
    pub async fn events(&self, before: Option<EventId>, most: u32) -> Result<Vec<Event>, Error> {
        Ok(self.store.events(before, most).await?)
    }

    /// One event.
    pub async fn event(&self, event: EventId) -> Result<Event, Error> {
        self.store.event(event).await?.ok_or_else(|| Error::not_found("event", &event))
    }
}

/// Refuses what no event could be called, so that a job does not wait for it in vain: a type, or `prefix.*`
/// for everything below a prefix.
pub(super) fn check_wanted(wanted: &str) -> Result<(), Invalid> {
    let fits = is_type(wanted.strip_suffix(".*").unwrap_or(wanted));
    match fits && wanted.chars().count() <= LONGEST_TYPE {
        true => Ok(()),
        false => {
            let expected = "types such as order.paid, or order.* for all below it: \
                            1 to 191 letters, digits and . _ - : /";
            Err(Invalid::typed("event types", wanted, expected))
        }
    }
}

/// Letters and digits of any script, and what separates them.
fn is_type(typed: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/');
    (1..=LONGEST_TYPE).contains(&typed.chars().count()) && typed.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_words() {
        let (long, too_long) = ("a".repeat(191), "a".repeat(192));
        for (typed, fits) in [
            ("order.paid", true),
            ("注文.支払", true),
            ("Order_paid-2:eu/x", true),
            (&long, true),
            ("", false),
            ("bad type!", false),
            (" order", false),
            ("order.*", false),
            ("order\n", false),
            (&too_long, false),
        ] {
            assert_eq!(is_type(typed), fits, "{typed:?}");
        }
        for (wanted, fits) in [
            ("order.paid", true),
            ("order.*", true),
            ("*", false),
            (".*", false),
            ("or*.paid", false),
            ("order.*.late", false),
            ("bad type.*", false),
            ("", false),
        ] {
            assert_eq!(check_wanted(wanted).is_ok(), fits, "{wanted:?}");
        }
    }
}
