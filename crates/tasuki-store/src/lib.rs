//! The database layer of tasuki: every state transition of a run is a guarded write, on three databases.
//!
//! Each method of [`Store`] is one operation. It hides the transaction, the SQL dialect and the history row that
//! belongs to the write. What this crate promises: a transition happens only if the transition table allows it, in
//! one write that checks all conditions in its `where` clause. A write whose conditions do not hold any more returns
//! [`Outcome::Lost`], not an error. All times come from the database's clock.
//!
//! Deliberately not here: loops, processes, decisions (they are in `tasuki_core`), and state that is kept in memory
//! between two calls.

mod audit;
mod cluster;
mod db;
mod doctor;
mod emitted_events;
mod error;
mod guarded_write_outcome;
mod job;
mod logs;
mod validate;
// EXPLAIN tests. They need the private statements, so they are compiled as a module of this crate.
#[cfg(test)]
#[path = "../tests/query_plans/mod.rs"]
mod query_plans;
mod retention;
mod run;
mod settings;
mod token;

pub use audit::verify::{AuditVerification, ChainError};
pub use audit::{AuditActor, AuditEntry, AuditHead};
pub use cluster::leader::{LeaderRecord, Term};
pub use cluster::notify::{Notification, NotificationListener};
pub use cluster::worker::{NewWorker, WorkerHeartbeatReply, WorkerRecord};
pub use db::migrate::Migration;
pub use db::sql::Dialect;
pub use db::{AppTransaction, BoxFuture, Fault, FaultInjector};
pub use doctor::{CLOCK_TOLERANCE, DoctorCheck, DoctorReport, Finding, Severity};
pub use emitted_events::{EmitResult, Event, NewEvent};
pub use error::Error;
pub use guarded_write_outcome::{LostWrite, Outcome};
pub use job::schedule_cursor::{ScheduleCursor, ScheduleCursorMove};
pub use job::{
    ExpectedVersion, Job, JobChangeResult, JobCreateResult, JobDefinition, JobVersion,
    JobVersionSpec, Trigger,
};
pub use logs::create_short_logs::FirstOutputLines;
pub use logs::{LogAppendResult, LogLine, LogPage, OutputStream};
pub use retention::{PrunePosition, PruneResult, PrunedWorkers};
pub use run::Run;
pub use run::assign::AssignRequest;
pub use run::cancel::CancelResult;
pub use run::claim::{ClaimRequest, ClaimResult, MAX_CLAIM};
pub use run::create::{CreatedRun, CursorMoveWithRuns, Writer};
pub use run::due_table::DueRun;
pub use run::find_lane_due_times::{LaneDueTimes, LanePosition};
pub use run::finish::{AttemptReport, AttemptResult, StateAfterAttempt};
pub use run::lease::{Lease, RenewResult, RenewedRun};
pub use run::list::{RunFilter, RunListPosition, RunPage};
pub use run::list_attempts_of_run::Execution;
pub use run::list_waiting_and_leased::{LeaderWorkFlags, LeasedRun, WaitingRun};
pub use run::new_run::NewRun;
pub use run::rare_transition_records::TransitionRecord;
pub use run::recover::RecoveredRun;
pub use run::start::StartedRun;
pub use run::submit_batcher::{PendingTask, SubmitBatcher};
pub use settings::{CurrentSettings, SettingsChangeResult};
pub use tasuki_core::work_spec::WorkKind as JobKind;
pub use token::{NewToken, Token};

use jiff::Timestamp;

use db::sql::{Sql, sql};
use db::{Db, params};
use tasuki_core::RunId;

static FIND_RUN: Sql = sql!("run/find");
static READ_CLOCK: Sql = sql!("doctor/find_clock");

/// The database that stores jobs, runs and all other data of tasuki. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    db: Db,
}

