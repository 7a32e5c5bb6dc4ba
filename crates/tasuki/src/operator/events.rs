//! Events: emitting and reading them.

use tasuki_core::{EventId, InvalidInput, JobName};
use tasuki_store::{EmitResult, Event, NewEvent};

use super::{Error, Operator};

/// Maximum length of an event type in characters.
const MAX_TYPE_CHARS: usize = 191;

/// The input for emitting an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventDraft {
    /// The type of the event: `order.paid`.
    pub event_type: String,
    /// The program that emits the event.
    pub source: String,
    /// A key that identifies the event within its source: a second emit with the same key returns the existing event.
    pub dedupe_key: Option<String>,
    /// The only job that the event may start; `None`: every job that matches.
    pub job: Option<String>,
    /// The payload, as JSON.
    pub payload: Option<String>,
}

impl Operator {
    /// Emits an event. An event for a job that does not exist is an error, because no job would ever handle it.
    pub async fn emit_event(&self, event: &EventDraft) -> Result<EmitResult, Error> {
        if !is_event_type(&event.event_type) {
            let expected = "1 to 191 letters, digits and . _ - : /";
            return Err(InvalidInput::with_value("event type", &event.event_type, expected).into());
        }
        let job: Option<JobName> = match &event.job {
            Some(name) => Some(self.get_stored_job(name).await?.name.parse()?),
            None => None,
        };
        let emitted = self
            .store
            .emit_event(&NewEvent {
                event_type: &event.event_type,
                source: &event.source,
                dedupe_key: event.dedupe_key.as_deref(),
                job_name: job.as_ref(),
                payload: event.payload.as_deref(),
            })
            .await?;
        self.notifier.wake_all();
        Ok(emitted)
    }

    /// Events before one event id, newest first.
    pub async fn list_events(
        &self,
        before: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<Event>, Error> {
        Ok(self.store.list_events(before, limit).await?)
    }

    /// One event. An error if it does not exist.
    pub async fn get_event(&self, event: EventId) -> Result<Event, Error> {
        self.store.find_event(event).await?.ok_or_else(|| Error::not_found("event", &event))
    }
}

/// Checks an event type of a job: an exact type, or `prefix.*` for all types below a prefix. An invalid one is an
/// error, because the job would wait for an event that cannot exist.
pub(super) fn check_type_pattern(pattern: &str) -> Result<(), InvalidInput> {
    let fits = is_event_type(pattern.strip_suffix(".*").unwrap_or(pattern));
    match fits && pattern.chars().count() <= MAX_TYPE_CHARS {
        true => Ok(()),
        false => {
            let expected = "types such as order.paid, or order.* for all types below it: \
                            1 to 191 letters, digits and . _ - : /";
            Err(InvalidInput::with_value("event types", pattern, expected))
        }
    }
}

/// Whether the text is a valid event type: letters and digits of any script, and separators.
fn is_event_type(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/');
    (1..=MAX_TYPE_CHARS).contains(&text.chars().count()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_types_and_patterns_are_checked() {
        let (long, too_long) = ("a".repeat(191), "a".repeat(192));
        for (text, fits) in [
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
            assert_eq!(is_event_type(text), fits, "{text:?}");
        }
        for (pattern, fits) in [
            ("order.paid", true),
            ("order.*", true),
            ("*", false),
            (".*", false),
            ("or*.paid", false),
            ("order.*.late", false),
            ("bad type.*", false),
            ("", false),
        ] {
            assert_eq!(check_type_pattern(pattern).is_ok(), fits, "{pattern:?}");
        }
    }
}
