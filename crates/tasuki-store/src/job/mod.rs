//! Jobs: what people define, and the versions their runs are made from.
//!
//! A job's row has a `version` that every change raises; whoever changes shows the one it saw. What
//! runs are made of is copied into a version of its own whenever it changes, under the number the row
//! has then, and never changed: a run points at its copy.

mod ahead;
mod change;
mod definition;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::DstChoice;
use tasuki_core::job_spec::WorkKind;
use tasuki_core::{Invalid, JobId, JobName, Schedule};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::{micros, timestamp};
use crate::{Error, Store};

pub use change::{JobChange, JobCreated, Seen};
pub(crate) use definition::list_in;
pub use definition::{JobDefinition, Trigger};

static BY_ID: Sql = sql!("job/by_id");
static BY_NAME: Sql = sql!("job/by_name");
static NAMES: Sql = sql!("job/names", ".sqlite", ".postgres", ".mysql");
static LIST: Sql = sql!("job/list");
static SEEN: Sql = sql!("job/seen");
static SHARE: Sql = sql!("job/share", ".sqlite", ".postgres", ".mysql");
static VERSION_INSERT: Sql = sql!("job/version_insert");
static VERSION_SHOW: Sql = sql!("job/version_show");
static VERSIONS: Sql = sql!("job/versions", ".sqlite", ".postgres", ".mysql");

/// The longest page of definitions.
const PAGE: u32 = 200;

/// What runs are made of: copied once for each edit of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// What it runs.
    pub kind: WorkKind,
    /// The command and its limits, as JSON.
    pub spec: String,
    /// The lane its runs wait in: empty for the leader to assign, else a queue to claim from.
    pub lane: String,
    /// One at a time?
    pub concurrency: ConcurrencyPolicy,
    /// How many starts a run may have.
    pub max_attempts: u32,
    /// How often a run may be handed round unstarted.
    pub max_releases: u32,
    /// The first wait between two tries.
    pub backoff: Duration,
    /// The longest.
    pub backoff_cap: Duration,
    /// The share of each wait that dice may take away, in percent.
    pub jitter_percent: u8,
    /// Whether a lost run is tried again.
    pub retry_lost: bool,
    /// What its worker must be good for.
    pub labels: BTreeSet<String>,
}

impl JobSpec {
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
            labels: list_in(row, "labels")?,
        })
    }
}

/// A job at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobVersion {
    /// Which job.
    pub job: JobId,
    /// Which version.
    pub version: i64,
    /// What its runs are made of.
    pub spec: JobSpec,
}

/// A definition as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which.
    pub id: JobId,
    /// What people call it.
    pub name: String,
    /// Whether it makes runs at all.
    pub enabled: bool,
    /// `time`, `event` or `task`.
    pub trigger: String,
    /// The kind of its schedule.
    pub schedule_type: Option<String>,
    /// The schedule itself.
    pub schedule_value: Option<String>,
    /// In which zone.
    pub zone: Option<String>,
    /// What it does when the clocks go forward.
    pub dst_gap: Option<String>,
    /// What it does when the clocks go back.
    pub dst_fold: Option<String>,
    /// What becomes of missed slots; `None`: what the settings say.
    pub misfire: Option<Misfire>,
    /// Which events start it.
    pub event_types: BTreeSet<String>,
    /// What else must be true of them, as JSON.
    pub event_filter: Option<String>,
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// Until when.
    pub paused_until: Option<Timestamp>,
    /// Why.
    pub paused_reason: Option<String>,
    /// Since when it is deleted. Its history stays.
    pub deleted_at: Option<Timestamp>,
    /// Raised by every change. Whoever changes it shows the one it read.
    pub version: i64,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// What its runs are made of.
    pub newest: JobVersion,
}

impl Job {
    /// What somebody who read this has seen.
    pub fn seen(&self) -> Seen {
        Seen { job: self.id, version: self.version }
    }

    /// Its schedule, if it has one. Refused where this machine does not know its zone.
    pub fn schedule(&self) -> Result<Option<Schedule>, Invalid> {
        let (Some(kind), Some(value)) = (&self.schedule_type, &self.schedule_value) else {
            return Ok(None);
        };
        let dst = DstChoice {
            gap: self.dst_gap.as_deref().map(str::parse).transpose()?,
            fold: self.dst_fold.as_deref().map(str::parse).transpose()?,
        };
        let zone = self.zone.as_deref().unwrap_or_default();
        Schedule::parse(kind.parse()?, value, zone, dst).map(Some)
    }

    /// Whether a slot or an event at this instant gets a run: nobody deleted, disabled or paused it.
    pub fn is_on(&self, at: Timestamp) -> bool {
        let paused = self.paused_at.is_some() && self.paused_until.is_none_or(|until| at < until);
        self.enabled && !paused && self.deleted_at.is_none()
    }

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        let id = JobId(row.int("id")?);
        let newest = JobVersion {
            job: id,
            version: row.int("spec_version")?,
            spec: JobSpec::from_row(row)?,
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
            misfire: definition::misfire_in(row)?,
            event_types: list_in(row, "event_types")?,
            event_filter: row.opt_text("event_filter")?,
            paused_at: instant("paused_at")?,
            paused_until: instant("paused_until")?,
            paused_reason: row.opt_text("paused_reason")?,
            deleted_at: instant("deleted_at")?,
            version: row.int("version")?,
            updated_at: timestamp(row.int("updated_at")?)?,
            newest,
        })
    }
}

