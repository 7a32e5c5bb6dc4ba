//! Two `tasuki node`s on a database that carries no news, and nothing beside it: what is asked of one concerns the
//! other, whose own looks are a minute apart. It hears of it all the same.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tasuki_store::{SettingsChange, Store};

use crate::database;
use crate::up::{Place, Up, until};

/// Nobody looks by itself before the test is over.
const RARE_LOOKS: [(&str, &str); 8] = [
    ("leader_tick", "100ms"),
    ("heartbeat_interval", "1m"),
    ("heartbeat_ttl", "5m"),
    ("worker_detach_grace", "10m"),
    ("lease_renew", "1m"),
    ("lease_ttl", "10m"),
    ("recovery_interval", "10m"),
    ("stop_grace", "500ms"),
];

struct Two {
    nodes: [Up; 2],
    database: database::Place,
    place: Place,
}

impl Two {
    fn new(server: &str) -> Self {
        let (database, place) = (database::Place::new(Some(server)), Place::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&database.url, 1).await.unwrap();
            store.migrate().await.unwrap();
            let seen = store.settings().await.unwrap().version;
            let changed = store.change_settings("test", seen, &RARE_LOOKS).await.unwrap();
            assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
            store.close().await;
        });
        place.tasuki(&["cert", "dev", "--dir", "tls", "--node", "a", "--node", "b"]);
        let nodes = ["a", "b"].map(|name| start(&place, &database, name));
        Self { nodes, database, place }
    }

    /// What a node answers to the command line; `None`: nothing, just now.
    fn ask(&self, name: &str, arguments: &[&str]) -> Option<Value> {
        let output = command(&self.place, name, arguments).arg("--json").output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn must(&self, name: &str, arguments: &[&str]) -> Value {
        let output = command(&self.place, name, arguments).arg("--json").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {told}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The worker of a node that is well.
    fn worker(&self, name: &str) -> Option<Value> {
        let workers = self.ask("a", &["worker", "list"])?;
        let mut workers = workers["items"].as_array()?.iter();
        workers.find(|worker| worker["node"] == *name && worker["state"] == "active").cloned()
    }

    fn run(&self, id: i64) -> Value {
        self.must("a", &["run", "show", &id.to_string()])
    }

    /// What a node told on stderr.
    fn told(&self, name: &str) -> String {
        fs::read_to_string(self.place.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    fn heard(&self, name: &str, what: &str) -> usize {
        self.told(name).matches(what).count()
    }
}

fn command(place: &Place, name: &str, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("TASUKI_DATA", place.folder.join(name));
    command
}

fn start(place: &Place, database: &database::Place, name: &str) -> Up {
    let log = fs::File::create(place.folder.join(format!("{name}.log"))).unwrap();
    let mut command = command(place, name, &["node", "--node", name, "--drain", "10s"]);
    command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]);
    command.args(["--database-url", &database.url, "--tls-dir", &format!("tls/{name}")]);
    command.env("TASUKI_LOG", "info,tasuki=debug");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut node = Up { child: command.spawn().unwrap() };
    until("a node is up", || {
        assert_eq!(node.child.try_wait().unwrap(), None, "it ended");
        place.folder.join(name).join("api.json").exists().then_some(())
    });
    node
}

fn text(of: &Value) -> &str {
    of.as_str().unwrap_or_default()
}

#[test]
fn those_concerned_are_told_though_they_look_once_a_minute() {
    let two = Two::new("TASUKI_TEST_MYSQL");
    let (leader, other) = until("both are there, and one leads", || {
        let holder = two.ask("a", &["leader", "show"])?["holder"].clone();
        let [a, b] = [two.worker("a")?, two.worker("b")?];
        if holder == a["id"] { Some(("a", "b")) } else { (holder == b["id"]).then_some(("b", "a")) }
    });

    // What the leader gives goes to the other. A later run takes its place, so the leader asks it to stop.
    let create = ["job", "create", "long", "--concurrency", "replace", "--", "sleep", "3600"];
    assert!(command(&two.place, leader, &create).output().unwrap().status.success());
    let triggered = || two.must(leader, &["job", "trigger", "long"])["id"].as_i64().unwrap();
    let runs_at_the_other = |id: i64| {
        until("it runs", || (text(&two.run(id)["state"]) == "RUNNING").then_some(()));
        assert_eq!(two.run(id)["worker"], two.worker(other).unwrap()["id"]);
    };
    let canceled = |id: i64| {
        until("it was canceled", || (text(&two.run(id)["state"]) == "CANCELED").then_some(()));
    };
    let first = triggered();
    runs_at_the_other(first);
    let second = triggered();
    canceled(first);
    runs_at_the_other(second);
    assert!(two.heard(other, "a cancel was heard of") >= 1, "{}", two.told(other));

    // Somebody asks the leader's node to cancel.
    let before = two.heard(other, "a cancel was heard of");
    two.must(leader, &["run", "cancel", &second.to_string()]);
    canceled(second);
    assert!(two.heard(other, "a cancel was heard of") > before, "{}", two.told(other));

    // Settings are in force everywhere, whoever was asked.
    two.must(other, &["setting", "set", "max_jobs_per_worker", "7"]);
    until("both have as many slots", || {
        ["a", "b"].iter().all(|name| two.worker(name).unwrap()["slots"] == 7).then_some(())
    });
    assert!(two.heard(leader, "settings were heard of") >= 1, "{}", two.told(leader));

    // Who is cut off hears of it, and begins anew; who is drained takes nothing more.
    let old = text(&two.worker(other).unwrap()["id"]).to_owned();
    two.must(leader, &["worker", "detach", &old, "--reason", "a test", "--yes"]);
    let new = until("it begins anew", || {
        two.told(other).contains("this worker begins anew").then_some(())?;
        two.worker(other).map(|worker| text(&worker["id"]).to_owned()).filter(|id| *id != old)
    });
    two.must(leader, &["worker", "drain", &new]);
    until("it drains", || two.told(other).contains("somebody drains this worker").then_some(()));
    assert!(two.heard(other, "it heard that it was put aside") >= 2, "{}", two.told(other));

    let Two { nodes, database, place } = two;
    nodes.into_iter().for_each(Up::stop);
    let doctor = database.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 0"), "{doctor}");
    place.end();
}
