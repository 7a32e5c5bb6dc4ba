//! The frequent verbs on PostgreSQL: each is one statement for a whole batch, one round trip and its own transaction.
//! Only a large submit needs a second statement, which allocates its run ids.
//!
//! The other databases change the runs with several statements in one transaction; the contract tests require the
//! same results. The statements find runs by primary key (a join with `unnest`), so that the query planner has no
//! choice to make.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId, WorkerId};

use crate::db::instant::duration_to_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Db, Params, Row, Tx, params};
use crate::run::claim::{CLAIM_RETRY_DELAY, MAX_CLAIM_TRIES};
use crate::run::create::{
    FIND_BY_KEY, in_key_order, new_run_params, slot_or_idempotency_key_params,
};
use crate::run::due_table;
use crate::run::finish::SucceededBatch;
use crate::{
    AssignRequest, AttemptReport, ClaimRequest, ClaimResult, CreatedRun, Error, NewRun,
    RenewResult, RenewedRun, StartedRun, Store, to_uuid,
};

static CLAIM: Sql = sql!("run/claim_batch", ".postgres", ".postgres", ".postgres");
static ASSIGN: Sql = sql!("run/assign_batch", ".postgres", ".postgres", ".postgres");
static START: Sql = sql!("run/start_batch", ".postgres", ".postgres", ".postgres");
static RENEW: Sql = sql!("lease/renew_batch", ".postgres", ".postgres", ".postgres");
static SUCCEED: Sql = sql!("run/succeed_batch", ".postgres", ".postgres", ".postgres");
static INSERT: Sql = sql!("run/insert_batch", ".postgres", ".postgres", ".postgres");
static ALLOCATE_IDS: Sql = sql!("run/allocate_ids", ".postgres", ".postgres", ".postgres");
static INSERT_UNIFORM: Sql = sql!("run/insert_uniform", ".postgres", ".postgres", ".postgres");

impl Store {
    /// T1c on PostgreSQL. The statement returns no row if nothing is due, and a row with a null id if other
    /// transactions hold all candidate rows.
    pub(crate) async fn claim_postgres(
        &self,
        request: &ClaimRequest<'_>,
        after: Params<'_>,
    ) -> Result<ClaimResult, Error> {
        let values = params! {
            lane: request.lane,
            limit: request.max_runs,
            worker_id: to_uuid(request.worker.as_bytes()),
            token: to_uuid(request.token.as_bytes()),
            ttl: duration_to_micros(request.lease_ttl),
        };
        let values = [values, after].concat();
        for tries in 0..MAX_CLAIM_TRIES {
            if tries > 0 {
                tokio::time::sleep(CLAIM_RETRY_DELAY).await;
            }
            let rows = match self.db.write_returning(&CLAIM, values.clone()).await {
                Ok(rows) => rows,
                Err(error) if error.is_duplicate_key() => return Ok(ClaimResult::AlreadyClaimed),
                Err(error) => return Err(error),
            };
            match rows.first().map(|row| row.opt_int("id")).transpose()? {
                None => break,
                Some(None) => continue,
                Some(Some(_)) => {}
            }
            let mut runs = StartedRun::list_from_rows(&rows)?;
            runs.sort_by_key(|run| (run.due_at, run.id));
            return Ok(ClaimResult::Runs(runs));
        }
        self.explain_empty_claim(request.token).await
    }

    /// T1 on PostgreSQL. A negative number of free slots means that the leader's term has ended.
    pub(crate) async fn assign_postgres(
        &self,
        request: &AssignRequest<'_>,
    ) -> Result<Vec<RunId>, Error> {
        let values = params! {
            epoch: request.epoch.0,
            worker_id: to_uuid(request.worker.as_bytes()),
            token: to_uuid(request.token.as_bytes()),
            ids: request.runs.iter().map(|due_run| due_run.run.0).collect::<Vec<_>>(),
            attempts: request.runs.iter().map(|due_run| i64::from(due_run.attempt_no)).collect::<Vec<_>>(),
            assign_ahead: duration_to_micros(request.assign_ahead),
            reassign_after: duration_to_micros(request.reassign_after),
        };
        let rows = self.db.write_returning(&ASSIGN, values).await?;
        let mut assigned = HashSet::new();
        for row in &rows {
            if row.int("free_slots")? < 0 {
                return Err(Error::Fenced(request.epoch));
            }
            assigned.extend(row.opt_int("id")?.map(RunId));
        }
        Ok(request
            .runs
            .iter()
            .map(|due_run| due_run.run)
            .filter(|run| assigned.contains(run))
            .collect())
    }

