//! The cluster part of a node: its RPC port, its credentials (certificate or token key) and the Redis coordinator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tasuki::node::clock_and_random::RealClock;
use tasuki::node::coordination::coordinator_trait::Coordinator;
use tasuki::node::coordination::node_rpc::NodeRpc;
use tasuki::node::{Config, NodeBuilder};
use tasuki_cluster::RELOAD_INTERVAL;
use tasuki_cluster::identity::{Identity, RpcCallerRole};
use tasuki_cluster::redis::{RedisConfig, RedisCoordinator};
use tasuki_cluster::rpc::{RpcPeers, RpcServer, ServerLimits};
use tasuki_cluster::security::RpcAuthMethod;
use tasuki_cluster::signed_token::{TokenKeyFiles, TokenSigner};
use tasuki_cluster::tls::{MutualTls, TlsFiles};
use tasuki_core::NodeName;
use tokio::net::TcpListener;

use crate::config_layers::MergedConfig;
use crate::failure::Failure;

/// Maximum time for RPC calls in progress to finish when the node stops.
const RPC_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The configuration of a node's membership in a cluster.
pub(crate) struct ClusterOptions {
    name: String,
    node: NodeName,
    listen: SocketAddr,
    address: Option<String>,
    credentials: NodeCredentials,
    redis: Option<RedisConfig>,
}

/// The credentials with which this node authenticates to other nodes.
enum NodeCredentials {
    Certificate(TlsFiles),
    Token(TokenKeyFiles),
}

/// An open RPC port with credentials and coordinator, before the node itself is started.
pub(crate) struct NodeClusterParts {
    listener: TcpListener,
    security: RpcAuthMethod,
    coordinator: Option<Arc<dyn Coordinator>>,
}

/// The running RPC server of a node.
pub(crate) struct RunningRpcServer(RpcServer);

impl ClusterOptions {
    pub(crate) fn read(layers: &MergedConfig, node: NodeName) -> Result<Self, Failure> {
        let text_of = |error: &dyn std::fmt::Display| error.to_string();
        let listen = layers.parse_value_of_key("rpc_listen", |input| {
            input.parse::<SocketAddr>().map_err(|error| text_of(&error))
        })?;
        let address =
            layers.parse_value_of_key("rpc_address", |input| match input.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(input.to_owned())
                }
                Some(_) | None => Err("expected HOST:PORT".to_owned()),
            })?;
        let prefix = layers.text("redis_prefix").unwrap_or("tasuki").to_owned();
        // The URL may contain a password, so the error message does not contain the URL.
        let redis = match layers.get("redis_url").and_then(|found| found.values.last()) {
            Some(url) => {
                let read = url.parse::<RedisConfig>().and_then(|read| read.with_prefix(&prefix));
                Some(read.map_err(|error| Failure::bad_usage(format!("redis_url: {error}")))?)
            }
            None => None,
        };
        let tls = TlsFiles::in_folder(&layers.path_value("tls_dir").unwrap_or_default());
        let credentials = match layers.path_value("rpc_token_key") {
            Some(current) => {
                let previous = layers.path_value("rpc_token_key_previous");
                NodeCredentials::Token(TokenKeyFiles { current, previous })
            }
            None => NodeCredentials::Certificate(TlsFiles {
                certificate: layers.path_value("tls_cert").unwrap_or(tls.certificate),
                key: layers.path_value("tls_key").unwrap_or(tls.key),
                authority: layers.path_value("tls_ca").unwrap_or(tls.authority),
            }),
        };
        let name = layers.text("cluster").unwrap_or("tasuki").to_owned();
        let listen = listen.expect("rpc_listen has a default");
        Ok(Self { name, node, listen, address, credentials, redis })
    }

    /// Binds the RPC port and loads the credentials. Writes the address that other nodes use into `config`.
    pub(crate) async fn bind(self, config: &mut Config) -> Result<NodeClusterParts, Failure> {
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::new(format!(
                "cannot listen for calls from other nodes on {}: {error}",
                self.listen
            ))
            .hint("the port may be in use or not permitted; choose another with --rpc-listen")
        })?;
        let bound = listener.local_addr().map_err(|error| Failure::new(error.to_string()))?;
        let address = match self.address {
            Some(address) => address,
            None if bound.ip().is_unspecified() => {
                return Err(Failure::bad_usage(
                    "rpc_listen is a wildcard address, so other nodes do not know which address to call",
                )
                .hint("set the address of this node with --rpc-address HOST:PORT"));
            }
            None => bound.to_string(),
        };
        config.address = Some(address);
        let clock = Arc::new(RealClock);
        let security = match self.credentials {
            NodeCredentials::Certificate(files) => {
                MutualTls::open(files, &self.name, clock, RELOAD_INTERVAL).map(RpcAuthMethod::Mtls)
            }
            NodeCredentials::Token(files) => {
                let identity = Identity::new(&self.name, RpcCallerRole::Node, self.node.as_str());
                let identity = identity.map_err(|error| Failure::bad_usage(error.to_string()))?;
                TokenSigner::open(files, identity, clock, RELOAD_INTERVAL).map(RpcAuthMethod::Token)
            }
        };
        let security = security.map_err(|error| {
            Failure::new(error.to_string()).hint(
                "nodes authenticate with certificates: `tasuki cert dev` creates some for development; --tls-dir names their directory",
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
        Ok(NodeClusterParts { listener, security, coordinator })
    }
}

impl NodeClusterParts {
    /// Configures the node builder: how the node calls other nodes, and its coordinator.
    pub(crate) fn configure(&self, node: NodeBuilder) -> NodeBuilder {
        let node = node.peers(Arc::new(RpcPeers::new(self.security.clone(), Arc::new(RealClock))));
        match &self.coordinator {
            Some(coordinator) => node.coordinator(Arc::clone(coordinator)),
            None => node,
        }
    }

    /// Starts to serve RPC calls.
    pub(crate) async fn serve(self, called: Arc<dyn NodeRpc>) -> Result<RunningRpcServer, Failure> {
        let server = RpcServer::start_on_listener(
            self.listener,
            called,
            self.security,
            ServerLimits::default(),
        );
        let server = server.await.map_err(|error| Failure::new(error.to_string()))?;
        Ok(RunningRpcServer(server))
    }
}

impl RunningRpcServer {
    pub(crate) async fn stop(self) {
        self.0.stop(RPC_STOP_TIMEOUT).await;
    }
}
