//! Database transactions: our own, and transactions of the application that tasuki writes into.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, Executor as _, MySql, MySqlConnection, PgConnection, Postgres, Sqlite,
    SqliteConnection, Transaction,
};

use super::{Db, Fault, FaultInjector, Params, Row, fetch_rows, wrap_rows};
use crate::Error;
use crate::db::bind::{bind_mysql, bind_postgres, bind_sqlite, values_in_statement_order};
use crate::db::connection_in_use::OwnedOrBorrowedTx;
use crate::db::sql::{Dialect, Sql};

/// A transaction of the application that tasuki writes into, so that both commit together. Made from a `&mut` of
/// a sqlx connection or transaction on the database that holds tasuki's tables.
pub struct AppTransaction<'a>(pub(super) TxConnection<'a>);

macro_rules! from_sqlx {
    ($($variant:ident $connection:ident $tx:ident),+) => {$(
        impl<'a> From<&'a mut $connection> for AppTransaction<'a> {
            fn from(connection: &'a mut $connection) -> Self {
                Self(TxConnection::$variant($tx::Borrowed(connection)))
            }
        }

        impl<'a> From<&'a mut Transaction<'_, $variant>> for AppTransaction<'a> {
            fn from(transaction: &'a mut Transaction<'_, $variant>) -> Self {
                Self::from(&mut **transaction)
            }
        }
    )+};
}
from_sqlx!(Sqlite SqliteConnection SqliteTx, Postgres PgConnection OwnedOrBorrowedTx, MySql MySqlConnection OwnedOrBorrowedTx);

/// A transaction. Dropping it without a commit rolls it back.
pub(crate) struct Tx<'a> {
    pub(super) connection: TxConnection<'a>,
    /// The clock that a test has set, in microseconds since 1970; `None`: the database's own clock.
    pub(super) now: Option<i64>,
    pub(super) fault_injector: Option<Arc<dyn FaultInjector>>,
    /// The fault that was decided when the transaction began; it takes effect at the end.
    pub(super) fault: Fault,
}

/// The driver's connection or transaction behind a [`Tx`].
pub(super) enum TxConnection<'a> {
    Sqlite(SqliteTx<'a>),
    Postgres(OwnedOrBorrowedTx<'a, Postgres>),
    MySql(OwnedOrBorrowedTx<'a, MySql>),
}

/// A transaction on SQLite: ours, or one of the application.
pub(super) enum SqliteTx<'a> {
    Owned(Transaction<'static, Sqlite>),
    /// The application began this transaction, and only the application ends it.
    Borrowed(&'a mut SqliteConnection),
}

impl Deref for SqliteTx<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self {
            Self::Owned(transaction) => transaction,
            Self::Borrowed(connection) => connection,
        }
    }
}

impl DerefMut for SqliteTx<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Owned(transaction) => transaction,
            Self::Borrowed(connection) => connection,
        }
    }
}

impl SqliteTx<'_> {
    async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Owned(transaction) => transaction.commit().await,
            Self::Borrowed(_) => Ok(()),
        }
    }

    async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Owned(transaction) => transaction.rollback().await,
            Self::Borrowed(_) => Ok(()),
        }
    }
}

impl TxConnection<'_> {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
        }
    }
}

