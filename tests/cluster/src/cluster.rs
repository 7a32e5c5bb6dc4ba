//! Real nodes on real servers, with a wire on every way between them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;
use std::{fs, thread};

use nix::sys::signal::Signal;
use serde_json::Value;
use tasuki_core::{Epoch, WorkerId};
use tasuki_store::{SettingsChange, Store, Worker};

use crate::database::Database;
use crate::net::{Net, Party};
use crate::place::{self, PATIENCE, free_port, new_folder, runtime, tail, until};
use crate::plan::{Pace, Plan, QUICK};
use crate::process::{Process, command};
use crate::servers::Redis;

/// A running cluster.
pub struct Cluster {
    /// The first to go, should a test fail.
    nodes: Vec<Option<Process>>,
    /// The wires between all.
    pub net: Net,
    store: Store,
    pub(crate) database: Database,
    pub(crate) redis: Redis,
    folder: PathBuf,
    plan: Plan,
    /// Where each node is called, behind its wires.
    rpc: Vec<u16>,
}

impl Cluster {
    /// Starts all of it, and waits until every node is there and one leads.
    pub fn start(plan: Plan) -> Self {
        let folder = new_folder("cluster");
        let database = Database::new(plan.database);
        let redis = Redis::start(&plan);
        let url = database.url(database.port);
        let store = runtime().block_on(Store::open(&url, 2)).unwrap();
        // On a machine with much else to do, we may be taken for somebody who forgot to end.
        until("the database is made ready", || {
            let made = runtime().block_on(store.migrate());
            made.inspect_err(|error| eprintln!("the database is not ready: {error}")).ok()
        });
        let rpc: Vec<u16> = (0..plan.nodes).map(|_| free_port()).collect();
        let net = match plan.wires {
            true => Net::new(&rpc, database.port, &redis.way()),
            false => Net::none(),
        };
        let nodes = (0..plan.nodes).map(|_| None).collect();
        let mut cluster = Self { nodes, net, store, database, redis, folder, plan, rpc };
        if cluster.plan.pace == Pace::Quick {
            cluster.change_settings(&QUICK);
        }
        let mut made = vec!["cert", "dev", "--dir", "tls"];
        let names: Vec<String> = cluster.names().collect();
        names.iter().for_each(|name| made.extend(["--node", name]));
        let output = cluster.command(0, &made).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (0..cluster.plan.nodes).for_each(|node| cluster.spawn(node));
        cluster.await_all();
        cluster
    }

