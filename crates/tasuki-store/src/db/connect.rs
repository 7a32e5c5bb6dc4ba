//! Opens a database: connection options, session settings and pools for each of the three drivers.

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, MySql, Postgres};

use crate::Error;
use crate::db::connection_cache::{ConnectionCache, IDLE_TIMEOUT, SKIP_PING_WITHIN};
use crate::db::sqlite_group_commit::GroupCommit;

/// Maximum idle time inside an open transaction. It bounds how long a leader that was stopped in the middle of a
/// write can delay the election of the next leader.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to wait for a lock of the database.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a connection. A loop that has waited this long should continue with its other work.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for SQLite. It is longer because the callers of all queued writes wait for the one write connection.
const SQLITE_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before the next attempt to open a SQLite file that another process has locked.
const OPEN_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Maximum time of [`Pools::probe`].
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to one database.
#[derive(Clone)]
pub(crate) enum Pools {
    /// One write connection, because SQLite has only one write lock and a second writer would only wait for it;
    /// and separate connections for reading.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
        group_commit: GroupCommit,
    },
    Postgres(ConnectionCache<Postgres>),
    MySql(ConnectionCache<MySql>),
}

impl Pools {
    /// Opens a database by its URL: `sqlite:`, `postgres:` or `mysql:`.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        match url.split(':').next().unwrap_or_default() {
            "sqlite" => open_sqlite(url, connections).await,
            "postgres" | "postgresql" => open_postgres(url, connections).await,
            "mysql" | "mariadb" => open_mysql(url, connections).await,
            scheme => Err(Error::UnsupportedUrl { found: scheme.to_owned() }),
        }
    }

    /// Checks with one attempt that the database exists and accepts connections. It does not open a pool: a pool
    /// retries for half a minute if the server refuses connections, and on SQLite it would create the file.
    pub(crate) async fn probe(url: &str) -> Result<(), Error> {
        let probe = async {
            match url.split(':').next().unwrap_or_default() {
                "sqlite" => {
                    let options = SqliteConnectOptions::from_str(url)?;
                    let file = options.get_filename();
                    match file.try_exists() {
                        _ if is_in_memory(url) => Ok(()),
                        Ok(true) => Ok(()),
                        Ok(false) => Err(Error::FileNotFound { file: file.display().to_string() }),
                        Err(error) => Err(sqlx::Error::Io(error).into()),
                    }
                }
                "postgres" | "postgresql" => {
                    Ok(PgConnectOptions::from_str(url)?.connect().await?.close().await?)
                }
                "mysql" | "mariadb" => Ok(mysql_options(url)?.connect().await?.close().await?),
                scheme => Err(Error::UnsupportedUrl { found: scheme.to_owned() }),
            }
        };
        match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
            Ok(result) => result,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()),
        }
    }
}

async fn open_sqlite(url: &str, connections: u32) -> Result<Pools, Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        // Twice SQLite's default page size: a batch of runs then touches half as many pages.
        // An existing file keeps its page size.
        .page_size(8_192)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // The statement journal stays in memory. The changes of a batch exceed SQLite's default
        // limit for that, and a temporary file would be written for nothing.
        .pragma("temp_store", "memory")
        .busy_timeout(LOCK_TIMEOUT);
    // No ping before a connection is used: SQLite runs in this process, so the connection cannot be lost.
    // But when the disk is full, SQLite ends a transaction that the driver still regards as open. No
    // transaction could ever begin on such a connection, so it is replaced.
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(SQLITE_ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(|connection, _| {
            let stuck = connection.is_in_transaction();
            Box::pin(async move { Ok(!stuck) })
        });
    let single = pool.clone().max_connections(1);
    let writer = open_with_retry(|| single.clone().connect_with(options.clone())).await?;
    let readers = match is_in_memory(url) {
        true => writer.clone(),
        false => pool.max_connections(connections).connect_with(options).await?,
    };
    let group_commit = GroupCommit::new(writer.clone());
    Ok(Pools::Sqlite { writer, readers, group_commit })
}

