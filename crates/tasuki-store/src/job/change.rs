//! Jobs are made, edited, switched, paused and deleted: each a guarded write that is told.

use jiff::Timestamp;
use tasuki_core::{Invalid, JobId, JobName, RunId};

use super::ahead::{self, Withdrawn};
use super::{Job, JobDefinition, JobVersion, definition, insert_version};
use crate::audit::{self, Act, Actor};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::timestamp;
use crate::{Error, Store};

static LOCK: Sql = sql!("job/lock");
static LOCK_NAME: Sql = sql!("job/lock_name");
static INSERT: Sql = sql!("job/insert");
static UPDATE: Sql = sql!("job/update");

/// A definition as somebody saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub job: JobId,
    /// Its version then.
    pub version: i64,
}

/// What became of a new definition.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobCreated {
    /// It is there.
    Made(Box<Job>),
    /// Another has this name. Nothing was written.
    NameTaken,
}

/// What became of a change to a definition.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobChange {
    /// It is so now.
    Applied {
        /// As it is.
        job: Job,
        /// What had been planned ahead from what it was. The leader makes anew what still stands.
        withdrawn: Vec<RunId>,
    },
    /// Somebody else changed it since it was seen. Nothing was written; this is what it is now, or
    /// `None` if it was deleted.
    Lost(Option<Job>),
}

impl Store {
    /// Makes a job. `next_fire` is the first fire of its schedule, by the database's clock; `None` if
    /// it never fires, or where each scope gets a cursor of its own.
    ///
    /// The name of a deleted job is free. Who takes it goes on with that job: the same id, the next
    /// version, the whole history under one name.
    pub async fn create_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        name: &JobName,
        definition: &JobDefinition,
        next_fire: Option<Timestamp>,
    ) -> Result<JobCreated, Error> {
        definition.check()?;
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK_NAME, params! { name: name.as_str() }).await?;
        let (before, after) = match rows.first() {
            None => match insert(&mut tx, name, definition).await {
                Ok(job) => (None, job),
                Err(error) if error.is_conflict() => {
                    tx.rollback().await?;
                    return Ok(JobCreated::NameTaken);
                }
                Err(error) => return Err(error),
            },
            Some(row) if row.opt_int("deleted_at")?.is_none() => {
                tx.rollback().await?;
                return Ok(JobCreated::NameTaken);
            }
            Some(row) => {
                let before = job_in(&mut tx, JobId(row.int("id")?)).await?;
                let fresh = Job { deleted_at: None, ..resumed(&before) };
                let after = update(&mut tx, &before, definition.onto(&fresh), clock(row)?).await?;
                (Some(before), after)
            }
        };
        ahead::plan(&mut tx, &after, next_fire).await?;
        let act = Act {
            action: "create",
            object: format!("job {}", after.id),
            before: before.as_ref().map(definition::told),
            after: Some(definition::told(&after)),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(JobCreated::Made(Box::new(after)))
    }

    /// Makes a job what this definition says. `next_fire` as for [`Store::create_job`]: an edit never
    /// fires the past.
    pub async fn edit_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
        definition: &JobDefinition,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChange, Error> {
        definition.check()?;
        let edit = |job: &Job, _| Ok(definition.onto(job));
        self.change_job("edit", by.into(), seen, next_fire, edit).await
    }

    /// From now on it makes runs.
    pub async fn enable_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChange, Error> {
        let edit = |job: &Job, _| Ok(Job { enabled: true, ..job.clone() });
        self.change_job("enable", by.into(), seen, next_fire, edit).await
    }

    /// From now on it makes none.
    pub async fn disable_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
    ) -> Result<JobChange, Error> {
        let edit = |job: &Job, _| Ok(Job { enabled: false, ..job.clone() });
        self.change_job("disable", by.into(), seen, None, edit).await
    }

    /// It makes no runs for a while: until somebody resumes it, or until an instant, from which on its
    /// schedule is planned again by itself.
    pub async fn pause_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
        reason: &str,
        until: Option<Timestamp>,
    ) -> Result<JobChange, Error> {
        if reason.trim().is_empty() {
            return Err(Invalid::typed("reason", reason, "why it is paused").into());
        }
        let edit = |job: &Job, now| match until {
            Some(until) if until <= now => {
                let expected = format!("later than {now}");
                Err(Invalid::described("end of the pause", until.to_string(), expected))
            }
            _ => Ok(Job {
                paused_at: job.paused_at.or(Some(now)),
                paused_until: until,
                paused_reason: Some(reason.to_owned()),
                ..job.clone()
            }),
        };
        // A cursor says from when on, not that there is a fire just then: the end of the pause will do.
        self.change_job("pause", by.into(), seen, until, edit).await
    }

    /// The pause is over.
    pub async fn resume_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChange, Error> {
        let edit = |job: &Job, _| Ok(resumed(job));
        self.change_job("resume", by.into(), seen, next_fire, edit).await
    }

    /// It is no more; its history stays, and its name is free.
    pub async fn delete_job<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
    ) -> Result<JobChange, Error> {
        let edit = |job: &Job, now| Ok(Job { deleted_at: Some(now), ..job.clone() });
        self.change_job("delete", by.into(), seen, None, edit).await
    }

    /// Every change: the definition held still, compared with what was seen, changed by a pure
    /// function, and everything that was planned ahead from it brought in line.
    async fn change_job(
        &self,
        action: &'static str,
        by: Actor<'_>,
        seen: Seen,
        next_fire: Option<Timestamp>,
        edit: impl FnOnce(&Job, Timestamp) -> Result<Job, Invalid>,
    ) -> Result<JobChange, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK, params! { id: seen.job.0 }).await?;
        let Some(row) = rows.first().filter(|row| is_seen(row, seen)) else {
            tx.rollback().await?;
            let now = self.job_by_id(seen.job).await?;
            return Ok(JobChange::Lost(now.filter(|job| job.deleted_at.is_none())));
        };
        let before = job_in(&mut tx, seen.job).await?;
        let after = match edit(&before, clock(row)?) {
            Ok(after) if after == before => {
                tx.rollback().await?;
                return Ok(JobChange::Applied { job: before, withdrawn: Vec::new() });
            }
            Ok(after) => after,
            Err(invalid) => {
                tx.rollback().await?;
                return Err(invalid.into());
            }
        };
        let after = update(&mut tx, &before, after, clock(row)?).await?;
        let withdrawn = match ahead::is_stale(&before, &after) {
            true => ahead::plan_anew(&mut tx, &after, next_fire, action, by).await?,
            false => Withdrawn::default(),
        };
        let mut told = definition::told(&after);
        told["withdrawn"] = withdrawn.runs.len().into();
        let act = Act {
            action,
            object: format!("job {}", after.id),
            before: Some(definition::told(&before)),
            after: Some(told),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        for token in withdrawn.tokens {
            self.close_if_empty(token).await?;
        }
        Ok(JobChange::Applied { job: after, withdrawn: withdrawn.runs })
    }
}

