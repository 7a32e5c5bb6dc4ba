//! Definitions: looked at, made, changed, switched, paused, deleted.

use jiff::Timestamp;
use tasuki_core::{JobId, JobName, RunId};
use tasuki_store::{Job, JobChange, JobCreated, JobDefinition, Seen, Trigger};

use super::error::changed_since;
use super::{Actor, Current, Error, JobDraft, Operator};

/// How many definitions one call looks at.
const SCAN: usize = 1_000;
/// How many the store gives at once.
const PAGE: u32 = 200;

/// A definition, and what its schedule says by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNow {
    /// The definition.
    pub job: Job,
    /// When it fires next, if it does.
    pub next_fire: Option<Timestamp>,
}

impl JobNow {
    fn at(job: Job, clock: Timestamp) -> Self {
        let next_fire = next_fire(&job, clock);
        Self { job, next_fire }
    }
}

/// Which definitions. Nothing said is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Started by this: `time`, `event` or `task`.
    pub trigger: Option<String>,
    /// Enabled, or disabled.
    pub enabled: Option<bool>,
}

impl JobFilter {
    fn lets_through(&self, job: &Job) -> bool {
        self.trigger.as_ref().is_none_or(|trigger| *trigger == job.trigger)
            && self.enabled.is_none_or(|enabled| enabled == job.enabled)
    }
}

/// Some definitions, by name.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// Those that the filter lets through.
    pub jobs: Vec<JobNow>,
    /// After which name to look on; `None`: there is nothing more. A page may be empty and yet go on.
    pub next: Option<String>,
}

/// When a job fires next: not while it is off, and not before its pause ends.
pub(crate) fn next_fire(job: &Job, clock: Timestamp) -> Option<Timestamp> {
    let schedule = job.schedule().ok().flatten()?;
    if !job.enabled || job.deleted_at.is_some() {
        return None;
    }
    let from = match (job.paused_at, job.paused_until) {
        (None, _) => clock,
        (Some(_), None) => return None,
        // The end of a pause is itself no longer paused.
        (Some(_), Some(until)) => clock.max(just_before(until)),
    };
    schedule.next_after(from).map(|fire| fire.at)
}

fn just_before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(jiff::SignedDuration::from_micros(1)).unwrap_or(instant)
}

impl Operator {
    /// Definitions by name, from after a name on, at most so many.
    pub async fn jobs(
        &self,
        filter: &JobFilter,
        after: Option<&str>,
        most: u32,
    ) -> Result<JobPage, Error> {
        let clock = self.store.clock().await?;
        let mut after = after.map(str::parse::<JobName>).transpose()?;
        let (mut jobs, mut looked_at) = (Vec::new(), 0);
        let page_size = if *filter == JobFilter::default() { most.min(PAGE) } else { PAGE };
        loop {
            let page = self.store.jobs(after.as_ref(), page_size).await?;
            let is_last = page.len() < page_size as usize;
            let count = page.len();
            for (index, job) in page.into_iter().enumerate() {
                looked_at += 1;
                let (name, rest) = (job.name.clone(), count - index - 1);
                if filter.lets_through(&job) {
                    jobs.push(JobNow::at(job, clock));
                }
                if jobs.len() == most as usize || looked_at == SCAN {
                    let next = (rest > 0 || !is_last).then_some(name);
                    return Ok(JobPage { jobs, next });
                }
                after = Some(name.parse()?);
            }
            if is_last {
                return Ok(JobPage { jobs, next: None });
            }
        }
    }

    /// One definition, by name.
    pub async fn job(&self, name: &str) -> Result<JobNow, Error> {
        let job = self.stored_job(name).await?;
        Ok(JobNow::at(job, self.store.clock().await?))
    }

    /// A name that cannot be one is simply nobody's.
    pub(super) async fn stored_job(&self, name: &str) -> Result<Job, Error> {
        let found = match name.parse::<JobName>() {
            Ok(name) => self.store.job(&name).await?,
            Err(_) => None,
        };
        found.ok_or_else(|| Error::not_found("job", &name))
    }

    /// The same for whose history is asked for: a deleted one has one, too.
    pub(super) async fn job_ever(&self, name: &str) -> Result<JobId, Error> {
        let found = match name.parse::<JobName>() {
            Ok(name) => self.store.job_ever(&name).await?,
            Err(_) => None,
        };
        found.map(|job| job.id).ok_or_else(|| Error::not_found("job", &name))
    }

