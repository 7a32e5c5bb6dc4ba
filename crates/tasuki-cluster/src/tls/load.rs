//! From three files to what a handshake needs, or to what is wrong with them.

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
use tasuki::node::world::Clock;

use super::TlsFiles;
use super::verify::{Trust, Usage};
use crate::files::Secret;
use crate::identity::{Identity, PeerRole};
use crate::security::Error;

/// Somebody is told that a certificate ends when so many days are left.
const WARN_DAYS: [i64; 3] = [14, 7, 1];
const DAY: i64 = 24 * 60 * 60;

/// What HTTP/2 is called in a handshake.
const HTTP2: &[u8] = b"h2";

pub(super) struct Recipe {
    pub(super) files: TlsFiles,
    pub(super) cluster: String,
    pub(super) clock: Arc<dyn Clock>,
}

/// A certificate with its key, ready to be shown.
pub(super) struct Pair {
    pub(super) identity: Identity,
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    chain: Vec<CertificateDer<'static>>,
    trust: Arc<Trust>,
    /// At how many days left it was last said that it ends.
    warned_at: AtomicI64,
}

impl Secret for Pair {
    type Recipe = Recipe;

    fn paths(recipe: &Recipe) -> Vec<PathBuf> {
        let TlsFiles { certificate, key, authority } = &recipe.files;
        vec![certificate.clone(), key.clone(), authority.clone()]
    }

    fn make(recipe: &Recipe, contents: &[Vec<u8>]) -> Result<Self, Error> {
        let [certificate, key, authority] = contents else {
            unreachable!("there are as many contents as paths")
        };
        let files = &recipe.files;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authorities = certificates(&files.authority, authority)?;
        let trust = Arc::new(trust(recipe, &authorities, &provider)?);
        let chain = certificates(&files.certificate, certificate)?;
        let identity = checked(recipe, &trust, &chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            Error::invalid(&files.key, format!("no private key in it: {error}"))
        })?;

        // Both refuse a key that is not this certificate's.
        let unfit = |error: rustls::Error| Error::invalid(&files.key, error);
        let wall = Arc::new(Wall(recipe.clock.clone()));
        let mut server = ServerConfig::builder_with_details(provider.clone(), wall.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unfit)?
            .with_client_cert_verifier(trust.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        server.alpn_protocols = vec![HTTP2.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_details(provider, wall)
            .with_protocol_versions(&[&TLS13])
            .map_err(unfit)?
            .dangerous() // what it calls a verifier of one's own; ours asks for more than a host's name
            .with_custom_certificate_verifier(trust.clone())
            .with_client_auth_cert(chain.clone(), key)
            .map_err(unfit)?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;

        let (server, client) = (Arc::new(server), Arc::new(client));
        let warned_at = AtomicI64::new(i64::MAX);
        Ok(Self { identity, server, client, chain, trust, warned_at })
    }

    fn look(&self, recipe: &Recipe) {
        let Some(left) = self.left(now(recipe.clock.as_ref())) else { return };
        let mark =
            WARN_DAYS.into_iter().filter(|days| left <= days * DAY).min().unwrap_or(i64::MAX);
        if mark < self.warned_at.swap(mark, Ordering::Relaxed) {
            let (identity, days_left) = (&self.identity, left.div_euclid(DAY));
            tracing::warn!(%identity, days_left, "the certificate ends soon and was not replaced");
        }
    }
}

impl Pair {
    /// For how many seconds the chain is still good, if that is little.
    fn left(&self, now: UnixTime) -> Option<i64> {
        let soon = Duration::from_secs(now.as_secs() + (WARN_DAYS[0] * DAY) as u64);
        let ends = self.trust.ends_before(&self.chain, UnixTime::since_unix_epoch(soon))?;
        Some(ends.as_secs() as i64 - now.as_secs() as i64)
    }
}

fn trust(
    recipe: &Recipe,
    authorities: &[CertificateDer<'static>],
    provider: &CryptoProvider,
) -> Result<Trust, Error> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let path = &recipe.files.authority;
        roots.add(authority.clone()).map_err(|error| Error::invalid(path, error))?;
    }
    let algorithms = provider.signature_verification_algorithms;
    Ok(Trust::new(roots, algorithms, &recipe.cluster))
}

/// What others would say of our certificate, said before they meet it.
fn checked(
    recipe: &Recipe,
    trust: &Trust,
    chain: &[CertificateDer<'static>],
) -> Result<Identity, Error> {
    let (own, between) = chain.split_first().expect("a file without certificates was refused");
    let now = now(recipe.clock.as_ref());
    let unfit = |error: rustls::Error| Error::invalid(&recipe.files.certificate, error);
    trust.check(own, between, now, Usage::Client).map_err(unfit)?;
    trust.check(own, between, now, Usage::Server).or_else(|error| {
        // An observer is never called, so its certificate need not be fit for that.
        let identity = Identity::in_certificate(own)?;
        match identity.role() {
            PeerRole::Observer => Ok(identity),
            PeerRole::Node => Err(unfit(error)),
        }
    })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(Error::invalid(path, "no certificate in it")),
        Err(error) => Err(Error::invalid(path, error)),
    }
}

fn now(clock: &dyn Clock) -> UnixTime {
    let seconds = clock.wall().as_second().max(0);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds as u64))
}

/// The clock that handshakes go by.
struct Wall(Arc<dyn Clock>);

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        Some(now(self.0.as_ref()))
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use tasuki::node::world::RealClock;

    use super::*;
    use crate::tls::dev::{Authority, Valid};

    #[test]
    fn a_certificate_that_ends_soon_is_noticed() {
        let at = |days: i64| RealClock.wall() + SignedDuration::from_hours(24 * days);
        let authority = Authority::new(Valid { from: at(-1), until: at(99) }).unwrap();
        let identity = Identity::new("test", PeerRole::Node, "a").unwrap();
        let clock = Arc::new(RealClock);
        let recipe = Recipe { files: TlsFiles::default(), cluster: "test".to_owned(), clock };
        for (days, noticed) in [(10, true), (13, true), (15, false), (90, false)] {
            let valid = Valid { from: at(-1), until: at(days) };
            let (certificate, key) = authority.certify(&identity, valid).unwrap();
            let contents = [certificate, key, authority.pem().to_owned()].map(String::into_bytes);
            let pair = Pair::make(&recipe, &contents).unwrap();
            let left = pair.left(now(&RealClock));
            assert_eq!(left.is_some(), noticed, "{days} days: {left:?}");
            if let Some(left) = left {
                assert!((left - days * DAY).abs() < 60, "{days} days: {left} s");
            }
        }
    }
}
