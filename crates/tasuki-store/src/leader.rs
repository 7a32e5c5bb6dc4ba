//! Who leads: terms are minted here and nowhere else, and fence what leaders write.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, WorkerId};

use crate::db::{Tx, params};
use crate::run::{micros, timestamp};
use crate::sql::{Sql, sql};
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

impl Store {
    /// Who leads.
    pub async fn leader(&self) -> Result<Leader, Error> {
        let rows = self.db.rows(&SHOW, params! {}).await?;
        let row = rows.first().ok_or_else(|| Error::broken("there is no leader row"))?;
        Ok(Leader {
            epoch: Epoch(row.int("epoch")?),
            holder: row.opt_uuid("holder")?.map(|id| WorkerId::from_bytes(id.into_bytes())),
            lease_until: timestamp(row.int("lease_until")?)?,
            clock: timestamp(row.int("clock")?)?,
        })
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
        let epoch = Epoch(seen.0.max(mirror.0) + 1);
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
        let mut tx = self.db.begin().await?;
        let renewed = tx
            .execute(
                &RENEW,
                params! {
                    holder: uuid(holder.as_bytes()),
                    epoch: epoch.0,
                    ttl: micros(ttl),
                    gap: micros(2 * renew),
                },
            )
            .await?;
        tx.commit().await?;
        Ok(renewed == 1)
    }

    /// Gives the lead up, or takes it from a leader that was seen at this epoch. `false`: the epoch is
    /// no longer that, or it was given up already.
    pub async fn depose(&self, epoch: Epoch) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let deposed = tx.execute(&RESIGN, params! { epoch: epoch.0 }).await?;
        tx.commit().await?;
        Ok(deposed == 1)
    }

    /// Every term there was, in order.
    pub async fn terms(&self) -> Result<Vec<Term>, Error> {
        let rows = self.db.rows(&HISTORY, params! {}).await?;
        rows.iter()
            .map(|row| {
                Ok(Term {
                    epoch: Epoch(row.int("epoch")?),
                    holder: WorkerId::from_bytes(row.uuid("holder")?.into_bytes()),
                    minted_at: timestamp(row.int("minted_at")?)?,
                })
            })
            .collect()
    }
}

/// The fence: no write of an older epoch lands. The lock first, then the check in a statement of its
/// own; until this transaction ends no newer term can be minted.
pub(crate) async fn fence(tx: &mut Tx, epoch: Epoch) -> Result<(), Error> {
    tx.rows(&LOCK_SHARE, params! {}).await?;
    let rows = tx.rows(&CHECK, params! {}).await?;
    let current = rows.first().ok_or_else(|| Error::broken("there is no term"))?.int("epoch")?;
    match current == epoch.0 {
        true => Ok(()),
        false => Err(Error::Fenced(epoch)),
    }
}
