//! Jobs and job versions.
//!
//! Every change of a job increments its `version`; a caller that changes a job passes the version that it has read.
//! The spec of a job (what its runs execute) is copied into a job version whenever it changes, under the version
//! number that the job then has. A job version never changes, and a run names the job version that it executes.

mod cancel_future_runs_and_move_cursors;
mod create_edit_delete;
mod definition;
pub(crate) mod schedule_cursor;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::DstRuleOverrides;
use tasuki_core::work_spec::WorkKind;
use tasuki_core::{InvalidInput, JobId, JobName, Schedule};

use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store};

pub use create_edit_delete::{ExpectedVersion, JobChangeResult, JobCreateResult};
pub(crate) use definition::read_string_set;
pub use definition::{JobDefinition, Trigger};

static FIND_BY_ID: Sql = sql!("job/find_by_id");
static FIND_BY_NAME: Sql = sql!("job/find_by_name");
static LIST_NAMES: Sql = sql!("job/list_names", ".sqlite", ".postgres", ".mysql");
static LIST: Sql = sql!("job/list");
static IS_VERSION: Sql = sql!("job/is_version");
static LOCK_VERSION: Sql = sql!("job/lock_version", ".sqlite", ".postgres", ".mysql");
static INSERT_VERSION: Sql = sql!("job/insert_version");
static FIND_VERSION: Sql = sql!("job/find_version");
static LIST_VERSIONS: Sql = sql!("job/list_versions", ".sqlite", ".postgres", ".mysql");

/// Maximum number of jobs on a page of a list.
const MAX_PAGE: u32 = 200;

/// The spec of a job: what its runs execute, and with which limits. Each change of it creates a job version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobVersionSpec {
    /// Kind of work: command, Django command or function.
    pub kind: WorkKind,
    /// The command and its limits, as JSON.
    pub spec: String,
    /// Lane in which its runs wait. Empty: the leader assigns them; otherwise workers claim them from this lane.
    pub lane: String,
    /// Whether several of its runs may be active at the same time.
    pub concurrency: ConcurrencyPolicy,
    /// Maximum number of started attempts of a run, 1 to 1,000,000.
    pub max_attempts: u32,
    /// Maximum number of times that a run may be assigned without being started, 1 to 1,000,000.
    pub max_releases: u32,
    /// Delay before the first retry.
    pub backoff: Duration,
    /// Upper bound of the delay before a retry, at most 366 days.
    pub backoff_cap: Duration,
    /// Part of each delay that is random, in percent: the delay is shortened by at most this part.
    pub jitter_percent: u8,
    /// Whether a run is retried after its worker was lost.
    pub retry_lost: bool,
    /// Labels that its worker must have.
    pub labels: BTreeSet<String>,
}

impl JobVersionSpec {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let number = |name| row.int(name).map(|number| number as u32);
        let duration =
            |name| row.int(name).map(|micros| Duration::from_micros(micros.max(0) as u64));
        Ok(Self {
            kind: row.text("kind")?.parse()?,
            spec: row.text("spec")?,
            lane: row.text("lane")?,
            concurrency: row.text("concurrency")?.parse()?,
            max_attempts: number("max_attempts")?,
            max_releases: number("max_releases")?,
            backoff: duration("backoff_us")?,
            backoff_cap: duration("backoff_cap_us")?,
            jitter_percent: row.int("jitter_percent")? as u8,
            retry_lost: row.int("retry_lost")? != 0,
            labels: read_string_set(row, "labels")?,
        })
    }
}

/// One immutable version of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobVersion {
    /// The job.
    pub job: JobId,
    /// Number of the version.
    pub version: i64,
    /// What the runs of this version execute.
    pub spec: JobVersionSpec,
}

/// A job as stored in the database, with its newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id of the job.
    pub id: JobId,
    /// Name of the job.
    pub name: String,
    /// Whether the job creates runs at all.
    pub enabled: bool,
    /// What creates its runs: `time`, `event` or `task`.
    pub trigger: String,
    /// Kind of its schedule, for example `cron`.
    pub schedule_type: Option<String>,
    /// The schedule as text, in the syntax of its kind.
    pub schedule_value: Option<String>,
    /// Time zone of the schedule.
    pub zone: Option<String>,
    /// What the schedule does when clocks go forward.
    pub dst_gap: Option<String>,
    /// What the schedule does when clocks go back.
    pub dst_fold: Option<String>,
    /// What to do with missed slots; `None`: as set in the settings.
    pub misfire: Option<MisfirePolicy>,
    /// Types of the events that create its runs.
    pub event_types: BTreeSet<String>,
    /// Condition that an event must also meet, as JSON.
    pub event_filter: Option<String>,
    /// Since when the job is paused.
    pub paused_at: Option<Timestamp>,
    /// End of the pause; `None`: until the job is resumed.
    pub paused_until: Option<Timestamp>,
    /// Reason of the pause.
    pub paused_reason: Option<String>,
    /// Since when the job is deleted. Its history remains.
    pub deleted_at: Option<Timestamp>,
    /// Version of the row. Every change increments it, and a change requires the version that the caller has read.
    pub version: i64,
    /// Last change.
    pub updated_at: Timestamp,
    /// The newest job version, which new runs execute.
    pub newest: JobVersion,
}

