//! T9 and T10: somebody asks that a run does not go on.

use serde_json::json;
use tasuki_core::run::transition::Verb;
use tasuki_core::{RunId, RunState};

use crate::audit::{self, Act, Actor};
use crate::db::params;
use crate::note::{self, Note};
use crate::sql::{Sql, sql};
use crate::{Author, Error, Outcome, Run, Store, leader, lease};

static DUE_TAKE: Sql = sql!("due/take");
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
        author: Author,
        run: RunId,
        by: impl Into<Actor<'a>>,
        reason: Option<&str>,
    ) -> Result<Outcome<Canceled>, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let epoch = match author {
            Author::Leader(epoch) => {
                leader::fence(&mut tx, epoch).await?;
                Some(epoch)
            }
            Author::Api => None,
        };
        // The due row before the run's own: whoever is assigning it has it, and we wait and see.
        let was_due = tx.execute(&DUE_TAKE, params! { run_id: run.0 }).await? == 1;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let state = row.as_ref().map(|row| row.state);
        let asked = params! {
            run_id: run.0,
            reason: reason.map(str::to_owned),
            asked_by: by.name,
        };
        let (hit, done) = match state {
            Some(from) if from.is_waiting() && was_due => {
                let end = params! { state: "CANCELED", from_state: from.as_str() };
                (tx.execute(&END_WAITING, [asked, end].concat()).await?, Canceled::Ended)
            }
            Some(RunState::Assigned) => {
                (tx.execute(&CANCEL_ASSIGNED, asked).await?, Canceled::Ended)
            }
            Some(RunState::Running) => (tx.execute(&CANCEL_ASK, asked).await?, Canceled::Asked),
            Some(_) | None => (0, Canceled::Ended),
        };
        let Some(row) = row.filter(|_| hit == 1) else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        if done == Canceled::Ended {
            if let Some(token) = row.token {
                lease::give_hold(&mut tx, &row, token).await?;
            }
            tx.execute(&STAT_ADD, params! { run_id: run.0 }).await?;
        }
        let note = Note {
            run,
            attempt_no: row.counters.attempt_no,
            verb: Verb::Cancel,
            actor: by.name,
            reason,
            epoch,
            token: row.token,
        };
        note::add(&mut tx, note).await?;
        if author == Author::Api {
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
