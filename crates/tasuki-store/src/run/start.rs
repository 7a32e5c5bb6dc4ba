//! T2: a worker starts runs that the leader assigned to it.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{EventId, JobId, LeaseToken, Origin, RunId, RunScope, WorkerId};

use crate::cluster::worker;
use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Row, params};
use crate::run::mysql_and_sqlite;
use crate::{Error, Outcome, Store, to_uuid};

static EXTEND_LEASE: Sql = sql!("lease/renew");
static START: Sql = sql!("run/start");
static IS_EARLY: Sql = sql!("run/is_too_early");

/// A run that its worker may launch now: it is RUNNING in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedRun {
    /// Id of the run.
    pub id: RunId,
    /// Job that the run belongs to.
    pub job: JobId,
    /// Version of the job that the run was created from.
    pub job_version: i64,
    /// What created the run.
    pub origin: Origin,
    /// Scope that the run works on.
    pub scope: RunScope,
    /// Planned instant.
    pub scheduled_for: Timestamp,
    /// When this attempt was due: the planned instant, or the next retry.
    pub due_at: Timestamp,
    /// Number of this attempt, from 1.
    pub attempt_no: u32,
    /// Number of attempts that have started, including this one.
    pub tries: u32,
    /// Event that created the run.
    pub event: Option<EventId>,
    /// Arguments of the job, as JSON.
    pub args: Option<String>,
}

impl StartedRun {
    /// Columns to read, in the order of `read`.
    const COLUMNS: [&str; 12] = [
        "id",
        "job_id",
        "job_version",
        "origin",
        "scope_kind",
        "scope_id",
        "scheduled_for",
        "next_retry_at",
        "attempt_no",
        "tries",
        "event_id",
        "args",
    ];

    pub(crate) fn from_row(row: &Row) -> Result<Self, Error> {
        Self::read(row, row.column_indexes(Self::COLUMNS)?)
    }

    /// Reads many rows. The column indexes are determined once, not for each row.
    pub(crate) fn list_from_rows(rows: &[Row]) -> Result<Vec<Self>, Error> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let indexes = first.column_indexes(Self::COLUMNS)?;
        rows.iter().map(|row| Self::read(row, indexes)).collect()
    }

    fn read(row: &Row, indexes: [usize; 12]) -> Result<Self, Error> {
        let [id, job, version, origin, kind, scope, scheduled, retry, attempt, tries, event, args] =
            indexes;
        let scheduled_for = row.int(scheduled)?;
        let due_at = row.opt_int(retry)?.unwrap_or(scheduled_for);
        Ok(Self {
            id: RunId(row.int(id)?),
            job: JobId(row.int(job)?),
            job_version: row.int(version)?,
            origin: row.text(origin)?.parse()?,
            scope: RunScope::from_stored(&row.text(kind)?, &row.text(scope)?)?,
            scheduled_for: timestamp_from_micros(scheduled_for)?,
            due_at: timestamp_from_micros(due_at)?,
            attempt_no: row.int(attempt)? as u32,
            tries: row.int(tries)? as u32,
            event: row.opt_int(event)?.map(EventId),
            args: row.opt_text(args)?,
        })
    }
}

impl Store {
    /// T2: starts assigned runs, in one transaction. The worker may launch only the runs whose outcome is `Applied`.
    pub async fn start(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Vec<Outcome<StartedRun>>, Error> {
        // Every transaction locks runs in the order of their ids, so that two of them cannot deadlock.
        let mut sorted = runs.to_vec();
        sorted.sort_unstable();
        let started = match self.dialect() {
            Dialect::Postgres => self.start_postgres(worker, token, &sorted, lease_ttl).await?,
            _ => self.start_one_by_one(worker, token, &sorted, lease_ttl).await?,
        };
        let lease_held = started.is_some();
        let mut started = started.unwrap_or_default();
        let mut outcomes = Vec::with_capacity(runs.len());
        for &run in runs {
            outcomes.push(match started.remove(&run) {
                Some(run) => Outcome::Applied(run),
                None if lease_held && self.is_early(worker, token, run).await? => Outcome::NotYet,
                None => Outcome::Lost(self.explain_loss(run).await?),
            });
        }
        Ok(outcomes)
    }

    /// Starts the runs that match their guard. `None`: the lease does not exist, or its worker is detached.
    async fn start_one_by_one(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Option<HashMap<RunId, StartedRun>>, Error> {
        let mut tx = self.db.begin().await?;
        let may_continue = worker::find_worker_in_transaction(&mut tx, worker)
            .await?
            .is_some_and(|w| w.may_continue());
        let mut holder = holder_params(worker, token);
        holder.push(("ttl", duration_to_micros(lease_ttl).into()));
        // The lease is locked before its runs. Without a lease row the start is lost, whatever the state of the runs.
        if !may_continue || tx.execute(&EXTEND_LEASE, holder).await? == 0 {
            tx.rollback().await?;
            return Ok(None);
        }
        let mut started = Vec::with_capacity(runs.len());
        for run in runs {
            let mut guard = holder_params(worker, token);
            guard.push(("run_id", run.0.into()));
            if tx.execute(&START, guard).await? == 1 {
                started.push(run.0);
            }
        }
        let runs = mysql_and_sqlite::read_started_runs(&mut tx, &started).await?;
        tx.commit().await?;
        Ok(Some(runs.into_iter().map(|run| (run.id, run)).collect()))
    }

    /// Whether a start that did not match would match later: the run is assigned to this worker, but not yet due.
    async fn is_early(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        run: RunId,
    ) -> Result<bool, Error> {
        let mut guard = holder_params(worker, token);
        guard.push(("run_id", run.0.into()));
        Ok(!self.db.query(&IS_EARLY, guard).await?.is_empty())
    }
}

fn holder_params(worker: WorkerId, token: LeaseToken) -> Params<'static> {
    params! { worker_id: to_uuid(worker.as_bytes()), token: to_uuid(token.as_bytes()) }
}
