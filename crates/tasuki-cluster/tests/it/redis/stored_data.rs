//! The data in Redis: keys and fields, ttls, and recovery after all data were lost.

use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::coordinator_trait::{
    Coordinator as _, Presence, SimulatedCoordinator,
};
use tasuki_core::{Epoch, NodeName, RunId};

use super::fixtures::{Coordinators, LONG, SHORT, eventually, new_worker, presence, redis};
use super::servers::{PASSWORD, RedisServer};

/// Another worker got the lock while Redis did not know the term that the database had decided. Publishing the newer epoch
/// takes the lock; publishing a known epoch does not.
#[tokio::test]
async fn publishing_a_newer_epoch_takes_the_lock() {
    let coordinator = Coordinators::shared();
    let (leader, other) = (new_worker(), new_worker());
    assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), Some(Epoch(0)));
    coordinator.one.publish_leader(leader, Epoch(7), LONG).await.unwrap();
    assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), None);
    assert_eq!(coordinator.other.find_leader().await.unwrap().unwrap().worker, leader);

    // A late or outdated epoch changes nothing.
    for epoch in [6, 7] {
        coordinator.other.publish_leader(other, Epoch(epoch), LONG).await.unwrap();
        assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), None);
        assert_eq!(coordinator.one.find_leader().await.unwrap().unwrap().worker, leader);
    }
    assert_eq!(coordinator.one.acquire_election_lock(leader, LONG).await.unwrap(), Some(Epoch(7)));

    coordinator.other.publish_leader(other, Epoch(8), LONG).await.unwrap();
    assert_eq!(coordinator.one.acquire_election_lock(leader, LONG).await.unwrap(), None);
    assert_eq!(coordinator.one.find_leader().await.unwrap().unwrap().epoch, Epoch(8));
}

/// After Redis has lost its data, the heartbeats of the leader and the workers write it again. The lock that another worker
/// acquired in the meantime does not last.
#[tokio::test]
async fn an_empty_redis_is_filled_again() {
    let mut server = RedisServer::standalone();
    let (one, other) = (redis(&server.url(), "tasuki"), redis(&server.url(), "tasuki"));
    let (leader, other_worker) = (new_worker(), new_worker());
    for is_restart in [false, true] {
        one.publish_leader(leader, Epoch(5), LONG).await.unwrap();
        one.publish_presence(&presence(leader, "east"), LONG).await.unwrap();
        if is_restart {
            server.kill();
            server.start();
        } else {
            server.run_command::<()>(&["FLUSHALL"]);
        }
        assert_eq!(
            other.acquire_election_lock(other_worker, LONG).await.unwrap(),
            Some(Epoch(0)),
            "Redis is empty"
        );
        assert_eq!(listed_workers(&server), [""; 0]);

        one.publish_leader(leader, Epoch(5), LONG).await.unwrap();
        one.publish_presence(&presence(leader, "east"), LONG).await.unwrap();
        assert_eq!(other.acquire_election_lock(other_worker, LONG).await.unwrap(), None);
        assert_eq!(one.acquire_election_lock(leader, LONG).await.unwrap(), Some(Epoch(5)));
        assert_eq!(other.find_leader().await.unwrap().unwrap().epoch, Epoch(5));
        assert_eq!(listed_workers(&server), [leader.to_string()]);
    }
}

/// Ids in the set of workers, sorted.
fn listed_workers(server: &RedisServer) -> Vec<String> {
    let mut workers: Vec<String> = server.run_command(&["ZRANGE", "{tasuki}:workers", "0", "-1"]);
    workers.sort_unstable();
    workers
}

/// The same with the coordinator in memory.
#[tokio::test]
async fn an_empty_memory_is_filled_again() {
    let memory = SimulatedCoordinator::new(std::sync::Arc::new(RealClock));
    let leader = new_worker();
    memory.publish_leader(leader, Epoch(5), LONG).await.unwrap();
    memory.clear();
    assert_eq!(memory.find_leader().await.unwrap(), None);
    memory.publish_leader(leader, Epoch(5), LONG).await.unwrap();
    assert_eq!(memory.acquire_election_lock(leader, LONG).await.unwrap(), Some(Epoch(5)));
}

