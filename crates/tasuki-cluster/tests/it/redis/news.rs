//! Word from one process to another.

use tasuki::node::coordination::coordinate::{Coordinator, Hearing};
use tasuki_store::News;

use super::place::{Place, eventually, redis};
use super::servers::{Cluster, Sentinels, Server};

fn news(from: u64) -> News {
    News { from, leader: true, leases: true, ..News::default() }
}

pub(crate) async fn listen(place: &dyn Coordinator) -> Box<dyn Hearing> {
    place.listen().await.unwrap().expect("it carries news")
}

/// What one tells, the others hear, in order, and only under their own prefix.
async fn is_heard(place: &Place, stranger: &Place) {
    let mut ears = [listen(&*place.one).await, listen(&*place.other).await];
    stranger.one.tell(news(1)).await.unwrap();
    for from in 2..50 {
        place.one.tell(news(from)).await.unwrap();
    }
    for ear in &mut ears {
        let mut heard = Vec::new();
        while heard.last() != Some(&news(49)) {
            heard.push(ear.heard().await.unwrap());
        }
        // Who was not answered in time has told it twice.
        heard.dedup();
        assert_eq!(heard, (2..50).map(news).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn is_heard_on_one_server() {
    is_heard(&Place::shared(), &Place::shared()).await;
}

#[tokio::test]
async fn is_heard_with_sentinels() {
    let servers = Sentinels::start();
    is_heard(&Place::at(&servers.url()), &Place::at(&servers.url())).await;
}

/// Whichever nodes the one who tells and the one who hears are connected to.
#[tokio::test]
async fn is_heard_in_a_cluster() {
    let servers = Cluster::start();
    is_heard(&Place::at(&servers.url()), &Place::at(&servers.url())).await;
}

/// A lost connection is told, so that whoever listens looks for itself what it missed; then it begins anew.
#[tokio::test]
async fn a_lost_connection_is_told() {
    let mut server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    let mut ear = listen(&place).await;
    place.tell(news(1)).await.unwrap();
    assert_eq!(ear.heard().await.unwrap(), news(1));
    server.kill();
    assert!(ear.heard().await.is_err());
    assert!(ear.heard().await.is_err(), "it does not come back by itself");
    server.start();
    let mut ear = listen(&place).await;
    place.tell(news(2)).await.unwrap();
    assert_eq!(ear.heard().await.unwrap(), news(2));
}

/// A server that no longer answers is as quiet as one without news; it is told apart. A long quiet alone is not.
#[tokio::test]
async fn a_silent_server_is_not_taken_for_a_quiet_one() {
    let server = Server::standalone();
    let place = redis(&server.url(), "tasuki");
    let mut ear = listen(&place).await;
    let pings = |server: &Server| -> bool {
        let stats: String = server.ask(&["INFO", "commandstats"]);
        stats.contains("cmdstat_ping")
    };
    // The coordinator has not connected yet, so that every ping is the ear's.
    assert!(!pings_after_start(&server));
    tokio::select! {
        heard = ear.heard() => panic!("{:?} in a quiet time", heard.map_err(|error| error.to_string())),
        () = eventually("it has asked", async || pings(&server).then_some(())) => {}
    }
    place.tell(news(3)).await.unwrap();
    assert_eq!(ear.heard().await.unwrap(), news(3));
    server.freeze();
    assert!(ear.heard().await.is_err());
    server.thaw();
}

/// Forgets the pings with which the server was waited for.
fn pings_after_start(server: &Server) -> bool {
    server.ask::<()>(&["CONFIG", "RESETSTAT"]);
    server.ask::<String>(&["INFO", "commandstats"]).contains("cmdstat_ping")
}
