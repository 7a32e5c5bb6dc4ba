//! The leader: its lease and its terms. Only this file begins a term. Every write of a leader names its epoch, and a
//! write of an older epoch is refused.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tasuki_core::{Epoch, WorkerId};

use crate::audit::{self, AuditAction, AuditActor};
use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store, to_uuid};

static LOCK_TERM_SHARED: Sql = sql!("leader/lock_term_shared", ".sqlite", ".postgres", ".mysql");
static LOCK_TERM_EXCLUSIVE: Sql =
    sql!("leader/lock_term_exclusive", ".sqlite", ".postgres", ".mysql");
static FIND_EPOCH: Sql = sql!("leader/find_epoch");
static FIND: Sql = sql!("leader/find");
static TAKE_LEASE: Sql = sql!("leader/take_lease");
static BEGIN_TERM: Sql = sql!("leader/begin_term");
static INSERT_TERM: Sql = sql!("leader/insert_term");
static RENEW: Sql = sql!("leader/renew_lease");
static END_LEASE: Sql = sql!("leader/end_lease");
static LIST_TERMS: Sql = sql!("leader/list_terms");
static LIST_RECENT_TERMS: Sql = sql!("leader/list_recent_terms");

/// Upper bound for a mirrored epoch. No real epoch comes near it. The mirror may contain any value, and a wrong one
/// must not use up all epochs.
const MAX_MIRRORED_EPOCH: i64 = 1 << 53;

/// The current leader and its lease, as stored in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderRecord {
    /// Epoch of the newest term.
    pub epoch: Epoch,
    /// The worker that leads, or led last; `None` before the first term.
    pub holder: Option<WorkerId>,
    /// End of the lease, unless it is renewed. In the past: there is no leader.
    pub lease_until: Timestamp,
    /// The database's clock when this was read.
    pub clock: Timestamp,
}

/// One term of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Number of the term.
    pub epoch: Epoch,
    /// The worker that led.
    pub holder: WorkerId,
    /// When the term began.
    pub began_at: Timestamp,
}

impl Term {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            epoch: Epoch(row.int("epoch")?),
            holder: WorkerId::from_bytes(row.uuid("holder")?.into_bytes()),
            began_at: timestamp_from_micros(row.int("began_at")?)?,
        })
    }
}

impl LeaderRecord {
    fn from_rows(rows: &[Row]) -> Result<Self, Error> {
        let row = rows.first().ok_or_else(|| Error::broken("the row of the leader is missing"))?;
        Ok(Self {
            epoch: Epoch(row.int("epoch")?),
            holder: row.opt_uuid("holder")?.map(|id| WorkerId::from_bytes(id.into_bytes())),
            lease_until: timestamp_from_micros(row.int("lease_until")?)?,
            clock: timestamp_from_micros(row.int("clock")?)?,
        })
    }
}

impl Store {
    /// Reads the current leader.
    pub async fn get_leader_record(&self) -> Result<LeaderRecord, Error> {
        let rows = self.db.query(&FIND, params! {}).await?;
        LeaderRecord::from_rows(&rows)
    }

    /// Takes the leadership at a new epoch, if there is no leader and the epoch is still `expected_epoch`.
    /// `mirrored_epoch` is the highest epoch known outside the database (Redis). The new epoch is higher than both,
    /// so that epochs never go back, even if Redis has lost its data. `None`: there is a leader, or another candidate
    /// was faster.
    pub async fn take_leadership(
        &self,
        holder: WorkerId,
        expected_epoch: Epoch,
        mirrored_epoch: Epoch,
        ttl: Duration,
    ) -> Result<Option<Epoch>, Error> {
        let mut tx = self.db.begin().await?;
        tx.query(&LOCK_TERM_EXCLUSIVE, params! {}).await?;
        let epoch = Epoch(expected_epoch.0.max(mirrored_epoch.0.min(MAX_MIRRORED_EPOCH)) + 1);
        let holder = to_uuid(holder.as_bytes());
        let lease = params! { epoch: epoch.0, holder: holder, expected: expected_epoch.0, ttl: duration_to_micros(ttl) };
        let term = params! { epoch: epoch.0, holder: holder };
        if tx.execute(&TAKE_LEASE, lease).await? == 0
            || tx.execute(&BEGIN_TERM, term.clone()).await? == 0
        {
            tx.rollback().await?;
            return Ok(None);
        }
        tx.execute(&INSERT_TERM, term).await?;
        tx.commit().await?;
        Ok(Some(epoch))
    }

