//! TLS peers that break the rules: they accept every certificate, or present one that they should not.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::fixtures::TempFolder;

/// A client without a certificate.
pub(crate) fn client() -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    Arc::new(config)
}

/// A client that presents the certificate in a folder.
pub(crate) fn client_with(folder: &TempFolder) -> Arc<ClientConfig> {
    let (certificate, key) = read_certificate(folder);
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Whether a server accepts a client: it responds to an HTTP/2 preface.
pub(crate) async fn is_accepted(address: SocketAddr, config: Arc<ClientConfig>) -> bool {
    let stream = TcpStream::connect(address).await.unwrap();
    let server_name = "tasuki".try_into().unwrap();
    let Ok(mut stream) = TlsConnector::from(config).connect(server_name, stream).await else {
        return false;
    };
    // The connection preface of HTTP/2 with empty settings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let _ = stream.write_all(preface).await;
    matches!(stream.read(&mut [0; 9]).await, Ok(9))
}

/// A server that presents the certificate in a folder and requires none.
pub(crate) fn server(folder: &TempFolder) -> Arc<ServerConfig> {
    let (certificate, key) = read_certificate(folder);
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn read_certificate(folder: &TempFolder) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let path = |name| folder.path().join(name);
    let certificate = CertificateDer::from_pem_file(path("tls.crt")).unwrap();
    (certificate, PrivateKeyDer::from_pem_file(path("tls.key")).unwrap())
}

#[derive(Debug)]
struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
