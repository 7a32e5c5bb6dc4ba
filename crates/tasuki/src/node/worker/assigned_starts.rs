//! T2: starts assigned runs when they are due and launches them; releases runs that find no free slot (T7w).

use std::sync::Arc;

use jiff::Timestamp;
use tasuki_core::{AttemptErrorCode, LeaseToken, RunId, RunState, Settings};
use tasuki_store::{AttemptResult, Error, Outcome, StartedRun};

use super::super::store_timeout::with_timeout;
use super::{Worker, database_time, drop_lease_if_empty, is_suspended, local_time, used_slots};
use crate::node::executor::attempt_input_and_result::{self, Attempt, ExecutionEnd};
use crate::node::job_version_cache::ParsedJobVersion;
use crate::node::worker::configured_slots_and_lanes::SlotPool;
use crate::node::worker::lease_table::{LocalRunState, PendingReport, RunningAttempt};
use crate::spawner::AttemptKey;

/// Delay in microseconds before a start that came too early is tried again.
const EARLY_START_RETRY_MICROS: u64 = 500;
/// How long, in microseconds, a due run waits for a free slot before it is released.
const MAX_SLOT_WAIT_MICROS: u64 = 1_000_000;

impl Worker {
    /// Starts the runs that are due and releases the runs that cannot be started. Returns when to check again, by the
    /// local clock.
    pub(crate) async fn start_due(&self) -> Result<Option<u64>, Error> {
        let due = self.mark_due_as_starting();
        let settings = self.settings();
        let mut failed = None;
        for (token, runs) in due {
            let sent_at = self.parts.clock.boottime();
            let start = self.parts.store.start(self.id(), token, &runs, settings.lease_ttl());
            match with_timeout(start).await {
                Ok(outcomes) => {
                    // The start used the settings from before it was sent; newer ones do not change its lease.
                    let until = sent_at + settings.sigkill_after_last_renewal().as_micros() as u64;
                    let started =
                        self.apply_start_outcomes(token, (sent_at, until), &runs, outcomes);
                    self.launch(token, started).await;
                }
                Err(error) => {
                    self.update_runs(token, &runs, |status| {
                        *status = LocalRunState::Unconfirmed;
                    });
                    failed = Some(error);
                }
            }
        }
        // Only now, after every run that found a free slot was started.
        self.release_waiting().await?;
        match failed {
            Some(error) => Err(error),
            None => Ok(self.next_start_at()),
        }
    }

    /// Takes the due runs that find a free slot, and marks them as starting.
    fn mark_due_as_starting(&self) -> Vec<(LeaseToken, Vec<RunId>)> {
        let local_now = self.parts.clock.boottime();
        let mut state = self.state();
        let Some(clock_offset) = state.clock_offset.filter(|_| !is_suspended(&state)) else {
            return Vec::new();
        };
        let now = database_time(local_now, clock_offset);
        let mut free = state.slots.commands.saturating_sub(used_slots(&state, SlotPool::Commands));
        let mut due = Vec::new();
        for (token, lease) in &mut state.leases {
            let mut runs = Vec::new();
            for (run, status) in &mut lease.runs {
                let LocalRunState::Waiting { due_at, not_before } = status else { continue };
                if *due_at <= now && *not_before <= local_now && free > 0 {
                    free -= 1;
                    *status = LocalRunState::Starting;
                    runs.push(*run);
                }
            }
            if !runs.is_empty() {
                due.push((*token, runs));
            }
        }
        due
    }

    /// When the next waiting run is due, by the local clock.
    fn next_start_at(&self) -> Option<u64> {
        let local_now = self.parts.clock.boottime();
        let state = self.state();
        let clock_offset = state.clock_offset?;
        let waiting = state.leases.values().flat_map(|lease| lease.runs.values());
        waiting
            .filter_map(|status| match status {
                LocalRunState::Waiting { due_at, not_before } => {
                    let start = local_time(*due_at, clock_offset).max(*not_before);
                    // A run that is already due waits for a slot: it is checked again when that wait ends.
                    Some(if start <= local_now { start + MAX_SLOT_WAIT_MICROS } else { start })
                }
                LocalRunState::Starting
                | LocalRunState::Unconfirmed
                | LocalRunState::Running(_)
                | LocalRunState::Ended(_) => None,
            })
            .min()
    }

