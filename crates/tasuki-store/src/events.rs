//! Events: something happened, and may start runs.

use jiff::Timestamp;
use tasuki_core::{Epoch, EventId, Invalid, JobName, Origin};

use crate::cluster::leader;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::create::{self, Created};
use crate::run::timestamp;
use crate::{Error, NewRun, Seen, Store, check, job};

static EMIT: Sql = sql!("event/emit", ".sqlite", ".postgres", ".mysql");
static BY_KEY: Sql = sql!("event/by_key");
static SHOW: Sql = sql!("event/show");
static OPEN: Sql = sql!("event/open");
static LIST: Sql = sql!("event/list");
static LOCK: Sql = sql!("event/lock");
static TAKE: Sql = sql!("event/take");

/// An event to be told.
#[derive(Debug, Clone)]
pub struct NewEvent<'a> {
    /// What happened: `order.paid`.
    pub event_type: &'a str,
    /// Who tells it.
    pub source: &'a str,
    /// The same key twice from one source is the same event.
    pub dedupe_key: Option<&'a str>,
    /// The one job it is for; otherwise whoever listens.
    pub job_name: Option<&'a JobName>,
    /// What goes with it, as JSON.
    pub payload: Option<&'a str>,
}

/// An event that is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// Which.
    pub event: EventId,
    /// Whether it was there before: same source, same dedupe key.
    pub existed: bool,
}

/// An event as its row has it. Other programs write these, so nothing but the id is sure to be sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub id: EventId,
    /// What happened.
    pub event_type: String,
    /// Who told it.
    pub source: String,
    /// Its key.
    pub dedupe_key: Option<String>,
    /// The one job it is for.
    pub job_name: Option<String>,
    /// What goes with it.
    pub payload: Option<String>,
    /// When it was told.
    pub created_at: Timestamp,
    /// When the leader took it.
    pub processed_at: Option<Timestamp>,
    /// How many runs it made.
    pub runs: Option<i64>,
    /// Why it could not make any.
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
            created_at: timestamp(row.int("created_at")?)?,
            processed_at: row.opt_int("processed_at")?.map(timestamp).transpose()?,
            runs: row.opt_int("runs")?,
            problem: row.opt_text("problem")?,
        })
    }
}

impl Store {
    /// Tells an event. Told before under the same key, it is found, not made.
    pub async fn emit(&self, event: &NewEvent<'_>) -> Result<Emitted, Error> {
        sound(event)?;
        let mut tx = self.db.begin().await?;
        let emitted = insert(&mut tx, event).await?;
        tx.commit().await?;
        Ok(emitted)
    }

    /// One event.
    pub async fn event(&self, event: EventId) -> Result<Option<Event>, Error> {
        let rows = self.db.rows(&SHOW, params! { id: event.0 }).await?;
        rows.first().map(Event::from_row).transpose()
    }

    /// What nobody has taken yet, oldest first, at most so many.
    pub async fn open_events(&self, most: u32) -> Result<Vec<Event>, Error> {
        let rows = self.db.rows(&OPEN, params! { most: most }).await?;
        rows.iter().map(Event::from_row).collect()
    }

    /// Events, newest first, from before this one, at most so many.
    pub async fn events(&self, before: Option<EventId>, most: u32) -> Result<Vec<Event>, Error> {
        let before = before.map_or(i64::MAX, |event| event.0);
        let rows = self.db.rows(&LIST, params! { before: before, most: most }).await?;
        rows.iter().map(Event::from_row).collect()
    }

    /// Makes the runs of an event and closes it, together. `jobs` are the definitions they are made from,
    /// as they were read. `None`, and nothing was made: it was taken before, or there is no such event, or
    /// one of the jobs has been changed since; then the event is still open, for another look.
    pub async fn take_event(
        &self,
        epoch: Epoch,
        event: EventId,
        jobs: &[Seen],
        runs: &[NewRun<'_>],
    ) -> Result<Option<Vec<Created>>, Error> {
        check::runs(runs)?;
        let unseen = runs.iter().find(|run| jobs.iter().all(|seen| seen.job != run.job.job));
        if let Some(run) = unseen {
            let found = format!("{}, which is not among them", run.job.job);
            return Err(Invalid::described("jobs", found, "every job of the runs").into());
        }
        let mut tx = self.db.begin().await?;
        leader::fence(&mut tx, epoch).await?;
        if tx.rows(&LOCK, params! { id: event.0 }).await?.is_empty() {
            tx.rollback().await?;
            return Ok(None);
        }
        for seen in jobs {
            if !job::stays_seen(&mut tx, *seen).await? {
                tx.rollback().await?;
                return Ok(None);
            }
        }
        let runs: Vec<NewRun<'_>> = runs
            .iter()
            .map(|run| NewRun { event: Some(event), origin: Origin::Event, ..run.clone() })
            .collect();
        let created = create::insert_all(&mut tx, &runs).await?;
        let made = created.iter().filter(|created| !created.existed).count();
        close(&mut tx, event, made, None).await?;
        tx.commit().await?;
        Ok(Some(created))
    }

    /// Closes an event that nobody listens to. `false`: it was taken before.
    pub async fn pass_event(&self, epoch: Epoch, event: EventId) -> Result<bool, Error> {
        self.close_event(epoch, event, None).await
    }

    /// Closes an event that cannot make runs and says why, so that it does not stand in the way of the
    /// next. `false`: it was taken before.
    pub async fn refuse_event(
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
        leader::fence(&mut tx, epoch).await?;
        let closed = close(&mut tx, event, 0, problem).await?;
        tx.commit().await?;
        Ok(closed)
    }
}

async fn insert(tx: &mut Tx<'_>, event: &NewEvent<'_>) -> Result<Emitted, Error> {
    let key = params! {
        source: event.source,
        dedupe_key: event.dedupe_key.map(str::to_owned),
    };
    let told = params! {
        event_type: event.event_type,
        payload: event.payload.map(str::to_owned),
        job_name: event.job_name.map(ToString::to_string),
    };
    let row = [key.clone(), told].concat();
    let made = match tx.dialect() {
        Dialect::Sqlite | Dialect::Postgres => tx.rows(&EMIT, row).await?,
        Dialect::MySql => match tx.execute(&EMIT, row).await {
            Ok(_) => tx.rows(&create::LAST_ID, params! {}).await?,
            Err(error) if error.is_conflict() => Vec::new(),
            Err(error) => return Err(error),
        },
    };
    if let Some(row) = made.first() {
        return Ok(Emitted { event: EventId(row.int("id")?), existed: false });
    }
    let rows = tx.rows(&BY_KEY, key).await?;
    let row = rows.first().ok_or_else(|| Error::broken("an event was neither made nor found"))?;
    Ok(Emitted { event: EventId(row.int("id")?), existed: true })
}

async fn close(
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
    Ok(tx.execute(&TAKE, row).await? == 1)
}

fn sound(event: &NewEvent<'_>) -> Result<(), Invalid> {
    check::key("event type", event.event_type)?;
    check::key("source", event.source)?;
    event.dedupe_key.map_or(Ok(()), |typed| check::key("dedupe key", typed))?;
    let Some(payload) = event.payload else { return Ok(()) };
    check::text("payload", payload)?;
    match serde_json::from_str::<serde_json::Value>(payload) {
        Ok(_) => Ok(()),
        Err(_) => Err(Invalid::typed("payload", payload, "JSON")),
    }
}
