//! T7, T7w and T8: runs come back from workers that did not start them, or did not finish them.

use std::time::Duration;

use tasuki_core::exit::Failure;
use tasuki_core::retry::{AtTheEnd, decide};
use tasuki_core::run::Loss;
use tasuki_core::run::transition::Verb;
use tasuki_core::{AttemptOutcome, Epoch, ErrorCode, LeaseToken, RunId, RunState};

use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::finish::{AttemptResult, append, settle, wait_again};
use crate::run::lease;
use crate::run::micros;
use crate::run::note::{self, Note};
use crate::{Error, Lease, Outcome, Run, Store, job, uuid};

static LOCK: Sql = sql!("run/lock");
static ORPHANABLE: Sql = sql!("run/orphanable");
static SEIZE: Sql = sql!("lease/seize");

/// What became of a run whose lease lapsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Which.
    pub run: RunId,
    /// Where it stands now.
    pub state: RunState,
}

impl Store {
    /// T7: takes an assigned run back that was not started in time, or whose worker is not to start
    /// it.
    pub async fn orphan(
        &self,
        epoch: Epoch,
        run: RunId,
        token: LeaseToken,
    ) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        leader::fence(&mut tx, epoch).await?;
        let key = params! { run_id: run.0, token: uuid(token.as_bytes()) };
        let rows = tx.rows(&ORPHANABLE, key).await?;
        let Some(row) = rows.first().map(Run::from_row).transpose()? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        give_up(&mut tx, &row, token, Verb::Orphan, "leader", Some(epoch)).await?;
        tx.commit().await?;
        self.close_if_empty(token).await?;
        Ok(Outcome::Applied(()))
    }

    /// T7w: a worker that drains or is full gives an assigned run back.
    pub async fn release(&self, token: LeaseToken, run: RunId) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let mine = row.filter(|row| row.state == RunState::Assigned && row.token == Some(token));
        let Some(row) = mine else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        give_up(&mut tx, &row, token, Verb::Release, "worker", None).await?;
        tx.commit().await?;
        self.close_if_empty(token).await?;
        Ok(Outcome::Applied(()))
    }

    /// T8: takes everything from a lease that lapsed, or whose worker was reported dead. The lease
    /// goes first, guarded by what was read: a renewal that came in between wins and nothing moves.
    pub async fn recover(
        &self,
        epoch: Epoch,
        lapsed: &Lease,
        steal_grace: Duration,
        dice: u32,
    ) -> Result<Option<Vec<Recovered>>, Error> {
        let mut tx = self.db.begin().await?;
        leader::fence(&mut tx, epoch).await?;
        let guard = params! {
            token: uuid(lapsed.token.as_bytes()),
            lease_until: lapsed.lease_until.as_microsecond(),
            grace: micros(steal_grace),
        };
        if tx.execute(&SEIZE, guard).await? == 0 {
            tx.rollback().await?;
            return Ok(None);
        }
        let carried = lease::carried(&mut tx, lapsed).await?;
        let running = carried.iter().filter(|run| run.state == RunState::Running).count();
        let loss = if running > 1 { Loss::Together } else { Loss::Single };
        let mut recovered = Vec::new();
        for one in carried {
            // Its worker may have reported in the meantime; what it says now counts.
            let rows = tx.rows(&LOCK, params! { run_id: one.run.0 }).await?;
            let row = rows.first().map(Run::from_row).transpose()?;
            let Some(row) = row.filter(|row| row.token == Some(lapsed.token)) else { continue };
            let state = match row.state {
                RunState::Assigned => {
                    give_up(&mut tx, &row, lapsed.token, Verb::Recover, "supervisor", Some(epoch))
                        .await?;
                    RunState::Orphaned
                }
                RunState::Running => lose(&mut tx, row, lapsed.token, loss, epoch, dice).await?,
                _ => continue,
            };
            recovered.push(Recovered { run: one.run, state });
        }
        tx.commit().await?;
        Ok(Some(recovered))
    }
}

/// An assigned, locked run goes back to waiting, charged with a release.
async fn give_up(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    verb: Verb,
    actor: &str,
    epoch: Option<Epoch>,
) -> Result<(), Error> {
    append(tx, run.id, AttemptOutcome::Released, AttemptResult::default().columns()).await?;
    let back = Run { counters: run.counters.released(), ..run.clone() };
    wait_again(tx, &back, token, RunState::Orphaned, 0).await?;
    lease::give_hold(tx, run, token).await?;
    note(tx, run, token, verb, actor, None, epoch).await
}

/// A running, locked run is lost: nobody knows how far it got.
async fn lose(
    tx: &mut Tx<'_>,
    run: Run,
    token: LeaseToken,
    loss: Loss,
    epoch: Epoch,
    dice: u32,
) -> Result<RunState, Error> {
    let limits = job::limits(tx, run.job, run.job_version).await?;
    let run = Run { counters: run.counters.lost(loss, run.max_attempts), ..run };
    let at_the_end = AtTheEnd {
        counters: run.counters,
        max_attempts: run.max_attempts,
        cancel_asked: run.cancel_requested_at.is_some(),
    };
    let failure = Failure { code: ErrorCode::HEARTBEAT_TIMEOUT, retryable: limits.retry_lost };
    let next = decide(&at_the_end, &failure, &limits.backoff, dice);
    let columns = AttemptResult::failed(failure).columns();
    let state = settle(tx, &run, token, next, AttemptOutcome::Lost, columns).await?;
    lease::give_hold(tx, &run, token).await?;
    note(tx, &run, token, Verb::Recover, "supervisor", Some("its lease lapsed"), Some(epoch))
        .await?;
    Ok(state)
}

async fn note(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    verb: Verb,
    actor: &str,
    reason: Option<&str>,
    epoch: Option<Epoch>,
) -> Result<(), Error> {
    let attempt_no = run.counters.attempt_no;
    let note = Note { run: run.id, attempt_no, verb, actor, reason, epoch, token: Some(token) };
    note::add(tx, note).await
}
