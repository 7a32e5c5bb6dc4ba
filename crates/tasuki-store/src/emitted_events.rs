//! Events, which may create runs of jobs with an event trigger.

use jiff::Timestamp;
use tasuki_core::{Epoch, EventId, InvalidInput, JobName, Origin};

use crate::cluster::leader;
use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::create::{self, CreatedRun};
use crate::{Error, ExpectedVersion, NewRun, Store, job, validate};

static INSERT: Sql = sql!("event/insert", ".sqlite", ".postgres", ".mysql");
static FIND_BY_KEY: Sql = sql!("event/find_by_key");
static FIND: Sql = sql!("event/find");
static LIST_UNPROCESSED: Sql = sql!("event/list_unprocessed");
static LIST: Sql = sql!("event/list");
static LOCK_UNPROCESSED: Sql = sql!("event/lock_unprocessed");
static MARK_PROCESSED: Sql = sql!("event/mark_processed");

/// An event to be stored.
#[derive(Debug, Clone)]
pub struct NewEvent<'a> {
    /// Type of the event, for example `order.paid`.
    pub event_type: &'a str,
    /// Program that emits the event.
    pub source: &'a str,
    /// Key that identifies the event within its source: a second event with the same key is not stored.
    pub dedupe_key: Option<&'a str>,
    /// The only job for which it may create a run; `None`: all jobs with its type.
    pub job_name: Option<&'a JobName>,
    /// Data of the event, as JSON.
    pub payload: Option<&'a str>,
}

/// Result of emitting an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmitResult {
    /// Id of the event.
    pub event: EventId,
    /// Whether it existed before, with the same source and dedupe key.
    pub existed: bool,
}

/// An event as stored in the database. Other programs may insert events with SQL, so only the id is certainly valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Id of the event.
    pub id: EventId,
    /// Type of the event.
    pub event_type: String,
    /// Program that emitted it.
    pub source: String,
    /// Key that identifies the event within its source.
    pub dedupe_key: Option<String>,
    /// The only job for which it may create a run.
    pub job_name: Option<String>,
    /// Data of the event, as JSON.
    pub payload: Option<String>,
    /// When it was stored.
    pub created_at: Timestamp,
    /// When the leader processed it.
    pub processed_at: Option<Timestamp>,
    /// Number of runs that it created.
    pub runs: Option<i64>,
    /// Why it could not create runs.
    pub problem: Option<String>,
}

impl Event {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: EventId(row.int("id")?),
            event_type: row.text("event_type")?,
            source: row.text("source")?,
            dedupe_key: row.opt_text("dedupe_key")?,
            job_name: row.opt_text("job_name")?,
            payload: row.opt_text("payload")?,
            created_at: timestamp_from_micros(row.int("created_at")?)?,
            processed_at: row.opt_int("processed_at")?.map(timestamp_from_micros).transpose()?,
            runs: row.opt_int("runs")?,
            problem: row.opt_text("problem")?,
        })
    }
}

impl Store {
    /// Stores an event. If an event with the same source and dedupe key exists, returns that one.
    pub async fn emit_event(&self, event: &NewEvent<'_>) -> Result<EmitResult, Error> {
        check_event(event)?;
        let mut tx = self.db.begin().await?;
        let emitted = insert_event(&mut tx, event).await?;
        tx.commit().await?;
        Ok(emitted)
    }

    /// Finds one event.
    pub async fn find_event(&self, event: EventId) -> Result<Option<Event>, Error> {
        let rows = self.db.query(&FIND, params! { id: event.0 }).await?;
        rows.first().map(Event::from_row).transpose()
    }

    /// Lists unprocessed events, oldest first, at most `limit` of them.
    pub async fn list_unprocessed_events(&self, limit: u32) -> Result<Vec<Event>, Error> {
        let rows = self.db.query(&LIST_UNPROCESSED, params! { limit: limit }).await?;
        rows.iter().map(Event::from_row).collect()
    }

