//! Reads of the leader and the workers before they decide: waiting runs, leased runs, and the jobs that events start.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{JobId, LeaseToken, Origin, RunId, RunScope, RunState, WorkerId};

use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::{DueRun, Error, Job, StartedRun, Store, to_uuid};

static LIST_ASSIGNABLE: Sql = sql!("due/list_assignable");
static FIND_PENDING_WORK: Sql = sql!("leader/find_pending_work");
static LIST_PAST_DUE: Sql = sql!("due/list_past_due");
static FIND_NEXT_LANE: Sql = sql!("due/find_next_lane");
static FIND_FIRST_LANE: Sql = sql!("due/find_first_lane");
static LIST_ASSIGNMENTS: Sql = sql!("lease/list_assignments", ".sqlite", ".postgres", ".mysql");
static LIST_RUNS_OF_WORKER: Sql =
    sql!("lease/list_runs_of_worker", ".sqlite", ".postgres", ".mysql");
static LIST_STARTED_BY_TOKEN: Sql =
    sql!("run/list_started_by_token", ".sqlite", ".postgres", ".mysql");
static LIST_WITH_EVENT_TRIGGER: Sql = sql!("job/list_with_event_trigger");

/// A waiting run, with all values that the leader's decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRun {
    /// The values that an assignment needs.
    pub due_run: DueRun,
    /// Instant after which the run is skipped, if it has never started.
    pub skip_at: Option<Timestamp>,
    /// Instant after which the run expires.
    pub expires_at: Option<Timestamp>,
    /// Job that the run belongs to.
    pub job: JobId,
    /// Version of the job that the run was created from.
    pub job_version: i64,
    /// Scope that the run works on.
    pub scope: RunScope,
    /// Planned instant.
    pub scheduled_for: Timestamp,
    /// What created the run.
    pub origin: Origin,
    /// State: PENDING, ORPHANED or RETRY_WAIT.
    pub state: RunState,
    /// Number of attempts that have started.
    pub tries: u32,
    /// Number of releases since the last attempt started.
    pub releases: u32,
    /// Run that owns the hold of this run's job and scope.
    pub hold_owner: Option<RunId>,
}

/// A leased run: ASSIGNED or RUNNING, and the worker that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedRun {
    /// Worker that holds the run.
    pub worker: WorkerId,
    /// Token of the lease.
    pub token: LeaseToken,
    /// Id of the run.
    pub run: RunId,
    /// State: ASSIGNED or RUNNING.
    pub state: RunState,
    /// When the current attempt is, or was, due.
    pub due_at: Timestamp,
    /// Latest start, for an assigned run.
    pub start_by: Option<Timestamp>,
}

impl WaitingRun {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        Ok(Self {
            due_run: DueRun {
                run: RunId(row.int("run_id")?),
                due_at: timestamp_from_micros(row.int("due_at")?)?,
                attempt_no: row.int("attempt_no")? as u32,
                exclusive: row.int("exclusive")? != 0,
            },
            skip_at: instant("skip_at")?,
            expires_at: instant("expires_at")?,
            job: JobId(row.int("job_id")?),
            job_version: row.int("job_version")?,
            scope: RunScope::from_stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            scheduled_for: timestamp_from_micros(row.int("scheduled_for")?)?,
            origin: row.text("origin")?.parse()?,
            state: row.text("state")?.parse()?,
            tries: row.int("tries")? as u32,
            releases: row.int("releases")? as u32,
            hold_owner: row.opt_int("hold_owner")?.map(RunId),
        })
    }
}

impl LeasedRun {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            token: LeaseToken::from_bytes(row.uuid("token")?.into_bytes()),
            run: RunId(row.int("id")?),
            state: row.text("state")?.parse()?,
            due_at: timestamp_from_micros(row.int("due_at")?)?,
            start_by: row.opt_int("start_by")?.map(timestamp_from_micros).transpose()?,
        })
    }
}

/// Which kinds of work are waiting for the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderWorkFlags {
    /// Current time of the database.
    pub clock: Timestamp,
    /// Whether a schedule has a slot before the horizon.
    pub slot_due: bool,
    /// Whether an event waits to be processed.
    pub event_waiting: bool,
    /// Whether a run waits in any lane, due or not.
    pub run_waiting: bool,
}

