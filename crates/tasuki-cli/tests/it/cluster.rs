//! `tasuki node`: fault injection in a cluster while jobs fire, and the configuration of a node. The kit that injects
//! faults and checks the result is in `tests/cluster`; `cargo xtask chaos` runs all faults, for longer.

use std::fs;
use std::path::PathBuf;

use cluster_kit::{Cluster, ClusterConfig, DatabaseKind, Pace, RedisKind, all_faults};

use crate::up::TestDirectory;

fn plan(nodes: usize, database: DatabaseKind, redis: RedisKind) -> ClusterConfig {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tasuki"));
    ClusterConfig {
        binary,
        nodes,
        database,
        redis,
        pace: Pace::Quick,
        proxies: true,
        keep_logs: false,
    }
}

/// Injects a fault into a cluster of five nodes and checks that no promise is broken.
fn inject_fault(name: &str, database: DatabaseKind, redis: RedisKind) {
    let fault = all_faults().into_iter().find(|fault| fault.name == name);
    let verdict = fault.expect("a fault of this name").run_on(plan(5, database, redis));
    assert!(verdict.violations.is_empty(), "{name}: {:#?}", verdict.violations);
    assert!(verdict.counts["slots run"] > 0, "{verdict:?}");
}

#[test]
fn a_leader_is_killed() {
    inject_fault("leader-killed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_leader_is_killed_on_the_database_alone() {
    inject_fault("leader-killed", DatabaseKind::MariaDb, RedisKind::None);
}

#[test]
fn a_stopped_leader_wakes_up() {
    inject_fault("leader-stopped", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_leader_receives_no_responses_of_the_database() {
    inject_fault("database-responses-lost", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_cluster_is_split_in_halves() {
    inject_fault("halves-split", DatabaseKind::Postgres, RedisKind::Cluster);
}

#[test]
fn a_disconnected_worker_continues_allowed_runs() {
    inject_fault("worker-cut-off-allowed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_database_is_killed() {
    inject_fault("database-killed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_redis_replica_is_promoted() {
    inject_fault("sentinel-failover", DatabaseKind::Postgres, RedisKind::Sentinel);
}

#[test]
fn every_node_is_restarted_one_after_the_other() {
    inject_fault("rolling-restart", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn assignments_follow_load_and_labels() {
    let mut cluster = Cluster::start(plan(4, DatabaseKind::Postgres, RedisKind::One));
    let name = |node: usize| cluster.node_names().nth(node).unwrap();
    let (leader, _) = cluster.leader().unwrap();
    let workers = cluster.running_nodes_except(leader);
    cluster.create_long_job("any", &[]);
    for node in [leader, workers[0]] {
        let label = format!("on-{}", name(node));
        cluster.create_long_job(&label, &["--label", &label]);
    }
    // The only worker with the label gets all these runs, so it has the highest load.
    for _ in 0..3 {
        assert_eq!(cluster.trigger_and_wait(&format!("on-{}", name(workers[0]))).1, workers[0]);
    }
    let mut assigned: Vec<usize> = (0..4).map(|_| cluster.trigger_and_wait("any").1).collect();
    assigned.sort_unstable();
    assert_eq!(
        assigned,
        [workers[1], workers[1], workers[2], workers[2]],
        "the leader is {leader}"
    );
    // The leader plans. It runs only jobs that no other worker can run.
    assert_eq!(cluster.trigger_and_wait(&format!("on-{}", name(leader))).1, leader);
    cluster.stop_all();
}

#[test]
fn start_up_errors_name_the_option_and_hide_secrets() {
    let directory = TestDirectory::new();
    let run = |arguments: &[&str]| {
        let output = directory.command(&[&["node"], arguments].concat()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), stderr)
    };
    let url = ["--database-url", "postgres://nobody@127.0.0.1:1/none"];
    let all = ["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    for (arguments, code, expected) in [
        (vec![], 2, "the URL of the database that all nodes share is missing"),
        ([&url[..], &["--slots", "0"]].concat(), 2, "slots = \"0\" (--slots)"),
        ([&url[..], &["--rpc-listen", "here"]].concat(), 2, "rpc_listen = \"here\" (--rpc-listen)"),
        (
            [&url[..], &["--rpc-listen", "0.0.0.0:0", "--listen", "127.0.0.1:0"]].concat(),
            2,
            "rpc_listen is a wildcard address",
        ),
        ([&url[..], &all, &["--tls-dir", "none"]].concat(), 1, "none/"),
        ([&url[..], &all, &["--redis-url", "http://x:s3cret@y"]].concat(), 2, "redis_url"),
        ([&url[..], &["--config", "none.toml"]].concat(), 2, "none.toml"),
    ] {
        let (exit, stderr) = run(&arguments);
        assert!(exit == code && stderr.contains(expected), "{arguments:?}: {exit} {stderr}");
        assert!(!stderr.contains("s3cret"), "{stderr}");
    }
    directory.remove();
}

#[test]
fn config_show_prints_values_with_their_sources() {
    let directory = TestDirectory::new();
    fs::write(
        directory.folder.join("t.toml"),
        "node = \"n1\"\nredis_url = \"redis://:s3cret@h/0\"\n",
    )
    .unwrap();
    let mut command = directory.command(&["config", "show", "--config", "t.toml", "--drain", "5s"]);
    let output = command.env("TASUKI_CLUSTER", "prod").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let has_line =
        |stderr: [&str; 3]| output.lines().any(|line| line.split_whitespace().eq(stderr));
    assert!(
        has_line(["node", "n1", "t.toml"]) && has_line(["cluster", "prod", "TASUKI_CLUSTER"]),
        "{output}"
    );
    assert!(
        has_line(["drain", "5s", "--drain"]) && has_line(["listen", "127.0.0.1:7711", "default"]),
        "{output}"
    );
    assert!(!output.contains("s3cret"), "{output}");
    directory.remove();
}
