//! The baseline on PostgreSQL: one statement claims a batch, one finishes it.

use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use super::{TASK_ARGS, WORKER_NAME};

/// The columns of a run as in a hand-written schema, without indexes on columns that change.
pub(super) const TABLES: &str = "
drop table if exists tasuki_bench_queue;
drop table if exists tasuki_bench_run;
create table tasuki_bench_run (
    id bigint generated always as identity primary key,
    job_definition_id bigint not null,
    scheduled_for timestamptz not null,
    assigned_at timestamptz,
    assigned_worker_id text,
    state text not null default 'PENDING' check (state in ('PENDING', 'ASSIGNED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELED', 'TIMED_OUT', 'ORPHANED', 'SKIPPED')),
    attempt int not null default 0,
    version int not null default 0,
    leader_epoch bigint,
    started_at timestamptz,
    finished_at timestamptz,
    exit_code int,
    error_summary text,
    log_ref text,
    idempotency_key text,
    continuation_state text not null default 'NONE',
    continuation_check_started_at timestamptz,
    continuation_check_deadline_at timestamptz,
    created_at timestamptz not null default now(),
    args jsonb not null default '{}'
) with (fillfactor = 50);
create unique index on tasuki_bench_run (job_definition_id, scheduled_for);
create index on tasuki_bench_run using brin (created_at);
create table tasuki_bench_queue (
    scheduled_for timestamptz not null,
    run_id bigint not null,
    primary key (scheduled_for, run_id)
)";

pub(super) const FILL_QUEUE: &str =
    "insert into tasuki_bench_queue select scheduled_for, id from tasuki_bench_run";

/// Must be executed outside a transaction.
pub(super) const VACUUM: &str = "vacuum analyze tasuki_bench_run, tasuki_bench_queue";

const CLAIM: &str = "
with q as (
    delete from tasuki_bench_queue
     where (scheduled_for, run_id) in (
           select scheduled_for, run_id from tasuki_bench_queue
            where scheduled_for <= now()
            order by scheduled_for, run_id limit $1 for update skip locked)
    returning run_id)
update tasuki_bench_run j
   set state = 'RUNNING', assigned_worker_id = $2, assigned_at = now(), started_at = now(),
       leader_epoch = 1, attempt = j.attempt + 1, version = j.version + 1
  from q
 where j.id = q.run_id and j.state = 'PENDING'
returning j.id, j.version, j.args::text";

const FINISH: &str = "
update tasuki_bench_run j
   set state = 'SUCCEEDED', finished_at = now(), exit_code = 0, version = j.version + 1
  from unnest($1::bigint[]) u (id)
 where j.id = u.id and j.state || '' = 'RUNNING' and j.assigned_worker_id = $2 and j.leader_epoch = 1";

/// Each row is scheduled an hour ago, at its own instant.
const INSERT: &str = "
insert into tasuki_bench_run (job_definition_id, scheduled_for, args)
values ($1, now() - interval '1 hour' + $1 * interval '1 us', $2::jsonb)";

const INSERT_MANY: &str = "
insert into tasuki_bench_run (job_definition_id, scheduled_for, args)
select d % 1000, now() - interval '1 hour' + d * interval '1 us', $2::jsonb from unnest($1::bigint[]) u (d)";

pub(super) async fn open(url: &str, connections: u32) -> Result<PgPool, sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?.disable_statement_logging();
    PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect_with(options)
        .await
}

pub(super) async fn script(pool: &PgPool, text: &'static str) -> Result<(), sqlx::Error> {
    pool.execute(sqlx::raw_sql(text)).await.map(drop)
}

pub(super) async fn drain(pool: &PgPool, batch: u32) -> Result<u64, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut done = 0;
    loop {
        let claim = sqlx::query(CLAIM).bind(i64::from(batch)).bind(WORKER_NAME);
        let claimed = claim.fetch_all(&mut *connection).await?;
        if claimed.is_empty() {
            return Ok(done);
        }
        let ids = claimed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        let finish = sqlx::query(FINISH).bind(ids).bind(WORKER_NAME);
        done += finish.execute(&mut *connection).await?.rows_affected();
    }
}

pub(super) async fn insert_singly(pool: &PgPool, from: u32, rows: u32) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    for row in from..from + rows {
        sqlx::query(INSERT).bind(i64::from(row)).bind(TASK_ARGS).execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn insert_many(pool: &PgPool, from: u32, rows: u32) -> Result<(), sqlx::Error> {
    let rows: Vec<i64> = (from..from + rows).map(i64::from).collect();
    sqlx::query(INSERT_MANY).bind(rows).bind(TASK_ARGS).execute(pool).await.map(drop)
}

pub(super) async fn two_commits(pool: &PgPool, run: i64) -> Result<Duration, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let insert = "insert into tasuki_bench_queue values (now(), $1)";
    let delete = "delete from tasuki_bench_queue where scheduled_for <= now() and run_id = $1 returning run_id";
    let started = Instant::now();
    sqlx::query(insert).bind(run).execute(&mut *connection).await?;
    sqlx::query(delete).bind(run).fetch_one(&mut *connection).await?;
    Ok(started.elapsed())
}
