//! The three drivers behind one face. Everything above reads as if there were one database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::{AssertSqlSafe, Executor as _};
use tasuki_core::Invalid;

use crate::Error;
pub(crate) use crate::db::bind::{Params, params};
use crate::db::bind::{bind_mysql, bind_postgres, bind_sqlite, in_order};
use crate::db::errands::{Asked, Going};
use crate::db::connect::{LOOK, Pools};
pub(crate) use crate::db::row::Row;
use crate::db::session::{Opened, Session};
use crate::db::sql::{Dialect, Sql};

pub(crate) mod bind;
pub(crate) mod errands;
pub(crate) mod connection_cache;
pub(crate) mod migrate;
pub(crate) mod connect;
pub(crate) mod row;
pub(crate) mod session;
pub(crate) mod sql;
mod tx;

pub use tx::AppTransaction;
pub(crate) use tx::Tx;
use tx::{Open, OpenTx};

/// No instant: the clock is the database's own.
const OWN_CLOCK: i64 = i64::MIN;

/// What becomes of one exchange with the database, where tests have a say in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing befalls it.
    None,
    /// It does not reach the database.
    Unsent,
    /// It is done, and the answer is lost.
    Unanswered,
}

/// Something on a line that takes its time.
pub type Pause<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The line to a database, as tests make it: slow, or lossy. Nothing of the database is held while an
/// exchange is under way on it.
pub trait Line: Send + Sync {
    /// Before an exchange: what becomes of it.
    fn send(&self) -> Pause<'_, Fault>;

    /// After it: the answer is under way.
    fn answer(&self) -> Pause<'_, ()>;
}

/// Which sessions with SQLite a statement goes through: the one that writes is apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// A database, and the clock tests may have put into it.
#[derive(Clone)]
pub(crate) struct Db {
    pools: Pools,
    /// Microseconds since 1970, or [`OWN_CLOCK`].
    bound_now: Arc<AtomicI64>,
    line: Option<Arc<dyn Line>>,
}

