//! What can go wrong that is not a lost race.

use std::sync::Arc;

use tasuki_core::Invalid;
use tasuki_core::settings::Problem;

/// Why the store could not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database did not answer, or refused the statement.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    /// The URL names no database we know.
    #[error(
        "database url: found {found:?}, expected one that begins with sqlite:, postgres: or mysql:"
    )]
    Url {
        /// What stood before the first colon; never the whole URL, which may hold a password.
        found: String,
    },
    /// There is no such SQLite database yet.
    #[error("there is no database file {file}")]
    NoFile {
        /// Where it was looked for.
        file: String,
    },
    /// The schema is from a newer tasuki.
    #[error("the database has schema {found}, but this tasuki knows only up to {known}")]
    NewerSchema {
        /// The newest migration in the database.
        found: i64,
        /// The newest migration in this binary.
        known: i64,
    },
    /// A migration in the database is not the one in this binary.
    #[error("migration {version} ({name}) {problem}")]
    Migration {
        /// Its number.
        version: i64,
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What was given cannot be stored.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Settings, as changed or as stored, are not right as a whole. Nothing was written.
    #[error("settings: {}", told(.0))]
    Settings(Vec<Problem>),
    /// The leader that wrote is no longer the leader. Nothing was written.
    #[error("epoch {0} has been superseded")]
    Fenced(tasuki_core::Epoch),
    /// Others moved it about each time it was looked for. Nothing was written, and it may be asked again.
    #[error("run {0} was in others' hands each time it was looked for")]
    InUse(tasuki_core::RunId),
    /// A row says what cannot be.
    #[error("broken data: {0}")]
    Broken(String),
    /// What several travelled in together failed, for each of them.
    #[error(transparent)]
    Shared(Arc<Error>),
}

impl Error {
    pub(crate) fn broken(what: impl Into<String>) -> Self {
        Self::Broken(what.into())
    }

    /// No answer came in time: what was asked may have been done or not.
    pub fn timed_out() -> Self {
        sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()).into()
    }

    fn root(&self) -> &Self {
        match self {
            Self::Shared(error) => error.root(),
            error => error,
        }
    }

    /// Whether a unique key was violated: somebody else was first.
    pub fn is_conflict(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => error.is_unique_violation(),
            _ => false,
        }
    }

    /// Whether an errand gave up by itself, because not all was as it was thought to be: nothing of it has happened.
    pub(crate) fn gave_up(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                error.message().contains("malformed JSON")
            }
            _ => false,
        }
    }

    /// Whether what was given is at fault: a URL that names no database, a value that cannot be stored.
    pub fn is_invalid_input(&self) -> bool {
        matches!(
            self.root(),
            Self::Url { .. } | Self::Invalid(_) | Self::Database(sqlx::Error::Configuration(_))
        )
    }

    /// Whether two transactions waited for each other and this one was the one to give way, or a
    /// lock was not to be had in time: nothing was written and the same call may be made again.
    pub fn is_contention(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                // PostgreSQL 40P01, 40001, 55P03; MySQL 1213 and 1205 (as 40001 and HY000); SQLite 5.
                matches!(error.code().as_deref(), Some("40P01" | "40001" | "55P03" | "5" | "517"))
                    || error.message().contains("Lock wait timeout")
            }
            Self::InUse(_) => true,
            _ => false,
        }
    }

    /// Whether two transactions waited for each other and this one gave way: who asks again is not kept waiting.
    pub(crate) fn gave_way(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Database(error)) => {
                matches!(error.code().as_deref(), Some("40P01" | "40001"))
            }
            _ => false,
        }
    }

    /// Whether the database was away, or went away before it had answered: what was asked may have
    /// been done or not, and can be asked again when it is back.
    pub fn is_unavailable(&self) -> bool {
        match self.root() {
            Self::Database(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut) => true,
            // Told as a broken connection, but the same again would be too long again.
            Self::Database(sqlx::Error::Database(error)) if is_too_long(&**error) => false,
            Self::Database(sqlx::Error::Database(error)) => {
                // Class 08 is the connection itself, MySQL's stopping server too; PostgreSQL's 57P01 to
                // 57P03: it stops, another process of it crashed, it starts.
                let code = error.code().unwrap_or_default();
                code.starts_with("08") || matches!(&*code, "57P01" | "57P02" | "57P03")
            }
            _ => false,
        }
    }
}

/// Whether MySQL refused a statement for its length: longer than its max_allowed_packet.
fn is_too_long(error: &dyn sqlx::error::DatabaseError) -> bool {
    error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some_and(|error| error.number() == 1153)
}

fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