impl Store {
    /// Opens a database by its URL (`sqlite:`, `postgres:`, `mysql:`). `connections` is the maximum number of
    /// connections.
    pub async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        Ok(Self { db: Db::open(url, connections).await? })
    }

    /// Checks with one attempt that a database exists and accepts connections. It changes nothing.
    pub async fn probe(url: &str) -> Result<(), Error> {
        db::connect::Pools::probe(url).await
    }

    /// Returns the SQL dialect of this database, for the store and its tests. Other crates use [`Store::can_notify`],
    /// [`Store::max_open_transactions`] and [`Store::database_product`].
    pub fn dialect(&self) -> Dialect {
        self.db.dialect()
    }

    /// Name of the database product, for messages.
    pub fn database_product(&self) -> &'static str {
        match self.dialect() {
            Dialect::Sqlite => "SQLite",
            Dialect::Postgres => "PostgreSQL",
            Dialect::MySql => "MariaDB or MySQL",
        }
    }

    /// Whether this database carries notifications to other processes; see [`Store::notify`].
    pub fn can_notify(&self) -> bool {
        self.dialect() == Dialect::Postgres
    }

    /// Maximum number of transactions that a caller should have open at the same time to do the same work for many
    /// runs. SQLite has one writer, so a second transaction would only wait for the first one.
    pub fn max_open_transactions(&self) -> usize {
        match self.dialect() {
            Dialect::Sqlite => 1,
            Dialect::Postgres | Dialect::MySql => 4,
        }
    }

    /// For tests: sets the clock to this instant, where it then stands still. `None` returns to the database's own
    /// clock.
    pub fn set_clock(&self, now: Option<Timestamp>) {
        self.db.set_test_clock(now.map(Timestamp::as_microsecond));
    }

    /// For tests: returns the same database with a fault injector that delays or loses requests and responses.
    pub fn with_fault_injector(&self, injector: std::sync::Arc<dyn FaultInjector>) -> Self {
        Self { db: self.db.with_fault_injector(injector) }
    }

    /// Reads the database's clock. Planning and all guards use only this clock.
    pub async fn read_clock(&self) -> Result<Timestamp, Error> {
        let rows = self.db.query(&READ_CLOCK, params! {}).await?;
        let row =
            rows.first().ok_or_else(|| Error::broken("the query for the clock returned no row"))?;
        db::instant::timestamp_from_micros(row.int("clock")?)
    }

    /// Finds a run by its id.
    pub async fn find_run(&self, run: RunId) -> Result<Option<Run>, Error> {
        let rows = self.db.query(&FIND_RUN, params! { run_id: run.0 }).await?;
        rows.first().map(Run::from_row).transpose()
    }

    /// Executes several statements that have no parameters. For manual migrations and for tests.
    pub async fn execute_script(&self, text: &str) -> Result<(), Error> {
        self.db.execute_script(text).await
    }

    /// Updates the planner statistics of the tables, and removes dead rows on PostgreSQL. Useful after many writes; the
    /// database does the same in the background later.
    pub async fn analyze_tables(&self) -> Result<(), Error> {
        self.db
            .execute_script(match self.dialect() {
                Dialect::Sqlite => "analyze",
                Dialect::Postgres => "vacuum analyze",
                Dialect::MySql => "analyze table tasuki_run, tasuki_due",
            })
            .await
    }

    /// Makes a checkpoint on PostgreSQL. After it, PostgreSQL writes each page completely to its log when the page is
    /// next changed. Needs the permission for `checkpoint`. Does nothing on the other databases.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        match self.dialect() {
            Dialect::Postgres => self.db.execute_script("checkpoint").await,
            Dialect::Sqlite | Dialect::MySql => Ok(()),
        }
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.db.close().await;
    }

    /// Reads the current state of a run whose write was lost. For messages only; no code decides by it.
    async fn explain_loss(&self, run: RunId) -> Result<LostWrite, Error> {
        let current = self.find_run(run).await?;
        Ok(LostWrite {
            run,
            state: current.as_ref().map(|run| run.state),
            worker: current.filter(|run| run.state.is_leased()).and_then(|run| run.worker),
        })
    }
}

/// Converts an id to the type of the id columns.
fn to_uuid(bytes: &[u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*bytes)
}
