//! Bearer tokens with which nodes authenticate, for deployments in which a service mesh does TLS.
//!
//! A token contains the identity of its owner and an expiry. It is signed with a key that all nodes have: a process with
//! the key can claim any identity. A token lives for a minute, so a stolen one is soon useless.
//! Two keys are accepted, one of them signs. To replace the key without refused calls: configure the new key everywhere as
//! `previous`, then swap the two, then remove the old one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use tasuki::node::clock_and_random::Clock;

use crate::identity::{Identity, InvalidIdentity};
use crate::reload::{FromFileContents, ReloadingValue};
use crate::security::Error;

/// Lifetime of a token.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(60);

/// Maximum difference between the clocks of two nodes.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);

/// Minimum length of a key: a key shorter than the hash would be easier to guess than the hash.
const MIN_KEY_BYTES: usize = 32;

/// Maximum length of a received token: more than any valid one. A longer one is refused without reading it.
const MAX_TOKEN_BYTES: usize = 1024;

/// Format version at the start of a token, so that other data signed with the same key is not accepted as a token.
const TOKEN_VERSION: &str = "tasuki1";

/// Paths of the key files. Each contains at least 32 random bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenKeyFiles {
    /// Key that signs, and is accepted.
    pub current: PathBuf,
    /// Second key that is accepted: the one before, or the next one.
    pub previous: Option<PathBuf>,
}

/// Signs own tokens and verifies those of other nodes.
pub struct TokenSigner {
    identity: Identity,
    clock: Arc<dyn Clock>,
    keys: ReloadingValue<TokenKeys>,
}

impl TokenSigner {
    /// Reads the keys now, and again at every `reload_interval`. Must be called within a Tokio runtime.
    pub fn open(
        files: TokenKeyFiles,
        identity: Identity,
        clock: Arc<dyn Clock>,
        reload_interval: Duration,
    ) -> Result<Arc<Self>, Error> {
        let keys = ReloadingValue::open(files, reload_interval)?;
        Ok(Arc::new(Self { identity, clock, keys }))
    }

    /// Own identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of key pairs that have been in use, including the current one.
    pub fn generation(&self) -> u64 {
        self.keys.generation()
    }

    /// Number of times that new keys were refused.
    pub fn refused_reloads(&self) -> u64 {
        self.keys.refused_reloads()
    }

    /// Creates a token with the own identity that is valid for [`TOKEN_LIFETIME`].
    pub fn create_own_token(&self) -> String {
        let lifetime = TOKEN_LIFETIME.as_secs() as i64;
        let expires = self.clock.wall_clock().as_second().saturating_add(lifetime);
        let (cluster, name) = (self.identity.cluster(), self.identity.name());
        let payload =
            format!("{TOKEN_VERSION}:{cluster}:{}:{name}:{expires}", self.identity.role().as_str());
        let signature = hmac::sign(&self.keys.current().current, payload.as_bytes());
        format!("{payload}:{}", hex(signature.as_ref()))
    }

    /// Verifies a token and returns the identity in it. It must be signed with an accepted key, not have expired, and be of
    /// the own cluster.
    pub fn verify(&self, token: &str) -> Result<Identity, InvalidIdentity> {
        let invalid = || InvalidIdentity::new("the token is invalid");
        if token.len() > MAX_TOKEN_BYTES {
            return Err(invalid());
        }
        let (payload, signature) = token.rsplit_once(':').ok_or_else(invalid)?;
        let signature = unhex(signature).ok_or_else(invalid)?;
        // The payload is not parsed before its signature is verified.
        if !self.keys.current().verify(payload, &signature) {
            return Err(invalid());
        }
        let parts: Vec<&str> = payload.split(':').collect();
        let [TOKEN_VERSION, cluster, role, name, expires] = parts[..] else {
            return Err(invalid());
        };
        let identity = Identity::new(cluster, role.parse()?, name)?;
        let expires: i64 = expires.parse().map_err(|_| invalid())?;
        self.check_expiry(expires)?;
        identity.require_cluster(self.identity.cluster())
    }

    fn check_expiry(&self, expires: i64) -> Result<(), InvalidIdentity> {
        let (lifetime, skew) = (TOKEN_LIFETIME.as_secs() as i64, MAX_CLOCK_SKEW.as_secs() as i64);
        let remaining = expires.saturating_sub(self.clock.wall_clock().as_second());
        if remaining <= -skew {
            return Err(InvalidIdentity::new("the token has expired"));
        }
        if remaining > lifetime + skew {
            return Err(InvalidIdentity::new(
                "the token expires too far in the future; the clock of one of the nodes may be wrong",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerTokens").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The keys as read from the files.
struct TokenKeys {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

impl TokenKeys {
    /// Whether one of the keys has made the signature. The comparison takes constant time.
    fn verify(&self, payload: &str, signature: &[u8]) -> bool {
        let matches = |key: &hmac::Key| hmac::verify(key, payload.as_bytes(), signature).is_ok();
        matches(&self.current) || self.previous.as_ref().is_some_and(matches)
    }
}

impl FromFileContents for TokenKeys {
    type Source = TokenKeyFiles;

    fn paths(files: &TokenKeyFiles) -> Vec<PathBuf> {
        [&files.current].into_iter().chain(&files.previous).cloned().collect()
    }

    fn from_contents(files: &TokenKeyFiles, contents: &[Vec<u8>]) -> Result<Self, Error> {
        let paths = Self::paths(files);
        let keys: Result<Vec<_>, _> =
            paths.iter().zip(contents).map(|(path, content)| parse_key(path, content)).collect();
        let mut keys = keys?.into_iter();
        let current = keys.next().expect("the current key always has a path");
        Ok(Self { current, previous: keys.next() })
    }
}

fn parse_key(path: &Path, content: &[u8]) -> Result<hmac::Key, Error> {
    // Editors and `echo` append a line break to a file.
    let content = content.trim_ascii_end();
    if content.len() < MIN_KEY_BYTES {
        return Err(Error::invalid(
            path,
            format!("a key must have at least {MIN_KEY_BYTES} bytes"),
        ));
    }
    Ok(hmac::Key::new(HMAC_SHA256, content))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
