//! Transactions: ours, and those of the application in which something of ours happens too.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, Executor as _, MySql, MySqlConnection, PgConnection, Postgres, Sqlite,
    SqliteConnection, Transaction,
};

use super::{Db, Fault, Line, Params, Row, rows, wrap};
use crate::Error;
use crate::db::bind::{bind_mysql, bind_postgres, bind_sqlite, in_order};
use crate::db::session::Opened;
use crate::db::sql::{Dialect, Sql};

/// A transaction of the application, in which something of ours is to happen too: a `&mut` of a connection or
/// of a transaction of sqlx, on the database that tasuki's tables are in.
pub struct AppTransaction<'a>(pub(super) OpenTx<'a>);

macro_rules! from_sqlx {
    ($($variant:ident $connection:ident $open:ident),+) => {$(
        impl<'a> From<&'a mut $connection> for AppTransaction<'a> {
            fn from(theirs: &'a mut $connection) -> Self {
                Self(OpenTx::$variant($open::Theirs(theirs)))
            }
        }

        impl<'a> From<&'a mut Transaction<'_, $variant>> for AppTransaction<'a> {
            fn from(theirs: &'a mut Transaction<'_, $variant>) -> Self {
                Self::from(&mut **theirs)
            }
        }
    )+};
}
from_sqlx!(Sqlite SqliteConnection Open, Postgres PgConnection Opened, MySql MySqlConnection Opened);

/// A transaction. Dropped without a commit, it never was.
pub(crate) struct Tx<'a> {
    pub(super) open: OpenTx<'a>,
    pub(super) now: Option<i64>,
    pub(super) line: Option<Arc<dyn Line>>,
    pub(super) fault: Fault,
}

pub(super) enum OpenTx<'a> {
    Sqlite(Open<'a>),
    Postgres(Opened<'a, Postgres>),
    MySql(Opened<'a, MySql>),
}

/// Whose transaction it is.
pub(super) enum Open<'a> {
    Ours(Transaction<'static, Sqlite>),
    Theirs(&'a mut SqliteConnection),
}

impl Deref for Open<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self {
            Self::Ours(ours) => ours,
            Self::Theirs(theirs) => theirs,
        }
    }
}

impl DerefMut for Open<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Ours(ours) => ours,
            Self::Theirs(theirs) => theirs,
        }
    }
}

impl Open<'_> {
    async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Ours(ours) => ours.commit().await,
            // Whoever began it ends it.
            Self::Theirs(_) => Ok(()),
        }
    }

    async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Ours(ours) => ours.rollback().await,
            Self::Theirs(_) => Ok(()),
        }
    }
}

impl OpenTx<'_> {
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
        self.open.dialect()
    }

    /// Rows of a statement.
    pub(crate) async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let now = self.now;
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &mut self.open {
            OpenTx::Sqlite(tx) => rows!(Sqlite, sqlite, &mut **tx, ready, params, now),
            OpenTx::Postgres(tx) => rows!(Postgres, postgres, tx, ready, params, now),
            OpenTx::MySql(tx) => rows!(MySql, mysql, tx, ready, params, now),
        })
    }

    /// Rows of a statement that gives them as one JSON list on SQLite, where each row goes from thread to thread
    /// by itself.
    pub(crate) async fn listed(
        &mut self,
        sql: &Sql,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let rows = self.rows(sql, params).await?;
        match (self.dialect(), rows.first()) {
            (Dialect::Sqlite, Some(row)) => Row::listed(&row.text("names")?, &row.text("listed")?),
            _ => Ok(rows),
        }
    }

    /// How many rows a statement matched.
    pub(crate) async fn execute(&mut self, sql: &Sql, params: Params<'_>) -> Result<u64, Error> {
        let now = self.now;
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &mut self.open {
            OpenTx::Sqlite(tx) => bind_sqlite(ready, in_order(ready, &ready.names, params, now))
                .execute(&mut **tx)
                .await?
                .rows_affected(),
            OpenTx::Postgres(tx) => {
                let query = bind_postgres(ready, in_order(ready, &ready.names, params, now));
                let told = query.execute(tx.ask()).await;
                tx.heard(told)?.rows_affected()
            }
            OpenTx::MySql(tx) => {
                let query = bind_mysql(ready, in_order(ready, &ready.names, params, now));
                let told = query.execute(tx.ask()).await;
                tx.heard(told)?.rows_affected()
            }
        })
    }

    /// Inserts rows with one statement and returns the id of the first. Not for PostgreSQL, which has
    /// arrays and `returning`.
    pub(crate) async fn insert_many(
        &mut self,
        sql: &Sql,
        rows: Vec<Params<'_>>,
    ) -> Result<i64, Error> {
        let (now, count) = (self.now, rows.len());
        let ready = sql.repeated(self.dialect(), now.is_some(), count);
        let names = ready.names.chunks((ready.names.len() / count.max(1)).max(1));
        let values =
            names.zip(rows).flat_map(|(names, row)| in_order(&ready, names, row, now)).collect();
        Ok(match &mut self.open {
            OpenTx::Sqlite(tx) => {
                let query = bind_sqlite(&ready, values);
                query.execute(&mut **tx).await?.last_insert_rowid() - count as i64 + 1
            }
            OpenTx::MySql(tx) => {
                let query = bind_mysql(&ready, values);
                let told = query.execute(tx.ask()).await;
                tx.heard(told)?.last_insert_id() as i64
            }
            OpenTx::Postgres(_) => return Err(Error::broken("PostgreSQL inserts from arrays")),
        })
    }

    /// Runs a script of several statements without parameters.
    pub(crate) async fn script(&mut self, text: &str) -> Result<(), Error> {
        let text = AssertSqlSafe(text.to_owned());
        match &mut self.open {
            OpenTx::Sqlite(tx) => tx.execute(sqlx::raw_sql(text)).await.map(drop)?,
            OpenTx::Postgres(tx) => {
                let told = tx.ask().execute(sqlx::raw_sql(text)).await;
                tx.heard(told)?;
            }
            OpenTx::MySql(tx) => {
                let told = tx.ask().execute(sqlx::raw_sql(text)).await;
                tx.heard(told)?;
            }
        }
        Ok(())
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self.open {
            OpenTx::Sqlite(tx) => tx.commit().await?,
            OpenTx::Postgres(tx) => tx.end("commit").await?,
            OpenTx::MySql(tx) => tx.end("commit").await?,
        }
        Db::answer(self.line.as_ref(), self.fault).await
    }

    /// Undoes everything. Waiting for it, rather than dropping, gives the connection back in order.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        match self.open {
            OpenTx::Sqlite(tx) => tx.rollback().await?,
            OpenTx::Postgres(tx) => tx.end("rollback").await?,
            OpenTx::MySql(tx) => tx.end("rollback").await?,
        }
        Db::answer(self.line.as_ref(), self.fault).await
    }
}