impl Tx<'_> {
    pub(crate) fn dialect(&self) -> Dialect {
        self.connection.dialect()
    }

    /// Executes a statement and returns its rows.
    pub(crate) async fn query(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let now = self.now;
        let statement = sql.for_dialect(self.dialect(), now.is_some());
        Ok(match &mut self.connection {
            TxConnection::Sqlite(tx) => {
                fetch_rows!(Sqlite, sqlite, &mut **tx, statement, params, now)
            }
            TxConnection::Postgres(tx) => {
                fetch_rows!(Postgres, postgres, tx, statement, params, now)
            }
            TxConnection::MySql(tx) => fetch_rows!(MySql, mysql, tx, statement, params, now),
        })
    }

    /// Executes a statement that returns all of its rows as one JSON list on SQLite, and as normal rows elsewhere.
    /// On SQLite every row is otherwise sent separately from the driver's thread to ours.
    pub(crate) async fn query_rows_via_json(
        &mut self,
        sql: &Sql,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let rows = self.query(sql, params).await?;
        match (self.dialect(), rows.first()) {
            (Dialect::Sqlite, Some(row)) => {
                Row::from_json_list(&row.text("column_names")?, &row.text("rows_json")?)
            }
            _ => Ok(rows),
        }
    }

    /// Executes a statement and returns the number of rows that it matched.
    pub(crate) async fn execute(&mut self, sql: &Sql, params: Params<'_>) -> Result<u64, Error> {
        let now = self.now;
        let statement = sql.for_dialect(self.dialect(), now.is_some());
        let values = values_in_statement_order(statement, &statement.param_names, params, now);
        Ok(match &mut self.connection {
            TxConnection::Sqlite(tx) => {
                bind_sqlite(statement, values).execute(&mut **tx).await?.rows_affected()
            }
            TxConnection::Postgres(tx) => {
                let result = bind_postgres(statement, values).execute(tx.begin_exchange()).await;
                tx.finish_exchange(result)?.rows_affected()
            }
            TxConnection::MySql(tx) => {
                let result = bind_mysql(statement, values).execute(tx.begin_exchange()).await;
                tx.finish_exchange(result)?.rows_affected()
            }
        })
    }

    /// Inserts several rows with one statement and returns the id of the first row. Not available on PostgreSQL,
    /// where an insert reads arrays and returns its ids.
    pub(crate) async fn insert_rows(
        &mut self,
        sql: &Sql,
        rows: Vec<Params<'_>>,
    ) -> Result<i64, Error> {
        let (now, count) = (self.now, rows.len());
        let statement = sql.with_repeated_values(self.dialect(), now.is_some(), count);
        let names_per_row = (statement.param_names.len() / count.max(1)).max(1);
        let names = statement.param_names.chunks(names_per_row);
        let values = names
            .zip(rows)
            .flat_map(|(names, row)| values_in_statement_order(&statement, names, row, now))
            .collect();
        Ok(match &mut self.connection {
            TxConnection::Sqlite(tx) => {
                let query = bind_sqlite(&statement, values);
                query.execute(&mut **tx).await?.last_insert_rowid() - count as i64 + 1
            }
            TxConnection::MySql(tx) => {
                let query = bind_mysql(&statement, values);
                let result = query.execute(tx.begin_exchange()).await;
                tx.finish_exchange(result)?.last_insert_id() as i64
            }
            TxConnection::Postgres(_) => {
                return Err(Error::broken("insert_rows is not available on PostgreSQL"));
            }
        })
    }

    /// Executes several statements that have no parameters.
    pub(crate) async fn execute_script(&mut self, text: &str) -> Result<(), Error> {
        let text = AssertSqlSafe(text.to_owned());
        match &mut self.connection {
            TxConnection::Sqlite(tx) => tx.execute(sqlx::raw_sql(text)).await.map(drop)?,
            TxConnection::Postgres(tx) => {
                let result = tx.begin_exchange().execute(sqlx::raw_sql(text)).await;
                tx.finish_exchange(result)?;
            }
            TxConnection::MySql(tx) => {
                let result = tx.begin_exchange().execute(sqlx::raw_sql(text)).await;
                tx.finish_exchange(result)?;
            }
        }
        Ok(())
    }

    /// Commits. A transaction of the application stays open: the application commits it.
    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self.connection {
            TxConnection::Sqlite(tx) => tx.commit().await?,
            TxConnection::Postgres(tx) => tx.end_transaction("commit").await?,
            TxConnection::MySql(tx) => tx.end_transaction("commit").await?,
        }
        Db::inject_response_fault(self.fault_injector.as_ref(), self.fault).await
    }

    /// Rolls back. Unlike a drop, this waits for the rollback, so that the connection returns to the cache immediately.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        match self.connection {
            TxConnection::Sqlite(tx) => tx.rollback().await?,
            TxConnection::Postgres(tx) => tx.end_transaction("rollback").await?,
            TxConnection::MySql(tx) => tx.end_transaction("rollback").await?,
        }
        Db::inject_response_fault(self.fault_injector.as_ref(), self.fault).await
    }
}
