//! The baseline of benchmarks: the same row writes by bare SQL, on tables of its own.
//!
//! A queue table separate from the run table, a guarded claim and a guarded finish for each row, one durable commit per
//! batch: what a hand-written loop does that stores every run and guards every transition. It bypasses the store, because
//! it is compared with the store; that is why there is SQL here. On SQLite it is one narrow table with an index on the
//! state, the same as in the program `limits`, whose results are the reference.

mod mysql;
mod postgres;
mod sqlite;

use std::time::{Duration, Instant};

use sqlx::mysql::MySqlPool;
use sqlx::postgres::PgPool;
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Executor as _};
use tasuki_core::JobId;
use tasuki_store::Error;

use super::fixture::sum_of_concurrent_tasks;

/// Arguments of each run.
pub(crate) const TASK_ARGS: &str = r#"{"i":1}"#;
/// Worker name in the baseline tables.
const WORKER_NAME: &str = "worker-1";
/// Number of rows per insert statement while the tables are filled (not measured).
const FILL_BATCH: u32 = 1_000;
/// Counts the jobs that were not created by a benchmark. This module reads only names and states of tasuki's own tables.
const COUNT_JOBS_NOT_FROM_BENCH: &str =
    "select count(*) from tasuki_job where name not like 'bench %'";

/// The baseline tables in a database. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Baseline {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

