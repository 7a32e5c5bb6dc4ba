//! What a node shows of itself where nodes meet.

use std::sync::Arc;

use tasuki::node::coordination::coordinate::InMemory;
use tasuki::node::world::RealClock;
use tasuki::node::{Config, Node};
use tasuki::{Context, Done, Functions};
use tasuki_core::job_spec::{What, Work};
use tokio::sync::Notify;

use crate::place::Place;

#[tokio::test]
async fn a_node_shows_what_it_carries() {
    let place = Place::new().await;
    place.set(&[("heartbeat_interval", "10ms"), ("heartbeat_ttl", "5m")]).await;
    let meets = InMemory::new(Arc::new(RealClock));
    let go = Arc::new(Notify::new());
    let (mut functions, goes) = (Functions::default(), Arc::clone(&go));
    functions.add("wait", move |(), _: Context| {
        let goes = Arc::clone(&goes);
        async move {
            goes.notified().await;
            Ok(Done::default())
        }
    });
    let mut config = Config::new("here".parse().unwrap());
    config.address = Some("127.0.0.1:1".to_owned());
    let node = Node::builder(config, place.store.clone()).wake(place.wake.clone());
    let node = node.functions(functions).coordinator(Arc::new(meets.clone()));
    let node = node.start().await.unwrap();
    let job = place.task("wait", &Work::new(What::Function("wait".to_owned()))).await;
    let run = place.submit(&job, None).await;
    let carrier = place.until("it is shown", async || meets.carrier(run)).await;
    assert_eq!(carrier, node.worker_id());
    go.notify_one();
    place.ended(run).await;
    node.stop().await;
    place.end().await;
}
