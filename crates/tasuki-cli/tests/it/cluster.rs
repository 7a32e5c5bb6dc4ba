//! Three `tasuki node`s on one database, and what becomes of them when one is killed, stopped or cut off.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tasuki_store::{SettingsChange, Store};

use crate::database;
use crate::up::{Place, Up, until};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Quick enough for a test, and slow enough for a machine with much else to do.
const QUICK: [(&str, &str); 17] = [
    ("leader_tick", "100ms"),
    ("assign_ahead", "3s"),
    ("leader_renew", "200ms"),
    ("leader_ttl", "1500ms"),
    ("leader_margin", "200ms"),
    ("leader_stale", "1500ms"),
    ("subleader_check", "200ms"),
    ("heartbeat_interval", "200ms"),
    ("heartbeat_ttl", "1500ms"),
    ("worker_detach_grace", "1s"),
    ("reassign_after", "3s"),
    ("recovery_interval", "200ms"),
    ("retry_backoff", "50ms"),
    ("retry_backoff_cap", "100ms"),
    // Somebody answers in the end, however much else goes on.
    ("continuation_retry_count", "10"),
    ("stop_grace", "500ms"),
    ("skip_late_after", "1m"),
];

/// Nodes on one database, with certificates of their own and Redis or without.
struct Cluster {
    /// The first to go, should a test fail: nobody may be in the database when it is dropped.
    nodes: BTreeMap<&'static str, Up>,
    database: database::Place,
    place: Place,
    redis: Option<String>,
}