    /// Renews the leader's lease for `ttl`. `renew` is the usual renewal interval: a longer gap is recorded. `false`:
    /// the leadership is lost, and the caller must not act as the leader any more.
    pub async fn renew_leadership(
        &self,
        holder: WorkerId,
        epoch: Epoch,
        ttl: Duration,
        renew: Duration,
    ) -> Result<bool, Error> {
        let lease = params! {
            holder: to_uuid(holder.as_bytes()),
            epoch: epoch.0,
            ttl: duration_to_micros(ttl),
            max_gap: duration_to_micros(2 * renew),
        };
        Ok(self.db.execute(&RENEW, lease).await? == 1)
    }

    /// Ends the term of this epoch: the leader resigns, or a worker ends the term of a leader that no longer responds.
    /// `false`: the epoch has changed, or the term was ended before. If a worker calls this, the actor is its own id.
    pub async fn end_term<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        epoch: Epoch,
    ) -> Result<bool, Error> {
        self.end_term_as("end_term", by.into(), epoch, None).await
    }

    /// Ends the term of this epoch, because an operator wants another leader. `false`: the epoch has changed.
    pub async fn demote_leader<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        epoch: Epoch,
        reason: &str,
    ) -> Result<bool, Error> {
        self.end_term_as("demote", by.into(), epoch, Some(reason)).await
    }

    async fn end_term_as(
        &self,
        action: &'static str,
        by: AuditActor<'_>,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        if tx.execute(&END_LEASE, params! { epoch: epoch.0 }).await? == 0 {
            tx.rollback().await?;
            return Ok(false);
        }
        let leader = LeaderRecord::from_rows(&tx.query(&FIND, params! {}).await?)?;
        let act = AuditAction {
            action,
            object: format!("leader of epoch {epoch}"),
            before: Some(json!({ "holder": leader.holder.map(|holder| holder.to_string()) })),
            after: Some(json!({ "holder": null, "reason": reason })),
        };
        audit::append_audit_entry(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Lists all terms, oldest first.
    pub async fn list_terms(&self) -> Result<Vec<Term>, Error> {
        let rows = self.db.query(&LIST_TERMS, params! {}).await?;
        rows.iter().map(Term::from_row).collect()
    }

    /// Lists the newest terms, newest first, at most `limit` of them.
    pub async fn list_recent_terms(&self, limit: u32) -> Result<Vec<Term>, Error> {
        let rows = self.db.query(&LIST_RECENT_TERMS, params! { limit: limit }).await?;
        rows.iter().map(Term::from_row).collect()
    }
}

/// Checks that `epoch` is the current one, and keeps it current until this transaction ends. First takes a shared
/// lock, then reads the epoch with a separate statement, which sees every term that was committed before the lock was
/// granted.
pub(crate) async fn check_and_lock_epoch(tx: &mut Tx<'_>, epoch: Epoch) -> Result<(), Error> {
    tx.query(&LOCK_TERM_SHARED, params! {}).await?;
    let rows = tx.query(&FIND_EPOCH, params! {}).await?;
    let current = rows
        .first()
        .ok_or_else(|| Error::broken("the row of the current term is missing"))?
        .int("epoch")?;
    match current == epoch.0 {
        true => Ok(()),
        false => Err(Error::Fenced(epoch)),
    }
}
