//! Notifications between processes.

use tasuki::node::coordination::coordinator_trait::{Coordinator, Subscription};
use tasuki_store::Notification;

use super::fixtures::{Coordinators, eventually, redis};
use super::servers::{RedisCluster, RedisSentinels, RedisServer};

fn notification(sender: u64) -> Notification {
    Notification { sender, wake_planner: true, wake_renew_loop: true, ..Notification::default() }
}

pub(crate) async fn subscribe(coordinator: &dyn Coordinator) -> Box<dyn Subscription> {
    coordinator.subscribe().await.unwrap().expect("this coordinator delivers notifications")
}

/// Checks that all subscribers of the same prefix receive the notifications, in order.
async fn check_delivery(coordinator: &Coordinators, other_prefix: &Coordinators) {
    let mut subscriptions =
        [subscribe(&*coordinator.one).await, subscribe(&*coordinator.other).await];
    other_prefix.one.notify(notification(1)).await.unwrap();
    for sender in 2..50 {
        coordinator.one.notify(notification(sender)).await.unwrap();
    }
    for subscription in &mut subscriptions {
        let mut received = Vec::new();
        while received.last() != Some(&notification(49)) {
            received.push(subscription.next_notification().await.unwrap());
        }
        // A call that timed out was repeated, so a notification may arrive twice.
        received.dedup();
        assert_eq!(received, (2..50).map(notification).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn notifications_are_delivered_on_one_server() {
    check_delivery(&Coordinators::shared(), &Coordinators::shared()).await;
}

#[tokio::test]
async fn notifications_are_delivered_with_sentinels() {
    let servers = RedisSentinels::start();
    check_delivery(&Coordinators::at(&servers.url()), &Coordinators::at(&servers.url())).await;
}

/// Publisher and subscriber may be connected to different nodes.
#[tokio::test]
async fn notifications_are_delivered_in_a_cluster() {
    let servers = RedisCluster::start();
    check_delivery(&Coordinators::at(&servers.url()), &Coordinators::at(&servers.url())).await;
}

/// A lost connection is an error, so that the caller reads what it may have missed and subscribes again.
#[tokio::test]
async fn a_lost_connection_is_an_error() {
    let mut server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    let mut subscription = subscribe(&coordinator).await;
    coordinator.notify(notification(1)).await.unwrap();
    assert_eq!(subscription.next_notification().await.unwrap(), notification(1));
    server.kill();
    assert!(subscription.next_notification().await.is_err());
    assert!(subscription.next_notification().await.is_err(), "a subscription does not reconnect");
    server.start();
    let mut subscription = subscribe(&coordinator).await;
    coordinator.notify(notification(2)).await.unwrap();
    assert_eq!(subscription.next_notification().await.unwrap(), notification(2));
}

/// A server that no longer responds is detected also when there are no messages. Having no messages is not an error.
#[tokio::test]
async fn a_server_that_hangs_is_detected_without_messages() {
    let server = RedisServer::standalone();
    let coordinator = redis(&server.url(), "tasuki");
    let mut subscription = subscribe(&coordinator).await;
    let pings = |server: &RedisServer| -> bool {
        let stats: String = server.run_command(&["INFO", "commandstats"]);
        stats.contains("cmdstat_ping")
    };
    // The coordinator itself has not connected yet, so every ping is one of the subscription.
    assert!(!pings_after_start(&server));
    tokio::select! {
        received = subscription.next_notification() => panic!("unexpected: {:?}", received.map_err(|error| error.to_string())),
        () = eventually("the subscription has pinged", async || pings(&server).then_some(())) => {}
    }
    coordinator.notify(notification(3)).await.unwrap();
    assert_eq!(subscription.next_notification().await.unwrap(), notification(3));
    server.freeze();
    assert!(subscription.next_notification().await.is_err());
    server.thaw();
}

/// Resets the statistics, so that pings from the start of the server do not count. Returns whether there are pings already.
fn pings_after_start(server: &RedisServer) -> bool {
    server.run_command::<()>(&["CONFIG", "RESETSTAT"]);
    server.run_command::<String>(&["INFO", "commandstats"]).contains("cmdstat_ping")
}
