//! Verification of the other side's certificate: signed by a trusted authority, valid now, and of the same cluster.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, RootCertStore, SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage};

use crate::identity::{Identity, InvalidIdentity, RpcCallerRole};

/// Side of a connection on which a certificate is used.
#[derive(Debug, Clone, Copy)]
pub(super) enum Usage {
    Client,
    Server,
}

/// Trusted authorities, and the cluster that certificates must belong to.
pub(super) struct Trust {
    roots: RootCertStore,
    subjects: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
    cluster: String,
}

impl Trust {
    pub(super) fn new(
        roots: RootCertStore,
        algorithms: WebPkiSupportedAlgorithms,
        cluster: &str,
    ) -> Self {
        let subjects = roots.subjects();
        Self { roots, subjects, algorithms, cluster: cluster.to_owned() }
    }

    /// Verifies a certificate and returns the identity in it. A server must have the role node.
    pub(super) fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: Usage,
    ) -> Result<Identity, Error> {
        self.verify_chain(leaf, intermediates, now, usage).map_err(tls_error)?;
        let identity = Identity::from_certificate(leaf)
            .and_then(|identity| identity.require_cluster(&self.cluster))
            .map_err(identity_error)?;
        match (usage, identity.role()) {
            (Usage::Client, _) | (Usage::Server, RpcCallerRole::Node) => Ok(identity),
            (Usage::Server, RpcCallerRole::Observer) => Err(identity_error(InvalidIdentity::new(
                format!("{identity} has not the role node"),
            ))),
        }
    }

    /// Expiry of the chain, if it expires before `limit`.
    pub(super) fn expiry_before(
        &self,
        chain: &[CertificateDer<'_>],
        limit: UnixTime,
    ) -> Option<UnixTime> {
        let (leaf, intermediates) = chain.split_first()?;
        match self.verify_chain(leaf, intermediates, limit, Usage::Client) {
            Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after),
            _ => None,
        }
    }

    fn verify_chain(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: Usage,
    ) -> Result<(), webpki::Error> {
        let usage = match usage {
            Usage::Client => KeyUsage::client_auth(),
            Usage::Server => KeyUsage::server_auth(),
        };
        let (algorithms, roots) = (self.algorithms.all, &self.roots.roots);
        let leaf = EndEntityCert::try_from(leaf)?;
        leaf.verify_for_usage(algorithms, roots, intermediates, now, usage, None, None).map(|_| ())
    }
}

fn identity_error(invalid: InvalidIdentity) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(invalid))))
}

/// Converts an error so that the other side receives the standard TLS alert, if there is one for it.
fn tls_error(error: webpki::Error) -> Error {
    let error = match error {
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        // An invalid signature means an authority with the name of a trusted one but another key.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            CertificateError::UnknownIssuer
        }
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    Error::InvalidCertificate(error)
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, intermediates, now, Usage::Server).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, intermediates, now, Usage::Client).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
