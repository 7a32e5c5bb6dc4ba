//! How other nodes are reached: one connection to each, opened when there is something to say.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasuki::node::coordination::peers::{
    Answer, CancelOrder, ORDER, PING, Peer, Peers, Question, Silent, StartOrder, Status,
};
use tasuki::node::world::Clock;
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
use crate::security::Security;

type Client = WorkerServiceClient<Channel>;

/// The largest answer, in bytes.
const MESSAGE_BYTES: usize = 1 << 20;

/// A connection on which nothing is heard for this long, twice over, is given up.
const KEEPALIVE: Duration = Duration::from_secs(4);

/// A connection that was not used for this long is closed. Workers come and go, and their addresses too.
const FORGET_US: u64 = 10 * 60 * 1_000_000;

/// Reaches other nodes.
pub struct RpcPeers {
    security: Security,
    clock: Arc<dyn Clock>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    by_address: HashMap<String, Line>,
    swept_at: u64,
}

/// A way to somebody. It is connected when first used, and again when it broke.
struct Line {
    client: Client,
    /// With which certificate it was opened.
    generation: u64,
    used_at: u64,
}

impl RpcPeers {
    /// Reaches those whom `security` knows.
    pub fn new(security: Security, clock: Arc<dyn Clock>) -> Self {
        Self { security, clock, lines: Mutex::default() }
    }

    /// Says something, once; and once more if the connection broke before there was an answer, as it does
    /// when the other side has just replaced it. What is said twice is no more than what is said once.
    async fn call<M, A, F>(
        &self,
        peer: &Peer,
        deadline: Duration,
        message: M,
        say: impl Fn(Client, Request<M>) -> F + Send + Sync,
    ) -> Result<A, Silent>
    where
        M: Clone + Send + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, tonic::Status>> + Send,
    {
        let address = peer.address.as_deref();
        let address = address.ok_or_else(|| Silent("it has no address".to_owned()))?;
        let said = async {
            let first = say(self.client(address)?, self.request(message.clone(), deadline)?).await;
            let answer = match first {
                Err(status) if has_no_answer(&status) => {
                    tracing::debug!(%peer, %status, "a connection broke; once more");
                    say(self.client(address)?, self.request(message, deadline)?).await
                }
                answer => answer,
            };
            answer.map(Response::into_inner).map_err(|status| Silent(in_words(&status)))
        };
        let late = || Silent(format!("not within {} ms", deadline.as_millis()));
        timeout(deadline, said).await.unwrap_or_else(|_| Err(late()))
    }

    fn request<M>(&self, message: M, deadline: Duration) -> Result<Request<M>, Silent> {
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        if let Security::Token(tokens) = &self.security {
            let shown = AsciiMetadataValue::try_from(format!("Bearer {}", tokens.sign()));
            let mut shown = shown.map_err(|error| Silent(error.to_string()))?;
            shown.set_sensitive(true);
            request.metadata_mut().insert("authorization", shown);
        }
        Ok(request)
    }

    /// The line to an address; a new one if our certificate has been replaced since.
    fn client(&self, address: &str) -> Result<Client, Silent> {
        let (now, generation) = (self.clock.boottime(), self.generation());
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(lines.swept_at) >= FORGET_US / 10 {
            lines.by_address.retain(|_, line| now.saturating_sub(line.used_at) < FORGET_US);
            lines.swept_at = now;
        }
        let known = lines.by_address.get_mut(address);
        if let Some(line) = known.filter(|line| line.generation == generation) {
            line.used_at = now;
            return Ok(line.client.clone());
        }
        let client = open(address, &self.security)?;
        let line = Line { client: client.clone(), generation, used_at: now };
        lines.by_address.insert(address.to_owned(), line);
        Ok(client)
    }

    /// To how many addresses there is a line.
    pub fn lines(&self) -> usize {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).by_address.len()
    }

    fn generation(&self) -> u64 {
        match &self.security {
            Security::Mtls(tls) => tls.generation(),
            // A token goes with each call, not with a connection.
            Security::Token(_) => 0,
        }
    }
}

/// Opens a line without connecting yet.
fn open(address: &str, security: &Security) -> Result<Client, Silent> {
    let wrong = || Silent(format!("{address:?} is no address: it is host:port"));
    // Ours is the TLS, so to the library it is plain.
    let uri = format!("http://{address}").parse::<Uri>().map_err(|_| wrong())?;
    let is_plain = uri.authority().is_some_and(|authority| authority.as_str() == address);
    if !is_plain || uri.port_u16().is_none() || address.contains('@') {
        return Err(wrong());
    }
    let endpoint = Endpoint::from(uri)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    let security = security.clone();
    let connector = tower::service_fn(move |to| connect(security.clone(), to));
    Ok(WorkerServiceClient::new(endpoint.connect_with_connector_lazy(connector))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES))
}

/// What the other side says has no cause on ours.
fn has_no_answer(status: &tonic::Status) -> bool {
    status.source().is_some()
}

/// With the causes: "transport error" alone helps nobody.
fn in_words(status: &tonic::Status) -> String {
    let mut words = format!("{:?}: {}", status.code(), status.message());
    let mut cause = status.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !words.contains(&said) {
            words.push_str(": ");
            words.push_str(&said);
        }
        cause = error.source();
    }
    words
}

#[async_trait]
impl Peers for RpcPeers {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, Silent> {
        let message = v1::PingRequest { worker_id: peer.worker.to_string() };
        let say = |mut client: Client, request| async move { client.ping(request).await };
        let answer = self.call(peer, PING, message, say).await?;
        convert::worker(&answer.worker_id).map_err(|malformed| Silent(malformed.0))
    }

    async fn status(&self, peer: &Peer) -> Result<Status, Silent> {
        let message = v1::GetStatusRequest { worker_id: peer.worker.to_string() };
        let say = |mut client: Client, request| async move { client.get_status(request).await };
        convert::status(self.call(peer, ORDER, message, say).await?)
    }

    async fn start(&self, peer: &Peer, order: &StartOrder) -> Result<Answer, Silent> {
        let message = convert::start_request(peer.worker, order, self.clock.wall());
        let say = |mut client: Client, request| async move { client.start_job(request).await };
        convert::read(self.call(peer, ORDER, message, say).await?)
    }

    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent> {
        let message = convert::cancel_request(peer.worker, order);
        let say = |mut client: Client, request| async move { client.cancel_job(request).await };
        convert::read(self.call(peer, ORDER, message, say).await?)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent> {
        let (worker_id, leader_epoch) = (peer.worker.to_string(), epoch.0);
        let message = v1::DrainRequest { worker_id, leader_epoch };
        let say = |mut client: Client, request| async move { client.drain(request).await };
        convert::read(self.call(peer, ORDER, message, say).await?)
    }

    async fn confirm(&self, peer: &Peer, question: &Question) -> Result<Vec<RunId>, Silent> {
        let message = convert::confirm_request(peer.worker, question);
        let say =
            |mut client: Client, request| async move { client.confirm_continuation(request).await };
        convert::confirmed(self.call(peer, ORDER, message, say).await?, question)
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent> {
        let message = v1::ReloadSettingsRequest { worker_id: peer.worker.to_string(), version };
        let say =
            |mut client: Client, request| async move { client.reload_settings(request).await };
        convert::read(self.call(peer, ORDER, message, say).await?)
    }
}
