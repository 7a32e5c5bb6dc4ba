//! T14: an actor grants an ended run one more attempt.

use serde_json::json;
use tasuki_core::RunId;
use tasuki_core::RunState;
use tasuki_core::run::transition::RunVerb;

use crate::audit::{self, AuditAction, AuditActor};
use crate::db::params;
use crate::db::sql::{Sql, sql};
use crate::run::rare_transition_records::{self, NewTransitionRecord};
use crate::{Error, Outcome, Run, Store};

static LOCK: Sql = sql!("run/lock");
static INSERT_LAST_ATTEMPT: Sql = sql!("attempt/insert_last");
static RETRY: Sql = sql!("run/retry");
static INSERT_DUE: Sql = sql!("due/insert");

impl Store {
    /// Grants one more attempt to a run that failed, timed out or expired. A run that succeeded, was canceled or was
    /// skipped cannot be retried.
    pub async fn retry_manually<'a>(
        &self,
        run: RunId,
        by: impl Into<AuditActor<'a>>,
        reason: Option<&str>,
    ) -> Result<Outcome<()>, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let Some(row) =
            row.filter(|row| row.state.may_become(RunState::RetryWait) && row.state.is_ended())
        else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        tx.execute(&INSERT_LAST_ATTEMPT, params! { run_id: run.0 }).await?;
        let updated = tx.execute(&RETRY, params! { run_id: run.0 }).await?;
        debug_assert_eq!(updated, 1, "the row is locked and its state was checked");
        tx.execute(&INSERT_DUE, params! { run_id: run.0 }).await?;
        let record = NewTransitionRecord {
            run,
            attempt_no: row.counters.attempt_no,
            verb: RunVerb::Retry,
            actor: by.name,
            reason,
            epoch: None,
            token: row.token,
        };
        rare_transition_records::insert_transition_record(&mut tx, record).await?;
        let allowed = row.counters.tries_allowed;
        let action = AuditAction {
            action: RunVerb::Retry.as_str(),
            object: format!("run {run}"),
            before: Some(json!({ "state": row.state.as_str(), "tries_allowed": allowed })),
            after: Some(json!({
                "state": RunState::RetryWait.as_str(),
                "tries_allowed": allowed + 1,
                "reason": reason,
            })),
        };
        audit::append_audit_entry(&mut tx, by, action).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}
