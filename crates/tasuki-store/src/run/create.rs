//! T0: runs are created, by a submit, a schedule, an event or a user.

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{Epoch, InvalidInput, Origin, RunId};

use crate::audit::{self, AuditAction, AuditActor};
use crate::cluster::leader;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{AppTransaction, Params, Tx, params};
use crate::job::schedule_cursor::advance_cursor;
use crate::run::{mysql_and_sqlite, postgres};
use crate::{
    Error, ExpectedVersion, JobVersion, NewRun, Outcome, Run, ScheduleCursorMove, Store, job,
    validate,
};

static INSERT: Sql = sql!("run/insert", ".sqlite", ".mysql", ".mysql");
pub(crate) static FIND_INSERTED_ID: Sql =
    sql!("run/find_inserted_id", ".mysql", ".mysql", ".mysql");
pub(crate) static FIND_BY_KEY: Sql = sql!("run/find_by_key");
static LOCK: Sql = sql!("run/lock");
static INSERT_DUE: Sql = sql!("due/insert");

/// Maximum number of tries of a create that a deadlock aborts. A deadlock aborts only one of its transactions, so
/// another one makes progress each time.
const MAX_CREATE_TRIES: u32 = 5;

/// Who creates or cancels a run. It decides whether the write is fenced by the leader's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The leader of the term with this epoch.
    Leader(Epoch),
    /// A client of the API, or the application in its own transaction.
    Api,
}

/// Result of creating a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreatedRun {
    /// Id of the run.
    pub run: RunId,
    /// Whether the run existed before: same slot, or same idempotency key.
    pub existed: bool,
}

/// A cursor move and the runs of the slots that it passes.
pub type CursorMoveWithRuns<'a> = (ScheduleCursorMove, Vec<NewRun<'a>>);

/// For each of several cursors the created runs; `None` if the cursor was not where it was read, or its job has
/// changed.
type CreatedPerCursor = Vec<Option<Vec<CreatedRun>>>;

