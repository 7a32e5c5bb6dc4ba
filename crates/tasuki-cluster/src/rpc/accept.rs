//! Accepts connections of other nodes, up to the verified client certificate.
//!
//! Each handshake is a task of its own with a timeout, so a client that sends nothing does not block others. Handshakes and
//! connections have separate limits: a client that cannot identify itself can only exhaust the first.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::authenticate_and_authorize::CertifiedCaller;
use super::server::ServerLimits;
use crate::identity::Identity;
use crate::security::RpcAuthMethod;

/// Pause after a connection could not be accepted. The usual cause is too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Accepts connections and passes them to the gRPC server.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) security: RpcAuthMethod,
    pub(super) limits: ServerLimits,
    /// Limits the number of open connections.
    pub(super) connections: Arc<Semaphore>,
    /// Becomes true when all connections must close.
    pub(super) abort: watch::Receiver<bool>,
    pub(super) accepted: mpsc::Sender<io::Result<AcceptedConnection>>,
}

impl Acceptor {
    /// Accepts connections for as long as it is polled. It never returns: neither a bad client nor too many open files
    /// close the port.
    pub(super) async fn accept_connections(&self, listener: TcpListener) {
        let handshakes = Arc::new(Semaphore::new(self.limits.handshakes));
        let mut tasks = JoinSet::new();
        loop {
            let permit =
                handshakes.clone().acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, from)) => {
                    let acceptor = self.clone();
                    while tasks.try_join_next().is_some() {}
                    tasks.spawn(async move {
                        acceptor.accept_one(stream, from).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn accept_one(&self, stream: TcpStream, from: SocketAddr) {
        let handshake = timeout(self.limits.handshake, self.handshake(stream)).await;
        let (stream, identity) = match handshake {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return tracing::info!(%from, %error, "a connection was refused"),
            Err(_) => return tracing::info!(%from, "a handshake timed out"),
        };
        let Ok(permit) = self.connections.clone().try_acquire_owned() else {
            return tracing::warn!(%from, "a connection was refused: there are too many connections");
        };
        let mut abort = self.abort.clone();
        let connection = AcceptedConnection {
            stream,
            caller: CertifiedCaller(identity),
            // Completes when the server aborts its connections, or when the server was dropped.
            abort: Some(Box::pin(async move { drop(abort.wait_for(|abort| *abort).await) })),
            _permit: permit,
        };
        // The receiver is gone if the server is stopping at this moment.
        let _ = self.accepted.send(Ok(connection)).await;
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<(ServerStream, Option<Identity>)> {
        stream.set_nodelay(true)?;
        match &self.security {
            RpcAuthMethod::Mtls(tls) => {
                let stream = TlsAcceptor::from(tls.server()).accept(stream).await?;
                let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let certificate = certificate
                    .ok_or_else(|| io::Error::other("the client sent no certificate"))?;
                let identity = Identity::from_certificate(certificate).map_err(io::Error::other)?;
                Ok((ServerStream::Tls(Box::new(stream)), Some(identity)))
            }
            RpcAuthMethod::Token(_) => {
                // A client that sends nothing must not occupy one of the connections.
                stream.readable().await?;
                Ok((ServerStream::Plain(stream), None))
            }
        }
    }
}

enum ServerStream {
    Tls(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
}

/// An accepted connection. Dropping it makes room for another one.
pub(super) struct AcceptedConnection {
    stream: ServerStream,
    caller: CertifiedCaller,
    /// Completes when the connection must close; `None` after that.
    abort: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connected for AcceptedConnection {
    type ConnectInfo = CertifiedCaller;

    fn connect_info(&self) -> CertifiedCaller {
        self.caller.clone()
    }
}

impl AsyncRead for AcceptedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The HTTP/2 server always has a read pending, so checking here is enough to close the connection.
        if self.abort.as_mut().is_none_or(|abort| abort.as_mut().poll(context).is_ready()) {
            self.abort = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut self.stream {
            ServerStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for AcceptedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            ServerStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            ServerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            ServerStream::Tls(stream) => Pin::new(stream).poll_flush(context),
            ServerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            ServerStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            ServerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
