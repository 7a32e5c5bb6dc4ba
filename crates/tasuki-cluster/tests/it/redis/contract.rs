//! Contract of every coordinator that stores data: the one in memory, and the one on each kind of Redis.

use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use tasuki::node::coordination::coordinator_trait::WorkerMarks;
use tasuki_core::{Epoch, NodeName, RunId};

use super::fixtures::{Coordinators, LONG, SHORT, eventually, new_worker, presence};
use super::servers::{RedisCluster, RedisSentinels};

/// Each case becomes a test in memory and a test on the shared server. With Sentinel and Cluster, where servers must be started
/// first, all cases are one test, each with a prefix of its own.
macro_rules! contract {
    ($($(#[$meta:meta])* async fn $name:ident($coordinator:ident: Coordinators) $body:block)*) => {
        const CASES: &[(&str, fn(Coordinators) -> LocalBoxFuture<'static, ()>)] =
            &[$((stringify!($name), |coordinator| Box::pin($name(coordinator)))),*];
        $($(#[$meta])* async fn $name($coordinator: Coordinators) $body)*
        mod memory {
            use super::Coordinators;
            $(#[tokio::test]
            async fn $name() {
                super::$name(Coordinators::memory()).await;
            })*
        }
        mod standalone {
            use super::Coordinators;
            $(#[tokio::test]
            async fn $name() {
                super::$name(Coordinators::shared()).await;
            })*
        }
    };
}

#[tokio::test]
async fn sentinel() {
    let servers = RedisSentinels::start();
    all_cases(&servers.url()).await;
}

#[tokio::test]
async fn cluster() {
    let servers = RedisCluster::start();
    // The prefixes differ, so that the keys of the cases are on different nodes.
    all_cases(&servers.url()).await;
}

async fn all_cases(url: &str) {
    for (name, case) in CASES {
        eprintln!("{name}");
        case(Coordinators::at(url)).await;
    }
}

contract! {
    /// Many workers of two processes try to acquire the election lock at the same time; only one succeeds, and it may
    /// repeat that.
    async fn one_of_many_acquires_the_election_lock(coordinator: Coordinators) {
        let workers: Vec<_> = (0..32).map(|_| new_worker()).collect();
        let coordinators = [&coordinator.one, &coordinator.other];
        let attempts = workers.iter().zip(coordinators.iter().cycle());
        let attempts = attempts.map(|(&worker, coordinator)| async move {
            coordinator.acquire_election_lock(worker, LONG).await.unwrap().map(|known_epoch| (worker, known_epoch))
        });
        let acquired: Vec<_> = join_all(attempts).await.into_iter().flatten().collect();
        let [(winner, known_epoch)] = acquired[..] else { panic!("{} workers acquired the lock", acquired.len()) };
        assert_eq!(known_epoch, Epoch(0));
        for worker in workers {
            let again = coordinator.other.acquire_election_lock(worker, LONG).await.unwrap();
            assert_eq!(again.is_some(), worker == winner);
        }
    }

    /// The election lock of a worker that stopped expires, so that another worker can acquire it.
    async fn an_expired_lock_can_be_acquired_by_another_worker(coordinator: Coordinators) {
        let (first, second) = (new_worker(), new_worker());
        coordinator.one.publish_leader(first, Epoch(3), SHORT).await.unwrap();
        let known_epoch = eventually("the lock has expired", async || {
            coordinator.other.acquire_election_lock(second, LONG).await.unwrap()
        });
        assert_eq!(known_epoch.await, Epoch(3));
        assert_eq!(coordinator.one.acquire_election_lock(first, LONG).await.unwrap(), None);
    }

    /// Publishing the leader extends its election lock.
    async fn publishing_the_leader_extends_the_lock(coordinator: Coordinators) {
        let (leader, other) = (new_worker(), new_worker());
        assert_eq!(coordinator.one.acquire_election_lock(leader, SHORT).await.unwrap(), Some(Epoch(0)));
        coordinator.one.publish_leader(leader, Epoch(1), LONG).await.unwrap();
        // Another entry with the same short ttl, made later, expires; so the first ttl of the lock has passed too.
        let east = "east".parse().unwrap();
        assert_eq!(coordinator.one.acquire_subleader(leader, &east, SHORT).await.unwrap(), Some(true));
        eventually("the short ttl has passed", async || {
            (coordinator.other.acquire_subleader(other, &east, LONG).await.unwrap() == Some(true)).then_some(())
        })
        .await;
        assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), None);
    }

    /// The stored epoch never decreases.
    async fn the_stored_epoch_only_rises(coordinator: Coordinators) {
        let worker = new_worker();
        let mut highest = 0;
        for epoch in [1, 5, 3, 4, 5, 9_007_199_254_740_991, 7] {
            coordinator.one.publish_leader(worker, Epoch(epoch), LONG).await.unwrap();
            highest = highest.max(epoch);
            let known_epoch = coordinator.other.acquire_election_lock(worker, LONG).await.unwrap();
            assert_eq!(known_epoch, Some(Epoch(highest)), "after {epoch}");
        }
    }

    /// A leader that resigns is removed immediately, with its lock. Another worker cannot remove it.
    async fn only_the_leader_itself_can_be_removed(coordinator: Coordinators) {
        let (leader, other) = (new_worker(), new_worker());
        coordinator.one.publish_leader(leader, Epoch(4), LONG).await.unwrap();
        coordinator.other.remove_leader(other).await.unwrap();
        assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), None);
        assert!(coordinator.other.find_leader().await.unwrap().is_some());
        coordinator.one.remove_leader(leader).await.unwrap();
        assert_eq!(coordinator.other.find_leader().await.unwrap(), None);
        assert_eq!(coordinator.other.acquire_election_lock(other, LONG).await.unwrap(), Some(Epoch(4)));
    }

    /// Others find the published leader and its age, also after its lock has expired.
    async fn the_published_leader_is_found_with_its_age(coordinator: Coordinators) {
        let leader = new_worker();
        assert_eq!(coordinator.other.find_leader().await.unwrap(), None);
        coordinator.one.publish_leader(leader, Epoch(2), SHORT).await.unwrap();
        let seen = coordinator.other.find_leader().await.unwrap().unwrap();
        assert_eq!((seen.worker, seen.epoch), (leader, Epoch(2)));
        let later = eventually("the entry is older than the ttl", async || {
            let seen = coordinator.other.find_leader().await.unwrap().unwrap();
            (seen.age > SHORT).then_some(seen)
        });
        assert_eq!(later.await.worker, leader);
        coordinator.one.publish_leader(leader, Epoch(2), LONG).await.unwrap();
        let again = eventually("the entry is new again", async || {
            coordinator.one.publish_leader(leader, Epoch(2), LONG).await.unwrap();
            let seen = coordinator.other.find_leader().await.unwrap().unwrap();
            (seen.age < Duration::from_secs(1)).then_some(seen)
        });
        assert_eq!(again.await.epoch, Epoch(2));
    }

    /// The mark that a term was ended reaches its leader, and no other worker.
    async fn the_mark_of_an_ended_term_reaches_its_leader(coordinator: Coordinators) {
        let (leader, other) = (new_worker(), new_worker());
        coordinator.other.mark_term_ended(leader, Epoch(6)).await.unwrap();
        let reply = coordinator.one.publish_presence(&presence(leader, "east"), LONG).await.unwrap();
        assert_eq!(reply, WorkerMarks { detached: false, ended_term: Some(Epoch(6)) });
        let reply = coordinator.other.publish_presence(&presence(other, "east"), LONG).await.unwrap();
        assert_eq!(reply, WorkerMarks::default());
    }

    /// The mark that a worker was detached reaches that worker only, and expires.
    async fn the_mark_of_a_detached_worker_reaches_it(coordinator: Coordinators) {
        let (worker, other) = (new_worker(), new_worker());
        coordinator.other.mark_detached(worker, LONG).await.unwrap();
        let reply = coordinator.one.publish_presence(&presence(worker, "east"), LONG).await.unwrap();
        assert_eq!(reply, WorkerMarks { detached: true, ended_term: None });
        let reply = coordinator.other.publish_presence(&presence(other, "east"), LONG).await.unwrap();
        assert_eq!(reply, WorkerMarks::default());
        coordinator.other.mark_detached(worker, SHORT).await.unwrap();
        eventually("the mark has expired", async || {
            let reply = coordinator.one.publish_presence(&presence(worker, "east"), LONG).await.unwrap();
            (!reply.detached).then_some(())
        })
        .await;
    }

    /// Each node has one subleader. Another worker can replace one that left or whose lock has expired.
    async fn each_node_has_one_subleader(coordinator: Coordinators) {
        let (first, second) = (new_worker(), new_worker());
        let [east, west]: [NodeName; 2] = ["east", "west {1}"].map(|name| name.parse().unwrap());
        coordinator.one.publish_presence(&presence(first, "east"), LONG).await.unwrap();
        coordinator.other.publish_presence(&presence(second, "west {1}"), LONG).await.unwrap();
        assert_eq!(coordinator.one.acquire_subleader(first, &east, LONG).await.unwrap(), Some(true));
        assert_eq!(coordinator.other.acquire_subleader(second, &east, LONG).await.unwrap(), Some(false));
        assert_eq!(coordinator.other.acquire_subleader(second, &west, LONG).await.unwrap(), Some(true));
        assert_eq!(coordinator.one.acquire_subleader(first, &east, LONG).await.unwrap(), Some(true));
        coordinator.other.remove_presence(second).await.unwrap();
        assert_eq!(coordinator.other.acquire_subleader(second, &east, LONG).await.unwrap(), Some(false));
        coordinator.one.remove_presence(first).await.unwrap();
        assert_eq!(coordinator.other.acquire_subleader(second, &east, SHORT).await.unwrap(), Some(true));
        eventually("the subleader lock has expired", async || {
            (coordinator.one.acquire_subleader(first, &east, LONG).await.unwrap() == Some(true)).then_some(())
        })
        .await;
    }

    /// Leased runs are published, many in one call or none.
    async fn leased_runs_are_published(coordinator: Coordinators) {
        let worker = new_worker();
        coordinator.one.publish_leased_runs(worker, &[], LONG).await.unwrap();
        let runs: Vec<RunId> = (1..=500).map(RunId).collect();
        coordinator.one.publish_leased_runs(worker, &runs, LONG).await.unwrap();
    }
}
