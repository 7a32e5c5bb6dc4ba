//! T2: what was assigned is started on the instant and launched; what finds no room goes back.

use std::sync::Arc;

use jiff::Timestamp;
use tasuki_core::{ErrorCode, LeaseToken, RunId, RunState, Settings};
use tasuki_store::{Error, AttemptResult, Outcome, Taken};

use super::super::within::within;
use super::{Worker, count, database_time, drop_if_empty, is_aside, our_time};
use crate::node::executor::attempt::{self, Attempt, End};
use crate::node::worker::carry::{Ended, Here, Running};
use crate::node::worker::queues::Pool;
use crate::node::worker::recipes::Recipe;
use crate::spawner::JobKey;

/// How long after a start that came too early it is tried again.
const TOO_EARLY: u64 = 500;
/// How long what is due waits for room before it goes back.
const PATIENCE: u64 = 1_000_000;

impl Worker {
    /// Starts what is due, gives back what it cannot start. Returns when it is to look again.
    pub(crate) async fn start_due(&self) -> Result<Option<u64>, Error> {
        let due = self.take_due();
        let settings = self.settings();
        let mut failed = None;
        for (token, runs) in due {
            let sent = self.parts.clock.boottime();
            let asked = self.parts.store.start(self.id(), token, &runs, settings.lease_ttl());
            match within(asked).await {
                Ok(told) => {
                    // As long as it was asked for, whatever the settings say by now.
                    let until = sent + settings.kill_after().as_micros() as u64;
                    let started = self.started(token, (sent, until), &runs, told);
                    self.launch(token, started).await;
                }
                Err(error) => {
                    self.each(token, &runs, |here| *here = Here::Unsure);
                    failed = Some(error);
                }
            }
        }
        // What could not be started, now that everything that finds room has been.
        self.give_back().await?;
        match failed {
            Some(error) => Err(error),
            None => Ok(self.next_start()),
        }
    }

    /// What is due now and finds room, marked as being started.
    fn take_due(&self) -> Vec<(LeaseToken, Vec<RunId>)> {
        let ours = self.parts.clock.boottime();
        let mut state = self.state();
        let Some(ahead) = state.ahead.filter(|_| !is_aside(&state)) else { return Vec::new() };
        let now = database_time(ours, ahead);
        let mut room = state.slots.commands.saturating_sub(count(&state, Pool::Commands));
        let mut due = Vec::new();
        for (token, lease) in &mut state.leases {
            let mut runs = Vec::new();
            for (run, here) in &mut lease.runs {
                let Here::Waiting { due_at, not_before } = here else { continue };
                if *due_at <= now && *not_before <= ours && room > 0 {
                    room -= 1;
                    *here = Here::Starting;
                    runs.push(*run);
                }
            }
            if !runs.is_empty() {
                due.push((*token, runs));
            }
        }
        due
    }

    /// When the next of what waits is due, by our clock.
    fn next_start(&self) -> Option<u64> {
        let ours = self.parts.clock.boottime();
        let state = self.state();
        let ahead = state.ahead?;
        let waiting = state.leases.values().flat_map(|lease| lease.runs.values());
        waiting
            .filter_map(|here| match here {
                Here::Waiting { due_at, not_before } => {
                    let start = our_time(*due_at, ahead).max(*not_before);
                    // What is due already waits for room, not for time.
                    Some(if start <= ours { start + PATIENCE } else { start })
                }
                Here::Starting | Here::Unsure | Here::Running(_) | Here::Ended(_) => None,
            })
            .min()
    }

    /// T7w: what has not started goes back. All of it if it takes no new work, else what found no room for so
    /// long that it is not worth waiting here.
    async fn give_back(&self) -> Result<(), Error> {
        let waiting: Vec<(LeaseToken, RunId)> = {
            let state = self.state();
            let aside = is_aside(&state);
            let ours = self.parts.clock.boottime();
            let goes = |here: &Here| match here {
                Here::Waiting { due_at, not_before } => {
                    let patience = |ahead| our_time(*due_at, ahead).max(*not_before) + PATIENCE;
                    aside || state.ahead.is_some_and(|ahead| patience(ahead) <= ours)
                }
                Here::Starting | Here::Unsure | Here::Running(_) | Here::Ended(_) => false,
            };
            let all = state.leases.iter().flat_map(|(token, lease)| {
                lease.runs.iter().filter(|(_, here)| goes(here)).map(|(run, _)| (*token, *run))
            });
            all.collect()
        };
        for (token, run) in waiting {
            // Lost or not, it is no longer ours to start.
            let _ = within(self.parts.store.release(token, run)).await?;
            self.drop_run(token, run);
            self.parts.wake.leader();
        }
        Ok(())
    }

