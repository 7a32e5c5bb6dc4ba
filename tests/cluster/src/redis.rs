//! Private Redis servers for tests, each with its own port and folder, that a test can stop and kill.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::redis::{Client, Connection, FromRedisValue, RedisResult};
use nix::sys::signal::Signal;

use crate::process::{Process, child_command};
pub use crate::test_support::{WAIT_TIMEOUT, free_port};
use crate::test_support::{last_lines, new_folder};

/// Password of the Redis servers.
pub const PASSWORD: &str = "of-the-data";
/// Password of the sentinels.
pub const SENTINEL_PASSWORD: &str = "of-the-sentinels";

/// A Redis server. Its process ends with the thread that started it; its folder is removed when the value is dropped.
pub struct RedisServer {
    /// The port on which the server listens.
    pub port: u16,
    /// The folder with the server's files.
    pub folder: PathBuf,
    arguments: Vec<String>,
    password: &'static str,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts a server without persistence.
    pub fn standalone() -> Self {
        Self::with_settings(&[])
    }

    /// Starts a server without persistence and with these additional options.
    pub fn with_settings(settings: &[&str]) -> Self {
        let folder = new_folder("redis");
        let mut arguments = vec!["--save".to_owned(), String::new()];
        arguments.extend(["--requirepass", PASSWORD, "--masterauth", PASSWORD].map(str::to_owned));
        arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
        let mut server =
            Self { port: free_port(), folder, arguments, password: PASSWORD, process: None };
        server.start();
        server
    }

    /// Starts a sentinel that monitors the server on this port.
    fn sentinel(primary: u16) -> Self {
        let (folder, port) = (new_folder("redis"), free_port());
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
        let mut server = Self { port, folder, arguments, password, process: None };
        server.start();
        server
    }

    /// The Redis URL for clients.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Starts the server, and waits until it answers.
    pub fn start(&mut self) {
        let mut server = child_command(None, "redis-server");
        let (first, rest) = match self.arguments.split_first() {
            // A configuration file must be the first argument.
            Some((file, rest)) if !file.starts_with("--") => (Some(file), rest),
            _ => (None, &self.arguments[..]),
        };
        server.args(first).args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        server.arg("--dir").arg(&self.folder).args(rest);
        self.process = Some(Process::start(&mut server, &self.log_file()));
        self.wait_until("the server answers", |server| {
            server.try_run_command::<String>(&["PING"]).is_some()
        });
    }

