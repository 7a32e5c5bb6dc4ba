//! T9 and T10: somebody asks that a run does not go on.

use serde_json::json;
use tasuki_core::run::transition::Verb;
use tasuki_core::{Epoch, RunId, RunState};

use crate::audit::{self, Act, Actor};
use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Params, Tx, params};
use crate::run::note::{self, Note};
use crate::run::{due, lease};
use crate::{Writer, Error, Outcome, Run, Store};

static LOCK: Sql = sql!("run/lock");
static END_WAITING: Sql = sql!("run/end_waiting");
static CANCEL_ASSIGNED: Sql = sql!("run/cancel_assigned");
static CANCEL_ASK: Sql = sql!("run/cancel_ask");
static STAT_ADD: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canceled {
    /// It had not started and never will.
    Ended,
    /// It runs; its worker has been asked to stop it.
    Asked,
}

impl Store {
    /// Cancels what has not started, asks what runs to stop.
    pub async fn cancel<'a>(
        &self,
        author: Writer,
        run: RunId,
        by: impl Into<Actor<'a>>,
        reason: Option<&str>,
    ) -> Result<Outcome<Canceled>, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let epoch = match author {
            Writer::Leader(epoch) => {
                leader::fence(&mut tx, epoch).await?;
                Some(epoch)
            }
            Writer::Api => None,
        };
        // The due row before the run's own: whoever is assigning it has it, and we wait and see.
        let was_due = due::take(&mut tx, run).await?;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let asked = Asked { by: by.name, reason, epoch };
        let done = match &row {
            Some(row) if row.state.is_waiting() && !was_due => None,
            Some(row) if row.state == RunState::Running => {
                ask(&mut tx, row, &asked).await?.then_some(Canceled::Asked)
            }
            Some(row) => end_unstarted(&mut tx, row, &asked).await?.then_some(Canceled::Ended),
            None => None,
        };
        let (Some(row), Some(done)) = (row, done) else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        if author == Writer::Api {
            let after = if done == Canceled::Ended { RunState::Canceled } else { row.state };
            let act = Act {
                action: Verb::Cancel.as_str(),
                object: format!("run {run}"),
                before: Some(json!({ "state": row.state.as_str() })),
                after: Some(json!({
                    "state": after.as_str(),
                    "cancel_requested_by": by.name,
                    "reason": reason,
                })),
            };
            audit::append(&mut tx, by, act).await?;
        }
        tx.commit().await?;
        if let (Canceled::Ended, Some(token)) = (done, row.token) {
            self.close_if_empty(token).await?;
        }
        Ok(Outcome::Applied(done))
    }
}

/// Who asks, and why.
pub(crate) struct Asked<'a> {
    pub(crate) by: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) epoch: Option<Epoch>,
}

impl Asked<'_> {
    fn columns(&self, run: RunId) -> Params<'static> {
        params! {
            run_id: run.0,
            reason: self.reason.map(str::to_owned),
            asked_by: self.by,
        }
    }

    fn note(&self, row: &Run) -> Note<'_> {
        Note {
            run: row.id,
            attempt_no: row.counters.attempt_no,
            verb: Verb::Cancel,
            actor: self.by,
            reason: self.reason,
            epoch: self.epoch,
            token: row.token,
        }
    }
}

/// T9: a locked run that has not started never will. If it waited, its due row has been taken. `false`:
/// it has started or ended, and nothing was written.
pub(crate) async fn end_unstarted(
    tx: &mut Tx<'_>,
    row: &Run,
    asked: &Asked<'_>,
) -> Result<bool, Error> {
    let hit = match row.state {
        from if from.is_waiting() => {
            let end = params! { state: "CANCELED", from_state: from.as_str() };
            tx.execute(&END_WAITING, [asked.columns(row.id), end].concat()).await?
        }
        RunState::Assigned => tx.execute(&CANCEL_ASSIGNED, asked.columns(row.id)).await?,
        _ => 0,
    };
    if hit == 0 {
        return Ok(false);
    }
    if let Some(token) = row.token {
        lease::give_hold(tx, row, token).await?;
    }
    tx.execute(&STAT_ADD, params! { run_id: row.id.0 }).await?;
    note::add(tx, asked.note(row)).await?;
    Ok(true)
}

/// T10: the worker of a locked, running run is asked to stop it. `false`: somebody has asked.
async fn ask(tx: &mut Tx<'_>, row: &Run, asked: &Asked<'_>) -> Result<bool, Error> {
    if tx.execute(&CANCEL_ASK, asked.columns(row.id)).await? == 0 {
        return Ok(false);
    }
    note::add(tx, asked.note(row)).await?;
    Ok(true)
}
