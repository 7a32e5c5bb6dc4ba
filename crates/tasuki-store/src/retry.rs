//! T14: somebody gives an ended run one more try.

use tasuki_core::RunId;
use tasuki_core::RunState;
use tasuki_core::run::transition::Verb;

use crate::db::params;
use crate::note::{self, Note};
use crate::sql::{Sql, sql};
use crate::{Error, Outcome, Run, Store};

static LOCK: Sql = sql!("run/lock");
static APPEND_LAST: Sql = sql!("attempt/append_last");
static RETRY: Sql = sql!("run/retry");
static DUE_PUT: Sql = sql!("due/put");

impl Store {
    /// Gives a run that ended badly one more try. A run that succeeded, was canceled or skipped never
    /// moves again.
    pub async fn retry(
        &self,
        run: RunId,
        by: &str,
        reason: Option<&str>,
    ) -> Result<Outcome<()>, Error> {
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
            actor: by,
            reason,
            epoch: None,
            token: row.token,
        };
        note::add(&mut tx, note).await?;
        tx.commit().await?;
        Ok(Outcome::Applied(()))
    }
}