impl Store {
    /// Creates runs, all or none. A run that exists already is found, not created. Runs that a user starts need an
    /// audit entry, so [`Store::trigger`] and [`Store::rerun`] create those.
    pub async fn create_or_find_runs(
        &self,
        writer: Writer,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<CreatedRun>, Error> {
        validate::check_new_runs(runs)?;
        let is_manual = |run: &&NewRun<'_>| matches!(run.origin, Origin::Manual | Origin::Rerun);
        if let Some(run) = runs.iter().find(is_manual) {
            let expected = "an origin other than MANUAL and RERUN, which need an audit entry";
            return Err(InvalidInput::with_value("origin", run.origin.as_str(), expected).into());
        }
        // PostgreSQL cannot deadlock here: all transactions insert keys in the same order.
        let tries = if self.dialect() == Dialect::MySql { MAX_CREATE_TRIES } else { 1 };
        for _ in 1..tries {
            match self.create_once(writer, runs).await {
                Err(error) if error.is_deadlock() => {}
                result => return result,
            }
        }
        self.create_once(writer, runs).await
    }

    /// Creates runs in one transaction, without retrying after a deadlock.
    async fn create_once(
        &self,
        writer: Writer,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<CreatedRun>, Error> {
        if self.dialect() == Dialect::Postgres && writer == Writer::Api {
            return self.create_postgres(runs).await;
        }
        let mut tx = self.begin_for(writer).await?;
        // The insert of a batch of these databases cannot find runs that exist already.
        if self.dialect() != Dialect::Postgres && !runs.iter().any(NewRun::has_key) {
            if let Some(created) =
                mysql_and_sqlite::insert_runs_without_lookup(&mut tx, runs).await?
            {
                tx.commit().await?;
                return Ok(created);
            }
            tx.rollback().await?;
            tx = self.begin_for(writer).await?;
        }
        let created = insert_or_find(&mut tx, runs).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Creates runs in a transaction of the application: they exist if it commits. No worker is notified, because
    /// only the application knows when it commits.
    pub async fn create_runs_in_app_transaction<'a>(
        &self,
        transaction: impl Into<AppTransaction<'a>>,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<CreatedRun>, Error> {
        validate::check_new_runs(runs)?;
        let mut tx = self.db.join_app_transaction(transaction.into())?;
        insert_or_find(&mut tx, runs).await
    }

    /// Begins a transaction and checks the epoch if the leader writes.
    pub(crate) async fn begin_for(&self, writer: Writer) -> Result<Tx<'static>, Error> {
        let mut tx = self.db.begin().await?;
        if let Writer::Leader(epoch) = writer {
            leader::check_and_lock_epoch(&mut tx, epoch).await?;
        }
        Ok(tx)
    }

    /// Creates the runs of schedules and moves their cursors, in one transaction. The result has an element for each
    /// schedule. `None`: the cursor is no longer where it was read, so another writer has planned these slots; or the job has
    /// changed, and an old definition must not create runs. Such a schedule does not affect the others.
    pub async fn create_scheduled(
        &self,
        epoch: Epoch,
        scheduled: &[CursorMoveWithRuns<'_>],
    ) -> Result<Vec<Option<Vec<CreatedRun>>>, Error> {
        for (_, runs) in scheduled {
            validate::check_new_runs(runs)?;
        }
        let mut excluded = vec![false; scheduled.len()];
        // PostgreSQL always inserts a batch, which also finds the runs that exist already.
        let mut in_batch = self.dialect() != Dialect::Postgres;
        loop {
            let mut tx = self.db.begin().await?;
            leader::check_and_lock_epoch(&mut tx, epoch).await?;
            match try_create_scheduled(&mut tx, scheduled, &mut excluded, in_batch).await? {
                ScheduleResult::Created(created) => {
                    tx.commit().await?;
                    return Ok(created);
                }
                ScheduleResult::JobChanged => {}
                ScheduleResult::RunExists => in_batch = false,
            }
            tx.rollback().await?;
        }
    }

    /// Creates a run of a job that a user starts now, even if the job is disabled. The origin becomes MANUAL; all
    /// other values are taken as given. `None`: the job has been changed or deleted since it was read, and nothing
    /// was created. A run that exists already is found; its audit entry was written when it was created.
    pub async fn trigger<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        expected_version: ExpectedVersion,
        run: &NewRun<'_>,
    ) -> Result<Option<CreatedRun>, Error> {
        validate::check_new_runs(std::slice::from_ref(run))?;
        if run.job.job != expected_version.job {
            let expected = format!("job {}, whose version was read", expected_version.job);
            return Err(InvalidInput::with_described_value(
                "job",
                run.job.job.to_string(),
                expected,
            )
            .into());
        }
        let mut tx = self.db.begin().await?;
        if !job::lock_version(&mut tx, expected_version).await? {
            tx.rollback().await?;
            return Ok(None);
        }
        let run = NewRun { origin: Origin::Manual, ..run.clone() };
        let created = insert_one(&mut tx, &run).await?;
        if created.existed {
            tx.rollback().await?;
            return Ok(Some(created));
        }
        let action = AuditAction {
            action: "trigger",
            object: format!("job {}", expected_version.job),
            before: None,
            after: Some(json!({
                "run": created.run.0,
                "job_version": run.job.version,
                "scope": run.scope.to_string(),
            })),
        };
        audit::append_audit_entry(&mut tx, by.into(), action).await?;
        tx.commit().await?;
        Ok(Some(created))
    }

    /// Repeats an ended run: creates a new run with the same scope and arguments that refers to the old one. The old
    /// run stays locked until the commit, so that no retry can start it in the meantime.
    pub async fn rerun<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        job: &JobVersion,
        run: RunId,
    ) -> Result<Outcome<RunId>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
        let old = rows.first().map(Run::from_row).transpose()?;
        let Some(old) = old.filter(|old| old.state.is_ended()) else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        if old.job != job.job {
            tx.rollback().await?;
            let expected = format!("job {}, to which run {run} belongs", old.job);
            return Err(
                InvalidInput::with_described_value("job", job.job.to_string(), expected).into()
            );
        }
        let new = NewRun {
            origin: Origin::Rerun,
            scope: old.scope,
            rerun_of: Some(run),
            args: old.args,
            ..NewRun::task(job)
        };
        let created = insert_one(&mut tx, &new).await?;
        let action = AuditAction {
            action: "rerun",
            object: format!("run {run}"),
            before: Some(json!({ "state": old.state.as_str(), "job_version": old.job_version })),
            after: Some(json!({ "run": created.run.0, "job_version": job.version })),
        };
        audit::append_audit_entry(&mut tx, by.into(), action).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(created.run))
    }
}

