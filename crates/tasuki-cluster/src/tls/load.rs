//! Loads certificate, key and authorities into the TLS configurations of server and client.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tasuki::node::clock_and_random::Clock;

use super::TlsFiles;
use super::verify::{Trust, Usage};
use crate::identity::{Identity, RpcCallerRole};
use crate::reload::FromFileContents;
use crate::security::Error;

/// A warning is logged when this many days remain until a certificate expires.
const WARN_DAYS: [i64; 3] = [14, 7, 1];
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// ALPN name of HTTP/2.
const ALPN_HTTP2: &[u8] = b"h2";

/// Everything from which a [`TlsPair`] is loaded.
pub(super) struct TlsSource {
    pub(super) files: TlsFiles,
    pub(super) cluster: String,
    pub(super) clock: Arc<dyn Clock>,
}

/// A certificate with its key, as TLS configurations.
pub(super) struct TlsPair {
    pub(super) identity: Identity,
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    chain: Vec<CertificateDer<'static>>,
    trust: Arc<Trust>,
    /// Threshold of the last expiry warning, in days; `i64::MAX` before the first.
    warned_at_days: AtomicI64,
}

impl FromFileContents for TlsPair {
    type Source = TlsSource;

    fn paths(source: &TlsSource) -> Vec<PathBuf> {
        let TlsFiles { certificate, key, authority } = &source.files;
        vec![certificate.clone(), key.clone(), authority.clone()]
    }

    fn from_contents(source: &TlsSource, contents: &[Vec<u8>]) -> Result<Self, Error> {
        let [certificate, key, authority] = contents else {
            unreachable!("there are as many contents as paths")
        };
        let files = &source.files;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authorities = parse_certificates(&files.authority, authority)?;
        let trust = Arc::new(load_trust(source, &authorities, &provider)?);
        let chain = parse_certificates(&files.certificate, certificate)?;
        let identity = check_own_certificate(source, &trust, &chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            Error::invalid(&files.key, format!("the file contains no private key: {error}"))
        })?;

        // Both configurations refuse a key that does not belong to the certificate.
        let invalid = |error: rustls::Error| Error::invalid(&files.key, error);
        let time = Arc::new(HandshakeTime(source.clock.clone()));
        let mut server = ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(invalid)?
            .with_client_cert_verifier(trust.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(invalid)?;
        server.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(invalid)?
            .dangerous() // needed for a custom verifier; ours checks the identity instead of the host name
            .with_custom_certificate_verifier(trust.clone())
            .with_client_auth_cert(chain.clone(), key)
            .map_err(invalid)?;
        client.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;

        let (server, client) = (Arc::new(server), Arc::new(client));
        let warned_at_days = AtomicI64::new(i64::MAX);
        Ok(Self { identity, server, client, chain, trust, warned_at_days })
    }

    fn log_warnings(&self, source: &TlsSource) {
        let Some(seconds_left) = self.seconds_left_if_soon(now(source.clock.as_ref())) else {
            return;
        };
        let reached = WARN_DAYS.into_iter().filter(|days| seconds_left <= days * DAY_SECONDS);
        let threshold = reached.min().unwrap_or(i64::MAX);
        if threshold < self.warned_at_days.swap(threshold, Ordering::Relaxed) {
            let (identity, days_left) = (&self.identity, seconds_left.div_euclid(DAY_SECONDS));
            tracing::warn!(%identity, days_left, "the certificate expires soon");
        }
    }
}

impl TlsPair {
    /// Seconds until the certificate chain expires, if it expires within the longest warning period.
    fn seconds_left_if_soon(&self, now: UnixTime) -> Option<i64> {
        let soon = Duration::from_secs(now.as_secs() + (WARN_DAYS[0] * DAY_SECONDS) as u64);
        let expires = self.trust.expiry_before(&self.chain, UnixTime::since_unix_epoch(soon))?;
        Some(expires.as_secs() as i64 - now.as_secs() as i64)
    }
}

fn load_trust(
    source: &TlsSource,
    authorities: &[CertificateDer<'static>],
    provider: &CryptoProvider,
) -> Result<Trust, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let path = &source.files.authority;
        roots.add(authority.clone()).map_err(|error| Error::invalid(path, error))?;
    }
    let algorithms = provider.signature_verification_algorithms;
    Ok(Trust::new(roots, algorithms, &source.cluster))
}

/// Checks the own certificate as other nodes will check it.
fn check_own_certificate(
    source: &TlsSource,
    trust: &Trust,
    chain: &[CertificateDer<'static>],
) -> Result<Identity, Error> {
    let (leaf, intermediates) =
        chain.split_first().expect("a file without certificates was refused before");
    let now = now(source.clock.as_ref());
    let invalid = |error: rustls::Error| Error::invalid(&source.files.certificate, error);
    trust.check(leaf, intermediates, now, Usage::Client).map_err(invalid)?;
    trust.check(leaf, intermediates, now, Usage::Server).or_else(|error| {
        // An observer is never called, so its certificate need not be valid for a server.
        let identity = Identity::from_certificate(leaf)?;
        match identity.role() {
            RpcCallerRole::Observer => Ok(identity),
            RpcCallerRole::Node => Err(invalid(error)),
        }
    })
}

fn parse_certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(Error::invalid(path, "the file contains no certificate")),
        Err(error) => Err(Error::invalid(path, error)),
    }
}

fn now(clock: &dyn Clock) -> UnixTime {
    let seconds = clock.wall_clock().as_second().max(0);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds as u64))
}

/// Clock that handshakes use.
struct HandshakeTime(Arc<dyn Clock>);

impl TimeProvider for HandshakeTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(now(self.0.as_ref()))
    }
}

impl fmt::Debug for HandshakeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandshakeTime")
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use tasuki::node::clock_and_random::RealClock;

    use super::*;
    use crate::tls::dev::{DevAuthority, ValidityPeriod};

    #[test]
    fn a_certificate_that_expires_soon_is_detected() {
        let at = |days: i64| RealClock.wall_clock() + SignedDuration::from_hours(24 * days);
        let authority = DevAuthority::new(ValidityPeriod { from: at(-1), until: at(99) }).unwrap();
        let identity = Identity::new("test", RpcCallerRole::Node, "a").unwrap();
        let clock = Arc::new(RealClock);
        let source = TlsSource { files: TlsFiles::default(), cluster: "test".to_owned(), clock };
        for (days, detected) in [(10, true), (13, true), (15, false), (90, false)] {
            let validity = ValidityPeriod { from: at(-1), until: at(days) };
            let (certificate, key) = authority.issue_certificate(&identity, validity).unwrap();
            let contents = [certificate, key, authority.pem().to_owned()].map(String::into_bytes);
            let pair = TlsPair::from_contents(&source, &contents).unwrap();
            let left = pair.seconds_left_if_soon(now(&RealClock));
            assert_eq!(left.is_some(), detected, "{days} days: {left:?}");
            if let Some(left) = left {
                assert!((left - days * DAY_SECONDS).abs() < 60, "{days} days: {left} s");
            }
        }
    }
}