/// Keys have the documented names and types, because operators inspect them. All have the prefix, because other programs may
/// share the server. All keys that belong to one process expire.
#[tokio::test]
async fn keys_are_as_documented() {
    let server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    let worker = new_worker();
    let east: NodeName = "east".parse().unwrap();
    coordinator.acquire_election_lock(worker, LONG).await.unwrap();
    coordinator.publish_leader(worker, Epoch(3), LONG).await.unwrap();
    coordinator.mark_term_ended(worker, Epoch(2)).await.unwrap();
    coordinator.acquire_subleader(worker, &east, LONG).await.unwrap();
    coordinator.mark_detached(worker, LONG).await.unwrap();
    coordinator.publish_leased_runs(worker, &[RunId(9)], LONG).await.unwrap();
    coordinator.publish_presence(&presence(worker, "east"), LONG).await.unwrap();

    let mut expected: Vec<(String, &str, bool)> = [
        ("leader:lock".to_owned(), "string", true),
        ("leader:epoch".to_owned(), "string", false),
        ("leader:last_seen_ts".to_owned(), "string", false),
        ("leader:degrade".to_owned(), "string", false),
        ("subleader:east:lock".to_owned(), "string", true),
        (format!("detach:{worker}"), "string", true),
        ("jobrun:lease:9".to_owned(), "string", true),
        (format!("worker:{worker}"), "hash", true),
        ("workers".to_owned(), "zset", false),
    ]
    .map(|(key, kind, expires)| (format!("{{tasuki}}:{key}"), kind, expires))
    .into();
    expected.sort();
    let mut keys: Vec<String> = server.run_command(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, expected.iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>());
    for (key, kind, expires) in expected {
        assert_eq!(server.run_command::<String>(&["TYPE", &key]), kind, "{key}");
        assert_eq!(server.run_command::<i64>(&["PTTL", &key]) > 0, expires, "{key}");
    }
    let id = worker.to_string();
    assert_eq!(server.run_command::<String>(&["GET", "{tasuki}:leader:lock"]), id);
    assert_eq!(server.run_command::<String>(&["GET", "{tasuki}:leader:epoch"]), "3");
    assert_eq!(server.run_command::<String>(&["GET", "{tasuki}:jobrun:lease:9"]), id);
    let heartbeat: u64 =
        server.run_command(&["HGET", &format!("{{tasuki}}:worker:{id}"), "last_heartbeat_ts"]);
    let (seconds, _): (u64, u64) = server.run_command(&["TIME"]);
    assert!(heartbeat / 1_000_000 <= seconds);
}

/// Workers whose presence has expired are removed from the set of workers, also if no process reads it.
#[tokio::test]
async fn expired_workers_are_removed_from_the_set() {
    let server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    for _ in 0..20 {
        coordinator.publish_presence(&presence(new_worker(), "east"), SHORT).await.unwrap();
    }
    let stays = presence(new_worker(), "east");
    eventually("one worker is left", async || {
        coordinator.publish_presence(&stays, LONG).await.unwrap();
        (server.run_command::<u32>(&["ZCARD", "{tasuki}:workers"]) == 1).then_some(())
    })
    .await;
}

