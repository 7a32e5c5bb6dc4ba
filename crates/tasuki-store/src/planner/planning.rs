//! What the loops read before they decide: what waits, what is carried, and which jobs wait for events.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{JobId, LeaseToken, Origin, RunId, RunState, Scope, WorkerId};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::run::{micros, timestamp};
use crate::{Error, Job, Store, Taken, DueRun, uuid};

static ASSIGNABLE: Sql = sql!("due/assignable");
static GLANCE: Sql = sql!("leader/glance");
static SWEEP: Sql = sql!("due/sweep");
static LANE: Sql = sql!("due/lane");
static FIRST_LANE: Sql = sql!("due/first_lane");
static CARRIED: Sql = sql!("lease/carried", ".sqlite", ".postgres", ".mysql");
static MINE: Sql = sql!("lease/mine", ".sqlite", ".postgres", ".mysql");
static TAKEN_UNDER: Sql = sql!("run/taken_under", ".sqlite", ".postgres", ".mysql");
static OF_EVENTS: Sql = sql!("job/of_events");

/// A run that waits, with all that decides what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What an assignment needs.
    pub wanted: DueRun,
    /// When it is too late to start it.
    pub skip_at: Option<Timestamp>,
    /// When it is given up.
    pub expires_at: Option<Timestamp>,
    /// Of which job.
    pub job: JobId,
    /// Made from which version of it.
    pub job_version: i64,
    /// For what.
    pub scope: Scope,
    /// Its planned instant.
    pub scheduled_for: Timestamp,
    /// What made it.
    pub origin: Origin,
    /// PENDING, ORPHANED or RETRY_WAIT.
    pub state: RunState,
    /// How often it was started.
    pub tries: u32,
    /// How often it was handed round since.
    pub releases: u32,
    /// The run that has the hold of its job and scope.
    pub holder: Option<RunId>,
}

/// A run that somebody carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Who.
    pub worker: WorkerId,
    /// Under which lease.
    pub token: LeaseToken,
    /// Which.
    pub run: RunId,
    /// ASSIGNED or RUNNING.
    pub state: RunState,
    /// When it is, or was, to start.
    pub due_at: Timestamp,
    /// When it must have started.
    pub start_by: Option<Timestamp>,
}

impl Waiting {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        Ok(Self {
            wanted: DueRun {
                run: RunId(row.int("run_id")?),
                due_at: timestamp(row.int("due_at")?)?,
                attempt_no: row.int("attempt_no")? as u32,
                exclusive: row.int("exclusive")? != 0,
            },
            skip_at: instant("skip_at")?,
            expires_at: instant("expires_at")?,
            job: JobId(row.int("job_id")?),
            job_version: row.int("job_version")?,
            scope: Scope::stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            scheduled_for: timestamp(row.int("scheduled_for")?)?,
            origin: row.text("origin")?.parse()?,
            state: row.text("state")?.parse()?,
            tries: row.int("tries")? as u32,
            releases: row.int("releases")? as u32,
            holder: row.opt_int("holder")?.map(RunId),
        })
    }
}

impl Carried {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            worker: WorkerId::from_bytes(row.uuid("worker_id")?.into_bytes()),
            token: LeaseToken::from_bytes(row.uuid("token")?.into_bytes()),
            run: RunId(row.int("id")?),
            state: row.text("state")?.parse()?,
            due_at: timestamp(row.int("due_at")?)?,
            start_by: row.opt_int("start_by")?.map(timestamp).transpose()?,
        })
    }
}

/// Whether there is anything for a leader to do, in one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glance {
    /// The database's clock.
    pub clock: Timestamp,
    /// Whether a slot comes up.
    pub fires: bool,
    /// Whether an event waits.
    pub events: bool,
    /// Whether a run waits, due or not.
    pub waiting: bool,
}

impl Store {
    /// A look at all that a leader would have to look at; at slots so far ahead.
    pub async fn glance(&self, ahead: Duration) -> Result<Glance, Error> {
        let rows = self.db.rows(&GLANCE, params! { ahead: micros(ahead) }).await?;
        let row = rows.first().ok_or_else(|| Error::broken("there is no clock"))?;
        Ok(Glance {
            clock: timestamp(row.int("clock")?)?,
            fires: row.opt_int("next_fire")?.is_some(),
            events: row.opt_int("event_id")?.is_some(),
            waiting: row.opt_text("lane")?.is_some(),
        })
    }

    /// What the leader can give away and is due until an instant, soonest first, from behind a place, at
    /// most so many.
    pub async fn assignable(
        &self,
        behind: (Timestamp, RunId),
        until: Timestamp,
        most: u32,
    ) -> Result<Vec<Waiting>, Error> {
        let (at, id) = (behind.0.as_microsecond(), behind.1.0);
        let page = params! { until: until.as_microsecond(), at: at, id: id, most: most };
        let rows = self.db.rows(&ASSIGNABLE, page).await?;
        rows.iter().map(Waiting::from_row).collect()
    }

    /// What waits in a lane although it is due, from behind a place, at most so many. Those in whose way
    /// somebody is are among them.
    pub async fn overdue(
        &self,
        lane: &str,
        behind: (Timestamp, RunId),
        most: u32,
    ) -> Result<Vec<Waiting>, Error> {
        let (at, id) = behind;
        let page = params! { lane: lane, at: at.as_microsecond(), id: id.0, most: most };
        let rows = self.db.rows(&SWEEP, page).await?;
        rows.iter().map(Waiting::from_row).collect()
    }

    /// The lanes in which something waits.
    pub async fn lanes(&self) -> Result<Vec<String>, Error> {
        let mut lanes = Vec::new();
        let mut rows = self.db.rows(&FIRST_LANE, params! {}).await?;
        while let Some(row) = rows.first() {
            let lane = row.text("lane")?;
            rows = self.db.rows(&LANE, params! { after: lane.as_str() }).await?;
            lanes.push(lane);
        }
        Ok(lanes)
    }

    /// Everything leaders gave away that is still carried. What was claimed is not among it: that has
    /// slots of its own.
    pub async fn given(&self) -> Result<Vec<Carried>, Error> {
        let rows = self.db.rows(&CARRIED, params! {}).await?;
        rows.iter().map(Carried::from_row).collect()
    }

    /// Everything a worker carries, however it came by it.
    pub async fn carried_by(&self, worker: WorkerId) -> Result<Vec<Carried>, Error> {
        let rows = self.db.rows(&MINE, params! { worker_id: uuid(worker.as_bytes()) }).await?;
        rows.iter().map(Carried::from_row).collect()
    }

    /// What runs under a token: for a worker whose start or claim got no answer.
    pub async fn running_under(&self, token: LeaseToken) -> Result<Vec<Taken>, Error> {
        let rows = self.db.rows(&TAKEN_UNDER, params! { token: uuid(token.as_bytes()) }).await?;
        Taken::from_rows(&rows)
    }

    /// The definitions that events start, by id, from after one, at most so many.
    pub async fn event_jobs(&self, after: JobId, most: u32) -> Result<Vec<Job>, Error> {
        let rows = self.db.rows(&OF_EVENTS, params! { after: after.0, most: most }).await?;
        rows.iter().map(Job::from_row).collect()
    }
}
