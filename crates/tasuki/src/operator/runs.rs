//! Runs: looked at, canceled, tried again, run again, waited for, explained.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{JobId, RunId};
use tasuki_store::{
    Writer, Canceled, Execution, LogPage, Lost, Outcome, Run, RunCursor, RunFilter, RunNote,
};

use super::explain::{self, Around};
use super::{Actor, Current, Error, Operator};

/// How often a run that somebody waits for is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A run, with what stands elsewhere about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunNow {
    /// The run.
    pub run: Run,
    /// What its job is called.
    pub job: String,
    /// When its lease was last renewed, while it is carried.
    pub heartbeat_at: Option<Timestamp>,
}

/// Some runs, newest first.
#[derive(Debug, Clone)]
pub struct RunsNow {
    /// Those that the filter lets through.
    pub runs: Vec<RunNow>,
    /// Where to look on; `None`: there is nothing more.
    pub next: Option<RunCursor>,
    /// How many runs were looked at.
    pub looked_at: usize,
    /// The planned instant of the last one looked at.
    pub looked_to: Option<Timestamp>,
}

/// A run with its whole history.
#[derive(Debug, Clone)]
pub struct RunDetail {
    /// The run.
    pub now: RunNow,
    /// Every attempt at it.
    pub executions: Vec<Execution>,
    /// Its rare moves.
    pub notes: Vec<RunNote>,
}

/// A run that was waited for.
#[derive(Debug, Clone)]
pub struct Waited {
    /// As it was at the end of the wait.
    pub now: RunNow,
    /// Whether it has ended.
    pub ended: bool,
}

impl Operator {
    /// One run.
    pub async fn run(&self, run: RunId) -> Result<RunNow, Error> {
        let found = self.store.run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
        let mut around = self.around(vec![found]).await?;
        around.pop().ok_or_else(|| Error::not_found("run", &run))
    }

    /// One run with its whole history.
    pub async fn run_detail(&self, run: RunId) -> Result<RunDetail, Error> {
        let now = self.run(run).await?;
        let executions = self.store.executions(run).await?;
        Ok(RunDetail { now, executions, notes: self.store.notes(run).await? })
    }

    /// Runs, newest first. A name that no job ever had lets nothing through: that is told.
    pub async fn runs(
        &self,
        job: Option<&str>,
        filter: RunFilter,
        from: Option<&RunCursor>,
        most: u32,
    ) -> Result<RunsNow, Error> {
        let job = match job {
            Some(name) => Some(self.job_ever(name).await?),
            None => None,
        };
        let page = self.store.runs(&RunFilter { job, ..filter }, from, most).await?;
        Ok(RunsNow {
            runs: self.around(page.runs).await?,
            next: page.next,
            looked_at: page.looked_at,
            looked_to: page.looked_to,
        })
    }

    /// Adds to runs what stands elsewhere: one question for all names, one for each live lease.
    async fn around(&self, runs: Vec<Run>) -> Result<Vec<RunNow>, Error> {
        let jobs: BTreeSet<JobId> = runs.iter().map(|run| run.job).collect();
        let names = self.store.job_names(&jobs).await?;
        let mut leases = BTreeMap::new();
        for token in runs.iter().filter(|run| run.state.is_carried()).filter_map(|run| run.token) {
            if let Entry::Vacant(unknown) = leases.entry(token) {
                let lease = self.store.lease(token).await?;
                unknown.insert(lease.map(|lease| lease.heartbeat_at));
            }
        }
        let now = |run: Run| RunNow {
            job: names.get(&run.job).cloned().unwrap_or_default(),
            heartbeat_at: run.token.and_then(|token| leases.get(&token).copied().flatten()),
            run,
        };
        Ok(runs.into_iter().map(now).collect())
    }

    /// Lines that an attempt printed, from one on; the last attempt, unless said. `None`: it has printed
    /// nothing, or never began.
    pub async fn log(
        &self,
        run: &Run,
        attempt: Option<u32>,
        from_line: i64,
        most: u32,
    ) -> Result<Option<LogPage>, Error> {
        let attempt = attempt.unwrap_or(run.counters.attempt_no);
        Ok(self.store.read_log(run.id, attempt, from_line, most).await?)
    }

