//! Test of the presence that a node publishes to the coordinator.

use std::sync::Arc;

use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::coordinator_trait::SimulatedCoordinator;
use tasuki::node::{Config, Node};
use tasuki::{Context, HandlerRegistry, TaskSuccess};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tokio::sync::Notify;

use crate::node_fixture::NodeFixture;

#[tokio::test]
async fn a_node_publishes_its_leased_runs() {
    let fixture = NodeFixture::new().await;
    fixture.change_settings(&[("heartbeat_interval", "10ms"), ("heartbeat_ttl", "5m")]).await;
    let coordinator = SimulatedCoordinator::new(Arc::new(RealClock));
    let go = Arc::new(Notify::new());
    let (mut functions, go_on) = (HandlerRegistry::default(), Arc::clone(&go));
    functions.register("wait", move |(), _: Context| {
        let go_on = Arc::clone(&go_on);
        async move {
            go_on.notified().await;
            Ok(TaskSuccess::default())
        }
    });
    let mut config = Config::new("here".parse().unwrap());
    config.address = Some("127.0.0.1:1".to_owned());
    let node = Node::builder(config, fixture.store.clone()).wakeups(fixture.wakeups.clone());
    let node = node.functions(functions).coordinator(Arc::new(coordinator.clone()));
    let node = node.start().await.unwrap();
    let job = fixture
        .create_task_job("wait", &WorkSpec::new(WorkAction::Function("wait".to_owned())))
        .await;
    let run = fixture.submit(&job, None).await;
    let worker =
        fixture.wait_until("the run is published", async || coordinator.find_run_worker(run)).await;
    assert_eq!(worker, node.worker_id());
    go.notify_one();
    fixture.wait_until_ended(run).await;
    node.stop().await;
    fixture.finish().await;
}
