//! Changes of jobs: create, edit, enable, disable, pause, resume, delete. Each is a guarded write with an audit entry.

use jiff::Timestamp;
use tasuki_core::{InvalidInput, JobId, JobName, RunId};

use super::cancel_future_runs_and_move_cursors::{self, CanceledRuns};
use super::{Job, JobDefinition, JobVersion, definition, insert_version};
use crate::audit::{self, AuditAction, AuditActor};
use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store};

static LOCK: Sql = sql!("job/lock");
static LOCK_NAME: Sql = sql!("job/lock_by_name");
static INSERT: Sql = sql!("job/insert");
static UPDATE: Sql = sql!("job/update");

/// The version of a job that the caller has read. A change of the job is applied only if it still has this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedVersion {
    /// The job.
    pub job: JobId,
    /// The version that the caller has read.
    pub version: i64,
}

/// Result of creating a job.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobCreateResult {
    /// The job was created.
    Created(Box<Job>),
    /// Another job has this name. Nothing was written.
    NameTaken,
}

/// Result of changing a job.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobChangeResult {
    /// The job was changed.
    Applied {
        /// The job after the change.
        job: Job,
        /// Future runs that were canceled, because they were created from the old definition. The leader creates new
        /// runs for the slots that remain.
        canceled_runs: Vec<RunId>,
    },
    /// The job was changed by someone else after the caller had read it. Nothing was written. Contains the current
    /// job, or `None` if it was deleted.
    Lost(Option<Job>),
}

impl Store {
    /// Creates a job. `next_fire` is the first fire of its schedule, by the database's clock; `None` if it never
    /// fires, or if each scope gets a cursor of its own.
    ///
    /// The name of a deleted job is free. A new job with that name continues the deleted one: it has the same id and
    /// the next version, so the whole history is under one name.
    pub async fn create_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        name: &JobName,
        definition: &JobDefinition,
        next_fire: Option<Timestamp>,
    ) -> Result<JobCreateResult, Error> {
        definition.check()?;
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK_NAME, params! { name: name.as_str() }).await?;
        let (before, after) = match rows.first() {
            None => match insert_job(&mut tx, name, definition).await {
                Ok(job) => (None, job),
                Err(error) if error.is_duplicate_key() => {
                    tx.rollback().await?;
                    return Ok(JobCreateResult::NameTaken);
                }
                Err(error) => return Err(error),
            },
            Some(row) if row.opt_int("deleted_at")?.is_none() => {
                tx.rollback().await?;
                return Ok(JobCreateResult::NameTaken);
            }
            Some(row) => {
                let before = read_job(&mut tx, JobId(row.int("id")?)).await?;
                let restored = Job { deleted_at: None, ..without_pause(&before) };
                let after =
                    update_job(&mut tx, &before, definition.apply_to(&restored), row_clock(row)?)
                        .await?;
                (Some(before), after)
            }
        };
        cancel_future_runs_and_move_cursors::move_cursors(&mut tx, &after, next_fire).await?;
        let act = AuditAction {
            action: "create",
            object: format!("job {}", after.id),
            before: before.as_ref().map(definition::audit_json),
            after: Some(definition::audit_json(&after)),
        };
        audit::append_audit_entry(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(JobCreateResult::Created(Box::new(after)))
    }

    /// Replaces the definition of a job. `next_fire` as for [`Store::create_job`]; an edit never creates runs for
    /// past slots.
    pub async fn edit_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
        definition: &JobDefinition,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChangeResult, Error> {
        definition.check()?;
        let edit = |job: &Job, _| Ok(definition.apply_to(job));
        self.change_job("edit", by.into(), expected, next_fire, edit).await
    }

    /// Enables a job: from now on it creates runs.
    pub async fn enable_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChangeResult, Error> {
        let edit = |job: &Job, _| Ok(Job { enabled: true, ..job.clone() });
        self.change_job("enable", by.into(), expected, next_fire, edit).await
    }

    /// Disables a job: from now on it creates no runs.
    pub async fn disable_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
    ) -> Result<JobChangeResult, Error> {
        let edit = |job: &Job, _| Ok(Job { enabled: false, ..job.clone() });
        self.change_job("disable", by.into(), expected, None, edit).await
    }

    /// Pauses a job: it creates no runs until it is resumed or, if `until` is set, until that instant.
    pub async fn pause_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
        reason: &str,
        until: Option<Timestamp>,
    ) -> Result<JobChangeResult, Error> {
        if reason.trim().is_empty() {
            return Err(
                InvalidInput::with_value("reason", reason, "a reason that is not empty").into()
            );
        }
        let edit = |job: &Job, now| match until {
            Some(until) if until <= now => {
                let expected = format!("later than {now}");
                Err(InvalidInput::with_described_value(
                    "end of the pause",
                    until.to_string(),
                    expected,
                ))
            }
            _ => Ok(Job {
                paused_at: job.paused_at.or(Some(now)),
                paused_until: until,
                paused_reason: Some(reason.to_owned()),
                ..job.clone()
            }),
        };
        // A cursor is a lower bound of the next fire, so the end of the pause is a valid position.
        self.change_job("pause", by.into(), expected, until, edit).await
    }

    /// Resumes a paused job.
    pub async fn resume_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
        next_fire: Option<Timestamp>,
    ) -> Result<JobChangeResult, Error> {
        let edit = |job: &Job, _| Ok(without_pause(job));
        self.change_job("resume", by.into(), expected, next_fire, edit).await
    }

    /// Deletes a job. Its history remains, and its name becomes free.
    pub async fn delete_job<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected: ExpectedVersion,
    ) -> Result<JobChangeResult, Error> {
        let edit = |job: &Job, now| Ok(Job { deleted_at: Some(now), ..job.clone() });
        self.change_job("delete", by.into(), expected, None, edit).await
    }

    /// Applies a change: locks the job, compares its version with the expected one, computes the new job with the
    /// pure function `edit`, and reschedules future runs if the change affects them.
    async fn change_job(
        &self,
        action: &'static str,
        by: AuditActor<'_>,
        expected: ExpectedVersion,
        next_fire: Option<Timestamp>,
        edit: impl FnOnce(&Job, Timestamp) -> Result<Job, InvalidInput>,
    ) -> Result<JobChangeResult, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK, params! { id: expected.job.0 }).await?;
        let Some(row) = rows.first().filter(|row| version_matches(row, expected)) else {
            tx.rollback().await?;
            let now = self.find_job_by_id(expected.job).await?;
            return Ok(JobChangeResult::Lost(now.filter(|job| job.deleted_at.is_none())));
        };
        let before = read_job(&mut tx, expected.job).await?;
        let after = match edit(&before, row_clock(row)?) {
            Ok(after) if after == before => {
                tx.rollback().await?;
                return Ok(JobChangeResult::Applied { job: before, canceled_runs: Vec::new() });
            }
            Ok(after) => after,
            Err(invalid) => {
                tx.rollback().await?;
                return Err(invalid.into());
            }
        };
        let after = update_job(&mut tx, &before, after, row_clock(row)?).await?;
        let canceled =
            match cancel_future_runs_and_move_cursors::invalidates_future_runs(&before, &after) {
                true => {
                    cancel_future_runs_and_move_cursors::reschedule(
                        &mut tx, &after, next_fire, action, by,
                    )
                    .await?
                }
                false => CanceledRuns::default(),
            };
        let mut after_json = definition::audit_json(&after);
        after_json["canceled_runs"] = canceled.runs.len().into();
        let act = AuditAction {
            action,
            object: format!("job {}", after.id),
            before: Some(definition::audit_json(&before)),
            after: Some(after_json),
        };
        audit::append_audit_entry(&mut tx, by, act).await?;
        tx.commit().await?;
        for token in canceled.lease_tokens {
            self.close_lease_if_empty(token).await?;
        }
        Ok(JobChangeResult::Applied { job: after, canceled_runs: canceled.runs })
    }
}

