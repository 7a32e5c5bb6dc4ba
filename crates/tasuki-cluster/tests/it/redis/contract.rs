//! What every coordinator promises that keeps anything: the one in memory, and Redis of each kind.

use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use tasuki::node::coordination::coordinate::Wanted;
use tasuki_core::{Epoch, NodeName, RunId};

use super::place::{LONG, Place, SHORT, eventually, new_worker, presence};
use super::servers::{Cluster, Sentinels};

/// Each case is a test in memory and on the shared server. Where servers have to be set up first, all cases are
/// one test, each in a place of its own.
macro_rules! contract {
    ($($(#[$meta:meta])* async fn $name:ident($place:ident: Place) $body:block)*) => {
        const CASES: &[(&str, fn(Place) -> LocalBoxFuture<'static, ()>)] =
            &[$((stringify!($name), |place| Box::pin($name(place)))),*];
        $($(#[$meta])* async fn $name($place: Place) $body)*
        mod memory {
            use super::Place;
            $(#[tokio::test]
            async fn $name() {
                super::$name(Place::memory()).await;
            })*
        }
        mod standalone {
            use super::Place;
            $(#[tokio::test]
            async fn $name() {
                super::$name(Place::shared()).await;
            })*
        }
    };
}

#[tokio::test]
async fn sentinel() {
    let servers = Sentinels::start();
    all_cases(&servers.url()).await;
}

#[tokio::test]
async fn cluster() {
    let servers = Cluster::start();
    // Prefixes differ, so that the cases are on different nodes, whichever is asked first.
    all_cases(&servers.url()).await;
}

async fn all_cases(url: &str) {
    for (name, case) in CASES {
        eprintln!("{name}");
        case(Place::at(url)).await;
    }
}

contract! {
    /// Many try for the lead at once, in two processes; one gets through, and again.
    async fn one_of_many_stands(place: Place) {
        let workers: Vec<_> = (0..32).map(|_| new_worker()).collect();
        let places = [&place.one, &place.other];
        let standing = workers.iter().zip(places.iter().cycle());
        let standing = standing.map(|(&worker, place)| async move {
            place.stand(worker, LONG).await.unwrap().map(|mirror| (worker, mirror))
        });
        let stand: Vec<_> = join_all(standing).await.into_iter().flatten().collect();
        let [(winner, mirror)] = stand[..] else { panic!("{} got through", stand.len()) };
        assert_eq!(mirror, Epoch(0));
        for worker in workers {
            let again = place.other.stand(worker, LONG).await.unwrap();
            assert_eq!(again.is_some(), worker == winner);
        }
    }

    /// Whoever stands and then falls silent does not stand in the way for ever.
    async fn a_lapsed_lock_is_handed_on(place: Place) {
        let (first, second) = (new_worker(), new_worker());
        place.one.leads(first, Epoch(3), SHORT).await.unwrap();
        let mirror = eventually("the lock has lapsed", async || {
            place.other.stand(second, LONG).await.unwrap()
        });
        assert_eq!(mirror.await, Epoch(3));
        assert_eq!(place.one.stand(first, LONG).await.unwrap(), None);
    }

    /// Whoever leads goes on holding the lock as long as it says so.
    async fn leading_extends_the_lock(place: Place) {
        let (leader, other) = (new_worker(), new_worker());
        assert_eq!(place.one.stand(leader, SHORT).await.unwrap(), Some(Epoch(0)));
        place.one.leads(leader, Epoch(1), LONG).await.unwrap();
        // What began later for as short a time as it stood is over.
        let east = "east".parse().unwrap();
        assert_eq!(place.one.watch(leader, &east, SHORT).await.unwrap(), Some(true));
        eventually("that time is over", async || {
            (place.other.watch(other, &east, LONG).await.unwrap() == Some(true)).then_some(())
        })
        .await;
        assert_eq!(place.other.stand(other, LONG).await.unwrap(), None);
    }

    /// What is known of a newer epoch is never taken back.
    async fn the_mirror_only_rises(place: Place) {
        let worker = new_worker();
        let mut highest = 0;
        for epoch in [1, 5, 3, 4, 5, 9_007_199_254_740_991, 7] {
            place.one.leads(worker, Epoch(epoch), LONG).await.unwrap();
            highest = highest.max(epoch);
            let mirror = place.other.stand(worker, LONG).await.unwrap();
            assert_eq!(mirror, Some(Epoch(highest)), "after {epoch}");
        }
    }

    /// A leader that resigns is out of the way at once; one that is none resigns nobody else.
    async fn a_leader_resigns_for_itself_alone(place: Place) {
        let (leader, other) = (new_worker(), new_worker());
        place.one.leads(leader, Epoch(4), LONG).await.unwrap();
        place.other.resigns(other).await.unwrap();
        assert_eq!(place.other.stand(other, LONG).await.unwrap(), None);
        assert!(place.other.leader_seen().await.unwrap().is_some());
        place.one.resigns(leader).await.unwrap();
        assert_eq!(place.other.leader_seen().await.unwrap(), None);
        assert_eq!(place.other.stand(other, LONG).await.unwrap(), Some(Epoch(4)));
    }

    /// The leader is seen by others, also after its lock has lapsed, and how long that is ago.
    async fn the_leader_is_seen(place: Place) {
        let leader = new_worker();
        assert_eq!(place.other.leader_seen().await.unwrap(), None);
        place.one.leads(leader, Epoch(2), SHORT).await.unwrap();
        let seen = place.other.leader_seen().await.unwrap().unwrap();
        assert_eq!((seen.worker, seen.epoch), (leader, Epoch(2)));
        let later = eventually("that was some time ago", async || {
            let seen = place.other.leader_seen().await.unwrap().unwrap();
            (seen.ago > SHORT).then_some(seen)
        });
        assert_eq!(later.await.worker, leader);
        place.one.leads(leader, Epoch(2), LONG).await.unwrap();
        let again = eventually("it was seen again", async || {
            place.one.leads(leader, Epoch(2), LONG).await.unwrap();
            let seen = place.other.leader_seen().await.unwrap().unwrap();
            (seen.ago < Duration::from_secs(1)).then_some(seen)
        });
        assert_eq!(again.await.epoch, Epoch(2));
    }

    /// Word that a term was ended reaches its leader, and nobody else.
    async fn a_degraded_leader_is_told(place: Place) {
        let (leader, other) = (new_worker(), new_worker());
        place.other.degrade(leader, Epoch(6)).await.unwrap();
        let wanted = place.one.show(&presence(leader, "east"), LONG).await.unwrap();
        assert_eq!(wanted, Wanted { detach: false, degrade: Some(Epoch(6)) });
        let wanted = place.other.show(&presence(other, "east"), LONG).await.unwrap();
        assert_eq!(wanted, Wanted::default());
    }

    /// Word that it was detached reaches a worker, nobody else, and not for ever.
    async fn a_detached_worker_is_told(place: Place) {
        let (worker, other) = (new_worker(), new_worker());
        place.other.detach(worker, LONG).await.unwrap();
        let wanted = place.one.show(&presence(worker, "east"), LONG).await.unwrap();
        assert_eq!(wanted, Wanted { detach: true, degrade: None });
        let wanted = place.other.show(&presence(other, "east"), LONG).await.unwrap();
        assert_eq!(wanted, Wanted::default());
        place.other.detach(worker, SHORT).await.unwrap();
        eventually("the word has lapsed", async || {
            let wanted = place.one.show(&presence(worker, "east"), LONG).await.unwrap();
            (!wanted.detach).then_some(())
        })
        .await;
    }

    /// One watches for each node; whoever leaves or falls silent makes room.
    async fn one_watches_for_each_node(place: Place) {
        let (first, second) = (new_worker(), new_worker());
        let [east, west]: [NodeName; 2] = ["east", "west {1}"].map(|name| name.parse().unwrap());
        place.one.show(&presence(first, "east"), LONG).await.unwrap();
        place.other.show(&presence(second, "west {1}"), LONG).await.unwrap();
        assert_eq!(place.one.watch(first, &east, LONG).await.unwrap(), Some(true));
        assert_eq!(place.other.watch(second, &east, LONG).await.unwrap(), Some(false));
        assert_eq!(place.other.watch(second, &west, LONG).await.unwrap(), Some(true));
        assert_eq!(place.one.watch(first, &east, LONG).await.unwrap(), Some(true));
        place.other.hide(second).await.unwrap();
        assert_eq!(place.other.watch(second, &east, LONG).await.unwrap(), Some(false));
        place.one.hide(first).await.unwrap();
        assert_eq!(place.other.watch(second, &east, SHORT).await.unwrap(), Some(true));
        eventually("the watch has lapsed", async || {
            (place.one.watch(first, &east, LONG).await.unwrap() == Some(true)).then_some(())
        })
        .await;
    }

    /// Hints about runs are taken, many at once or none.
    async fn runs_are_carried(place: Place) {
        let worker = new_worker();
        place.one.carries(worker, &[], LONG).await.unwrap();
        let runs: Vec<RunId> = (1..=500).map(RunId).collect();
        place.one.carries(worker, &runs, LONG).await.unwrap();
    }
}
