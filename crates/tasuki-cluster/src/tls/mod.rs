//! Mutual TLS between nodes: only version 1.3, a private authority, and certificates on both sides.
//!
//! Host names are not checked, because pods move. Instead each certificate contains exactly one `tasuki://` name with the
//! cluster, role and name of its owner. Certificate, key and authority are read again while the process runs, and new
//! connections use the new ones. Sessions are never resumed: a session ticket would admit a client whose certificate is no
//! longer valid.

pub mod dev;
mod load;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use tasuki::node::clock_and_random::Clock;

use crate::identity::Identity;
use crate::reload::ReloadingValue;
use crate::security::Error;
use load::{TlsPair, TlsSource};

/// Paths of the files for mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Own certificate, followed by the intermediate certificates, as PEM.
    pub certificate: PathBuf,
    /// Private key of the certificate, as PEM.
    pub key: PathBuf,
    /// Trusted authorities, as PEM. Two of them while one replaces the other.
    pub authority: PathBuf,
}

impl TlsFiles {
    /// Paths in a folder, with the names that Kubernetes uses: `tls.crt`, `tls.key` and `ca.crt`.
    pub fn in_folder(folder: &Path) -> Self {
        let path = |name| folder.join(name);
        Self { certificate: path("tls.crt"), key: path("tls.key"), authority: path("ca.crt") }
    }
}

impl Default for TlsFiles {
    fn default() -> Self {
        Self::in_folder(Path::new("/etc/tasuki/tls"))
    }
}

/// Own certificate and trusted authorities, reloaded from their files.
pub struct MutualTls {
    files: ReloadingValue<TlsPair>,
}

impl MutualTls {
    /// Reads the files now, and again at every `reload_interval`. Must be called within a Tokio runtime.
    ///
    /// A certificate and key are refused if they cannot be read, do not belong together, have expired, are not valid yet,
    /// are not signed by one of the authorities, or are for another cluster.
    pub fn open(
        files: TlsFiles,
        cluster: &str,
        clock: Arc<dyn Clock>,
        reload_interval: Duration,
    ) -> Result<Arc<Self>, Error> {
        let source = TlsSource { files, cluster: cluster.to_owned(), clock };
        Ok(Arc::new(Self { files: ReloadingValue::open(source, reload_interval)? }))
    }

    /// Own identity, from the current certificate.
    pub fn identity(&self) -> Identity {
        self.files.current().identity.clone()
    }

    /// Number of certificates that have been in use, including the current one.
    pub fn generation(&self) -> u64 {
        self.files.generation()
    }

    /// Number of times that new files were refused.
    pub fn refused_reloads(&self) -> u64 {
        self.files.refused_reloads()
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.files.current().server.clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.files.current().client.clone()
    }
}

impl fmt::Debug for MutualTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutualTls").field("identity", &self.identity()).finish_non_exhaustive()
    }
}