    /// Lists events, newest first, starting before the event `before`, at most `limit` of them.
    pub async fn list_events(
        &self,
        before: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<Event>, Error> {
        let before = before.map_or(i64::MAX, |event| event.0);
        let rows = self.db.query(&LIST, params! { before: before, limit: limit }).await?;
        rows.iter().map(Event::from_row).collect()
    }

    /// Creates the runs of an event and marks it as processed, in one transaction. `jobs` are the versions of all
    /// jobs of the runs, as the caller has read them. `None`: nothing was written, because the event does not exist
    /// or has been processed before, or because one of the jobs has changed. In the last case the event is still
    /// unprocessed, and the caller should try again.
    pub async fn process_event(
        &self,
        epoch: Epoch,
        event: EventId,
        jobs: &[ExpectedVersion],
        runs: &[NewRun<'_>],
    ) -> Result<Option<Vec<CreatedRun>>, Error> {
        validate::check_new_runs(runs)?;
        let unlisted =
            runs.iter().find(|run| jobs.iter().all(|expected| expected.job != run.job.job));
        if let Some(run) = unlisted {
            let found = format!("a list without job {}", run.job.job);
            let expected = "the jobs of all runs";
            return Err(InvalidInput::with_described_value("jobs", found, expected).into());
        }
        let mut tx = self.db.begin().await?;
        leader::check_and_lock_epoch(&mut tx, epoch).await?;
        if tx.query(&LOCK_UNPROCESSED, params! { id: event.0 }).await?.is_empty() {
            tx.rollback().await?;
            return Ok(None);
        }
        for expected in jobs {
            if !job::lock_version(&mut tx, *expected).await? {
                tx.rollback().await?;
                return Ok(None);
            }
        }
        let runs: Vec<NewRun<'_>> = runs
            .iter()
            .map(|run| NewRun { event: Some(event), origin: Origin::Event, ..run.clone() })
            .collect();
        let created = create::insert_or_find(&mut tx, &runs).await?;
        let new_runs = created.iter().filter(|created| !created.existed).count();
        mark_processed(&mut tx, event, new_runs, None).await?;
        tx.commit().await?;
        Ok(Some(created))
    }

    /// Marks an event as processed for which no job is to run. `false`: it was processed before.
    pub async fn close_unmatched_event(&self, epoch: Epoch, event: EventId) -> Result<bool, Error> {
        self.close_event(epoch, event, None).await
    }

    /// Marks an event as processed that cannot create runs, and stores the reason, so that it does not block the next
    /// events. `false`: it was processed before.
    pub async fn close_failed_event(
        &self,
        epoch: Epoch,
        event: EventId,
        problem: &str,
    ) -> Result<bool, Error> {
        self.close_event(epoch, event, Some(problem)).await
    }

    async fn close_event(
        &self,
        epoch: Epoch,
        event: EventId,
        problem: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        leader::check_and_lock_epoch(&mut tx, epoch).await?;
        let closed = mark_processed(&mut tx, event, 0, problem).await?;
        tx.commit().await?;
        Ok(closed)
    }
}

async fn insert_event(tx: &mut Tx<'_>, event: &NewEvent<'_>) -> Result<EmitResult, Error> {
    let key = params! {
        source: event.source,
        dedupe_key: event.dedupe_key.map(str::to_owned),
    };
    let content = params! {
        event_type: event.event_type,
        payload: event.payload.map(str::to_owned),
        job_name: event.job_name.map(ToString::to_string),
    };
    let row = [key.clone(), content].concat();
    let inserted = match tx.dialect() {
        Dialect::Sqlite | Dialect::Postgres => tx.query(&INSERT, row).await?,
        Dialect::MySql => match tx.execute(&INSERT, row).await {
            Ok(_) => tx.query(&create::FIND_INSERTED_ID, params! {}).await?,
            Err(error) if error.is_duplicate_key() => Vec::new(),
            Err(error) => return Err(error),
        },
    };
    if let Some(row) = inserted.first() {
        return Ok(EmitResult { event: EventId(row.int("id")?), existed: false });
    }
    let rows = tx.query(&FIND_BY_KEY, key).await?;
    let row =
        rows.first().ok_or_else(|| Error::broken("the event was neither inserted nor found"))?;
    Ok(EmitResult { event: EventId(row.int("id")?), existed: true })
}

async fn mark_processed(
    tx: &mut Tx<'_>,
    event: EventId,
    runs: usize,
    problem: Option<&str>,
) -> Result<bool, Error> {
    let row = params! {
        id: event.0,
        runs: runs as i64,
        problem: problem.map(str::to_owned),
    };
    Ok(tx.execute(&MARK_PROCESSED, row).await? == 1)
}

fn check_event(event: &NewEvent<'_>) -> Result<(), InvalidInput> {
    validate::check_key("event type", event.event_type)?;
    validate::check_key("source", event.source)?;
    event.dedupe_key.map_or(Ok(()), |typed| validate::check_key("dedupe key", typed))?;
    let Some(payload) = event.payload else { return Ok(()) };
    validate::check_json_size_and_nul("payload", payload)?;
    match serde_json::from_str::<serde_json::Value>(payload) {
        Ok(_) => Ok(()),
        Err(_) => Err(InvalidInput::with_value("payload", payload, "JSON")),
    }
}