impl Job {
    /// The id and the version of this job, for a change that requires the job to be unchanged.
    pub fn expected_version(&self) -> ExpectedVersion {
        ExpectedVersion { job: self.id, version: self.version }
    }

    /// Parses the schedule of the job, if it has one. Fails if this machine does not know the time zone.
    pub fn parse_stored_schedule(&self) -> Result<Option<Schedule>, InvalidInput> {
        let (Some(kind), Some(value)) = (&self.schedule_type, &self.schedule_value) else {
            return Ok(None);
        };
        let dst = DstRuleOverrides {
            gap: self.dst_gap.as_deref().map(str::parse).transpose()?,
            fold: self.dst_fold.as_deref().map(str::parse).transpose()?,
        };
        let zone = self.zone.as_deref().unwrap_or_default();
        Schedule::parse(kind.parse()?, value, zone, dst).map(Some)
    }

    /// Whether a slot or an event at this instant creates a run: the job is enabled, not paused and not deleted.
    pub fn creates_runs_at(&self, at: Timestamp) -> bool {
        let paused = self.paused_at.is_some() && self.paused_until.is_none_or(|until| at < until);
        self.enabled && !paused && self.deleted_at.is_none()
    }

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        let id = JobId(row.int("id")?);
        let newest = JobVersion {
            job: id,
            version: row.int("spec_version")?,
            spec: JobVersionSpec::from_row(row)?,
        };
        Ok(Self {
            id,
            name: row.text("name")?,
            enabled: row.int("enabled")? != 0,
            trigger: row.text("trigger_type")?,
            schedule_type: row.opt_text("schedule_type")?,
            schedule_value: row.opt_text("schedule_value")?,
            zone: row.opt_text("zone")?,
            dst_gap: row.opt_text("dst_gap")?,
            dst_fold: row.opt_text("dst_fold")?,
            misfire: definition::read_misfire(row)?,
            event_types: read_string_set(row, "event_types")?,
            event_filter: row.opt_text("event_filter")?,
            paused_at: instant("paused_at")?,
            paused_until: instant("paused_until")?,
            paused_reason: row.opt_text("paused_reason")?,
            deleted_at: instant("deleted_at")?,
            version: row.int("version")?,
            updated_at: timestamp_from_micros(row.int("updated_at")?)?,
            newest,
        })
    }
}

impl Store {
    /// Finds a job by its name, except a deleted one.
    pub async fn find_job(&self, name: &JobName) -> Result<Option<Job>, Error> {
        Ok(self.find_job_with_deleted(name).await?.filter(|job| job.deleted_at.is_none()))
    }

    /// Finds a job by its name, including a deleted one, whose runs still exist.
    pub async fn find_job_with_deleted(&self, name: &JobName) -> Result<Option<Job>, Error> {
        let rows = self.db.query(&FIND_BY_NAME, params! { name: name.as_str() }).await?;
        rows.first().map(Job::from_row).transpose()
    }

    /// Finds a job by its id, including a deleted one, whose runs still exist.
    pub async fn find_job_by_id(&self, job: JobId) -> Result<Option<Job>, Error> {
        let rows = self.db.query(&FIND_BY_ID, params! { id: job.0 }).await?;
        rows.first().map(Job::from_row).transpose()
    }

    /// Lists jobs ordered by name, starting after `after`, at most `limit` of them and never more than 200. Without
    /// deleted jobs.
    pub async fn list_jobs(&self, after: Option<&JobName>, limit: u32) -> Result<Vec<Job>, Error> {
        let after = after.map_or("", |name| name.as_str());
        let page = params! { after: after, limit: limit.clamp(1, MAX_PAGE) };
        let rows = self.db.query(&LIST, page).await?;
        rows.iter().map(Job::from_row).collect()
    }

