//! T12 and T13: the leader passes a run over, or gives it up.

use tasuki_core::run::SkipReason;
use tasuki_core::run::transition::Verb;
use tasuki_core::{Epoch, RunId, RunState};

use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::note::{self, Note};
use crate::run::{due, lease};
use crate::{Error, Outcome, Run, Store, job};

static LOCK: Sql = sql!("run/lock");
static SHOW: Sql = sql!("run/show");
static LATE: Sql = sql!("run/late");
static IS_DUE: Sql = sql!("run/is_due");
static EXPIRED: Sql = sql!("run/expired");
static END_WAITING: Sql = sql!("run/end_waiting");
static STAT_ADD: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

impl Store {
    /// T12: passes over a run that never started, because it is too late or because a sibling that
    /// its job forbids is under way.
    pub async fn skip(
        &self,
        epoch: Epoch,
        run: RunId,
        reason: SkipReason,
    ) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(row) = take_waiting(&mut tx, epoch, run).await? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        let may = row.state.may_become(RunState::Skipped) && row.counters.tries == 0;
        let holds = match reason {
            SkipReason::Late => is(&mut tx, &LATE, run).await?,
            SkipReason::Concurrent => {
                row.exclusive
                    && is(&mut tx, &IS_DUE, run).await?
                    && sibling_under_way(&mut tx, &row).await?
            }
        };
        self.end(tx, &row, may && holds, RunState::Skipped, Verb::Skip, reason.as_str(), epoch)
            .await
    }

    /// T13: gives up a run whose time is up, or that was handed round too often.
    pub async fn expire(&self, epoch: Epoch, run: RunId) -> Result<Outcome<()>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(row) = take_waiting(&mut tx, epoch, run).await? else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        let limits = job::limits(&mut tx, row.job, row.job_version).await?;
        let reason = match row.counters.is_worn_out(limits.max_releases) {
            true => Some("MAX_RELEASES"),
            false => is(&mut tx, &EXPIRED, run).await?.then_some("EXPIRES_AT"),
        };
        let told = reason.unwrap_or_default();
        self.end(tx, &row, reason.is_some(), RunState::Expired, Verb::Expire, told, epoch).await
    }

    #[expect(clippy::too_many_arguments, reason = "one write, told once")]
    async fn end(
        &self,
        mut tx: Tx<'_>,
        run: &Run,
        holds: bool,
        state: RunState,
        verb: Verb,
        reason: &str,
        epoch: Epoch,
    ) -> Result<Outcome<()>, Error> {
        let row = params! {
            run_id: run.id.0,
            state: state.as_str(),
            from_state: run.state.as_str(),
            reason: reason,
            asked_by: Option::<String>::None,
        };
        if !holds || tx.execute(&END_WAITING, row).await? == 0 {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run.id).await?));
        }
        tx.execute(&STAT_ADD, params! { run_id: run.id.0 }).await?;
        let note = Note {
            run: run.id,
            attempt_no: run.counters.attempt_no,
            verb,
            actor: "leader",
            reason: Some(reason),
            epoch: Some(epoch),
            token: None,
        };
        note::add(&mut tx, note).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}

/// Takes a waiting run out of due and holds it still. `None`: it does not wait.
async fn take_waiting(tx: &mut Tx<'_>, epoch: Epoch, run: RunId) -> Result<Option<Run>, Error> {
    leader::fence(tx, epoch).await?;
    if !due::take(tx, run).await? {
        return Ok(None);
    }
    let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
    Ok(rows.first().map(Run::from_row).transpose()?.filter(|row| row.state.is_waiting()))
}

async fn is(tx: &mut Tx<'_>, question: &Sql, run: RunId) -> Result<bool, Error> {
    Ok(!tx.rows(question, params! { run_id: run.0 }).await?.is_empty())
}

/// Whether the hold is taken by a run that is RUNNING or itself due.
async fn sibling_under_way(tx: &mut Tx<'_>, run: &Run) -> Result<bool, Error> {
    let Some((sibling, _)) = lease::holder(tx, run).await? else { return Ok(false) };
    let rows = tx.rows(&SHOW, params! { run_id: sibling.0 }).await?;
    let running = match rows.first() {
        Some(row) => Run::from_row(row)?.state == RunState::Running,
        None => false,
    };
    Ok(running || is(tx, &IS_DUE, sibling).await?)
}
