//! The frequent verbs on SQLite: a claim, or the successes under one token, as one script that the writer thread
//! executes. Runs that need further checks take the general form in `mysql_and_sqlite`.

use tasuki_core::{EventId, JobId, LeaseToken, RunId, RunScope};

use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Sql, sqlite_script};
use crate::db::sqlite_group_commit::{Script, ScriptCall};
use crate::db::{Params, params};
use crate::run::finish::SucceededBatch;
use crate::run::mysql_and_sqlite::{attempt_results_json, group_by_token, holder_params};
use crate::{AttemptReport, ClaimRequest, Error, StartedRun, Store, to_uuid};

/// Claims runs of a lane: creates the lease first, and the later statements read the run ids from it. It aborts if one of
/// the runs is no longer as its due row states.
static CLAIM: Script = Script {
    sql: sqlite_script!(
        "lease/insert_claim_of_lane.sqlite",
        "lease/assert_just_inserted.sqlite",
        "due/delete_leased.sqlite",
        "due/split_leased.sqlite",
        "due/assert_all_taken.sqlite",
        "run/claim_leased_range.sqlite",
        "lease/assert_range_moved.sqlite",
        "run/claim_leased_list.sqlite",
        "lease/assert_list_moved.sqlite",
        "run/list_started_of_lease_range.sqlite",
        "run/list_started_of_lease_list.sqlite",
    ),
    row_count: 6,
};
/// The script that ends successful runs. Its variants select the runs with different statements.
macro_rules! succeed_script {
    ($succeed:literal) => {
        Script {
            sql: sqlite_script!(
                $succeed,
                "run/assert_all_ended.sqlite",
                "stat/add_from_lease.sqlite",
                "stat/add_single_job.sqlite",
                "stat/add_per_job.sqlite",
                "lease/delete_if_ended.sqlite",
                "lease/was_deleted.sqlite",
            ),
            row_count: 2,
        }
    };
}
static SUCCEED_UNIFORM: Script = succeed_script!("run/succeed_uniform.sqlite");
static SUCCEED_MANY: Script = succeed_script!("run/succeed_many.sqlite");

/// Minimum number of successes under one token for a script. The successes under all other tokens share one transaction
/// of the general form; with a script for each token they would need more commits.
const MIN_RUNS_FOR_SCRIPT: usize = 8;

impl Store {
    /// T1c on SQLite as one script, for runs that need no hold and need not run alone. Returns nothing if there is
    /// such a run, if nothing is due, or if the worker does not accept work.
    pub(crate) async fn claim_sqlite(
        &self,
        request: &ClaimRequest<'_>,
        after: &Params<'static>,
    ) -> Result<Vec<StartedRun>, Error> {
        let values = params! { lane: request.lane, limit: request.max_runs, ttl: duration_to_micros(request.lease_ttl) };
        let params = [values, holder_params(request), after.clone()].concat();
        let call = ScriptCall { script: &CLAIM, max_runs: request.max_runs as usize, params };
        let results = self.db.execute_with_group_commit(vec![call]).await?.pop();
        let rows =
            results.unwrap_or_else(|| Err(Error::broken("a claim script returned no result")))?;
        let mut started = Vec::new();
        // One of the last two statements returns the runs of an id range, the other the runs of a list. One of them
        // is empty.
        for row in rows.iter().rev().take(2) {
            started.extend(parse_started_runs(&row.text("rows_json")?)?);
        }
        started.sort_by_key(|run| (run.due_at, run.id));
        Ok(started)
    }

