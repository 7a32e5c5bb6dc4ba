//! Tokens: given out once, kept as a hash.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tasuki_core::{Invalid, Role};
use tasuki_store::{NewToken, Token};

use super::{Actor, Error, Operator};

/// How every token begins, so that people and scanners know one when they see it.
const MARK: &str = "tsk_";

/// A token that has just been given out.
#[derive(Clone)]
pub struct Given {
    /// What is kept of it.
    pub token: Token,
    /// The token itself. It is nowhere else, and never will be again.
    pub secret: String,
}

/// What is kept of a token, and what it is found by.
pub fn hash_token(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Operator {
    /// Gives a token out.
    pub async fn create_token(
        &self,
        by: &Actor,
        name: &str,
        role: Role,
        lifetime: Option<Duration>,
    ) -> Result<Given, Error> {
        let secret = new_secret()?;
        let token = self.accept_token(by, name, role, lifetime, &secret).await?;
        Ok(Given { token, secret })
    }

    /// From now on this secret counts: for whoever has to have kept it before it does.
    pub async fn accept_token(
        &self,
        by: &Actor,
        name: &str,
        role: Role,
        lifetime: Option<Duration>,
        secret: &str,
    ) -> Result<Token, Error> {
        if lifetime.is_some_and(|lifetime| lifetime.is_zero()) {
            return Err(Invalid::typed("expires_in", "0s", "more than nothing").into());
        }
        let new = NewToken { name, role, hash: hash_token(secret), lifetime };
        Ok(self.store.create_token(by.told(), &new).await?)
    }

    /// Whoever shows this token, if it counts.
    pub async fn bearer(&self, secret: &str) -> Result<Option<Token>, Error> {
        Ok(self.store.bearer(hash_token(secret)).await?)
    }

    /// Every token there was.
    pub async fn tokens(&self) -> Result<Vec<Token>, Error> {
        Ok(self.store.tokens().await?)
    }

    /// From now on it counts no more.
    pub async fn revoke_token(&self, by: &Actor, token: i64) -> Result<Token, Error> {
        let revoked = self.store.revoke_token(by.told(), token).await?;
        revoked.ok_or_else(|| Error::not_found("token", &token))
    }
}

/// A token that nobody has yet: 256 random bits as text.
pub fn new_secret() -> Result<String, Error> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|_| {
        Error::Store(tasuki_store::Error::Broken("the machine has no randomness".to_owned()))
    })?;
    let hex: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{MARK}{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_marked_and_never_the_same() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert!(one.starts_with("tsk_") && one.len() == 68, "{one}");
        assert_ne!(hash_token(&one), hash_token(&other));
    }
}
