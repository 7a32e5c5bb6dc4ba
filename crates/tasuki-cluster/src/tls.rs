//! TLS between nodes: version 1.3 alone, a private authority, certificates on both sides.
//!
//! Host names mean nothing here, for pods move. What counts is the one `tasuki://` name in a certificate:
//! which cluster, which role, who. Certificate, key and authority are read again while we run; whoever
//! connects next meets the new ones. Sessions are never resumed, because a ticket would let somebody in
//! whose certificate is no longer welcome.

pub mod dev;
mod load;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use tasuki::node::world::Clock;

use crate::files::Followed;
use crate::identity::Identity;
use crate::security::Error;
use load::{Pair, Recipe};

/// Where the files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate, and those between it and the authority's, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The authorities we believe, as PEM. Two while one replaces the other.
    pub authority: PathBuf,
}

impl TlsFiles {
    /// Under the names that Kubernetes gives them: `tls.crt`, `tls.key` and `ca.crt`.
    pub fn in_folder(folder: &Path) -> Self {
        let at = |name| folder.join(name);
        Self { certificate: at("tls.crt"), key: at("tls.key"), authority: at("ca.crt") }
    }
}

impl Default for TlsFiles {
    fn default() -> Self {
        Self::in_folder(Path::new("/etc/tasuki/tls"))
    }
}

/// Our certificate and those we believe, as the files have them now.
pub struct Tls {
    followed: Followed<Pair>,
}

impl Tls {
    /// Reads the files and looks at them again after each `look_every`. Needs a runtime.
    ///
    /// A pair is refused that cannot be read, whose key is another's, that has ended or not begun, that
    /// none of the authorities signed, or that is not for this cluster.
    pub fn open(
        files: TlsFiles,
        cluster: &str,
        clock: Arc<dyn Clock>,
        look_every: Duration,
    ) -> Result<Arc<Self>, Error> {
        let recipe = Recipe { files, cluster: cluster.to_owned(), clock };
        Ok(Arc::new(Self { followed: Followed::open(recipe, look_every)? }))
    }

    /// Who we are.
    pub fn identity(&self) -> Identity {
        self.followed.current().identity.clone()
    }

    /// How many pairs have been in use: one more with each that replaced another.
    pub fn generation(&self) -> u64 {
        self.followed.generation()
    }

    /// How many times new files were refused.
    pub fn refused(&self) -> u64 {
        self.followed.refused()
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.followed.current().server.clone()
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.followed.current().client.clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("identity", &self.identity()).finish_non_exhaustive()
    }
}
