//! Who is let in, and whom we talk to: signed by our authority, still good, of our cluster.

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

use crate::identity::{Identity, PeerRole, WrongIdentity};

/// Which side of a connection a certificate stands on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Usage {
    Client,
    Server,
}

/// Whom we believe.
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

    /// Who this is, if it may stand there. Whoever is called is a node.
    pub(super) fn check(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
        usage: Usage,
    ) -> Result<Identity, Error> {
        self.chain(own, between, now, usage).map_err(in_words_of_tls)?;
        let identity = Identity::in_certificate(own)
            .and_then(|identity| identity.of_cluster(&self.cluster))
            .map_err(stranger)?;
        match (usage, identity.role()) {
            (Usage::Client, _) | (Usage::Server, PeerRole::Node) => Ok(identity),
            (Usage::Server, PeerRole::Observer) => {
                Err(stranger(WrongIdentity::new(format!("{identity} is no node"))))
            }
        }
    }

    /// When the chain ends, if that is before then.
    pub(super) fn ends_before(
        &self,
        chain: &[CertificateDer<'_>],
        then: UnixTime,
    ) -> Option<UnixTime> {
        let (own, between) = chain.split_first()?;
        match self.chain(own, between, then, Usage::Client) {
            Err(webpki::Error::CertExpired { not_after, .. }) => Some(not_after),
            _ => None,
        }
    }

    fn chain(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
        usage: Usage,
    ) -> Result<(), webpki::Error> {
        let usage = match usage {
            Usage::Client => KeyUsage::client_auth(),
            Usage::Server => KeyUsage::server_auth(),
        };
        let (algorithms, roots) = (self.algorithms.all, &self.roots.roots);
        let own = EndEntityCert::try_from(own)?;
        own.verify_for_usage(algorithms, roots, between, now, usage, None, None).map(|_| ())
    }
}

fn stranger(wrong: WrongIdentity) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(wrong))))
}

/// The other side hears the usual alert where there is one.
fn in_words_of_tls(error: webpki::Error) -> Error {
    let why = match error {
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        // The second has the name of one of our authorities, and not its key.
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            CertificateError::UnknownIssuer
        }
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    Error::InvalidCertificate(why)
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(own, between, now, Usage::Server).map(|_| ServerCertVerified::assertion())
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
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(own, between, now, Usage::Client).map(|_| ClientCertVerified::assertion())
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