    /// Whether the server process exists, running or stopped.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.process.take().unwrap().kill_tree();
    }

    /// Stops the process with SIGSTOP: its connections stay open, but it does not answer.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Continues the process with SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().unwrap().signal(signal);
    }

    /// Runs a Redis command. Panics if it fails.
    pub fn run_command<T: FromRedisValue>(&self, arguments: &[&str]) -> T {
        redis_command(arguments).query(&mut self.connection(WAIT_TIMEOUT).unwrap()).unwrap()
    }

    /// Runs a Redis command. Returns `None` if it fails or takes longer than two seconds.
    pub fn try_run_command<T: FromRedisValue>(&self, arguments: &[&str]) -> Option<T> {
        redis_command(arguments).query(&mut self.connection(Duration::from_secs(2)).ok()?).ok()
    }

    fn connection(&self, limit: Duration) -> RedisResult<Connection> {
        let url = format!("redis://:{}@127.0.0.1:{}", self.password, self.port);
        let connection = Client::open(url)?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        Ok(connection)
    }

    /// Waits until a condition is true. Panics if the server ends first or after [`WAIT_TIMEOUT`].
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !condition(self) {
            let ended = self.process.as_mut().and_then(Process::try_exit_status);
            assert!(ended.is_none(), "redis-server ended before {what}:\n{}", self.log());
            assert!(Instant::now() < deadline, "timed out waiting until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        last_lines(&self.log_file(), 15)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.take());
        if std::thread::panicking() {
            eprintln!("the log of the server on port {} ends:\n{}", self.port, self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A primary, a replica and three sentinels that monitor them.
pub struct RedisSentinels {
    /// The original primary.
    pub primary: RedisServer,
    /// The replica, which a failover promotes.
    pub replica: RedisServer,
    /// The three sentinels.
    pub sentinels: Vec<RedisServer>,
}

impl RedisSentinels {
    /// Starts all servers, and waits until the sentinels know each other and the replica.
    pub fn start() -> Self {
        let settings = ["--repl-diskless-sync-delay", "0"];
        let primary = RedisServer::with_settings(&settings);
        let of = format!("127.0.0.1 {}", primary.port);
        let mut replica =
            RedisServer::with_settings(&[&settings[..], &["--replicaof", &of]].concat());
        replica.wait_until("the replica follows", |replica| {
            replica
                .run_command::<String>(&["INFO", "replication"])
                .contains("master_link_status:up")
        });
        let mut sentinels: Vec<RedisServer> =
            (0..3).map(|_| RedisServer::sentinel(primary.port)).collect();
        for sentinel in &mut sentinels {
            sentinel.wait_until("the sentinels know each other", |sentinel| {
                let known: String = sentinel.run_command(&["INFO", "sentinel"]);
                known.contains("status=ok") && known.contains("slaves=1,sentinels=3")
            });
        }
        Self { primary, replica, sentinels }
    }

    /// The Redis URL for clients.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|each| format!("127.0.0.1:{}", each.port)).collect();
        format!(
            "redis+sentinel://:{PASSWORD}@{}/main?sentinel_password={SENTINEL_PASSWORD}",
            hosts.join(",")
        )
    }
}

/// A Redis Cluster of three primaries.
pub struct RedisCluster {
    /// The three servers.
    pub nodes: Vec<RedisServer>,
    /// The ports that the servers announce to clients, in the same order.
    announced_ports: Vec<u16>,
}

impl RedisCluster {
    /// Starts all servers, and waits until the cluster is complete.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Like [`Self::start`], but the servers announce these ports to clients.
    pub(crate) fn announcing(ports: [u16; 3]) -> Self {
        Self::start_with(Some(ports))
    }

    fn start_with(announced: Option<[u16; 3]>) -> Self {
        let buses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        let node = |(index, bus): (usize, &String)| {
            let mut settings = vec!["--cluster-enabled", "yes", "--cluster-port", bus];
            settings.extend(["--cluster-node-timeout", "2000"]);
            let announced = announced.map(|ports| ports[index].to_string());
            settings.extend(announced.iter().flat_map(|port| ["--cluster-announce-port", port]));
            RedisServer::with_settings(&settings)
        };
        let mut nodes: Vec<RedisServer> = buses.iter().enumerate().map(node).collect();
        for (index, slots) in
            [["0", "5460"], ["5461", "10922"], ["10923", "16383"]].iter().enumerate()
        {
            nodes[index].run_command::<()>(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
            // Different epochs save the time in which two nodes with the same epoch would resolve the conflict.
            nodes[index].run_command::<()>(&[
                "CLUSTER",
                "SET-CONFIG-EPOCH",
                &(index + 1).to_string(),
            ]);
        }
        for index in 1..3 {
            let port = nodes[index].port.to_string();
            nodes[0].run_command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &buses[index]]);
        }
        let own: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        let announced_ports = announced.map_or(own, Vec::from);
        for node in &mut nodes {
            node.wait_until("the cluster is complete", |node| {
                let info: String = node.run_command(&["CLUSTER", "INFO"]);
                let nodes: String = node.run_command(&["CLUSTER", "NODES"]);
                info.contains("cluster_state:ok")
                    && info.contains("cluster_known_nodes:3")
                    && announced_ports.iter().all(|port| nodes.contains(&format!(":{port}@")))
            });
        }
        Self { nodes, announced_ports }
    }

    /// The Redis URL for clients.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.announced_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://:{PASSWORD}@{}", hosts.join(","))
    }

    /// Pairs of each server's real port and the port that it announces.
    pub(crate) fn port_pairs(&self) -> Vec<(u16, u16)> {
        self.nodes.iter().map(|each| each.port).zip(self.announced_ports.iter().copied()).collect()
    }
}

/// The Redis URL of a server on this port.
pub(crate) fn url(port: u16) -> String {
    format!("redis://:{PASSWORD}@127.0.0.1:{port}")
}

fn redis_command(arguments: &[&str]) -> ::redis::Cmd {
    let mut command = ::redis::Cmd::new();
    command.arg(arguments);
    command
}

/// Writes a file into a server's folder. Returns its path.
pub fn write_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}