    /// T2 on PostgreSQL: starts the runs that match their guard. `None`: the lease does not exist, or its worker is
    /// detached.
    pub(crate) async fn start_postgres(
        &self,
        worker: WorkerId,
        token: LeaseToken,
        runs: &[RunId],
        lease_ttl: Duration,
    ) -> Result<Option<HashMap<RunId, StartedRun>>, Error> {
        let values = params! {
            worker_id: to_uuid(worker.as_bytes()),
            token: to_uuid(token.as_bytes()),
            ids: runs.iter().map(|run| run.0).collect::<Vec<_>>(),
            ttl: duration_to_micros(lease_ttl),
        };
        let rows = self.db.write_returning(&START, values).await?;
        let mut started = HashMap::with_capacity(rows.len());
        for row in &rows {
            if row.int("leased")? == 0 {
                return Ok(None);
            }
            if row.opt_int("id")?.is_some() {
                let run = StartedRun::from_row(row)?;
                started.insert(run.id, run);
            }
        }
        Ok(Some(started))
    }

    /// T3 on PostgreSQL, for several leases of a worker. The results are in the order of the tokens.
    pub(crate) async fn renew_postgres(
        &self,
        worker: WorkerId,
        tokens: &[LeaseToken],
        lease_ttl: Duration,
    ) -> Result<Vec<RenewResult>, Error> {
        let values = params! {
            worker_id: to_uuid(worker.as_bytes()),
            tokens: tokens.iter().map(|token| to_uuid(token.as_bytes())).collect::<Vec<_>>(),
            ttl: duration_to_micros(lease_ttl),
        };
        let mut held: HashMap<LeaseToken, (Vec<RenewedRun>, bool)> = HashMap::new();
        for row in self.db.write_returning(&RENEW, values).await? {
            let token = LeaseToken::from_bytes(row.uuid("token")?.into_bytes());
            let detached = row.int("attached")? == 0;
            let (runs, _) = held.entry(token).or_insert_with(|| (Vec::new(), detached));
            if row.opt_int("id")?.is_some() {
                runs.push(RenewedRun::from_row(&row)?);
            }
        }
        let results = tokens.iter().map(|token| match held.get(token) {
            Some((runs, detached)) => RenewResult::Held { runs: runs.clone(), detached: *detached },
            None => RenewResult::Gone,
        });
        Ok(results.collect())
    }

    /// T4 on PostgreSQL: ends runs that succeeded. Deletes the leases in `closing` if no run is leased under them any
    /// more.
    pub(crate) async fn succeed_postgres(
        &self,
        successes: &[&AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<SucceededBatch, Error> {
        let ranges = group_id_ranges(successes);
        let firsts: Vec<&AttemptReport> = ranges.iter().map(|range| range[0]).collect();
        let values = params! {
            count: successes.len() as i64,
            closing_tokens: closing.iter().map(|token| to_uuid(token.as_bytes())).collect::<Vec<_>>(),
            firsts: firsts.iter().map(|first| first.run.0).collect::<Vec<_>>(),
            lasts: ranges.iter().map(|range| range[range.len() - 1].run.0).collect::<Vec<_>>(),
            tokens: firsts.iter().map(|first| to_uuid(first.token.as_bytes())).collect::<Vec<_>>(),
            exit_codes: trim_trailing_nulls(firsts.iter().map(|first| first.attempt_result.exit_code)),
            results: trim_trailing_nulls(firsts.iter().map(|first| first.attempt_result.result.clone())),
            rows_affected: trim_trailing_nulls(firsts.iter().map(|first| first.attempt_result.rows_affected)),
            log_refs: trim_trailing_nulls(firsts.iter().map(|first| first.attempt_result.log_ref.clone())),
        };
        let rows =
            self.db.write_returning(&SUCCEED, [values, output_params(successes)].concat()).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::broken("the statement that ends runs returned no row"))?;
        let closed = row.opt_text("closed_tokens")?.unwrap_or_default();
        let closed = closed.split_whitespace().map(parse_token).collect::<Result<_, _>>()?;
        if row.int("ended_count")? == successes.len() as i64 {
            let ended = successes.iter().map(|report| (report.run, report.token)).collect();
            return Ok(SucceededBatch { ended, closed });
        }
        let ended_runs = row.opt_text("ended_runs")?.unwrap_or_default();
        let mut ended = HashSet::new();
        for pair in ended_runs.split_whitespace() {
            let (run, token) = pair.split_once('/').unwrap_or_default();
            ended.insert((RunId(parse_run_id(run)?), parse_token(token)?));
        }
        Ok(SucceededBatch { ended, closed })
    }

    /// T0 on PostgreSQL, in a transaction of its own.
    pub(crate) async fn create_postgres(
        &self,
        new: &[NewRun<'_>],
    ) -> Result<Vec<CreatedRun>, Error> {
        create_runs(PoolOrTransaction::Pool(&self.db), &new.iter().collect::<Vec<_>>()).await
    }
}

/// Groups reports with consecutive run ids, the same token and equal results; the statement gets one list entry for
/// each group.
fn group_id_ranges<'g, 'e>(successes: &'g [&'e AttemptReport]) -> Vec<&'g [&'e AttemptReport]> {
    let follows = |previous: &&AttemptReport, next: &&AttemptReport| {
        previous.run.0 + 1 == next.run.0
            && previous.token == next.token
            && previous.attempt_result.has_same_stored_values(&next.attempt_result)
    };
    successes.chunk_by(follows).collect()
}