/// Result of one try to create scheduled runs. After any result but `Created`, the caller must roll back and try again.
enum ScheduleResult {
    /// All runs that can be created were created.
    Created(CreatedPerCursor),
    /// One of the jobs is no longer as it was read. It is excluded from the next try.
    JobChanged,
    /// One of the runs exists already.
    RunExists,
}

/// Moves the cursors and creates their runs, in the transaction of the caller.
async fn try_create_scheduled(
    tx: &mut Tx<'_>,
    scheduled: &[CursorMoveWithRuns<'_>],
    excluded: &mut [bool],
    in_batch: bool,
) -> Result<ScheduleResult, Error> {
    let mut advanced = Vec::with_capacity(scheduled.len());
    for ((cursor, _), excluded) in scheduled.iter().zip(excluded) {
        // The cursor first: a writer that changes the job has locked the cursor, so this waits for its commit.
        if *excluded || !advance_cursor(tx, cursor).await? {
            advanced.push(false);
            continue;
        }
        if !job::is_job_unchanged(tx, cursor.job).await? {
            *excluded = true;
            return Ok(ScheduleResult::JobChanged);
        }
        advanced.push(true);
    }
    let advanced_runs = scheduled.iter().zip(&advanced).filter(|(_, advanced)| **advanced);
    let runs: Vec<NewRun<'_>> =
        advanced_runs.flat_map(|((_, runs), _)| runs.iter().cloned()).collect();
    let created = match in_batch {
        false => insert_or_find(tx, &runs).await?,
        true => match mysql_and_sqlite::insert_runs_without_lookup(tx, &runs).await {
            Ok(Some(created)) => created,
            Ok(None) => return Ok(ScheduleResult::RunExists),
            Err(error) if error.is_duplicate_key() => return Ok(ScheduleResult::RunExists),
            Err(error) => return Err(error),
        },
    };
    let mut created = created.into_iter();
    let per_cursor = scheduled.iter().zip(advanced);
    let per_cursor = per_cursor
        .map(|((_, runs), advanced)| advanced.then(|| created.by_ref().take(runs.len()).collect()));
    Ok(ScheduleResult::Created(per_cursor.collect()))
}

/// Creates runs in the transaction of the caller. A run that exists already is found, not created. PostgreSQL inserts
/// them with one statement (several if their arguments are large), MySQL and SQLite each run with a statement of its own.
pub(crate) async fn insert_or_find(
    tx: &mut Tx<'_>,
    runs: &[NewRun<'_>],
) -> Result<Vec<CreatedRun>, Error> {
    let runs: Vec<&NewRun<'_>> = runs.iter().collect();
    let order = in_key_order(&runs);
    let mut created = Vec::with_capacity(runs.len());
    if tx.dialect() == Dialect::Postgres {
        let sorted: Vec<&NewRun<'_>> = order.iter().map(|index| runs[*index]).collect();
        let mut sorted_created = Vec::with_capacity(runs.len());
        for chunk in validate::chunks_by_size(&sorted, sorted.len(), |run| run.byte_size()) {
            let target = postgres::PoolOrTransaction::Transaction(tx);
            sorted_created.extend(postgres::create_runs(target, chunk).await?);
        }
        created.extend(order.into_iter().zip(sorted_created));
    } else {
        for index in order {
            created.push((index, insert_row(tx, runs[index]).await?));
        }
    }
    created.sort_unstable_by_key(|(index, _)| *index);
    Ok(created.into_iter().map(|(_, created)| created).collect())
}

/// Creates or finds one run in the transaction of the caller.
async fn insert_one(tx: &mut Tx<'_>, run: &NewRun<'_>) -> Result<CreatedRun, Error> {
    let created = insert_or_find(tx, std::slice::from_ref(run)).await?;
    created.first().copied().ok_or_else(|| Error::broken("a run was neither created nor found"))
}

/// Order in which runs are inserted, as indexes. An insert of a key waits for every transaction that has just
/// inserted the same key, so transactions with different orders could deadlock. Runs without a key keep their order.
pub(crate) fn in_key_order(runs: &[&NewRun<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    if runs.iter().any(|run| run.has_key()) {
        order.sort_by_cached_key(|&index| {
            let run = runs[index];
            let slot =
                run.slot.map(|slot| (run.job.job.0, run.scope.to_string(), slot.to_string()));
            (run.idempotency_key.clone(), slot)
        });
    }
    order
}

/// Column values of a new run.
pub(crate) fn new_run_params(run: &NewRun<'_>) -> Params<'static> {
    let spec = &run.job.spec;
    params! {
        job_id: run.job.job.0,
        job_version: run.job.version,
        origin: run.origin.as_str(),
        scope_kind: run.scope.kind(),
        scope_id: run.scope.id(),
        lane: run.lane(),
        exclusive: i64::from(spec.concurrency.needs_hold()),
        max_attempts: spec.max_attempts,
        scheduled_for: run.scheduled_for.map(Timestamp::as_microsecond),
        slot: run.slot.map(|slot| slot.to_string()),
        idempotency_key: run.idempotency_key.clone(),
        event_id: run.event.map(|event| event.0),
        rerun_of: run.rerun_of.map(|run| run.0),
        args: run.args.clone(),
        skip_at: run.skip_at.map(Timestamp::as_microsecond),
        expires_at: run.expires_at.map(Timestamp::as_microsecond),
    }
}

/// Inserts a run and its due row on MySQL or SQLite, or finds the run with the same slot or key.
async fn insert_row(tx: &mut Tx<'_>, run: &NewRun<'_>) -> Result<CreatedRun, Error> {
    let row = new_run_params(run);
    let created = match tx.dialect() {
        Dialect::Postgres => return Err(Error::broken("PostgreSQL inserts runs in batches")),
        Dialect::Sqlite => tx.query(&INSERT, row).await?,
        Dialect::MySql => match tx.execute(&INSERT, row).await {
            Ok(_) => tx.query(&FIND_INSERTED_ID, params! {}).await?,
            Err(error) if error.is_duplicate_key() => Vec::new(),
            Err(error) => return Err(error),
        },
    };
    if let Some(row) = created.first() {
        let run = RunId(row.int("id")?);
        tx.execute(&INSERT_DUE, params! { run_id: run.0 }).await?;
        return Ok(CreatedRun { run, existed: false });
    }
    let rows = tx.query(&FIND_BY_KEY, slot_or_idempotency_key_params(run)).await?;
    let row = rows.first().ok_or_else(|| Error::broken("a run was neither created nor found"))?;
    Ok(CreatedRun { run: RunId(row.int("id")?), existed: true })
}

/// Parameters that find a run by its slot or idempotency key.
pub(crate) fn slot_or_idempotency_key_params(run: &NewRun<'_>) -> Params<'static> {
    let (kind, id) = (run.scope.kind().to_owned(), run.scope.id().to_owned());
    params! {
        job_id: run.job.job.0,
        scope_kind: kind,
        scope_id: id,
        slot: run.slot.map(|slot| slot.to_string()),
        idempotency_key: run.idempotency_key.clone(),
    }
}
