//! The hot path on PostgreSQL: whole batches in one round trip, each statement a transaction.
//!
//! The other databases make the same moves row by row in one transaction; what both must do stands
//! in the contract tests. Transitions go by primary key (an `unnest` join), so that the planner has
//! nothing to choose.

use std::collections::{HashMap, HashSet, VecDeque};

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId};

use crate::create::{BY_KEY, key};
use crate::db::params;
use crate::finish::LONGEST_RESULT;
use crate::run::micros;
use crate::sql::{Sql, sql};
use crate::{ClaimBatch, Claimed, Created, Error, Finish, NewRun, Run, Store, uuid};

static CLAIM: Sql = sql!("run/claim_batch", ".postgres", ".postgres", ".postgres");
static SUCCEED: Sql = sql!("run/succeed_batch", ".postgres", ".postgres", ".postgres");
static INSERT: Sql = sql!("run/insert_batch", ".postgres", ".postgres", ".postgres");

impl Store {
    pub(crate) async fn claim_in_one_trip(&self, batch: &ClaimBatch<'_>) -> Result<Claimed, Error> {
        let asked = params! {
            lane: batch.lane,
            most: batch.most,
            worker_id: uuid(batch.worker.as_bytes()),
            token: uuid(batch.token.as_bytes()),
            ttl: micros(batch.lease_ttl),
        };
        let rows = match self.db.write(&CLAIM, asked).await {
            Ok(rows) => rows,
            Err(error) if error.is_conflict() => return Ok(Claimed::Before),
            Err(error) => return Err(error),
        };
        let mut runs = rows.iter().map(Run::from_row).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by_key(|run| (run.due_at(), run.id));
        Ok(Claimed::Runs(runs))
    }

    /// Ends the successes among these; returns those it ended.
    pub(crate) async fn succeed_in_one_trip(
        &self,
        token: LeaseToken,
        ends: &[(RunId, Finish)],
    ) -> Result<HashSet<RunId>, Error> {
        let fits = |finish: &Finish| {
            finish.failure.is_none()
                && finish.result.as_ref().is_none_or(|r| r.len() <= LONGEST_RESULT)
        };
        let good: Vec<&(RunId, Finish)> = ends.iter().filter(|(_, finish)| fits(finish)).collect();
        if good.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<i64> = good.iter().map(|(run, _)| run.0).collect();
        let exit_codes: Vec<Option<i64>> =
            good.iter().map(|(_, finish)| finish.exit_code).collect();
        let results: Vec<Option<String>> =
            good.iter().map(|(_, finish)| finish.result.clone()).collect();
        let rows_affected: Vec<Option<i64>> =
            good.iter().map(|(_, finish)| finish.rows_affected).collect();
        let log_refs: Vec<Option<String>> =
            good.iter().map(|(_, finish)| finish.log_ref.clone()).collect();
        let told = params! {
            token: uuid(token.as_bytes()),
            ids: ids,
            exit_codes: exit_codes,
            results: results,
            rows_affected: rows_affected,
            log_refs: log_refs,
        };
        let rows = self.db.write(&SUCCEED, told).await?;
        rows.iter().map(|row| row.int("id").map(RunId)).collect()
    }

    pub(crate) async fn create_in_one_trip(
        &self,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<Created>, Error> {
        let texts = |text: &dyn Fn(&NewRun<'_>) -> Option<String>| -> Vec<Option<String>> {
            runs.iter().map(text).collect()
        };
        let ints = |int: &dyn Fn(&NewRun<'_>) -> Option<i64>| -> Vec<Option<i64>> {
            runs.iter().map(int).collect()
        };
        let row = params! {
            job_ids: ints(&|run| Some(run.job.job.0)),
            job_versions: ints(&|run| Some(run.job.version)),
            origins: texts(&|run| Some(run.origin.to_string())),
            scope_kinds: texts(&|run| Some(run.scope.kind().to_owned())),
            scope_ids: texts(&|run| Some(run.scope.id().to_owned())),
            lanes: texts(&|run| Some(run.job.spec.lane.clone())),
            exclusives: ints(&|run| Some(i64::from(run.job.spec.concurrency.needs_hold()))),
            max_attempts: ints(&|run| Some(i64::from(run.job.spec.max_attempts))),
            scheduled: ints(&|run| run.scheduled_for.map(Timestamp::as_microsecond)),
            slots: texts(&|run| run.slot.map(|slot| slot.to_string())),
            keys: texts(&|run| run.idempotency_key.clone()),
            events: ints(&|run| run.event.map(|event| event.0)),
            reruns: ints(&|run| run.rerun_of.map(|run| run.0)),
            args: texts(&|run| run.args.clone()),
            skips: ints(&|run| run.skip_at.map(Timestamp::as_microsecond)),
            expires: ints(&|run| run.expires_at.map(Timestamp::as_microsecond)),
        };
        let made = self.db.write(&INSERT, row).await?;
        let mut plain = VecDeque::new();
        let mut keyed = HashMap::new();
        for row in &made {
            let run = RunId(row.int("id")?);
            match (row.opt_text("slot")?, row.opt_text("idempotency_key")?) {
                (None, None) => plain.push_back(run),
                (slot, key) => {
                    let scope = (row.text("scope_kind")?, row.text("scope_id")?);
                    keyed.insert((row.int("job_id")?, scope, slot, key), run);
                }
            }
        }
        let mut created = Vec::with_capacity(runs.len());
        for new in runs {
            let slot = new.slot.map(|slot| slot.to_string());
            let made = match slot.is_none() && new.idempotency_key.is_none() {
                // Rows without a key cannot conflict, so all of them were made, in their order.
                true => plain.pop_front(),
                false => {
                    let scope = (new.scope.kind().to_owned(), new.scope.id().to_owned());
                    keyed.remove(&(new.job.job.0, scope, slot, new.idempotency_key.clone()))
                }
            };
            created.push(match made {
                Some(run) => Created { run, existed: false },
                None => {
                    let rows = self.db.rows(&BY_KEY, key(new)).await?;
                    let row = rows
                        .first()
                        .ok_or_else(|| Error::broken("a run was neither made nor found"))?;
                    Created { run: RunId(row.int("id")?), existed: true }
                }
            });
        }
        Ok(created)
    }
}