/// The presence of a worker has the values of its last heartbeat, until the worker leaves or its presence expires.
#[tokio::test]
async fn a_presence_is_stored_until_it_is_removed_or_expires() {
    let server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    let (mut stays, goes) = (presence(new_worker(), "east"), presence(new_worker(), "east"));
    let field = |name: &str| -> Option<String> {
        server.run_command(&["HGET", &format!("{{tasuki}}:worker:{}", stays.worker), name])
    };
    stays.address = Some("10.0.0.1:7400".to_owned());
    stays.runs = vec![RunId(8), RunId(9)];
    coordinator.publish_presence(&stays, LONG).await.unwrap();
    assert_eq!(field("grpc_host").unwrap(), "10.0.0.1");
    assert_eq!(field("grpc_port").unwrap(), "7400");
    assert_eq!(field("current_job_run_ids").unwrap(), "8 9");
    coordinator
        .publish_presence(&Presence { address: None, runs: vec![], ..stays.clone() }, LONG)
        .await
        .unwrap();
    assert_eq!(field("grpc_host"), None);
    assert_eq!(field("grpc_port"), None);
    assert_eq!(field("current_job_run_ids").unwrap(), "");

    coordinator.publish_presence(&goes, LONG).await.unwrap();
    let mut both = [stays.worker.to_string(), goes.worker.to_string()];
    both.sort_unstable();
    assert_eq!(listed_workers(&server), both);
    coordinator.remove_presence(goes.worker).await.unwrap();
    coordinator.remove_presence(goes.worker).await.unwrap();
    assert_eq!(listed_workers(&server), [stays.worker.to_string()]);
    let key = format!("{{tasuki}}:worker:{}", goes.worker);
    assert_eq!(server.run_command::<u32>(&["EXISTS", &key]), 0);
    coordinator.publish_presence(&goes, SHORT).await.unwrap();
    eventually("the presence has expired", async || {
        (server.run_command::<u32>(&["EXISTS", &key]) == 0).then_some(())
    })
    .await;
}

/// Invalid values that another program wrote do no harm, and the next leader replaces them.
#[tokio::test]
async fn invalid_values_are_ignored_and_replaced() {
    let server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    let worker = new_worker();
    for key in ["epoch", "last_seen_ts", "degrade"] {
        server.run_command::<()>(&[
            "SET",
            &format!("{{tasuki}}:leader:{key}"),
            "not a valid value",
        ]);
    }
    server.run_command::<()>(&["ZADD", "{tasuki}:workers", "1e18", "not-a-worker-id"]);
    server.run_command::<()>(&["ZADD", "{tasuki}:workers", "1e18", &new_worker().to_string()]);
    assert_eq!(coordinator.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(0)));
    assert_eq!(coordinator.find_leader().await.unwrap(), None);
    let reply = coordinator.publish_presence(&presence(worker, "east"), LONG).await.unwrap();
    assert_eq!(reply.ended_term, None);
    coordinator.publish_leader(worker, Epoch(4), LONG).await.unwrap();
    assert_eq!(coordinator.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(4)));
    for epoch in ["9223372036854775807", "-1", "nan", "inf", "1e300"] {
        server.run_command::<()>(&["SET", "{tasuki}:leader:epoch", epoch]);
        assert_eq!(
            coordinator.acquire_election_lock(worker, LONG).await.unwrap(),
            Some(Epoch(0)),
            "{epoch}"
        );
        coordinator.publish_leader(worker, Epoch(5), LONG).await.unwrap();
        assert_eq!(
            coordinator.acquire_election_lock(worker, LONG).await.unwrap(),
            Some(Epoch(5)),
            "{epoch}"
        );
    }

    // An error response of the right server does not close the connection.
    server.run_command::<()>(&["DEL", "{tasuki}:leader:lock"]);
    server.run_command::<()>(&["LPUSH", "{tasuki}:leader:lock", "a list item"]);
    eventually("one call fails and the next succeeds", async || {
        let refused =
            coordinator.0.acquire_election_lock(worker, LONG).await.unwrap_err().to_string();
        let seen = coordinator.0.find_leader().await;
        (refused.contains("WRONGTYPE") && seen.is_ok()).then_some(())
    })
    .await;
}

/// The error after a wrong password names the cause and does not contain the password.
#[tokio::test]
async fn an_error_contains_no_password() {
    let server = RedisServer::standalone();
    let wrong_password = "wrong-and-secret";
    let coordinator = redis(&server.url().replace(PASSWORD, wrong_password), "tasuki");
    eventually("the error names the cause", async || {
        let refused = coordinator.0.acquire_election_lock(new_worker(), LONG).await.unwrap_err();
        for text in [refused.to_string(), format!("{refused:?}"), format!("{coordinator:?}")] {
            assert!(!text.contains(wrong_password), "{text}");
        }
        refused.to_string().to_lowercase().contains("auth").then_some(())
    })
    .await;
}
