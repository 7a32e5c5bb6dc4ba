//! Redis servers of a test's own, on ports and in a folder of their own, that can be killed.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::redis::{Client, Connection, FromRedisValue, RedisResult};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PASSWORD: &str = "of-the-data";
pub(crate) const SENTINEL_PASSWORD: &str = "of-the-sentinels";

/// A running server. It dies with the thread that started it, and its folder with this value.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
    arguments: Vec<String>,
    password: &'static str,
    child: Option<Child>,
}

impl Server {
    /// One that keeps nothing on disk.
    pub(crate) fn standalone() -> Self {
        Self::with(&[])
    }

    /// One with more settings than that.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let folder = new_folder();
        let mut arguments = vec!["--save".to_owned(), String::new()];
        arguments.extend(["--requirepass", PASSWORD, "--masterauth", PASSWORD].map(str::to_owned));
        arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
        let mut server =
            Self { port: free_port(), folder, arguments, password: PASSWORD, child: None };
        server.start();
        server
    }

    /// One that watches the server on this port.
    fn sentinel(primary: u16) -> Self {
        let (folder, port) = (new_folder(), free_port());
        let settings = format!(
            "requirepass {SENTINEL_PASSWORD}\n\
             sentinel sentinel-pass {SENTINEL_PASSWORD}\n\
             sentinel monitor main 127.0.0.1 {primary} 2\n\
             sentinel auth-pass main {PASSWORD}\n\
             sentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 3000\n"
        );
        let file = folder.join("sentinel.conf");
        fs::write(&file, settings).unwrap();
        let arguments = vec![file.display().to_string(), "--sentinel".to_owned()];
        let password = SENTINEL_PASSWORD;
        let mut server = Self { port, folder, arguments, password, child: None };
        server.start();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://:{PASSWORD}@127.0.0.1:{}", self.port)
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        let (first, rest) = match self.arguments.split_first() {
            // A file of settings stands before all options.
            Some((file, rest)) if !file.starts_with("--") => (Some(file), rest),
            _ => (None, &self.arguments[..]),
        };
        command.args(first).args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.arg("--dir").arg(&self.folder).args(rest);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let spawned = command.spawn();
        let child = spawned.expect("there is no setpriv: run ./test, which says what is missing");
        self.child = Some(child);
        self.wait("it answers", |server| server.try_ask::<String>(&["PING"]).is_some());
    }

    /// Kills it, which leaves it no time for anything.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops it where it stands: its connections stay, and nobody answers.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().unwrap().id();
        kill(Pid::from_raw(pid as i32), signal).unwrap();
    }

    /// Asks it something.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        command(words).query(&mut self.connection(PATIENCE).unwrap()).unwrap()
    }

    /// Asks it something, and expects little of it.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        command(words).query(&mut self.connection(Duration::from_secs(2)).ok()?).ok()
    }

    fn connection(&self, limit: Duration) -> RedisResult<Connection> {
        let url = format!("redis://:{}@127.0.0.1:{}", self.password, self.port);
        let connection = Client::open(url)?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        Ok(connection)
    }

    /// Waits until something is so; fails if the server ends before.
    pub(crate) fn wait(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "redis-server ended before {what}:\n{}", self.log());
            assert!(Instant::now() < deadline, "waited in vain until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the log of port {} ends:\n{}", self.port, self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A primary, a replica and three sentinels that agree on both.
pub(crate) struct Sentinels {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    pub(crate) sentinels: Vec<Server>,
}

impl Sentinels {
    pub(crate) fn new() -> Self {
        let settings = ["--repl-diskless-sync-delay", "0"];
        let primary = Server::with(&settings);
        let of = format!("127.0.0.1 {}", primary.port);
        let mut replica = Server::with(&[&settings[..], &["--replicaof", &of]].concat());
        replica.wait("the replica follows", |replica| {
            replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let mut sentinels: Vec<Server> = (0..3).map(|_| Server::sentinel(primary.port)).collect();
        for sentinel in &mut sentinels {
            sentinel.wait("the sentinels know each other", |sentinel| {
                let known: String = sentinel.ask(&["INFO", "sentinel"]);
                known.contains("status=ok") && known.contains("slaves=1,sentinels=3")
            });
        }
        Self { primary, replica, sentinels }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|each| format!("127.0.0.1:{}", each.port)).collect();
        format!(
            "redis+sentinel://:{PASSWORD}@{}/main?sentinel_password={SENTINEL_PASSWORD}",
            hosts.join(",")
        )
    }
}

/// A cluster of three primaries.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let buses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        let node = |bus| {
            Server::with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                bus,
                "--cluster-node-timeout",
                "2000",
            ])
        };
        let mut nodes: Vec<Server> = buses.iter().map(|bus| node(bus.as_str())).collect();
        for (index, slots) in
            [["0", "5460"], ["5461", "10922"], ["10923", "16383"]].iter().enumerate()
        {
            nodes[index].ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
            // Two nodes of one epoch would have to settle that first.
            nodes[index].ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for index in 1..3 {
            let port = nodes[index].port.to_string();
            nodes[0].ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &buses[index]]);
        }
        for node in &mut nodes {
            node.wait("the cluster is one", |node| {
                let info: String = node.ask(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            });
        }
        Self { nodes }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.nodes.iter().map(|each| format!("127.0.0.1:{}", each.port)).collect();
        format!("redis+cluster://:{PASSWORD}@{}", hosts.join(","))
    }
}

fn command(words: &[&str]) -> ::redis::Cmd {
    let mut command = ::redis::Cmd::new();
    command.arg(words);
    command
}

fn new_folder() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tasuki_redis_{}_{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // A test that was killed may have left one, and its process number may come again.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    folder
}

/// A port below the range from which the kernel hands out ports by itself. Each process looks in a part of its own,
/// so that tests that run at once do not take each other's; none is given twice.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + ((u64::from(std::process::id()) * 20 + given) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Writes a file into a server's reach.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}
