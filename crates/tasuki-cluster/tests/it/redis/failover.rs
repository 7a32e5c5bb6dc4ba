//! The primary is killed, and another takes its place.

use tasuki::node::coordination::coordinate::Coordinator as _;
use tasuki_core::Epoch;
use tasuki_store::News;

use super::news::listen;
use super::place::{LONG, eventually, new_prefix, new_worker, presence, redis};
use super::servers::{Cluster, Sentinels};

/// Nobody restarts anything of ours: calls fail for a while, then they reach the new primary, which knows what the
/// old one had passed on.
#[tokio::test]
async fn the_new_primary_is_found() {
    let mut servers = Sentinels::start();
    let (one, other) = (redis(&servers.url(), "tasuki"), redis(&servers.url(), "tasuki"));
    let leader = new_worker();
    one.leads(leader, Epoch(11), LONG).await.unwrap();
    other.show(&presence(leader, "east"), LONG).await.unwrap();
    let mut ear = listen(&other).await;
    eventually("the replica has all of it", async || {
        let there: u32 = servers.replica.ask(&["EXISTS", &format!("{{tasuki}}:worker:{leader}")]);
        (there == 1).then_some(())
    })
    .await;

    servers.primary.kill();
    assert!(ear.heard().await.is_err());
    assert!(one.0.leads(leader, Epoch(11), LONG).await.is_err());
    one.leads(leader, Epoch(11), LONG).await.unwrap();
    assert_eq!(other.stand(leader, LONG).await.unwrap(), Some(Epoch(11)));
    let there: u32 = servers.replica.ask(&["EXISTS", &format!("{{tasuki}}:worker:{leader}")]);
    assert_eq!(there, 1);
    let role: String = servers.replica.ask(&["INFO", "replication"]);
    assert!(role.contains("role:master"), "{role}");

    let mut ear = listen(&other).await;
    let news = News { from: 4, claims: true, ..News::default() };
    one.tell(news).await.unwrap();
    assert_eq!(ear.heard().await.unwrap(), news);

    // The old one comes back, as a replica; nobody is drawn to it, also not who connects anew.
    servers.primary.start();
    servers.primary.wait("the old one follows", |old| {
        old.try_ask::<String>(&["INFO", "replication"])
            .is_some_and(|role| role.contains("role:slave") && role.contains("link_status:up"))
    });
    let newcomer = redis(&servers.url(), "tasuki");
    newcomer.leads(leader, Epoch(12), LONG).await.unwrap();
    assert_eq!(one.stand(leader, LONG).await.unwrap(), Some(Epoch(12)));
}

/// Two of three sentinels are away or hang: the third is enough to find the primary.
#[tokio::test]
async fn one_sentinel_is_enough() {
    let mut servers = Sentinels::start();
    servers.sentinels[0].kill();
    servers.sentinels[1].freeze();
    let place = redis(&servers.url(), "tasuki");
    let worker = new_worker();
    place.leads(worker, Epoch(1), LONG).await.unwrap();
    servers.sentinels[1].thaw();
}

/// A slot goes to another node of the cluster: the connection that led to the old one is given up.
#[tokio::test]
async fn keys_move_to_another_node() {
    let servers = Cluster::start();
    let prefix = new_prefix();
    let place = redis(&servers.url(), &prefix);
    let worker = new_worker();
    place.leads(worker, Epoch(3), LONG).await.unwrap();

    let slot: u16 = servers.nodes[0].ask(&["CLUSTER", "KEYSLOT", &format!("{{{prefix}}}")]);
    let keys = |node: usize| -> u32 {
        servers.nodes[node].ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])
    };
    let from = (0..3).find(|&node| keys(node) > 0).unwrap();
    let to = (from + 1) % 3;
    let id: String = servers.nodes[to].ask(&["CLUSTER", "MYID"]);
    // Emptied first, which is all the same to us: what was in it is a hint.
    servers.nodes[from].ask::<()>(&["FLUSHALL"]);
    for node in [to, from, (from + 2) % 3] {
        servers.nodes[node].ask::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
    }
    place.leads(worker, Epoch(3), LONG).await.unwrap();
    assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(3)));
    assert!(keys(to) > 0);
}

/// A node that has none of our keys is away: that is nothing to us, also for whoever connects anew.
#[tokio::test]
async fn a_node_without_our_keys_is_not_missed() {
    let mut servers = Cluster::start();
    for node in &servers.nodes {
        node.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let prefix = new_prefix();
    let slot: u16 = servers.nodes[0].ask(&["CLUSTER", "KEYSLOT", &format!("{{{prefix}}}")]);
    let ours = usize::from(slot > 5460) + usize::from(slot > 10922);
    servers.nodes[(ours + 1) % 3].kill();
    let place = redis(&servers.url(), &prefix);
    let worker = new_worker();
    place.leads(worker, Epoch(3), LONG).await.unwrap();
    assert_eq!(place.stand(worker, LONG).await.unwrap(), Some(Epoch(3)));
}
