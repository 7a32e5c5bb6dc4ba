//! How nodes authenticate each other. A node cannot serve or call without it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::identity::{Identity, InvalidIdentity};
use crate::signed_token::TokenSigner;
use crate::tls::MutualTls;

/// Method by which nodes authenticate each other.
#[derive(Clone)]
pub enum RpcAuthMethod {
    /// Mutual TLS: both sides present certificates of a private authority.
    Mtls(Arc<MutualTls>),
    /// Signed bearer tokens, for deployments in which a service mesh does TLS.
    Token(Arc<TokenSigner>),
}

impl RpcAuthMethod {
    /// Own identity, as presented to other nodes.
    pub fn identity(&self) -> Identity {
        match self {
            Self::Mtls(tls) => tls.identity(),
            Self::Token(tokens) => tokens.identity().clone(),
        }
    }
}

/// A certificate or key file cannot be used, or the RPC server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content of a file is invalid, alone or together with the other files.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the content is invalid.
        reason: String,
    },
    /// An identity is invalid or not allowed here.
    #[error(transparent)]
    Identity(#[from] InvalidIdentity),
    /// The RPC server cannot listen on its address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address on which the server should listen.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Invalid { path: path.to_owned(), reason: format!("{reason}") }
    }
}
