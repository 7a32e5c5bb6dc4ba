//! A running cluster: real nodes and real servers, with a proxy on every connection between them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;
use std::{fs, thread};

use nix::sys::signal::Signal;
use serde_json::Value;
use tasuki_core::{Epoch, WorkerId};
use tasuki_store::{SettingsChangeResult, Store, WorkerRecord};

use crate::cluster_config::{ClusterConfig, Pace, QUICK_SETTINGS};
use crate::database::DatabaseServer;
use crate::network::{NetworkEndpoint, ProxyNetwork};
use crate::process::{Process, child_command};
use crate::servers::RedisDeployment;
use crate::test_support::{
    self, WAIT_TIMEOUT, free_port, last_lines, new_folder, runtime, wait_until,
};

/// A running cluster.
pub struct Cluster {
    /// The node processes, by node index; `None` for a node that does not run. Dropped first if a test fails.
    nodes: Vec<Option<Process>>,
    /// The proxies between the nodes and the servers.
    pub network: ProxyNetwork,
    store: Store,
    pub(crate) database: DatabaseServer,
    pub(crate) redis: RedisDeployment,
    folder: PathBuf,
    config: ClusterConfig,
    /// The RPC port on which each node listens, behind the proxies.
    rpc: Vec<u16>,
}

impl Cluster {
    /// Starts the servers and the nodes, and waits until every node is active and one is the leader.
    pub fn start(config: ClusterConfig) -> Self {
        let folder = new_folder("cluster");
        let database = DatabaseServer::new(config.database);
        let redis = RedisDeployment::start(&config);
        let url = database.url(database.port);
        let store = runtime().block_on(Store::open(&url, 2)).unwrap();
        // On a busy machine the database may end our migration as an idle transaction, so it is retried.
        wait_until("the database is migrated", || {
            let result = runtime().block_on(store.migrate());
            result.inspect_err(|error| eprintln!("the migration failed: {error}")).ok()
        });
        let rpc: Vec<u16> = (0..config.nodes).map(|_| free_port()).collect();
        let network = match config.proxies {
            true => ProxyNetwork::new(&rpc, database.port, &redis.route()),
            false => ProxyNetwork::without_links(),
        };
        let nodes = (0..config.nodes).map(|_| None).collect();
        let mut cluster = Self { nodes, network, store, database, redis, folder, config, rpc };
        if cluster.config.pace == Pace::Quick {
            cluster.change_settings(&QUICK_SETTINGS);
        }
        let mut arguments = vec!["cert", "dev", "--dir", "tls"];
        let names: Vec<String> = cluster.node_names().collect();
        names.iter().for_each(|name| arguments.extend(["--node", name]));
        let output = cluster.cli_command(0, &arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (0..cluster.config.nodes).for_each(|node| cluster.start_node(node));
        cluster.wait_until_ready();
        cluster
    }

    /// The configuration of the cluster.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The names of the nodes, by node index.
    pub fn node_names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.config.nodes).map(node_name)
    }

    /// The folder with the nodes' data, logs and the trace file.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps the folder with the logs after the test, and prints the end of each log, for CI machines whose files are
    /// lost. Returns a message with the path of the folder.
    pub(crate) fn keep_logs(&mut self) -> String {
        self.config.keep_logs = true;
        self.print_logs();
        format!("the logs of the nodes are in {}", self.folder.display())
    }

    fn print_logs(&self) {
        for (node, name) in self.node_names().enumerate() {
            eprintln!("\nend of the log of {name}:\n{}", self.log_tail(node));
        }
    }

    /// Waits until every node is active and one is the leader.
    pub fn wait_until_ready(&mut self) {
        wait_until("every node is active, and one is the leader", || {
            for (node, process) in self.nodes.iter_mut().enumerate() {
                if let Some(ended) = process.as_mut().and_then(Process::try_exit_status) {
                    let log = self.folder.join(format!("{}.log", node_name(node)));
                    panic!("{} ended with {ended}: {}", node_name(node), last_lines(&log, 20));
                }
            }
            let all = (0..self.config.nodes).all(|node| self.active_worker(node).is_some());
            (all && self.leader().is_some()).then_some(())
        });
    }

    /// Starts a node. It must not be running.
    pub fn start_node(&mut self, node: usize) {
        let name = &node_name(node);
        assert!(self.nodes[node].is_none(), "{name} is already running");
        let port = |to, direct| self.network.port(node, to).unwrap_or(direct);
        let mut start = child_command(None, &self.config.binary);
        self.set_environment(node, &mut start);
        start.args(["node", "--node", name, "--listen", "127.0.0.1:0", "--drain", "20s"]);
        start.args(["--tls-dir", &format!("tls/{name}")]);
        start.args(["--rpc-listen", &format!("127.0.0.1:{}", self.rpc[node])]);
        start.args([
            "--rpc-address",
            &format!("127.0.0.1:{}", port(NetworkEndpoint::Node(node), self.rpc[node])),
        ]);
        start.args(["--label", &format!("on-{name}")]);
        let redis = self.redis.url(|own| port(NetworkEndpoint::Redis, own));
        // Passwords are passed in the environment: other users can list command lines.
        start.env(
            "TASUKI_DATABASE_URL",
            self.database.url(port(NetworkEndpoint::Database, self.database.port)),
        );
        if let Some(redis) = redis {
            start.env("TASUKI_REDIS_URL", redis);
        }
        start.env("TASUKI_LOG", "info,tasuki::node::leader=debug");
        let _ = fs::remove_file(self.folder.join(name).join("api.json"));
        let process = Process::start(&mut start, &self.folder.join(format!("{name}.log")));
        self.network.set_node_process(node, process.id());
        self.nodes[node] = Some(process);
    }

    /// Returns the nodes that have ended since the last call, with their exit status, and marks them as not running.
    pub fn take_ended_nodes(&mut self) -> Vec<(String, ExitStatus)> {
        let mut ended = Vec::new();
        for (node, process) in self.nodes.iter_mut().enumerate() {
            if let Some(how) = process.as_mut().and_then(Process::try_exit_status) {
                ended.push((node_name(node), how));
                *process = None;
            }
        }
        ended
    }

    /// Kills a node with SIGKILL.
    pub fn kill_node(&mut self, node: usize) {
        let process = self.nodes[node].take().unwrap();
        process.signal(Signal::SIGKILL);
        process.wait();
    }

    /// Sends SIGTERM to a node. [`Self::wait_until_stopped`] waits for its end.
    pub fn terminate_node(&mut self, node: usize) {
        self.signal_node(node, Signal::SIGTERM);
    }

    /// Waits until a node has ended after [`Self::terminate_node`]; its exit status must be success.
    pub fn wait_until_stopped(&mut self, node: usize) {
        let ended = self.nodes[node].take().unwrap().wait();
        assert!(
            ended.success(),
            "{} stopped with {ended}: {}",
            node_name(node),
            self.log_tail(node)
        );
    }

    /// Sends a signal to a node.
    pub fn signal_node(&self, node: usize, signal: Signal) {
        self.nodes[node].as_ref().unwrap().signal(signal);
    }

    /// Whether the process of a node exists, running or stopped by SIGSTOP.
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].is_some()
    }

    /// The process id of a node.
    pub fn process_id(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(Process::id)
    }

    /// The last 40 lines of a node's log.
    pub fn log_tail(&self, node: usize) -> String {
        last_lines(&self.folder.join(format!("{}.log", node_name(node))), 40)
    }

    /// Whether a node's log contains this text. The log is kept when the node is restarted.
    pub(crate) fn log_contains(&self, node: usize, text: &str) -> bool {
        let log = self.folder.join(format!("{}.log", node_name(node)));
        fs::read_to_string(log).unwrap().contains(text)
    }

    /// Terminates all running nodes in order, and waits until they have ended.
    pub fn stop_all(&mut self) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_up(*node)).collect();
        up.iter().for_each(|node| self.terminate_node(*node));
        up.iter().for_each(|node| self.wait_until_stopped(*node));
    }

    fn set_environment(&self, node: usize, command: &mut Command) {
        command.env("TASUKI_DATA", self.folder.join(node_name(node))).current_dir(&self.folder);
        for variable in ["TASUKI_URL", "TASUKI_TOKEN", "TASUKI_DATABASE_URL", "TASUKI_LISTEN"] {
            command.env_remove(variable);
        }
    }

    fn cli_command(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.config.binary);
        command.args(arguments);
        self.set_environment(node, &mut command);
        command
    }

    /// Runs `tasuki` with these arguments for a node.
    pub fn run_cli(&self, node: usize, arguments: &[&str]) -> Output {
        self.cli_command(node, arguments).output().unwrap()
    }

    /// Runs `tasuki ... --json` on one running node after the other until it succeeds. Returns its JSON output.
    pub fn run_cli_on_any_node(&self, arguments: &[&str]) -> Value {
        wait_until("a command succeeds on some node", || {
            let up = (0..self.nodes.len()).filter(|node| self.is_up(*node));
            let mut outputs = up.map(|node| self.run_cli(node, &[arguments, &["--json"]].concat()));
            let good = outputs.find(|output| output.status.success())?;
            Some(serde_json::from_slice(&good.stdout).unwrap_or(Value::Null))
        })
    }

    /// Queries the store directly, without a proxy. `None` if the database did not answer within two seconds.
    pub fn try_query_store<T>(
        &self,
        query: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> Option<T> {
        self.query_with_timeout(Duration::from_secs(2), query).ok()
    }

    /// Queries the store directly, without a proxy. Panics if the database does not answer: without the data nothing
    /// can be checked.
    #[track_caller]
    pub(crate) fn query_store<T>(
        &self,
        query: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> T {
        let answer = self.query_with_timeout(WAIT_TIMEOUT, query);
        answer.unwrap_or_else(|why| panic!("the database did not answer: {why}"))
    }

    fn query_with_timeout<T>(
        &self,
        limit: Duration,
        query: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> Result<T, String> {
        runtime().block_on(async {
            match tokio::time::timeout(limit, query(&self.store)).await {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(late) => Err(late.to_string()),
            }
        })
    }

    /// Changes cluster-wide settings.
    pub(crate) fn change_settings(&self, changes: &[(&str, &str)]) {
        let changed = self.query_store(async |store| {
            let seen = store.load_settings().await?.version;
            store.change_settings("test", seen, changes).await
        });
        assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");
    }

    /// The leader's node and epoch, if there is a leader with a valid lease.
    pub fn leader(&self) -> Option<(usize, Epoch)> {
        let leader = self.try_query_store(async |store| store.get_leader_record().await)?;
        let holder = leader.holder.filter(|_| leader.lease_until > leader.clock)?;
        Some((self.node_of(holder)?, leader.epoch))
    }

    /// Waits until there is a leader. Returns its node and epoch.
    pub(crate) fn wait_for_leader(&self) -> (usize, Epoch) {
        wait_until("there is a leader", || self.leader())
    }

    /// Waits until there is a leader with a newer epoch than this. Returns its node and epoch.
    pub fn wait_for_leader_after(&self, than: Epoch) -> (usize, Epoch) {
        wait_until("there is a new leader", || self.leader().filter(|(_, epoch)| *epoch > than))
    }

    fn workers(&self) -> Vec<WorkerRecord> {
        self.try_query_store(async |store| store.list_workers().await).unwrap_or_default()
    }

    /// The node of a worker, by its index.
    pub fn node_of(&self, worker: WorkerId) -> Option<usize> {
        let node = self.workers().into_iter().find(|known| known.id == worker)?.node;
        self.node_names().position(|name| node.as_str() == name)
    }

    /// The active worker of a node, if its last heartbeat is less than two seconds old.
    pub fn active_worker(&self, node: usize) -> Option<WorkerId> {
        let here = |worker: &WorkerRecord| {
            worker.node.as_str() == node_name(node) && worker.accepts_work()
        };
        let clock = self.try_query_store(async |store| store.read_clock().await)?;
        // A killed worker is still registered as active until its heartbeat is too old.
        let fresh = |worker: &WorkerRecord| clock.duration_since(worker.heartbeat_at).as_secs() < 2;
        self.workers().into_iter().find(|worker| here(worker) && fresh(worker)).map(|one| one.id)
    }

    /// Whether a worker was detached.
    pub fn is_detached(&self, worker: WorkerId) -> bool {
        self.workers().iter().any(|known| known.id == worker && known.detached_at.is_some())
    }

    /// The indexes of all running nodes except this one.
    pub fn running_nodes_except(&self, than: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| *node != than && self.is_up(*node)).collect()
    }

    /// Sleeps for this time with the default settings, or for a quarter of it with the quick settings.
    pub fn sleep_scaled(&self, time: Duration) {
        thread::sleep(match self.config.pace {
            Pace::Default => time,
            Pace::Quick => time / 4,
        });
    }

    /// Runs SQL with psql. Returns its output.
    pub(crate) fn query_sql(&self, sql: &str) -> String {
        self.database.query(sql)
    }
}

/// The name of a node, by its index: a, b, c, ...
fn node_name(node: usize) -> String {
    match u8::try_from(node) {
        Ok(place @ 0..26) => char::from(b'a' + place).to_string(),
        _ => format!("n{node}"),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_logs();
        }
        let keep = self.config.keep_logs || thread::panicking();
        if keep {
            test_support::keep_folder(&self.folder);
            eprintln!("the logs of the nodes are in {}", self.folder.display());
        }
        self.nodes.clear();
        runtime().block_on(self.store.close());
        if !keep {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