impl Cluster {
    fn new(server: &str, redis: bool) -> Self {
        let database = database::Place::new(Some(server));
        let place = Place::new();
        let redis = redis.then(|| {
            std::env::var("TASUKI_TEST_REDIS").expect("run ./test, which starts the server")
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&database.url, 1).await.unwrap();
            store.migrate().await.unwrap();
            let seen = store.settings().await.unwrap().version;
            let changed = store.change_settings("test", seen, &QUICK).await.unwrap();
            assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
            store.close().await;
        });
        let mut made = vec!["cert", "dev", "--dir", "tls"];
        NAMES.iter().for_each(|name| made.extend(["--node", name]));
        place.tasuki(&made);
        let mut cluster = Self { database, place, redis, nodes: BTreeMap::new() };
        NAMES.iter().for_each(|name| cluster.start(name));
        until("all are there, and one leads", || {
            (cluster.active("a").len() == 3 && cluster.leader().is_some()).then_some(())
        });
        cluster
    }

    fn start(&mut self, name: &'static str) {
        let data = self.place.folder.join(name);
        let _ = fs::remove_file(data.join("api.json"));
        let log = self.place.folder.join(format!("{name}.log"));
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.command(name, &["node", "--listen", "127.0.0.1:0"]);
        command.args(["--rpc-listen", "127.0.0.1:0", "--drain", "10s", "--node", name]);
        command.args(["--database-url", &self.database.url, "--tls-dir", &format!("tls/{name}")]);
        if let Some(redis) = &self.redis {
            let prefix = format!("test_{}", std::process::id());
            command.args(["--redis-url", redis, "--redis-prefix", &prefix]);
        }
        command.env("TASUKI_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut node = Up { child: command.spawn().unwrap() };
        until("a node is up", || {
            if let Some(ended) = node.child.try_wait().unwrap() {
                panic!("it ended with {ended}: {}", self.told(name));
            }
            data.join("api.json").exists().then_some(())
        });
        self.nodes.insert(name, node);
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        command.env("TASUKI_DATA", self.place.folder.join(name));
        command
    }

    /// What a node told on stderr.
    fn told(&self, name: &str) -> String {
        fs::read_to_string(self.place.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// What a node answers to the command line; `None`: nothing, just now.
    fn ask(&self, name: &str, arguments: &[&str]) -> Option<Value> {
        let output = self.command(name, arguments).arg("--json").output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The workers that are well, by node, as one of them tells.
    fn active(&self, name: &str) -> BTreeMap<String, String> {
        let workers = self.ask(name, &["worker", "list"]).unwrap_or_default();
        let workers = workers["items"].as_array().cloned().unwrap_or_default();
        let well = workers.into_iter().filter(|worker| worker["state"] == "active");
        well.map(|worker| (text(&worker["node"]), text(&worker["id"]))).collect()
    }

    /// The node that leads and the epoch, as any that answers tells.
    fn leader(&self) -> Option<(&'static str, i64)> {
        let up = self.nodes.keys().find(|name| self.ask(name, &["worker", "list"]).is_some())?;
        let leader = self.ask(up, &["leader", "show"])?;
        let workers = self.ask(up, &["worker", "list"])?;
        let holder =
            workers["items"].as_array()?.iter().find(|one| one["id"] == leader["holder"])?;
        let live = text(&leader["lease_until"]) > text(&leader["clock"]);
        let name = NAMES.into_iter().find(|name| holder["node"] == *name)?;
        live.then(|| (name, leader["epoch"].as_i64().unwrap()))
    }

    fn another_than(&self, name: &str) -> &'static str {
        NAMES.into_iter().find(|other| *other != name && self.nodes.contains_key(other)).unwrap()
    }

    /// Every run of a job by its slot, with its state and where it ended.
    fn runs(&self, name: &str, job: &str) -> Vec<Value> {
        let runs = self.ask(name, &["run", "list", "--job", job, "--limit", "500"]);
        runs.unwrap_or_default()["items"].as_array().cloned().unwrap_or_default()
    }

    /// Lets everything end and looks at what became of it: every slot once, in order, none left out; each ran once
    /// at a time as seen from outside; and the doctor is content.
    fn settle(mut self, name: &str, job: &str) {
        assert!(self.ask(name, &["job", "disable", job]).is_some());
        let runs = until("every run has ended", || {
            let runs = self.runs(name, job);
            let ended = |run: &Value| run["finished_at"].is_string();
            (!runs.is_empty() && runs.iter().all(ended)).then_some(runs)
        });
        let mut slots: Vec<jiff::Timestamp> = Vec::new();
        for run in runs.iter().filter(|run| run["state"] != "CANCELED") {
            assert_eq!(run["state"], "SUCCEEDED", "{run}");
            slots.push(text(&run["scheduled_for"]).parse().unwrap());
        }
        slots.sort_unstable();
        for (one, next) in slots.iter().zip(slots.iter().skip(1)) {
            assert_eq!(next.duration_since(*one).as_secs(), 1, "{one} and then {next}: {runs:#?}");
        }
        let told = fs::read_to_string(self.place.folder.join("ticks")).unwrap();
        let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
        told.lines().for_each(|line| *counted.entry(line).or_default() += 1);
        assert!(counted.values().all(|times| *times == 1), "run twice: {counted:?}");
        for (_, node) in std::mem::take(&mut self.nodes) {
            node.stop();
        }
        let doctor = self.database.tasuki(&["doctor"]);
        assert!(doctor.starts_with("exit 0"), "{doctor}");
        let Self { place, .. } = self;
        place.end();
    }

    /// A job that fires every second and tells of each attempt that it began.
    fn ticks(&self, name: &str) {
        let file = self.place.folder.join("ticks").display().to_string();
        let script = format!("echo \"$TASUKI_RUN_ID $TASUKI_ATTEMPT\" >> '{file}'");
        let create = ["job", "create", "tick", "--every", "1s", "--concurrency", "allow"];
        let policy = ["--retries", "20", "--", "sh", "-c", &script];
        let output = self.command(name, &[&create[..], &policy[..]].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn succeeded(&self, name: &str) -> usize {
        self.runs(name, "tick").iter().filter(|run| run["state"] == "SUCCEEDED").count()
    }
}

fn text(of: &Value) -> String {
    of.as_str().unwrap_or_default().to_owned()
}

fn a_leader_is_killed_and_another_stops(mut cluster: Cluster) {
    let (first, epoch) = cluster.leader().unwrap();
    cluster.ticks(first);
    let other = cluster.another_than(first);
    until("some ran", || (cluster.succeeded(other) >= 2).then_some(()));
    cluster.nodes.remove(first).unwrap().kill();
    let (second, newer) =
        until("another leads", || cluster.leader().filter(|(name, _)| *name != first));
    assert!(newer > epoch);
    let before = cluster.succeeded(second);
    until("it goes on", || (cluster.succeeded(second) >= before + 2).then_some(()));
    cluster.start(first);
    cluster.nodes.remove(second).unwrap().stop();
    let (third, newest) =
        until("a third leads", || cluster.leader().filter(|(name, _)| *name != second));
    assert!(newest > newer);
    let before = cluster.succeeded(third);
    until("it goes on", || (cluster.succeeded(third) >= before + 2).then_some(()));
    cluster.settle(third, "tick");
}

#[test]
fn a_leader_is_killed_and_another_stops_with_redis() {
    a_leader_is_killed_and_another_stops(Cluster::new("TASUKI_TEST_PG", true));
}

#[test]
fn a_leader_is_killed_and_another_stops_on_the_database_alone() {
    a_leader_is_killed_and_another_stops(Cluster::new("TASUKI_TEST_MYSQL", false));
}

#[test]
fn a_stopped_leader_wakes_up_and_begins_anew() {
    let cluster = Cluster::new("TASUKI_TEST_PG", true);
    let (first, _) = cluster.leader().unwrap();
    let before = cluster.active(first)[first].clone();
    cluster.ticks(first);
    let other = cluster.another_than(first);
    until("some ran", || (cluster.succeeded(other) >= 2).then_some(()));
    cluster.nodes[first].signal(Signal::SIGSTOP);
    until("it was detached by another", || {
        let workers = cluster.ask(other, &["worker", "list"])?;
        let old = workers["items"].as_array()?.iter().find(|one| one["id"] == *before)?.clone();
        (old["state"] == "detached").then_some(())
    });
    cluster.nodes[first].signal(Signal::SIGCONT);
    let after = until("it begins anew", || {
        cluster.active(other).get(first).filter(|id| **id != before).cloned()
    });
    assert!(cluster.told(first).contains(&after));
    let count = cluster.succeeded(other);
    until("all goes on", || (cluster.succeeded(other) >= count + 2).then_some(()));
    cluster.settle(other, "tick");
}

#[test]
fn a_detached_worker_goes_on_with_what_it_may() {
    let cluster = Cluster::new("TASUKI_TEST_PG", true);
    let (first, _) = cluster.leader().unwrap();
    cluster.ticks(first);
    let go = cluster.place.folder.join("go").display().to_string();
    let wait = format!("while [ ! -e '{go}' ]; do sleep 0.05; done");
    let made = cluster.command(first, &["job", "create", "long", "--", "sh", "-c", &wait]).output();
    assert!(made.unwrap().status.success());
    cluster.ask(first, &["job", "trigger", "long"]).unwrap();
    let worker = until("it runs", || {
        let run = cluster.runs(first, "long").first()?.clone();
        (run["state"] == "RUNNING").then(|| text(&run["worker"]))
    });
    let name =
        *NAMES.iter().find(|name| cluster.active(first).get(**name) == Some(&worker)).unwrap();
    let cut = cluster.ask(first, &["worker", "detach", &worker, "--reason", "a test", "--yes"]);
    assert!(cut.is_some());
    until("it was told that it may go on", || {
        let id = cluster.runs(first, "long").first()?["id"].as_i64()?.to_string();
        let run = cluster.ask(first, &["run", "show", &id])?.to_string();
        run.contains("may go on").then_some(())
    });
    fs::write(&go, "").unwrap();
    until("it begins anew when that has ended", || {
        cluster.active(first).get(name).filter(|id| **id != worker).cloned()
    });
    let run = cluster.runs(first, "long")[0].clone();
    assert_eq!((text(&run["state"]).as_str(), text(&run["worker"])), ("SUCCEEDED", worker));
    cluster.settle(first, "tick");
}

#[test]
fn what_keeps_a_node_from_starting_is_told_in_words() {
    let place = Place::new();
    let told = |arguments: &[&str]| {
        let output = place.command(&[&["node"], arguments].concat()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), told)
    };
    let url = ["--database-url", "postgres://nobody@127.0.0.1:1/none"];
    let all = ["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    for (arguments, code, expected) in [
        (vec![], 2, "a node needs the database that all nodes share"),
        ([&url[..], &["--slots", "0"]].concat(), 2, "slots = \"0\" (--slots)"),
        ([&url[..], &["--rpc-listen", "here"]].concat(), 2, "rpc_listen = \"here\" (--rpc-listen)"),
        (
            [&url[..], &["--rpc-listen", "0.0.0.0:0", "--listen", "127.0.0.1:0"]].concat(),
            2,
            "others must be told one",
        ),
        ([&url[..], &all, &["--tls-dir", "none"]].concat(), 1, "none/"),
        ([&url[..], &all, &["--redis-url", "http://x:s3cret@y"]].concat(), 2, "redis_url"),
        ([&url[..], &["--config", "none.toml"]].concat(), 2, "none.toml"),
    ] {
        let (exit, words) = told(&arguments);
        assert!(exit == code && words.contains(expected), "{arguments:?}: {exit} {words}");
        assert!(!words.contains("s3cret"), "{words}");
    }
    place.end();
}

#[test]
fn a_configuration_is_shown_with_who_said_what() {
    let place = Place::new();
    fs::write(place.folder.join("t.toml"), "node = \"n1\"\nredis_url = \"redis://:s3cret@h/0\"\n")
        .unwrap();
    let mut command = place.command(&["config", "show", "--config", "t.toml", "--drain", "5s"]);
    let output = command.env("TASUKI_CLUSTER", "prod").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let says = |words: [&str; 3]| told.lines().any(|line| line.split_whitespace().eq(words));
    assert!(
        says(["node", "n1", "t.toml"]) && says(["cluster", "prod", "TASUKI_CLUSTER"]),
        "{told}"
    );
    assert!(
        says(["drain", "5s", "--drain"]) && says(["listen", "127.0.0.1:7711", "default"]),
        "{told}"
    );
    assert!(!told.contains("s3cret"), "{told}");
    place.end();
}
