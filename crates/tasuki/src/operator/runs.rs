//! Runs: reading, canceling, retrying, rerunning, waiting for and explaining them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{JobId, RunId};
use tasuki_store::{
    CancelResult, Execution, LogPage, LostWrite, Outcome, Run, RunFilter, RunListPosition,
    TransitionRecord, Writer,
};

use super::explain_run_state::{self, RunExplanationData};
use super::{Actor, CurrentState, Error, Operator};

/// Polling interval while waiting for a run.
const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A run with details from other tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOverview {
    /// The run's row.
    pub run: Run,
    /// The name of its job.
    pub job: String,
    /// When its lease was last renewed; `None` if no worker holds a lease of it.
    pub heartbeat_at: Option<Timestamp>,
}

/// A page of runs, newest first.
#[derive(Debug, Clone)]
pub struct RunOverviewPage {
    /// The runs that match the filter.
    pub runs: Vec<RunOverview>,
    /// The position of the next page; `None`: this is the last page.
    pub next: Option<RunListPosition>,
    /// The number of runs that were compared with the filter.
    pub scanned: usize,
    /// The planned instant of the last run that was compared with the filter.
    pub scanned_until: Option<Timestamp>,
}

/// A run with its complete history.
#[derive(Debug, Clone)]
pub struct RunDetail {
    /// The run.
    pub info: RunOverview,
    /// All attempts of the run.
    pub executions: Vec<Execution>,
    /// The records of its rare transitions.
    pub transitions: Vec<TransitionRecord>,
}

/// The result of waiting for a run.
#[derive(Debug, Clone)]
pub struct WaitResult {
    /// The run at the end of the wait.
    pub info: RunOverview,
    /// Whether the run has ended; otherwise the timeout passed.
    pub ended: bool,
}

impl Operator {
    /// One run. An error if it does not exist.
    pub async fn get_run(&self, run: RunId) -> Result<RunOverview, Error> {
        let found = self.store.find_run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
        let mut infos = self.with_details(vec![found]).await?;
        infos.pop().ok_or_else(|| Error::not_found("run", &run))
    }

    /// One run with its complete history.
    pub async fn get_run_detail(&self, run: RunId) -> Result<RunDetail, Error> {
        let info = self.get_run(run).await?;
        let executions = self.store.list_executions(run).await?;
        Ok(RunDetail {
            info,
            executions,
            transitions: self.store.list_rare_transitions(run).await?,
        })
    }

    /// A page of runs, newest first. It is an error if no job ever had the name `job`.
    pub async fn list_runs(
        &self,
        job: Option<&str>,
        filter: RunFilter,
        position: Option<&RunListPosition>,
        limit: u32,
    ) -> Result<RunOverviewPage, Error> {
        let job = match job {
            Some(name) => Some(self.get_job_id(name).await?),
            None => None,
        };
        let page = self.store.list_runs(&RunFilter { job, ..filter }, position, limit).await?;
        Ok(RunOverviewPage {
            runs: self.with_details(page.runs).await?,
            next: page.next,
            scanned: page.scanned,
            scanned_until: page.scanned_until,
        })
    }

    /// Adds job names and heartbeats to runs, with one query for all names and one for each lease.
    async fn with_details(&self, runs: Vec<Run>) -> Result<Vec<RunOverview>, Error> {
        let jobs: BTreeSet<JobId> = runs.iter().map(|run| run.job).collect();
        let names = self.store.list_job_names(&jobs).await?;
        let mut leases = BTreeMap::new();
        for token in runs.iter().filter(|run| run.state.is_leased()).filter_map(|run| run.token) {
            if let Entry::Vacant(unknown) = leases.entry(token) {
                let lease = self.store.find_lease(token).await?;
                unknown.insert(lease.map(|lease| lease.heartbeat_at));
            }
        }
        let info = |run: Run| RunOverview {
            job: names.get(&run.job).cloned().unwrap_or_default(),
            heartbeat_at: run.token.and_then(|token| leases.get(&token).copied().flatten()),
            run,
        };
        Ok(runs.into_iter().map(info).collect())
    }

    /// Log lines of an attempt, starting at `from_line`. The default attempt is the last one. `None`: the attempt has
    /// no log, because it printed nothing or never started.
    pub async fn read_log(
        &self,
        run: &Run,
        attempt: Option<u32>,
        from_line: i64,
        limit: u32,
    ) -> Result<Option<LogPage>, Error> {
        let attempt = attempt.unwrap_or(run.counters.attempt_no);
        Ok(self.store.read_log(run.id, attempt, from_line, limit).await?)
    }

    /// Cancels a run. A run that has not started ends immediately (`true`); a RUNNING run gets a cancel request
    /// (`false`).
    pub async fn cancel(
        &self,
        by: &Actor,
        run: RunId,
        reason: Option<&str>,
    ) -> Result<(RunOverview, bool), Error> {
        let outcome = self.store.cancel(Writer::Api, run, by.for_store(), reason).await?;
        let done = self.complete_action("cancel", outcome).await?;
        let info = self.get_run(run).await?;
        if let (CancelResult::Requested, Some(worker)) = (done, info.run.worker) {
            self.notifier.outbox_of_worker_hints().enqueue_cancel(worker, run);
        }
        Ok((info, done == CancelResult::Canceled))
    }

