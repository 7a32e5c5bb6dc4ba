//! API tokens. A token is shown once when it is created; only its hash is stored.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tasuki_core::{AccessRole, InvalidInput};
use tasuki_store::{NewToken, Token};

use super::{Actor, Error, Operator};

/// Prefix of every token, so that users and secret scanners recognise tokens.
const TOKEN_PREFIX: &str = "tsk_";

/// A token that was just created.
#[derive(Clone)]
pub struct IssuedToken {
    /// The stored part: name, role, hash and expiry.
    pub token: Token,
    /// The secret token. It is not stored and cannot be shown again.
    pub secret: String,
}

/// The hash by which a token is stored and found.
pub fn hash_token(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Operator {
    /// Creates a token with a generated secret.
    pub async fn create_token(
        &self,
        by: &Actor,
        name: &str,
        role: AccessRole,
        lifetime: Option<Duration>,
    ) -> Result<IssuedToken, Error> {
        let secret = generate_token()?;
        let token = self.create_token_with_secret(by, name, role, lifetime, &secret).await?;
        Ok(IssuedToken { token, secret })
    }

    /// Stores a token with a secret of the caller, for callers that must save the secret before it becomes valid.
    pub async fn create_token_with_secret(
        &self,
        by: &Actor,
        name: &str,
        role: AccessRole,
        lifetime: Option<Duration>,
        secret: &str,
    ) -> Result<Token, Error> {
        if lifetime.is_some_and(|lifetime| lifetime.is_zero()) {
            return Err(InvalidInput::with_value("expires_in", "0s", "a duration above 0s").into());
        }
        let new = NewToken { name, role, hash: hash_token(secret), lifetime };
        Ok(self.store.create_token(by.for_store(), &new).await?)
    }

    /// The token with this secret; `None`: there is none, or it is expired or revoked.
    pub async fn authenticate_token_secret(&self, secret: &str) -> Result<Option<Token>, Error> {
        Ok(self.store.authenticate_token(hash_token(secret)).await?)
    }

    /// All tokens, including expired and revoked ones.
    pub async fn list_tokens(&self) -> Result<Vec<Token>, Error> {
        Ok(self.store.list_tokens().await?)
    }

    /// Revokes a token.
    pub async fn revoke_token(&self, by: &Actor, token: i64) -> Result<Token, Error> {
        let revoked = self.store.revoke_token(by.for_store(), token).await?;
        revoked.ok_or_else(|| Error::not_found("token", &token))
    }
}

/// Generates the secret of a new token: 256 random bits as text.
pub fn generate_token() -> Result<String, Error> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|_| {
        Error::Store(tasuki_store::Error::Broken(
            "the operating system returned no random bytes".to_owned(),
        ))
    })?;
    let hex: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{TOKEN_PREFIX}{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_the_prefix_and_is_different() {
        let (first, second) = (generate_token().unwrap(), generate_token().unwrap());
        assert!(first.starts_with("tsk_") && first.len() == 68, "{first}");
        assert_ne!(hash_token(&first), hash_token(&second));
    }
}
