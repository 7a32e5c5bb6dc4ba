//! Who leads: terms are minted here and nowhere else, and fence what leaders write.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{Epoch, WorkerId};

use crate::audit::{self, Act, Actor};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::{micros, timestamp};
use crate::{Error, Store, uuid};

static LOCK_SHARE: Sql = sql!("leader/lock_share", ".sqlite", ".postgres", ".mysql");
static LOCK_MINT: Sql = sql!("leader/lock_mint", ".sqlite", ".postgres", ".mysql");
static CHECK: Sql = sql!("leader/check");
static SHOW: Sql = sql!("leader/show");
static MINT_LEASE: Sql = sql!("leader/mint_lease");
static MINT_TERM: Sql = sql!("leader/mint_term");
static MINT_HISTORY: Sql = sql!("leader/mint_history");
static RENEW: Sql = sql!("leader/renew");
static RESIGN: Sql = sql!("leader/resign");
static HISTORY: Sql = sql!("leader/history");
static RECENT: Sql = sql!("leader/recent");

/// No epoch comes this far. What is mirrored may be anything, and must not be able to use all epochs up.
const HIGHEST_MIRROR: i64 = 1 << 53;

/// The leadership as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The newest term.
    pub epoch: Epoch,
    /// Who holds it.
    pub holder: Option<WorkerId>,
    /// Until when, if it is not renewed.
    pub lease_until: Timestamp,
    /// The database's clock when this was read.
    pub clock: Timestamp,
}

/// One term there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Its number.
    pub epoch: Epoch,
    /// Who held it.
    pub holder: WorkerId,
    /// Since when.
    pub minted_at: Timestamp,
}

impl Term {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            epoch: Epoch(row.int("epoch")?),
            holder: WorkerId::from_bytes(row.uuid("holder")?.into_bytes()),
            minted_at: timestamp(row.int("minted_at")?)?,
        })
    }
}

impl Leader {
    fn from_rows(rows: &[Row]) -> Result<Self, Error> {
        let row = rows.first().ok_or_else(|| Error::broken("there is no leader row"))?;
        Ok(Self {
            epoch: Epoch(row.int("epoch")?),
            holder: row.opt_uuid("holder")?.map(|id| WorkerId::from_bytes(id.into_bytes())),
            lease_until: timestamp(row.int("lease_until")?)?,
            clock: timestamp(row.int("clock")?)?,
        })
    }
}

impl Store {
    /// Who leads.
    pub async fn leader(&self) -> Result<Leader, Error> {
        let rows = self.db.rows(&SHOW, params! {}).await?;
        Leader::from_rows(&rows)
    }

    /// Takes the lead if nobody has it, at the epoch that was seen. `mirror` is the highest epoch
    /// known elsewhere: the new one goes above both, so that a Redis that lost its memory cannot send
    /// time backwards. `None`: somebody has it, or was quicker.
    pub async fn mint(
        &self,
        holder: WorkerId,
        seen: Epoch,
        mirror: Epoch,
        ttl: Duration,
    ) -> Result<Option<Epoch>, Error> {
        let mut tx = self.db.begin().await?;
        tx.rows(&LOCK_MINT, params! {}).await?;
        let epoch = Epoch(seen.0.max(mirror.0.min(HIGHEST_MIRROR)) + 1);
        let holder = uuid(holder.as_bytes());
        let taken = params! { epoch: epoch.0, holder: holder, seen: seen.0, ttl: micros(ttl) };
        let term = params! { epoch: epoch.0, holder: holder };
        if tx.execute(&MINT_LEASE, taken).await? == 0
            || tx.execute(&MINT_TERM, term.clone()).await? == 0
        {
            tx.rollback().await?;
            return Ok(None);
        }
        tx.execute(&MINT_HISTORY, term).await?;
        tx.commit().await?;
        Ok(Some(epoch))
    }

    /// Keeps the lead. `false`: it is lost, act no more.
    pub async fn renew_term(
        &self,
        holder: WorkerId,
        epoch: Epoch,
        ttl: Duration,
        renew: Duration,
    ) -> Result<bool, Error> {
        let lease = params! {
            holder: uuid(holder.as_bytes()),
            epoch: epoch.0,
            ttl: micros(ttl),
            gap: micros(2 * renew),
        };
        Ok(self.db.change(&RENEW, lease).await? == 1)
    }

    /// Gives the lead up, or takes it from a leader that was seen at this epoch and is silent. `false`:
    /// the epoch is no longer that, or it was given up already. A worker acts under its own id.
    pub async fn depose<'a>(&self, by: impl Into<Actor<'a>>, epoch: Epoch) -> Result<bool, Error> {
        self.end_lease("depose", by.into(), epoch, None).await
    }

    /// Somebody wants another leader than the one that was seen at this epoch. `false`: there is
    /// another already.
    pub async fn demote<'a>(
        &self,
        by: impl Into<Actor<'a>>,
        epoch: Epoch,
        reason: &str,
    ) -> Result<bool, Error> {
        self.end_lease("demote", by.into(), epoch, Some(reason)).await
    }

    async fn end_lease(
        &self,
        action: &'static str,
        by: Actor<'_>,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        if tx.execute(&RESIGN, params! { epoch: epoch.0 }).await? == 0 {
            tx.rollback().await?;
            return Ok(false);
        }
        let leader = Leader::from_rows(&tx.rows(&SHOW, params! {}).await?)?;
        let act = Act {
            action,
            object: format!("leader of epoch {epoch}"),
            before: Some(json!({ "holder": leader.holder.map(|holder| holder.to_string()) })),
            after: Some(json!({ "holder": null, "reason": reason })),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Every term there was, in order.
    pub async fn terms(&self) -> Result<Vec<Term>, Error> {
        let rows = self.db.rows(&HISTORY, params! {}).await?;
        rows.iter().map(Term::from_row).collect()
    }

    /// The newest terms, newest first, at most so many.
    pub async fn recent_terms(&self, most: u32) -> Result<Vec<Term>, Error> {
        let rows = self.db.rows(&RECENT, params! { most: most }).await?;
        rows.iter().map(Term::from_row).collect()
    }
}

/// The fence: no write of an older epoch lands. The lock first, then the check in a statement of its
/// own; until this transaction ends no newer term can be minted.
pub(crate) async fn fence(tx: &mut Tx<'_>, epoch: Epoch) -> Result<(), Error> {
    tx.rows(&LOCK_SHARE, params! {}).await?;
    let rows = tx.rows(&CHECK, params! {}).await?;
    let current = rows.first().ok_or_else(|| Error::broken("there is no term"))?.int("epoch")?;
    match current == epoch.0 {
        true => Ok(()),
        false => Err(Error::Fenced(epoch)),
    }
}
