//! Creates runs for events (transition T0).

use jiff::Timestamp;
use serde_json::Value;
use tasuki_core::{Epoch, JobId, JobName};
use tasuki_store::{Error, Event, Job, NewRun};

use super::{Leader, PAGE_SIZE};
use crate::node::leader::decisions;

impl Leader {
    /// Creates runs for unprocessed events. Returns whether there are more events.
    pub(super) async fn create_event_runs(
        &self,
        epoch: Epoch,
        clock: Timestamp,
    ) -> Result<bool, Error> {
        let events = self.store.list_unprocessed_events(PAGE_SIZE).await?;
        if events.is_empty() {
            return Ok(false);
        }
        let full = events.len() == PAGE_SIZE as usize;
        let mut event_jobs = Vec::new();
        loop {
            let after = event_jobs.last().map_or(JobId(0), |job: &Job| job.id);
            let page = self.store.list_event_jobs(after, PAGE_SIZE).await?;
            let last = page.len() < PAGE_SIZE as usize;
            event_jobs.extend(page);
            if last {
                break;
            }
        }
        for event in &events {
            if self.active_epoch() != Some(epoch) {
                return Ok(false);
            }
            match self.create_runs_for_event(epoch, event, &event_jobs, clock).await {
                Err(error) if error.is_invalid_input() => {
                    tracing::warn!(event_id = %event.id, %error, "no runs can be created for an event");
                    self.store.close_failed_event(epoch, event.id, &error.to_string()).await?;
                }
                result => result?,
            }
        }
        Ok(full)
    }

    async fn create_runs_for_event(
        &self,
        epoch: Epoch,
        event: &Event,
        event_jobs: &[Job],
        clock: Timestamp,
    ) -> Result<(), Error> {
        let payload = match event.payload.as_deref().map(serde_json::from_str::<Value>) {
            None => Value::Null,
            Some(Ok(payload)) => payload,
            Some(Err(_)) => {
                let problem = "the payload is not valid JSON";
                return self.store.close_failed_event(epoch, event.id, problem).await.map(drop);
            }
        };
        // An event that names a job starts only that job.
        let named = match &event.job_name {
            None => None,
            Some(name) => {
                let job = match name.parse::<JobName>() {
                    Ok(name) => self.store.find_job(&name).await?,
                    Err(_) => None,
                };
                let Some(job) = job.filter(|job| job.creates_runs_at(clock)) else {
                    let problem = format!("there is no enabled job named {name:?}");
                    return self
                        .store
                        .close_failed_event(epoch, event.id, &problem)
                        .await
                        .map(drop);
                };
                Some(job)
            }
        };
        let jobs: Vec<&Job> = match &named {
            Some(job) => vec![job],
            None => {
                let matches = |job: &&Job| decisions::event_starts_job(job, event, &payload, clock);
                event_jobs.iter().filter(matches).collect()
            }
        };
        if jobs.is_empty() {
            return self.store.close_unmatched_event(epoch, event.id).await.map(drop);
        }
        let args = payload.is_object().then(|| payload.to_string());
        let versions: Vec<_> = jobs.iter().map(|job| job.expected_version()).collect();
        let mut runs = Vec::with_capacity(jobs.len());
        for job in jobs {
            runs.push(NewRun { args: args.clone(), ..NewRun::task(&job.newest) });
        }
        if self.store.process_event(epoch, event.id, &versions, &runs).await?.is_some() {
            self.notifier.wake_claims();
        }
        Ok(())
    }
}
