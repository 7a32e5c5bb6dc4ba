//! Database access of commands that do not go through the API: URL options, opening, and error messages that never
//! contain a password.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use tasuki_store::{Error, Store};
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// File name of the SQLite database in a data directory.
pub(crate) const FILE_NAME: &str = "tasuki.db";

/// Returns the URL of the SQLite database in a data directory.
pub(crate) fn sqlite_url_in_data_dir(data: &Path) -> String {
    format!("sqlite:{}", data.join(FILE_NAME).display())
}

/// The database that a command works on.
#[derive(Args)]
pub(crate) struct DatabaseOptions {
    /// Database URL: sqlite:FILE, postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: String,
}

/// The database that a command works on, given by its URL or by the data directory of a `tasuki up`.
#[derive(Args)]
pub(crate) struct DatabaseOrDataDirOptions {
    /// Data directory of `tasuki up`
    #[arg(long, env = "TASUKI_DATA", default_value = "tasuki-data", value_name = "DIR")]
    data: PathBuf,

    /// Database URL: sqlite:FILE, postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME [default: the
    /// database file in the data directory]
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

impl DatabaseOrDataDirOptions {
    pub(crate) fn database(&self) -> DatabaseOptions {
        let url = self.database_url.clone();
        DatabaseOptions::with_url(url.unwrap_or_else(|| sqlite_url_in_data_dir(&self.data)))
    }

    /// Whether the database was given by its URL. Only then a missing SQLite file is created.
    pub(crate) fn has_url(&self) -> bool {
        self.database_url.is_some()
    }
}

impl DatabaseOptions {
    /// Returns the database with this URL.
    pub(crate) fn with_url(database_url: String) -> Self {
        Self { database_url }
    }

    /// Opens the database, runs `work` and closes it. An unreachable database fails immediately, without retries.
    pub(crate) fn with_store<T>(
        &self,
        may_create: bool,
        work: impl AsyncFnOnce(&Store) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(format!("cannot start the async runtime: {error}")))?;
        runtime.block_on(async {
            let store = self.open(may_create).await.map_err(|error| self.open_failure(&error))?;
            let outcome = work(&store).await;
            store.close().await;
            outcome.map_err(|error| self.operation_failure(&error))
        })
    }

    /// Builds the tokio runtime for a node with this database. SQLite runs in a thread of this process. If the machine
    /// has more than one core, one core is left to that thread, so that it and the runtime do not wait for each other.
    pub(crate) fn build_runtime(&self) -> Result<Runtime, Failure> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let is_set = std::env::var_os("TOKIO_WORKER_THREADS").is_some();
        if self.database_url.starts_with("sqlite:") && cores > 1 && !is_set {
            runtime.worker_threads(cores - 1);
        }
        let runtime = runtime.enable_all().build();
        runtime.map_err(|error| Failure::new(format!("cannot start the async runtime: {error}")))
    }

    async fn open(&self, may_create: bool) -> Result<Store, Error> {
        match Store::probe(&self.database_url).await {
            Err(Error::FileNotFound { .. }) if may_create => {}
            answer => answer?,
        }
        Store::open(&self.database_url, 1).await
    }

    pub(crate) fn open_failure(&self, error: &Error) -> Failure {
        let shown = redact_url(&self.database_url);
        match error {
            Error::FileNotFound { .. } => Failure::new(error.to_string())
                .hint("check the path; `tasuki up` creates a database in its data directory, `tasuki migrate --database-url` creates one at any path"),
            error if error.is_invalid_input() => Failure::bad_usage(self.message_without_secrets(error))
                .hint("a URL is sqlite:FILE, postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME; % and @ in a password are written %25 and %40"),
            error => {
                let hint = match self.database_url.starts_with("sqlite:") {
                    true => "check that the file is a SQLite database and that you may read and write it",
                    false => "check that the server is running and that host, port, user, password and database name are correct",
                };
                Failure::new(format!("cannot open {shown}: {}", self.message_without_secrets(error))).hint(hint)
            }
        }
    }

    /// The database URL. It may contain a password: never print it, use [`redact_url`].
    pub(crate) fn url(&self) -> &str {
        &self.database_url
    }

    pub(crate) fn operation_failure(&self, error: &Error) -> Failure {
        let failure = Failure::new(self.message_without_secrets(error));
        match error {
            Error::NewerSchema { .. } => failure.hint(
                "use the version of tasuki that migrated it, or a newer one; nothing was changed",
            ),
            Error::InvalidMigration { .. } => {
                failure.hint("docs/operating/doctor.md describes how to repair the schema")
            }
            _ => failure,
        }
    }

    /// The message of an error; a password in it is replaced by `***`.
    fn message_without_secrets(&self, error: &Error) -> String {
        let hide = |text: String, secret: &str| text.replace(secret, "***");
        secrets(&self.database_url).fold(error.to_string(), hide)
    }
}

