//! T15: a detached worker requests the leader's permission to continue its runs.
//!
//! All runs of the worker change in one write: otherwise the deadline of a run that it may keep could pass while the
//! others are being written.

use std::time::Duration;

use serde_json::{Value, json};
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{LeaseToken, RunId};

use crate::db::instant::duration_to_micros;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, params};
use crate::run::rare_transition_records;
use crate::{Error, Store, to_uuid};

static LOCK_FOR_CONFIRM: Sql = sql!("run/lock_for_confirm", ".sqlite", ".mysql", ".mysql");
static BEGIN_CONFIRMING: Sql = sql!("run/begin_confirming", ".sqlite", ".postgres", ".mysql");
static END_CONFIRMING: Sql = sql!("run/end_confirming", ".sqlite", ".postgres", ".mysql");

/// The two writes of a continuation.
#[derive(Clone, Copy)]
enum ConfirmStep {
    /// NONE -> CONFIRMING: the worker requests permission. The duration limits how long the run may stay in CONFIRMING.
    Begin(Duration),
    /// CONFIRMING -> NONE: the leader has allowed the worker to continue.
    End,
}

impl ConfirmStep {
    fn sql(self) -> &'static Sql {
        match self {
            Self::Begin(_) => &BEGIN_CONFIRMING,
            Self::End => &END_CONFIRMING,
        }
    }

    fn timeout_micros(self) -> i64 {
        match self {
            Self::Begin(timeout) => duration_to_micros(timeout),
            Self::End => 0,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Begin(_) => "the worker requests to continue",
            Self::End => "the worker may continue",
        }
    }

    /// Whether this step applies to a row that was found RUNNING under its token.
    fn applies_to(self, found: &Row) -> Result<bool, Error> {
        Ok(match self {
            Self::Begin(_) => {
                found.int("can_begin")? == 1 && found.opt_int("lease_until")?.is_some()
            }
            Self::End => found.int("in_time")? == 1,
        })
    }
}

impl Store {
    /// Marks runs as CONFIRMING before the worker requests permission to continue them. The deadline is `timeout`
    /// from now, but never later than the expiry of the lease. Returns the runs that were not CONFIRMING before and
    /// that the worker still holds.
    pub async fn begin_confirming_after_detach(
        &self,
        runs: &[(RunId, LeaseToken)],
        timeout: Duration,
    ) -> Result<Vec<RunId>, Error> {
        self.update_confirming(runs, ConfirmStep::Begin(timeout)).await
    }

    /// Ends CONFIRMING for runs that the worker may continue, if their deadline has not passed. Returns the runs that
    /// it may continue. Repeated after a lost response, it returns the same runs.
    pub async fn end_confirming_after_detach(
        &self,
        runs: &[(RunId, LeaseToken)],
    ) -> Result<Vec<RunId>, Error> {
        self.update_confirming(runs, ConfirmStep::End).await
    }

    async fn update_confirming(
        &self,
        runs: &[(RunId, LeaseToken)],
        step: ConfirmStep,
    ) -> Result<Vec<RunId>, Error> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        // Every transaction locks runs in the order of their ids, so that two of them cannot deadlock.
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        match self.dialect() {
            Dialect::Postgres => self.update_confirming_postgres(&runs, step).await,
            Dialect::Sqlite | Dialect::MySql => {
                self.update_confirming_with_locks(&runs, step).await
            }
        }
    }

    async fn update_confirming_postgres(
        &self,
        runs: &[(RunId, LeaseToken)],
        step: ConfirmStep,
    ) -> Result<Vec<RunId>, Error> {
        let values = params! {
            ids: runs.iter().map(|(run, _)| run.0).collect::<Vec<_>>(),
            tokens: runs.iter().map(|(_, token)| to_uuid(token.as_bytes())).collect::<Vec<_>>(),
            token_hashes: runs.iter().map(|(_, token)| Some(rare_transition_records::short_lease_token_hash(token))).collect::<Vec<_>>(),
            confirm_timeout: step.timeout_micros(),
            reason: step.reason(),
        };
        let rows = self.db.write_returning(step.sql(), values).await?;
        rows.iter().map(|row| row.int("id").map(RunId)).collect()
    }

    /// Makes the change with a few statements for any number of runs. An update here does not return the rows that it
    /// changed, so the rows are locked and checked before.
    async fn update_confirming_with_locks(
        &self,
        runs: &[(RunId, LeaseToken)],
        step: ConfirmStep,
    ) -> Result<Vec<RunId>, Error> {
        let hex_token =
            |token: LeaseToken| to_uuid(token.as_bytes()).simple().to_string().to_uppercase();
        let keys = runs.iter().map(|(run, token)| json!([run.0, hex_token(*token)])).collect();
        let mut tx = self.db.begin().await?;
        let found =
            tx.query(&LOCK_FOR_CONFIRM, params! { runs: Value::Array(keys).to_string() }).await?;
        let (mut changed, mut updates, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for row in &found {
            if !step.applies_to(row)? {
                continue;
            }
            let run = row.int("id")?;
            let token = LeaseToken::from_bytes(row.uuid("lease_token")?.into_bytes());
            changed.push(RunId(run));
            updates.push(json!([run, hex_token(token), row.opt_int("lease_until")?]));
            records.push(json!([
                run,
                row.int("attempt_no")?,
                rare_transition_records::short_lease_token_hash(&token)
            ]));
        }
        if changed.is_empty() {
            tx.rollback().await?;
            return Ok(changed);
        }
        rare_transition_records::insert_transition_records(
            &mut tx,
            RunVerb::Confirm,
            "worker",
            step.reason(),
            records,
        )
        .await?;
        let updates = params! {
            runs: Value::Array(updates).to_string(),
            confirm_timeout: step.timeout_micros(),
        };
        if tx.execute(step.sql(), updates).await? != changed.len() as u64 {
            return Err(Error::broken("a locked run was changed by another writer"));
        }
        tx.commit().await?;
        Ok(changed)
    }
}
