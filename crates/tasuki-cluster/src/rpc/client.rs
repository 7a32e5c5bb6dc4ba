//! The RPC client of a node: one connection to each other node, opened on first use.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasuki::node::clock_and_random::Clock;
use tasuki::node::coordination::node_rpc::{
    CancelHint, DetachedWorkerContinueRequest, ORDER_TIMEOUT, OrderResponse, PING_TIMEOUT, Peer,
    PeerUnreachable, Peers, StartOrder, WorkerStatus,
};
use tasuki_core::{Epoch, RunId, WorkerId};
use tasuki_proto::v1;
use tasuki_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::time::timeout;
use tonic::codegen::http::Uri;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response};

use super::connect::connect;
use super::convert;
use crate::security::RpcAuthMethod;

type Client = WorkerServiceClient<Channel>;

/// Maximum size of a request or response, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Interval of HTTP/2 keepalive pings, and the timeout of their responses. A dead connection is therefore closed after
/// at most twice this time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);

/// A connection that was not used for this long is closed, because workers and their addresses come and go.
const IDLE_TIMEOUT_US: u64 = 10 * 60 * 1_000_000;

/// Calls other nodes through gRPC.
pub struct RpcPeers {
    security: RpcAuthMethod,
    clock: Arc<dyn Clock>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    by_address: HashMap<String, PeerConnection>,
    /// When idle connections were last removed, on the boot-time clock, in microseconds.
    idle_removed_at: u64,
}

/// A connection to another node. It connects on first use, and again after it broke.
struct PeerConnection {
    client: Client,
    /// Generation of the certificate with which the connection was opened.
    generation: u64,
    /// Last use on the boot-time clock, in microseconds.
    used_at: u64,
}

impl RpcPeers {
    /// Creates a client that identifies itself with `security`. It does not connect yet.
    pub fn new(security: RpcAuthMethod, clock: Arc<dyn Clock>) -> Self {
        Self { security, clock, connections: Mutex::default() }
    }

    /// Sends a request, and sends it once more if the connection broke before a response arrived, as it does when the
    /// other side has just replaced the connection. This is safe because every call is a hint that may be repeated.
    async fn call<M, A, F>(
        &self,
        peer: &Peer,
        deadline: Duration,
        message: M,
        send: impl Fn(Client, Request<M>) -> F + Send + Sync,
    ) -> Result<A, PeerUnreachable>
    where
        M: Clone + Send + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, tonic::Status>> + Send,
    {
        let address = peer.address.as_deref();
        let address =
            address.ok_or_else(|| PeerUnreachable("the worker has no RPC address".to_owned()))?;
        let exchange = async {
            let first = send(self.client(address)?, self.request(message.clone(), deadline)?).await;
            let response = match first {
                Err(status) if is_connection_failure(&status) => {
                    tracing::debug!(%peer, %status, "a connection broke; sending the request again");
                    send(self.client(address)?, self.request(message, deadline)?).await
                }
                response => response,
            };
            response
                .map(Response::into_inner)
                .map_err(|status| PeerUnreachable(describe_status(&status)))
        };
        let timed_out = || PeerUnreachable(format!("timed out after {} ms", deadline.as_millis()));
        timeout(deadline, exchange).await.unwrap_or_else(|_| Err(timed_out()))
    }

    fn request<M>(&self, message: M, deadline: Duration) -> Result<Request<M>, PeerUnreachable> {
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        if let RpcAuthMethod::Token(tokens) = &self.security {
            let header =
                AsciiMetadataValue::try_from(format!("Bearer {}", tokens.create_own_token()));
            let mut header = header.map_err(|error| PeerUnreachable(error.to_string()))?;
            header.set_sensitive(true);
            request.metadata_mut().insert("authorization", header);
        }
        Ok(request)
    }

    /// Returns the connection to an address. Opens a new one if the own certificate was replaced since.
    fn client(&self, address: &str) -> Result<Client, PeerUnreachable> {
        let (now, generation) = (self.clock.boottime(), self.generation());
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(connections.idle_removed_at) >= IDLE_TIMEOUT_US / 10 {
            connections
                .by_address
                .retain(|_, connection| now.saturating_sub(connection.used_at) < IDLE_TIMEOUT_US);
            connections.idle_removed_at = now;
        }
        let known = connections.by_address.get_mut(address);
        if let Some(connection) = known.filter(|connection| connection.generation == generation) {
            connection.used_at = now;
            return Ok(connection.client.clone());
        }
        let client = open_lazily(address, &self.security)?;
        let connection = PeerConnection { client: client.clone(), generation, used_at: now };
        connections.by_address.insert(address.to_owned(), connection);
        Ok(client)
    }