/// Opens a SQLite file, and retries while another process has it locked. The process that switches a new file to
/// write-ahead logging needs exclusive access for a moment, and SQLite then refuses the other processes immediately,
/// whatever their busy timeout is.
async fn open_with_retry<F>(open: impl Fn() -> F) -> Result<SqlitePool, sqlx::Error>
where
    F: Future<Output = Result<SqlitePool, sqlx::Error>>,
{
    let deadline = tokio::time::Instant::now() + LOCK_TIMEOUT;
    loop {
        match open().await {
            Err(error) if is_busy(&error) && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(OPEN_RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

/// Whether SQLite reports that another connection has the file locked. The low byte of an extended result code is
/// the primary code, `SQLITE_BUSY`.
fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i64 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i64>().ok());
    code.is_some_and(|code| code & 0xff == BUSY)
}

/// Whether the URL names an in-memory database, which exists only on the connection that created it.
fn is_in_memory(url: &str) -> bool {
    url.contains(":memory:") || url.contains("mode=memory")
}

/// PostgreSQL settings that make the planner use indexes whatever the statistics are: a statement that was planned
/// while a table was empty must not scan the table when it is full.
const PREFER_INDEXES: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
];

/// Begins a read-only snapshot on PostgreSQL. It undoes [`PREFER_INDEXES`]: statements that read whole tables are
/// planned by the statistics.
pub(crate) const BEGIN_SNAPSHOT: &str = "begin isolation level repeatable read, read only;
    set local plan_cache_mode = auto; set local enable_seqscan = on; set local enable_bitmapscan = on;
    set local enable_hashjoin = on; set local enable_mergejoin = on; set local enable_material = on";

async fn open_postgres(url: &str, connections: u32) -> Result<Pools, Error> {
    let options = PgConnectOptions::from_str(url)?
        .application_name("tasuki")
        .disable_statement_logging()
        .options([
            (
                "idle_in_transaction_session_timeout",
                format!("{}ms", IDLE_IN_TRANSACTION_TIMEOUT.as_millis()),
            ),
            ("lock_timeout", format!("{}ms", LOCK_TIMEOUT.as_millis())),
            ("statement_timeout", "30s".to_owned()),
            ("default_transaction_isolation", "read committed".to_owned()),
            ("timezone", "UTC".to_owned()),
            ("jit", "off".to_owned()),
        ])
        .options(PREFER_INDEXES);
    let pool = PgPoolOptions::new()
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(IDLE_TIMEOUT)
        .max_connections(connections)
        .test_before_acquire(false)
        .before_acquire(|connection, metadata| {
            let used_recently = metadata.idle_for < SKIP_PING_WITHIN;
            Box::pin(async move { Ok(used_recently || connection.ping().await.is_ok()) })
        })
        .connect_with(options)
        .await?;
    Ok(Pools::Postgres(ConnectionCache::new(pool)))
}

fn mysql_options(url: &str) -> Result<MySqlConnectOptions, Error> {
    let url = url.replacen("mariadb:", "mysql:", 1);
    Ok(MySqlConnectOptions::from_str(&url)?.charset("utf8mb4").collation("utf8mb4_bin"))
}

async fn open_mysql(url: &str, connections: u32) -> Result<Pools, Error> {
    let options = mysql_options(url)?;
    let has_short_wait_timeout = Arc::new(AtomicBool::new(false));
    let server_closes_idle = Arc::clone(&has_short_wait_timeout);
    let pool = MySqlPoolOptions::new()
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(IDLE_TIMEOUT)
        .max_connections(connections)
        .test_before_acquire(false)
        .before_acquire(move |connection, metadata| {
            // A new connection is better than one that the server is about to close.
            let nearly_closed = server_closes_idle.load(Ordering::Relaxed)
                && metadata.idle_for > IDLE_IN_TRANSACTION_TIMEOUT / 2;
            let used_recently = metadata.idle_for < SKIP_PING_WITHIN;
            Box::pin(async move {
                Ok(!nearly_closed && (used_recently || connection.ping().await.is_ok()))
            })
        })
        .after_connect(move |connection, _| {
            let has_short_wait_timeout = Arc::clone(&has_short_wait_timeout);
            Box::pin(async move {
                // Strict mode, however the server is configured: a value that does not fit is an error
                // and is never silently truncated. And CHAR values are returned without padding.
                connection
                    .execute(
                        "set session sql_mode = concat(replace(@@sql_mode, 'PAD_CHAR_TO_FULL_LENGTH', ''), ',STRICT_TRANS_TABLES')",
                    )
                    .await?;
                connection
                    .execute("set session transaction isolation level read committed")
                    .await?;
                connection
                    .execute("set session innodb_lock_wait_timeout = 5, time_zone = '+00:00'")
                    .await?;
                // MariaDB closes a connection that idles inside a transaction. MySQL does not have this
                // setting and would keep the locks of a leader that was stopped in the middle of a write
                // for eight hours. There every idle connection is closed after the same time, and the
                // pool never gives out a connection that is close to that limit.
                match connection.execute("set session idle_transaction_timeout = 2").await {
                    Err(error) if is_unknown_variable(&error) => {
                        has_short_wait_timeout.store(true, Ordering::Relaxed);
                        connection.execute("set session wait_timeout = 2").await.map(drop)
                    }
                    result => result.map(drop),
                }
            })
        })
        .connect_with(options)
        .await?;
    Ok(Pools::MySql(ConnectionCache::new(pool)))
}

fn is_unknown_variable(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
        .is_some_and(|error| error.number() == 1193)
}