impl Baseline {
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        Ok(match url.split(':').next().unwrap_or_default() {
            "sqlite" => Self::Sqlite(sqlite::open(url).await?),
            "postgres" | "postgresql" => Self::Postgres(postgres::open(url, connections).await?),
            _ => Self::MySql(mysql::open(url, connections).await?),
        })
    }

    /// Creates the tables, empty.
    pub(crate) async fn create_tables(&self) -> Result<(), Error> {
        match self {
            Self::Postgres(pool) => postgres::script(pool, postgres::TABLES).await?,
            Self::MySql(pool) => mysql::script(pool, mysql::TABLES).await?,
            Self::Sqlite(pool) => sqlite::script(pool, sqlite::TABLES).await?,
        }
        Ok(())
    }

    /// Creates the tables with `runs` due runs and fresh statistics.
    async fn fill(&self, runs: u32) -> Result<(), Error> {
        self.create_tables().await?;
        let mut from = 0;
        while from < runs {
            let count = FILL_BATCH.min(runs - from);
            self.insert_many(from, count).await?;
            from += count;
        }
        match self {
            Self::Postgres(pool) => {
                postgres::script(pool, postgres::FILL_QUEUE).await?;
                postgres::script(pool, postgres::VACUUM).await?;
            }
            Self::MySql(pool) => mysql::script(pool, mysql::FILL_QUEUE).await?,
            // SQLite has one table and no statistics here.
            Self::Sqlite(_) => {}
        }
        Ok(())
    }

    /// Claims and finishes `runs` runs and returns the runs per second.
    pub(crate) async fn measure_drain_rate(
        &self,
        runs: u32,
        batch: u32,
        connections: u32,
        checkpoint: impl AsyncFn(),
    ) -> Result<f64, Error> {
        self.fill(runs).await?;
        checkpoint().await;
        let started = Instant::now();
        let task = || {
            let this = self.clone();
            async move {
                Ok(match this {
                    Self::Postgres(pool) => postgres::drain(&pool, batch).await?,
                    Self::MySql(pool) => mysql::drain(&pool, batch).await?,
                    Self::Sqlite(pool) => sqlite::drain(&pool, batch).await?,
                })
            }
        };
        let done = sum_of_concurrent_tasks(self.concurrent_writers(connections), task).await?;
        let elapsed = started.elapsed();
        match done == u64::from(runs) {
            true => Ok(per_second(done, elapsed)),
            false => {
                Err(Error::Broken(format!("{runs} baseline runs were created, but {done} drained")))
            }
        }
    }

    /// The number of the given connections that can write concurrently: one on SQLite.
    pub(crate) fn concurrent_writers(&self, connections: u32) -> u32 {
        match self {
            Self::Sqlite(_) => 1,
            Self::Postgres(_) | Self::MySql(_) => connections,
        }
    }

    /// Inserts rows one by one with one commit each, from `callers` concurrent callers, and returns the rows per second.
    pub(crate) async fn insert_singly(&self, rows: u32, callers: u32) -> Result<f64, Error> {
        self.create_tables().await?;
        let callers = self.concurrent_writers(callers);
        let share = rows.div_ceil(callers);
        let started = Instant::now();
        let mut next = 0;
        let task = || {
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
        let done = sum_of_concurrent_tasks(callers, task).await?;
        Ok(per_second(done, started.elapsed()))
    }

    /// Inserts rows in batches on one connection and returns the rows per second.
    pub(crate) async fn insert_bulk(&self, rows: u32, batch: u32) -> Result<f64, Error> {
        self.create_tables().await?;
        let started = Instant::now();
        let calls = rows.div_ceil(batch);
        for call in 0..calls {
            self.insert_many(call * batch, batch).await?;
        }
        Ok(per_second(u64::from(calls * batch), started.elapsed()))
    }

    async fn insert_many(&self, from: u32, rows: u32) -> Result<(), Error> {
        match self {
            Self::Postgres(pool) => postgres::insert_many(pool, from, rows).await?,
            Self::MySql(pool) => mysql::insert_many(pool, from, rows).await?,
            Self::Sqlite(pool) => sqlite::insert_many(pool, from, rows).await?,
        }
        Ok(())
    }

    /// The duration of two commits: inserting a row into the queue and deleting it.
    pub(crate) async fn two_commits(&self, run: i64) -> Result<Duration, Error> {
        Ok(match self {
            Self::Postgres(pool) => postgres::two_commits(pool, run).await?,
            Self::MySql(pool) => mysql::two_commits(pool, run).await?,
            Self::Sqlite(pool) => sqlite::two_commits(pool, run).await?,
        })
    }

    /// The number of jobs that were not created by a benchmark.
    pub(crate) async fn count_jobs_not_from_bench(&self) -> Result<i64, Error> {
        Ok(match self {
            Self::Postgres(pool) => {
                sqlx::query_scalar(COUNT_JOBS_NOT_FROM_BENCH).fetch_one(pool).await?
            }
            Self::MySql(pool) => {
                sqlx::query_scalar(COUNT_JOBS_NOT_FROM_BENCH).fetch_one(pool).await?
            }
            Self::Sqlite(pool) => {
                sqlx::query_scalar(COUNT_JOBS_NOT_FROM_BENCH).fetch_one(pool).await?
            }
        })
    }

    /// The number of runs of a job that have succeeded.
    pub(crate) async fn count_succeeded_job_runs(&self, job: JobId) -> Result<u64, Error> {
        let text = "select count(*) from tasuki_run where state = 'SUCCEEDED' and job_id = ";
        let text = AssertSqlSafe(format!("{text}{}", job.0));
        let count: i64 = match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
            Self::MySql(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
        };
        Ok(count as u64)
    }

    /// Creates or drops a database on the server; `verb` is `create` or `drop`.
    pub(crate) async fn create_or_drop_database(
        &self,
        verb: &str,
        name: &str,
    ) -> Result<(), Error> {
        let text = sqlx::raw_sql(AssertSqlSafe(format!("{verb} database {name}")));
        match self {
            Self::Postgres(pool) => pool.execute(text).await.map(drop)?,
            Self::MySql(pool) => pool.execute(text).await.map(drop)?,
            Self::Sqlite(_) => {}
        }
        Ok(())
    }

    /// Drops the tables.
    pub(crate) async fn drop_tables(&self) -> Result<(), Error> {
        let statement =
            "drop table if exists tasuki_bench_queue; drop table if exists tasuki_bench_run";
        match self {
            Self::Postgres(pool) => postgres::script(pool, statement).await?,
            Self::MySql(pool) => mysql::script(pool, statement).await?,
            Self::Sqlite(pool) => sqlite::script(pool, statement).await?,
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

/// Returns a rate per second.
pub(crate) fn per_second(done: u64, elapsed: Duration) -> f64 {
    done as f64 / elapsed.as_secs_f64().max(1e-6)
}