/// Parameters with the captured output of the reports that have any.
fn output_params(successes: &[&AttemptReport]) -> Params<'static> {
    let logs: Vec<_> = successes
        .iter()
        .filter_map(|report| Some((report.token, report.output.as_ref()?)))
        .collect();
    let (bytes, bodies): (Vec<i64>, Vec<String>) =
        logs.iter().map(|(_, log)| log.encode_chunk()).unzip();
    params! {
        output_run_ids: logs.iter().map(|(_, log)| log.run.0).collect::<Vec<_>>(),
        output_attempts: logs.iter().map(|(_, log)| i64::from(log.attempt_no)).collect::<Vec<_>>(),
        output_tokens: logs.iter().map(|(token, _)| to_uuid(token.as_bytes())).collect::<Vec<_>>(),
        lines_counts: logs.iter().map(|(_, log)| log.lines.len() as i64).collect::<Vec<_>>(),
        bytes: bytes,
        bodies: bodies.into_iter().map(Some).collect::<Vec<_>>(),
    }
}

/// Where a statement is executed: as its own transaction on a connection of the pool, or in an open transaction.
pub(crate) enum PoolOrTransaction<'t, 'a> {
    Pool(&'t Db),
    Transaction(&'t mut Tx<'a>),
}

impl PoolOrTransaction<'_, '_> {
    /// Executes a statement and returns its rows.
    async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Error> {
        match self {
            Self::Pool(db) => db.write_returning(sql, params).await,
            Self::Transaction(tx) => tx.query(sql, params).await,
        }
    }