    /// T7w: releases runs that have not started. If the worker takes no new runs, all of them; else those that have
    /// waited [`MAX_SLOT_WAIT_MICROS`] for a slot, because another worker may be free.
    async fn release_waiting(&self) -> Result<(), Error> {
        let waiting: Vec<(LeaseToken, RunId)> = {
            let state = self.state();
            let suspended = is_suspended(&state);
            let local_now = self.parts.clock.boottime();
            let must_go = |status: &LocalRunState| match status {
                LocalRunState::Waiting { due_at, not_before } => {
                    let give_up_at = |clock_offset| {
                        local_time(*due_at, clock_offset).max(*not_before) + MAX_SLOT_WAIT_MICROS
                    };
                    suspended
                        || state
                            .clock_offset
                            .is_some_and(|clock_offset| give_up_at(clock_offset) <= local_now)
                }
                LocalRunState::Starting
                | LocalRunState::Unconfirmed
                | LocalRunState::Running(_)
                | LocalRunState::Ended(_) => false,
            };
            let all = state.leases.iter().flat_map(|(token, lease)| {
                lease
                    .runs
                    .iter()
                    .filter(|(_, status)| must_go(status))
                    .map(|(run, _)| (*token, *run))
            });
            all.collect()
        };
        for (token, run) in waiting {
            // Also if the release was lost: then the worker no longer leases the run.
            let _ = with_timeout(self.parts.store.release(token, run)).await?;
            self.drop_run(token, run);
            self.parts.wakeups.wake_planner();
        }
        Ok(())
    }