impl Store {
    /// Reads with one statement whether the leader has any work, including slots up to `horizon` from now.
    pub async fn get_leader_work_flags(&self, horizon: Duration) -> Result<LeaderWorkFlags, Error> {
        let rows = self
            .db
            .query(&FIND_PENDING_WORK, params! { horizon: duration_to_micros(horizon) })
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::broken("the query for pending work returned no row"))?;
        Ok(LeaderWorkFlags {
            clock: timestamp_from_micros(row.int("clock")?)?,
            slot_due: row.opt_int("next_fire")?.is_some(),
            event_waiting: row.opt_int("event_id")?.is_some(),
            run_waiting: row.opt_text("lane")?.is_some(),
        })
    }

    /// Lists runs that wait for an assignment and are due at `until` or before, after a position, soonest first.
    pub async fn list_assignable(
        &self,
        after: (Timestamp, RunId),
        until: Timestamp,
        max_runs: u32,
    ) -> Result<Vec<WaitingRun>, Error> {
        let (at, id) = (after.0.as_microsecond(), after.1.0);
        let page = params! { until: until.as_microsecond(), at: at, id: id, limit: max_runs };
        let rows = self.db.query(&LIST_ASSIGNABLE, page).await?;
        rows.iter().map(WaitingRun::from_row).collect()
    }

    /// Lists runs that wait in a lane although they are due, after a position, soonest first. Runs that wait for a
    /// hold are in the list too.
    pub async fn list_waiting_past_due(
        &self,
        lane: &str,
        after: (Timestamp, RunId),
        max_runs: u32,
    ) -> Result<Vec<WaitingRun>, Error> {
        let (at, id) = after;
        let page = params! { lane: lane, at: at.as_microsecond(), id: id.0, limit: max_runs };
        let rows = self.db.query(&LIST_PAST_DUE, page).await?;
        rows.iter().map(WaitingRun::from_row).collect()
    }

    /// Lists the lanes in which runs wait.
    pub async fn list_waiting_lanes(&self) -> Result<Vec<String>, Error> {
        let mut lanes = Vec::new();
        let mut rows = self.db.query(&FIND_FIRST_LANE, params! {}).await?;
        while let Some(row) = rows.first() {
            let lane = row.text("lane")?;
            rows = self.db.query(&FIND_NEXT_LANE, params! { after: lane.as_str() }).await?;
            lanes.push(lane);
        }
        Ok(lanes)
    }

    /// Lists all assigned runs that are still leased. Claimed runs are not in the list, because they use other slots.
    pub async fn list_assigned_runs_of_all_workers(&self) -> Result<Vec<LeasedRun>, Error> {
        let rows = self.db.query(&LIST_ASSIGNMENTS, params! {}).await?;
        rows.iter().map(LeasedRun::from_row).collect()
    }

    /// Lists all runs that a worker holds, assigned and claimed ones.
    pub async fn list_leased_runs_of_worker(
        &self,
        worker: WorkerId,
    ) -> Result<Vec<LeasedRun>, Error> {
        let rows = self
            .db
            .query(&LIST_RUNS_OF_WORKER, params! { worker_id: to_uuid(worker.as_bytes()) })
            .await?;
        rows.iter().map(LeasedRun::from_row).collect()
    }

    /// Lists the runs that are RUNNING under a token. A worker reads them after a start or a claim without a response.
    pub async fn list_started_runs_of_lease(
        &self,
        token: LeaseToken,
    ) -> Result<Vec<StartedRun>, Error> {
        let rows = self
            .db
            .query(&LIST_STARTED_BY_TOKEN, params! { token: to_uuid(token.as_bytes()) })
            .await?;
        StartedRun::list_from_rows(&rows)
    }

    /// Lists the jobs that events start, in the order of their ids, after the job `after`.
    pub async fn list_event_jobs(&self, after: JobId, max_jobs: u32) -> Result<Vec<Job>, Error> {
        let rows = self
            .db
            .query(&LIST_WITH_EVENT_TRIGGER, params! { after: after.0, limit: max_jobs })
            .await?;
        rows.iter().map(Job::from_row).collect()
    }
}
