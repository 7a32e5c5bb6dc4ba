//! The three drivers behind one face. Everything above reads as if there were one database.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{
    AssertSqlSafe, Column as _, Executor as _, MySql, Postgres, Row as _, Sqlite, Transaction,
    TypeInfo as _,
};
use uuid::Uuid;

use crate::Error;
use crate::pools::Pools;
use crate::sql::{Dialect, Ready, Sql};

/// A value for a named parameter. `None` still has a type: PostgreSQL wants to know it.
#[derive(Debug, Clone)]
pub(crate) enum Param {
    Int(Option<i64>),
    Text(Option<String>),
    Uuid(Option<Uuid>),
    Bytes(Option<Vec<u8>>),
    Ints(Vec<i64>),
    OptInts(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
}

macro_rules! param_from {
    ($($type:ty => $variant:ident($value:ident) $to:expr;)+) => {
        $(impl From<$type> for Param {
            fn from($value: $type) -> Self {
                Self::$variant($to)
            }
        })+
    };
}
param_from! {
    i64 => Int(value) Some(value);
    Option<i64> => Int(value) value;
    u32 => Int(value) Some(i64::from(value));
    &str => Text(value) Some(value.to_owned());
    String => Text(value) Some(value);
    Option<String> => Text(value) value;
    Uuid => Uuid(value) Some(value);
    Option<Uuid> => Uuid(value) value;
    Vec<u8> => Bytes(value) Some(value);
    Option<Vec<u8>> => Bytes(value) value;
    Vec<i64> => Ints(value) value;
    Vec<Option<i64>> => OptInts(value) value;
    Vec<Option<String>> => Texts(value) value;
}

/// Parameters by name.
pub(crate) type Params<'a> = Vec<(&'a str, Param)>;

/// `params! { run_id: 7, token: token }`
macro_rules! params {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), crate::db::Param::from($value))),*]
    };
}
pub(crate) use params;

/// No instant: the clock is the database's own.
const OWN_CLOCK: i64 = i64::MIN;

/// A database, and the clock tests may have put into it.
#[derive(Clone)]
pub(crate) struct Db {
    pools: Pools,
    /// Microseconds since 1970, or [`OWN_CLOCK`].
    bound_now: Arc<AtomicI64>,
}

impl Db {
    /// Opens a database by its URL: `sqlite:`, `postgres:` or `mysql:`.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        let bound_now = Arc::new(AtomicI64::new(OWN_CLOCK));
        Ok(Self { pools: Pools::open(url, connections).await?, bound_now })
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.pools {
            Pools::Sqlite { .. } => Dialect::Sqlite,
            Pools::Postgres { .. } => Dialect::Postgres,
            Pools::MySql(_) => Dialect::MySql,
        }
    }

    /// From now on the clock stands at this instant; `None` gives the database its own clock back.
    pub(crate) fn bind_now(&self, micros: Option<i64>) {
        self.bound_now.store(micros.unwrap_or(OWN_CLOCK), Ordering::Relaxed);
    }

    fn now(&self) -> Option<i64> {
        Some(self.bound_now.load(Ordering::Relaxed)).filter(|&now| now != OWN_CLOCK)
    }

    /// Begins a transaction that may write: read committed, and the write lock at once on SQLite, so
    /// that a writer that had to wait checks its guard again instead of failing.
    pub(crate) async fn begin(&self) -> Result<Tx, Error> {
        let open = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                OpenTx::Sqlite(writer.begin_with("begin immediate").await?)
            }
            Pools::Postgres { writer, .. } => OpenTx::Postgres(writer.begin().await?),
            Pools::MySql(pool) => OpenTx::MySql(pool.begin().await?),
        };
        Ok(Tx { open, now: self.now() })
    }

    /// Begins a transaction that only reads and sees one moment throughout.
    pub(crate) async fn look(&self) -> Result<Tx, Error> {
        let open = match &self.pools {
            Pools::Sqlite { readers, .. } => OpenTx::Sqlite(readers.begin().await?),
            Pools::Postgres { readers, .. } => {
                let begin = "begin isolation level repeatable read, read only";
                OpenTx::Postgres(readers.begin_with(begin).await?)
            }
            Pools::MySql(pool) => {
                let begin = "set transaction isolation level repeatable read; start transaction with consistent snapshot, read only";
                OpenTx::MySql(pool.begin_with(begin).await?)
            }
        };
        Ok(Tx { open, now: self.now() })
    }

    /// Rows of one statement, outside any transaction. On SQLite only for reading.
    pub(crate) async fn rows(&self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let now = self.now();
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &self.pools {
            Pools::Sqlite { readers, .. } => rows!(Sqlite, sqlite, readers, ready, params, now),
            Pools::Postgres { readers, .. } => {
                rows!(Postgres, postgres, readers, ready, params, now)
            }
            Pools::MySql(pool) => rows!(MySql, mysql, pool, ready, params, now),
        })
    }

    /// A statement that writes and commits by itself, and its rows: one round trip.
    pub(crate) async fn write(&self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let now = self.now();
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &self.pools {
            Pools::Sqlite { writer, .. } => rows!(Sqlite, sqlite, writer, ready, params, now),
            Pools::Postgres { writer, .. } => rows!(Postgres, postgres, writer, ready, params, now),
            Pools::MySql(pool) => rows!(MySql, mysql, pool, ready, params, now),
        })
    }

    /// Runs a script of several statements without parameters, as migrations are.
    pub(crate) async fn script(&self, text: &str) -> Result<(), Error> {
        let text = AssertSqlSafe(text.to_owned());
        match &self.pools {
            Pools::Sqlite { writer, .. } => writer.execute(sqlx::raw_sql(text)).await.map(drop)?,
            Pools::Postgres { writer, .. } => {
                writer.execute(sqlx::raw_sql(text)).await.map(drop)?;
            }
            Pools::MySql(pool) => pool.execute(sqlx::raw_sql(text)).await.map(drop)?,
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        match &self.pools {
            Pools::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            Pools::MySql(pool) => pool.close().await,
        }
    }
}

