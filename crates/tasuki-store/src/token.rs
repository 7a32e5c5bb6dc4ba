//! API tokens: who may use the API, and with which role.
//!
//! A token is 256 random bits that only its owner stores. The database stores their SHA-256. A token is found by that
//! hash, so the time that a comparison takes reveals nothing about the token.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{AccessRole, InvalidInput};

use crate::audit::{self, AuditAction, AuditActor};
use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::{Error, Store, validate};

static INSERT: Sql = sql!("token/insert");
static FIND_BY_HASH: Sql = sql!("token/find_by_hash");
static LOCK_BY_ID: Sql = sql!("token/lock_by_id");
static LIST: Sql = sql!("token/list");
static RECORD_USE: Sql = sql!("token/record_use");
static REVOKE: Sql = sql!("token/revoke");

/// Resolution of [`Token::last_used_at`]: a newer use is not written.
const LAST_USED_RESOLUTION: Duration = Duration::from_secs(60);

/// A token to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewToken<'a> {
    /// Its name. The audit records what is done with the token under this name.
    pub name: &'a str,
    /// The role that it grants.
    pub role: AccessRole,
    /// The SHA-256 of the token. The store never gets the token itself.
    pub hash: [u8; 32],
    /// How long it is valid; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
}

/// A stored token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// The role that it grants.
    pub role: AccessRole,
    /// When it was created.
    pub created_at: Timestamp,
    /// Name of the actor who created it.
    pub created_by: String,
    /// When it expires; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, with a resolution of one minute; `None`: never.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked; `None`: it is not revoked.
    pub revoked_at: Option<Timestamp>,
}

impl Token {
    /// Whether the token is valid at this instant: neither revoked nor expired.
    pub fn is_valid_at(&self, at: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| at < end)
    }

    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        Ok(Self {
            id: row.int("id")?,
            name: row.text("name")?,
            role: row.text("role")?.parse()?,
            created_at: timestamp_from_micros(row.int("created_at")?)?,
            created_by: row.text("created_by")?,
            expires_at: instant("expires_at")?,
            last_used_at: instant("last_used_at")?,
            revoked_at: instant("revoked_at")?,
        })
    }
}

impl Store {
    /// Creates a token and records this in the audit.
    pub async fn create_token<'a>(
        &self,
        actor: impl Into<AuditActor<'a>>,
        new: &NewToken<'_>,
    ) -> Result<Token, Error> {
        validate::check_key("name", new.name)?;
        if new.name.chars().any(char::is_control) {
            return Err(
                InvalidInput::with_value("name", new.name, "1 to 191 visible characters").into()
            );
        }
        let actor = actor.into();
        let mut tx = self.db.begin().await?;
        let row = params! {
            name: new.name,
            token_hash: new.hash.to_vec(),
            role: new.role.as_str(),
            created_by: actor.name,
            lifetime: new.lifetime.map(duration_to_micros),
        };
        tx.execute(&INSERT, row).await?;
        let rows = tx.query(&FIND_BY_HASH, params! { token_hash: new.hash.to_vec() }).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::broken("the token that was just created is missing"))?;
        let token = Token::from_row(row)?;
        let action = AuditAction {
            action: "create",
            object: format!("token {}", token.id),
            before: None,
            after: Some(json!({
                "name": token.name,
                "role": token.role.as_str(),
                "expires_at": token.expires_at.map(|at| at.to_string()),
            })),
        };
        audit::append_audit_entry(&mut tx, actor, action).await?;
        tx.commit().await?;
        Ok(token)
    }

    /// Finds the token with this hash if it is valid now, and records that it was used. `None`: there is no such
    /// token, or it is not valid any more.
    pub async fn authenticate_token(&self, hash: [u8; 32]) -> Result<Option<Token>, Error> {
        let rows = self.db.query(&FIND_BY_HASH, params! { token_hash: hash.to_vec() }).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (token, clock) = (Token::from_row(row)?, timestamp_from_micros(row.int("clock")?)?);
        if !token.is_valid_at(clock) {
            return Ok(None);
        }
        let is_outdated =
            |last: Timestamp| clock.duration_since(last).unsigned_abs() > LAST_USED_RESOLUTION;
        if token.last_used_at.is_none_or(is_outdated) {
            let mut tx = self.db.begin().await?;
            tx.execute(&RECORD_USE, params! { id: token.id }).await?;
            tx.commit().await?;
        }
        Ok(Some(token))
    }

    /// Lists all tokens, also expired and revoked ones, in the order in which they were created.
    pub async fn list_tokens(&self) -> Result<Vec<Token>, Error> {
        let rows = self.db.query(&LIST, params! {}).await?;
        rows.iter().map(Token::from_row).collect()
    }

    /// Revokes a token and records this in the audit. A token that is already revoked stays unchanged. `None`: there
    /// is no such token.
    pub async fn revoke_token<'a>(
        &self,
        actor: impl Into<AuditActor<'a>>,
        token: i64,
    ) -> Result<Option<Token>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK_BY_ID, params! { id: token }).await?;
        let Some(before) = rows.first().map(Token::from_row).transpose()? else {
            tx.rollback().await?;
            return Ok(None);
        };
        if tx.execute(&REVOKE, params! { id: token }).await? == 0 {
            tx.rollback().await?;
            return Ok(Some(before));
        }
        let rows = tx.query(&LOCK_BY_ID, params! { id: token }).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::broken(format!("token {token} vanished while it was locked")))?;
        let after = Token::from_row(row)?;
        let audit_json = |revoked: bool| json!({ "name": after.name, "role": after.role.as_str(), "revoked": revoked });
        let action = AuditAction {
            action: "revoke",
            object: format!("token {token}"),
            before: Some(audit_json(false)),
            after: Some(audit_json(true)),
        };
        audit::append_audit_entry(&mut tx, actor.into(), action).await?;
        tx.commit().await?;
        Ok(Some(after))
    }
}
