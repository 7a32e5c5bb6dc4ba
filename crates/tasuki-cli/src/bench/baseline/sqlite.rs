//! The baseline on SQLite: one writer, write-ahead log, every commit synced, as in the store.

use std::fmt::Write as _;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::{TASK_ARGS, WORKER_NAME};

/// The same table and indexes as in the program `limits`, whose results are the reference: one table, with an index on
/// state and time. The queue table is for [`two_commits`] only.
pub(super) const TABLES: &str = "
drop table if exists tasuki_bench_queue;
drop table if exists tasuki_bench_run;
create table tasuki_bench_run (
    id integer primary key,
    job_definition_id int,
    scheduled_for int,
    state text,
    worker text,
    version int default 0,
    epoch int,
    started int,
    finished int,
    args text,
    created_at int
);
create index tasuki_bench_run_state on tasuki_bench_run (state, scheduled_for);
create unique index tasuki_bench_run_plan on tasuki_bench_run (job_definition_id, scheduled_for);
create table tasuki_bench_queue (
    scheduled_for integer not null,
    run_id integer not null,
    primary key (scheduled_for, run_id)
) without rowid";

const CLAIM: &str = "
update tasuki_bench_run
   set state = 'RUNNING', worker = ?3, version = version + 1, epoch = 1, started = 1
 where id in (
       select id from tasuki_bench_run
        where state = 'PENDING' and scheduled_for <= ?1
        order by scheduled_for limit ?2)
   and +state = 'PENDING'
returning id";

/// One statement for a batch, where `limits` has one for each row: `limits` calls SQLite in its own thread, while each
/// statement here is sent to another thread and back, and that would be measured instead.
const FINISH: &str = "
update tasuki_bench_run
   set state = 'SUCCEEDED', version = version + 1, finished = 2
 where id in (select value from json_each(?1)) and +state = 'RUNNING' and worker = ?2 and epoch = 1";

const INSERT: &str = "
insert into tasuki_bench_run (job_definition_id, scheduled_for, state, args, created_at)
values (?1, ?1, 'PENDING', ?2, 0)";

const INSERT_MANY: &str = "
insert into tasuki_bench_run (job_definition_id, scheduled_for, state, args, created_at)
select value % 1000, value, 'PENDING', ?2, 0 from json_each(?1)";

/// A fixed instant: nothing here waits for a time.
const NOW: i64 = 1 << 40;

/// Opens one connection, because SQLite has one writer at a time.
pub(super) async fn open(url: &str) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30))
        .disable_statement_logging();
    SqlitePoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect_with(options)
        .await
}

pub(super) async fn script(pool: &SqlitePool, text: &'static str) -> Result<(), sqlx::Error> {
    pool.execute(sqlx::raw_sql(text)).await.map(drop)
}

/// Claims each batch in one transaction and finishes it in another.
pub(super) async fn drain(pool: &SqlitePool, batch: u32) -> Result<u64, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut done = 0;
    loop {
        let mut tx = connection.begin().await?;
        let claim = sqlx::query(CLAIM).bind(NOW).bind(batch).bind(WORKER_NAME);
        let claimed = claim.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        if claimed.is_empty() {
            return Ok(done);
        }
        let ids = claimed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        let mut tx = connection.begin().await?;
        let finish = sqlx::query(FINISH).bind(json_list(ids)).bind(WORKER_NAME);
        done += finish.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
    }
}

pub(super) async fn insert_singly(
    pool: &SqlitePool,
    from: u32,
    rows: u32,
) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    for row in from..from + rows {
        sqlx::query(INSERT).bind(row).bind(TASK_ARGS).execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn insert_many(
    pool: &SqlitePool,
    from: u32,
    rows: u32,
) -> Result<(), sqlx::Error> {
    let rows = json_list((from..from + rows).map(i64::from));
    sqlx::query(INSERT_MANY).bind(rows).bind(TASK_ARGS).execute(pool).await.map(drop)
}

pub(super) async fn two_commits(pool: &SqlitePool, run: i64) -> Result<Duration, sqlx::Error> {
    let insert = "insert into tasuki_bench_queue values (?1, ?1)";
    let delete =
        "delete from tasuki_bench_queue where scheduled_for = ?1 and run_id = ?1 returning run_id";
    let mut connection = pool.acquire().await?;
    let started = Instant::now();
    sqlx::query(insert).bind(run).execute(&mut *connection).await?;
    sqlx::query(delete).bind(run).fetch_one(&mut *connection).await?;
    Ok(started.elapsed())
}

/// Formats ids as a JSON list.
fn json_list(ids: impl IntoIterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for id in ids {
        let comma = if text.len() > 1 { "," } else { "" };
        write!(text, "{comma}{id}").expect("writing to a string does not fail");
    }
    text.push(']');
    text
}
