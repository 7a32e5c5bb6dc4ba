//! Failover: the primary is killed, or keys move to another node.

use tasuki::node::coordination::coordinator_trait::Coordinator as _;
use tasuki_core::Epoch;
use tasuki_store::Notification;

use super::fixtures::{LONG, eventually, new_prefix, new_worker, presence, redis};
use super::notifications::subscribe;
use super::servers::{RedisCluster, RedisSentinels};

/// After a failover, calls fail for a while and then reach the new primary, which has the replicated data. Nothing has to be
/// restarted.
#[tokio::test]
async fn the_new_primary_is_found() {
    let mut servers = RedisSentinels::start();
    let (one, other) = (redis(&servers.url(), "tasuki"), redis(&servers.url(), "tasuki"));
    let leader = new_worker();
    one.publish_leader(leader, Epoch(11), LONG).await.unwrap();
    other.publish_presence(&presence(leader, "east"), LONG).await.unwrap();
    let mut subscription = subscribe(&other).await;
    eventually("the replica has the data", async || {
        let exists: u32 =
            servers.replica.run_command(&["EXISTS", &format!("{{tasuki}}:worker:{leader}")]);
        (exists == 1).then_some(())
    })
    .await;

    servers.primary.kill();
    assert!(subscription.next_notification().await.is_err());
    assert!(one.0.publish_leader(leader, Epoch(11), LONG).await.is_err());
    one.publish_leader(leader, Epoch(11), LONG).await.unwrap();
    assert_eq!(other.acquire_election_lock(leader, LONG).await.unwrap(), Some(Epoch(11)));
    let exists: u32 =
        servers.replica.run_command(&["EXISTS", &format!("{{tasuki}}:worker:{leader}")]);
    assert_eq!(exists, 1);
    let role: String = servers.replica.run_command(&["INFO", "replication"]);
    assert!(role.contains("role:master"), "{role}");

    let mut subscription = subscribe(&other).await;
    let notification = Notification { sender: 4, wake_claims: true, ..Notification::default() };
    one.notify(notification).await.unwrap();
    assert_eq!(subscription.next_notification().await.unwrap(), notification);

    // The old primary returns as a replica. Neither existing nor new connections lead to it.
    servers.primary.start();
    servers.primary.wait_until("the old primary is a replica", |server| {
        server
            .try_run_command::<String>(&["INFO", "replication"])
            .is_some_and(|role| role.contains("role:slave") && role.contains("link_status:up"))
    });
    let new_client = redis(&servers.url(), "tasuki");
    new_client.publish_leader(leader, Epoch(12), LONG).await.unwrap();
    assert_eq!(one.acquire_election_lock(leader, LONG).await.unwrap(), Some(Epoch(12)));
}

/// Two of three sentinels are down or hang: the third is enough to find the primary.
#[tokio::test]
async fn one_sentinel_is_enough() {
    let mut servers = RedisSentinels::start();
    servers.sentinels[0].kill();
    servers.sentinels[1].freeze();
    let coordinator = redis(&servers.url(), "tasuki");
    let worker = new_worker();
    coordinator.publish_leader(worker, Epoch(1), LONG).await.unwrap();
    servers.sentinels[1].thaw();
}

/// A slot moves to another node of the cluster: the connection to the old node is closed.
#[tokio::test]
async fn keys_move_to_another_node() {
    let servers = RedisCluster::start();
    let prefix = new_prefix();
    let coordinator = redis(&servers.url(), &prefix);
    let worker = new_worker();
    coordinator.publish_leader(worker, Epoch(3), LONG).await.unwrap();

    let slot: u16 = servers.nodes[0].run_command(&["CLUSTER", "KEYSLOT", &format!("{{{prefix}}}")]);
    let keys = |node: usize| -> u32 {
        servers.nodes[node].run_command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])
    };
    let from = (0..3).find(|&node| keys(node) > 0).unwrap();
    let to = (from + 1) % 3;
    let id: String = servers.nodes[to].run_command(&["CLUSTER", "MYID"]);
    // Cleared first, so that no keys have to be migrated. All of them are hints that may be lost.
    servers.nodes[from].run_command::<()>(&["FLUSHALL"]);
    for node in [to, from, (from + 2) % 3] {
        servers.nodes[node].run_command::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &slot.to_string(),
            "NODE",
            &id,
        ]);
    }
    coordinator.publish_leader(worker, Epoch(3), LONG).await.unwrap();
    assert_eq!(coordinator.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(3)));
    assert!(keys(to) > 0);
}

/// An outage of a node that has none of our keys does no harm, also to new connections.
#[tokio::test]
async fn an_outage_of_a_node_without_our_keys_does_no_harm() {
    let mut servers = RedisCluster::start();
    for node in &servers.nodes {
        node.run_command::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let prefix = new_prefix();
    let slot: u16 = servers.nodes[0].run_command(&["CLUSTER", "KEYSLOT", &format!("{{{prefix}}}")]);
    let ours = usize::from(slot > 5460) + usize::from(slot > 10922);
    servers.nodes[(ours + 1) % 3].kill();
    let coordinator = redis(&servers.url(), &prefix);
    let worker = new_worker();
    coordinator.publish_leader(worker, Epoch(3), LONG).await.unwrap();
    assert_eq!(coordinator.acquire_election_lock(worker, LONG).await.unwrap(), Some(Epoch(3)));
}