    /// What it is made of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What its nodes are called.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.plan.nodes).map(name)
    }

    /// Where everything is that it wrote.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leaves what the nodes told in its folder, and says where that is; its end is shown at once, for machines that
    /// nobody can look into later.
    pub(crate) fn keep(&mut self) -> String {
        self.plan.keep = true;
        self.show();
        format!("what the nodes told is in {}", self.folder.display())
    }

    fn show(&self) {
        for (node, name) in self.names().enumerate() {
            eprintln!("\n{name} told at the end:\n{}", self.told(node));
        }
    }

    /// Waits until every node is there and one leads.
    pub fn await_all(&mut self) {
        until("every node is there, and one leads", || {
            for (node, process) in self.nodes.iter_mut().enumerate() {
                if let Some(ended) = process.as_mut().and_then(Process::ended) {
                    let log = self.folder.join(format!("{}.log", name(node)));
                    panic!("{} ended with {ended}: {}", name(node), tail(&log, 20));
                }
            }
            let all = (0..self.plan.nodes).all(|node| self.worker(node).is_some());
            (all && self.leader().is_some()).then_some(())
        });
    }

    /// Starts a node that does not run.
    pub fn spawn(&mut self, node: usize) {
        let name = &name(node);
        assert!(self.nodes[node].is_none(), "{name} runs already");
        let port = |to, direct| self.net.port(node, to).unwrap_or(direct);
        let mut start = command(None, &self.plan.binary);
        self.at_home(node, &mut start);
        start.args(["node", "--node", name, "--listen", "127.0.0.1:0", "--drain", "20s"]);
        start.args(["--tls-dir", &format!("tls/{name}")]);
        start.args(["--rpc-listen", &format!("127.0.0.1:{}", self.rpc[node])]);
        start.args([
            "--rpc-address",
            &format!("127.0.0.1:{}", port(Party::Node(node), self.rpc[node])),
        ]);
        start.args(["--label", &format!("on-{name}")]);
        let redis = self.redis.url(|own| port(Party::Redis, own));
        // Secrets are not for everybody who can list processes.
        start.env(
            "TASUKI_DATABASE_URL",
            self.database.url(port(Party::Database, self.database.port)),
        );
        if let Some(redis) = redis {
            start.env("TASUKI_REDIS_URL", redis);
        }
        start.env("TASUKI_LOG", "info,tasuki::node::leader=debug");
        let _ = fs::remove_file(self.folder.join(name).join("api.json"));
        let process = Process::start(&mut start, &self.folder.join(format!("{name}.log")));
        self.net.runs(node, process.id());
        self.nodes[node] = Some(process);
    }

    /// Which nodes have ended by themselves or as they were told, and how; they can be started again.
    pub fn ended(&mut self) -> Vec<(String, ExitStatus)> {
        let mut ended = Vec::new();
        for (node, process) in self.nodes.iter_mut().enumerate() {
            if let Some(how) = process.as_mut().and_then(Process::ended) {
                ended.push((name(node), how));
                *process = None;
            }
        }
        ended
    }

    /// Kills a node, which leaves it no time for anything.
    pub fn kill(&mut self, node: usize) {
        let process = self.nodes[node].take().unwrap();
        process.signal(Signal::SIGKILL);
        process.wait();
    }

    /// Tells a node to stop; its end is awaited by [`Self::stopped`].
    pub fn stop(&mut self, node: usize) {
        self.signal(node, Signal::SIGTERM);
    }

    /// Waits until a node that was told to stop has.
    pub fn stopped(&mut self, node: usize) {
        let ended = self.nodes[node].take().unwrap().wait();
        assert!(ended.success(), "{} stopped with {ended}: {}", name(node), self.told(node));
    }

    /// Sends a signal to a node.
    pub fn signal(&self, node: usize, signal: Signal) {
        self.nodes[node].as_ref().unwrap().signal(signal);
    }

    /// Whether a node runs, or stands still.
    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].is_some()
    }

    /// The process of a node.
    pub fn process(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(Process::id)
    }

    /// The end of what a node told.
    pub fn told(&self, node: usize) -> String {
        tail(&self.folder.join(format!("{}.log", name(node))), 40)
    }

    /// Whether a node told this, in any of its lives.
    pub(crate) fn has_told(&self, node: usize, words: &str) -> bool {
        let log = self.folder.join(format!("{}.log", name(node)));
        fs::read_to_string(log).unwrap().contains(words)
    }

    /// Tells everybody who runs to stop, and waits until they have.
    pub fn stop_all(&mut self) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_up(*node)).collect();
        up.iter().for_each(|node| self.stop(*node));
        up.iter().for_each(|node| self.stopped(*node));
    }

    fn at_home(&self, node: usize, command: &mut Command) {
        command.env("TASUKI_DATA", self.folder.join(name(node))).current_dir(&self.folder);
        for variable in ["TASUKI_URL", "TASUKI_TOKEN", "TASUKI_DATABASE_URL", "TASUKI_LISTEN"] {
            command.env_remove(variable);
        }
    }

    fn command(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.plan.binary);
        command.args(arguments);
        self.at_home(node, &mut command);
        command
    }

    /// Asks a node over the command line.
    pub fn tasuki(&self, node: usize, arguments: &[&str]) -> Output {
        self.command(node, arguments).output().unwrap()
    }

    /// Asks any node that answers, until one does; what it said.
    pub fn ask(&self, arguments: &[&str]) -> Value {
        until("somebody answers", || {
            let up = (0..self.nodes.len()).filter(|node| self.is_up(*node));
            let mut told = up.map(|node| self.tasuki(node, &[arguments, &["--json"]].concat()));
            let good = told.find(|output| output.status.success())?;
            Some(serde_json::from_slice(&good.stdout).unwrap_or(Value::Null))
        })
    }

    /// Asks the database directly, past all wires. `None`: it did not answer.
    pub fn look<T>(
        &self,
        question: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> Option<T> {
        self.answer(Duration::from_secs(2), question).ok()
    }

    /// Asks the database what it must answer: what nobody told is nothing to judge by.
    #[track_caller]
    pub(crate) fn learn<T>(
        &self,
        question: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> T {
        let told = self.answer(PATIENCE, question);
        told.unwrap_or_else(|why| panic!("the database did not answer: {why}"))
    }

    fn answer<T>(
        &self,
        limit: Duration,
        question: impl AsyncFnOnce(&Store) -> Result<T, tasuki_store::Error>,
    ) -> Result<T, String> {
        runtime().block_on(async {
            match tokio::time::timeout(limit, question(&self.store)).await {
                Ok(told) => told.map_err(|error| error.to_string()),
                Err(late) => Err(late.to_string()),
            }
        })
    }

    /// Changes settings for all.
    pub(crate) fn change_settings(&self, changes: &[(&str, &str)]) {
        let changed = self.learn(async |store| {
            let seen = store.settings().await?.version;
            store.change_settings("test", seen, changes).await
        });
        assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
    }

    /// The node that leads, and in which term.
    pub fn leader(&self) -> Option<(usize, Epoch)> {
        let leader = self.look(async |store| store.leader().await)?;
        let holder = leader.holder.filter(|_| leader.lease_until > leader.clock)?;
        Some((self.node_of(holder)?, leader.epoch))
    }

    /// Waits until a node leads: which, and in which term.
    pub(crate) fn who_leads(&self) -> (usize, Epoch) {
        until("somebody leads", || self.leader())
    }

    /// Waits until a node leads in a newer term than this.
    pub fn next_leader(&self, than: Epoch) -> (usize, Epoch) {
        until("another leads", || self.leader().filter(|(_, epoch)| *epoch > than))
    }

    fn workers(&self) -> Vec<Worker> {
        self.look(async |store| store.workers().await).unwrap_or_default()
    }

    /// The node of a worker.
    pub fn node_of(&self, worker: WorkerId) -> Option<usize> {
        let node = self.workers().into_iter().find(|known| known.id == worker)?.node;
        self.names().position(|name| node.as_str() == name)
    }

    /// The worker of a node that is in service.
    pub fn worker(&self, node: usize) -> Option<WorkerId> {
        let here = |worker: &Worker| worker.node.as_str() == name(node) && worker.is_active();
        let clock = self.look(async |store| store.clock().await)?;
        // One that was killed is not known to be dead.
        let fresh = |worker: &Worker| clock.duration_since(worker.heartbeat_at).as_secs() < 2;
        self.workers().into_iter().find(|worker| here(worker) && fresh(worker)).map(|one| one.id)
    }

    /// Whether a worker was detached.
    pub fn is_detached(&self, worker: WorkerId) -> bool {
        self.workers().iter().any(|known| known.id == worker && known.detached_at.is_some())
    }

    /// The nodes that run and are not this one.
    pub fn others(&self, than: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| *node != than && self.is_up(*node)).collect()
    }

    /// Lets so much time pass with the settings as they are, or as much less as the settings are quicker.
    pub fn let_pass(&self, time: Duration) {
        thread::sleep(match self.plan.pace {
            Pace::Default => time,
            Pace::Quick => time / 4,
        });
    }

    /// What the database answers to a question in its own words.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.database.query(sql)
    }
}

/// What a node is called, by its place.
fn name(node: usize) -> String {
    match u8::try_from(node) {
        Ok(place @ 0..26) => char::from(b'a' + place).to_string(),
        _ => format!("n{node}"),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.show();
        }
        let keep = self.plan.keep || thread::panicking();
        if keep {
            place::keep(&self.folder);
            eprintln!("what the nodes told is in {}", self.folder.display());
        }
        self.nodes.clear();
        runtime().block_on(self.store.close());
        if !keep {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