    /// Lists the names of these jobs, including deleted ones.
    pub async fn list_job_names(
        &self,
        jobs: &BTreeSet<JobId>,
    ) -> Result<BTreeMap<JobId, String>, Error> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.0).collect();
        let rows = self.db.query(&LIST_NAMES, params! { ids: ids }).await?;
        rows.iter().map(|row| Ok((JobId(row.int("id")?), row.text("name")?))).collect()
    }

    /// Finds one job version.
    pub async fn find_job_version(
        &self,
        job: JobId,
        version: i64,
    ) -> Result<Option<JobVersion>, Error> {
        let found = self.list_job_versions_by_id(&[(job, version)].into()).await?;
        Ok(found.into_iter().next().map(|(_, found)| found))
    }

    /// Lists job versions, with the names of their jobs. Versions that do not exist are left out.
    pub async fn list_job_versions_by_id(
        &self,
        wanted: &BTreeSet<(JobId, i64)>,
    ) -> Result<Vec<(String, JobVersion)>, Error> {
        let jobs: BTreeSet<i64> = wanted.iter().map(|(job, _)| job.0).collect();
        let versions: BTreeSet<i64> = wanted.iter().map(|(_, version)| *version).collect();
        let list = |of: BTreeSet<i64>| of.into_iter().collect::<Vec<i64>>();
        let lists = params! { jobs: list(jobs), versions: list(versions) };
        let mut found = Vec::with_capacity(wanted.len());
        for row in self.db.query(&LIST_VERSIONS, lists).await? {
            let (job, version) = (JobId(row.int("job_id")?), row.int("version")?);
            if wanted.contains(&(job, version)) {
                let spec = JobVersionSpec::from_row(&row)?;
                found.push((row.text("name")?, JobVersion { job, version, spec }));
            }
        }
        Ok(found)
    }
}

/// Whether a job still has this version. A separate statement after the locks were granted: as a part of the write it
/// would see the job as it was before the wait for a lock.
pub(crate) async fn is_job_unchanged(
    tx: &mut Tx<'_>,
    expected: ExpectedVersion,
) -> Result<bool, Error> {
    let key = params! { id: expected.job.0, expected: expected.version };
    Ok(!tx.query(&IS_VERSION, key).await?.is_empty())
}

/// Whether a job still has this version, and locks it against changes until the end of this transaction. For writes
/// that have no other lock in common with changes of the job.
pub(crate) async fn lock_version(
    tx: &mut Tx<'_>,
    expected: ExpectedVersion,
) -> Result<bool, Error> {
    let key = params! { id: expected.job.0, expected: expected.version };
    Ok(!tx.query(&LOCK_VERSION, key).await?.is_empty())
}

async fn insert_version(tx: &mut Tx<'_>, new: &JobVersion) -> Result<(), Error> {
    let spec = &new.spec;
    let row = params! {
        job_id: new.job.0,
        version: new.version,
        kind: spec.kind.as_str(),
        spec: spec.spec.as_str(),
        lane: spec.lane.as_str(),
        concurrency: spec.concurrency.as_str(),
        max_attempts: spec.max_attempts,
        max_releases: spec.max_releases,
        backoff_us: duration_to_micros(spec.backoff),
        backoff_cap_us: duration_to_micros(spec.backoff_cap),
        jitter_percent: i64::from(spec.jitter_percent),
        retry_lost: i64::from(spec.retry_lost),
        labels: definition::string_set_json(&spec.labels),
    };
    tx.execute(&INSERT_VERSION, row).await.map(drop)
}

/// The limits of a job version that decide whether a run is retried after it was lost or released.
pub(crate) struct LostAndReleasedRunRules {
    pub(crate) max_releases: u32,
    pub(crate) backoff: tasuki_core::retry::Backoff,
    pub(crate) retry_lost: bool,
}

pub(crate) async fn get_lost_and_released_run_rules(
    tx: &mut Tx<'_>,
    job: JobId,
    version: i64,
) -> Result<LostAndReleasedRunRules, Error> {
    let rows = tx.query(&FIND_VERSION, params! { job_id: job.0, version: version }).await?;
    let row =
        rows.first().ok_or_else(|| Error::broken(format!("job {job} has no version {version}")))?;
    let duration = |name| row.int(name).map(|micros| Duration::from_micros(micros.max(0) as u64));
    Ok(LostAndReleasedRunRules {
        max_releases: row.int("max_releases")? as u32,
        backoff: tasuki_core::retry::Backoff::new(
            duration("backoff_us")?,
            duration("backoff_cap_us")?,
            row.int("jitter_percent")? as u8,
        )?,
        retry_lost: row.int("retry_lost")? != 0,
    })
}