    /// What of a start is a fact.
    fn started(
        &self,
        token: LeaseToken,
        (sent, until): (u64, u64),
        runs: &[RunId],
        told: Vec<Outcome<Taken>>,
    ) -> Vec<Taken> {
        let mut started = Vec::new();
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return started };
        for (run, outcome) in runs.iter().zip(told) {
            match outcome {
                Outcome::Applied(taken) => started.push(taken),
                Outcome::NotYet => {
                    if let Some(here) = lease.runs.get_mut(run) {
                        let not_before = sent + TOO_EARLY;
                        // Its time is near, whatever our clock says of it.
                        let due_at = Timestamp::MIN;
                        *here = Here::Waiting { due_at, not_before };
                    }
                }
                // An earlier start of ours landed after all: the next renewal tells.
                Outcome::Lost(lost)
                    if lost.state == Some(RunState::Running) && lost.worker == Some(self.id()) =>
                {
                    lease.put(*run, Here::Unsure);
                }
                Outcome::Lost(lost) => {
                    tracing::info!(run_id = %run, worker_id = %self.id(), state = ?lost.state, "a start was lost");
                    lease.take(*run);
                }
            }
        }
        if !started.is_empty() {
            lease.since = Some(lease.since.map_or(sent, |since| since.max(sent)));
            self.parts.executor.lease(token, until);
        }
        drop_if_empty(&mut state, token);
        started
    }

    /// Launches what is RUNNING in the database. What cannot be put together now is asked for again with
    /// the next renewal; what never can is ended.
    pub(super) async fn launch(&self, token: LeaseToken, taken: Vec<Taken>) {
        let versions = taken.iter().map(|taken| (taken.job, taken.job_version));
        if let Err(error) = within(self.recipes.fetch(&self.parts.store, versions)).await {
            tracing::debug!(worker_id = %self.id(), %error, "definitions could not be read together");
        }
        let now = self.parts.clock.boottime();
        self.state().leases.get_mut(&token).into_iter().for_each(|lease| lease.launched = now);
        let settings = self.settings();
        let mut launches = Vec::with_capacity(taken.len());
        for taken in taken {
            let run = taken.id;
            let key = JobKey { run: run.0, attempt: taken.attempt_no };
            // Mostly there is nothing to wait for, and what would wait is large.
            let prepared = match self.at_hand(&taken) {
                Some(recipe) => Ok(self.attempt(token, taken, &recipe, None)),
                None => {
                    // What has to be asked for keeps nobody from being launched.
                    self.parts.executor.launch_all(std::mem::take(&mut launches));
                    Box::pin(self.prepare(token, taken)).await
                }
            };
            let here = match prepared {
                Err(error) => {
                    tracing::warn!(run_id = %run, worker_id = %self.id(), %error, "a run cannot be launched yet");
                    Here::Unsure
                }
                Ok(Err(finish)) => {
                    self.parts.mail.ring();
                    let at = self.parts.clock.boottime();
                    Here::Ended(Box::new(Ended::unheard(key, *finish, at)))
                }
                Ok(Ok(mut attempt)) => {
                    let running = running(&attempt, self.parts.clock.boottime(), &settings);
                    attempt.deadline = running.deadline;
                    if self.put(token, run, Here::Running(Box::new(running))) {
                        launches.push(attempt);
                    }
                    continue;
                }
            };
            self.put(token, run, here);
        }
        self.parts.executor.launch_all(launches);
    }

    /// Whether all that it needs is known here.
    pub(super) fn is_at_hand(&self, taken: &Taken) -> bool {
        self.at_hand(taken).is_some()
    }

    /// What it is made from, if nothing else is needed.
    fn at_hand(&self, taken: &Taken) -> Option<Arc<Recipe>> {
        let known = || self.recipes.at_hand(taken.job, taken.job_version);
        taken.event.is_none().then(known).flatten()
    }

    /// Everything an attempt needs, or why it cannot be.
    async fn prepare(
        &self,
        token: LeaseToken,
        taken: Taken,
    ) -> Result<Result<Attempt, Box<AttemptResult>>, Error> {
        let store = &self.parts.store;
        let recipe = match self.recipes.at_hand(taken.job, taken.job_version) {
            Some(recipe) => Some(recipe),
            None => within(self.recipes.get(store, taken.job, taken.job_version)).await?,
        };
        let Some(recipe) = recipe else {
            let failure = tasuki_core::exit::FailureRules::default();
            let failure = failure.failure(ErrorCode::INVALID_INPUT, None);
            let why = "this tasuki cannot read its definition";
            return Ok(Err(Box::new(attempt::failed(failure, why, self.roll()))));
        };
        let payload = match taken.event {
            Some(event) => within(store.event(event)).await?.and_then(|event| event.payload),
            None => None,
        };
        Ok(self.attempt(token, taken, &recipe, payload))
    }

    fn attempt(
        &self,
        token: LeaseToken,
        taken: Taken,
        recipe: &Arc<Recipe>,
        payload: Option<String>,
    ) -> Result<Attempt, Box<AttemptResult>> {
        Attempt::new(token, taken, Arc::clone(recipe), payload).map_err(|refused| {
            Box::new(attempt::finish(recipe, End::Unfit(refused), None, self.roll()))
        })
    }

    /// `false`: its lease is no longer ours, and neither is it.
    pub(super) fn put(&self, token: LeaseToken, run: RunId, here: Here) -> bool {
        let mut state = self.state();
        let lease = state.leases.get_mut(&token);
        lease.map(|lease| lease.put(run, here)).is_some()
    }

    fn each(&self, token: LeaseToken, runs: &[RunId], change: impl Fn(&mut Here)) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for run in runs {
            lease.runs.get_mut(run).into_iter().for_each(&change);
        }
    }
}

/// An attempt that is launched now.
fn running(attempt: &Attempt, now: u64, settings: &Settings) -> Running {
    let work = &attempt.recipe.work;
    attempt.signs.show(now);
    Running {
        key: attempt.key(),
        recipe: Arc::clone(&attempt.recipe),
        signs: attempt.signs.clone(),
        deadline: now + work.timeout.unwrap_or(settings.timeout()).as_micros() as u64,
        silence: work.heartbeat_timeout.or(settings.heartbeat_timeout()),
        silence_after_progress: work
            .heartbeat_timeout
            .or(settings.progress_heartbeat_timeout())
            .or(settings.heartbeat_timeout()),
        grace: work.stop_grace.unwrap_or(settings.stop_grace()),
        stopped: None,
    }
}
