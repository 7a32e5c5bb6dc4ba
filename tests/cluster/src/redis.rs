//! Redis servers of a test's own, on ports and in a folder of their own, that can be killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::redis::{Client, Connection, FromRedisValue, RedisResult};
use nix::sys::signal::Signal;

pub use crate::place::{PATIENCE, free_port};
use crate::place::{new_folder, tail};
use crate::process::{Process, command};

/// What the data is kept behind.
pub const PASSWORD: &str = "of-the-data";
/// What the sentinels are kept behind.
pub const SENTINEL_PASSWORD: &str = "of-the-sentinels";

/// A running server. It dies with the thread that started it, and its folder with this value.
pub struct Server {
    /// Where it is served.
    pub port: u16,
    /// What is its own.
    pub folder: PathBuf,
    arguments: Vec<String>,
    password: &'static str,
    process: Option<Process>,
}

impl Server {
    /// One that keeps nothing on disk.
    pub fn standalone() -> Self {
        Self::with(&[])
    }

    /// One with more settings than that.
    pub fn with(settings: &[&str]) -> Self {
        let folder = new_folder("redis");
        let mut arguments = vec!["--save".to_owned(), String::new()];
        arguments.extend(["--requirepass", PASSWORD, "--masterauth", PASSWORD].map(str::to_owned));
        arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
        let mut server =
            Self { port: free_port(), folder, arguments, password: PASSWORD, process: None };
        server.start();
        server
    }

    /// One that watches the server on this port.
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

    /// Where it is.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Starts it, and waits until it answers.
    pub fn start(&mut self) {
        let mut server = command(None, "redis-server");
        let (first, rest) = match self.arguments.split_first() {
            // A file of settings stands before all options.
            Some((file, rest)) if !file.starts_with("--") => (Some(file), rest),
            _ => (None, &self.arguments[..]),
        };
        server.args(first).args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        server.arg("--dir").arg(&self.folder).args(rest);
        self.process = Some(Process::start(&mut server, &self.log_file()));
        self.wait("it answers", |server| server.try_ask::<String>(&["PING"]).is_some());
    }

    /// Whether it runs, or stands still.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Kills it, which leaves it no time for anything.
    pub fn kill(&mut self) {
        self.process.take().unwrap().kill_all();
    }

    /// Stops it where it stands: its connections stay, and nobody answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().unwrap().signal(signal);
    }

    /// Asks it something.
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        asked(words).query(&mut self.connection(PATIENCE).unwrap()).unwrap()
    }

    /// Asks it something, and expects little of it.
    pub fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        asked(words).query(&mut self.connection(Duration::from_secs(2)).ok()?).ok()
    }

    fn connection(&self, limit: Duration) -> RedisResult<Connection> {
        let url = format!("redis://:{}@127.0.0.1:{}", self.password, self.port);
        let connection = Client::open(url)?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        Ok(connection)
    }

    /// Waits until something is so; fails if the server ends before.
    pub fn wait(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            let ended = self.process.as_mut().and_then(Process::ended);
            assert!(ended.is_none(), "redis-server ended before {what}:\n{}", self.log());
            assert!(Instant::now() < deadline, "waited in vain until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        tail(&self.log_file(), 15)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.take());
        if std::thread::panicking() {
            eprintln!("the log of port {} ends:\n{}", self.port, self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A primary, a replica and three sentinels that agree on both.
pub struct Sentinels {
    /// The first of the data.
    pub primary: Server,
    /// Its copy.
    pub replica: Server,
    /// Who watch both.
    pub sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all, and waits until they agree.
    pub fn start() -> Self {
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

    /// Where it is.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|each| format!("127.0.0.1:{}", each.port)).collect();
        format!(
            "redis+sentinel://:{PASSWORD}@{}/main?sentinel_password={SENTINEL_PASSWORD}",
            hosts.join(",")
        )
    }
}

/// A cluster of three primaries.
pub struct Cluster {
    /// All of them.
    pub nodes: Vec<Server>,
    /// The ports that they tell whoever asks where they are.
    told: Vec<u16>,
}

impl Cluster {
    /// Starts all, and waits until they are one.
    pub fn start() -> Self {
        Self::of(None)
    }

    /// As [`Self::start`], and whoever asks them where they are is told these ports.
    pub(crate) fn announcing(ports: [u16; 3]) -> Self {
        Self::of(Some(ports))
    }

    fn of(announced: Option<[u16; 3]>) -> Self {
        let buses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        let node = |(index, bus): (usize, &String)| {
            let mut settings = vec!["--cluster-enabled", "yes", "--cluster-port", bus];
            settings.extend(["--cluster-node-timeout", "2000"]);
            let announced = announced.map(|ports| ports[index].to_string());
            settings.extend(announced.iter().flat_map(|port| ["--cluster-announce-port", port]));
            Server::with(&settings)
        };
        let mut nodes: Vec<Server> = buses.iter().enumerate().map(node).collect();
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
        let own: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        let told = announced.map_or(own, Vec::from);
        for node in &mut nodes {
            node.wait("the cluster is one", |node| {
                let info: String = node.ask(&["CLUSTER", "INFO"]);
                let nodes: String = node.ask(&["CLUSTER", "NODES"]);
                info.contains("cluster_state:ok")
                    && info.contains("cluster_known_nodes:3")
                    && told.iter().all(|port| nodes.contains(&format!(":{port}@")))
            });
        }
        Self { nodes, told }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.told.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+cluster://:{PASSWORD}@{}", hosts.join(","))
    }

    /// The port of each, beside the one that it tells.
    pub(crate) fn doors(&self) -> Vec<(u16, u16)> {
        self.nodes.iter().map(|each| each.port).zip(self.told.iter().copied()).collect()
    }
}

/// Where a server is that is found at this port.
pub(crate) fn url(port: u16) -> String {
    format!("redis://:{PASSWORD}@127.0.0.1:{port}")
}

fn asked(words: &[&str]) -> ::redis::Cmd {
    let mut command = ::redis::Cmd::new();
    command.arg(words);
    command
}

/// Writes a file into a server's reach.
pub fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}
