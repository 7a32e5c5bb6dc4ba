//! T0: runs for what happened.

use jiff::Timestamp;
use serde_json::Value;
use tasuki_core::{Epoch, JobId, JobName};
use tasuki_store::{Error, Event, Job, NewRun};

use super::{Leader, PAGE};
use crate::node::leader::plan;

impl Leader {
    /// Makes runs for events nobody has looked at. Whether there are more.
    pub(super) async fn take_events(&self, epoch: Epoch, clock: Timestamp) -> Result<bool, Error> {
        let events = self.store.open_events(PAGE).await?;
        if events.is_empty() {
            return Ok(false);
        }
        let full = events.len() == PAGE as usize;
        let mut listeners = Vec::new();
        loop {
            let after = listeners.last().map_or(JobId(0), |job: &Job| job.id);
            let page = self.store.event_jobs(after, PAGE).await?;
            let last = page.len() < PAGE as usize;
            listeners.extend(page);
            if last {
                break;
            }
        }
        for event in &events {
            if self.term() != Some(epoch) {
                return Ok(false);
            }
            match self.take_event(epoch, event, &listeners, clock).await {
                Err(error) if error.is_invalid_input() => {
                    tracing::warn!(event_id = %event.id, %error, "an event cannot make runs");
                    self.store.refuse_event(epoch, event.id, &error.to_string()).await?;
                }
                taken => taken?,
            }
        }
        Ok(full)
    }

    async fn take_event(
        &self,
        epoch: Epoch,
        event: &Event,
        listeners: &[Job],
        clock: Timestamp,
    ) -> Result<(), Error> {
        let payload = match event.payload.as_deref().map(serde_json::from_str::<Value>) {
            None => Value::Null,
            Some(Ok(payload)) => payload,
            Some(Err(_)) => {
                let problem = "its payload is not JSON";
                return self.store.refuse_event(epoch, event.id, problem).await.map(drop);
            }
        };
        // One that names a job is for that job alone.
        let named = match &event.job_name {
            None => None,
            Some(name) => {
                let job = match name.parse::<JobName>() {
                    Ok(name) => self.store.job(&name).await?,
                    Err(_) => None,
                };
                let Some(job) = job.filter(|job| job.is_on(clock)) else {
                    let problem = format!("there is no job {name:?} that is on");
                    return self.store.refuse_event(epoch, event.id, &problem).await.map(drop);
                };
                Some(job)
            }
        };
        let jobs: Vec<&Job> = match &named {
            Some(job) => vec![job],
            None => {
                let takes = |job: &&Job| plan::takes(job, event, &payload, clock);
                listeners.iter().filter(takes).collect()
            }
        };
        if jobs.is_empty() {
            return self.store.pass_event(epoch, event.id).await.map(drop);
        }
        let args = payload.is_object().then(|| payload.to_string());
        let seen: Vec<_> = jobs.iter().map(|job| job.seen()).collect();
        let mut runs = Vec::with_capacity(jobs.len());
        for job in jobs {
            runs.push(NewRun { args: args.clone(), ..NewRun::task(&job.newest) });
        }
        if self.store.take_event(epoch, event.id, &seen, &runs).await?.is_some() {
            self.announce.claims();
        }
        Ok(())
    }
}
