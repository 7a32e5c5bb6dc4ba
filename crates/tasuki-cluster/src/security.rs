//! How nodes know each other. There is no way to serve or to call without it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::identity::{Identity, WrongIdentity};
use crate::tls::Tls;
use crate::token::Tokens;

/// How nodes know each other.
#[derive(Clone)]
pub enum Security {
    /// Both sides show certificates of a private authority.
    Mtls(Arc<Tls>),
    /// TLS ends in a mesh before us: whoever calls shows a signed token.
    Token(Arc<Tokens>),
}

impl Security {
    /// Who we are to others.
    pub fn identity(&self) -> Identity {
        match self {
            Self::Mtls(tls) => tls.identity(),
            Self::Token(tokens) => tokens.identity().clone(),
        }
    }
}

/// What is in the files will not do, or nothing can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file's content makes no sense, alone or with the others.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Somebody is not who may be here.
    #[error(transparent)]
    Identity(#[from] WrongIdentity),
    /// The port cannot be served.
    #[error("{address} cannot be served: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(path: &Path, why: impl fmt::Display) -> Self {
        Self::Invalid { path: path.to_owned(), why: format!("{why}") }
    }
}
