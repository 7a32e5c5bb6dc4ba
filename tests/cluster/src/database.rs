//! A database server of a test's own, which can be stopped, killed and started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use tasuki_store::Store;

use crate::place::{free_port, new_folder, runtime, tail, until};
use crate::process::{Process, command, own};

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

const PASSWORD: &str = "of-the-database";

/// A running server; what it acknowledged, it still has after a crash.
pub(crate) struct Database {
    kind: DatabaseKind,
    folder: PathBuf,
    pub(crate) port: u16,
    process: Option<Process>,
}

impl Database {
    pub(crate) fn new(kind: DatabaseKind) -> Self {
        let mut database =
            Self { kind, folder: new_folder("database"), port: free_port(), process: None };
        own(kind.user(), &database.folder);
        database.prepare();
        database.start();
        if kind == DatabaseKind::Postgres {
            database.script(&database.url_of(database.port, "postgres"), "create database tasuki");
        }
        database
    }

    /// Where it is, through this port.
    pub(crate) fn url(&self, port: u16) -> String {
        self.url_of(port, "tasuki")
    }

    fn url_of(&self, port: u16, name: &str) -> String {
        let scheme = match self.kind {
            DatabaseKind::Postgres => "postgres",
            DatabaseKind::MariaDb => "mysql",
        };
        format!("{scheme}://tasuki:{PASSWORD}@127.0.0.1:{port}/{name}")
    }

    fn script(&self, url: &str, text: &str) {
        runtime().block_on(async {
            let store = Store::open(url, 1).await.unwrap();
            store.script(text).await.unwrap();
            store.close().await;
        });
    }

    fn prepare(&self) {
        let data = self.folder.join("data");
        let mut made = match self.kind {
            DatabaseKind::Postgres => {
                let password = self.folder.join("password");
                fs::write(&password, PASSWORD).unwrap();
                let mut made = command(Some(self.kind.user()), postgres("initdb"));
                made.args(["-U", "tasuki", "-A", "md5", "--no-sync", "-E", "UTF8"]);
                made.args(["--locale=C.UTF-8", "-D"]).arg(data).arg("--pwfile").arg(password);
                made
            }
            DatabaseKind::MariaDb => {
                let first = format!(
                    "create database if not exists tasuki;\n\
                     create user if not exists tasuki@'127.0.0.1' identified by '{PASSWORD}';\n\
                     grant all on *.* to tasuki@'127.0.0.1' with grant option;\n"
                );
                fs::write(self.folder.join("first.sql"), first).unwrap();
                let mut made = command(Some(self.kind.user()), "mariadb-install-db");
                made.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                made.arg("--skip-test-db").arg(named("--datadir", &data));
                made
            }
        };
        let made = made.env("TMPDIR", &self.folder).current_dir(&self.folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn start(&mut self) {
        let data = self.folder.join("data");
        let mut server = match self.kind {
            DatabaseKind::Postgres => {
                let mut server = command(Some(self.kind.user()), postgres("postgres"));
                server.arg("-D").arg(data).args(["-p", &self.port.to_string()]);
                for setting in [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "fsync=on",
                    "max_connections=1000",
                    "shared_preload_libraries=pg_stat_statements",
                ] {
                    server.args(["-c", setting]);
                }
                server
            }
            DatabaseKind::MariaDb => {
                let mut server = command(Some(self.kind.user()), "mariadbd");
                server.arg("--no-defaults").arg(named("--datadir", &data));
                server.arg(named("--socket", &self.folder.join("socket")));
                server.arg(named("--pid-file", &self.folder.join("pid")));
                server.arg(named("--init-file", &self.folder.join("first.sql")));
                server.arg(format!("--port={}", self.port));
                server.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
                server.args(["--innodb-flush-log-at-trx-commit=1", "--skip-log-bin"]);
                server.args(["--character-set-server=utf8mb4", "--max-connections=1000"]);
                server.arg("--collation-server=utf8mb4_bin");
                server
            }
        };
        let log = self.folder.join("log");
        server.env("TMPDIR", &self.folder).current_dir(&self.folder);
        let mut process = Process::start(&mut server, &log);
        let url = match self.kind {
            DatabaseKind::Postgres => self.url_of(self.port, "postgres"),
            DatabaseKind::MariaDb => self.url(self.port),
        };
        until("the database answers", || {
            if process.ended().is_some() {
                // What was killed may leave behind what it shared for a moment.
                process = Process::start(&mut server, &log);
            }
            runtime().block_on(Store::reach(&url)).ok()
        });
        self.process = Some(process);
    }

    /// What PostgreSQL answers to a question in its own words.
    pub(crate) fn query(&self, sql: &str) -> String {
        let mut asked = Command::new(postgres("psql"));
        asked.env("PGPASSWORD", PASSWORD).args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        asked.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "tasuki", "tasuki"]);
        let answer = asked.output().unwrap();
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Stops it in order; everybody who is connected is sent away.
    pub(crate) fn stop(&mut self) {
        let process = self.process.take().unwrap();
        process.signal(match self.kind {
            DatabaseKind::Postgres => Signal::SIGINT,
            DatabaseKind::MariaDb => Signal::SIGTERM,
        });
        let ended = process.wait();
        assert!(ended.success(), "{ended}: {}", tail(&self.folder.join("log"), 20));
    }

    /// Kills it, which leaves it no time for anything.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill_all();
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill_all();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl DatabaseKind {
    /// As whom it runs, if we are root: PostgreSQL refuses to run as root.
    fn user(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
        }
    }
}

fn named(option: &str, path: &Path) -> String {
    format!("{option}={}", path.display())
}

/// A program of the newest PostgreSQL that is installed.
fn postgres(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(program));
    let newest = found.filter(|path| path.exists()).max_by_key(|path| {
        let version = path.components().rev().nth(2).map(|one| one.as_os_str().to_owned());
        version.and_then(|one| one.to_str()?.parse::<u32>().ok())
    });
    newest.unwrap_or_else(|| {
        // Where it is not installed as Debian does it, it is found or the error says so.
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        assert!(!found.is_empty(), "there is no {program}: run ./test, which says what is missing");
        PathBuf::from(found.trim())
    })
}
