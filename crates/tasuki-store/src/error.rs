//! Errors of the store. A lost race is not an error, but an [`Outcome`](crate::Outcome).

use std::sync::Arc;

use tasuki_core::InvalidInput;
use tasuki_core::settings::SettingsProblem;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database did not respond, or rejected the statement.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    /// The URL has an unknown scheme.
    #[error(
        "database url: found {found:?}, expected one that begins with sqlite:, postgres: or mysql:"
    )]
    UnsupportedUrl {
        /// The text before the first colon. Never the whole URL, which may contain a password.
        found: String,
    },
    /// The SQLite database file does not exist.
    #[error("there is no database file {file}")]
    FileNotFound {
        /// The path of the file.
        file: String,
    },
    /// The database was migrated by a newer version of tasuki.
    #[error(
        "the database has schema version {found}, but this tasuki supports only versions up to {known}"
    )]
    NewerSchema {
        /// The newest migration in the database.
        found: i64,
        /// The newest migration in this binary.
        known: i64,
    },
    /// A migration in the database differs from the one in this binary, or was not completed.
    #[error("migration {version} ({name}) {problem}")]
    InvalidMigration {
        /// The number of the migration.
        version: i64,
        /// The name of the migration.
        name: String,
        /// What is wrong with it; the message continues with this text.
        problem: &'static str,
    },
    /// An input value cannot be stored.
    #[error(transparent)]
    InvalidInput(#[from] InvalidInput),
    /// The settings, as stored or after the requested change, are invalid. Nothing was written.
    #[error("settings: {}", join_problems(.0))]
    InvalidSettings(Vec<SettingsProblem>),
    /// The writing leader is no longer the leader. Nothing was written.
    #[error("leader epoch {0} has been superseded by a newer one")]
    Fenced(tasuki_core::Epoch),
    /// Other transactions changed the run each time this call tried to lock it. Nothing was written; the caller may
    /// retry.
    #[error("run {0} was changed by other transactions each time this call tried to lock it")]
    RunBusy(tasuki_core::RunId),
    /// A row contains a value that the schema and this crate rule out.
    #[error("broken data: {0}")]
    Broken(String),
    /// A batch failed as a whole; each of its callers gets the same error.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    pub(crate) fn broken(description: impl Into<String>) -> Self {
        Self::Broken(description.into())
    }

    /// Creates the error for a response that did not arrive in time. The request may have taken effect or not.
    pub fn timeout() -> Self {
        sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()
    }

    /// Returns the error itself, or the error inside [`Error::Shared`].
    fn root(&self) -> &Self {
        match self {
            Self::Shared(error) => error.root(),
            error => error,
        }
    }

    /// Whether a unique key was violated: another writer inserted the same key before.
    pub fn is_duplicate_key(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => error.is_unique_violation(),
            _ => false,
        }
    }

    /// Whether a script for SQLite aborted itself because one of its guards did not hold. The script had no effect.
    /// Its guard statement provokes this JSON error on purpose.
    pub(crate) fn is_script_guard_failure(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                error.message().contains("malformed JSON")
            }
            _ => false,
        }
    }

    /// Whether the input is invalid: a URL with an unknown scheme or bad options, or a value that cannot be stored.
    pub fn is_invalid_input(&self) -> bool {
        matches!(
            self.root(),
            Self::UnsupportedUrl { .. }
                | Self::InvalidInput(_)
                | Self::Database(sqlx::Error::Configuration(_))
        )
    }

    /// Whether this transaction was the victim of a deadlock or a serialization failure, or waited too long for a lock.
    /// Nothing was written; the caller may retry the same call.
    pub fn is_contention(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                // PostgreSQL 40P01, 40001, 55P03; MySQL 1213 and 1205 (as 40001 and HY000); SQLite 5.
                matches!(error.code().as_deref(), Some("40P01" | "40001" | "55P03" | "5" | "517"))
                    || error.message().contains("Lock wait timeout")
            }
            Self::RunBusy(_) => true,
            _ => false,
        }
    }

    /// Whether this transaction was the victim of a deadlock or a serialization failure. An immediate retry does not
    /// have to wait.
    pub(crate) fn is_deadlock(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                matches!(error.code().as_deref(), Some("40P01" | "40001"))
            }
            _ => false,
        }
    }

    /// Whether the database was not reachable, or the connection was lost before the response. The request may have
    /// taken effect or not; the caller may retry it when the database is reachable again.
    pub fn is_unavailable(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut) => true,
            // MySQL reports this as a connection error, but the same statement would be too long again.
            Self::Database(sqlx::Error::Database(error)) if is_too_long(&**error) => false,
            Self::Database(sqlx::Error::Database(error)) => {
                // Class 08 are connection errors, and the shutdown of a MySQL server. PostgreSQL: 57P01 shutdown,
                // 57P02 crash of another server process, 57P03 startup.
                let code = error.code().unwrap_or_default();
                code.starts_with("08") || matches!(&*code, "57P01" | "57P02" | "57P03")
            }
            _ => false,
        }
    }
}

/// Whether MySQL rejected a statement that is longer than its max_allowed_packet.
fn is_too_long(error: &dyn sqlx::error::DatabaseError) -> bool {
    error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some_and(|error| error.number() == 1153)
}

fn join_problems(problems: &[SettingsProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
