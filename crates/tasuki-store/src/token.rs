//! Tokens: who may act through the API, and as what.
//!
//! A token is 256 random bits that its owner keeps; the database keeps their SHA-256. It is looked up by
//! that hash, so that what is compared tells nobody anything about the token.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{Invalid, Role};

use crate::audit::{self, Act, Actor};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::run::{micros, timestamp};
use crate::{Error, Store, check};

static ADD: Sql = sql!("token/add");
static BY_HASH: Sql = sql!("token/by_hash");
static BY_ID: Sql = sql!("token/by_id");
static LIST: Sql = sql!("token/list");
static TOUCH: Sql = sql!("token/touch");
static REVOKE: Sql = sql!("token/revoke");

/// How long a token goes unmarked although it is used.
const TOUCHED: Duration = Duration::from_secs(60);

/// A token to be given out.
#[derive(Debug, Clone, Copy)]
pub struct NewToken<'a> {
    /// What people call it: what it does appears in the audit under this name.
    pub name: &'a str,
    /// What may be done with it.
    pub role: Role,
    /// The SHA-256 of it. The token itself never comes here.
    pub hash: [u8; 32],
    /// How long it counts; `None`: until it is revoked.
    pub lifetime: Option<Duration>,
}

/// A token as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Which.
    pub id: i64,
    /// What people call it.
    pub name: String,
    /// What may be done with it.
    pub role: Role,
    /// Since when it is there.
    pub created_at: Timestamp,
    /// Who gave it out.
    pub created_by: String,
    /// When it stops counting.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to within a minute.
    pub last_used_at: Option<Timestamp>,
    /// Since when it counts no more.
    pub revoked_at: Option<Timestamp>,
}

impl Token {
    /// Whether it counts at this instant.
    pub fn counts(&self, at: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| at < end)
    }

    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp).transpose();
        Ok(Self {
            id: row.int("id")?,
            name: row.text("name")?,
            role: row.text("role")?.parse()?,
            created_at: timestamp(row.int("created_at")?)?,
            created_by: row.text("created_by")?,
            expires_at: instant("expires_at")?,
            last_used_at: instant("last_used_at")?,
            revoked_at: instant("revoked_at")?,
        })
    }
}

impl Store {
    /// Gives a token out, and tells it.
    pub async fn create_token<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        new: &NewToken<'_>,
    ) -> Result<Token, Error> {
        check::key("name", new.name)?;
        if new.name.chars().any(char::is_control) {
            return Err(Invalid::typed("name", new.name, "1 to 191 visible characters").into());
        }
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let row = params! {
            name: new.name,
            token_hash: new.hash.to_vec(),
            role: new.role.as_str(),
            created_by: by.name,
            lifetime: new.lifetime.map(micros),
        };
        tx.execute(&ADD, row).await?;
        let rows = tx.rows(&BY_HASH, params! { token_hash: new.hash.to_vec() }).await?;
        let row = rows.first().ok_or_else(|| Error::broken("the token is not there"))?;
        let token = Token::from_row(row)?;
        let act = Act {
            action: "create",
            object: format!("token {}", token.id),
            before: None,
            after: Some(json!({
                "name": token.name,
                "role": token.role.as_str(),
                "expires_at": token.expires_at.map(|at| at.to_string()),
            })),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(token)
    }

    /// Whose token has this hash, if it counts now; and marks that it was used.
    pub async fn bearer(&self, hash: [u8; 32]) -> Result<Option<Token>, Error> {
        let rows = self.db.rows(&BY_HASH, params! { token_hash: hash.to_vec() }).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (token, clock) = (Token::from_row(row)?, timestamp(row.int("clock")?)?);
        if !token.counts(clock) {
            return Ok(None);
        }
        let unmarked = |last: Timestamp| clock.duration_since(last).unsigned_abs() > TOUCHED;
        if token.last_used_at.is_none_or(unmarked) {
            let mut tx = self.db.begin().await?;
            tx.execute(&TOUCH, params! { id: token.id }).await?;
            tx.commit().await?;
        }
        Ok(Some(token))
    }

    /// Every token there was, in the order they were given out.
    pub async fn tokens(&self) -> Result<Vec<Token>, Error> {
        let rows = self.db.rows(&LIST, params! {}).await?;
        rows.iter().map(Token::from_row).collect()
    }

    /// From now on a token counts no more, and this is told. One that was revoked before stays as it
    /// was. `None`: there is no such token.
    pub async fn revoke_token<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        token: i64,
    ) -> Result<Option<Token>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&BY_ID, params! { id: token }).await?;
        let Some(before) = rows.first().map(Token::from_row).transpose()? else {
            tx.rollback().await?;
            return Ok(None);
        };
        if tx.execute(&REVOKE, params! { id: token }).await? == 0 {
            tx.rollback().await?;
            return Ok(Some(before));
        }
        let rows = tx.rows(&BY_ID, params! { id: token }).await?;
        let row = rows.first().ok_or_else(|| Error::broken("a token vanished"))?;
        let after = Token::from_row(row)?;
        let told = |revoked: bool| json!({ "name": after.name, "role": after.role.as_str(), "revoked": revoked });
        let act = Act {
            action: "revoke",
            object: format!("token {token}"),
            before: Some(told(false)),
            after: Some(told(true)),
        };
        audit::append(&mut tx, by.into(), act).await?;
        tx.commit().await?;
        Ok(Some(after))
    }
}
