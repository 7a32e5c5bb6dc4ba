//! T9 and T10: a run is canceled. A run that has not started ends immediately; for a running one the worker is
//! requested to stop it.

use serde_json::json;
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{Epoch, RunId, RunState};

use crate::audit::{self, AuditAction, AuditActor};
use crate::cluster::leader;
use crate::db::sql::{Sql, sql};
use crate::db::{Params, Tx, params};
use crate::run::rare_transition_records::{self, NewTransitionRecord};
use crate::run::{due_table, lease};
use crate::{Error, Outcome, Run, Store, Writer};

static LOCK: Sql = sql!("run/lock");
static END_WAITING: Sql = sql!("run/end_waiting");
static CANCEL_ASSIGNED: Sql = sql!("run/cancel_assigned");
static REQUEST_CANCEL: Sql = sql!("run/request_cancel");
static COUNT_END: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelResult {
    /// The run had not started. It has ended as CANCELED.
    Canceled,
    /// The run is running. Its worker has been requested to stop it.
    Requested,
}

impl Store {
    /// Cancels a run that has not started, or requests the worker of a running run to stop it.
    pub async fn cancel<'a>(
        &self,
        writer: Writer,
        run: RunId,
        by: impl Into<AuditActor<'a>>,
        reason: Option<&str>,
    ) -> Result<Outcome<CancelResult>, Error> {
        let by = by.into();
        let mut tx = self.db.begin().await?;
        let epoch = match writer {
            Writer::Leader(epoch) => {
                leader::check_and_lock_epoch(&mut tx, epoch).await?;
                Some(epoch)
            }
            Writer::Api => None,
        };
        // Delete the due row before locking the run: an assignment in progress has locked the due row, and we wait
        // for its end.
        let was_due = due_table::remove_from_due_table(&mut tx, run).await?;
        let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let request = CancelRequest { by: by.name, reason, epoch };
        let result = match &row {
            Some(row) if row.state.is_waiting() && !was_due => None,
            Some(row) if row.state == RunState::Running => {
                request_cancel(&mut tx, row, &request).await?.then_some(CancelResult::Requested)
            }
            Some(row) => {
                cancel_unstarted(&mut tx, row, &request).await?.then_some(CancelResult::Canceled)
            }
            None => None,
        };
        let (Some(row), Some(result)) = (row, result) else {
            tx.rollback().await?;
            return Ok(Outcome::Lost(self.explain_loss(run).await?));
        };
        if writer == Writer::Api {
            let after =
                if result == CancelResult::Canceled { RunState::Canceled } else { row.state };
            let action = AuditAction {
                action: RunVerb::Cancel.as_str(),
                object: format!("run {run}"),
                before: Some(json!({ "state": row.state.as_str() })),
                after: Some(json!({
                    "state": after.as_str(),
                    "cancel_requested_by": by.name,
                    "reason": reason,
                })),
            };
            audit::append_audit_entry(&mut tx, by, action).await?;
        }
        tx.commit().await?;
        if let (CancelResult::Canceled, Some(token)) = (result, row.token) {
            self.close_lease_if_empty(token).await?;
        }
        Ok(Outcome::Applied(result))
    }
}

/// Who requests a cancellation, and why.
pub(crate) struct CancelRequest<'a> {
    pub(crate) by: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) epoch: Option<Epoch>,
}

impl CancelRequest<'_> {
    fn columns(&self, run: RunId) -> Params<'static> {
        params! {
            run_id: run.0,
            reason: self.reason.map(str::to_owned),
            requested_by: self.by,
        }
    }

    fn transition_record(&self, row: &Run) -> NewTransitionRecord<'_> {
        NewTransitionRecord {
            run: row.id,
            attempt_no: row.counters.attempt_no,
            verb: RunVerb::Cancel,
            actor: self.by,
            reason: self.reason,
            epoch: self.epoch,
            token: row.token,
        }
    }
}

/// T9: ends a locked run that has not started. If it waited, the caller has deleted its due row. `false`: the run has
/// started or ended, and nothing was written.
pub(crate) async fn cancel_unstarted(
    tx: &mut Tx<'_>,
    row: &Run,
    request: &CancelRequest<'_>,
) -> Result<bool, Error> {
    let updated = match row.state {
        from if from.is_waiting() => {
            let end = params! { state: "CANCELED", from_state: from.as_str() };
            tx.execute(&END_WAITING, [request.columns(row.id), end].concat()).await?
        }
        RunState::Assigned => tx.execute(&CANCEL_ASSIGNED, request.columns(row.id)).await?,
        _ => 0,
    };
    if updated == 0 {
        return Ok(false);
    }
    if let Some(token) = row.token {
        lease::release_hold(tx, row, token).await?;
    }
    tx.execute(&COUNT_END, params! { run_id: row.id.0 }).await?;
    rare_transition_records::insert_transition_record(tx, request.transition_record(row)).await?;
    Ok(true)
}

/// T10: requests the worker of a locked, running run to stop it. `false`: this was requested before.
async fn request_cancel(
    tx: &mut Tx<'_>,
    row: &Run,
    request: &CancelRequest<'_>,
) -> Result<bool, Error> {
    if tx.execute(&REQUEST_CANCEL, request.columns(row.id)).await? == 0 {
        return Ok(false);
    }
    rare_transition_records::insert_transition_record(tx, request.transition_record(row)).await?;
    Ok(true)
}
