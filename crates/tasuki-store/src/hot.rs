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
use crate::{ClaimBatch, Claimed, Created, Error, Finish, NewRun, Store, Taken, uuid};

static CLAIM: Sql = sql!("run/claim_batch", ".postgres", ".postgres", ".postgres");
static SUCCEED: Sql = sql!("run/succeed_batch", ".postgres", ".postgres", ".postgres");
static INSERT: Sql = sql!("run/insert_batch", ".postgres", ".postgres", ".postgres");
/// Looking for conflicts costs a tenth; runs without a key have none.
static INSERT_PLAIN: Sql = sql!("run/insert_batch", ".postgres", ".postgres", ".postgres")
    .without("on conflict do nothing");

/// What ended in one trip.
#[derive(Default)]
pub(crate) struct Together {
    pub(crate) ended: HashSet<RunId>,
    /// Whether the lease is closed already.
    pub(crate) closed: bool,
}

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
        let mut runs = rows.iter().map(Taken::from_row).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by_key(|taken| (taken.due_at, taken.id));
        Ok(Claimed::Runs(runs))
    }

    /// Ends the successes among these, and their lease with them if it had nothing else.
    pub(crate) async fn succeed_in_one_trip(
        &self,
        token: LeaseToken,
        ends: &[(RunId, Finish)],
    ) -> Result<Together, Error> {
        let fits = |finish: &Finish| {
            finish.failure.is_none()
                && finish.result.as_ref().is_none_or(|r| r.len() <= LONGEST_RESULT)
        };
        let good: Vec<&(RunId, Finish)> = ends.iter().filter(|(_, finish)| fits(finish)).collect();
        if good.is_empty() {
            return Ok(Together::default());
        }
        let ids: Vec<i64> = good.iter().map(|(run, _)| run.0).collect();
        let told = params! {
            token: uuid(token.as_bytes()),
            ids: ids,
            exit_codes: sparse(good.iter().map(|(_, finish)| finish.exit_code)),
            results: sparse(good.iter().map(|(_, finish)| finish.result.clone())),
            rows_affected: sparse(good.iter().map(|(_, finish)| finish.rows_affected)),
            log_refs: sparse(good.iter().map(|(_, finish)| finish.log_ref.clone())),
        };
        let rows = self.db.write(&SUCCEED, told).await?;
        let closed = rows.first().map(|row| row.int("closed")).transpose()? == Some(1);
        let ended = rows.iter().map(|row| row.int("id").map(RunId)).collect::<Result<_, _>>()?;
        Ok(Together { ended, closed })
    }

    pub(crate) async fn create_in_one_trip(
        &self,
        runs: &[NewRun<'_>],
    ) -> Result<Vec<Created>, Error> {
        let texts = |text: &dyn Fn(&NewRun<'_>) -> Option<String>| sparse(runs.iter().map(text));
        let ints = |int: &dyn Fn(&NewRun<'_>) -> Option<i64>| sparse(runs.iter().map(int));
        // What all runs of a batch share travels once, what none has not at all.
        let words = |word: &dyn for<'r> Fn(&'r NewRun<'_>) -> &'r str| -> Vec<Option<String>> {
            let first = runs.first().map(word);
            let differ = runs.iter().any(|run| Some(word(run)) != first);
            let told = if differ { runs } else { &runs[..runs.len().min(1)] };
            told.iter().map(|run| Some(word(run).to_owned())).collect()
        };
        let numbers = |number: &dyn Fn(&NewRun<'_>) -> i64| -> Vec<i64> {
            let first = runs.first().map(number);
            let differ = runs.iter().any(|run| Some(number(run)) != first);
            let told = if differ { runs } else { &runs[..runs.len().min(1)] };
            told.iter().map(number).collect()
        };
        let row = params! {
            count: runs.len() as i64,
            job_ids: numbers(&|run| run.job.job.0),
            job_versions: numbers(&|run| run.job.version),
            origins: words(&|run| run.origin.as_str()),
            scope_kinds: words(&|run| run.scope.kind()),
            scope_ids: words(&|run| run.scope.id()),
            lanes: words(&|run| &run.job.spec.lane),
            exclusives: numbers(&|run| i64::from(run.job.spec.concurrency.needs_hold())),
            max_attempts: numbers(&|run| i64::from(run.job.spec.max_attempts)),
            scheduled: ints(&|run| run.scheduled_for.map(Timestamp::as_microsecond)),
            slots: texts(&|run| run.slot.map(|slot| slot.to_string())),
            keys: texts(&|run| run.idempotency_key.clone()),
            events: ints(&|run| run.event.map(|event| event.0)),
            reruns: ints(&|run| run.rerun_of.map(|run| run.0)),
            args: texts(&|run| run.args.clone()),
            skips: ints(&|run| run.skip_at.map(Timestamp::as_microsecond)),
            expires: ints(&|run| run.expires_at.map(Timestamp::as_microsecond)),
        };
        let keyed = runs.iter().any(|run| run.slot.is_some() || run.idempotency_key.is_some());
        let insert = if keyed { &INSERT } else { &INSERT_PLAIN };
        let made = self.db.write(insert, row).await?;
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

/// A list of which nothing is there is no list: the database fills it up with nulls.
fn sparse<T>(values: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let mut values: Vec<_> = values.collect();
    let used = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    values.truncate(used);
    values
}
