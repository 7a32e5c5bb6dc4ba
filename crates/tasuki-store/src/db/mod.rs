//! One interface to the three database drivers (SQLite, PostgreSQL, MySQL). The code above this module reads as if
//! there were one database; only this module knows that there are three.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::{AssertSqlSafe, Executor as _};
use tasuki_core::InvalidInput;

use crate::Error;
pub(crate) use crate::db::bind::{Params, params};
use crate::db::bind::{bind_mysql, bind_postgres, bind_sqlite, values_in_statement_order};
use crate::db::connect::{BEGIN_SNAPSHOT, Pools};
use crate::db::connection_in_use::{OwnedOrBorrowedTx, ServerConnection};
pub(crate) use crate::db::row::Row;
use crate::db::sql::{Dialect, Sql};
use crate::db::sqlite_group_commit::{BoundScript, ScriptCall};

pub(crate) mod bind;
pub(crate) mod connect;
pub(crate) mod connection_cache;
pub(crate) mod connection_in_use;
pub(crate) mod instant;
pub(crate) mod migrate;
pub(crate) mod row;
pub(crate) mod sql;
pub(crate) mod sqlite_group_commit;
mod tx;

#[cfg(feature = "mutants")]
mod replace_sql_with_mutants;

pub use tx::AppTransaction;
pub(crate) use tx::Tx;
use tx::{SqliteTx, TxConnection};

/// Value of [`Db::test_clock`] while no test has set the clock: the database's own clock is used.
const DATABASE_CLOCK: i64 = i64::MIN;

/// The fault that a test injects into one request to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request and its response are delivered.
    None,
    /// The request does not reach the database.
    RequestLost,
    /// The database executes the request, but its response is lost.
    ResponseLost,
}

/// A boxed future, as the methods of [`FaultInjector`] return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Test hook that makes a database slow or unreliable: it delays requests and responses, or loses them.
/// The store holds no connection and no lock while it awaits one of these futures.
pub trait FaultInjector: Send + Sync {
    /// Called before each request. May delay it, and decides which fault it meets.
    fn on_request(&self) -> BoxFuture<'_, Fault>;

    /// Called after each request. May delay its response.
    fn on_response(&self) -> BoxFuture<'_, ()>;
}

/// Whether a statement reads or writes. SQLite has separate connections for the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessMode {
    Read,
    Write,
}

/// A database. Tests can set its clock and inject faults. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Db {
    pools: Pools,
    /// The clock that a test has set, in microseconds since 1970, or [`DATABASE_CLOCK`].
    test_clock: Arc<AtomicI64>,
    fault_injector: Option<Arc<dyn FaultInjector>>,
}