    /// Makes a job.
    pub async fn create_job(
        &self,
        by: &Actor,
        name: &str,
        draft: &JobDraft,
    ) -> Result<JobNow, Error> {
        let name: JobName = name.parse()?;
        let definition = draft.define(&self.store.settings().await?.settings)?;
        let clock = self.store.clock().await?;
        let first = first_fire(&definition, clock);
        match self.store.create_job(by.told(), &name, &definition, first).await? {
            JobCreated::Made(job) => {
                self.wake.all();
                Ok(JobNow::at(*job, clock))
            }
            JobCreated::NameTaken => Err(Error::NameTaken(name.to_string())),
        }
    }

    /// Whether a job is what the draft says.
    pub(crate) async fn is_defined(&self, job: &Job, draft: &JobDraft) -> Result<bool, Error> {
        let wanted = draft.define(&self.store.settings().await?.settings)?;
        let is = JobDraft::of(job)?;
        Ok(is.trigger == wanted.trigger && job.newest.spec == wanted.spec)
    }

    /// Makes a job what the draft says, if it is still what was seen. Also tells which runs that had been
    /// planned ahead were withdrawn.
    pub async fn edit_job(
        &self,
        by: &Actor,
        seen: Seen,
        draft: &JobDraft,
    ) -> Result<(JobNow, Vec<RunId>), Error> {
        let definition = draft.define(&self.store.settings().await?.settings)?;
        let clock = self.store.clock().await?;
        let first = first_fire(&definition, clock);
        let change = self.store.edit_job(by.told(), seen, &definition, first).await?;
        self.changed(change, clock)
    }

    /// From now on it makes runs.
    pub async fn enable_job(
        &self,
        by: &Actor,
        job: &Job,
        seen: Seen,
    ) -> Result<(JobNow, Vec<RunId>), Error> {
        let clock = self.store.clock().await?;
        let first = next_fire(&Job { enabled: true, paused_at: None, ..job.clone() }, clock);
        self.changed(self.store.enable_job(by.told(), seen, first).await?, clock)
    }

    /// From now on it makes none.
    pub async fn disable_job(&self, by: &Actor, seen: Seen) -> Result<(JobNow, Vec<RunId>), Error> {
        let clock = self.store.clock().await?;
        self.changed(self.store.disable_job(by.told(), seen).await?, clock)
    }

    /// It makes no runs for a while.
    pub async fn pause_job(
        &self,
        by: &Actor,
        seen: Seen,
        reason: &str,
        until: Option<Timestamp>,
    ) -> Result<(JobNow, Vec<RunId>), Error> {
        let clock = self.store.clock().await?;
        self.changed(self.store.pause_job(by.told(), seen, reason, until).await?, clock)
    }

    /// The pause is over.
    pub async fn resume_job(
        &self,
        by: &Actor,
        job: &Job,
        seen: Seen,
    ) -> Result<(JobNow, Vec<RunId>), Error> {
        let clock = self.store.clock().await?;
        let first = next_fire(&Job { paused_at: None, paused_until: None, ..job.clone() }, clock);
        self.changed(self.store.resume_job(by.told(), seen, first).await?, clock)
    }

    /// It is no more; its history stays. Tells which runs were withdrawn.
    pub async fn delete_job(&self, by: &Actor, seen: Seen) -> Result<Vec<RunId>, Error> {
        let clock = self.store.clock().await?;
        let change = self.store.delete_job(by.told(), seen).await?;
        self.changed(change, clock).map(|(_, withdrawn)| withdrawn)
    }

    fn changed(&self, change: JobChange, clock: Timestamp) -> Result<(JobNow, Vec<RunId>), Error> {
        self.submits.forget();
        match change {
            JobChange::Applied { job, withdrawn } => {
                self.wake.all();
                Ok((JobNow::at(job, clock), withdrawn))
            }
            JobChange::Lost(Some(job)) => {
                Err(Error::lost(changed_since(&job), Current::Job(JobNow::at(job, clock))))
            }
            JobChange::Lost(None) => Err(Error::lost("the job has been deleted", Current::Nothing)),
        }
    }
}

fn first_fire(definition: &JobDefinition, clock: Timestamp) -> Option<Timestamp> {
    match &definition.trigger {
        Trigger::Time { schedule, .. } => schedule.next_after(clock).map(|fire| fire.at),
        Trigger::Event { .. } | Trigger::Task => None,
    }
}
