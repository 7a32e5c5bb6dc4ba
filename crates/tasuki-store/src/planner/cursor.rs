//! Cursors: how far each (job, scope) is planned.

use jiff::Timestamp;
use tasuki_core::{JobId, Scope};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::timestamp;
use crate::{Error, Seen, Store, job};

static CURSOR_DUE: Sql = sql!("cursor/due");
static CURSOR_OF_JOB: Sql = sql!("cursor/of_job");
static CURSOR_PUT: Sql = sql!("cursor/put");
static CURSOR_MOVE: Sql = sql!("cursor/move");
static CURSOR_END: Sql = sql!("cursor/end");

/// A cursor that moves on with the runs it stands for.
#[derive(Debug, Clone)]
pub struct CursorMove {
    /// Of which job, as it was read.
    pub job: Seen,
    /// For what.
    pub scope: Scope,
    /// Where it was read.
    pub from: Timestamp,
    /// Where it goes; `None`: the schedule never fires again.
    pub to: Option<Timestamp>,
}

/// A cursor as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Of which job.
    pub job: JobId,
    /// For what.
    pub scope: Scope,
    /// No slot before this is without a run.
    pub next_fire: Timestamp,
    /// The version its job has now.
    pub job_version: i64,
}

impl Cursor {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            job: JobId(row.int("job_id")?),
            scope: Scope::stored(&row.text("scope_kind")?, &row.text("scope_id")?)?,
            // Further than any instant: it is not planned now.
            next_fire: timestamp(row.int("next_fire")?).unwrap_or(Timestamp::MAX),
            job_version: row.int("job_version")?,
        })
    }
}

impl Store {
    /// Cursors that stand at an instant or before, soonest first, at most so many.
    pub async fn cursors(&self, until: Timestamp, most: u32) -> Result<Vec<Cursor>, Error> {
        let page = params! { until: until.as_microsecond(), most: most };
        let rows = self.db.rows(&CURSOR_DUE, page).await?;
        rows.iter().map(Cursor::from_row).collect()
    }

    /// All cursors of a job.
    pub async fn cursors_of(&self, job: JobId) -> Result<Vec<Cursor>, Error> {
        let rows = self.db.rows(&CURSOR_OF_JOB, params! { job_id: job.0 }).await?;
        rows.iter().map(Cursor::from_row).collect()
    }

    /// A (job, scope) is planned no longer. `false`: it is elsewhere by now, or the job has been changed since it
    /// was read.
    pub async fn end_cursor(&self, job: Seen, cursor: &Cursor) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let (scope, from) = (cursor.scope.clone(), cursor.next_fire);
        let moved = job::stays_seen(&mut tx, job).await?
            && move_on(&mut tx, &CursorMove { job, scope, from, to: None }).await?;
        match moved {
            true => tx.commit().await?,
            false => tx.rollback().await?,
        }
        Ok(moved)
    }

    /// Begins to plan a (job, scope). `false`: it is planned already, and stays where it is, or the job has
    /// been changed or deleted since it was read.
    pub async fn put_cursor(
        &self,
        job: Seen,
        scope: &Scope,
        next_fire: Timestamp,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        if !job::stays_seen(&mut tx, job).await? {
            return tx.rollback().await.map(|()| false);
        }
        let row = params! {
            job_id: job.job.0,
            scope_kind: scope.kind(),
            scope_id: scope.id(),
            next_fire: next_fire.as_microsecond(),
        };
        match tx.execute(&CURSOR_PUT, row).await {
            Ok(_) => tx.commit().await.map(|()| true),
            Err(error) if error.is_conflict() => tx.rollback().await.map(|()| false),
            Err(error) => Err(error),
        }
    }
}

/// Moves a cursor, if it is still where it was read.
pub(crate) async fn move_on(tx: &mut Tx<'_>, cursor: &CursorMove) -> Result<bool, Error> {
    let mut place = params! {
        job_id: cursor.job.job.0,
        scope_kind: cursor.scope.kind(),
        scope_id: cursor.scope.id(),
        from: cursor.from.as_microsecond(),
    };
    let moved = match cursor.to {
        Some(to) => {
            place.push(("to", to.as_microsecond().into()));
            tx.execute(&CURSOR_MOVE, place).await?
        }
        None => tx.execute(&CURSOR_END, place).await?,
    };
    Ok(moved == 1)
}
