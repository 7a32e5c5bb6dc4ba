//! Who may ask whether a worker may go on: its own node, as the database has it.

use std::sync::Arc;
use std::time::Duration;

use tasuki::node::peers::{Peer, Peers as _, Question, Silent};
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
        let node = Node::builder(Config::new("a".parse().unwrap()), store).start().await.unwrap();
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(anywhere, node.called(), security, Limits::default());
        let server = server.await.unwrap();
        let peer = Peer { worker: node.worker_id(), address: Some(server.address().to_string()) };
        Self { node, server, peer, workers }
    }

    /// Somebody asks for a worker. Nothing runs there, so there is nothing to go on with.
    async fn ask(&self, caller: &RpcPeers, worker: WorkerId) -> Result<Vec<RunId>, Silent> {
        let runs = vec![(RunId(1), LeaseToken::from_random(1))];
        caller.confirm(&self.peer, &Question { worker, runs }).await
    }

    async fn check(self, caller: impl Fn(&str) -> RpcPeers) {
        let [of_b, of_c] = self.workers;
        let (b, c, shared) = (caller("b"), caller("c"), caller("all-nodes"));
        for (caller, worker) in [(&b, of_b), (&c, of_c), (&shared, of_b), (&shared, of_c)] {
            assert_eq!(self.ask(caller, worker).await, Ok(vec![]));
        }
        for (caller, worker) in [(&b, of_c), (&c, of_b), (&b, self.node.worker_id())] {
            let Silent(why) = self.ask(caller, worker).await.unwrap_err();
            assert!(why.starts_with("PermissionDenied: a node may ask for its own"), "{why}");
        }
        // Whom nobody knows can ask about nothing.
        assert_eq!(self.ask(&b, WorkerId::from_random(9)).await, Ok(vec![]));
        self.server.stop(Duration::ZERO).await;
        self.node.stop().await;
    }
}

#[tokio::test]
async fn rpc_a_node_asks_for_its_own_workers_only() {
    let authority = authority();
    let folders: Vec<(&str, Folder)> =
        ["a", "b", "c", "all-nodes"].map(|name| (name, certified(&authority, &node(name)))).into();
    let security = |wanted: &str| {
        let (_, folder) = folders.iter().find(|(name, _)| *name == wanted).unwrap();
        Security::Mtls(open(folder))
    };
    let asked = Asked::start(security("a")).await;
    asked.check(|name| RpcPeers::new(security(name), Arc::new(RealClock))).await;
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