    /// Applies the outcomes of a start. Returns the runs that are now RUNNING.
    fn apply_start_outcomes(
        &self,
        token: LeaseToken,
        (sent_at, until): (u64, u64),
        runs: &[RunId],
        outcomes: Vec<Outcome<StartedRun>>,
    ) -> Vec<StartedRun> {
        let mut started = Vec::new();
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return started };
        for (run, outcome) in runs.iter().zip(outcomes) {
            match outcome {
                Outcome::Applied(applied) => started.push(applied),
                Outcome::NotYet => {
                    if let Some(status) = lease.runs.get_mut(run) {
                        let not_before = sent_at + EARLY_START_RETRY_MICROS;
                        // The run is due soon by the database clock, whatever the local clock says.
                        let due_at = Timestamp::MIN;
                        *status = LocalRunState::Waiting { due_at, not_before };
                    }
                }
                // An earlier start of this worker took effect after all: the next renewal shows it.
                Outcome::Lost(lost)
                    if lost.state == Some(RunState::Running) && lost.worker == Some(self.id()) =>
                {
                    lease.set_run_status(*run, LocalRunState::Unconfirmed);
                }
                Outcome::Lost(lost) => {
                    tracing::info!(run_id = %run, worker_id = %self.id(), state = ?lost.state, "start lost: the worker no longer leases the run");
                    lease.remove_run(*run);
                }
            }
        }
        if !started.is_empty() {
            lease.renewed_at = Some(lease.renewed_at.map_or(sent_at, |since| since.max(sent_at)));
            self.parts.executor.set_lease_deadline(token, until);
        }
        drop_lease_if_empty(&mut state, token);
        started
    }

    /// Launches runs that are RUNNING in the database. A run whose data cannot be read now is tried again after the
    /// next renewal; a run that can never be launched is ended.
    pub(super) async fn launch(&self, token: LeaseToken, started: Vec<StartedRun>) {
        let versions = started.iter().map(|started| (started.job, started.job_version));
        if let Err(error) = with_timeout(self.jobs.load_missing(&self.parts.store, versions)).await
        {
            tracing::debug!(worker_id = %self.id(), %error, "job versions could not be read with one query");
        }
        let now = self.parts.clock.boottime();
        self.state().leases.get_mut(&token).into_iter().for_each(|lease| lease.launched_at = now);
        let settings = self.settings();
        let mut launches = Vec::with_capacity(started.len());
        for started in started {
            let run = started.id;
            let key = AttemptKey { run: run.0, attempt: started.attempt_no };
            // Mostly everything is cached, and then the large future of `prepare_attempt` is not needed.
            let prepared = match self.cached_job(&started) {
                Some(job) => Ok(self.build_attempt(token, started, &job, None)),
                None => {
                    // The attempts that are ready are launched before the query for this one.
                    self.parts.executor.launch_all(std::mem::take(&mut launches));
                    Box::pin(self.prepare_attempt(token, started)).await
                }
            };
            let status = match prepared {
                Err(error) => {
                    tracing::warn!(run_id = %run, worker_id = %self.id(), %error, "run cannot be launched yet: its data could not be read");
                    LocalRunState::Unconfirmed
                }
                Ok(Err(result)) => {
                    self.parts.completions.wake_worker();
                    let at = self.parts.clock.boottime();
                    LocalRunState::Ended(Box::new(PendingReport::new_without_output(
                        key, *result, at,
                    )))
                }
                Ok(Ok(mut attempt)) => {
                    let running = running_attempt(&attempt, self.parts.clock.boottime(), &settings);
                    attempt.deadline = running.deadline;
                    if self.set_status(token, run, LocalRunState::Running(Box::new(running))) {
                        launches.push(attempt);
                    }
                    continue;
                }
            };
            self.set_status(token, run, status);
        }
        self.parts.executor.launch_all(launches);
    }

    /// The job version of a run, if it is cached and the run needs no other data (an event's payload).
    fn cached_job(&self, started: &StartedRun) -> Option<Arc<ParsedJobVersion>> {
        let known = || self.jobs.get_cached(started.job, started.job_version);
        started.event.is_none().then(known).flatten()
    }

    /// Reads everything that an attempt needs. The inner error is the result of a run that can never be launched.
    async fn prepare_attempt(
        &self,
        token: LeaseToken,
        started: StartedRun,
    ) -> Result<Result<Attempt, Box<AttemptResult>>, Error> {
        let store = &self.parts.store;
        let job = match self.jobs.get_cached(started.job, started.job_version) {
            Some(job) => Some(job),
            None => {
                with_timeout(self.jobs.find_or_load(store, started.job, started.job_version))
                    .await?
            }
        };
        let Some(job) = job else {
            let failure = tasuki_core::exit::FailureRules::default();
            let failure = failure.classify_code(AttemptErrorCode::INVALID_INPUT, None);
            let message = "the job version cannot be parsed by this version of tasuki";
            return Ok(Err(Box::new(attempt_input_and_result::failed_result(
                failure,
                message,
                self.random_u32(),
            ))));
        };
        let payload = match started.event {
            Some(event) => {
                with_timeout(store.find_event(event)).await?.and_then(|event| event.payload)
            }
            None => None,
        };
        Ok(self.build_attempt(token, started, &job, payload))
    }

    fn build_attempt(
        &self,
        token: LeaseToken,
        started: StartedRun,
        job: &Arc<ParsedJobVersion>,
        payload: Option<String>,
    ) -> Result<Attempt, Box<AttemptResult>> {
        Attempt::new(token, started, Arc::clone(job), payload).map_err(|error| {
            Box::new(attempt_input_and_result::attempt_result(
                job,
                ExecutionEnd::InvalidArguments(error),
                None,
                self.random_u32(),
            ))
        })
    }

    /// Sets the state of a run. `false`: the worker no longer holds the lease, and therefore not the run.
    pub(super) fn set_status(&self, token: LeaseToken, run: RunId, status: LocalRunState) -> bool {
        let mut state = self.state();
        let lease = state.leases.get_mut(&token);
        lease.map(|lease| lease.set_run_status(run, status)).is_some()
    }

    fn update_runs(&self, token: LeaseToken, runs: &[RunId], change: impl Fn(&mut LocalRunState)) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for run in runs {
            lease.runs.get_mut(run).into_iter().for_each(&change);
        }
    }
}

/// The entry of an attempt that is launched at `now` (local clock, microseconds).
fn running_attempt(attempt: &Attempt, now: u64, settings: &Settings) -> RunningAttempt {
    let work = &attempt.job.work;
    attempt.liveness.touch(now);
    RunningAttempt {
        key: attempt.key(),
        job: Arc::clone(&attempt.job),
        liveness: attempt.liveness.clone(),
        deadline: now + work.timeout.unwrap_or(settings.timeout()).as_micros() as u64,
        max_silence: work.heartbeat_timeout.or(settings.heartbeat_timeout()),
        max_silence_after_progress: work
            .heartbeat_timeout
            .or(settings.progress_heartbeat_timeout())
            .or(settings.heartbeat_timeout()),
        stop_grace: work.stop_grace.unwrap_or(settings.stop_grace()),
        stop_reason: None,
    }
}
