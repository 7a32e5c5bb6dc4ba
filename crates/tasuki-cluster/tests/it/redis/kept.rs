//! What is kept in Redis, how long, and what comes back when all of it is lost.

use tasuki::node::coordination::coordinate::{Coordinator as _, InMemory, Presence};
use tasuki::node::world::RealClock;
use tasuki_core::{Epoch, NodeName, RunId};

use super::place::{LONG, Place, SHORT, eventually, new_worker, presence, redis};
use super::servers::{PASSWORD, Server};

/// Another got the lock while Redis knew nothing of the term that the database had decided. Whoever tells of it
/// takes the lock; whoever repeats what is known does not.
#[tokio::test]
async fn the_newer_term_takes_the_lock() {
    let place = Place::shared();
    let (leader, other) = (new_worker(), new_worker());
    assert_eq!(place.other.stand(other, LONG).await.unwrap(), Some(Epoch(0)));
    place.one.leads(leader, Epoch(7), LONG).await.unwrap();
    assert_eq!(place.other.stand(other, LONG).await.unwrap(), None);
    assert_eq!(place.other.leader_seen().await.unwrap().unwrap().worker, leader);

    // Late, and out of date: nothing changes.
    for epoch in [6, 7] {
        place.other.leads(other, Epoch(epoch), LONG).await.unwrap();
        assert_eq!(place.other.stand(other, LONG).await.unwrap(), None);
        assert_eq!(place.one.leader_seen().await.unwrap().unwrap().worker, leader);
    }
    assert_eq!(place.one.stand(leader, LONG).await.unwrap(), Some(Epoch(7)));

    place.other.leads(other, Epoch(8), LONG).await.unwrap();
    assert_eq!(place.one.stand(leader, LONG).await.unwrap(), None);
    assert_eq!(place.one.leader_seen().await.unwrap().unwrap().epoch, Epoch(8));
}

/// A Redis that lost everything is filled again by the leader and by those who show themselves, and what others
/// made of its emptiness does not last.
#[tokio::test]
async fn an_empty_redis_is_filled_again() {
    let mut server = Server::standalone();
    let (one, other) = (redis(&server.url(), "tasuki"), redis(&server.url(), "tasuki"));
    let (leader, hasty) = (new_worker(), new_worker());
    for is_restart in [false, true] {
        one.leads(leader, Epoch(5), LONG).await.unwrap();
        one.show(&presence(leader, "east"), LONG).await.unwrap();
        if is_restart {
            server.kill();
            server.start();
        } else {
            server.ask::<()>(&["FLUSHALL"]);
        }
        assert_eq!(other.stand(hasty, LONG).await.unwrap(), Some(Epoch(0)), "it is empty");
        assert_eq!(there(&server), [""; 0]);

        one.leads(leader, Epoch(5), LONG).await.unwrap();
        one.show(&presence(leader, "east"), LONG).await.unwrap();
        assert_eq!(other.stand(hasty, LONG).await.unwrap(), None);
        assert_eq!(one.stand(leader, LONG).await.unwrap(), Some(Epoch(5)));
        assert_eq!(other.leader_seen().await.unwrap().unwrap().epoch, Epoch(5));
        assert_eq!(there(&server), [leader.to_string()]);
    }
}

/// The workers on the list.
fn there(server: &Server) -> Vec<String> {
    let mut there: Vec<String> = server.ask(&["ZRANGE", "{tasuki}:workers", "0", "-1"]);
    there.sort_unstable();
    there
}

/// The one in memory forgets as Redis does.
#[tokio::test]
async fn an_empty_memory_is_filled_again() {
    let memory = InMemory::new(std::sync::Arc::new(RealClock));
    let leader = new_worker();
    memory.leads(leader, Epoch(5), LONG).await.unwrap();
    memory.forget();
    assert_eq!(memory.leader_seen().await.unwrap(), None);
    memory.leads(leader, Epoch(5), LONG).await.unwrap();
    assert_eq!(memory.stand(leader, LONG).await.unwrap(), Some(Epoch(5)));
}

/// Operators look at keys, and other programs share the server: they are as documented, all under the prefix, and
/// whatever belongs to somebody who may vanish lapses.
#[tokio::test]
async fn keys_are_as_documented() {
    let server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    let worker = new_worker();
    let east: NodeName = "east".parse().unwrap();
    place.stand(worker, LONG).await.unwrap();
    place.leads(worker, Epoch(3), LONG).await.unwrap();
    place.degrade(worker, Epoch(2)).await.unwrap();
    place.watch(worker, &east, LONG).await.unwrap();
    place.detach(worker, LONG).await.unwrap();
    place.carries(worker, &[RunId(9)], LONG).await.unwrap();
    place.show(&presence(worker, "east"), LONG).await.unwrap();

    let mut expected: Vec<(String, &str, bool)> = [
        ("leader:lock".to_owned(), "string", true),
        ("leader:epoch".to_owned(), "string", false),
        ("leader:last_seen".to_owned(), "string", false),
        ("leader:degrade".to_owned(), "string", false),
        ("subleader:east:lock".to_owned(), "string", true),
        (format!("detach:{worker}"), "string", true),
        ("run:lease:9".to_owned(), "string", true),
        (format!("worker:{worker}"), "hash", true),
        ("workers".to_owned(), "zset", false),
    ]
    .map(|(key, kind, lapses)| (format!("{{tasuki}}:{key}"), kind, lapses))
    .into();
    expected.sort();
    let mut keys: Vec<String> = server.ask(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, expected.iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>());
    for (key, kind, lapses) in expected {
        assert_eq!(server.ask::<String>(&["TYPE", &key]), kind, "{key}");
        assert_eq!(server.ask::<i64>(&["PTTL", &key]) > 0, lapses, "{key}");
    }
    let id = worker.to_string();
    assert_eq!(server.ask::<String>(&["GET", "{tasuki}:leader:lock"]), id);
    assert_eq!(server.ask::<String>(&["GET", "{tasuki}:leader:epoch"]), "3");
    assert_eq!(server.ask::<String>(&["GET", "{tasuki}:run:lease:9"]), id);
    let heartbeat: u64 = server.ask(&["HGET", &format!("{{tasuki}}:worker:{id}"), "heartbeat"]);
    let (seconds, _): (u64, u64) = server.ask(&["TIME"]);
    assert!(heartbeat / 1_000_000 <= seconds);
}

