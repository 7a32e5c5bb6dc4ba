//! Schema migrations: numbered files, with the same numbers and names for each database.
//!
//! This is a migrator of our own, because the tables are in the application's database: its list of applied migrations
//! must be separate from the application's. Several processes may migrate at the same time; they take turns.

use sha2::{Digest as _, Sha256};

use crate::db::sql::{Dialect, Sql, sql, text_or_mutant};
use crate::db::{Params, Tx, params};
use crate::{Error, Store};

static LIST_APPLIED: Sql = sql!("migration/list");
static INSERT: Sql = sql!("migration/insert");
static MARK_APPLIED: Sql = sql!("migration/mark_applied");

/// One migration of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number, from 1.
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

static SQLITE: &[Migration] = migrations!("sqlite": 1 "initial");
static POSTGRES: &[Migration] = migrations!("postgres": 1 "initial");
static MYSQL: &[Migration] = migrations!("mysql": 1 "initial");

const TABLE: &str = "create table if not exists tasuki_migration (
    version bigint not null primary key,
    name varchar(64) not null,
    checksum varchar(64) not null,
    applied_at bigint
)";

impl Migration {
    /// Returns all migrations for a kind of database, in order.
    pub fn all(dialect: Dialect) -> &'static [Self] {
        match dialect {
            Dialect::Sqlite => SQLITE,
            Dialect::Postgres => POSTGRES,
            Dialect::MySql => MYSQL,
        }
    }

    /// Returns its SQL script.
    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    fn checksum(&self) -> String {
        Sha256::digest(self.text).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Store {
    /// Applies the pending migrations and returns them. Concurrent calls take turns.
    pub async fn migrate(&self) -> Result<Vec<&'static Migration>, Error> {
        let dialect = self.db.dialect();
        let mut tx = self.db.begin().await?;
        // On MySQL schema changes end a transaction, so there the lock belongs to the session instead.
        match dialect {
            Dialect::Sqlite => {}
            Dialect::Postgres => {
                tx.execute_script(
                    "set local lock_timeout = '60s'; select pg_advisory_xact_lock(8391473622817)",
                )
                .await?;
            }
            Dialect::MySql => lock_mysql(&mut tx).await?,
        }
        let outcome = apply_pending(&mut tx).await;
        if dialect == Dialect::MySql {
            tx.execute_script("select release_lock(concat('tasuki_migrate_', database()))").await?;
        }
        let applied = outcome?;
        tx.commit().await?;
        Ok(applied)
    }

    /// Returns the migrations that [`Store::migrate`] would apply. It only reads, and does not wait for a process that
    /// is migrating.
    pub async fn pending_migrations(&self) -> Result<Vec<&'static Migration>, Error> {
        let mut tx = self.db.begin_read().await?;
        let pending = match has_migration_table(&mut tx).await? {
            true => list_unapplied_migrations(&mut tx).await?,
            false => Migration::all(tx.dialect()).iter().collect(),
        };
        tx.rollback().await?;
        Ok(pending)
    }
}

/// Locks against concurrent migrations on MySQL. The lock is global on the server, so its name contains the
/// database's name.
async fn lock_mysql(tx: &mut Tx<'_>) -> Result<(), Error> {
    const GET_LOCK: &str =
        "select cast(get_lock(concat('tasuki_migrate_', database()), 60) as signed) as acquired";
    static LOCK: Sql = Sql::new("migration/lock", [GET_LOCK; 3]);
    let rows = tx.query(&LOCK, vec![]).await?;
    match rows.first().map(|row| row.opt_int("acquired")).transpose()?.flatten() {
        Some(1) => Ok(()),
        _ => Err(Error::broken(
            "cannot get the migration lock within 60 seconds: another process is migrating",
        )),
    }
}

async fn apply_pending(tx: &mut Tx<'_>) -> Result<Vec<&'static Migration>, Error> {
    tx.execute_script(TABLE).await?;
    let pending = list_unapplied_migrations(tx).await?;
    for migration in &pending {
        let params: Params<'_> = params! {
            version: migration.version,
            name: migration.name,
            checksum: migration.checksum(),
        };
        tx.execute(&INSERT, params).await?;
        tx.execute_script(&text_or_mutant(migration.text)).await?;
        tx.execute(&MARK_APPLIED, params! { version: migration.version }).await?;
    }
    Ok(pending)
}

/// Whether the table of applied migrations exists.
pub(crate) async fn has_migration_table(tx: &mut Tx<'_>) -> Result<bool, Error> {
    static EXISTS: Sql = Sql::new(
        "migration/exists",
        [
            "select name from sqlite_master where type = 'table' and name = 'tasuki_migration'",
            "select tablename from pg_tables where tablename = 'tasuki_migration' and schemaname = current_schema()",
            "select table_name from information_schema.tables where table_schema = database() and table_name = 'tasuki_migration'",
        ],
    );
    Ok(!tx.query(&EXISTS, vec![]).await?.is_empty())
}

/// Lists the pending migrations. It fails if an applied migration is newer than this binary, differs from ours or was
/// not completed.
pub(crate) async fn list_unapplied_migrations(
    tx: &mut Tx<'_>,
) -> Result<Vec<&'static Migration>, Error> {
    let known = Migration::all(tx.dialect());
    let newest = known.last().map_or(0, |migration| migration.version);
    let mut applied = Vec::new();
    for row in tx.query(&LIST_APPLIED, vec![]).await? {
        let (version, name) = (row.int("version")?, row.text("name")?);
        if version > newest {
            return Err(Error::NewerSchema { found: version, known: newest });
        }
        let ours = known.iter().find(|migration| migration.version == version);
        let problem = if row.opt_int("applied_at")?.is_none() {
            Some(
                "was not completed; undo its changes, delete its row in tasuki_migration, and migrate again",
            )
        } else if ours
            .is_none_or(|ours| ours.checksum() != row.text("checksum").unwrap_or_default())
        {
            Some("differs from the migration with this number in this version of tasuki")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Error::InvalidMigration { version, name, problem });
        }
        applied.push(version);
    }
    Ok(known.iter().filter(|migration| !applied.contains(&migration.version)).collect())
}
