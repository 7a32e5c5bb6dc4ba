//! T0: runs come into being.

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{Epoch, Invalid, Origin, RunId};

use crate::audit::{self, Act, Actor};
use crate::cluster::leader;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{AppTransaction, Params, Tx, params};
use crate::planner::cursor::move_on;
use crate::run::{hot, sets};
use crate::{CursorMove, Error, JobVersion, NewRun, Outcome, Run, Seen, Store, check, job};

static INSERT: Sql = sql!("run/insert", ".sqlite", ".postgres", ".mysql");
pub(crate) static LAST_ID: Sql = sql!("run/last_id", ".mysql", ".mysql", ".mysql");
pub(crate) static BY_KEY: Sql = sql!("run/by_key");
static LOCK: Sql = sql!("run/lock");
static DUE_PUT: Sql = sql!("due/put");

/// So often a submit gives way to others before its caller hears of it: somebody always gets on.
const TRIES: u32 = 5;

/// Who makes a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The leader of this term.
    Leader(Epoch),
    /// Somebody through the API, or the application in its own transaction.
    Api,
}

/// A run that is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// Which.
    pub run: RunId,
    /// Whether it was there before: same slot, or same idempotency key.
    pub existed: bool,
}

/// A cursor that moves on, and the runs it stands for.
pub type Slots<'a> = (CursorMove, Vec<NewRun<'a>>);

/// Of each of several cursors, what became of its slots: `None` where somebody else planned them.
type Made = Vec<Option<Vec<Created>>>;