/// A transaction. Dropped without a commit, it never was.
pub(crate) struct Tx {
    open: OpenTx,
    now: Option<i64>,
}

enum OpenTx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
    MySql(Transaction<'static, MySql>),
}

impl Tx {
    pub(crate) fn dialect(&self) -> Dialect {
        match self.open {
            OpenTx::Sqlite(_) => Dialect::Sqlite,
            OpenTx::Postgres(_) => Dialect::Postgres,
            OpenTx::MySql(_) => Dialect::MySql,
        }
    }

    /// Rows of a statement.
    pub(crate) async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let now = self.now;
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &mut self.open {
            OpenTx::Sqlite(tx) => rows!(Sqlite, sqlite, &mut **tx, ready, params, now),
            OpenTx::Postgres(tx) => rows!(Postgres, postgres, &mut **tx, ready, params, now),
            OpenTx::MySql(tx) => rows!(MySql, mysql, &mut **tx, ready, params, now),
        })
    }

    /// How many rows a statement matched.
    pub(crate) async fn execute(&mut self, sql: &Sql, params: Params<'_>) -> Result<u64, Error> {
        let now = self.now;
        let ready = sql.ready(self.dialect(), now.is_some());
        Ok(match &mut self.open {
            OpenTx::Sqlite(tx) => {
                bind_sqlite(ready, params, now).execute(&mut **tx).await?.rows_affected()
            }
            OpenTx::Postgres(tx) => {
                bind_postgres(ready, params, now).execute(&mut **tx).await?.rows_affected()
            }
            OpenTx::MySql(tx) => {
                bind_mysql(ready, params, now).execute(&mut **tx).await?.rows_affected()
            }
        })
    }

    /// Runs a script of several statements without parameters.
    pub(crate) async fn script(&mut self, text: &str) -> Result<(), Error> {
        let text = AssertSqlSafe(text.to_owned());
        match &mut self.open {
            OpenTx::Sqlite(tx) => tx.execute(sqlx::raw_sql(text)).await.map(drop)?,
            OpenTx::Postgres(tx) => tx.execute(sqlx::raw_sql(text)).await.map(drop)?,
            OpenTx::MySql(tx) => tx.execute(sqlx::raw_sql(text)).await.map(drop)?,
        }
        Ok(())
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self.open {
            OpenTx::Sqlite(tx) => tx.commit().await?,
            OpenTx::Postgres(tx) => tx.commit().await?,
            OpenTx::MySql(tx) => tx.commit().await?,
        }
        Ok(())
    }

    /// Undoes everything. Waiting for it, rather than dropping, gives the connection back in order.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        match self.open {
            OpenTx::Sqlite(tx) => tx.rollback().await?,
            OpenTx::Postgres(tx) => tx.rollback().await?,
            OpenTx::MySql(tx) => tx.rollback().await?,
        }
        Ok(())
    }
}

/// A row of any of the three.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
}

macro_rules! column {
    ($self:expr, $name:expr, $type:ty) => {
        match $self {
            Row::Sqlite(row) => row.try_get::<$type, _>($name),
            Row::Postgres(row) => row.try_get::<$type, _>($name),
            Row::MySql(row) => row.try_get::<$type, _>($name),
        }
    };
}