impl Store {
    /// One definition, by what people call it. A deleted one is not found.
    pub async fn job(&self, name: &JobName) -> Result<Option<Job>, Error> {
        Ok(self.job_ever(name).await?.filter(|job| job.deleted_at.is_none()))
    }

    /// The same, a deleted one too: its runs are still there.
    pub async fn job_ever(&self, name: &JobName) -> Result<Option<Job>, Error> {
        let rows = self.db.rows(&BY_NAME, params! { name: name.as_str() }).await?;
        rows.first().map(Job::from_row).transpose()
    }

    /// One definition, a deleted one too: its runs are still there.
    pub async fn job_by_id(&self, job: JobId) -> Result<Option<Job>, Error> {
        let rows = self.db.rows(&BY_ID, params! { id: job.0 }).await?;
        rows.first().map(Job::from_row).transpose()
    }

    /// Lists definitions by name, from after this name, at most so many and never more than 200.
    pub async fn jobs(&self, after: Option<&JobName>, most: u32) -> Result<Vec<Job>, Error> {
        let after = after.map_or("", |name| name.as_str());
        let page = params! { after: after, most: most.clamp(1, PAGE) };
        let rows = self.db.rows(&LIST, page).await?;
        rows.iter().map(Job::from_row).collect()
    }

    /// What these jobs are called, deleted ones too.
    pub async fn job_names(
        &self,
        jobs: &BTreeSet<JobId>,
    ) -> Result<BTreeMap<JobId, String>, Error> {
        let ids: Vec<i64> = jobs.iter().map(|job| job.0).collect();
        let rows = self.db.rows(&NAMES, params! { ids: ids }).await?;
        rows.iter().map(|row| Ok((JobId(row.int("id")?), row.text("name")?))).collect()
    }

    /// What a run was made of.
    pub async fn job_version(&self, job: JobId, version: i64) -> Result<Option<JobVersion>, Error> {
        let found = self.job_versions(&[(job, version)].into()).await?;
        Ok(found.into_iter().next().map(|(_, found)| found))
    }

    /// What runs were made of, by job and version, with the names of the jobs. What there is not is missing.
    pub async fn job_versions(
        &self,
        wanted: &BTreeSet<(JobId, i64)>,
    ) -> Result<Vec<(String, JobVersion)>, Error> {
        let jobs: BTreeSet<i64> = wanted.iter().map(|(job, _)| job.0).collect();
        let versions: BTreeSet<i64> = wanted.iter().map(|(_, version)| *version).collect();
        let list = |of: BTreeSet<i64>| of.into_iter().collect::<Vec<i64>>();
        let lists = params! { jobs: list(jobs), versions: list(versions) };
        let mut found = Vec::with_capacity(wanted.len());
        for row in self.db.rows(&VERSIONS, lists).await? {
            let (job, version) = (JobId(row.int("job_id")?), row.int("version")?);
            if wanted.contains(&(job, version)) {
                let spec = JobSpec::from_row(&row)?;
                found.push((row.text("name")?, JobVersion { job, version, spec }));
            }
        }
        Ok(found)
    }
}

/// Whether a job is still what was seen. A statement of its own, after whatever was waited for: inside
/// the write it would see the job as it was before the wait.
pub(crate) async fn is_seen(tx: &mut Tx<'_>, seen: Seen) -> Result<bool, Error> {
    let key = params! { id: seen.job.0, seen: seen.version };
    Ok(!tx.rows(&SEEN, key).await?.is_empty())
}

/// Whether a job is still what was seen, held so until the end of this transaction. For writes that share
/// no other lock with whoever changes it.
pub(crate) async fn stays_seen(tx: &mut Tx<'_>, seen: Seen) -> Result<bool, Error> {
    let key = params! { id: seen.job.0, seen: seen.version };
    Ok(!tx.rows(&SHARE, key).await?.is_empty())
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
        backoff_us: micros(spec.backoff),
        backoff_cap_us: micros(spec.backoff_cap),
        jitter_percent: i64::from(spec.jitter_percent),
        retry_lost: i64::from(spec.retry_lost),
        labels: definition::list_out(&spec.labels),
    };
    tx.execute(&VERSION_INSERT, row).await.map(drop)
}

/// The part of a version that decides what becomes of a lost or worn-out run.
pub(crate) struct Limits {
    pub(crate) max_releases: u32,
    pub(crate) backoff: tasuki_core::retry::Backoff,
    pub(crate) retry_lost: bool,
}

pub(crate) async fn limits(tx: &mut Tx<'_>, job: JobId, version: i64) -> Result<Limits, Error> {
    let rows = tx.rows(&VERSION_SHOW, params! { job_id: job.0, version: version }).await?;
    let row =
        rows.first().ok_or_else(|| Error::broken(format!("job {job} has no version {version}")))?;
    let duration = |name| row.int(name).map(|micros| Duration::from_micros(micros.max(0) as u64));
    Ok(Limits {
        max_releases: row.int("max_releases")? as u32,
        backoff: tasuki_core::retry::Backoff::new(
            duration("backoff_us")?,
            duration("backoff_cap_us")?,
            row.int("jitter_percent")? as u8,
        )?,
        retry_lost: row.int("retry_lost")? != 0,
    })
}
