//! Schedule cursors: up to which slot the runs of each (job, scope) have been created.

use jiff::Timestamp;
use tasuki_core::{JobId, RunScope};

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, ExpectedVersion, Store, job};

static LIST_DUE: Sql = sql!("cursor/list_due");
static LIST_OF_JOB: Sql = sql!("cursor/list_of_job");
static INSERT: Sql = sql!("cursor/insert");
static MOVE: Sql = sql!("cursor/move");
static DELETE: Sql = sql!("cursor/delete");

/// A move of a cursor, made in the transaction that creates the runs of the slots that it passes.
#[derive(Debug, Clone)]
pub struct ScheduleCursorMove {
    /// Job whose schedule is planned, with the version that was read.
    pub job: ExpectedVersion,
    /// Scope that is planned.
    pub scope: RunScope,
    /// Position that was read. The move fails if the cursor is elsewhere.
    pub from: Timestamp,
    /// New position; `None`: the schedule never fires again, and the cursor is deleted.
    pub to: Option<Timestamp>,
}

/// A schedule cursor as its row stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleCursor {
    /// Job whose schedule is planned.
    pub job: JobId,
    /// Scope that is planned.
    pub scope: RunScope,
    /// Next slot without a run. Every earlier slot has been planned.
    pub next_fire: Timestamp,
    /// Current version of the job.
    pub job_version: i64,
}

impl ScheduleCursor {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            job: JobId(row.int("job_id")?),
            scope: RunScope::from_stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            // A value beyond the range of timestamps means that the cursor is not planned now.
            next_fire: timestamp_from_micros(row.int("next_fire")?).unwrap_or(Timestamp::MAX),
            job_version: row.int("job_version")?,
        })
    }
}

impl Store {
    /// Lists cursors whose next slot is at `until` or before, soonest first.
    pub async fn list_due_cursors(
        &self,
        until: Timestamp,
        max_cursors: u32,
    ) -> Result<Vec<ScheduleCursor>, Error> {
        let page = params! { until: until.as_microsecond(), limit: max_cursors };
        let rows = self.db.query(&LIST_DUE, page).await?;
        rows.iter().map(ScheduleCursor::from_row).collect()
    }

    /// Lists all cursors of a job.
    pub async fn list_cursors_of_job(&self, job: JobId) -> Result<Vec<ScheduleCursor>, Error> {
        let rows = self.db.query(&LIST_OF_JOB, params! { job_id: job.0 }).await?;
        rows.iter().map(ScheduleCursor::from_row).collect()
    }

    /// Deletes a cursor, so that its (job, scope) is not planned any more. `false`: the cursor has moved, or the job
    /// has changed since it was read.
    pub async fn delete_schedule_cursor(
        &self,
        job: ExpectedVersion,
        cursor: &ScheduleCursor,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let (scope, from) = (cursor.scope.clone(), cursor.next_fire);
        let ended = job::lock_version(&mut tx, job).await?
            && advance_cursor(&mut tx, &ScheduleCursorMove { job, scope, from, to: None }).await?;
        match ended {
            true => tx.commit().await?,
            false => tx.rollback().await?,
        }
        Ok(ended)
    }

    /// Creates a cursor, so that a (job, scope) is planned. `false`: it has a cursor already, which is not changed,
    /// or the job has been changed or deleted since it was read.
    pub async fn create_schedule_cursor(
        &self,
        job: ExpectedVersion,
        scope: &RunScope,
        next_fire: Timestamp,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        if !job::lock_version(&mut tx, job).await? {
            return tx.rollback().await.map(|()| false);
        }
        let row = params! {
            job_id: job.job.0,
            scope_kind: scope.kind(),
            scope_id: scope.id(),
            next_fire: next_fire.as_microsecond(),
        };
        match tx.execute(&INSERT, row).await {
            Ok(_) => tx.commit().await.map(|()| true),
            Err(error) if error.is_duplicate_key() => tx.rollback().await.map(|()| false),
            Err(error) => Err(error),
        }
    }
}

/// Moves or deletes a cursor, if it is still where it was read.
pub(crate) async fn advance_cursor(
    tx: &mut Tx<'_>,
    cursor: &ScheduleCursorMove,
) -> Result<bool, Error> {
    let mut values = params! {
        job_id: cursor.job.job.0,
        scope_kind: cursor.scope.kind(),
        scope_id: cursor.scope.id(),
        from: cursor.from.as_microsecond(),
    };
    let moved = match cursor.to {
        Some(to) => {
            values.push(("to", to.as_microsecond().into()));
            tx.execute(&MOVE, values).await?
        }
        None => tx.execute(&DELETE, values).await?,
    };
    Ok(moved == 1)
}
