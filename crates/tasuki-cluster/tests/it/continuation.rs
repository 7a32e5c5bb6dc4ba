//! Authorization of continuation requests: only the node of a worker may send them, according to the database.

use std::sync::Arc;
use std::time::Duration;

use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::node_rpc::{
    DetachedWorkerContinueRequest, Peer, PeerUnreachable, Peers as _,
};
use tasuki::node::{Config, Node};
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_cluster::{Identity, RpcAuthMethod, RpcCallerRole};
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{NewWorker, Store};

use crate::fixtures::{
    CLUSTER, TempFolder, authority, create_cert_folder, node_identity, open_tls,
};

/// A node `a` with an RPC server, and workers of the nodes `b` and `c` in its database.
struct TestCluster {
    node: Node,
    server: RpcServer,
    peer: Peer,
    store: Store,
    workers: [WorkerId; 2],
}

impl TestCluster {
    async fn start(security: RpcAuthMethod) -> Self {
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        let workers = [1, 2].map(WorkerId::from_random);
        for (id, name) in workers.into_iter().zip(["b", "c"]) {
            let (pid, address, labels) = (None, None, None);
            let node = name.parse().unwrap();
            let worker = NewWorker { id, node, pid, address, labels, slots: 1, function_slots: 1 };
            store.register_worker(&worker).await.unwrap();
        }
        let config = Config::new("a".parse().unwrap());
        let node = Node::builder(config, store.clone()).start().await.unwrap();
        let any_port = "127.0.0.1:0".parse().unwrap();
        let server =
            RpcServer::start(any_port, node.rpc_service(), security, ServerLimits::default());
        let server = server.await.unwrap();
        let peer = Peer { worker: node.worker_id(), address: Some(server.address().to_string()) };
        Self { node, server, peer, store, workers }
    }

    /// Requests a continuation for a worker. It has no runs in the database, so the result is empty if it is allowed.
    async fn request_continuation(
        &self,
        caller: &RpcPeers,
        worker: WorkerId,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        let runs = vec![(RunId(1), LeaseToken::from_random(1))];
        caller.confirm(&self.peer, &DetachedWorkerContinueRequest { worker, runs }).await
    }

    async fn expect_refused(&self, caller: &RpcPeers, worker: WorkerId) {
        let PeerUnreachable(reason) = self.request_continuation(caller, worker).await.unwrap_err();
        assert!(
            reason.starts_with("PermissionDenied: a node may request a continuation only"),
            "{reason}"
        );
    }

    /// Checks which requests are allowed if every node has an identity of its own.
    async fn check(self, caller: impl Fn(&str) -> RpcPeers) {
        let [of_b, of_c] = self.workers;
        let (b, c, d) = (caller("b"), caller("c"), caller("d"));
        for (caller, worker) in [(&b, of_b), (&c, of_c)] {
            assert_eq!(self.request_continuation(caller, worker).await, Ok(vec![]));
        }
        for (caller, worker) in [(&b, of_c), (&c, of_b), (&b, self.node.worker_id()), (&d, of_b)] {
            self.expect_refused(caller, worker).await;
        }
        // A worker that has left still belongs to its node.
        assert!(self.store.mark_worker_gone(of_b).await.unwrap());
        assert_eq!(self.request_continuation(&b, of_b).await, Ok(vec![]));
        self.expect_refused(&b, of_c).await;
        // A worker that is not in the database belongs to no node, and has no runs.
        assert_eq!(self.request_continuation(&b, WorkerId::from_random(9)).await, Ok(vec![]));
        self.stop().await;
    }

    async fn stop(self) {
        self.server.stop(Duration::ZERO).await;
        self.node.stop().await;
    }
}

/// Creates certificates of one authority, and returns a function from name to certificate.
fn certificates(names: &[&'static str]) -> impl Fn(&str) -> RpcAuthMethod {
    let authority = authority();
    let folders: Vec<(&str, TempFolder)> = names
        .iter()
        .map(|name| (*name, create_cert_folder(&authority, &node_identity(name))))
        .collect();
    move |searched| {
        let (_, folder) = folders.iter().find(|(name, _)| *name == searched).unwrap();
        RpcAuthMethod::Mtls(open_tls(folder))
    }
}

#[tokio::test]
async fn rpc_a_node_may_request_a_continuation_only_for_its_own_workers() {
    let security = certificates(&["a", "b", "c", "d"]);
    let cluster = TestCluster::start(security("a")).await;
    cluster.check(|name| RpcPeers::new(security(name), Arc::new(RealClock))).await;
}

/// A shared certificate does not show which node calls, so a node with the same certificate answers for every worker.
#[tokio::test]
async fn rpc_nodes_that_share_a_certificate_may_request_a_continuation_for_each_other() {
    let security = certificates(&["all-nodes", "b"]);
    let cluster = TestCluster::start(security("all-nodes")).await;
    let [of_b, of_c] = cluster.workers;
    let shared = RpcPeers::new(security("all-nodes"), Arc::new(RealClock));
    for worker in [of_b, of_c] {
        assert_eq!(cluster.request_continuation(&shared, worker).await, Ok(vec![]));
    }
    // A node with an identity of its own is restricted to its own workers.
    let b = RpcPeers::new(security("b"), Arc::new(RealClock));
    assert_eq!(cluster.request_continuation(&b, of_b).await, Ok(vec![]));
    cluster.expect_refused(&b, of_c).await;
    cluster.stop().await;
}

#[tokio::test]
async fn rpc_a_token_allows_continuations_only_for_the_workers_of_its_node() {
    use tasuki_cluster::signed_token::{TokenKeyFiles, TokenSigner};
    let folder = TempFolder::new();
    folder.write("key", &"k".repeat(40));
    let security = |name: &str| {
        let files = TokenKeyFiles { current: folder.path().join("key"), previous: None };
        let identity = Identity::new(CLUSTER, RpcCallerRole::Node, name).unwrap();
        let tokens = TokenSigner::open(
            files,
            identity,
            Arc::new(RealClock),
            crate::fixtures::RELOAD_INTERVAL,
        );
        RpcAuthMethod::Token(tokens.unwrap())
    };
    let cluster = TestCluster::start(security("a")).await;
    cluster.check(|name| RpcPeers::new(security(name), Arc::new(RealClock))).await;
}
