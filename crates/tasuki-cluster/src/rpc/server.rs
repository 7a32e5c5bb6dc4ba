//! The port that a node serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tasuki::node::coordination::peers::Called;
use tasuki_proto::v1::worker_service_server::WorkerServiceServer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::server::{HealthReporter, health_reporter};
use tonic_reflection::server::Builder;

use super::access::AccessLayer;
use super::incoming::Door;
use super::service::Service;
use crate::identity::{PeerRole, WrongIdentity};
use crate::security::{Error, Security};

/// How much is taken on at once, and for how long.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Connections. A node has one to each other node.
    pub connections: usize,
    /// Handshakes at the same time.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Calls at the same time over one connection.
    pub streams: u32,
    /// The largest message, in bytes.
    pub message_bytes: usize,
    /// How long a call may take, whatever its caller says.
    pub call: Duration,
    /// How often a quiet connection is asked whether it lives, and how long it has to say so.
    pub keepalive: Duration,
    /// After how long a connection is replaced, so that both sides show what certificates they have by
    /// then. Calls under way are finished.
    pub connection_age: Duration,
}

impl Default for Limits {
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

/// As much as a call's headers may take: a token and little else.
const HEADER_BYTES: u32 = 16 * 1024;

/// How long connections that were cut have to notice.
const LAST: Duration = Duration::from_secs(1);

/// A port that answers. Dropping it cuts everybody off; `stop` lets them finish.
#[derive(Debug)]
pub struct RpcServer {
    address: SocketAddr,
    health: HealthReporter,
    stopping: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl RpcServer {
    /// Answers at an address for `called`, to those whom `security` knows.
    pub async fn start(
        address: SocketAddr,
        called: Arc<dyn Called>,
        security: Security,
        limits: Limits,
    ) -> Result<Self, Error> {
        let unserved = |source| Error::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).await.map_err(unserved)?;
        Self::on(listener, called, security, limits).await
    }

    /// The same on a port that is open already: a node is told where it is before it is there to be called.
    pub async fn on(
        listener: TcpListener,
        called: Arc<dyn Called>,
        security: Security,
        limits: Limits,
    ) -> Result<Self, Error> {
        let identity = security.identity();
        if identity.role() != PeerRole::Node {
            return Err(
                WrongIdentity::new(format!("{identity} is no node, and cannot serve")).into()
            );
        }
        let address = listener.local_addr().map_err(|source| {
            let address = "a port that was open".to_owned();
            Error::Listen { address, source }
        })?;

        let (stopping, stopped) = watch::channel(false);
        let (cut, is_cut) = watch::channel(false);
        let (inside, incoming) = mpsc::channel(limits.handshakes);
        let (health, health_service) = health_reporter();
        health.set_serving::<WorkerServiceServer<Service>>().await;
        let reflection = Builder::configure()
            .register_encoded_file_descriptor_set(tasuki_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .expect("the descriptors were compiled with this program");
        let node = called.status().node;
        let service = WorkerServiceServer::new(Service { called, security: security.clone() })
            .max_decoding_message_size(limits.message_bytes)
            .max_encoding_message_size(limits.message_bytes);
        let serving = Server::builder()
            .max_concurrent_streams(limits.streams)
            .timeout(limits.call)
            .http2_keepalive_interval(Some(limits.keepalive))
            .http2_keepalive_timeout(Some(limits.keepalive))
            .http2_max_header_list_size(HEADER_BYTES)
            .max_connection_age(limits.connection_age)
            // Somebody who watches for ever must connect anew like everybody else.
            .max_connection_age_grace(limits.call)
            .layer(AccessLayer { security: security.clone() })
            .add_service(service)
            .add_service(health_service)
            .add_service(reflection)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(incoming),
                until_true(stopped.clone()),
            );
        let connections = Arc::new(Semaphore::new(limits.connections));
        let door = Door { security, limits, connections, cut: is_cut, inside };
        let standing = async move {
            // What is not chosen is dropped: the port closes with the first word of stopping.
            tokio::select! {
                () = door.stand(listener) => {}
                () = until_true(stopped) => {}
            }
        };
        let task = tokio::spawn(async move {
            let (served, ()) = tokio::join!(serving, standing);
            if let Err(error) = served {
                tracing::error!(%error, "calls from other nodes are no longer answered");
            }
        });
        tracing::info!(%address, %identity, "answering calls from other nodes");
        if identity.name() != node.as_str() {
            tracing::info!(%identity, %node, "what this node shows others bears another name: it is taken for one that nodes share");
        }
        Ok(Self { address, health, stopping, cut, task })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more calls, finishes those under way, and after `grace` cuts off who is left.
    pub async fn stop(mut self, grace: Duration) {
        self.health.set_not_serving::<WorkerServiceServer<Service>>().await;
        self.stopping.send_replace(true);
        if timeout(grace, &mut self.task).await.is_err() {
            self.cut.send_replace(true);
            if timeout(LAST, &mut self.task).await.is_err() {
                tracing::warn!("connections of other nodes did not end");
            }
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn until_true(mut told: watch::Receiver<bool>) {
    // Whoever could tell is gone: that is as good as being told.
    let _ = told.wait_for(|told| *told).await;
}
