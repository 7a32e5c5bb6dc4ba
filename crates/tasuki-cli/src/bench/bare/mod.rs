//! The limits that figures stand beside: the same row writes by bare SQL, on tables of its own.
//!
//! A queue split from the history, a guarded claim and a guarded finish for each row, each batch a durable
//! commit: what a hand-written loop would do that keeps every run and guards every move. Nothing of it
//! goes through the store, which it is compared with; that is why there is SQL here. On SQLite it is one narrow table
//! with its state in an index, as the program `limits` has it, whose figures count as the limit.

mod mysql;
mod postgres;
mod sqlite;

use std::time::{Duration, Instant};

use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Executor as _};
use tasuki_core::JobId;
use tasuki_store::{Dialect, Error};

use super::place::in_parallel;

/// What each run is given.
pub(crate) const ARGS: &str = r#"{"i":1}"#;
/// Who takes the bare runs.
const WORKER: &str = "worker-1";
/// How many bare rows travel in one insert where nothing else is measured.
const FILL: u32 = 1_000;
/// Jobs that are not of a bench. The reader of our own tables here sees only names and states.
const OTHERS: &str = "select count(*) from tasuki_job where name not like 'bench %'";

/// Bare tables in a database. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Bare {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

impl Bare {
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        Ok(match url.split(':').next().unwrap_or_default() {
            "sqlite" => Self::Sqlite(sqlite::open(url).await?),
            "postgres" | "postgresql" => Self::Postgres(postgres::open(url, connections).await?),
            _ => Self::MySql(mysql::open(url, connections).await?),
        })
    }

    fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// The tables, empty.
    pub(crate) async fn make(&self) -> Result<(), Error> {
        match self {
            Self::Postgres(pool) => postgres::script(pool, postgres::TABLES).await?,
            Self::MySql(pool) => mysql::script(pool, mysql::TABLES).await?,
            Self::Sqlite(pool) => sqlite::script(pool, sqlite::TABLES).await?,
        }
        Ok(())
    }

    /// The tables with so many runs that are due, their statistics fresh.
    async fn fill(&self, runs: u32) -> Result<(), Error> {
        self.make().await?;
        let mut from = 0;
        while from < runs {
            let some = FILL.min(runs - from);
            self.insert_many(from, some).await?;
            from += some;
        }
        match self {
            Self::Postgres(pool) => {
                postgres::script(pool, postgres::QUEUE).await?;
                postgres::script(pool, postgres::TIDY).await?;
            }
            Self::MySql(pool) => mysql::script(pool, mysql::QUEUE).await?,
            // One table, and no statistics.
            Self::Sqlite(_) => {}
        }
        Ok(())
    }

    /// How many runs a second are claimed and finished, of so many.
    pub(crate) async fn drain(
        &self,
        runs: u32,
        batch: u32,
        connections: u32,
        checkpoint: impl AsyncFn(),
    ) -> Result<f64, Error> {
        self.fill(runs).await?;
        checkpoint().await;
        let began = Instant::now();
        let one = || {
            let this = self.clone();
            async move {
                Ok(match this {
                    Self::Postgres(pool) => postgres::drain(&pool, batch).await?,
                    Self::MySql(pool) => mysql::drain(&pool, batch).await?,
                    Self::Sqlite(pool) => sqlite::drain(&pool, batch).await?,
                })
            }
        };
        let done = in_parallel(self.most(connections), one).await?;
        let took = began.elapsed();
        match done == u64::from(runs) {
            true => Ok(rate(done, took)),
            false => Err(Error::Broken(format!("{runs} bare runs were made, {done} drained"))),
        }
    }

    /// How many of so many connections can write at once.
    pub(crate) fn most(&self, connections: u32) -> u32 {
        match self.dialect() {
            Dialect::Sqlite => 1,
            Dialect::Postgres | Dialect::MySql => connections,
        }
    }

    /// How many rows a second are inserted one by one, each its own commit, by so many callers.
    pub(crate) async fn insert_singly(&self, rows: u32, callers: u32) -> Result<f64, Error> {
        self.make().await?;
        let callers = self.most(callers);
        let share = rows.div_ceil(callers);
        let began = Instant::now();
        let mut next = 0;
        let one = || {
            let (this, from) = (self.clone(), next);
            next += share;
            async move {
                match this {
                    Self::Postgres(pool) => postgres::insert_singly(&pool, from, share).await?,
                    Self::MySql(pool) => mysql::insert_singly(&pool, from, share).await?,
                    Self::Sqlite(pool) => sqlite::insert_singly(&pool, from, share).await?,
                }
                Ok(u64::from(share))
            }
        };
        let done = in_parallel(callers, one).await?;
        Ok(rate(done, began.elapsed()))
    }

    /// How many rows a second are inserted so many at a time, on one connection.
    pub(crate) async fn insert_bulk(&self, rows: u32, batch: u32) -> Result<f64, Error> {
        self.make().await?;
        let began = Instant::now();
        let calls = rows.div_ceil(batch);
        for call in 0..calls {
            self.insert_many(call * batch, batch).await?;
        }
        Ok(rate(u64::from(calls * batch), began.elapsed()))
    }

    async fn insert_many(&self, from: u32, rows: u32) -> Result<(), Error> {
        match self {
            Self::Postgres(pool) => postgres::insert_many(pool, from, rows).await?,
            Self::MySql(pool) => mysql::insert_many(pool, from, rows).await?,
            Self::Sqlite(pool) => sqlite::insert_many(pool, from, rows).await?,
        }
        Ok(())
    }

    /// How long two commits take: a row put into the queue, and taken out of it.
    pub(crate) async fn two_commits(&self, run: i64) -> Result<Duration, Error> {
        Ok(match self {
            Self::Postgres(pool) => postgres::two_commits(pool, run).await?,
            Self::MySql(pool) => mysql::two_commits(pool, run).await?,
            Self::Sqlite(pool) => sqlite::two_commits(pool, run).await?,
        })
    }

    /// How many jobs there are that no bench has made.
    pub(crate) async fn others(&self) -> Result<i64, Error> {
        Ok(match self {
            Self::Postgres(pool) => sqlx::query_scalar(OTHERS).fetch_one(pool).await?,
            Self::MySql(pool) => sqlx::query_scalar(OTHERS).fetch_one(pool).await?,
            Self::Sqlite(pool) => sqlx::query_scalar(OTHERS).fetch_one(pool).await?,
        })
    }

    /// How many runs of a job have succeeded.
    pub(crate) async fn succeeded(&self, job: JobId) -> Result<u64, Error> {
        let text = "select count(*) from tasuki_run where state = 'SUCCEEDED' and job_id = ";
        let text = AssertSqlSafe(format!("{text}{}", job.0));
        let count: i64 = match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
            Self::MySql(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
        };
        Ok(count as u64)
    }

    /// Makes (`create`) or drops a database on its server.
    pub(crate) async fn database(&self, verb: &str, name: &str) -> Result<(), Error> {
        let text = sqlx::raw_sql(AssertSqlSafe(format!("{verb} database {name}")));
        match self {
            Self::Postgres(pool) => pool.execute(text).await.map(drop)?,
            Self::MySql(pool) => pool.execute(text).await.map(drop)?,
            Self::Sqlite(_) => {}
        }
        Ok(())
    }

    /// The tables are gone.
    pub(crate) async fn drop_tables(&self) -> Result<(), Error> {
        let gone = "drop table if exists tasuki_bench_queue; drop table if exists tasuki_bench_run";
        match self {
            Self::Postgres(pool) => postgres::script(pool, gone).await?,
            Self::MySql(pool) => mysql::script(pool, gone).await?,
            Self::Sqlite(pool) => sqlite::script(pool, gone).await?,
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::MySql(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}

/// So many a second.
pub(crate) fn rate(done: u64, took: Duration) -> f64 {
    done as f64 / took.as_secs_f64().max(1e-6)
}