impl Row {
    pub(crate) fn opt_int(&self, name: &str) -> Result<Option<i64>, Error> {
        // PostgreSQL alone insists on the exact width.
        if let Self::Postgres(row) = self {
            return Ok(match row.try_column(name)?.type_info().name() {
                "INT4" => row.try_get::<Option<i32>, _>(name)?.map(i64::from),
                "INT2" => row.try_get::<Option<i16>, _>(name)?.map(i64::from),
                _ => row.try_get(name)?,
            });
        }
        Ok(column!(self, name, Option<i64>)?)
    }

    pub(crate) fn int(&self, name: &str) -> Result<i64, Error> {
        self.opt_int(name)?.ok_or_else(|| Error::broken(format!("{name} is null")))
    }

    pub(crate) fn opt_text(&self, name: &str) -> Result<Option<String>, Error> {
        Ok(column!(self, name, Option<String>)?)
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Error> {
        Ok(column!(self, name, String)?)
    }

    pub(crate) fn opt_uuid(&self, name: &str) -> Result<Option<Uuid>, Error> {
        Ok(column!(self, name, Option<Uuid>)?)
    }

    pub(crate) fn uuid(&self, name: &str) -> Result<Uuid, Error> {
        Ok(column!(self, name, Uuid)?)
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        Ok(column!(self, name, Vec<u8>)?)
    }
}

/// Fetches all rows with one driver and wraps them.
macro_rules! rows {
    ($variant:ident, sqlite, $on:expr, $ready:expr, $params:expr, $now:expr) => {
        wrap!($variant, bind_sqlite($ready, $params, $now).fetch_all($on).await?)
    };
    ($variant:ident, postgres, $on:expr, $ready:expr, $params:expr, $now:expr) => {
        wrap!($variant, bind_postgres($ready, $params, $now).fetch_all($on).await?)
    };
    ($variant:ident, mysql, $on:expr, $ready:expr, $params:expr, $now:expr) => {
        wrap!($variant, bind_mysql($ready, $params, $now).fetch_all($on).await?)
    };
}
use rows;

macro_rules! wrap {
    ($variant:ident, $rows:expr) => {
        $rows.into_iter().map(Row::$variant).collect::<Vec<Row>>()
    };
}
use wrap;

/// Binds parameters in the order a statement wants them.
macro_rules! bind {
    ($function:ident, $database:ty, $arguments:ty, $query:ident, $lists:expr) => {
        fn $function<'q>(
            ready: &'q Ready,
            mut params: Params<'_>,
            now: Option<i64>,
        ) -> sqlx::query::Query<'q, $database, $arguments> {
            let mut $query = sqlx::query::<$database>(AssertSqlSafe(ready.text.as_str()));
            for (at, name) in ready.names.iter().enumerate() {
                let given = params.iter().position(|(given, _)| given == name);
                let param = match (given, now) {
                    // Cloned only where it is wanted once more: a list may be long.
                    (Some(given), _) if ready.names[at + 1..].contains(name) => {
                        params[given].1.clone()
                    }
                    (Some(given), _) => params.swap_remove(given).1,
                    (None, Some(now)) if name == "now" => Param::Int(Some(now)),
                    _ => panic!("no value for :{name} in {}", ready.statement),
                };
                $query = match param {
                    Param::Int(value) => $query.bind(value),
                    Param::Text(value) => $query.bind(value),
                    Param::Uuid(value) => $query.bind(value),
                    Param::Bytes(value) => $query.bind(value),
                    list => $lists($query, list),
                };
            }
            $query
        }
    };
}

bind!(
    bind_postgres,
    Postgres,
    sqlx::postgres::PgArguments,
    query,
    |query: sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>, list| match list {
        Param::Ints(list) => query.bind(list),
        Param::OptInts(list) => query.bind(list),
        Param::Texts(list) => query.bind(list),
        _ => unreachable!("single values are bound above"),
    }
);
bind!(
    bind_sqlite,
    Sqlite,
    sqlx::sqlite::SqliteArguments,
    query,
    |query: sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>, list| query
        .bind(json_list(list))
);
bind!(
    bind_mysql,
    MySql,
    sqlx::mysql::MySqlArguments,
    query,
    |query: sqlx::query::Query<'q, MySql, sqlx::mysql::MySqlArguments>, list| query
        .bind(json_list(list))
);

/// Where there are no arrays, a list is a JSON text.
fn json_list(list: Param) -> String {
    match list {
        Param::Ints(list) => serde_json::json!(list).to_string(),
        Param::OptInts(list) => serde_json::json!(list).to_string(),
        Param::Texts(list) => serde_json::json!(list).to_string(),
        _ => unreachable!("only lists come here"),
    }
}
