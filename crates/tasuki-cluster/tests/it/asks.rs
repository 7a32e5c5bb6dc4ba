//! Who may ask whether a worker may go on: its own node, as the database has it.

use std::sync::Arc;
use std::time::Duration;

use tasuki::node::coordination::peers::{Peer, Peers as _, Question, Silent};
use tasuki::node::world::RealClock;
use tasuki::node::{Config, Node};
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_cluster::{Identity, PeerRole, Security};
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{NewWorker, Store};

use crate::fake::{CLUSTER, Folder, authority, certified, node, open};

/// A node `a` that is called, and workers of `b` and `c` in its database.
struct Asked {
    node: Node,
    server: RpcServer,
    peer: Peer,
    store: Store,
    workers: [WorkerId; 2],
}

impl Asked {
    async fn start(security: Security) -> Self {
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
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(anywhere, node.called(), security, Limits::default());
        let server = server.await.unwrap();
        let peer = Peer { worker: node.worker_id(), address: Some(server.address().to_string()) };
        Self { node, server, peer, store, workers }
    }

    /// Somebody asks for a worker. Nothing runs there, so there is nothing to go on with.
    async fn ask(&self, caller: &RpcPeers, worker: WorkerId) -> Result<Vec<RunId>, Silent> {
        let runs = vec![(RunId(1), LeaseToken::from_random(1))];
        caller.confirm(&self.peer, &Question { worker, runs }).await
    }

    async fn refuses(&self, caller: &RpcPeers, worker: WorkerId) {
        let Silent(why) = self.ask(caller, worker).await.unwrap_err();
        assert!(why.starts_with("PermissionDenied: a node may ask for its own"), "{why}");
    }

    /// Each node has a name of its own to show.
    async fn check(self, caller: impl Fn(&str) -> RpcPeers) {
        let [of_b, of_c] = self.workers;
        let (b, c, d) = (caller("b"), caller("c"), caller("d"));
        for (caller, worker) in [(&b, of_b), (&c, of_c)] {
            assert_eq!(self.ask(caller, worker).await, Ok(vec![]));
        }
        for (caller, worker) in [(&b, of_c), (&c, of_b), (&b, self.node.worker_id()), (&d, of_b)] {
            self.refuses(caller, worker).await;
        }
        // A node that has left, or that nobody remembers, is still no other's.
        assert!(self.store.worker_gone(of_b).await.unwrap());
        assert_eq!(self.ask(&b, of_b).await, Ok(vec![]));
        self.refuses(&b, of_c).await;
        // Whom nobody knows can ask about nothing.
        assert_eq!(self.ask(&b, WorkerId::from_random(9)).await, Ok(vec![]));
        self.stop().await;
    }

    async fn stop(self) {
        self.server.stop(Duration::ZERO).await;
        self.node.stop().await;
    }
}

/// Certificates of one authority, by name.
fn certificates(names: &[&'static str]) -> impl Fn(&str) -> Security {
    let authority = authority();
    let folders: Vec<(&str, Folder)> =
        names.iter().map(|name| (*name, certified(&authority, &node(name)))).collect();
    move |wanted| {
        let (_, folder) = folders.iter().find(|(name, _)| *name == wanted).unwrap();
        Security::Mtls(open(folder))
    }
}

#[tokio::test]
async fn rpc_a_node_asks_for_its_own_workers_only() {
    let security = certificates(&["a", "b", "c", "d"]);
    let asked = Asked::start(security("a")).await;
    asked.check(|name| RpcPeers::new(security(name), Arc::new(RealClock))).await;
}

/// What nodes share says nothing of who asks: who bears it too answers it, for every worker.
#[tokio::test]
async fn rpc_nodes_that_share_a_certificate_ask_for_each_other() {
    let security = certificates(&["all-nodes", "b"]);
    let asked = Asked::start(security("all-nodes")).await;
    let [of_b, of_c] = asked.workers;
    let shared = RpcPeers::new(security("all-nodes"), Arc::new(RealClock));
    for worker in [of_b, of_c] {
        assert_eq!(asked.ask(&shared, worker).await, Ok(vec![]));
    }
    // One with a name of its own is held to it.
    let b = RpcPeers::new(security("b"), Arc::new(RealClock));
    assert_eq!(asked.ask(&b, of_b).await, Ok(vec![]));
    asked.refuses(&b, of_c).await;
    asked.stop().await;
}

#[tokio::test]
async fn rpc_a_token_asks_for_the_workers_of_its_node_only() {
    use tasuki_cluster::token::{TokenFiles, Tokens};
    let folder = Folder::new();
    folder.write("key", &"k".repeat(40));
    let security = |name: &str| {
        let files = TokenFiles { current: folder.path().join("key"), previous: None };
        let identity = Identity::new(CLUSTER, PeerRole::Node, name).unwrap();
        let tokens = Tokens::open(files, identity, Arc::new(RealClock), crate::fake::LOOK_EVERY);
        Security::Token(tokens.unwrap())
    };
    let asked = Asked::start(security("a")).await;
    asked.check(|name| RpcPeers::new(security(name), Arc::new(RealClock))).await;
}
