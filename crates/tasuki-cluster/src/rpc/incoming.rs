//! From somebody who knocks to a connection that may be spoken over.
//!
//! Each handshake is a task of its own with a time limit, so one who says nothing holds up nobody. There
//! are bounds for handshakes and for connections apart: a stranger can use up only the first.

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

use super::access::Caller;
use super::server::Limits;
use crate::identity::Identity;
use crate::security::Security;

/// After a failure to accept, most often too many open files.
const REST: Duration = Duration::from_millis(50);

/// Who comes in, and how all are shown out.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) security: Security,
    pub(super) limits: Limits,
    pub(super) connections: Arc<Semaphore>,
    pub(super) cut: watch::Receiver<bool>,
    pub(super) inside: mpsc::Sender<io::Result<Connection>>,
}

impl Door {
    /// Lets people in for as long as it is polled. It never ends by itself: one bad caller, or too many
    /// open files, do not close the port.
    pub(super) async fn stand(&self, listener: TcpListener) {
        let handshakes = Arc::new(Semaphore::new(self.limits.handshakes));
        let mut tasks = JoinSet::new();
        loop {
            let turn = handshakes.clone().acquire_owned().await.expect("it is never closed");
            match listener.accept().await {
                Ok((stream, from)) => {
                    let door = self.clone();
                    while tasks.try_join_next().is_some() {}
                    tasks.spawn(async move {
                        door.receive(stream, from).await;
                        drop(turn);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    async fn receive(&self, stream: TcpStream, from: SocketAddr) {
        let shaken = timeout(self.limits.handshake, self.shake_hands(stream)).await;
        let (stream, identity) = match shaken {
            Ok(Ok(shaken)) => shaken,
            Ok(Err(error)) => return tracing::info!(%from, %error, "a connection was refused"),
            Err(_) => return tracing::info!(%from, "a handshake took too long"),
        };
        let Ok(place) = self.connections.clone().try_acquire_owned() else {
            return tracing::warn!(%from, "a connection was refused: there are too many");
        };
        let mut cut = self.cut.clone();
        let connection = Connection {
            stream,
            caller: Caller(identity),
            // Whoever held the server has dropped it, or says so.
            cut: Some(Box::pin(async move { drop(cut.wait_for(|cut| *cut).await) })),
            _place: place,
        };
        // Nobody listens any more if the server stops just now.
        let _ = self.inside.send(Ok(connection)).await;
    }

    async fn shake_hands(&self, stream: TcpStream) -> io::Result<(Stream, Option<Identity>)> {
        stream.set_nodelay(true)?;
        match &self.security {
            Security::Mtls(tls) => {
                let stream = TlsAcceptor::from(tls.server()).accept(stream).await?;
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
                let identity = Identity::in_certificate(shown).map_err(io::Error::other)?;
                Ok((Stream::Tls(Box::new(stream)), Some(identity)))
            }
            Security::Token(_) => {
                // Whoever connects and says nothing does not get a place.
                stream.readable().await?;
                Ok((Stream::Plain(stream), None))
            }
        }
    }
}

enum Stream {
    Tls(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
}

/// Somebody who is in. Gives its place back when it goes.
pub(super) struct Connection {
    stream: Stream,
    caller: Caller,
    /// Ends when the connection is to; gone when it has.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A connection is always being read, so this is where it hears that it is over.
        if self.cut.as_mut().is_none_or(|cut| cut.as_mut().poll(context).is_ready()) {
            self.cut = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut self.stream {
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
