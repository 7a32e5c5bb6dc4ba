//! What makes a node one of many: a port that others call, certificates, and where they meet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tasuki::node::coordination::coordinate::Coordinator;
use tasuki::node::coordination::peers::Called;
use tasuki::node::world::RealClock;
use tasuki::node::{Config, NodeBuilder};
use tasuki_cluster::LOOK_EVERY;
use tasuki_cluster::identity::{Identity, PeerRole};
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_cluster::rpc::{Limits, RpcPeers, RpcServer};
use tasuki_cluster::security::Security;
use tasuki_cluster::tls::{Tls, TlsFiles};
use tasuki_cluster::token::{TokenFiles, Tokens};
use tasuki_core::NodeName;
use tokio::net::TcpListener;

use crate::layers::Layers;
use crate::output::Failure;

/// How long calls that are under way have when a node stops.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// The cluster a node is to join.
pub(crate) struct Cluster {
    name: String,
    node: NodeName,
    listen: SocketAddr,
    address: Option<String>,
    known_by: KnownBy,
    redis: Option<RedisConfig>,
}

/// How this node shows who it is.
enum KnownBy {
    Certificate(TlsFiles),
    Token(TokenFiles),
}

/// A node that can be called, once it is there.
pub(crate) struct Member {
    listener: TcpListener,
    security: Security,
    coordinator: Option<Arc<dyn Coordinator>>,
}

/// A port that answers.
pub(crate) struct Calls(RpcServer);

impl Cluster {
    pub(crate) fn read(layers: &Layers, node: NodeName) -> Result<Self, Failure> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let listen = layers.parsed("rpc_listen", |typed| {
            typed.parse::<SocketAddr>().map_err(|error| words(&error))
        })?;
        let address = layers.parsed("rpc_address", |typed| match typed.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(typed.to_owned())
            }
            Some(_) | None => Err("it is to be HOST:PORT".to_owned()),
        })?;
        let prefix = layers.text("redis_prefix").unwrap_or("tasuki").to_owned();
        // A URL may hold a password: what is wrong with it is told without it.
        let redis = match layers.said("redis_url").and_then(|said| said.values.last()) {
            Some(url) => {
                let read = url.parse::<RedisConfig>().and_then(|read| read.with_prefix(&prefix));
                Some(read.map_err(|error| Failure::bad_usage(format!("redis_url: {error}")))?)
            }
            None => None,
        };
        let tls = TlsFiles::in_folder(&layers.path("tls_dir").unwrap_or_default());
        let known_by = match layers.path("rpc_token_key") {
            Some(current) => {
                let previous = layers.path("rpc_token_key_previous");
                KnownBy::Token(TokenFiles { current, previous })
            }
            None => KnownBy::Certificate(TlsFiles {
                certificate: layers.path("tls_cert").unwrap_or(tls.certificate),
                key: layers.path("tls_key").unwrap_or(tls.key),
                authority: layers.path("tls_ca").unwrap_or(tls.authority),
            }),
        };
        let name = layers.text("cluster").unwrap_or("tasuki").to_owned();
        let listen = listen.expect("it has a default");
        Ok(Self { name, node, listen, address, known_by, redis })
    }

    /// Opens its port and learns who it is. Where others find it is written into `config`.
    pub(crate) async fn join(self, config: &mut Config) -> Result<Member, Failure> {
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::refused(format!("other nodes cannot call {}: {error}", self.listen))
                .hint("another program uses the port, or it is not ours to use; --rpc-listen says another")
        })?;
        let bound = listener.local_addr().map_err(|error| Failure::refused(error.to_string()))?;
        let address = match self.address {
            Some(address) => address,
            None if bound.ip().is_unspecified() => {
                return Err(Failure::bad_usage(
                    "rpc_listen is every address of this host: others must be told one",
                )
                .hint("--rpc-address HOST:PORT says where they find this node"));
            }
            None => bound.to_string(),
        };
        config.address = Some(address);
        let clock = Arc::new(RealClock);
        let security = match self.known_by {
            KnownBy::Certificate(files) => {
                Tls::open(files, &self.name, clock, LOOK_EVERY).map(Security::Mtls)
            }
            KnownBy::Token(files) => {
                let identity = Identity::new(&self.name, PeerRole::Node, self.node.as_str());
                let identity = identity.map_err(|error| Failure::bad_usage(error.to_string()))?;
                Tokens::open(files, identity, clock, LOOK_EVERY).map(Security::Token)
            }
        };
        let security = security.map_err(|error| {
            Failure::refused(error.to_string()).hint(
                "nodes know each other by certificates: `tasuki cert dev` makes some for trying it out; --tls-dir says where they are",
            )
        })?;
        let coordinator = match self.redis {
            Some(redis) => {
                let redis = RedisCoordinator::new(redis);
                let redis = redis.map_err(|error| Failure::bad_usage(error.to_string()))?;
                Some(Arc::new(redis) as Arc<dyn Coordinator>)
            }
            None => None,
        };
        Ok(Member { listener, security, coordinator })
    }
}

impl Member {
    /// Tells a node to be how it meets and calls others.
    pub(crate) fn introduce(&self, node: NodeBuilder) -> NodeBuilder {
        let node = node.peers(Arc::new(RpcPeers::new(self.security.clone(), Arc::new(RealClock))));
        match &self.coordinator {
            Some(coordinator) => node.coordinator(Arc::clone(coordinator)),
            None => node,
        }
    }

    /// Answers from now on.
    pub(crate) async fn answer(self, called: Arc<dyn Called>) -> Result<Calls, Failure> {
        let server = RpcServer::on(self.listener, called, self.security, Limits::default());
        let server = server.await.map_err(|error| Failure::refused(error.to_string()))?;
        Ok(Calls(server))
    }
}

impl Calls {
    pub(crate) async fn stop(self) {
        self.0.stop(LAST_CALLS).await;
    }
}