    /// Number of addresses with a connection.
    pub fn connection_count(&self) -> usize {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).by_address.len()
    }

    fn generation(&self) -> u64 {
        match &self.security {
            RpcAuthMethod::Mtls(tls) => tls.generation(),
            // A token belongs to a call, not to a connection.
            RpcAuthMethod::Token(_) => 0,
        }
    }
}

/// Prepares a connection that connects with its first request.
fn open_lazily(address: &str, security: &RpcAuthMethod) -> Result<Client, PeerUnreachable> {
    let invalid =
        || PeerUnreachable(format!("the address {address:?} is not of the form host:port"));
    // The scheme is http because the connector below does TLS itself; the library must not.
    let uri = format!("http://{address}").parse::<Uri>().map_err(|_| invalid())?;
    let is_plain = uri.authority().is_some_and(|authority| authority.as_str() == address);
    if !is_plain || uri.port_u16().is_none() || address.contains('@') {
        return Err(invalid());
    }
    let endpoint = Endpoint::from(uri)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_INTERVAL)
        .keep_alive_while_idle(true);
    let security = security.clone();
    let connector = tower::service_fn(move |uri| connect(security.clone(), uri));
    Ok(WorkerServiceClient::new(endpoint.connect_with_connector_lazy(connector))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES))
}

/// Whether a status describes a failure of the connection. Only such a status has a source; a status that the other side
/// has sent has none.
fn is_connection_failure(status: &tonic::Status) -> bool {
    status.source().is_some()
}

/// Formats a status with all of its sources, because its own message is often just "transport error".
fn describe_status(status: &tonic::Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = status.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = error.source();
    }
    text
}

#[async_trait]
impl Peers for RpcPeers {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, PeerUnreachable> {
        let message = v1::PingRequest { worker_id: peer.worker.to_string() };
        let send = |mut client: Client, request| async move { client.ping(request).await };
        let response = self.call(peer, PING_TIMEOUT, message, send).await?;
        convert::parse_worker_id(&response.worker_id).map_err(|invalid| PeerUnreachable(invalid.0))
    }

    async fn status(&self, peer: &Peer) -> Result<WorkerStatus, PeerUnreachable> {
        let message = v1::GetStatusRequest { worker_id: peer.worker.to_string() };
        let send = |mut client: Client, request| async move { client.get_status(request).await };
        convert::worker_status_from(self.call(peer, ORDER_TIMEOUT, message, send).await?)
    }

    async fn start(
        &self,
        peer: &Peer,
        order: &StartOrder,
    ) -> Result<OrderResponse, PeerUnreachable> {
        let message = convert::start_request(peer.worker, order, self.clock.wall_clock());
        let send = |mut client: Client, request| async move { client.start_job(request).await };
        convert::order_response_from(self.call(peer, ORDER_TIMEOUT, message, send).await?)
    }

    async fn cancel(
        &self,
        peer: &Peer,
        order: &CancelHint,
    ) -> Result<OrderResponse, PeerUnreachable> {
        let message = convert::cancel_request(peer.worker, order);
        let send = |mut client: Client, request| async move { client.cancel_job(request).await };
        convert::order_response_from(self.call(peer, ORDER_TIMEOUT, message, send).await?)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<OrderResponse, PeerUnreachable> {
        let (worker_id, leader_epoch) = (peer.worker.to_string(), epoch.0);
        let message = v1::DrainRequest { worker_id, leader_epoch };
        let send = |mut client: Client, request| async move { client.drain(request).await };
        convert::order_response_from(self.call(peer, ORDER_TIMEOUT, message, send).await?)
    }

    async fn confirm(
        &self,
        peer: &Peer,
        request: &DetachedWorkerContinueRequest,
    ) -> Result<Vec<RunId>, PeerUnreachable> {
        let message = convert::confirm_request(peer.worker, request);
        let send =
            |mut client: Client, request| async move { client.confirm_continuation(request).await };
        convert::confirmed_runs(self.call(peer, ORDER_TIMEOUT, message, send).await?, request)
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<OrderResponse, PeerUnreachable> {
        let message = v1::ReloadSettingsRequest { worker_id: peer.worker.to_string(), version };
        let send =
            |mut client: Client, request| async move { client.reload_settings(request).await };
        convert::order_response_from(self.call(peer, ORDER_TIMEOUT, message, send).await?)
    }
}