impl Store {
    /// Makes runs, all or none. A run that exists already is found, not made. What a person starts is told:
    /// [`Store::trigger`] and [`Store::rerun`] make those.
    pub async fn create(&self, author: Writer, runs: &[NewRun<'_>]) -> Result<Vec<Created>, Error> {
        check::runs(runs)?;
        let by_hand = |run: &&NewRun<'_>| matches!(run.origin, Origin::Manual | Origin::Rerun);
        if let Some(run) = runs.iter().find(by_hand) {
            let expected = "what nobody starts by hand: that is told in the audit";
            return Err(Invalid::typed("origin", run.origin.as_str(), expected).into());
        }
        // On PostgreSQL nobody waits in a circle: keys are inserted in one order.
        let tries = if self.dialect() == Dialect::MySql { TRIES } else { 1 };
        for _ in 1..tries {
            match self.try_to_create(author, runs).await {
                Err(error) if error.gave_way() => {}
                told => return told,
            }
        }
        self.try_to_create(author, runs).await
    }

    async fn try_to_create(
        &self,
        author: Writer,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<Created>, Error> {
        if self.dialect() == Dialect::Postgres && author == Writer::Api {
            return self.create_in_one_trip(runs).await;
        }
        let mut tx = self.begin_as(author).await?;
        if self.dialect() != Dialect::Postgres && !runs.iter().any(NewRun::has_key) {
            if let Some(created) = sets::insert_plain(&mut tx, runs).await? {
                tx.commit().await?;
                return Ok(created);
            }
            tx.rollback().await?;
            tx = self.begin_as(author).await?;
        }
        let created = insert_all(&mut tx, runs).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// The same in a transaction of the application: if that commits, the runs are there, and else they never
    /// were. Nobody is woken by it: whoever commits knows when.
    pub async fn create_in<'a>(
        &self,
        theirs: impl Into<AppTransaction<'a>>,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<Created>, Error> {
        check::runs(runs)?;
        let mut tx = self.db.join(theirs.into())?;
        match tx.dialect() {
            Dialect::Postgres => hot::create(hot::Trip::Within(&mut tx), runs).await,
            Dialect::Sqlite | Dialect::MySql => insert_all(&mut tx, runs).await,
        }
    }

    /// Begins a write, fenced if a leader makes it.
    pub(crate) async fn begin_as(&self, author: Writer) -> Result<Tx<'static>, Error> {
        let mut tx = self.db.begin().await?;
        if let Writer::Leader(epoch) = author {
            leader::fence(&mut tx, epoch).await?;
        }
        Ok(tx)
    }

    /// Makes the runs of a schedule and moves its cursor, together. The cursor must still be where it
    /// was read; otherwise somebody else has planned these slots. And the job must still be what was
    /// read: nothing fires from an old definition.
    pub async fn create_slots(
        &self,
        epoch: Epoch,
        cursor: &CursorMove,
        runs: &[NewRun<'_>],
    ) -> Result<Option<Vec<Created>>, Error> {
        let one = [(cursor.clone(), runs.to_vec())];
        let mut made = self.create_slots_of_many(epoch, &one).await?;
        Ok(made.pop().flatten())
    }

    /// The same for several schedules in one write: each stands for itself, and all that can be made is.
    pub async fn create_slots_of_many(
        &self,
        epoch: Epoch,
        slots: &[Slots<'_>],
    ) -> Result<Vec<Option<Vec<Created>>>, Error> {
        for (_, runs) in slots {
            check::runs(runs)?;
        }
        let mut left_out = vec![false; slots.len()];
        // PostgreSQL makes them one by one: a conflict there would undo the whole write.
        let mut as_a_set = self.dialect() != Dialect::Postgres;
        loop {
            let mut tx = self.db.begin().await?;
            leader::fence(&mut tx, epoch).await?;
            match make_slots(&mut tx, slots, &mut left_out, as_a_set).await? {
                Tried::Made(made) => {
                    tx.commit().await?;
                    return Ok(made);
                }
                Tried::Changed => {}
                Tried::Existed => as_a_set = false,
            }
            tx.rollback().await?;
        }
    }

    /// Somebody runs a job now, whether it is enabled or not. The run is as given, but its origin. `None`,
    /// and nothing was made: the job has been changed or deleted since it was seen. A run that exists
    /// already is found, and was told when it was made.
    pub async fn trigger<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        seen: Seen,
        run: &NewRun<'_>,
    ) -> Result<Option<Created>, Error> {
        check::runs(std::slice::from_ref(run))?;
        if run.job.job != seen.job {
            let expected = format!("job {}, which was seen", seen.job);
            return Err(Invalid::described("job", run.job.job.to_string(), expected).into());
        }
        let mut tx = self.db.begin().await?;
        if !job::stays_seen(&mut tx, seen).await? {
            tx.rollback().await?;
            return Ok(None);
        }
        let run = NewRun { origin: Origin::Manual, ..run.clone() };
        let created = insert(&mut tx, &run).await?;
        if created.existed {
            tx.rollback().await?;
            return Ok(Some(created));
        }
        let act = Act {
            action: "trigger",
            object: format!("job {}", seen.job),
            before: None,
            after: Some(json!({
                "run": created.run.0,
                "job_version": run.job.version,
                "scope": run.scope.to_string(),
            })),
        };
        audit::append(&mut tx, by.into(), act).await?;
        tx.commit().await?;
        Ok(Some(created))
    }

    /// Runs an ended run again: a new run with the same arguments, which points back at it. The old
    /// one is held still until then, so that nobody gives it one more try meanwhile.
    pub async fn rerun<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        job: &JobVersion,
        run: RunId,
    ) -> Result<Outcome<RunId>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let old = rows.first().map(Run::from_row).transpose()?;
        let Some(old) = old.filter(|old| old.state.is_ended()) else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        if old.job != job.job {
            tx.rollback().await?;
            let expected = format!("job {}, which run {run} is of", old.job);
            return Err(Invalid::described("job", job.job.to_string(), expected).into());
        }
        let new = NewRun {
            origin: Origin::Rerun,
            scope: old.scope,
            rerun_of: Some(run),
            args: old.args,
            ..NewRun::task(job)
        };
        let created = insert(&mut tx, &new).await?;
        let act = Act {
            action: "rerun",
            object: format!("run {run}"),
            before: Some(json!({ "state": old.state.as_str(), "job_version": old.job_version })),
            after: Some(json!({ "run": created.run.0, "job_version": job.version })),
        };
        audit::append(&mut tx, by.into(), act).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(created.run))
    }
}

/// What became of an attempt to make slots. But for the first, it must be undone and tried again.
enum Tried {
    Made(Made),
    /// One of the jobs is no longer what was read. It is left out from now on.
    Changed,
    /// One of the runs exists already.
    Existed,
}

