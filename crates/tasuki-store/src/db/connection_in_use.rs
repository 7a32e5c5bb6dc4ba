//! A connection to a database server (PostgreSQL, MySQL) that is in use. When it is dropped, it returns to the cache
//! only in a clean state; otherwise it is rolled back, left to the pool, or closed.
//!
//! Why this is needed: a caller can be canceled while it waits for a response. MySQL's driver does not resynchronize
//! with the rest of that response and could read it as the response to another statement. Such a connection is closed,
//! and the server rolls back what was not committed. PostgreSQL's protocol marks the end of a response: the transaction
//! is rolled back, and the pool reads the rest of the response. SQLite runs in this process and does not need this.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Database, Executor as _, MySql, Postgres};
use tokio::runtime::Handle;

use crate::Error;
use crate::db::connection_cache::{CachedConnection, ConnectionCache, close_connection};
use crate::db::sql::TranslatedStatement;

/// Maximum time for the rollback of a transaction whose caller was canceled.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(2);

/// A database that runs as a server: PostgreSQL or MySQL.
pub(crate) trait ServerDatabase: Database {
    /// Whether a connection is still usable after a response that was not read to its end.
    const RESYNCS_AFTER_CANCEL: bool;

    /// Executes statements that have no parameters.
    fn execute_raw(
        connection: &mut Self::Connection,
        text: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl ServerDatabase for Postgres {
    const RESYNCS_AFTER_CANCEL: bool = true;

    async fn execute_raw(connection: &mut Self::Connection, text: &str) -> Result<(), sqlx::Error> {
        connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.map(drop)
    }
}

impl ServerDatabase for MySql {
    const RESYNCS_AFTER_CANCEL: bool = false;

    async fn execute_raw(connection: &mut Self::Connection, text: &str) -> Result<(), sqlx::Error> {
        connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.map(drop)
    }
}

/// A connection in use, perhaps with an open transaction.
pub(crate) struct ServerConnection<D: ServerDatabase> {
    /// `None` only while this value is being dropped.
    connection: Option<CachedConnection<D>>,
    cache: ConnectionCache<D>,
    /// Whether a request was sent whose response was not read to its end.
    awaiting_response: bool,
    /// Whether any request failed. The connection itself may be broken then.
    failed: bool,
    /// Whether a transaction is open, or may be.
    in_transaction: bool,
}

impl<D: ServerDatabase> ServerConnection<D> {
    /// Acquires any connection.
    pub(crate) async fn acquire(cache: &ConnectionCache<D>) -> Result<Self, Error> {
        Self::acquire_from(cache, None).await
    }

    /// Acquires a connection to execute this statement, if possible one that has prepared it.
    pub(crate) async fn acquire_for(
        statement: &TranslatedStatement,
        cache: &ConnectionCache<D>,
    ) -> Result<Self, Error> {
        Self::acquire_from(cache, Some(statement.id())).await
    }

    async fn acquire_from(
        cache: &ConnectionCache<D>,
        statement: Option<usize>,
    ) -> Result<Self, Error> {
        let connection = Some(cache.acquire(statement).await?);
        Ok(Self {
            connection,
            cache: cache.clone(),
            awaiting_response: false,
            failed: false,
            in_transaction: false,
        })
    }

    /// Acquires a connection and begins a transaction with the statements in `begin`.
    pub(crate) async fn begin(
        cache: &ConnectionCache<D>,
        begin: &'static str,
    ) -> Result<Self, Error> {
        let mut this = Self::acquire(cache).await?;
        this.in_transaction = true;
        this.execute_raw(begin).await?;
        Ok(this)
    }

    /// Returns the driver's connection to send a request. The caller must pass the result to
    /// [`finish_exchange`](Self::finish_exchange); until then the response counts as not read.
    pub(crate) fn begin_exchange(&mut self) -> &mut D::Connection {
        self.awaiting_response = true;
        self.connection.as_mut().expect("the connection is taken out only in drop")
    }

    /// Records the result of a request. A refusal by the database is a complete response; any other error is not.
    pub(crate) fn finish_exchange<T>(
        &mut self,
        result: Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        self.awaiting_response = !matches!(result, Ok(_) | Err(sqlx::Error::Database(_)));
        self.failed |= result.is_err();
        Ok(result?)
    }

    /// Executes statements that have no parameters.
    pub(crate) async fn execute_raw(&mut self, text: &str) -> Result<(), Error> {
        let result = D::execute_raw(self.begin_exchange(), text).await;
        self.finish_exchange(result)
    }

    /// Ends the transaction with `commit` or `rollback`.
    pub(crate) async fn end_transaction(mut self, statement: &'static str) -> Result<(), Error> {
        self.execute_raw(statement).await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl<D: ServerDatabase> Drop for ServerConnection<D> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return close_connection(connection) };
        match (self.awaiting_response, self.in_transaction) {
            (false, false) if !self.failed => self.cache.put_back(connection),
            (true, _) if !D::RESYNCS_AFTER_CANCEL => close_connection(connection),
            // Dropping it returns it to the pool, which reads the rest of the response and pings the connection.
            (_, false) => {}
            (_, true) => drop(runtime.spawn(async move {
                let rollback = D::execute_raw(&mut connection, "rollback");
                let result = tokio::time::timeout(ROLLBACK_TIMEOUT, rollback).await;
                if !matches!(result, Ok(Ok(()))) {
                    close_connection(connection);
                }
            })),
        }
    }
}

/// A connection with an open transaction: ours, or one of the application.
pub(crate) enum OwnedOrBorrowedTx<'a, D: ServerDatabase> {
    Owned(ServerConnection<D>),
    /// The application began this transaction, and only the application ends it.
    Borrowed(&'a mut D::Connection),
}

impl<D: ServerDatabase> OwnedOrBorrowedTx<'_, D> {
    /// See [`ServerConnection::begin_exchange`].
    pub(crate) fn begin_exchange(&mut self) -> &mut D::Connection {
        match self {
            Self::Owned(connection) => connection.begin_exchange(),
            Self::Borrowed(connection) => connection,
        }
    }

    /// See [`ServerConnection::finish_exchange`].
    pub(crate) fn finish_exchange<T>(
        &mut self,
        result: Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        match self {
            Self::Owned(connection) => connection.finish_exchange(result),
            Self::Borrowed(_) => Ok(result?),
        }
    }

    /// Ends our own transaction with `commit` or `rollback`. Does nothing to one of the application.
    pub(crate) async fn end_transaction(self, statement: &'static str) -> Result<(), Error> {
        match self {
            Self::Owned(connection) => connection.end_transaction(statement).await,
            Self::Borrowed(_) => Ok(()),
        }
    }
}
