//! From an address to a connection that may be spoken over.

use std::io;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tasuki::node::coordination::peers::ORDER;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;

use crate::security::Security;

/// What can be read and written, whatever is beneath.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Nobody waits longer than for an order: one that nobody waits for any more is given up.
pub(super) async fn connect(security: Security, to: Uri) -> io::Result<TokioIo<Box<dyn Wire>>> {
    match timeout(ORDER, shake_hands(&security, &to)).await {
        Ok(connected) => connected.map(TokioIo::new),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn shake_hands(security: &Security, to: &Uri) -> io::Result<Box<dyn Wire>> {
    let (Some(host), Some(port)) = (to.host(), to.port_u16()) else {
        return Err(io::Error::other("an address is host:port"));
    };
    // An IPv6 address is written in brackets, and looked up without.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match security {
        Security::Mtls(tls) => {
            // Host names mean nothing to us, and none is sent; something has to stand here.
            let anybody = ServerName::try_from("tasuki").map_err(io::Error::other)?;
            let stream = TlsConnector::from(tls.client()).connect(anybody, stream).await?;
            Ok(Box::new(stream))
        }
        Security::Token(_) => Ok(Box::new(stream)),
    }
}