/// The list of workers does not grow with those that vanished, also where nobody reads it.
#[tokio::test]
async fn those_that_vanished_are_taken_off_the_list() {
    let server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    for _ in 0..20 {
        place.show(&presence(new_worker(), "east"), SHORT).await.unwrap();
    }
    let stays = presence(new_worker(), "east");
    eventually("one is left", async || {
        place.show(&stays, LONG).await.unwrap();
        (server.ask::<u32>(&["ZCARD", "{tasuki}:workers"]) == 1).then_some(())
    })
    .await;
}

/// People see a worker as it last showed itself, until it leaves or falls silent.
#[tokio::test]
async fn whoever_shows_itself_is_seen() {
    let server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    let (mut stays, goes) = (presence(new_worker(), "east"), presence(new_worker(), "east"));
    let field = |name: &str| -> Option<String> {
        server.ask(&["HGET", &format!("{{tasuki}}:worker:{}", stays.worker), name])
    };
    stays.address = Some("10.0.0.1:7400".to_owned());
    stays.runs = vec![RunId(8), RunId(9)];
    place.show(&stays, LONG).await.unwrap();
    assert_eq!(field("address"), stays.address);
    assert_eq!(field("runs").unwrap(), "8 9");
    place.show(&Presence { address: None, runs: vec![], ..stays.clone() }, LONG).await.unwrap();
    assert_eq!(field("address"), None);
    assert_eq!(field("runs").unwrap(), "");

    place.show(&goes, LONG).await.unwrap();
    let mut both = [stays.worker.to_string(), goes.worker.to_string()];
    both.sort_unstable();
    assert_eq!(there(&server), both);
    place.hide(goes.worker).await.unwrap();
    place.hide(goes.worker).await.unwrap();
    assert_eq!(there(&server), [stays.worker.to_string()]);
    let key = format!("{{tasuki}}:worker:{}", goes.worker);
    assert_eq!(server.ask::<u32>(&["EXISTS", &key]), 0);
    place.show(&goes, SHORT).await.unwrap();
    eventually("it has lapsed", async || (server.ask::<u32>(&["EXISTS", &key]) == 0).then_some(()))
        .await;
}

/// What somebody else wrote there does not break us, and the next leader puts it right.
#[tokio::test]
async fn nonsense_is_not_believed() {
    let server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    let worker = new_worker();
    for key in ["epoch", "last_seen", "degrade"] {
        server.ask::<()>(&["SET", &format!("{{tasuki}}:leader:{key}"), "tea at five"]);
    }
    server.ask::<()>(&["ZADD", "{tasuki}:workers", "1e18", "nobody"]);
    server.ask::<()>(&["ZADD", "{tasuki}:workers", "1e18", &new_worker().to_string()]);
    assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(0)));
    assert_eq!(place.leader_seen().await.unwrap(), None);
    let wanted = place.show(&presence(worker, "east"), LONG).await.unwrap();
    assert_eq!(wanted.degrade, None);
    place.leads(worker, Epoch(4), LONG).await.unwrap();
    assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(4)));
    for epoch in ["9223372036854775807", "-1", "nan", "inf", "1e300"] {
        server.ask::<()>(&["SET", "{tasuki}:leader:epoch", epoch]);
        assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(0)), "{epoch}");
        place.leads(worker, Epoch(5), LONG).await.unwrap();
        assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(5)), "{epoch}");
    }

    // A refusal that comes from the right place does not cost the connection.
    server.ask::<()>(&["DEL", "{tasuki}:leader:lock"]);
    server.ask::<()>(&["LPUSH", "{tasuki}:leader:lock", "tea"]);
    eventually("it refuses, and goes on", async || {
        let refused = place.0.stand(worker, LONG).await.unwrap_err().to_string();
        let seen = place.0.leader_seen().await;
        (refused.contains("WRONGTYPE") && seen.is_ok()).then_some(())
    })
    .await;
}

/// A wrong password is told as such and not repeated.
#[tokio::test]
async fn no_password_is_told() {
    let server = Server::standalone();
    let wrong = "wrong-and-secret";
    let place = redis(&server.url().replace(PASSWORD, wrong), "tasuki");
    eventually("it says why", async || {
        let refused = place.0.stand(new_worker(), LONG).await.unwrap_err();
        for said in [refused.to_string(), format!("{refused:?}"), format!("{place:?}")] {
            assert!(!said.contains(wrong), "{said}");
        }
        refused.to_string().to_lowercase().contains("auth").then_some(())
    })
    .await;
}
