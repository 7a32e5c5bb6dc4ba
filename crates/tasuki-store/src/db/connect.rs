//! Opening the three databases: how each is reached, and what every session of ours is told.

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
use crate::db::errands::Errands;
use crate::db::connection_cache::{FRESH, ConnectionCache, UNUSED};

/// How long a session may sit in an open transaction, wait for a lock, or run a statement. A leader
/// that is stopped in mid-write delays the next mint by no more than this.
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(2);
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long anybody waits for a session: a loop that has waited so long has other things to do.
const ACQUIRE: Duration = Duration::from_secs(5);
/// On SQLite one waits for the writers in front, and they are many in a load test.
const ACQUIRE_SQLITE: Duration = Duration::from_secs(30);
/// Between two tries to open a SQLite file that another has to itself.
const BETWEEN_TURNS: Duration = Duration::from_millis(5);
/// How long a server has to answer somebody who only wants to know whether it is there.
const KNOCK: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) enum Pools {
    /// One writer, so that nobody waits in vain for the only write lock; readers beside it.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
        errands: Errands,
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
            scheme => Err(Error::Url { found: scheme.to_owned() }),
        }
    }

    /// Whether a database is there and answers, asked once: a pool would go on asking a server that
    /// refuses for half a minute, and SQLite would make a file.
    pub(crate) async fn reach(url: &str) -> Result<(), Error> {
        let knock = async {
            match url.split(':').next().unwrap_or_default() {
                "sqlite" => {
                    let options = SqliteConnectOptions::from_str(url)?;
                    let file = options.get_filename();
                    match file.try_exists() {
                        _ if is_in_memory(url) => Ok(()),
                        Ok(true) => Ok(()),
                        Ok(false) => Err(Error::NoFile { file: file.display().to_string() }),
                        Err(error) => Err(sqlx::Error::Io(error).into()),
                    }
                }
                "postgres" | "postgresql" => {
                    Ok(PgConnectOptions::from_str(url)?.connect().await?.close().await?)
                }
                "mysql" | "mariadb" => Ok(mysql_options(url)?.connect().await?.close().await?),
                scheme => Err(Error::Url { found: scheme.to_owned() }),
            }
        };
        match tokio::time::timeout(KNOCK, knock).await {
            Ok(answer) => answer,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()),
        }
    }
}

async fn open_sqlite(url: &str, connections: u32) -> Result<Pools, Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        // A batch of runs is on half as many pages of twice the usual size. What there is already stays as it is.
        .page_size(8_192)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // What undoes half a statement is kept in memory: the changes of a batch are more than it keeps there
        // by itself, and a file for them is written to for nothing.
        .pragma("temp_store", "memory")
        .busy_timeout(LOCK_WAIT);
    // It is in this process: nobody needs to ask first whether it is still there.
    // A full disk ends a transaction in SQLite that the driver still thinks open, and nothing could ever be
    // begun on such a session again: it is thrown away.
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(ACQUIRE_SQLITE)
        .test_before_acquire(false)
        .before_acquire(|session, _| {
            let stuck = session.is_in_transaction();
            Box::pin(async move { Ok(!stuck) })
        });
    let one = pool.clone().max_connections(1);
    let writer = in_turn(|| one.clone().connect_with(options.clone())).await?;
    let readers = match is_in_memory(url) {
        true => writer.clone(),
        false => pool.max_connections(connections).connect_with(options).await?,
    };
    let errands = Errands::new(writer.clone());
    Ok(Pools::Sqlite { writer, readers, errands })
}

/// Opens a file that others may be opening too. Whoever turns a new file to write-ahead logging needs it alone for
/// a moment, and there SQLite refuses the others at once, whatever they said of how long they would wait.
async fn in_turn<F>(open: impl Fn() -> F) -> Result<SqlitePool, sqlx::Error>
where
    F: Future<Output = Result<SqlitePool, sqlx::Error>>,
{
    let until = tokio::time::Instant::now() + LOCK_WAIT;
    loop {
        match open().await {
            Err(error) if is_busy(&error) && tokio::time::Instant::now() < until => {
                tokio::time::sleep(BETWEEN_TURNS).await;
            }
            opened => return opened,
        }
    }
}