fn without_pause(job: &Job) -> Job {
    Job { paused_at: None, paused_until: None, paused_reason: None, ..job.clone() }
}

fn version_matches(row: &Row, expected: ExpectedVersion) -> bool {
    matches!(
        (row.int("version"), row.opt_int("deleted_at")),
        (Ok(version), Ok(None)) if version == expected.version
    )
}

fn row_clock(row: &Row) -> Result<Timestamp, Error> {
    timestamp_from_micros(row.int("clock")?)
}

async fn read_job(tx: &mut Tx<'_>, job: JobId) -> Result<Job, Error> {
    let rows = tx.query(&super::FIND_BY_ID, params! { id: job.0 }).await?;
    Job::from_row(rows.first().ok_or_else(|| Error::broken(format!("job {job} has no version")))?)
}

async fn insert_job(tx: &mut Tx<'_>, name: &JobName, new: &JobDefinition) -> Result<Job, Error> {
    let placeholder_id = JobId(0);
    let job = new.apply_to(&Job {
        id: placeholder_id,
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
        newest: JobVersion { job: placeholder_id, version: 1, spec: new.spec.clone() },
    });
    tx.execute(&INSERT, definition::definition_columns(&job)).await?;
    let rows = tx.query(&LOCK_NAME, params! { name: name.as_str() }).await?;
    let row = rows.first().ok_or_else(|| Error::broken("the inserted job was not found"))?;
    let id = JobId(row.int("id")?);
    insert_version(tx, &JobVersion { job: id, ..job.newest }).await?;
    read_job(tx, id).await
}

/// Writes the changed job, and a new job version if its spec has changed.
async fn update_job(
    tx: &mut Tx<'_>,
    before: &Job,
    after: Job,
    now: Timestamp,
) -> Result<Job, Error> {
    let after = Job { version: before.version + 1, updated_at: now, ..after };
    let guard = params! { id: after.id.0, expected: before.version };
    if tx.execute(&UPDATE, [definition::definition_columns(&after), guard].concat()).await? != 1 {
        return Err(Error::broken(format!("job {} changed while it was locked", after.id)));
    }
    if after.newest != before.newest {
        insert_version(tx, &after.newest).await?;
    }
    Ok(after)
}
