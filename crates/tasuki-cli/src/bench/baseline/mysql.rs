//! The baseline on MariaDB and MySQL. An update does not return the changed rows there, so a claim first selects them
//! with a lock.

use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::{TASK_ARGS, WORKER_NAME};

pub(super) const TABLES: &str = "
drop table if exists tasuki_bench_queue;
drop table if exists tasuki_bench_run;
create table tasuki_bench_run (
    id bigint not null auto_increment primary key,
    job_definition_id bigint not null,
    scheduled_for bigint not null,
    assigned_at bigint,
    assigned_worker_id varchar(64),
    state varchar(16) not null default 'PENDING',
    attempt int not null default 0,
    version int not null default 0,
    leader_epoch bigint,
    started_at bigint,
    finished_at bigint,
    exit_code int,
    error_summary text,
    log_ref text,
    idempotency_key varchar(191),
    continuation_state varchar(16) not null default 'NONE',
    created_at datetime not null default current_timestamp,
    args text not null,
    unique (job_definition_id, scheduled_for)
);
create table tasuki_bench_queue (
    scheduled_for bigint not null,
    run_id bigint not null,
    primary key (scheduled_for, run_id)
)";

pub(super) const FILL_QUEUE: &str = "
insert into tasuki_bench_queue select scheduled_for, id from tasuki_bench_run;
analyze table tasuki_bench_run, tasuki_bench_queue";

const SELECT_DUE: &str = "
select q.scheduled_for, q.run_id
  from tasuki_bench_queue q
 where q.scheduled_for <= ?
 order by q.scheduled_for, q.run_id
 limit ? for update skip locked";

const INSERT: &str =
    "insert into tasuki_bench_run (job_definition_id, scheduled_for, args) values (?, ?, ?)";

/// A fixed instant: nothing here waits for a time.
const NOW: i64 = 1 << 40;

pub(super) async fn open(url: &str, connections: u32) -> Result<MySqlPool, sqlx::Error> {
    let url = url.replacen("mariadb:", "mysql:", 1);
    let options = MySqlConnectOptions::from_str(&url)?.disable_statement_logging();
    MySqlPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let isolation = "set session transaction isolation level read committed";
                connection.execute(isolation).await?;
                // MariaDB converts long lists into joins, which do not use the key; MySQL has no such setting.
                let threshold = "set session in_predicate_conversion_threshold = 0";
                let _ = connection.execute(threshold).await;
                Ok(())
            })
        })
        .connect_with(options)
        .await
}

pub(super) async fn script(pool: &MySqlPool, text: &'static str) -> Result<(), sqlx::Error> {
    pool.execute(sqlx::raw_sql(text)).await.map(drop)
}

/// Claims and finishes batches until the queue is empty. Concurrent claims of neighbouring rows may deadlock; the victim
/// retries.
pub(super) async fn drain(pool: &MySqlPool, batch: u32) -> Result<u64, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut done = 0;
    loop {
        match claim(&mut connection, batch).await {
            Ok(ids) if ids.is_empty() => return Ok(done),
            Ok(ids) => done += finish(&mut connection, &ids).await?,
            Err(error) if is_deadlock(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_deadlock(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code == "40001")
}

async fn claim(connection: &mut MySqlConnection, batch: u32) -> Result<Vec<i64>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    let select = sqlx::query(SELECT_DUE).bind(NOW).bind(batch);
    let found = select.fetch_all(&mut *tx).await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let count = found.len();
    let ids = found.iter().map(|row| row.try_get(1)).collect::<Result<Vec<i64>, _>>()?;
    let delete = format!(
        "delete from tasuki_bench_queue where (scheduled_for, run_id) in ({})",
        repeat_with_commas("(?, ?)", count)
    );
    let mut delete = sqlx::query(AssertSqlSafe(delete));
    for (row, id) in found.iter().zip(&ids) {
        delete = delete.bind(row.try_get::<i64, _>(0)?).bind(id);
    }
    delete.execute(&mut *tx).await?;
    let placeholders = repeat_with_commas("?", count);
    let start = format!(
        "update tasuki_bench_run set state = 'RUNNING', assigned_worker_id = ?, assigned_at = ?, started_at = ?,
         leader_epoch = 1, attempt = attempt + 1, version = version + 1 where id in ({placeholders}) and state = 'PENDING'"
    );
    let start = sqlx::query(AssertSqlSafe(start)).bind(WORKER_NAME).bind(NOW).bind(NOW);
    ids.iter().fold(start, Query::bind).execute(&mut *tx).await?;
    let read_back =
        format!("select id, version, args from tasuki_bench_run where id in ({placeholders})");
    let read_back = sqlx::query(AssertSqlSafe(read_back));
    ids.iter().fold(read_back, Query::bind).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(ids)
}

async fn finish(connection: &mut MySqlConnection, ids: &[i64]) -> Result<u64, sqlx::Error> {
    loop {
        let placeholders = repeat_with_commas("?", ids.len());
        let finish = format!(
            "update tasuki_bench_run set state = 'SUCCEEDED', finished_at = ?, exit_code = 0, version = version + 1
             where id in ({placeholders}) and state = 'RUNNING' and assigned_worker_id = ? and leader_epoch = 1"
        );
        let finish = sqlx::query(AssertSqlSafe(finish)).bind(NOW);
        let finish = ids.iter().fold(finish, Query::bind).bind(WORKER_NAME);
        match finish.execute(&mut *connection).await {
            Ok(finished) => return Ok(finished.rows_affected()),
            Err(error) if is_deadlock(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) async fn insert_singly(
    pool: &MySqlPool,
    from: u32,
    rows: u32,
) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    for row in from..from + rows {
        sqlx::query(INSERT).bind(row).bind(row).bind(TASK_ARGS).execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn insert_many(pool: &MySqlPool, from: u32, rows: u32) -> Result<(), sqlx::Error> {
    let text = format!(
        "insert into tasuki_bench_run (job_definition_id, scheduled_for, args) values {}",
        repeat_with_commas("(?, ?, ?)", rows as usize)
    );
    let mut insert = sqlx::query(AssertSqlSafe(text));
    for row in from..from + rows {
        insert = insert.bind(row % 1_000).bind(row).bind(TASK_ARGS);
    }
    insert.execute(pool).await.map(drop)
}

pub(super) async fn two_commits(pool: &MySqlPool, run: i64) -> Result<Duration, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let insert = "insert into tasuki_bench_queue values (?, ?)";
    let delete = "delete from tasuki_bench_queue where scheduled_for = ? and run_id = ?";
    let started = Instant::now();
    sqlx::query(insert).bind(run).bind(run).execute(&mut *connection).await?;
    sqlx::query(delete).bind(run).bind(run).execute(&mut *connection).await?;
    Ok(started.elapsed())
}

/// Repeats `item`, separated by commas.
fn repeat_with_commas(item: &str, times: usize) -> String {
    vec![item; times].join(", ")
}