/// The passwords in a URL: between user name and host, and in a `password` parameter.
fn secrets(url: &str) -> impl Iterator<Item = &str> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    let in_front = user.split_once(':').map(|(_, password)| password);
    let parameters = url.split(['?', '&']).filter_map(|one| one.strip_prefix("password="));
    in_front.into_iter().chain(parameters).filter(|secret| !secret.is_empty())
}

/// Returns a URL in a form that may be displayed: without password and parameters (a parameter may be a password). Text
/// that is not a URL becomes `***`, because any part of it may be secret.
pub(crate) fn redact_url(url: &str) -> String {
    let without_parameters = |place: &str| place.split('?').next().unwrap_or_default().to_owned();
    let Some((scheme, rest)) = url.split_once("://") else {
        return match url.starts_with("sqlite:") {
            true => without_parameters(url),
            false => "***".to_owned(),
        };
    };
    // An @ after the question mark belongs to a parameter, unless a colon before the question mark shows that the
    // question mark is part of a password.
    let user_and_host = match (rest.find('?'), rest.rfind('@')) {
        (Some(parameters), Some(at)) if parameters < at && !rest[..parameters].contains(':') => {
            None
        }
        _ => rest.rsplit_once('@'),
    };
    let host = |host: &str| match host.rsplit_once(':') {
        // Not a port number, so it may be a password.
        Some((_, port)) if host.starts_with(':') || !is_port(port) => "***".to_owned(),
        Some(_) | None => without_parameters(host),
    };
    match user_and_host {
        None => format!("{scheme}://{}", host(&without_parameters(rest))),
        Some((user, place)) => {
            let (name, _) = user.split_once(':').unwrap_or((user, ""));
            format!("{scheme}://{name}@{}", without_parameters(place))
        }
    }
}

/// Whether the text is a port number with an optional path, or the end of an IPv6 address in brackets.
fn is_port(text: &str) -> bool {
    let number = text.split('/').next().unwrap_or_default();
    number.ends_with(']') || number.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, expected) in [
            ("sqlite:data/tasuki.db", "sqlite:data/tasuki.db"),
            ("mysql://host/db", "mysql://host/db"),
            ("postgres://ann:s3cret@host:5432/db", "postgres://ann@host:5432/db"),
            ("postgres://ann:s3@cret@host/db", "postgres://ann@host/db"),
            ("postgres://ann:s3?cret@host/db", "postgres://ann@host/db"),
            ("mysql://ann@host/db?password=s3cret", "mysql://ann@host/db"),
            ("postgres://db/t?user=x&password=s3@cret", "postgres://db/t"),
            ("postgres://db:5432/t", "postgres://db:5432/t"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("redis://:s3cret", "redis://***"),
            ("postgres:/ann:s3cret@host", "***"),
            ("ann:s3cret@cache:6379", "***"),
        ] {
            assert_eq!(redact_url(url), expected);
        }
        let secrets_of = |url| secrets(url).collect::<Vec<_>>();
        assert_eq!(secrets_of("postgres://ann:s3@cret@host/db"), ["s3@cret"]);
        assert_eq!(secrets_of("postgres://ann:one@host/db?x=y&password=two"), ["one", "two"]);
        assert_eq!(secrets_of("postgres://ann@host/db"), [] as [&str; 0]);
    }
}