fn resumed(job: &Job) -> Job {
    Job { paused_at: None, paused_until: None, paused_reason: None, ..job.clone() }
}

fn is_seen(row: &Row, seen: Seen) -> bool {
    matches!(
        (row.int("version"), row.opt_int("deleted_at")),
        (Ok(version), Ok(None)) if version == seen.version
    )
}

fn clock(row: &Row) -> Result<Timestamp, Error> {
    timestamp(row.int("clock")?)
}

async fn job_in(tx: &mut Tx<'_>, job: JobId) -> Result<Job, Error> {
    let rows = tx.rows(&super::BY_ID, params! { id: job.0 }).await?;
    Job::from_row(rows.first().ok_or_else(|| Error::broken(format!("job {job} has no version")))?)
}

async fn insert(tx: &mut Tx<'_>, name: &JobName, new: &JobDefinition) -> Result<Job, Error> {
    let nobody = JobId(0);
    let job = new.onto(&Job {
        id: nobody,
        name: name.to_string(),
        enabled: true,
        trigger: String::new(),
        schedule_type: None,
        schedule_value: None,
        zone: None,
        dst_gap: None,
        dst_fold: None,
        misfire: None,
        event_types: Default::default(),
        event_filter: None,
        paused_at: None,
        paused_until: None,
        paused_reason: None,
        deleted_at: None,
        version: 1,
        updated_at: Timestamp::UNIX_EPOCH,
        newest: JobVersion { job: nobody, version: 1, spec: new.spec.clone() },
    });
    tx.execute(&INSERT, definition::columns(&job)).await?;
    let rows = tx.rows(&LOCK_NAME, params! { name: name.as_str() }).await?;
    let row = rows.first().ok_or_else(|| Error::broken("the job is not there"))?;
    let id = JobId(row.int("id")?);
    insert_version(tx, &JobVersion { job: id, ..job.newest }).await?;
    job_in(tx, id).await
}

/// The row becomes what was decided, with a new version of what runs are made of if that changed.
async fn update(tx: &mut Tx<'_>, before: &Job, after: Job, now: Timestamp) -> Result<Job, Error> {
    let after = Job { version: before.version + 1, updated_at: now, ..after };
    let guard = params! { id: after.id.0, seen: before.version };
    if tx.execute(&UPDATE, [definition::columns(&after), guard].concat()).await? != 1 {
        return Err(Error::broken(format!("job {} moved while it was locked", after.id)));
    }
    if after.newest != before.newest {
        insert_version(tx, &after.newest).await?;
    }
    Ok(after)
}
