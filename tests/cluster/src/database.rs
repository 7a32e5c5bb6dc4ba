//! A private database server for one cluster, which a test can stop, kill and start again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use tasuki_store::Store;

use crate::process::{Process, child_command, chown_to};
use crate::test_support::{free_port, last_lines, new_folder, runtime, wait_until};

/// The kind of database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

const PASSWORD: &str = "of-the-database";

/// A database server with durable settings: acknowledged writes survive a crash.
pub(crate) struct DatabaseServer {
    kind: DatabaseKind,
    folder: PathBuf,
    pub(crate) port: u16,
    process: Option<Process>,
}

impl DatabaseServer {
    pub(crate) fn new(kind: DatabaseKind) -> Self {
        let mut database =
            Self { kind, folder: new_folder("database"), port: free_port(), process: None };
        chown_to(kind.user(), &database.folder);
        database.initialize();
        database.start();
        if kind == DatabaseKind::Postgres {
            database
                .run_script(&database.url_of(database.port, "postgres"), "create database tasuki");
        }
        database
    }

    /// The database URL, with this port (the server's own port or that of a proxy).
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

    fn run_script(&self, url: &str, text: &str) {
        runtime().block_on(async {
            let store = Store::open(url, 1).await.unwrap();
            store.execute_script(text).await.unwrap();
            store.close().await;
        });
    }

    fn initialize(&self) {
        let data = self.folder.join("data");
        let mut command = match self.kind {
            DatabaseKind::Postgres => {
                let password = self.folder.join("password");
                fs::write(&password, PASSWORD).unwrap();
                let mut command = child_command(Some(self.kind.user()), postgres_program("initdb"));
                command.args(["-U", "tasuki", "-A", "md5", "--no-sync", "-E", "UTF8"]);
                command.args(["--locale=C.UTF-8", "-D"]).arg(data).arg("--pwfile").arg(password);
                command
            }
            DatabaseKind::MariaDb => {
                let sql = format!(
                    "create database if not exists tasuki;\n\
                     create user if not exists tasuki@'127.0.0.1' identified by '{PASSWORD}';\n\
                     grant all on *.* to tasuki@'127.0.0.1' with grant option;\n"
                );
                fs::write(self.folder.join("init.sql"), sql).unwrap();
                let mut command = child_command(Some(self.kind.user()), "mariadb-install-db");
                command.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                command.arg("--skip-test-db").arg(path_option("--datadir", &data));
                command
            }
        };
        let output =
            command.env("TMPDIR", &self.folder).current_dir(&self.folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts the server, and waits until it answers.
    pub(crate) fn start(&mut self) {
        let data = self.folder.join("data");
        let mut server = match self.kind {
            DatabaseKind::Postgres => {
                let mut server =
                    child_command(Some(self.kind.user()), postgres_program("postgres"));
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
                let mut server = child_command(Some(self.kind.user()), "mariadbd");
                server.arg("--no-defaults").arg(path_option("--datadir", &data));
                server.arg(path_option("--socket", &self.folder.join("socket")));
                server.arg(path_option("--pid-file", &self.folder.join("pid")));
                server.arg(path_option("--init-file", &self.folder.join("init.sql")));
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
        wait_until("the database answers", || {
            if process.try_exit_status().is_some() {
                // The shared memory of a killed server may still exist for a moment: start again.
                process = Process::start(&mut server, &log);
            }
            runtime().block_on(Store::probe(&url)).ok()
        });
        self.process = Some(process);
    }

    /// Runs SQL on PostgreSQL with psql. Returns the output.
    pub(crate) fn query(&self, sql: &str) -> String {
        let mut psql = Command::new(postgres_program("psql"));
        psql.env("PGPASSWORD", PASSWORD).args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "tasuki", "tasuki"]);
        let answer = psql.output().unwrap();
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Stops the server in order; it closes all connections.
    pub(crate) fn stop(&mut self) {
        let process = self.process.take().unwrap();
        process.signal(match self.kind {
            DatabaseKind::Postgres => Signal::SIGINT,
            DatabaseKind::MariaDb => Signal::SIGTERM,
        });
        let ended = process.wait();
        assert!(ended.success(), "{ended}: {}", last_lines(&self.folder.join("log"), 20));
    }

    /// Kills the server and its child processes with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill_tree();
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill_tree();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl DatabaseKind {
    /// The user that runs the server if this process is root: PostgreSQL refuses to run as root.
    fn user(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
        }
    }
}

/// A command-line option with a path as its value.
fn path_option(option: &str, path: &Path) -> String {
    format!("{option}={}", path.display())
}

/// Finds a program of the newest installed PostgreSQL version.
fn postgres_program(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(program));
    let newest = found.filter(|path| path.exists()).max_by_key(|path| {
        let version = path.components().rev().nth(2).map(|one| one.as_os_str().to_owned());
        version.and_then(|one| one.to_str()?.parse::<u32>().ok())
    });
    newest.unwrap_or_else(|| {
        // Not installed in Debian's directories: search the path.
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        assert!(
            !found.is_empty(),
            "{program} was not found; run ./test, which names missing packages"
        );
        PathBuf::from(found.trim())
    })
}