    /// Gives an ended run that did not succeed one more try.
    pub async fn retry(
        &self,
        by: &Actor,
        run: RunId,
        reason: Option<&str>,
    ) -> Result<RunOverview, Error> {
        let outcome = self.store.retry_manually(run, by.for_store(), reason).await?;
        self.complete_action("retry", outcome).await?;
        self.get_run(run).await
    }

    /// Creates a new run from an ended one, with the current version of its job.
    pub async fn rerun(&self, by: &Actor, run: RunId) -> Result<RunOverview, Error> {
        let old = self.store.find_run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
        let job = self.store.find_job_by_id(old.job).await?;
        let job = job.ok_or_else(|| Error::not_found("job", &old.job))?;
        if job.deleted_at.is_some() {
            let message = format!("job {} was deleted, so run {run} cannot be rerun", job.name);
            return Err(Error::lost(message, CurrentState::Run(self.get_run(run).await?)));
        }
        let outcome = self.store.rerun(by.for_store(), &job.newest, run).await?;
        let new = self.complete_action("rerun", outcome).await?;
        self.get_run(new).await
    }

    /// Converts the outcome of an action on a run: its result, or an error with the run's current state.
    async fn complete_action<T>(&self, verb: &str, outcome: Outcome<T>) -> Result<T, Error> {
        let lost = match outcome {
            Outcome::Applied(fact) => {
                self.notifier.wake_all();
                return Ok(fact);
            }
            Outcome::Lost(lost) => lost,
            Outcome::NotYet => {
                return Err(Error::lost(
                    format!("it is too early to {verb} the run"),
                    CurrentState::Nothing,
                ));
            }
        };
        let LostWrite { run, state: Some(state), .. } = lost else {
            return Err(Error::not_found("run", &lost.run));
        };
        let info = self.get_run(run).await?;
        let message = match info.run.cancel_requested_at {
            Some(_) if verb == "cancel" && state.is_leased() => {
                format!("a cancel of run {run} was already requested")
            }
            _ => {
                // The participle of the verb; that of "rerun" is "rerun".
                let participle = match verb {
                    "cancel" => "canceled",
                    "retry" => "retried",
                    other => other,
                };
                match verb == "cancel" && state.is_ended() {
                    true => format!(
                        "run {run} has already ended ({state}), so it cannot be {participle}"
                    ),
                    false => format!("run {run} is {state}, so it cannot be {participle}"),
                }
            }
        };
        Err(Error::lost(message, CurrentState::Run(info)))
    }

    /// Waits until a run has ended, at most for `timeout`.
    pub async fn wait_until_ended(
        &self,
        run: RunId,
        timeout: Duration,
    ) -> Result<WaitResult, Error> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let found =
                self.store.find_run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
            let ended = found.state.is_ended();
            if ended || tokio::time::Instant::now() >= deadline {
                return Ok(WaitResult { info: self.get_run(run).await?, ended });
            }
            tokio::time::sleep_until(
                deadline.min(tokio::time::Instant::now() + WAIT_POLL_INTERVAL),
            )
            .await;
        }
    }

    /// Explains the state of a run in sentences. See [`explain_run_state`].
    pub async fn explain_run(&self, run: RunId) -> Result<(RunOverview, Vec<String>), Error> {
        let info = self.get_run(run).await?;
        let leader = self.store.get_leader_record().await?;
        let worker = match info.run.worker {
            Some(worker) => self.store.find_worker(worker).await?,
            None => None,
        };
        let holder = match info.run.exclusive {
            true => self.store.find_hold_owner(&info.run).await?.filter(|holder| *holder != run),
            false => None,
        };
        let job = self.store.find_job_by_id(info.run.job).await?;
        let spec = self.store.find_job_version(info.run.job, info.run.job_version).await?;
        let context = RunExplanationData {
            clock: leader.clock,
            job: &info.job,
            schedule: job.as_ref().and_then(|job| job.parse_stored_schedule().ok().flatten()),
            job_exists: job.as_ref().is_some_and(|job| job.deleted_at.is_none()),
            spec: spec.as_ref().map(|version| &version.spec),
            worker: worker.as_ref(),
            active_workers: self
                .store
                .list_workers()
                .await?
                .iter()
                .filter(|worker| worker.accepts_work())
                .count(),
            has_leader: leader.holder.is_some() && leader.lease_until > leader.clock,
            hold_owner: holder,
            settings: &self.store.load_settings().await?.settings,
            executions: &self.store.list_executions(run).await?,
            transitions: &self.store.list_rare_transitions(run).await?,
        };
        let sentences = explain_run_state::explain_run_state(&info.run, &context);
        Ok((info, sentences))
    }
}