impl Db {
    /// Opens a database by its URL: `sqlite:`, `postgres:` or `mysql:`.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        let test_clock = Arc::new(AtomicI64::new(DATABASE_CLOCK));
        Ok(Self { pools: Pools::open(url, connections).await?, test_clock, fault_injector: None })
    }

    /// Returns the same database with a fault injector.
    pub(crate) fn with_fault_injector(&self, fault_injector: Arc<dyn FaultInjector>) -> Self {
        Self { fault_injector: Some(fault_injector), ..self.clone() }
    }

    async fn request_fault(&self) -> Fault {
        match &self.fault_injector {
            Some(injector) => injector.on_request().await,
            None => Fault::None,
        }
    }

    async fn inject_response_fault(
        fault_injector: Option<&Arc<dyn FaultInjector>>,
        fault: Fault,
    ) -> Result<(), Error> {
        if let Some(injector) = fault_injector {
            injector.on_response().await;
        }
        match fault {
            Fault::RequestLost | Fault::ResponseLost => Err(Error::timeout()),
            Fault::None => Ok(()),
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.pools {
            Pools::Sqlite { .. } => Dialect::Sqlite,
            Pools::Postgres(_) => Dialect::Postgres,
            Pools::MySql(_) => Dialect::MySql,
        }
    }

    /// For tests: sets the clock to this instant, in microseconds since 1970, where it then stands still.
    /// `None` returns to the database's own clock.
    pub(crate) fn set_test_clock(&self, micros: Option<i64>) {
        self.test_clock.store(micros.unwrap_or(DATABASE_CLOCK), Ordering::Relaxed);
    }

    /// The instant that a test has set; `None`: statements read the database's own clock.
    fn now(&self) -> Option<i64> {
        Some(self.test_clock.load(Ordering::Relaxed)).filter(|&now| now != DATABASE_CLOCK)
    }

    /// Begins a transaction that may write, with isolation level read committed. On SQLite it takes the write lock at
    /// once, so that a writer that had to wait evaluates its guard again instead of failing.
    pub(crate) async fn begin(&self) -> Result<Tx<'static>, Error> {
        // For fault injection a transaction is one request: the fault is decided here, and a response
        // is lost at the commit or rollback.
        let fault = self.request_fault().await;
        if fault == Fault::RequestLost {
            return Err(Error::timeout());
        }
        let connection = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                TxConnection::Sqlite(SqliteTx::Owned(writer.begin_with("begin immediate").await?))
            }
            Pools::Postgres(cache) => TxConnection::Postgres(OwnedOrBorrowedTx::Owned(
                ServerConnection::begin(cache, "begin").await?,
            )),
            Pools::MySql(cache) => TxConnection::MySql(OwnedOrBorrowedTx::Owned(
                ServerConnection::begin(cache, "begin").await?,
            )),
        };
        let fault_injector = self.fault_injector.clone();
        Ok(Tx { connection, now: self.now(), fault_injector, fault })
    }

    /// Begins a read-only transaction in which all statements see the same snapshot.
    pub(crate) async fn begin_read(&self) -> Result<Tx<'static>, Error> {
        let connection = match &self.pools {
            Pools::Sqlite { readers, .. } => {
                TxConnection::Sqlite(SqliteTx::Owned(readers.begin().await?))
            }
            Pools::Postgres(cache) => {
                let transaction = ServerConnection::begin(cache, BEGIN_SNAPSHOT).await?;
                TxConnection::Postgres(OwnedOrBorrowedTx::Owned(transaction))
            }
            Pools::MySql(cache) => {
                let begin = "set transaction isolation level repeatable read; start transaction with consistent snapshot, read only";
                TxConnection::MySql(OwnedOrBorrowedTx::Owned(
                    ServerConnection::begin(cache, begin).await?,
                ))
            }
        };
        Ok(Tx { connection, now: self.now(), fault_injector: None, fault: Fault::None })
    }

    /// Joins a transaction of the application, so that tasuki's writes commit with it. Refuses a transaction on
    /// another kind of database.
    pub(crate) fn join_app_transaction<'a>(
        &self,
        theirs: AppTransaction<'a>,
    ) -> Result<Tx<'a>, Error> {
        let (found, ours) = (theirs.0.dialect(), self.dialect());
        if found != ours {
            let found = format!("one on {found:?}");
            return Err(InvalidInput::with_described_value(
                "transaction",
                found,
                format!("one on {ours:?}"),
            )
            .into());
        }
        Ok(Tx { connection: theirs.0, now: self.now(), fault_injector: None, fault: Fault::None })
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Executes one statement outside a transaction and returns its rows. On SQLite the statement must only read.
    pub(crate) fn query(
        &self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> {
        self.query_with_access(sql, params, AccessMode::Read)
    }

    /// Executes one statement that writes, commits it, and returns its rows. One round trip.
    pub(crate) fn write_returning(
        &self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> {
        self.query_with_access(sql, params, AccessMode::Write)
    }

    async fn query_with_access(
        &self,
        sql: &Sql,
        params: Params<'_>,
        access: AccessMode,
    ) -> Result<Vec<Row>, Error> {
        let fault = self.request_fault().await;
        if fault == Fault::RequestLost {
            return Err(Error::timeout());
        }
        let now = self.now();
        let statement = sql.for_dialect(self.dialect(), now.is_some());
        let rows = match &self.pools {
            Pools::Sqlite { readers, writer, .. } => {
                let pool = if access == AccessMode::Read { readers } else { writer };
                fetch_rows!(Sqlite, sqlite, pool, statement, params, now)
            }
            Pools::Postgres(cache) => {
                let mut connection = ServerConnection::acquire_for(statement, cache).await?;
                fetch_rows!(Postgres, postgres, connection, statement, params, now)
            }
            Pools::MySql(cache) => {
                let mut connection = ServerConnection::acquire_for(statement, cache).await?;
                fetch_rows!(MySql, mysql, connection, statement, params, now)
            }
        };
        Self::inject_response_fault(self.fault_injector.as_ref(), fault).await?;
        Ok(rows)
    }

    /// Executes one statement that writes, commits it, and returns the number of rows that it matched. One round trip.
    pub(crate) async fn execute(&self, sql: &Sql, params: Params<'_>) -> Result<u64, Error> {
        let fault = self.request_fault().await;
        if fault == Fault::RequestLost {
            return Err(Error::timeout());
        }
        let now = self.now();
        let statement = sql.for_dialect(self.dialect(), now.is_some());
        let values = values_in_statement_order(statement, &statement.param_names, params, now);
        let matched = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                bind_sqlite(statement, values).execute(writer).await?.rows_affected()
            }
            Pools::Postgres(cache) => {
                let mut connection = ServerConnection::acquire_for(statement, cache).await?;
                let query = bind_postgres(statement, values);
                let result = query.execute(connection.begin_exchange()).await;
                connection.finish_exchange(result)?.rows_affected()
            }
            Pools::MySql(cache) => {
                let mut connection = ServerConnection::acquire_for(statement, cache).await?;
                let query = bind_mysql(statement, values);
                let result = query.execute(connection.begin_exchange()).await;
                connection.finish_exchange(result)?.rows_affected()
            }
        };
        Self::inject_response_fault(self.fault_injector.as_ref(), fault).await?;
        Ok(matched)
    }

    /// Executes scripts with group commit and returns the rows of each. Each script is a whole transaction of its own
    /// that either commits or has no effect. Only on SQLite.
    pub(crate) async fn execute_with_group_commit(
        &self,
        calls: Vec<ScriptCall<'_>>,
    ) -> Result<Vec<Result<Vec<Row>, Error>>, Error> {
        let Pools::Sqlite { group_commit, .. } = &self.pools else {
            return Err(Error::broken("scripts are executed only on SQLite"));
        };
        let fault = self.request_fault().await;
        if fault == Fault::RequestLost {
            return Err(Error::timeout());
        }
        let now = self.now();
        let bind = |ScriptCall { script, max_runs, params }: ScriptCall<'_>| {
            let statement = script.sql.for_dialect(Dialect::Sqlite, now.is_some());
            let values = values_in_statement_order(statement, &statement.param_names, params, now);
            BoundScript { statement, row_count: script.row_count, max_runs, values }
        };
        let results = group_commit.execute(calls.into_iter().map(bind).collect()).await;
        Self::inject_response_fault(self.fault_injector.as_ref(), fault).await?;
        Ok(results)
    }

    /// Executes several statements that have no parameters, such as a migration.
    pub(crate) async fn execute_script(&self, text: &str) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite { writer, .. } => {
                let text = AssertSqlSafe(text.to_owned());
                writer.execute(sqlx::raw_sql(text)).await.map(drop)?;
            }
            Pools::Postgres(cache) => {
                ServerConnection::acquire(cache).await?.execute_raw(text).await?;
            }
            Pools::MySql(cache) => {
                ServerConnection::acquire(cache).await?.execute_raw(text).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        match &self.pools {
            Pools::Sqlite { writer, readers, .. } => {
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres(cache) => cache.close().await,
            Pools::MySql(cache) => cache.close().await,
        }
    }
}

