//! Jobs: reading, creating, changing, enabling, pausing and deleting them.

use jiff::Timestamp;
use tasuki_core::{JobId, JobName, RunId};
use tasuki_store::{
    ExpectedVersion, Job, JobChangeResult, JobCreateResult, JobDefinition, Trigger,
};

use super::error::job_changed_message;
use super::{Actor, CurrentState, Error, JobDraft, Operator};

/// Maximum number of jobs that one call compares with its filter.
const MAX_SCANNED_JOBS: usize = 1_000;
/// Number of jobs that one query reads.
const PAGE_SIZE: u32 = 200;

/// A job with its next fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWithNextFire {
    /// The job's row, with its newest version.
    pub job: Job,
    /// The next fire of its schedule; `None`: it has no schedule, or does not fire in its current state.
    pub next_fire: Option<Timestamp>,
}

impl JobWithNextFire {
    fn new(job: Job, clock: Timestamp) -> Self {
        let next_fire = next_fire(&job, clock);
        Self { job, next_fire }
    }
}

/// A filter for jobs. Fields with `None` match every job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// The trigger: `time`, `event` or `task`.
    pub trigger: Option<String>,
    /// Whether the job is enabled.
    pub enabled: Option<bool>,
}

impl JobFilter {
    fn matches(&self, job: &Job) -> bool {
        self.trigger.as_ref().is_none_or(|trigger| *trigger == job.trigger)
            && self.enabled.is_none_or(|enabled| enabled == job.enabled)
    }
}

/// A page of jobs, ordered by name.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// The jobs that match the filter.
    pub jobs: Vec<JobWithNextFire>,
    /// The name after which the next page starts; `None`: this is the last page. A page may be empty and not the last.
    pub next: Option<String>,
}

/// The next fire of a job: `None` while it is disabled, and not before the end of a pause.
pub(crate) fn next_fire(job: &Job, clock: Timestamp) -> Option<Timestamp> {
    let schedule = job.parse_stored_schedule().ok().flatten()?;
    if !job.enabled || job.deleted_at.is_some() {
        return None;
    }
    let from = match (job.paused_at, job.paused_until) {
        (None, _) => clock,
        (Some(_), None) => return None,
        // The instant at which a pause ends is not paused any more.
        (Some(_), Some(until)) => clock.max(just_before(until)),
    };
    schedule.next_after(from).map(|fire| fire.at)
}

fn just_before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(jiff::SignedDuration::from_micros(1)).unwrap_or(instant)
}

