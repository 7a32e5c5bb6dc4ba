//! T0 and T1c in one write: tasks that a worker carries from the moment they are there.

use tasuki_core::{Invalid, Origin};

use crate::cluster::worker;
use crate::db::params;
use crate::db::sql::{Dialect, Sql, sql};
use crate::run::micros;
use crate::run::take::{BEGINNING, after};
use crate::run::{due, lease, sets};
use crate::{ClaimBatch, Error, NewRun, Store, Taken, check, uuid};

static TAKE_IN: Sql = sql!("run/take_in", ".postgres", ".postgres", ".postgres");

impl Store {
    /// Makes tasks and starts them under a lease of the worker, all or none, in their order: they are durable and
    /// RUNNING after one commit. Nothing is made, and none comes back, where the worker takes no new work or
    /// something that waits in the lane was there first. For tasks of this lane that are due now and have neither
    /// a key nor a hold to wait for. Of no tasks PostgreSQL is told, too: it plans what the next ones need.
    pub async fn take_in(
        &self,
        batch: &ClaimBatch<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<Taken>, Error> {
        check::runs(tasks)?;
        if let Some(odd) = tasks.iter().find(|task| !is_plain(task, batch.lane)) {
            let found = format!("another of job {}", odd.job.job);
            let expected = format!("a plain task of lane {:?}", batch.lane);
            return Err(Invalid::described("task", found, expected).into());
        }
        let mut taken = match self.dialect() {
            Dialect::Postgres => self.take_in_in_one_trip(batch, tasks).await?,
            // Nothing is to be made, and there is nothing to be planned for later.
            Dialect::Sqlite | Dialect::MySql if tasks.is_empty() => Vec::new(),
            Dialect::Sqlite | Dialect::MySql => match self.take_in_as_a_set(batch, tasks).await {
                // Nothing was made: they are put where they wait for their turn.
                Err(error) if error.gave_way() => Vec::new(),
                taken => taken?,
            },
        };
        taken.sort_by_key(|taken| taken.id);
        match taken.len() == tasks.len() || taken.is_empty() {
            true => Ok(taken),
            false => Err(Error::broken("some tasks were made and others not")),
        }
    }

    async fn take_in_in_one_trip(
        &self,
        batch: &ClaimBatch<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<Taken>, Error> {
        fn all<'r, T>(tasks: &'r [NewRun<'r>], one: impl Fn(&'r NewRun<'r>) -> T) -> Vec<T> {
            tasks.iter().map(one).collect()
        }
        let asked = params! {
            lane: batch.lane,
            worker_id: uuid(batch.worker.as_bytes()),
            token: uuid(batch.token.as_bytes()),
            ttl: micros(batch.lease_ttl),
            origin: Origin::Task.as_str(),
            job_ids: all(tasks, |task| task.job.job.0),
            job_versions: all(tasks, |task| task.job.version),
            scope_kinds: all(tasks, |task| Some(task.scope.kind().to_owned())),
            scope_ids: all(tasks, |task| Some(task.scope.id().to_owned())),
            max_attempts: all(tasks, |task| i64::from(task.job.spec.max_attempts)),
            args: all(tasks, |task| task.args.clone()),
        };
        let rows = self.db.write(&TAKE_IN, asked).await?;
        Taken::from_rows(&rows)
    }

    async fn take_in_as_a_set(
        &self,
        batch: &ClaimBatch<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<Taken>, Error> {
        let mut tx = self.db.begin().await?;
        let active = worker::look(&mut tx, batch.worker).await?.is_some_and(|w| w.is_active());
        let one = ClaimBatch { most: 1, ..batch.clone() };
        let first = due::lock(&mut tx, &one, &after(BEGINNING)).await?;
        if !active || first.is_none_or(|rows| !rows.is_empty()) {
            tx.rollback().await?;
            return Ok(Vec::new());
        }
        // Where ids do not follow one another, they go the way on which that does not matter.
        let Some(ids) = sets::insert_begun(&mut tx, batch, tasks).await? else {
            tx.rollback().await?;
            return Ok(Vec::new());
        };
        let until = lease::Until::Ttl(batch.lease_ttl);
        lease::open(&mut tx, batch.token, batch.worker, None, until, &ids).await?;
        let taken = sets::taken(&mut tx, &ids).await?;
        tx.commit().await?;
        Ok(taken)
    }
}

fn is_plain(task: &NewRun<'_>, lane: &str) -> bool {
    task.origin == Origin::Task
        && task.lane() == lane
        && !lane.is_empty()
        && !task.has_key()
        && !task.job.spec.concurrency.needs_hold()
        && task.scheduled_for.is_none()
        && task.skip_at.is_none()
        && task.expires_at.is_none()
}