/// Fetches all rows of a statement with one driver and wraps them in [`Row`].
macro_rules! fetch_rows {
    ($variant:ident, sqlite, $connection:expr, $statement:expr, $params:expr, $now:expr) => {
        wrap_rows!(
            $variant,
            bind_sqlite(
                $statement,
                values_in_statement_order($statement, &$statement.param_names, $params, $now)
            )
            .fetch_all($connection)
            .await?
        )
    };
    ($variant:ident, postgres, $connection:expr, $statement:expr, $params:expr, $now:expr) => {{
        let values = values_in_statement_order($statement, &$statement.param_names, $params, $now);
        let query = bind_postgres($statement, values);
        let result = query.fetch_all($connection.begin_exchange()).await;
        wrap_rows!($variant, $connection.finish_exchange(result)?)
    }};
    ($variant:ident, mysql, $connection:expr, $statement:expr, $params:expr, $now:expr) => {{
        let values = values_in_statement_order($statement, &$statement.param_names, $params, $now);
        let query = bind_mysql($statement, values);
        let result = query.fetch_all($connection.begin_exchange()).await;
        wrap_rows!($variant, $connection.finish_exchange(result)?)
    }};
}
use fetch_rows;

macro_rules! wrap_rows {
    ($variant:ident, $rows:expr) => {
        $rows.into_iter().map(Row::$variant).collect::<Vec<Row>>()
    };
}
use wrap_rows;
