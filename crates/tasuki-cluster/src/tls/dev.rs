//! Development certificates: an authority and certificates signed by it. The private key of the authority is stored beside the
//! certificates, so anyone who can read the folder can impersonate every node.

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
use crate::identity::{Identity, InvalidIdentity, RpcCallerRole};

/// A certificate is valid from this long ago, so that nodes with a slow clock accept it.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Name of the observer, and of its folder.
pub const OBSERVER: &str = "observer";

/// Parameters of [`create_dev_certs`].
#[derive(Debug, Clone)]
pub struct DevCertOptions {
    /// Output folder.
    pub folder: PathBuf,
    /// Name of the cluster.
    pub cluster: String,
    /// Names of the nodes. Each gets a certificate, in a folder of its name. An observer gets one too.
    pub nodes: Vec<String>,
    /// Validity of the certificates, in days.
    pub days: u16,
    /// Whether existing files are replaced, including the authority.
    pub replace: bool,
}

/// Result of [`create_dev_certs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevCerts {
    /// Path of the certificate of the authority.
    pub authority: PathBuf,
    /// Whether the authority existed before.
    pub authority_existed: bool,
    /// Identity of each created certificate, and the folder with its `tls.crt`, `tls.key` and `ca.crt`.
    pub certificates: Vec<(Identity, PathBuf)>,
    /// When the certificates expire.
    pub expires_at: Timestamp,
}

/// Development certificates could not be created, or not all of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file exists and must not be replaced.
    #[error("{} already exists", .0.display())]
    Exists(PathBuf),
    /// The name of a node or cluster is invalid.
    #[error(transparent)]
    Name(#[from] InvalidIdentity),
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A key or certificate cannot be created.
    #[error("the certificate cannot be created: {0}")]
    Certificate(String),
}

/// Creates the authority and the certificates. An existing authority signs the certificates of further nodes. Other existing
/// files are an error, unless the request replaces them.
pub fn create_dev_certs(request: &DevCertOptions, now: Timestamp) -> Result<DevCerts, Error> {
    let mut identities = Vec::new();
    for node in &request.nodes {
        if node == OBSERVER {
            return Err(InvalidIdentity::new("no node can have the name \"observer\": the directory \"observer\" contains the certificate of the observer").into());
        }
        identities.push(Identity::new(&request.cluster, RpcCallerRole::Node, node)?);
    }
    let observer = Identity::new(&request.cluster, RpcCallerRole::Observer, OBSERVER)?;
    let observer_exists = request.folder.join(OBSERVER).join("tls.crt").exists();
    if request.replace || !observer_exists {
        identities.push(observer);
    }
    if !request.replace {
        refuse_to_overwrite(request, &identities)?;
    }

    create_folder(&request.folder)?;
    let authority = request.folder.join("ca.crt");
    let authority_existed = !request.replace && authority.exists();
    let expires_at = now + DAY.saturating_mul(request.days.into());
    let valid = ValidityPeriod { from: now - CLOCK_TOLERANCE, until: expires_at };
    let signer = match authority_existed {
        true => DevAuthority::read(&request.folder, valid)?,
        false => DevAuthority::new(valid)?,
    };
    if !authority_existed {
        write(&request.folder.join("ca.key"), &signer.key_pem(), 0o600)?;
        write(&authority, signer.pem(), 0o644)?;
    }
    let mut certificates = Vec::new();
    for identity in identities {
        let folder = request.folder.join(identity.name());
        create_folder(&folder)?;
        let (certificate, key) = signer.issue_certificate(&identity, valid)?;
        signer.check(&certificate, &identity, now)?;
        write(&folder.join("tls.key"), &key, 0o600)?;
        write(&folder.join("tls.crt"), &certificate, 0o644)?;
        write(&folder.join("ca.crt"), signer.pem(), 0o644)?;
        certificates.push((identity, folder));
    }
    Ok(DevCerts { authority, authority_existed, certificates, expires_at })
}

/// Time in which a certificate is valid.
#[derive(Debug, Clone, Copy)]
pub struct ValidityPeriod {
    /// Start of the period.
    pub from: Timestamp,
    /// End of the period.
    pub until: Timestamp,
}