/// Any of the ways in which SQLite says that another has the file: the low byte is the family.
fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: i64 = 5;
    let code = error.as_database_error().and_then(|told| told.code()?.parse::<i64>().ok());
    code.is_some_and(|code| code & 0xff == BUSY)
}

/// A database in memory exists only on the connection that made it.
fn is_in_memory(url: &str) -> bool {
    url.contains(":memory:") || url.contains("mode=memory")
}

/// Sessions go by index, whatever the statistics say: a statement that was planned for an empty table
/// must not scan a full one.
const BY_INDEX: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_material", "off"),
];

/// Begins a look at whole tables from one moment: there the planner knows best.
pub(crate) const LOOK: &str = "begin isolation level repeatable read, read only;
    set local plan_cache_mode = auto; set local enable_seqscan = on; set local enable_bitmapscan = on;
    set local enable_hashjoin = on; set local enable_mergejoin = on; set local enable_material = on";

async fn open_postgres(url: &str, connections: u32) -> Result<Pools, Error> {
    let options = PgConnectOptions::from_str(url)?
        .application_name("tasuki")
        .disable_statement_logging()
        .options([
            (
                "idle_in_transaction_session_timeout",
                format!("{}ms", IDLE_IN_TRANSACTION.as_millis()),
            ),
            ("lock_timeout", format!("{}ms", LOCK_WAIT.as_millis())),
            ("statement_timeout", "30s".to_owned()),
            ("default_transaction_isolation", "read committed".to_owned()),
            ("timezone", "UTC".to_owned()),
            ("jit", "off".to_owned()),
        ])
        .options(BY_INDEX);
    let pool = PgPoolOptions::new()
        .acquire_timeout(ACQUIRE)
        .idle_timeout(UNUSED)
        .max_connections(connections)
        .test_before_acquire(false)
        .before_acquire(|connection, session| {
            let known = session.idle_for < FRESH;
            Box::pin(async move { Ok(known || connection.ping().await.is_ok()) })
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
    let ends_idle_ones = Arc::new(AtomicBool::new(false));
    let is_stale = Arc::clone(&ends_idle_ones);
    let pool = MySqlPoolOptions::new()
        .acquire_timeout(ACQUIRE)
        .idle_timeout(UNUSED)
        .max_connections(connections)
        .test_before_acquire(false)
        .before_acquire(move |connection, session| {
            // Rather a new session than one that the server is about to end.
            let stale =
                is_stale.load(Ordering::Relaxed) && session.idle_for > IDLE_IN_TRANSACTION / 2;
            let known = session.idle_for < FRESH;
            Box::pin(async move { Ok(!stale && (known || connection.ping().await.is_ok())) })
        })
        .after_connect(move |connection, _| {
            let ends_idle_ones = Arc::clone(&ends_idle_ones);
            Box::pin(async move {
                // What does not fit is an error, however the server was set up, and never cut in silence; and
                // words come back as they were given.
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
                // MariaDB ends a session that idles inside a transaction. MySQL does not know the setting and
                // would keep the locks of a leader that was stopped in mid-write for eight hours: there every
                // idle session ends as soon, and the pool hands out none that is near it.
                match connection.execute("set session idle_transaction_timeout = 2").await {
                    Err(error) if is_unknown_variable(&error) => {
                        ends_idle_ones.store(true, Ordering::Relaxed);
                        connection.execute("set session wait_timeout = 2").await.map(drop)
                    }
                    told => told.map(drop),
                }
            })
        })
        .connect_with(options)
        .await?;
    Ok(Pools::MySql(ConnectionCache::new(pool)))
}

fn is_unknown_variable(error: &sqlx::Error) -> bool {
    let told = error.as_database_error();
    told.and_then(|told| told.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
        .is_some_and(|told| told.number() == 1193)
}