impl Db {
    /// Opens a database by its URL: `sqlite:`, `postgres:` or `mysql:`.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        let bound_now = Arc::new(AtomicI64::new(OWN_CLOCK));
        Ok(Self { pools: Pools::open(url, connections).await?, bound_now, line: None })
    }

    /// The same database on another line.
    pub(crate) fn with_line(&self, line: Arc<dyn Line>) -> Self {
        Self { line: Some(line), ..self.clone() }
    }

    async fn send(&self) -> Fault {
        match &self.line {
            Some(line) => line.send().await,
            None => Fault::None,
        }
    }

    async fn answer(line: Option<&Arc<dyn Line>>, fault: Fault) -> Result<(), Error> {
        if let Some(line) = line {
            line.answer().await;
        }
        match fault {
            Fault::Unsent | Fault::Unanswered => Err(Error::timed_out()),
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

    /// From now on the clock stands at this instant; `None` gives the database its own clock back.
    pub(crate) fn bind_now(&self, micros: Option<i64>) {
        self.bound_now.store(micros.unwrap_or(OWN_CLOCK), Ordering::Relaxed);
    }

    fn now(&self) -> Option<i64> {
        Some(self.bound_now.load(Ordering::Relaxed)).filter(|&now| now != OWN_CLOCK)
    }

    /// Begins a transaction that may write: read committed, and the write lock at once on SQLite, so
    /// that a writer that had to wait checks its guard again instead of failing.
    pub(crate) async fn begin(&self) -> Result<Tx<'static>, Error> {
        // One exchange, as far as tests are concerned: decided now, and its answer is lost at the end.
        let fault = self.send().await;
        if fault == Fault::Unsent {
            return Err(Error::timed_out());
        }
        let open = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                OpenTx::Sqlite(Open::Ours(writer.begin_with("begin immediate").await?))
            }
            Pools::Postgres(hand) => {
                OpenTx::Postgres(Opened::Ours(Session::begin(hand, "begin").await?))
            }
            Pools::MySql(hand) => OpenTx::MySql(Opened::Ours(Session::begin(hand, "begin").await?)),
        };
        Ok(Tx { open, now: self.now(), line: self.line.clone(), fault })
    }

    /// Begins a transaction that only reads and sees one moment throughout.
    pub(crate) async fn look(&self) -> Result<Tx<'static>, Error> {
        let open = match &self.pools {
            Pools::Sqlite { readers, .. } => OpenTx::Sqlite(Open::Ours(readers.begin().await?)),
            Pools::Postgres(hand) => {
                OpenTx::Postgres(Opened::Ours(Session::begin(hand, LOOK).await?))
            }
            Pools::MySql(hand) => {
                let begin = "set transaction isolation level repeatable read; start transaction with consistent snapshot, read only";
                OpenTx::MySql(Opened::Ours(Session::begin(hand, begin).await?))
            }
        };
        Ok(Tx { open, now: self.now(), line: None, fault: Fault::None })
    }

    /// What is done in a transaction of the application. Refused where that is on another kind of database.
    pub(crate) fn join<'a>(&self, theirs: AppTransaction<'a>) -> Result<Tx<'a>, Error> {
        let (found, ours) = (theirs.0.dialect(), self.dialect());
        if found != ours {
            let found = format!("one on {found:?}");
            return Err(Invalid::described("transaction", found, format!("one on {ours:?}")).into());
        }
        Ok(Tx { open: theirs.0, now: self.now(), line: None, fault: Fault::None })
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Rows of one statement, outside any transaction. On SQLite only for reading.
    pub(crate) fn rows(
        &self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> {
        self.say(sql, params, Way::Read)
    }

    /// A statement that writes and commits by itself, and its rows: one round trip.
    pub(crate) fn write(
        &self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> {
        self.say(sql, params, Way::Write)
    }

    async fn say(&self, sql: &Sql, params: Params<'_>, way: Way) -> Result<Vec<Row>, Error> {
        let fault = self.send().await;
        if fault == Fault::Unsent {
            return Err(Error::timed_out());
        }
        let now = self.now();
        let ready = sql.ready(self.dialect(), now.is_some());
        let rows = match &self.pools {
            Pools::Sqlite { readers, writer, .. } => {
                let pool = if way == Way::Read { readers } else { writer };
                rows!(Sqlite, sqlite, pool, ready, params, now)
            }
            Pools::Postgres(hand) => {
                let mut session = Session::to_say(ready, hand).await?;
                rows!(Postgres, postgres, session, ready, params, now)
            }
            Pools::MySql(hand) => {
                let mut session = Session::to_say(ready, hand).await?;
                rows!(MySql, mysql, session, ready, params, now)
            }
        };
        Self::answer(self.line.as_ref(), fault).await?;
        Ok(rows)
    }

    /// A statement that writes and commits by itself, and how many rows it matched: one round trip.
    pub(crate) async fn change(&self, sql: &Sql, params: Params<'_>) -> Result<u64, Error> {
        let fault = self.send().await;
        if fault == Fault::Unsent {
            return Err(Error::timed_out());
        }
        let now = self.now();
        let ready = sql.ready(self.dialect(), now.is_some());
        let values = in_order(ready, &ready.names, params, now);
        let matched = match &self.pools {
            Pools::Sqlite { writer, .. } => {
                bind_sqlite(ready, values).execute(writer).await?.rows_affected()
            }
            Pools::Postgres(hand) => {
                let mut session = Session::to_say(ready, hand).await?;
                let told = bind_postgres(ready, values).execute(session.ask()).await;
                session.heard(told)?.rows_affected()
            }
            Pools::MySql(hand) => {
                let mut session = Session::to_say(ready, hand).await?;
                let told = bind_mysql(ready, values).execute(session.ask()).await;
                session.heard(told)?.rows_affected()
            }
        };
        Self::answer(self.line.as_ref(), fault).await?;
        Ok(matched)
    }

    /// Whole transactions that need no answer on their way, and the rows of each. Only on SQLite.
    pub(crate) async fn errands(
        &self,
        all: Vec<Asked<'_>>,
    ) -> Result<Vec<Result<Vec<Row>, Error>>, Error> {
        let Pools::Sqlite { errands, .. } = &self.pools else {
            return Err(Error::broken("only SQLite is sent on errands"));
        };
        let fault = self.send().await;
        if fault == Fault::Unsent {
            return Err(Error::timed_out());
        }
        let now = self.now();
        let going = |Asked { errand, runs, params }: Asked<'_>| {
            let script = errand.script.ready(Dialect::Sqlite, now.is_some());
            let values = in_order(script, &script.names, params, now);
            Going { script, rows: errand.rows, runs, values }
        };
        let told = errands.run(all.into_iter().map(going).collect()).await;
        Self::answer(self.line.as_ref(), fault).await?;
        Ok(told)
    }

    /// Runs a script of several statements without parameters, as migrations are.
    pub(crate) async fn script(&self, text: &str) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite { writer, .. } => {
                let text = AssertSqlSafe(text.to_owned());
                writer.execute(sqlx::raw_sql(text)).await.map(drop)?;
            }
            Pools::Postgres(hand) => Session::take(hand).await?.say(text).await?,
            Pools::MySql(hand) => Session::take(hand).await?.say(text).await?,
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        match &self.pools {
            Pools::Sqlite { writer, readers, .. } => {
                readers.close().await;
                writer.close().await;
            }
            Pools::Postgres(hand) => hand.close().await,
            Pools::MySql(hand) => hand.close().await,
        }
    }
}

/// Fetches all rows with one driver and wraps them.
macro_rules! rows {
    ($variant:ident, sqlite, $on:expr, $ready:expr, $params:expr, $now:expr) => {
        wrap!(
            $variant,
            bind_sqlite($ready, in_order($ready, &$ready.names, $params, $now))
                .fetch_all($on)
                .await?
        )
    };
    ($variant:ident, postgres, $on:expr, $ready:expr, $params:expr, $now:expr) => {{
        let query = bind_postgres($ready, in_order($ready, &$ready.names, $params, $now));
        let told = query.fetch_all($on.ask()).await;
        wrap!($variant, $on.heard(told)?)
    }};
    ($variant:ident, mysql, $on:expr, $ready:expr, $params:expr, $now:expr) => {{
        let query = bind_mysql($ready, in_order($ready, &$ready.names, $params, $now));
        let told = query.fetch_all($on.ask()).await;
        wrap!($variant, $on.heard(told)?)
    }};
}
use rows;

macro_rules! wrap {
    ($variant:ident, $rows:expr) => {
        $rows.into_iter().map(Row::$variant).collect::<Vec<Row>>()
    };
}
use wrap;
