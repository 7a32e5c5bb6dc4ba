//! An authority and certificates to try things with. Its key lies beside the certificates: whoever can
//! read the folder can be anybody.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::verify::{Trust, Usage};
use crate::identity::{Identity, PeerRole, WrongIdentity};

/// A clock that is a little slow meets a certificate that is already good.
const BEFORE: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The folder, and the name, of the observer.
pub const OBSERVER: &str = "observer";

/// What to make.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where.
    pub folder: PathBuf,
    /// Of which cluster.
    pub cluster: String,
    /// For which nodes, each in a folder of its name. An observer is made too.
    pub nodes: Vec<String>,
    /// For how many days.
    pub days: u16,
    /// Whether what is there is replaced, the authority too.
    pub replace: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// Whether it was there before.
    pub authority_was_there: bool,
    /// Who can be what, and the folder with `tls.crt`, `tls.key` and `ca.crt`.
    pub certificates: Vec<(Identity, PathBuf)>,
    /// From when on they are worthless.
    pub expires_at: Timestamp,
}

/// Why nothing was made, or not all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It would have to be overwritten.
    #[error("{} is already there", .0.display())]
    Exists(PathBuf),
    /// A name cannot be one.
    #[error(transparent)]
    Name(#[from] WrongIdentity),
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate cannot be made of this.
    #[error("the certificate cannot be made: {0}")]
    Certificate(String),
}

/// Makes what is asked for. An authority that is there signs further nodes; what else is there is left
/// alone, unless it is to be replaced.
pub fn make(plan: &Plan, now: Timestamp) -> Result<Made, Error> {
    let mut wanted = Vec::new();
    for node in &plan.nodes {
        if node == OBSERVER {
            return Err(WrongIdentity::new("the folder \"observer\" is the observer's").into());
        }
        wanted.push(Identity::new(&plan.cluster, PeerRole::Node, node)?);
    }
    let observer = Identity::new(&plan.cluster, PeerRole::Observer, OBSERVER)?;
    let observer_is_there = plan.folder.join(OBSERVER).join("tls.crt").exists();
    if plan.replace || !observer_is_there {
        wanted.push(observer);
    }
    if !plan.replace {
        refuse_to_overwrite(plan, &wanted)?;
    }

    create_folder(&plan.folder)?;
    let authority = plan.folder.join("ca.crt");
    let authority_was_there = !plan.replace && authority.exists();
    let expires_at = now + DAY.saturating_mul(plan.days.into());
    let valid = Valid { from: now - BEFORE, until: expires_at };
    let made = match authority_was_there {
        true => Authority::read(&plan.folder, valid)?,
        false => Authority::new(valid)?,
    };
    if !authority_was_there {
        write(&plan.folder.join("ca.key"), &made.key_pem(), 0o600)?;
        write(&authority, made.pem(), 0o644)?;
    }
    let mut certificates = Vec::new();
    for identity in wanted {
        let folder = plan.folder.join(identity.name());
        create_folder(&folder)?;
        let (certificate, key) = made.certify(&identity, valid)?;
        made.check(&certificate, &identity, now)?;
        write(&folder.join("tls.key"), &key, 0o600)?;
        write(&folder.join("tls.crt"), &certificate, 0o644)?;
        write(&folder.join("ca.crt"), made.pem(), 0o644)?;
        certificates.push((identity, folder));
    }
    Ok(Made { authority, authority_was_there, certificates, expires_at })
}

/// From when to when something is good.
#[derive(Debug, Clone, Copy)]
pub struct Valid {
    /// From when on.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

/// An authority that signs whatever it is asked to.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Makes one.
    pub fn new(valid: Valid) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(|error| unmade(&error))?;
        let params = authority_params(valid);
        let pem = params.self_signed(&key).map_err(|error| unmade(&error))?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The one that an earlier call left in a folder.
    fn read(folder: &Path, valid: Valid) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| Error::File { path, source })
        };
        let key = KeyPair::from_pem(&read("ca.key")?).map_err(|error| unmade(&error))?;
        // Its name is always the same, and nothing else of its certificate matters to those it signs.
        let issuer = Issuer::new(authority_params(valid), key);
        Ok(Self { issuer, pem: read("ca.crt")? })
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate for somebody, and its key.
    ///
    /// It is good for this machine too: nodes do not care, but the tools that people look with do.
    pub fn certify(&self, identity: &Identity, valid: Valid) -> Result<(String, String), Error> {
        self.certify_names(&[&identity.to_string()], valid)
    }

    /// An authority that was there may have ended, or have another's key.
    fn check(&self, pem: &str, identity: &Identity, now: Timestamp) -> Result<(), Error> {
        let wrong = |why: String| Error::Certificate(format!("the authority will not do: {why}"));
        let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
        let authority = read(&self.pem).map_err(|error| wrong(error.to_string()))?;
        let certificate = read(pem).map_err(|error| wrong(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| wrong(error.to_string()))?;
        let algorithms = default_provider().signature_verification_algorithms;
        let seconds = Duration::from_secs(now.as_second().max(0) as u64);
        let now = UnixTime::since_unix_epoch(seconds);
        Trust::new(roots, algorithms, identity.cluster())
            .check(&certificate, &[], now, Usage::Client)
            .map(|_| ())
            .map_err(|error| wrong(error.to_string()))
    }

    /// As `certify`, with any names: for tests of what is refused.
    pub fn certify_names(&self, uris: &[&str], valid: Valid) -> Result<(String, String), Error> {
        let key = KeyPair::generate().map_err(|error| unmade(&error))?;
        let mut params = params(valid);
        params.subject_alt_names = vec![
            SanType::DnsName("localhost".try_into().map_err(|error| unmade(&error))?),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
            SanType::IpAddress(Ipv6Addr::LOCALHOST.into()),
        ];
        for uri in uris {
            let uri = uri.to_string().try_into().map_err(|error| unmade(&error))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| unmade(&error))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn authority_params(valid: Valid) -> CertificateParams {
    let mut params = params(valid);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "tasuki development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(valid: Valid) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let day_zero = rcgen::date_time_ymd(1970, 1, 1);
    let at = |instant: Timestamp| day_zero + Duration::from_secs(instant.as_second().max(0) as u64);
    (params.not_before, params.not_after) = (at(valid.from), at(valid.until));
    params
}

fn unmade(error: &rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn refuse_to_overwrite(plan: &Plan, wanted: &[Identity]) -> Result<(), Error> {
    let folder = &plan.folder;
    let names = wanted.iter().flat_map(|identity| {
        ["tls.crt", "tls.key", "ca.crt"].map(|name| folder.join(identity.name()).join(name))
    });
    for path in names {
        if path.exists() {
            return Err(Error::Exists(path));
        }
    }
    // Half an authority is neither used nor overwritten.
    let (key, certificate) = (folder.join("ca.key"), folder.join("ca.crt"));
    match (key.exists(), certificate.exists()) {
        (true, false) => Err(Error::Exists(key)),
        (false, true) => Err(Error::Exists(certificate)),
        (true, true) | (false, false) => Ok(()),
    }
}

fn create_folder(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)
}

/// Written beside it and moved into place: a key is never there half, nor for a moment too open.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let beside = path.with_extension("new");
    let _ = fs::remove_file(&beside);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside).map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}