    /// Cancels what has not started, asks what runs to stop. `true`: it has ended.
    pub async fn cancel(
        &self,
        by: &Actor,
        run: RunId,
        reason: Option<&str>,
    ) -> Result<(RunNow, bool), Error> {
        let outcome = self.store.cancel(Writer::Api, run, by.told(), reason).await?;
        let done = self.applied("cancel", outcome).await?;
        let now = self.run(run).await?;
        if let (Canceled::Asked, Some(worker)) = (done, now.run.worker) {
            self.wake.words().canceled(worker, run);
        }
        Ok((now, done == Canceled::Ended))
    }

    /// Gives a run that ended badly one more try.
    pub async fn retry(
        &self,
        by: &Actor,
        run: RunId,
        reason: Option<&str>,
    ) -> Result<RunNow, Error> {
        let outcome = self.store.retry(run, by.told(), reason).await?;
        self.applied("retry", outcome).await?;
        self.run(run).await
    }

    /// Runs an ended run again, as its job is defined now.
    pub async fn rerun(&self, by: &Actor, run: RunId) -> Result<RunNow, Error> {
        let old = self.store.run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
        let job = self.store.job_by_id(old.job).await?;
        let job = job.ok_or_else(|| Error::not_found("job", &old.job))?;
        if job.deleted_at.is_some() {
            let what = format!("job {} has been deleted, so run {run} cannot run again", job.name);
            return Err(Error::lost(what, Current::Run(self.run(run).await?)));
        }
        let outcome = self.store.rerun(by.told(), &job.newest, run).await?;
        let new = self.applied("rerun", outcome).await?;
        self.run(new).await
    }

    /// What became of an action on a run: done, or told with what is true now.
    async fn applied<T>(&self, verb: &str, outcome: Outcome<T>) -> Result<T, Error> {
        let lost = match outcome {
            Outcome::Applied(fact) => {
                self.wake.all();
                return Ok(fact);
            }
            Outcome::Lost(lost) => lost,
            Outcome::NotYet => {
                return Err(Error::lost(format!("it is too early to {verb}"), Current::Nothing));
            }
        };
        let Lost { run, state: Some(state), .. } = lost else {
            return Err(Error::not_found("run", &lost.run));
        };
        let now = self.run(run).await?;
        let what = match now.run.cancel_requested_at {
            Some(_) if verb == "cancel" && state.is_carried() => {
                format!("run {run} has been asked to stop already")
            }
            _ => format!("run {run} is {state}, which is nothing to {verb}"),
        };
        Err(Error::lost(what, Current::Run(now)))
    }

    /// Waits until a run has ended, at most so long.
    pub async fn wait(&self, run: RunId, timeout: Duration) -> Result<Waited, Error> {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let now = self.store.run(run).await?.ok_or_else(|| Error::not_found("run", &run))?;
            let ended = now.state.is_ended();
            if ended || tokio::time::Instant::now() >= deadline {
                return Ok(Waited { now: self.run(run).await?, ended });
            }
            tokio::time::sleep_until(deadline.min(tokio::time::Instant::now() + LOOK)).await;
        }
    }

    /// Why a run is where it is, in words.
    pub async fn explain(&self, run: RunId) -> Result<(RunNow, Vec<String>), Error> {
        let now = self.run(run).await?;
        let leader = self.store.leader().await?;
        let worker = match now.run.worker {
            Some(worker) => self.store.worker(worker).await?,
            None => None,
        };
        let holder = match now.run.exclusive {
            true => self.store.holder_before(&now.run).await?.filter(|holder| *holder != run),
            false => None,
        };
        let job = self.store.job_by_id(now.run.job).await?;
        let spec = self.store.job_version(now.run.job, now.run.job_version).await?;
        let around = Around {
            clock: leader.clock,
            job: &now.job,
            schedule: job.as_ref().and_then(|job| job.schedule().ok().flatten()),
            has_job: job.as_ref().is_some_and(|job| job.deleted_at.is_none()),
            spec: spec.as_ref().map(|version| &version.spec),
            worker: worker.as_ref(),
            active_workers: self
                .store
                .workers()
                .await?
                .iter()
                .filter(|one| one.is_active())
                .count(),
            has_leader: leader.holder.is_some() && leader.lease_until > leader.clock,
            holder,
            settings: &self.store.settings().await?.settings,
            executions: &self.store.executions(run).await?,
            notes: &self.store.notes(run).await?,
        };
        let sentences = explain::explain(&now.run, &around);
        Ok((now, sentences))
    }
}
