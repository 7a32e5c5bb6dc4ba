//! T0 and T1c in one write: a worker creates tasks that it starts immediately.

use tasuki_core::{InvalidInput, Origin};

use crate::cluster::worker;
use crate::db::instant::duration_to_micros;
use crate::db::params;
use crate::db::sql::{Dialect, Sql, sql};
use crate::run::claim::{LANE_START, after_params};
use crate::run::{due_table, lease, mysql_and_sqlite};
use crate::{ClaimRequest, Error, NewRun, StartedRun, Store, to_uuid, validate};

static SUBMIT_AND_CLAIM: Sql = sql!("run/submit_and_claim", ".postgres", ".postgres", ".postgres");

impl Store {
    /// Creates tasks and starts them under a new lease of the worker, in their order. All or none: after one commit
    /// they are durable and RUNNING. Returns nothing, and creates nothing, if the worker does not accept work or if a
    /// run that waits in the lane is due before them.
    ///
    /// The tasks must wait in the lane of the request, be due now and have neither an idempotency key nor a hold.
    /// PostgreSQL also executes the statement for an empty list: that prepares its plan for the next call.
    pub async fn submit_and_claim(
        &self,
        request: &ClaimRequest<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<StartedRun>, Error> {
        validate::check_new_runs(tasks)?;
        if let Some(unsuitable) = tasks.iter().find(|task| !can_start_at_once(task, request.lane)) {
            let found = format!("a run of job {}", unsuitable.job.job);
            let expected = format!(
                "a task of lane {:?} that is due now, without a key or a hold",
                request.lane
            );
            return Err(InvalidInput::with_described_value("task", found, expected).into());
        }
        let mut started = match self.dialect() {
            Dialect::Postgres => self.submit_and_claim_postgres(request, tasks).await?,
            // Nothing to create, and these databases keep no plan that an empty call would prepare.
            Dialect::Sqlite | Dialect::MySql if tasks.is_empty() => Vec::new(),
            Dialect::Sqlite | Dialect::MySql => {
                match self.submit_and_claim_with_locks(request, tasks).await {
                    // A deadlock victim created nothing. The caller then submits the tasks to the queue.
                    Err(error) if error.is_deadlock() => Vec::new(),
                    started => started?,
                }
            }
        };
        started.sort_by_key(|started| started.id);
        match started.len() == tasks.len() || started.is_empty() {
            true => Ok(started),
            false => Err(Error::broken("only some of the tasks were created")),
        }
    }

    async fn submit_and_claim_postgres(
        &self,
        request: &ClaimRequest<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<StartedRun>, Error> {
        fn column<'r, T>(tasks: &'r [NewRun<'r>], value: impl Fn(&'r NewRun<'r>) -> T) -> Vec<T> {
            tasks.iter().map(value).collect()
        }
        let values = params! {
            lane: request.lane,
            worker_id: to_uuid(request.worker.as_bytes()),
            token: to_uuid(request.token.as_bytes()),
            ttl: duration_to_micros(request.lease_ttl),
            origin: Origin::Task.as_str(),
            job_ids: column(tasks, |task| task.job.job.0),
            job_versions: column(tasks, |task| task.job.version),
            scope_kinds: column(tasks, |task| Some(task.scope.kind().to_owned())),
            scope_ids: column(tasks, |task| Some(task.scope.id().to_owned())),
            max_attempts: column(tasks, |task| i64::from(task.job.spec.max_attempts)),
            args: column(tasks, |task| task.args.clone()),
        };
        let rows = self.db.write_returning(&SUBMIT_AND_CLAIM, values).await?;
        StartedRun::list_from_rows(&rows)
    }

    async fn submit_and_claim_with_locks(
        &self,
        request: &ClaimRequest<'_>,
        tasks: &[NewRun<'_>],
    ) -> Result<Vec<StartedRun>, Error> {
        let mut tx = self.db.begin().await?;
        let accepts_work = worker::find_worker_in_transaction(&mut tx, request.worker)
            .await?
            .is_some_and(|w| w.accepts_work());
        let single = ClaimRequest { max_runs: 1, ..request.clone() };
        let first = due_table::lock_for_claim(&mut tx, &single, &after_params(LANE_START)).await?;
        if !accepts_work || first.is_none_or(|rows| !rows.is_empty()) {
            tx.rollback().await?;
            return Ok(Vec::new());
        }
        // Without consecutive ids this fails, and the caller submits the tasks to the queue, where that does not
        // matter.
        let Some(ids) = mysql_and_sqlite::insert_running(&mut tx, request, tasks).await? else {
            tx.rollback().await?;
            return Ok(Vec::new());
        };
        let expiry = lease::NewLeaseExpiry::Ttl(request.lease_ttl);
        lease::open_lease(&mut tx, request.token, request.worker, None, expiry, &ids).await?;
        let started = mysql_and_sqlite::read_started_runs(&mut tx, &ids).await?;
        tx.commit().await?;
        Ok(started)
    }
}

/// Whether a task may start in the lane as soon as a slot is free: nothing else decides when it starts.
fn can_start_at_once(task: &NewRun<'_>, lane: &str) -> bool {
    task.origin == Origin::Task
        && task.lane() == lane
        && !lane.is_empty()
        && !task.has_key()
        && !task.job.spec.concurrency.needs_hold()
        && task.scheduled_for.is_none()
        && task.skip_at.is_none()
        && task.expires_at.is_none()
}
