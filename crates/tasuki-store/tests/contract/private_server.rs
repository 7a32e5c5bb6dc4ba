//! A private database server for one test, with its own port and folder, that the test can kill. It is started like the
//! shared servers in `.ci/services.sh`, but with default settings, which are durable.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tasuki_store::{Dialect, Store};

use crate::random_load::TestRandom;

/// Directories of Debian with server programs that are not on the default path.
const POSTGRES_DIR: &str = "/usr/lib/postgresql";
const SBIN_DIRS: &str = "/usr/sbin:/sbin";
/// A server that recovers from a crash takes a second or two.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. Its process ends with the thread that started it; its folder is removed when the value is dropped.
pub(crate) struct PrivateServer {
    pub(crate) url: String,
    dialect: Dialect,
    port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

impl PrivateServer {
    /// Sets a server up and starts it.
    pub(crate) async fn new(dialect: Dialect) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_server_{}_{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // A killed test may have left a folder behind, and its process id may be reused.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let mut server = Self { url: String::new(), dialect, port: 0, folder, child: None };
        let secret = new_password();
        server.initialize(&secret);
        server.port = free_port();
        let (scheme, database) = match dialect {
            Dialect::MySql => ("mysql", "tasuki"),
            _ => ("postgres", "postgres"),
        };
        server.url = format!("{scheme}://tasuki:{secret}@127.0.0.1:{}/{database}", server.port);
        server.start().await;
        server
    }

    fn initialize(&self, secret: &str) {
        let data = self.folder.join("data");
        let mut set_up = match self.dialect {
            Dialect::Postgres => {
                let password = self.folder.join("password");
                fs::write(&password, secret).unwrap();
                let mut initdb = self.command(&postgres_program("initdb"));
                initdb.args(["-U", "tasuki", "-A", "md5", "--no-sync", "-E", "UTF8"]);
                initdb.arg("--locale=C.UTF-8").arg("-D").arg(data).arg("--pwfile").arg(password);
                initdb
            }
            Dialect::MySql => {
                // The server runs this file at every start; each statement must stand on one line.
                let first = format!(
                    "create database if not exists tasuki;\n\
                     create user if not exists tasuki@'127.0.0.1' identified by '{secret}';\n\
                     grant all on *.* to tasuki@'127.0.0.1';\n\
                     alter user root@localhost identified by '{secret}';\n"
                );
                fs::write(self.folder.join("first.sql"), first).unwrap();
                let mut install = self.command(&program("mariadb-install-db"));
                install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
                install.arg("--skip-test-db").arg(option("--datadir", &data));
                install
            }
            Dialect::Sqlite => unreachable!("SQLite has no server"),
        };
        if is_root() {
            let user = format!("{}:", self.user());
            let owned = Command::new("chown").arg("-R").arg(user).arg(&self.folder).status();
            assert!(owned.unwrap().success(), "chown failed: is there no user {}?", self.user());
        }
        assert!(set_up.status().unwrap().success(), "the server cannot be set up:\n{}", self.log());
    }

    /// Starts the server with the data of its folder, and waits until it answers.
    pub(crate) async fn start(&mut self) {
        let data = self.folder.join("data");
        let mut serve = match self.dialect {
            Dialect::Postgres => {
                let mut postgres = self.command(&postgres_program("postgres"));
                postgres.arg("-D").arg(data).args(["-p", &self.port.to_string()]);
                postgres.args(["-c", "listen_addresses=127.0.0.1"]);
                postgres.args(["-c", "unix_socket_directories="]);
                postgres
            }
            Dialect::MySql => {
                let mut mariadbd = self.command(&program("mariadbd"));
                mariadbd.arg("--no-defaults").arg(option("--datadir", &data));
                mariadbd.arg(option("--socket", &self.folder.join("socket")));
                mariadbd.arg(option("--pid-file", &self.folder.join("pid")));
                mariadbd.arg(option("--init-file", &self.folder.join("first.sql")));
                mariadbd.arg(format!("--port={}", self.port)).arg("--bind-address=127.0.0.1");
                mariadbd.args(["--skip-name-resolve", "--character-set-server=utf8mb4"]);
                mariadbd.arg("--collation-server=utf8mb4_bin");
                mariadbd
            }
            Dialect::Sqlite => unreachable!("SQLite has no server"),
        };
        let child = self.child.insert(serve.spawn().unwrap());
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = Store::probe(&self.url).await {
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                panic!("the server does not start, {status}:\n{}", self.log());
            }
            assert!(
                Instant::now() < deadline,
                "the server does not answer, {error}:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills all processes of the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the server ended before the kill:\n{}",
            self.log()
        );
        kill_with_children(child);
    }