    /// Allocates `count` consecutive ids and returns the first, if there are enough runs for an id range. The ids are
    /// allocated before the insert, because two inserts that draw ids at the same time would get alternating ones.
    /// Not in an open transaction: other callers would have to wait for its end.
    async fn allocate_ids(&mut self, count: i64) -> Result<Option<i64>, Error> {
        match self {
            Self::Pool(db) if count >= due_table::MAX_ID_RANGE => {
                let rows = db.write_returning(&ALLOCATE_IDS, params! { count: count }).await?;
                rows.first().map_or(Ok(None), |row| row.opt_int("first"))
            }
            Self::Pool(_) | Self::Transaction(_) => Ok(None),
        }
    }
}

/// Creates runs with one statement. A run that exists already is found, not created.
pub(crate) async fn create_runs(
    mut target: PoolOrTransaction<'_, '_>,
    new: &[&NewRun<'_>],
) -> Result<Vec<CreatedRun>, Error> {
    if let Some(first) =
        new.first().filter(|first| new.iter().all(|run| run.differs_only_in_args(first)))
    {
        return create_uniform_runs(target, first, new).await;
    }
    let runs: Vec<&NewRun<'_>> = in_key_order(new).into_iter().map(|index| new[index]).collect();
    let optional_texts = |text: &dyn Fn(&NewRun<'_>) -> Option<String>| {
        trim_trailing_nulls(runs.iter().map(|run| text(run)))
    };
    let optional_ints = |int: &dyn Fn(&NewRun<'_>) -> Option<i64>| {
        trim_trailing_nulls(runs.iter().map(|run| int(run)))
    };
    // To keep the parameters small, a value that all runs share is sent once, and a list without values is sent empty.
    let shared_texts = |text: &dyn for<'r> Fn(&'r NewRun<'_>) -> &'r str| -> Vec<Option<String>> {
        let first = runs.first().map(|run| text(run));
        let differ = runs.iter().any(|run| Some(text(run)) != first);
        let listed = if differ { &runs[..] } else { &runs[..runs.len().min(1)] };
        listed.iter().map(|run| Some(text(run).to_owned())).collect()
    };
    let shared_ints = |int: &dyn Fn(&NewRun<'_>) -> i64| -> Vec<i64> {
        let first = runs.first().map(|run| int(run));
        let differ = runs.iter().any(|run| Some(int(run)) != first);
        let listed = if differ { &runs[..] } else { &runs[..runs.len().min(1)] };
        listed.iter().map(|run| int(run)).collect()
    };
    let row = params! {
        count: runs.len() as i64,
        job_ids: shared_ints(&|run| run.job.job.0),
        job_versions: shared_ints(&|run| run.job.version),
        origins: shared_texts(&|run| run.origin.as_str()),
        scope_kinds: shared_texts(&|run| run.scope.kind()),
        scope_ids: shared_texts(&|run| run.scope.id()),
        lanes: shared_texts(&|run| run.lane()),
        exclusives: shared_ints(&|run| i64::from(run.job.spec.concurrency.needs_hold())),
        max_attempts: shared_ints(&|run| i64::from(run.job.spec.max_attempts)),
        scheduled: optional_ints(&|run| run.scheduled_for.map(Timestamp::as_microsecond)),
        slots: optional_texts(&|run| run.slot.map(|slot| slot.to_string())),
        idempotency_keys: optional_texts(&|run| run.idempotency_key.clone()),
        events: optional_ints(&|run| run.event.map(|event| event.0)),
        reruns: optional_ints(&|run| run.rerun_of.map(|run| run.0)),
        args: optional_texts(&|run| run.args.clone()),
        skips: optional_ints(&|run| run.skip_at.map(Timestamp::as_microsecond)),
        expires: optional_ints(&|run| run.expires_at.map(Timestamp::as_microsecond)),
    };
    let inserted = target.rows(&INSERT, row).await?;
    let mut unkeyed = VecDeque::new();
    let mut keyed = HashMap::new();
    for row in &inserted {
        let run = RunId(row.int("id")?);
        match (row.opt_text("slot")?, row.opt_text("idempotency_key")?) {
            (None, None) => unkeyed.push_back(run),
            (slot, key) => {
                let scope = (row.text("scope_kind")?, row.text("scope_id")?);
                keyed.insert((row.int("job_id")?, scope, slot, key), run);
            }
        }
    }
    let mut created = Vec::with_capacity(runs.len());
    for new in new {
        let slot = new.slot.map(|slot| slot.to_string());
        let run = match slot.is_none() && new.idempotency_key.is_none() {
            // Runs without a key cannot conflict, so all of them were inserted, in their order.
            true => unkeyed.pop_front(),
            false => {
                let scope = (new.scope.kind().to_owned(), new.scope.id().to_owned());
                keyed.remove(&(new.job.job.0, scope, slot, new.idempotency_key.clone()))
            }
        };
        created.push(match run {
            Some(run) => CreatedRun { run, existed: false },
            None => {
                let rows = target.rows(&FIND_BY_KEY, slot_or_idempotency_key_params(new)).await?;
                let row = rows
                    .first()
                    .ok_or_else(|| Error::broken("a run was neither created nor found"))?;
                CreatedRun { run: RunId(row.int("id")?), existed: true }
            }
        });
    }
    Ok(created)
}

/// Creates runs that differ only in their arguments from the first one. This is a shorter statement with fewer
/// parameters.
async fn create_uniform_runs(
    mut target: PoolOrTransaction<'_, '_>,
    first: &NewRun<'_>,
    new: &[&NewRun<'_>],
) -> Result<Vec<CreatedRun>, Error> {
    let args = trim_trailing_nulls(new.iter().map(|run| run.args.clone()));
    let count = new.len() as i64;
    let lists = params! {
        count: count,
        first: target.allocate_ids(count).await?,
        range_len: first.max_runs_per_due_row(),
        args_list: args,
    };
    let rows = target.rows(&INSERT_UNIFORM, [new_run_params(first), lists].concat()).await?;
    let row = rows
        .first()
        .ok_or_else(|| Error::broken("the statement that creates runs returned no row"))?;
    let ids: Vec<i64> = match row.opt_text("ids")? {
        None => (row.int("first")?..=row.int("last")?).collect(),
        // Another transaction has drawn an id in between, so the ids are listed one by one.
        Some(list) => list.split(' ').map(parse_run_id).collect::<Result<_, _>>()?,
    };
    match ids.len() == new.len() {
        true => {
            Ok(ids.into_iter().map(|id| CreatedRun { run: RunId(id), existed: false }).collect())
        }
        false => Err(Error::broken("not all runs were created")),
    }
}

/// Parses a run id in a list that a statement returned.
fn parse_run_id(text: &str) -> Result<i64, Error> {
    text.parse().map_err(|_| Error::broken(format!("{text:?} is not a run id")))
}

/// Parses a lease token in a list that a statement returned.
fn parse_token(text: &str) -> Result<LeaseToken, Error> {
    let token: uuid::Uuid =
        text.parse().map_err(|_| Error::broken(format!("{text:?} is not a lease token")))?;
    Ok(LeaseToken::from_bytes(token.into_bytes()))
}

/// Removes the nulls at the end of a list parameter. The database fills shorter lists with nulls, so a list without
/// values is empty.
fn trim_trailing_nulls<T>(values: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let mut values: Vec<_> = values.collect();
    let used = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    values.truncate(used);
    values
}
