//! The durable truth: every move of a run as a guarded write, on three databases.
//!
//! A [`Store`] hides a transaction, three dialects and a history row behind one question and one
//! answer. What it promises: each move happens exactly where the table of transitions allows it, in
//! one write that compares what must hold; a write that lost says so as a value. The database's
//! clock is the only clock.
//!
//! Deliberately not here: loops, processes, decisions (they are `tasuki_core`'s) and anything that
//! is remembered between two calls.

mod audit;
mod check;
mod cluster;
mod db;
mod doctor;
mod error;
mod events;
mod job;
mod logs;
mod outcome;
mod planner;
#[cfg(test)]
mod plans;
mod retention;
mod run;
mod settings;
mod token;

pub use audit::verify::{Flaw, Verified};
pub use audit::{Actor, AuditHead, AuditRow};
pub use cluster::leader::{Leader, Term};
pub use cluster::news::{Listener, News};
pub use cluster::worker::{NewWorker, Worker, WorkerNow};
pub use db::migrate::Migration;
pub use db::sql::Dialect;
pub use db::{AppTransaction, Fault, Line, Pause};
pub use doctor::{CLOCK_TOLERANCE, Check, Finding, Report, Severity};
pub use error::Error;
pub use events::{Emitted, Event, NewEvent};
pub use job::{Job, JobChange, JobCreated, JobDefinition, JobSpec, JobVersion, Seen, Trigger};
pub use logs::first_lines::FirstLines;
pub use logs::{LogLine, LogPage, Logged, Stream};
pub use outcome::{Lost, Outcome};
pub use planner::cursor::{Cursor, CursorMove};
pub use planner::look::{Firsts, LanePlace};
pub use planner::planning::{Carried, Glance, Waiting};
pub use retention::{Forgotten, PrunePlace, Pruned};
pub use run::Run;
pub use run::recover::Recovered;
pub use run::cancel::Canceled;
pub use run::submit_batcher::{Enqueuer, Task};
pub use run::create::{Writer, Created, Slots};
pub use run::executions::Execution;
pub use run::finish::{AttemptReport, AttemptResult, Finished, Succeeded};
pub use run::lease::{Lease, Renewed, RenewedRun};
pub use run::lists::{RunCursor, RunFilter, RunPage};
pub use run::new_run::NewRun;
pub use run::note::RunNote;
pub use run::take::{AssignBatch, ClaimBatch, ClaimResult, MOST_CLAIMED, Taken, DueRun};
pub use settings::{SettingsChange, SettingsInForce};
pub use tasuki_core::job_spec::WorkKind as JobKind;
pub use token::{NewToken, Token};

use jiff::Timestamp;

use db::sql::{Sql, sql};
use db::{Db, params};
use tasuki_core::RunId;

static RUN_SHOW: Sql = sql!("run/show");
static CLOCK: Sql = sql!("doctor/clock");

/// A database that keeps runs. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    db: Db,
}

impl Store {
    /// Opens a database by its URL (`sqlite:`, `postgres:`, `mysql:`) with at most so many
    /// connections.
    pub async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        Ok(Self { db: Db::open(url, connections).await? })
    }

    /// Whether a database is there and answers, asked once and without changing anything.
    pub async fn reach(url: &str) -> Result<(), Error> {
        db::connect::Pools::reach(url).await
    }

    /// Which database it is.
    pub fn dialect(&self) -> Dialect {
        self.db.dialect()
    }

    /// For tests: from now on the clock stands still at this instant; `None`: it is the database's
    /// own again.
    pub fn set_clock(&self, now: Option<Timestamp>) {
        self.db.bind_now(now.map(Timestamp::as_microsecond));
    }

    /// For tests: the same database, on a line that may be slow, or lose what is sent or answered.
    pub fn with_line(&self, line: std::sync::Arc<dyn Line>) -> Self {
        Self { db: self.db.with_line(line) }
    }

    /// The database's clock: the only one that plans and guards go by.
    pub async fn clock(&self) -> Result<Timestamp, Error> {
        let rows = self.db.rows(&CLOCK, params! {}).await?;
        let row = rows.first().ok_or_else(|| Error::broken("there is no clock"))?;
        run::timestamp(row.int("clock")?)
    }

    /// One run.
    pub async fn run(&self, run: RunId) -> Result<Option<Run>, Error> {
        let rows = self.db.rows(&RUN_SHOW, params! { run_id: run.0 }).await?;
        rows.first().map(Run::from_row).transpose()
    }

    /// For migrations by hand and tests: a script of statements without parameters.
    pub async fn script(&self, text: &str) -> Result<(), Error> {
        self.db.script(text).await
    }

    /// Puts the tables in order after much was written, as the database itself does in time: its
    /// statistics, and what is no longer visible.
    pub async fn tidy(&self) -> Result<(), Error> {
        self.db
            .script(match self.dialect() {
                Dialect::Sqlite => "analyze",
                Dialect::Postgres => "vacuum analyze",
                Dialect::MySql => "analyze table tasuki_run, tasuki_due",
            })
            .await
    }

    /// Has PostgreSQL write everything out, after which each page travels to the log whole when it is next
    /// changed. Needs the right to do so; nothing on the other databases.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        match self.dialect() {
            Dialect::Postgres => self.db.script("checkpoint").await,
            Dialect::Sqlite | Dialect::MySql => Ok(()),
        }
    }

    /// Closes its connections in order.
    pub async fn close(&self) {
        self.db.close().await;
    }

    /// Says why a write lost, for people.
    async fn explain(&self, run: RunId) -> Result<Lost, Error> {
        let now = self.run(run).await?;
        Ok(Lost {
            run,
            state: now.as_ref().map(|run| run.state),
            worker: now.filter(|run| run.state.is_carried()).and_then(|run| run.worker),
        })
    }
}

/// An id as the databases keep it.
fn uuid(bytes: &[u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*bytes)
}
