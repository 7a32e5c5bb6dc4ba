//! A database server of a test's own, on a port and a folder of its own, that can be killed. Started
//! as `.ci/services.sh` starts the servers that all tests share; its settings are the defaults, which
//! are durable.

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

use crate::busy::Dice;

/// Where Debian has the programs that are not on everybody's path.
const POSTGRES: &str = "/usr/lib/postgresql";
const SBIN: &str = "/usr/sbin:/sbin";
/// A server that recovers from a crash takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It dies with the thread that started it, and its folder with this value.
pub(crate) struct Server {
    pub(crate) url: String,
    dialect: Dialect,
    port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// Sets a server up and starts it.
    pub(crate) async fn new(dialect: Dialect) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_server_{}_{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // A test that was killed may have left one, and its process number may come again.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let mut server = Self { url: String::new(), dialect, port: 0, folder, child: None };
        let secret = secret();
        server.prepare(&secret);
        server.port = free_port();
        let (scheme, database) = match dialect {
            Dialect::MySql => ("mysql", "tasuki"),
            _ => ("postgres", "postgres"),
        };
        server.url = format!("{scheme}://tasuki:{secret}@127.0.0.1:{}/{database}", server.port);
        server.start().await;
        server
    }

    fn prepare(&self, secret: &str) {
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
                // Run at every start, one statement a line.
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
            Dialect::Sqlite => unreachable!("it has no server"),
        };
        if is_root() {
            let user = format!("{}:", self.user());
            let owned = Command::new("chown").arg("-R").arg(user).arg(&self.folder).status();
            assert!(owned.unwrap().success(), "there is no user {}", self.user());
        }
        assert!(set_up.status().unwrap().success(), "it cannot be set up:\n{}", self.log());
    }

    /// Starts it on what is in its folder, and waits until it answers.
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
            Dialect::Sqlite => unreachable!("it has no server"),
        };
        let child = self.child.insert(serve.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = Store::reach(&self.url).await {
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                panic!("the server does not start, {status}:\n{}", self.log());
            }
            assert!(Instant::now() < deadline, "it does not answer, {error}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it and every process of it, which leaves it no time for anything.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself:\n{}", self.log());
        end(child);
    }

    /// A program with the server's own user, home and log, which dies with this thread.
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
            Dialect::Sqlite => unreachable!("it has no server"),
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The end of its log.
    fn log(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            end(child);
        }
        if std::thread::panicking() {
            eprintln!("the server's log ends:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Kills a process and its children.
fn end(mut child: Child) {
    // Stopped, it makes no more children while they are looked for; they are in no group with it.
    let pid = Pid::from_raw(child.id() as i32);
    let _ = kill(pid, Signal::SIGSTOP);
    let _ = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
    let children = children_of(pid);
    for &each in [pid].iter().chain(&children) {
        // One that has just gone by itself is as good.
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

/// A program on the path, or where a system keeps its servers.
fn program(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(std::env::split_paths(SBIN));
    let mut found = places.map(|place| place.join(name)).filter(|program| program.is_file());
    found.next().unwrap_or_else(|| missing(name))
}

/// A program of the newest PostgreSQL that has a server.
fn postgres_program(name: &str) -> PathBuf {
    let versions = fs::read_dir(POSTGRES).into_iter().flatten();
    let versions = versions.filter_map(|version| {
        let bin = version.ok()?.path().join("bin");
        // The directory alone may hold no more than a client.
        let number: u32 = bin.parent()?.file_name()?.to_str()?.parse().ok()?;
        bin.join("initdb").is_file().then(|| (number, bin.join(name)))
    });
    versions.max().map_or_else(|| missing(name), |(_, program)| program)
}

fn missing(name: &str) -> PathBuf {
    panic!("there is no {name} on this machine: run ./test, which installs it or says how")
}

/// So much chance that nobody guesses it.
fn chance() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut source = fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut source, &mut bytes).unwrap();
    bytes
}

fn secret() -> String {
    format!("{:032x}", u128::from_ne_bytes(chance()))
}

/// A port below the range from which the kernel hands out ports by itself, or a connection of
/// somebody else could have it while the server is down.
fn free_port() -> u16 {
    let mut dice = Dice(u128::from_ne_bytes(chance()) as u64);
    loop {
        let port = 20_000 + dice.roll(12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw).filter(|&pid| stat(pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// One that is dead but not buried holds nothing any more.
fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// The state and the parent of a process.
fn stat(pid: Pid) -> Option<(String, Pid)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name stands in parentheses and may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, Pid::from_raw(fields.next()?.parse().ok()?)))
}
