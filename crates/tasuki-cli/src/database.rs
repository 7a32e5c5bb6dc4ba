//! Commands that go to a database themselves: how they are told where it is, and how they fail.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use tasuki_store::{Error, Store};
use tokio::runtime::Runtime;

use crate::output::Failure;

/// What the database in a data directory is called.
pub(crate) const FILE: &str = "tasuki.db";

/// The URL of the database in a data directory.
pub(crate) fn in_directory(data: &Path) -> String {
    format!("sqlite:{}", data.join(FILE).display())
}

/// Where the database is.
#[derive(Args)]
pub(crate) struct Database {
    /// The database: sqlite:FILE, postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: String,
}

/// Where the database is, for those who may also be told where its node keeps its things.
#[derive(Args)]
pub(crate) struct DataOrDatabase {
    /// The data directory of a `tasuki up`
    #[arg(long, env = "TASUKI_DATA", default_value = "tasuki-data", value_name = "DIR")]
    data: PathBuf,

    /// Another database than the file in the data directory: sqlite:FILE,
    /// postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

impl DataOrDatabase {
    pub(crate) fn database(&self) -> Database {
        let url = self.database_url.clone();
        Database::at(url.unwrap_or_else(|| in_directory(&self.data)))
    }

    /// Whether it was named, so that one that is not there is to be made.
    pub(crate) fn is_named(&self) -> bool {
        self.database_url.is_some()
    }
}

impl Database {
    /// One that is at this URL.
    pub(crate) fn at(database_url: String) -> Self {
        Self { database_url }
    }

    /// Does something with the database and closes it. One that does not answer is told at once.
    pub(crate) fn with<T>(
        &self,
        may_create: bool,
        work: impl AsyncFnOnce(&Store) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::refused(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            let store = self.open(may_create).await.map_err(|error| self.unopened(&error))?;
            let outcome = work(&store).await;
            store.close().await;
            outcome.map_err(|error| self.failed(&error))
        })
    }

    /// What a node with this database runs in. SQLite works in a thread of this process, which has a core to itself where there
    /// is more than one: it and the program would only keep each other waiting.
    pub(crate) fn runtime(&self) -> Result<Runtime, Failure> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let told = std::env::var_os("TOKIO_WORKER_THREADS").is_some();
        if self.database_url.starts_with("sqlite:") && cores > 1 && !told {
            runtime.worker_threads(cores - 1);
        }
        let runtime = runtime.enable_all().build();
        runtime.map_err(|error| Failure::refused(format!("cannot start: {error}")))
    }

    async fn open(&self, may_create: bool) -> Result<Store, Error> {
        match Store::reach(&self.database_url).await {
            Err(Error::NoFile { .. }) if may_create => {}
            answer => answer?,
        }
        Store::open(&self.database_url, 1).await
    }

    pub(crate) fn unopened(&self, error: &Error) -> Failure {
        let shown = shown(&self.database_url);
        match error {
            Error::NoFile { .. } => Failure::refused(error.to_string())
                .hint("tasuki up makes one in its data directory, tasuki migrate --database-url makes one anywhere; check the path if it should be there"),
            error if error.is_invalid_input() => Failure::bad_usage(self.told(error))
                .hint("a URL is sqlite:FILE, postgres://USER:PASSWORD@HOST/NAME or mysql://USER:PASSWORD@HOST/NAME; % and @ in a password are written %25 and %40"),
            error => {
                let hint = match self.database_url.starts_with("sqlite:") {
                    true => "is it a SQLite database, and may it be read and written?",
                    false => "is the server running, and are host, port, user, password and name right?",
                };
                Failure::refused(format!("cannot open {shown}: {}", self.told(error))).hint(hint)
            }
        }
    }

    /// Where it is. Never to be printed: it may hold a password.
    pub(crate) fn url(&self) -> &str {
        &self.database_url
    }

    pub(crate) fn failed(&self, error: &Error) -> Failure {
        let failure = Failure::refused(self.told(error));
        match error {
            Error::NewerSchema { .. } => {
                failure.hint("use the tasuki that made it or a newer one; nothing was changed")
            }
            Error::Migration { .. } => {
                failure.hint("docs/operating/doctor.md says what to do about the schema")
            }
            _ => failure,
        }
    }

    /// The words of an error, without the password should they hold it.
    fn told(&self, error: &Error) -> String {
        let hide = |text: String, secret: &str| text.replace(secret, "***");
        secrets(&self.database_url).fold(error.to_string(), hide)
    }
}

/// What stands between the user's name and the host, and what is given as a parameter.
fn secrets(url: &str) -> impl Iterator<Item = &str> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    let in_front = user.split_once(':').map(|(_, password)| password);
    let parameters = url.split(['?', '&']).filter_map(|one| one.strip_prefix("password="));
    in_front.into_iter().chain(parameters).filter(|secret| !secret.is_empty())
}

/// A URL as it may be shown: without its password, and without parameters, which may hold one. What does not read as a
/// URL is not shown at all: nobody knows what is secret in it.
pub(crate) fn shown(url: &str) -> String {
    let without_parameters = |place: &str| place.split('?').next().unwrap_or_default().to_owned();
    let Some((scheme, rest)) = url.split_once("://") else {
        return match url.starts_with("sqlite:") {
            true => without_parameters(url),
            false => "***".to_owned(),
        };
    };
    // Behind a question mark an @ is part of a parameter, unless there is another before which a password stands.
    let user_and_host = match (rest.find('?'), rest.rfind('@')) {
        (Some(parameters), Some(at)) if parameters < at && !rest[..parameters].contains(':') => {
            None
        }
        _ => rest.rsplit_once('@'),
    };
    let host = |host: &str| match host.rsplit_once(':') {
        // Not a port, so perhaps a password.
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

/// Whether this is a port and what may follow it, or the end of an address in brackets.
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
            assert_eq!(shown(url), expected);
        }
        let of = |url| secrets(url).collect::<Vec<_>>();
        assert_eq!(of("postgres://ann:s3@cret@host/db"), ["s3@cret"]);
        assert_eq!(of("postgres://ann:one@host/db?x=y&password=two"), ["one", "two"]);
        assert_eq!(of("postgres://ann@host/db"), [] as [&str; 0]);
    }
}
