//! The schema: numbered files, the same numbers and names for each database.
//!
//! Our own small migrator, because the tables live in the application's database: its record must
//! not be mixed up with the application's own, and two processes may start at once.

use sha2::{Digest as _, Sha256};

use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Tx, params};
use crate::{Error, Store};

static LIST: Sql = sql!("migration/list");
static BEGIN: Sql = sql!("migration/begin");
static END: Sql = sql!("migration/end");

/// One step of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    text: &'static str,
}

macro_rules! migrations {
    ($dialect:literal: $($version:literal $name:literal),+ $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $dialect, "/000", $version, "_", $name, ".sql")),
        }),+]
    };
}

static SQLITE: &[Migration] = migrations!("sqlite": 1 "runs", 2 "people_and_places", 3 "records", 4 "rules", 5 "views", 6 "event_jobs", 7 "job_now", 8 "stretches");
static POSTGRES: &[Migration] = migrations!("postgres": 1 "runs", 2 "people_and_places", 3 "records", 4 "rules", 5 "views", 6 "event_jobs", 7 "job_now", 8 "stretches");
static MYSQL: &[Migration] = migrations!("mysql": 1 "runs", 2 "people_and_places", 3 "records", 4 "rules", 5 "views", 6 "event_jobs", 7 "job_now", 8 "stretches");

const TABLE: &str = "create table if not exists tasuki_migration (
    version bigint not null primary key,
    name varchar(64) not null,
    checksum varchar(64) not null,
    applied_at bigint
)";

impl Migration {
    /// All of them, in order.
    pub fn all(dialect: Dialect) -> &'static [Self] {
        match dialect {
            Dialect::Sqlite => SQLITE,
            Dialect::Postgres => POSTGRES,
            Dialect::MySql => MYSQL,
        }
    }

    /// What it does, as SQL.
    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    fn checksum(&self) -> String {
        Sha256::digest(self.text).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Store {
    /// Applies what is pending and tells what it applied. Two that run at once take turns.
    pub async fn migrate(&self) -> Result<Vec<&'static Migration>, Error> {
        let dialect = self.db.dialect();
        let mut tx = self.db.begin().await?;
        // Where schema changes end a transaction, the lock belongs to the session instead.
        match dialect {
            Dialect::Sqlite => {}
            Dialect::Postgres => {
                tx.script(
                    "set local lock_timeout = '60s'; select pg_advisory_xact_lock(8391473622817)",
                )
                .await?;
            }
            Dialect::MySql => lock_mysql(&mut tx).await?,
        }
        let outcome = apply_pending(&mut tx).await;
        if dialect == Dialect::MySql {
            tx.script("select release_lock(concat('tasuki_migrate_', database()))").await?;
        }
        let applied = outcome?;
        tx.commit().await?;
        Ok(applied)
    }

    /// What `migrate` would apply. Only a look: it neither writes nor waits for who does.
    pub async fn pending(&self) -> Result<Vec<&'static Migration>, Error> {
        let mut tx = self.db.look().await?;
        let pending = match has_table(&mut tx).await? {
            true => pending(&mut tx).await?,
            false => Migration::all(tx.dialect()).iter().collect(),
        };
        tx.rollback().await?;
        Ok(pending)
    }
}

/// The lock is the server's, so its name holds the database's.
async fn lock_mysql(tx: &mut Tx<'_>) -> Result<(), Error> {
    const TAKE: &str =
        "select cast(get_lock(concat('tasuki_migrate_', database()), 60) as signed) as taken";
    static LOCK: Sql = Sql::new("migration/lock", [TAKE; 3]);
    let rows = tx.rows(&LOCK, vec![]).await?;
    match rows.first().map(|row| row.opt_int("taken")).transpose()?.flatten() {
        Some(1) => Ok(()),
        _ => Err(Error::broken("another process has been migrating for a minute")),
    }
}

async fn apply_pending(tx: &mut Tx<'_>) -> Result<Vec<&'static Migration>, Error> {
    tx.script(TABLE).await?;
    let pending = pending(tx).await?;
    for migration in &pending {
        let noted: Params<'_> = params! {
            version: migration.version,
            name: migration.name,
            checksum: migration.checksum(),
        };
        tx.execute(&BEGIN, noted).await?;
        tx.script(migration.text).await?;
        tx.execute(&END, params! { version: migration.version }).await?;
    }
    Ok(pending)
}

pub(crate) async fn has_table(tx: &mut Tx<'_>) -> Result<bool, Error> {
    static EXISTS: Sql = Sql::new(
        "migration/exists",
        [
            "select name from sqlite_master where type = 'table' and name = 'tasuki_migration'",
            "select tablename from pg_tables where tablename = 'tasuki_migration' and schemaname = current_schema()",
            "select table_name from information_schema.tables where table_schema = database() and table_name = 'tasuki_migration'",
        ],
    );
    Ok(!tx.rows(&EXISTS, vec![]).await?.is_empty())
}

pub(crate) async fn pending(tx: &mut Tx<'_>) -> Result<Vec<&'static Migration>, Error> {
    let known = Migration::all(tx.dialect());
    let newest = known.last().map_or(0, |migration| migration.version);
    let mut applied = Vec::new();
    for row in tx.rows(&LIST, vec![]).await? {
        let (version, name) = (row.int("version")?, row.text("name")?);
        if version > newest {
            return Err(Error::NewerSchema { found: version, known: newest });
        }
        let ours = known.iter().find(|migration| migration.version == version);
        let problem = if row.opt_int("applied_at")?.is_none() {
            Some(
                "broke off half-way; undo what it did, delete its row in tasuki_migration, and migrate again",
            )
        } else if ours
            .is_none_or(|ours| ours.checksum() != row.text("checksum").unwrap_or_default())
        {
            Some("is not the one this tasuki knows by that number")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::Migration { version, name, problem });
        }
        applied.push(version);
    }
    Ok(known.iter().filter(|migration| !applied.contains(&migration.version)).collect())
}
