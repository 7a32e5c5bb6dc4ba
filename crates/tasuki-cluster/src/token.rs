//! Bearer tokens, for where TLS ends in a mesh before it reaches us.
//!
//! A token says who calls and until when, signed with a key that all nodes have: whoever has the key is
//! believed to be whom it says. It lives for a minute, so one that was overheard is soon worthless.
//! Two keys are accepted and one signs. To change keys without a refused call, the new key is first
//! given to all as `previous`, then the two change places, then the old one goes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use tasuki::node::world::Clock;

use crate::files::{Followed, Secret};
use crate::identity::{Identity, WrongIdentity};
use crate::security::Error;

/// How long a token lives.
pub const LIFE: Duration = Duration::from_secs(60);

/// By how much two nodes' clocks may differ.
pub const SKEW: Duration = Duration::from_secs(5);

/// A shorter key than the hash could be guessed more easily than the hash.
const KEY_BYTES: usize = 32;

/// Longer than any of ours; nothing longer is looked at.
const TOKEN_BYTES: usize = 1024;

/// What it is, so that nothing else that is signed with the key is taken for one.
const KIND: &str = "tasuki1";

/// Where the keys are: files with at least 32 random bytes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFiles {
    /// Signs, and is accepted.
    pub current: PathBuf,
    /// Is accepted: the one before, or the next one.
    pub previous: Option<PathBuf>,
}

/// Makes our tokens and checks those of others.
pub struct Tokens {
    identity: Identity,
    clock: Arc<dyn Clock>,
    followed: Followed<Keys>,
}

impl Tokens {
    /// Reads the keys and looks at them again after each `look_every`. Needs a runtime.
    pub fn open(
        files: TokenFiles,
        identity: Identity,
        clock: Arc<dyn Clock>,
        look_every: Duration,
    ) -> Result<Arc<Self>, Error> {
        let followed = Followed::open(files, look_every)?;
        Ok(Arc::new(Self { identity, clock, followed }))
    }

    /// Who we are.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many pairs of keys have been in use: one more with each that replaced another.
    pub fn generation(&self) -> u64 {
        self.followed.generation()
    }

    /// How many times new keys were refused.
    pub fn refused(&self) -> u64 {
        self.followed.refused()
    }

    /// A token that says who we are, for the next minute.
    pub fn sign(&self) -> String {
        let expires = self.clock.wall().as_second().saturating_add(LIFE.as_secs() as i64);
        let (cluster, name) = (self.identity.cluster(), self.identity.name());
        let said = format!("{KIND}:{cluster}:{}:{name}:{expires}", self.identity.role().as_str());
        let mark = hmac::sign(&self.followed.current().current, said.as_bytes());
        format!("{said}:{}", hex(mark.as_ref()))
    }

    /// Who shows this, if it is signed, alive, and of our cluster.
    pub fn check(&self, token: &str) -> Result<Identity, WrongIdentity> {
        let worthless = || WrongIdentity::new("it is no token of ours");
        if token.len() > TOKEN_BYTES {
            return Err(worthless());
        }
        let (said, mark) = token.rsplit_once(':').ok_or_else(worthless)?;
        let mark = unhex(mark).ok_or_else(worthless)?;
        // Nothing of it is read before it is known that one of us wrote it.
        if !self.followed.current().signed(said, &mark) {
            return Err(worthless());
        }
        let parts: Vec<&str> = said.split(':').collect();
        let [KIND, cluster, role, name, expires] = parts[..] else { return Err(worthless()) };
        let identity = Identity::new(cluster, role.parse()?, name)?;
        let expires: i64 = expires.parse().map_err(|_| worthless())?;
        self.check_time(expires)?;
        identity.of_cluster(self.identity.cluster())
    }

    fn check_time(&self, expires: i64) -> Result<(), WrongIdentity> {
        let (life, skew) = (LIFE.as_secs() as i64, SKEW.as_secs() as i64);
        let left = expires.saturating_sub(self.clock.wall().as_second());
        if left <= -skew {
            return Err(WrongIdentity::new("the token has expired"));
        }
        if left > life + skew {
            return Err(WrongIdentity::new("the token lives too long, or a clock is wrong"));
        }
        Ok(())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The keys as the files have them.
struct Keys {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

impl Keys {
    /// Takes as long whatever is wrong with the mark.
    fn signed(&self, said: &str, mark: &[u8]) -> bool {
        let with = |key: &hmac::Key| hmac::verify(key, said.as_bytes(), mark).is_ok();
        with(&self.current) || self.previous.as_ref().is_some_and(with)
    }
}

impl Secret for Keys {
    type Recipe = TokenFiles;

    fn paths(files: &TokenFiles) -> Vec<PathBuf> {
        [&files.current].into_iter().chain(&files.previous).cloned().collect()
    }

    fn make(files: &TokenFiles, contents: &[Vec<u8>]) -> Result<Self, Error> {
        let paths = Self::paths(files);
        let keys: Result<Vec<_>, _> =
            paths.iter().zip(contents).map(|(path, content)| key(path, content)).collect();
        let mut keys = keys?.into_iter();
        let current = keys.next().expect("there is always a current one");
        Ok(Self { current, previous: keys.next() })
    }
}

fn key(path: &Path, content: &[u8]) -> Result<hmac::Key, Error> {
    // Editors and `echo` end a file with a line's end.
    let content = content.trim_ascii_end();
    if content.len() < KEY_BYTES {
        return Err(Error::invalid(path, format!("a key has at least {KEY_BYTES} bytes")));
    }
    Ok(hmac::Key::new(HMAC_SHA256, content))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(written: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        written.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