impl Operator {
    /// A page of jobs, ordered by name, starting after the name `after`.
    pub async fn list_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<JobPage, Error> {
        let clock = self.store.read_clock().await?;
        let mut after = after.map(str::parse::<JobName>).transpose()?;
        let (mut jobs, mut scanned) = (Vec::new(), 0);
        let page_size =
            if *filter == JobFilter::default() { limit.min(PAGE_SIZE) } else { PAGE_SIZE };
        loop {
            let page = self.store.list_jobs(after.as_ref(), page_size).await?;
            let is_last = page.len() < page_size as usize;
            let count = page.len();
            for (index, job) in page.into_iter().enumerate() {
                scanned += 1;
                let (name, rest) = (job.name.clone(), count - index - 1);
                if filter.matches(&job) {
                    jobs.push(JobWithNextFire::new(job, clock));
                }
                if jobs.len() == limit as usize || scanned == MAX_SCANNED_JOBS {
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

    /// One job by name. An error if it does not exist.
    pub async fn get_job(&self, name: &str) -> Result<JobWithNextFire, Error> {
        let job = self.get_stored_job(name).await?;
        Ok(JobWithNextFire::new(job, self.store.read_clock().await?))
    }

    /// The row of a job by name. An invalid name gives the same error as an unknown one.
    pub(super) async fn get_stored_job(&self, name: &str) -> Result<Job, Error> {
        let found = match name.parse::<JobName>() {
            Ok(name) => self.store.find_job(&name).await?,
            Err(_) => None,
        };
        found.ok_or_else(|| Error::not_found("job", &name))
    }

    /// The id of a job by name, including deleted jobs, for queries of the history.
    pub(super) async fn get_job_id(&self, name: &str) -> Result<JobId, Error> {
        let found = match name.parse::<JobName>() {
            Ok(name) => self.store.find_job_with_deleted(&name).await?,
            Err(_) => None,
        };
        found.map(|job| job.id).ok_or_else(|| Error::not_found("job", &name))
    }

    /// Creates a job.
    pub async fn create_job(
        &self,
        by: &Actor,
        name: &str,
        draft: &JobDraft,
    ) -> Result<JobWithNextFire, Error> {
        let name: JobName = name.parse()?;
        let definition = draft.to_definition(&self.store.load_settings().await?.settings)?;
        let clock = self.store.read_clock().await?;
        let first = first_fire(&definition, clock);
        match self.store.create_job(by.for_store(), &name, &definition, first).await? {
            JobCreateResult::Created(job) => {
                self.notifier.wake_all();
                Ok(JobWithNextFire::new(*job, clock))
            }
            JobCreateResult::NameTaken => Err(Error::NameTaken(name.to_string())),
        }
    }

    /// Whether a job already has the definition of the draft.
    pub(crate) async fn matches_draft(&self, job: &Job, draft: &JobDraft) -> Result<bool, Error> {
        let definition = draft.to_definition(&self.store.load_settings().await?.settings)?;
        let current = JobDraft::from_job(job)?;
        Ok(current.trigger == definition.trigger && job.newest.spec == definition.spec)
    }

    /// Changes a job to the definition of the draft, if its version is still `expected_version`. Also returns the
    /// planned future runs that were canceled.
    pub async fn edit_job(
        &self,
        by: &Actor,
        expected_version: ExpectedVersion,
        draft: &JobDraft,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        let definition = draft.to_definition(&self.store.load_settings().await?.settings)?;
        let clock = self.store.read_clock().await?;
        let first = first_fire(&definition, clock);
        let change =
            self.store.edit_job(by.for_store(), expected_version, &definition, first).await?;
        self.job_change_result(change, clock)
    }

    /// Enables a job: it creates runs again.
    pub async fn enable_job(
        &self,
        by: &Actor,
        job: &Job,
        expected_version: ExpectedVersion,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        let clock = self.store.read_clock().await?;
        let first = next_fire(&Job { enabled: true, paused_at: None, ..job.clone() }, clock);
        self.job_change_result(
            self.store.enable_job(by.for_store(), expected_version, first).await?,
            clock,
        )
    }

    /// Disables a job: it creates no runs until it is enabled.
    pub async fn disable_job(
        &self,
        by: &Actor,
        expected_version: ExpectedVersion,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        let clock = self.store.read_clock().await?;
        self.job_change_result(
            self.store.disable_job(by.for_store(), expected_version).await?,
            clock,
        )
    }

    /// Pauses a job: it creates no runs until `until`, or until it is resumed.
    pub async fn pause_job(
        &self,
        by: &Actor,
        expected_version: ExpectedVersion,
        reason: &str,
        until: Option<Timestamp>,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        let clock = self.store.read_clock().await?;
        self.job_change_result(
            self.store.pause_job(by.for_store(), expected_version, reason, until).await?,
            clock,
        )
    }

    /// Ends the pause of a job.
    pub async fn resume_job(
        &self,
        by: &Actor,
        job: &Job,
        expected_version: ExpectedVersion,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        let clock = self.store.read_clock().await?;
        let first = next_fire(&Job { paused_at: None, paused_until: None, ..job.clone() }, clock);
        self.job_change_result(
            self.store.resume_job(by.for_store(), expected_version, first).await?,
            clock,
        )
    }

    /// Deletes a job. Its history stays. Returns the planned future runs that were canceled.
    pub async fn delete_job(
        &self,
        by: &Actor,
        expected_version: ExpectedVersion,
    ) -> Result<Vec<RunId>, Error> {
        let clock = self.store.read_clock().await?;
        let change = self.store.delete_job(by.for_store(), expected_version).await?;
        self.job_change_result(change, clock).map(|(_, canceled_runs)| canceled_runs)
    }

    fn job_change_result(
        &self,
        change: JobChangeResult,
        clock: Timestamp,
    ) -> Result<(JobWithNextFire, Vec<RunId>), Error> {
        self.submit_cache.clear();
        match change {
            JobChangeResult::Applied { job, canceled_runs } => {
                self.notifier.wake_all();
                Ok((JobWithNextFire::new(job, clock), canceled_runs))
            }
            JobChangeResult::Lost(Some(job)) => Err(Error::lost(
                job_changed_message(&job),
                CurrentState::Job(JobWithNextFire::new(job, clock)),
            )),
            JobChangeResult::Lost(None) => {
                Err(Error::lost("the job was deleted", CurrentState::Nothing))
            }
        }
    }
}

fn first_fire(definition: &JobDefinition, clock: Timestamp) -> Option<Timestamp> {
    match &definition.trigger {
        Trigger::Time { schedule, .. } => schedule.next_after(clock).map(|fire| fire.at),
        Trigger::Event { .. } | Trigger::Task => None,
    }
}
