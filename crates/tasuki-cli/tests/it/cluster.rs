//! `tasuki node`: what breaks in a cluster of them while jobs fire, and how one is told how to start. The kit that
//! breaks things and judges is in `tests/cluster`; `cargo xtask chaos` does all of it, at length.

use std::fs;
use std::path::PathBuf;

use cluster_kit::{Cluster, DatabaseKind, Pace, Plan, RedisKind, all_faults};

use crate::up::Place;

fn plan(nodes: usize, database: DatabaseKind, redis: RedisKind) -> Plan {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tasuki"));
    Plan { binary, nodes, database, redis, pace: Pace::Quick, wires: true, keep: false }
}

/// Breaks a cluster of five nodes in one way.
fn break_it(name: &str, database: DatabaseKind, redis: RedisKind) {
    let fault = all_faults().into_iter().find(|fault| fault.name == name);
    let verdict = fault.expect("a fault of this name").strike(plan(5, database, redis));
    assert!(verdict.broken.is_empty(), "{name}: {:#?}", verdict.broken);
    assert!(verdict.counted["slots run"] > 0, "{verdict:?}");
}

#[test]
fn a_leader_is_killed() {
    break_it("leader-killed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_leader_is_killed_on_the_database_alone() {
    break_it("leader-killed", DatabaseKind::MariaDb, RedisKind::None);
}

#[test]
fn a_stopped_leader_wakes_up() {
    break_it("leader-stopped", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_leader_hears_no_answer_of_the_database() {
    break_it("one-way-answers-lost", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_cluster_is_split_in_halves() {
    break_it("halves-split", DatabaseKind::Postgres, RedisKind::Cluster);
}

#[test]
fn a_worker_that_was_cut_off_goes_on_with_what_it_may() {
    break_it("worker-cut-off-allowed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_database_is_killed() {
    break_it("database-killed", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn a_replica_takes_the_place_of_redis() {
    break_it("sentinel-failover", DatabaseKind::Postgres, RedisKind::Sentinel);
}

#[test]
fn every_node_is_restarted_one_after_the_other() {
    break_it("rolling-restart", DatabaseKind::Postgres, RedisKind::One);
}

#[test]
fn assignments_follow_load_and_labels() {
    let mut cluster = Cluster::start(plan(4, DatabaseKind::Postgres, RedisKind::One));
    let name = |node: usize| cluster.names().nth(node).unwrap();
    let (leader, _) = cluster.leader().unwrap();
    let workers = cluster.others(leader);
    cluster.create_long("any", &[]);
    for node in [leader, workers[0]] {
        let label = format!("on-{}", name(node));
        cluster.create_long(&label, &["--label", &label]);
    }
    // One has much to do, and is the only one who may.
    for _ in 0..3 {
        assert_eq!(cluster.trigger(&format!("on-{}", name(workers[0]))).1, workers[0]);
    }
    let mut given: Vec<usize> = (0..4).map(|_| cluster.trigger("any").1).collect();
    given.sort_unstable();
    assert_eq!(given, [workers[1], workers[1], workers[2], workers[2]], "the leader is {leader}");
    // The leader plans and runs nothing, but for what nobody else can.
    assert_eq!(cluster.trigger(&format!("on-{}", name(leader))).1, leader);
    cluster.stop_all();
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
