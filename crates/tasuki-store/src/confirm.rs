//! T15: a detached worker asks whether it may go on.

use std::time::Duration;

use tasuki_core::run::transition::Verb;
use tasuki_core::{LeaseToken, RunId};

use crate::db::params;
use crate::note::{self, Note};
use crate::run::micros;
use crate::sql::{Sql, sql};
use crate::{Error, Outcome, Run, Store, uuid};

static LEASE_SHOW: Sql = sql!("lease/show");
static RUN_SHOW: Sql = sql!("run/show");
static CONFIRM: Sql = sql!("run/confirm");
static CONFIRMED: Sql = sql!("run/confirmed");

impl Store {
    /// The worker begins to ask: NONE -> CONFIRMING, with a deadline that never outlives the lease.
    pub async fn confirm(
        &self,
        token: LeaseToken,
        run: RunId,
        patience: Duration,
    ) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LEASE_SHOW, params! { token: uuid(token.as_bytes()) }).await?;
        let hit = match rows.first() {
            None => 0,
            Some(lease) => {
                let asked = params! {
                    run_id: run.0,
                    token: uuid(token.as_bytes()),
                    patience: micros(patience),
                    lease_until: lease.int("lease_until")?,
                };
                tx.execute(&CONFIRM, asked).await?
            }
        };
        self.told(tx, hit, run, token, "asks whether it may go on").await
    }

    /// The worker was told to go on: CONFIRMING -> NONE, before the deadline.
    pub async fn confirmed(&self, token: LeaseToken, run: RunId) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let key = params! { run_id: run.0, token: uuid(token.as_bytes()) };
        let hit = tx.execute(&CONFIRMED, key).await?;
        self.told(tx, hit, run, token, "may go on").await
    }

    async fn told(
        &self,
        mut tx: crate::db::Tx<'_>,
        hit: u64,
        run: RunId,
        token: LeaseToken,
        reason: &str,
    ) -> Result<Outcome<()>, Error> {
        if hit == 0 {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        }
        let rows = tx.rows(&RUN_SHOW, params! { run_id: run.0 }).await?;
        let row = Run::from_row(rows.first().ok_or_else(|| Error::broken("a run vanished"))?)?;
        let note = Note {
            run,
            attempt_no: row.counters.attempt_no,
            verb: Verb::Confirm,
            actor: "worker",
            reason: Some(reason),
            epoch: None,
            token: Some(token),
        };
        note::add(&mut tx, note).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}