    /// A command with the server's user, home directory and log file, which is killed when this thread ends.
    fn command(&self, program: &Path) -> Command {
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new("setpriv");
        // PostgreSQL refuses to run as root.
        if is_root() {
            command.args(["--reuid", self.user(), "--regid", self.user(), "--init-groups"]);
        }
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.env("HOME", &self.folder).env("TMPDIR", &self.folder).current_dir(&self.folder);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        command
    }

    fn user(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "postgres",
            Dialect::MySql => "mysql",
            Dialect::Sqlite => unreachable!("SQLite has no server"),
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The last 15 lines of the server log.
    fn log(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            kill_with_children(child);
        }
        if std::thread::panicking() {
            eprintln!("the server's log ends:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Kills a process and its children.
fn kill_with_children(mut child: Child) {
    // A stopped process starts no more children while we list them; the children are not in its process group.
    let pid = Pid::from_raw(child.id() as i32);
    let _ = kill(pid, Signal::SIGSTOP);
    let _ = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
    let children = children_of(pid);
    for &each in [pid].iter().chain(&children) {
        // A child that has just ended needs no signal.
        let _ = kill(each, Signal::SIGKILL);
    }
    let _ = child.wait();
    while children.iter().any(|&each| is_alive(each)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Finds a program on the path or in the sbin directories.
fn program(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(std::env::split_paths(SBIN_DIRS));
    let mut found = places.map(|place| place.join(name)).filter(|program| program.is_file());
    found.next().unwrap_or_else(|| panic_missing(name))
}

/// Finds a program of the newest PostgreSQL version that is installed with a server.
fn postgres_program(name: &str) -> PathBuf {
    let versions = fs::read_dir(POSTGRES_DIR).into_iter().flatten();
    let versions = versions.filter_map(|version| {
        let bin = version.ok()?.path().join("bin");
        // A version directory without initdb contains only the client programs.
        let number: u32 = bin.parent()?.file_name()?.to_str()?.parse().ok()?;
        bin.join("initdb").is_file().then(|| (number, bin.join(name)))
    });
    versions.max().map_or_else(|| panic_missing(name), |(_, program)| program)
}

fn panic_missing(name: &str) -> PathBuf {
    panic!("{name} was not found; run ./test, which installs it or names the missing package")
}

/// Random bytes from the operating system.
fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut source = fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut source, &mut bytes).unwrap();
    bytes
}

fn new_password() -> String {
    format!("{:032x}", u128::from_ne_bytes(random_bytes()))
}

/// Finds a free port below the kernel's range of ephemeral ports: otherwise another connection could get the port
/// while the server is down.
fn free_port() -> u16 {
    let mut random = TestRandom(u128::from_ne_bytes(random_bytes()) as u64);
    loop {
        let port = 20_000 + random.below(12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw)
        .filter(|&pid| read_state_and_parent(pid).is_some_and(|(_, of)| of == parent))
        .collect()
}

/// Whether a process is alive. A zombie counts as dead: it holds no files or ports.
fn is_alive(pid: Pid) -> bool {
    read_state_and_parent(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// The state and the parent of a process.
fn read_state_and_parent(pid: Pid) -> Option<(String, Pid)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the process is in parentheses and may contain any character.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, Pid::from_raw(fields.next()?.parse().ok()?)))
}
