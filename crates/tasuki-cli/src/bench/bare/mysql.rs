//! The bare loop on MariaDB and MySQL: no update tells what it moved, so a claim looks, locked, first.

use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::{ARGS, WORKER};

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

pub(super) const QUEUE: &str = "
insert into tasuki_bench_queue select scheduled_for, id from tasuki_bench_run;
analyze table tasuki_bench_run, tasuki_bench_queue";

const LOOK: &str = "
select q.scheduled_for, q.run_id
  from tasuki_bench_queue q
 where q.scheduled_for <= ?
 order by q.scheduled_for, q.run_id
 limit ? for update skip locked";

const INSERT: &str =
    "insert into tasuki_bench_run (job_definition_id, scheduled_for, args) values (?, ?, ?)";

/// Any instant will do: nothing here waits for one.
const NOW: i64 = 1 << 40;

pub(super) async fn open(url: &str, connections: u32) -> Result<MySqlPool, sqlx::Error> {
    let url = url.replacen("mariadb:", "mysql:", 1);
    let options = MySqlConnectOptions::from_str(&url)?.disable_statement_logging();
    MySqlPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .after_connect(|session, _| {
            Box::pin(async move {
                let calm = "set session transaction isolation level read committed";
                session.execute(calm).await?;
                // MariaDB turns long lists into joins, which lose the key; MySQL knows no such setting.
                let keys = "set session in_predicate_conversion_threshold = 0";
                let _ = session.execute(keys).await;
                Ok(())
            })
        })
        .connect_with(options)
        .await
}

pub(super) async fn script(pool: &MySqlPool, text: &'static str) -> Result<(), sqlx::Error> {
    pool.execute(sqlx::raw_sql(text)).await.map(drop)
}

/// Two that claim neighbouring rows may wait for each other; the one that gives way tries again.
pub(super) async fn drain(pool: &MySqlPool, batch: u32) -> Result<u64, sqlx::Error> {
    let mut session = pool.acquire().await?;
    let mut done = 0;
    loop {
        match claim(&mut session, batch).await {
            Ok(ids) if ids.is_empty() => return Ok(done),
            Ok(ids) => done += finish(&mut session, &ids).await?,
            Err(error) if gave_way(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn gave_way(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code == "40001")
}

async fn claim(session: &mut MySqlConnection, batch: u32) -> Result<Vec<i64>, sqlx::Error> {
    let mut tx = session.begin().await?;
    let look = sqlx::query(LOOK).bind(NOW).bind(batch);
    let found = look.fetch_all(&mut *tx).await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let count = found.len();
    let ids = found.iter().map(|row| row.try_get(1)).collect::<Result<Vec<i64>, _>>()?;
    let take = format!(
        "delete from tasuki_bench_queue where (scheduled_for, run_id) in ({})",
        list("(?, ?)", count)
    );
    let mut take = sqlx::query(AssertSqlSafe(take));
    for (row, id) in found.iter().zip(&ids) {
        take = take.bind(row.try_get::<i64, _>(0)?).bind(id);
    }
    take.execute(&mut *tx).await?;
    let these = list("?", count);
    let start = format!(
        "update tasuki_bench_run set state = 'RUNNING', assigned_worker_id = ?, assigned_at = ?, started_at = ?,
         leader_epoch = 1, attempt = attempt + 1, version = version + 1 where id in ({these}) and state = 'PENDING'"
    );
    let start = sqlx::query(AssertSqlSafe(start)).bind(WORKER).bind(NOW).bind(NOW);
    ids.iter().fold(start, Query::bind).execute(&mut *tx).await?;
    let given = format!("select id, version, args from tasuki_bench_run where id in ({these})");
    let given = sqlx::query(AssertSqlSafe(given));
    ids.iter().fold(given, Query::bind).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(ids)
}

async fn finish(session: &mut MySqlConnection, ids: &[i64]) -> Result<u64, sqlx::Error> {
    loop {
        let these = list("?", ids.len());
        let finish = format!(
            "update tasuki_bench_run set state = 'SUCCEEDED', finished_at = ?, exit_code = 0, version = version + 1
             where id in ({these}) and state = 'RUNNING' and assigned_worker_id = ? and leader_epoch = 1"
        );
        let finish = sqlx::query(AssertSqlSafe(finish)).bind(NOW);
        let finish = ids.iter().fold(finish, Query::bind).bind(WORKER);
        match finish.execute(&mut *session).await {
            Ok(finished) => return Ok(finished.rows_affected()),
            Err(error) if gave_way(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) async fn insert_singly(
    pool: &MySqlPool,
    from: u32,
    rows: u32,
) -> Result<(), sqlx::Error> {
    let mut session = pool.acquire().await?;
    for row in from..from + rows {
        sqlx::query(INSERT).bind(row).bind(row).bind(ARGS).execute(&mut *session).await?;
    }
    Ok(())
}

pub(super) async fn insert_many(pool: &MySqlPool, from: u32, rows: u32) -> Result<(), sqlx::Error> {
    let text = format!(
        "insert into tasuki_bench_run (job_definition_id, scheduled_for, args) values {}",
        list("(?, ?, ?)", rows as usize)
    );
    let mut insert = sqlx::query(AssertSqlSafe(text));
    for row in from..from + rows {
        insert = insert.bind(row % 1_000).bind(row).bind(ARGS);
    }
    insert.execute(pool).await.map(drop)
}

pub(super) async fn two_commits(pool: &MySqlPool, run: i64) -> Result<Duration, sqlx::Error> {
    let mut session = pool.acquire().await?;
    let put = "insert into tasuki_bench_queue values (?, ?)";
    let take = "delete from tasuki_bench_queue where scheduled_for = ? and run_id = ?";
    let began = Instant::now();
    sqlx::query(put).bind(run).bind(run).execute(&mut *session).await?;
    sqlx::query(take).bind(run).bind(run).execute(&mut *session).await?;
    Ok(began.elapsed())
}

/// The same so many times, with commas.
fn list(one: &str, times: usize) -> String {
    vec![one; times].join(", ")
}
