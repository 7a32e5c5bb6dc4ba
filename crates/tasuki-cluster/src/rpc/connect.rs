//! Opens a connection to another node: TCP, and a TLS handshake unless a service mesh does TLS.

use std::io;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tasuki::node::coordination::node_rpc::ORDER_TIMEOUT;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;

use crate::security::RpcAuthMethod;

/// A byte stream to another node, with or without TLS.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Connects to a node. The timeout is the longest one of a call: after that no caller waits for the connection.
pub(super) async fn connect(
    security: RpcAuthMethod,
    uri: Uri,
) -> io::Result<TokioIo<Box<dyn ByteStream>>> {
    match timeout(ORDER_TIMEOUT, open_stream(&security, &uri)).await {
        Ok(connected) => connected.map(TokioIo::new),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn open_stream(security: &RpcAuthMethod, uri: &Uri) -> io::Result<Box<dyn ByteStream>> {
    let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
        return Err(io::Error::other("the address is not of the form host:port"));
    };
    // A URI has an IPv6 address in brackets; name resolution expects it without them.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match security {
        RpcAuthMethod::Mtls(tls) => {
            // Host names are neither sent nor checked, but the library requires one.
            let server_name = ServerName::try_from("tasuki").map_err(io::Error::other)?;
            let stream = TlsConnector::from(tls.client()).connect(server_name, stream).await?;
            Ok(Box::new(stream))
        }
        RpcAuthMethod::Token(_) => Ok(Box::new(stream)),
    }
}
