//! The RPC server of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tasuki::node::coordination::node_rpc::NodeRpc;
use tasuki_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::server::{HealthReporter, health_reporter};
use tonic_reflection::server::Builder;

use super::accept::Acceptor;
use super::authenticate_and_authorize::AuthorizeLayer;
use super::service::RpcService;
use crate::identity::{InvalidIdentity, RpcCallerRole};
use crate::security::{Error, RpcAuthMethod};

/// Limits of an [`RpcServer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Maximum number of connections. A node has one to each other node.
    pub connections: usize,
    /// Maximum number of concurrent handshakes.
    pub handshakes: usize,
    /// Timeout of a handshake.
    pub handshake: Duration,
    /// Maximum number of concurrent calls over one connection.
    pub streams: u32,
    /// Maximum size of a message, in bytes.
    pub message_bytes: usize,
    /// Timeout of a call. It applies even if the caller requests a longer one.
    pub call: Duration,
    /// Interval of keepalive pings on an idle connection, and the timeout of their responses.
    pub keepalive: Duration,
    /// Maximum age of a connection. After that the client must connect again, so that both sides present their current
    /// certificates. Calls in progress are finished first.
    pub connection_age: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 512,
            handshakes: 64,
            handshake: Duration::from_secs(5),
            streams: 128,
            message_bytes: 1 << 20,
            call: Duration::from_secs(10),
            keepalive: Duration::from_secs(10),
            connection_age: Duration::from_secs(5 * 60),
        }
    }
}

/// Maximum size of the headers of a call: enough for a token and little else.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Time that aborted connections have to close.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The running RPC server of a node. Dropping it aborts all connections; [`RpcServer::stop`] lets calls finish.
#[derive(Debug)]
pub struct RpcServer {
    address: SocketAddr,
    health: HealthReporter,
    stopping: watch::Sender<bool>,
    abort: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RpcServer {
    /// Listens on an address and passes the calls of authorized callers to `node`.
    pub async fn start(
        address: SocketAddr,
        node: Arc<dyn NodeRpc>,
        security: RpcAuthMethod,
        limits: ServerLimits,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        Self::start_on_listener(listener, node, security, limits).await
    }

    /// Like [`RpcServer::start`], on a port that is already open. A node needs its own address before it can handle calls.
    pub async fn start_on_listener(
        listener: TcpListener,
        node: Arc<dyn NodeRpc>,
        security: RpcAuthMethod,
        limits: ServerLimits,
    ) -> Result<Self, Error> {
        let identity = security.identity();
        if identity.role() != RpcCallerRole::Node {
            return Err(InvalidIdentity::new(format!(
                "{identity} has not the role node, so it cannot run an RPC server"
            ))
            .into());
        }
        let address = listener.local_addr().map_err(|source| {
            let address = "an open port".to_owned();
            Error::Listen { address, source }
        })?;

        let (stopping, stop_signal) = watch::channel(false);
        let (abort, abort_signal) = watch::channel(false);
        let (accepted, connections) = mpsc::channel(limits.handshakes);
        let (health, health_service) = health_reporter();
        health.set_serving::<WorkerServiceServer<RpcService>>().await;
        let reflection = Builder::configure()
            .register_encoded_file_descriptor_set(tasuki_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .expect("the descriptors are compiled into this program");
        let node_name = node.status().node;
        let service = WorkerServiceServer::new(RpcService { node, security: security.clone() })
            .max_decoding_message_size(limits.message_bytes)
            .max_encoding_message_size(limits.message_bytes);
        let serve = Server::builder()
            .max_concurrent_streams(limits.streams)
            .timeout(limits.call)
            .http2_keepalive_interval(Some(limits.keepalive))
            .http2_keepalive_timeout(Some(limits.keepalive))
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .max_connection_age(limits.connection_age)
            // A client with an endless call (a health watch) must also connect again.
            .max_connection_age_grace(limits.call)
            .layer(AuthorizeLayer { security: security.clone() })
            .add_service(service)
            .add_service(health_service)
            .add_service(reflection)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(connections),
                wait_until_true(stop_signal.clone()),
            );
        let connection_permits = Arc::new(Semaphore::new(limits.connections));
        let acceptor = Acceptor {
            security,
            limits,
            connections: connection_permits,
            abort: abort_signal,
            accepted,
        };
        let accept = async move {
            // The branch that is not chosen is dropped, so the port closes as soon as the stop signal arrives.
            tokio::select! {
                () = acceptor.accept_connections(listener) => {}
                () = wait_until_true(stop_signal) => {}
            }
        };
        let task = tokio::spawn(async move {
            let (served, ()) = tokio::join!(serve, accept);
            if let Err(error) = served {
                tracing::error!(%error, "the RPC server failed; calls from other nodes are no longer handled");
            }
        });
        tracing::info!(%address, %identity, "the RPC server is listening");
        if identity.name() != node_name.as_str() {
            tracing::info!(
                %identity, node = %node_name,
                "the identity has another name than this node, so it counts as one that several nodes share"
            );
        }
        Ok(Self { address, health, stopping, abort, task })
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses new calls, finishes calls in progress, and aborts the remaining connections after `grace`.
    pub async fn stop(mut self, grace: Duration) {
        self.health.set_not_serving::<WorkerServiceServer<RpcService>>().await;
        self.stopping.send_replace(true);
        if timeout(grace, &mut self.task).await.is_err() {
            self.abort.send_replace(true);
            if timeout(ABORT_TIMEOUT, &mut self.task).await.is_err() {
                tracing::warn!("connections of other nodes did not close in time");
            }
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn wait_until_true(mut signal: watch::Receiver<bool>) {
    // An error means that the sender was dropped; that counts as the signal.
    let _ = signal.wait_for(|signal| *signal).await;
}
