//! Jobs, and the versions their runs are made from.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{JobId, JobName};

use crate::audit::{self, Act, Actor};
use crate::db::{Row, Tx, params};
use crate::run::{micros, timestamp};
use crate::sql::{Sql, sql};
use crate::{Error, Store};

static INSERT: Sql = sql!("job/insert");
static BY_NAME: Sql = sql!("job/by_name");
static LIST: Sql = sql!("job/list");
static VERSION_INSERT: Sql = sql!("job/version_insert");
static VERSION_SHOW: Sql = sql!("job/version_show");

/// What starts a job's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A schedule.
    Time,
    /// Events.
    Event,
    /// Only requests.
    Task,
}

impl Trigger {
    fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Event => "event",
            Self::Task => "task",
        }
    }
}

/// What a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Any program.
    Command,
    /// A Django management command.
    Django,
    /// A function of the embedding program.
    Function,
}

impl JobKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Django => "django",
            Self::Function => "function",
        }
    }
}

/// What runs are made of: copied once for each edit.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// What it runs.
    pub kind: JobKind,
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
    /// Whether a lost run is tried again.
    pub retry_lost: bool,
}

/// A job at one version.
#[derive(Debug, Clone)]
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
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// Until when.
    pub paused_until: Option<Timestamp>,
    /// Why.
    pub paused_reason: Option<String>,
    /// Its newest version.
    pub version: i64,
    /// When it was last edited.
    pub updated_at: Timestamp,
}

impl Job {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        Ok(Self {
            id: JobId(row.int("id")?),
            name: row.text("name")?,
            enabled: row.int("enabled")? != 0,
            trigger: row.text("trigger_type")?,
            schedule_type: row.opt_text("schedule_type")?,
            schedule_value: row.opt_text("schedule_value")?,
            zone: row.opt_text("zone")?,
            paused_at: instant("paused_at")?,
            paused_until: instant("paused_until")?,
            paused_reason: row.opt_text("paused_reason")?,
            version: row.int("version")?,
            updated_at: timestamp(row.int("updated_at")?)?,
        })
    }
}

impl Store {
    /// Lists definitions by name, from after this name, at most so many.
    pub async fn jobs(&self, after: Option<&JobName>, most: u32) -> Result<Vec<Job>, Error> {
        let after = after.map_or("", |name| name.as_str());
        let rows = self.db.rows(&LIST, params! { after: after, most: most }).await?;
        rows.iter().map(Job::from_row).collect()
    }

    /// Makes a job. A name that is taken is refused by the database.
    pub async fn put_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        name: &JobName,
        trigger: Trigger,
        schedule: Option<&tasuki_core::Schedule>,
        spec: JobSpec,
    ) -> Result<JobVersion, Error> {
        let mut tx = self.db.begin().await?;
        let rule = schedule.and_then(tasuki_core::Schedule::dst_rule);
        let row = params! {
            name: name.as_str(),
            trigger_type: trigger.as_str(),
            schedule_type: schedule.map(|schedule| schedule.kind().to_string()),
            schedule_value: schedule.map(|schedule| schedule.value().to_owned()),
            zone: schedule.map(|schedule| schedule.zone().name().to_owned()),
            dst_gap: rule.map(|rule| rule.gap.to_string()),
            dst_fold: rule.map(|rule| rule.fold.to_string()),
            misfire: Option::<String>::None,
            misfire_value: Option::<i64>::None,
            event_types: Option::<String>::None,
            event_filter: Option::<String>::None,
        };
        tx.execute(&INSERT, row).await?;
        let rows = tx.rows(&BY_NAME, params! { name: name.as_str() }).await?;
        let job =
            JobId(rows.first().ok_or_else(|| Error::broken("the job is not there"))?.int("id")?);
        insert_version(&mut tx, job, 1, &spec).await?;
        let act = Act {
            action: "create",
            object: format!("job {job}"),
            before: None,
            after: Some(json!({
                "name": name.as_str(),
                "trigger": trigger.as_str(),
                "schedule": schedule.map(tasuki_core::Schedule::value),
                "version": 1,
                "kind": spec.kind.as_str(),
                "spec": spec.spec.as_str(),
                "lane": spec.lane.as_str(),
                "concurrency": spec.concurrency.as_str(),
                "max_attempts": spec.max_attempts,
            })),
        };
        audit::append(&mut tx, by.into(), act).await?;
        tx.commit().await?;
        Ok(JobVersion { job, version: 1, spec })
    }
}

async fn insert_version(
    tx: &mut Tx,
    job: JobId,
    version: i64,
    spec: &JobSpec,
) -> Result<(), Error> {
    let row = params! {
        job_id: job.0,
        version: version,
        kind: spec.kind.as_str(),
        spec: spec.spec.as_str(),
        lane: spec.lane.as_str(),
        concurrency: spec.concurrency.as_str(),
        max_attempts: spec.max_attempts,
        max_releases: spec.max_releases,
        backoff_us: micros(spec.backoff),
        backoff_cap_us: micros(spec.backoff_cap),
        jitter_percent: 0i64,
        retry_lost: i64::from(spec.retry_lost),
        labels: Option::<String>::None,
    };
    tx.execute(&VERSION_INSERT, row).await.map(drop)
}

/// The part of a version that decides what becomes of a lost or worn-out run.
pub(crate) struct Limits {
    pub(crate) max_releases: u32,
    pub(crate) backoff: tasuki_core::retry::Backoff,
    pub(crate) retry_lost: bool,
}

pub(crate) async fn limits(tx: &mut Tx, job: JobId, version: i64) -> Result<Limits, Error> {
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
