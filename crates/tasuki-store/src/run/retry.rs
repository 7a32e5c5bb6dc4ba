//! T14: somebody gives an ended run one more try.

use serde_json::json;
use tasuki_core::RunId;
use tasuki_core::RunState;
use tasuki_core::run::transition::Verb;

use crate::audit::{self, Act, Actor};
use crate::db::params;
use crate::db::sql::{Sql, sql};
use crate::run::note::{self, Note};
use crate::{Error, Outcome, Run, Store};

static LOCK: Sql = sql!("run/lock");
static APPEND_LAST: Sql = sql!("attempt/append_last");
static RETRY: Sql = sql!("run/retry");
static DUE_PUT: Sql = sql!("due/put");

impl Store {
    /// Gives a run that ended badly one more try. A run that succeeded, was canceled or skipped never
    /// moves again.
    pub async fn retry<'a>(
        &self,
        run: RunId,
        by: impl Into<Actor<'a>>,
        reason: Option<&str>,
    ) -> Result<Outcome<()>, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let Some(row) =
            row.filter(|row| row.state.may_become(RunState::RetryWait) && row.state.is_ended())
        else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain(run).await?));
        };
        tx.execute(&APPEND_LAST, params! { run_id: run.0 }).await?;
        let hit = tx.execute(&RETRY, params! { run_id: run.0 }).await?;
        debug_assert_eq!(hit, 1, "the row is locked and was looked at");
        tx.execute(&DUE_PUT, params! { run_id: run.0 }).await?;
        let note = Note {
            run,
            attempt_no: row.counters.attempt_no,
            verb: Verb::Retry,
            actor: by.name,
            reason,
            epoch: None,
            token: row.token,
        };
        note::add(&mut tx, note).await?;
        let allowed = row.counters.tries_allowed;
        let act = Act {
            action: Verb::Retry.as_str(),
            object: format!("run {run}"),
            before: Some(json!({ "state": row.state.as_str(), "tries_allowed": allowed })),
            after: Some(json!({
                "state": RunState::RetryWait.as_str(),
                "tries_allowed": allowed + 1,
                "reason": reason,
            })),
        };
        audit::append(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}