async fn make_slots(
    tx: &mut Tx<'_>,
    slots: &[Slots<'_>],
    left_out: &mut [bool],
    as_a_set: bool,
) -> Result<Tried, Error> {
    let mut moved = Vec::with_capacity(slots.len());
    for ((cursor, _), left_out) in slots.iter().zip(left_out) {
        // The cursor first: whoever changes the job has it until that is a fact.
        if *left_out || !move_on(tx, cursor).await? {
            moved.push(false);
            continue;
        }
        if !job::is_seen(tx, cursor.job).await? {
            *left_out = true;
            return Ok(Tried::Changed);
        }
        moved.push(true);
    }
    let hit = slots.iter().zip(&moved).filter(|(_, moved)| **moved);
    let runs: Vec<NewRun<'_>> = hit.flat_map(|((_, runs), _)| runs.iter().cloned()).collect();
    let created = match as_a_set {
        false => insert_all(tx, &runs).await?,
        true => match sets::insert_plain(tx, &runs).await {
            Ok(Some(created)) => created,
            Ok(None) => return Ok(Tried::Existed),
            Err(error) if error.is_conflict() => return Ok(Tried::Existed),
            Err(error) => return Err(error),
        },
    };
    let mut created = created.into_iter();
    let made = slots.iter().zip(moved);
    let made =
        made.map(|((_, runs), moved)| moved.then(|| created.by_ref().take(runs.len()).collect()));
    Ok(Tried::Made(made.collect()))
}

/// Makes runs in the transaction of whatever makes them.
pub(crate) async fn insert_all(
    tx: &mut Tx<'_>,
    runs: &[NewRun<'_>],
) -> Result<Vec<Created>, Error> {
    let mut created = Vec::with_capacity(runs.len());
    for index in in_key_order(runs) {
        created.push((index, insert(tx, &runs[index]).await?));
    }
    created.sort_unstable_by_key(|(index, _)| *index);
    Ok(created.into_iter().map(|(_, created)| created).collect())
}

/// The order in which runs are inserted, by their places. Whoever inserts a key waits for everybody else
/// who has just inserted it: two that went by different orders would wait for each other. Runs without
/// a key stay as they were.
pub(crate) fn in_key_order(runs: &[NewRun<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    if runs.iter().any(NewRun::has_key) {
        order.sort_by_cached_key(|&index| {
            let run = &runs[index];
            let slot =
                run.slot.map(|slot| (run.job.job.0, run.scope.to_string(), slot.to_string()));
            (run.idempotency_key.clone(), slot)
        });
    }
    order
}

/// The row of a new run.
pub(crate) fn columns(run: &NewRun<'_>) -> Params<'static> {
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

async fn insert(tx: &mut Tx<'_>, run: &NewRun<'_>) -> Result<Created, Error> {
    let row = columns(run);
    let made = match tx.dialect() {
        Dialect::Sqlite | Dialect::Postgres => tx.rows(&INSERT, row).await?,
        Dialect::MySql => match tx.execute(&INSERT, row).await {
            Ok(_) => tx.rows(&LAST_ID, params! {}).await?,
            Err(error) if error.is_conflict() => Vec::new(),
            Err(error) => return Err(error),
        },
    };
    if let Some(row) = made.first() {
        let run = RunId(row.int("id")?);
        tx.execute(&DUE_PUT, params! { run_id: run.0 }).await?;
        return Ok(Created { run, existed: false });
    }
    let rows = tx.rows(&BY_KEY, key(run)).await?;
    let row = rows.first().ok_or_else(|| Error::broken("a run was neither made nor found"))?;
    Ok(Created { run: RunId(row.int("id")?), existed: true })
}

/// What makes a run the same run.
pub(crate) fn key(run: &NewRun<'_>) -> Params<'static> {
    let (kind, id) = (run.scope.kind().to_owned(), run.scope.id().to_owned());
    params! {
        job_id: run.job.job.0,
        scope_kind: kind,
        scope_id: id,
        slot: run.slot.map(|slot| slot.to_string()),
        idempotency_key: run.idempotency_key.clone(),
    }
}
