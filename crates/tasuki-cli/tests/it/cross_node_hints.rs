//! Two `tasuki node`s on a database without notifications (MySQL), without Redis, and with polling intervals of a minute.
//! Actions at one node that concern the other one take effect quickly, because the nodes send each other RPC hints.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tasuki_store::{SettingsChangeResult, Store};

use crate::database;
use crate::up::{RunningNode, TestDirectory, wait_until};

/// Polling intervals that are longer than the test.
const RARE_POLLS: [(&str, &str); 8] = [
    ("leader_tick", "100ms"),
    ("heartbeat_interval", "1m"),
    ("heartbeat_ttl", "5m"),
    ("worker_detach_grace", "10m"),
    ("lease_renew", "1m"),
    ("lease_ttl", "10m"),
    ("recovery_interval", "10m"),
    ("stop_grace", "500ms"),
];

struct TwoNodes {
    nodes: [RunningNode; 2],
    database: database::TestDatabase,
    directory: TestDirectory,
}

impl TwoNodes {
    fn new(server: &str) -> Self {
        let (database, directory) =
            (database::TestDatabase::new(Some(server)), TestDirectory::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&database.url, 1).await.unwrap();
            store.migrate().await.unwrap();
            let seen = store.load_settings().await.unwrap().version;
            let changed = store.change_settings("test", seen, &RARE_POLLS).await.unwrap();
            assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");
            store.close().await;
        });
        directory.tasuki(&["cert", "dev", "--dir", "tls", "--node", "a", "--node", "b"]);
        let nodes = ["a", "b"].map(|name| start(&directory, &database, name));
        Self { nodes, database, directory }
    }

    /// Runs a command at a node and returns its JSON output; `None` if it fails, for example during start-up.
    fn query(&self, name: &str, arguments: &[&str]) -> Option<Value> {
        let output = command(&self.directory, name, arguments).arg("--json").output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn expect_json(&self, name: &str, arguments: &[&str]) -> Value {
        let output = command(&self.directory, name, arguments).arg("--json").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The active worker of a node.
    fn worker(&self, name: &str) -> Option<Value> {
        let workers = self.query("a", &["worker", "list"])?;
        let mut workers = workers["items"].as_array()?.iter();
        workers.find(|worker| worker["node"] == *name && worker["state"] == "active").cloned()
    }

    fn run(&self, id: i64) -> Value {
        self.expect_json("a", &["run", "show", &id.to_string()])
    }

    /// The log of a node.
    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.directory.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    fn count_in_log(&self, name: &str, what: &str) -> usize {
        self.log(name).matches(what).count()
    }
}

fn command(directory: &TestDirectory, name: &str, arguments: &[&str]) -> Command {
    let mut command = directory.command(arguments);
    command.env("TASUKI_DATA", directory.folder.join(name));
    command
}

fn start(directory: &TestDirectory, database: &database::TestDatabase, name: &str) -> RunningNode {
    let log = fs::File::create(directory.folder.join(format!("{name}.log"))).unwrap();
    let mut command = command(directory, name, &["node", "--node", name, "--drain", "10s"]);
    command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]);
    command.args(["--database-url", &database.url, "--tls-dir", &format!("tls/{name}")]);
    command.env("TASUKI_LOG", "info,tasuki=debug");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut node = RunningNode { child: command.spawn().unwrap() };
    wait_until("a node is up", || {
        assert_eq!(node.child.try_wait().unwrap(), None, "the node ended");
        directory.folder.join(name).join("api.json").exists().then_some(())
    });
    node
}

fn text(of: &Value) -> &str {
    of.as_str().unwrap_or_default()
}

#[test]
fn actions_take_effect_on_the_other_node_before_its_next_poll() {
    let both = TwoNodes::new("TASUKI_TEST_MYSQL");
    let (leader, other) = wait_until("both workers are active and one is the leader", || {
        let holder = both.query("a", &["leader", "show"])?["holder"].clone();
        let [a, b] = [both.worker("a")?, both.worker("b")?];
        if holder == a["id"] { Some(("a", "b")) } else { (holder == b["id"]).then_some(("b", "a")) }
    });

    // The leader assigns the run to the other node. A later run replaces it, so the leader sends a cancel order.
    let create = ["job", "create", "long", "--concurrency", "replace", "--", "sleep", "3600"];
    assert!(command(&both.directory, leader, &create).output().unwrap().status.success());
    let triggered =
        || both.expect_json(leader, &["job", "trigger", "long"])["id"].as_i64().unwrap();
    let runs_at_the_other = |id: i64| {
        wait_until("the run is running", || {
            (text(&both.run(id)["state"]) == "RUNNING").then_some(())
        });
        assert_eq!(both.run(id)["worker"], both.worker(other).unwrap()["id"]);
    };
    let canceled = |id: i64| {
        wait_until("the run is canceled", || {
            (text(&both.run(id)["state"]) == "CANCELED").then_some(())
        });
    };
    let first = triggered();
    runs_at_the_other(first);
    let second = triggered();
    canceled(first);
    runs_at_the_other(second);
    assert!(both.count_in_log(other, "received a cancel hint") >= 1, "{}", both.log(other));

    // A user cancels the run at the leader's node.
    let before = both.count_in_log(other, "received a cancel hint");
    both.expect_json(leader, &["run", "cancel", &second.to_string()]);
    canceled(second);
    assert!(both.count_in_log(other, "received a cancel hint") > before, "{}", both.log(other));

    // Changed settings take effect on both nodes.
    both.expect_json(other, &["setting", "set", "max_jobs_per_worker", "7"]);
    wait_until("both have as many slots", || {
        ["a", "b"].iter().all(|name| both.worker(name).unwrap()["slots"] == 7).then_some(())
    });
    assert!(both.count_in_log(leader, "received a settings hint") >= 1, "{}", both.log(leader));

    // A detached worker receives a hint and registers a new incarnation; a drained worker takes no more runs.
    let old = text(&both.worker(other).unwrap()["id"]).to_owned();
    both.expect_json(leader, &["worker", "detach", &old, "--reason", "a test", "--yes"]);
    let new = wait_until("the worker has a new incarnation", || {
        both.log(other).contains("this worker has registered again under a new id").then_some(())?;
        both.worker(other).map(|worker| text(&worker["id"]).to_owned()).filter(|id| *id != old)
    });
    both.expect_json(leader, &["worker", "drain", &new]);
    wait_until("the worker is draining", || {
        both.log(other).contains("this worker is being drained").then_some(())
    });
    assert!(
        both.count_in_log(other, "received a drain or detach hint") >= 2,
        "{}",
        both.log(other)
    );

    let TwoNodes { nodes, database, directory } = both;
    nodes.into_iter().for_each(RunningNode::stop);
    let doctor = database.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 0"), "{doctor}");
    directory.remove();
}