/// A certificate authority for development and tests.
pub struct DevAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl DevAuthority {
    /// Creates an authority with a new key.
    pub fn new(valid: ValidityPeriod) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(|error| certificate_error(&error))?;
        let params = authority_params(valid);
        let pem = params.self_signed(&key).map_err(|error| certificate_error(&error))?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Reads the authority that an earlier call has created in a folder.
    fn read(folder: &Path, valid: ValidityPeriod) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| Error::File { path, source })
        };
        let key = KeyPair::from_pem(&read("ca.key")?).map_err(|error| certificate_error(&error))?;
        // To sign, only the key and the name of the authority are needed, and its name is always the same.
        let issuer = Issuer::new(authority_params(valid), key);
        Ok(Self { issuer, pem: read("ca.crt")? })
    }

    /// Certificate of the authority, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate for an identity. Returns certificate and private key as PEM.
    ///
    /// The certificate is also valid for `localhost`. Nodes do not check host names, but debugging tools do.
    pub fn issue_certificate(
        &self,
        identity: &Identity,
        valid: ValidityPeriod,
    ) -> Result<(String, String), Error> {
        self.issue_certificate_for_uris(&[&identity.to_string()], valid)
    }

    /// Checks an issued certificate: an existing authority may have expired, or its key may not belong to it.
    fn check(&self, pem: &str, identity: &Identity, now: Timestamp) -> Result<(), Error> {
        let unusable = |reason: String| {
            Error::Certificate(format!("the existing authority cannot be used: {reason}"))
        };
        let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
        let authority = read(&self.pem).map_err(|error| unusable(error.to_string()))?;
        let certificate = read(pem).map_err(|error| unusable(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|error| unusable(error.to_string()))?;
        let algorithms = default_provider().signature_verification_algorithms;
        let seconds = Duration::from_secs(now.as_second().max(0) as u64);
        let now = UnixTime::since_unix_epoch(seconds);
        Trust::new(roots, algorithms, identity.cluster())
            .check(&certificate, &[], now, Usage::Client)
            .map(|_| ())
            .map_err(|error| unusable(error.to_string()))
    }

    /// Like [`DevAuthority::issue_certificate`], with any URI names. Tests use it for certificates that must be refused.
    pub fn issue_certificate_for_uris(
        &self,
        uris: &[&str],
        valid: ValidityPeriod,
    ) -> Result<(String, String), Error> {
        let key = KeyPair::generate().map_err(|error| certificate_error(&error))?;
        let mut params = params(valid);
        params.subject_alt_names = vec![
            SanType::DnsName("localhost".try_into().map_err(|error| certificate_error(&error))?),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
            SanType::IpAddress(Ipv6Addr::LOCALHOST.into()),
        ];
        for uri in uris {
            let uri = uri.to_string().try_into().map_err(|error| certificate_error(&error))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|error| certificate_error(&error))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn authority_params(valid: ValidityPeriod) -> CertificateParams {
    let mut params = params(valid);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "tasuki development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(valid: ValidityPeriod) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let day_zero = rcgen::date_time_ymd(1970, 1, 1);
    let at = |instant: Timestamp| day_zero + Duration::from_secs(instant.as_second().max(0) as u64);
    (params.not_before, params.not_after) = (at(valid.from), at(valid.until));
    params
}

fn certificate_error(error: &rcgen::Error) -> Error {
    Error::Certificate(error.to_string())
}

fn refuse_to_overwrite(request: &DevCertOptions, identities: &[Identity]) -> Result<(), Error> {
    let folder = &request.folder;
    let names = identities.iter().flat_map(|identity| {
        ["tls.crt", "tls.key", "ca.crt"].map(|name| folder.join(identity.name()).join(name))
    });
    for path in names {
        if path.exists() {
            return Err(Error::Exists(path));
        }
    }
    // An authority with only one of its two files is neither used nor overwritten.
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

/// Writes a new file and renames it into place, so that a key file is never incomplete and never has wider permissions.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}
