//! Events: told, and looked at.

use tasuki_core::{EventId, JobName};
use tasuki_store::{Emitted, Event, NewEvent};

use super::{Error, Operator};

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