    /// Ends successful runs on SQLite with one script for each token that has many, without checks before the write.
    /// Returns the reports that remain for the general form: tokens with few reports, runs that are not RUNNING under
    /// their token, and runs with a hold to release.
    pub(crate) async fn succeed_sqlite<'e>(
        &self,
        successes: &[&'e AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<(SucceededBatch, Vec<&'e AttemptReport>), Error> {
        let (many, few): (Vec<_>, Vec<_>) = group_by_token(successes)
            .into_iter()
            .partition(|(_, reports)| reports.len() >= MIN_RUNS_FOR_SCRIPT);
        let mut remaining: Vec<&AttemptReport> =
            few.into_iter().flat_map(|(_, reports)| reports).collect();
        let mut result = SucceededBatch::default();
        if many.is_empty() {
            return Ok((result, remaining));
        }
        let call = |(token, reports): &(LeaseToken, Vec<&AttemptReport>)| {
            let ids: Vec<i64> = reports.iter().map(|report| report.run.0).collect();
            let count = reports.len() as i64;
            // The check for consecutive ids also excludes duplicates: with a duplicate, the range between the first
            // and the last id would contain a run that was not reported.
            let is_consecutive = ids.windows(2).all(|pair| pair[1] == pair[0] + 1);
            let range = ids.first().zip(ids.last()).filter(|_| is_consecutive);
            let (first, last) = range.map(|(first, last)| (*first, *last)).unzip();
            let values = params! {
                token: to_uuid(token.as_bytes()),
                count: count,
                first: first,
                last: last,
                ids: ids,
                delete_lease: i64::from(closing.contains(token)),
            };
            let uniform = reports.iter().all(|report| {
                report.attempt_result.has_same_stored_values(&reports[0].attempt_result)
            });
            let (script, result_params): (&'static Script, _) = match uniform {
                true => (&SUCCEED_UNIFORM, reports[0].attempt_result.columns()),
                false => (&SUCCEED_MANY, params! { reports: attempt_results_json(reports) }),
            };
            ScriptCall { script, max_runs: reports.len(), params: [values, result_params].concat() }
        };
        let results = self.db.execute_with_group_commit(many.iter().map(call).collect()).await?;
        result.ended.reserve(successes.len());
        for ((token, reports), rows) in many.iter().zip(results) {
            match rows {
                Ok(rows) => {
                    result.ended.extend(reports.iter().map(|report| (report.run, *token)));
                    let row = rows
                        .last()
                        .ok_or_else(|| Error::broken("a script that ends runs returned no row"))?;
                    if row.int("was_deleted")? == 1 {
                        result.closed.insert(*token);
                    }
                }
                Err(error) if error.is_script_guard_failure() => remaining.extend(reports),
                Err(error) => return Err(error),
            }
        }
        remaining.sort_by_key(|report| report.run);
        Ok((result, remaining))
    }
}

/// One run in the JSON list that `run/list_started_of_lease_range` returns.
type StartedRunTuple<'l> = (
    i64,
    i64,
    i64,
    &'l str,
    Option<(String, String)>,
    i64,
    Option<i64>,
    u32,
    u32,
    Option<i64>,
    Option<String>,
);

/// Parses the JSON list of claimed runs. SQLite returns one list, because each result row costs more than its values.
fn parse_started_runs(json: &str) -> Result<Vec<StartedRun>, Error> {
    let list: Vec<StartedRunTuple<'_>> = serde_json::from_str(json)
        .map_err(|error| Error::broken(format!("the list of claimed runs is invalid: {error}")))?;
    let started = |row: StartedRunTuple<'_>| {
        let (id, job, job_version, origin, scope, ..) = row;
        let (.., scheduled_for, next_retry_at, attempt_no, tries, event, args) = row;
        Ok(StartedRun {
            id: RunId(id),
            job: JobId(job),
            job_version,
            origin: origin.parse()?,
            scope: scope
                .map_or(Ok(RunScope::default()), |(kind, id)| RunScope::from_stored(&kind, &id))?,
            scheduled_for: timestamp_from_micros(scheduled_for)?,
            due_at: timestamp_from_micros(next_retry_at.unwrap_or(scheduled_for))?,
            attempt_no,
            tries,
            event: event.map(EventId),
            args,
        })
    };
    list.into_iter().map(started).collect()
}
