//! The worker: starts what it is given, claims what it may, keeps its leases, reports how things ended.
//!
//! Each of its ticks reads, decides and writes with a guard; the loops around them own pace and stopping.
//! What it carries is remembered here, but only the database says whether it still does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::exit::Stopped;
use tasuki_core::work::WorkKind;
use tasuki_core::{ErrorCode, LeaseToken, RunId, RunState, Settings, WorkerId};
use tasuki_store::{ClaimBatch, Claimed, Error, Finish, Outcome, Renewed, Store, Taken};
use tokio::sync::Notify;

use super::attempt::{self, Attempt, End, Executor, Mail};
use super::carry::{Claim, Ended, Here, Lease, Running, Todo, after_renewal};
use super::peers::StartOrder;
use super::recipes::Recipes;
use super::within::within;
use super::world::{Clock, Dice};
use crate::Wake;
use crate::spawner::JobKey;

/// How long after a start that came too early it is tried again.
const TOO_EARLY: u64 = 500;
/// How long what is due waits for room before it goes back.
const PATIENCE: u64 = 1_000_000;
/// How far ahead a claimer looks for its next work.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_secs(1);

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dice: Arc<dyn Dice>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) mail: Mail,
    pub(crate) wake: Wake,
    /// How many commands, and how many functions, at once, under these settings.
    pub(crate) slots: Box<dyn Fn(&Settings) -> (u32, u32) + Send + Sync>,
    /// Where it claims from, and what is found there.
    pub(crate) lanes: Vec<(String, WorkKind)>,
}

/// One incarnation of a worker.
pub struct Worker {
    id: WorkerId,
    parts: Parts,
    recipes: Recipes,
    state: Mutex<State>,
    orders: Notify,
}

struct State {
    leases: BTreeMap<LeaseToken, Lease>,
    settings: Arc<Settings>,
    /// How many commands, and how many functions, at once.
    slots: (u32, u32),
    /// How much the database's clock is ahead of ours, in microseconds; at least.
    ahead: Option<i64>,
    draining: bool,
}

/// What a heartbeat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Go on.
    Alive,
    /// It was declared dead: it must begin anew under another id.
    CutOff,
}

impl Worker {
    pub(crate) fn new(id: WorkerId, parts: Parts, settings: Arc<Settings>) -> Self {
        let slots = (parts.slots)(&settings);
        let state =
            State { leases: BTreeMap::new(), settings, slots, ahead: None, draining: false };
        Self {
            id,
            parts,
            recipes: Recipes::default(),
            state: Mutex::new(state),
            orders: Notify::new(),
        }
    }

    /// Which incarnation.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// The settings it goes by.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.state().settings)
    }

    /// A leader gave it something.
    pub(crate) fn hear(&self, order: &StartOrder) {
        self.adopt(order.token, &order.runs);
        self.orders.notify_one();
    }

    /// Waits until something was ordered.
    pub(crate) async fn ordered(&self) {
        self.orders.notified().await;
    }

    /// Takes no new work from now on.
    pub(crate) fn drain(&self) {
        self.state().draining = true;
        self.orders.notify_one();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state().draining
    }

    /// Whether it carries nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.state().leases.values().all(|lease| lease.runs.is_empty() && !lease.is_live())
    }

    /// Tells all that runs to stop.
    pub(crate) fn stop_all(&self, why: Stopped) {
        let mut state = self.state();
        for running in state.leases.values_mut().flat_map(running_in) {
            self.stop(running, why);
        }
    }

    /// Shows that it is alive, reads the clock and the settings, and finds what was given to it without a
    /// word.
    pub(crate) async fn pulse(&self) -> Result<Pulse, Error> {
        let store = &self.parts.store;
        if !within(store.heartbeat(self.id)).await? {
            return Ok(Pulse::CutOff);
        }
        let row = store.worker_now(self.id).await?;
        let ours = self.parts.clock.boottime() as i64;
        let settings = store.settings().await?.settings;
        {
            let mut state = self.state();
            if let Some((_, clock)) = row {
                state.ahead = Some(clock.as_microsecond() - ours);
            }
            if *state.settings != settings {
                state.slots = (self.parts.slots)(&settings);
                state.settings = Arc::new(settings);
            }
        }
        if let Some((row, _)) = row {
            if row.draining_at.is_some() {
                self.drain();
            }
            self.tell_room((row.slots, row.function_slots)).await?;
        }
        let mut unknown: BTreeMap<LeaseToken, Vec<(RunId, Timestamp)>> = BTreeMap::new();
        for carried in store.carried_by(self.id).await? {
            if carried.state == RunState::Assigned {
                unknown.entry(carried.token).or_default().push((carried.run, carried.due_at));
            }
        }
        for (token, runs) in unknown {
            if self.adopt(token, &runs) {
                self.orders.notify_one();
            }
        }
        Ok(Pulse::Alive)
    }

    /// Tells how much it does at once, where that is not what is known. What runs has its room until it ends.
    async fn tell_room(&self, known: (u32, u32)) -> Result<(), Error> {
        let (slots, function_slots) = {
            let state = self.state();
            let functions = count(&state, |kind| !is_command(kind));
            (state.slots.0.max(count(&state, is_command)), state.slots.1.max(functions))
        };
        if known == (slots, function_slots) {
            return Ok(());
        }
        within(self.parts.store.resize_worker(self.id, slots, function_slots)).await?;
        self.parts.wake.leader();
        self.parts.wake.claims();
        Ok(())
    }

    /// Starts what is due, gives back what it cannot start. Returns when it is to look again.
    pub(crate) async fn start_due(&self) -> Result<Option<u64>, Error> {
        let due = self.take_due();
        let settings = self.settings();
        let mut failed = None;
        for (token, runs) in due {
            let sent = self.parts.clock.boottime();
            let asked = self.parts.store.start(self.id, token, &runs, settings.lease_ttl());
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

    /// Claims what may be claimed. Returns when it is to look again.
    pub(crate) async fn claim(&self) -> Result<Option<u64>, Error> {
        let mut next: Option<u64> = None;
        for (lane, kind) in &self.parts.lanes {
            let free = self.free(*kind);
            if free == 0 || self.is_draining() {
                continue;
            }
            let asked = self.parts.clock.boottime();
            if self.claim_from(lane, *kind, free).await? {
                return Ok(Some(0));
            }
            let Some(ahead) = self.state().ahead else { continue };
            let until = database_time(self.parts.clock.boottime(), ahead) + LOOK_AHEAD;
            // What was due before we asked and was not given waits for somebody, not for time.
            let after = database_time(asked, ahead);
            let soon = self.parts.store.next_due(lane, after, until).await?;
            let at = soon.map(|due_at| our_time(due_at, ahead));
            next = [next, at].into_iter().flatten().min();
        }
        Ok(next)
    }

    /// The same, but looks first whether there is anything: for whoever comes by without a reason.
    pub(crate) async fn claim_if_any(&self) -> Result<Option<u64>, Error> {
        let ahead = self.state().ahead;
        let Some(ahead) = ahead else { return self.claim().await };
        let until = database_time(self.parts.clock.boottime(), ahead) + LOOK_AHEAD;
        for (lane, _) in &self.parts.lanes {
            if self.parts.store.next_due(lane, Timestamp::UNIX_EPOCH, until).await?.is_some() {
                return self.claim().await;
            }
        }
        Ok(None)
    }

    /// Renews its leases, those whose time it is or all, and does what the answers ask for.
    pub(crate) async fn renew(&self, all: bool) -> Result<(), Error> {
        let sent = self.parts.clock.boottime();
        let settings = self.settings();
        let pace = settings.lease_renew().as_micros() as u64;
        let tokens: Vec<LeaseToken> = {
            let state = self.state();
            let is_time = |lease: &Lease| {
                all || lease.claim == Claim::Unanswered
                    || lease.since.is_none_or(|since| sent >= since + pace)
                    || lease.runs.values().any(|here| matches!(here, Here::Unsure))
            };
            let wanted = state.leases.iter().filter(|(_, lease)| {
                lease.is_live() && lease.claim != Claim::Sent && is_time(lease)
            });
            wanted.map(|(token, _)| *token).collect()
        };
        if tokens.is_empty() {
            return Ok(());
        }
        let asked = self.parts.store.renew_many(self.id, &tokens, settings.lease_ttl());
        let told = within(asked).await?;
        for (token, told) in tokens.into_iter().zip(told) {
            match told {
                Renewed::Gone => self.lose(token),
                Renewed::Held { runs, .. } => {
                    let until = sent + settings.kill_after().as_micros() as u64;
                    self.parts.executor.lease(token, until);
                    let todo = {
                        let mut state = self.state();
                        let Some(lease) = state.leases.get_mut(&token) else { continue };
                        lease.since = Some(sent);
                        after_renewal(lease, sent, &runs)
                    };
                    self.follow(token, todo).await;
                }
            }
        }
        Ok(())
    }

    /// Stops what overstays its time or its silence, and everything under a lease that could not be
    /// renewed. Returns when it is to look again.
    pub(crate) fn tend(&self) -> Option<u64> {
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        let term_after = state.settings.term_after().as_micros() as u64;
        let mut next: Option<u64> = None;
        for lease in state.leases.values_mut() {
            let lapses = lease.since.map(|since| since + term_after);
            let lapsed = lapses.is_some_and(|at| at <= now);
            for running in running_in(lease) {
                let why = running.overstays(now).or(lapsed.then_some(Stopped::Silence));
                if let Some(why) = why {
                    self.stop(running, why);
                }
                let look = [running.next_look(), lapses.filter(|_| !lapsed)];
                next = look.into_iter().chain([next]).flatten().min();
            }
        }
        next
    }

    /// Reports what has ended. What cannot be reported now is kept and tried again.
    pub(crate) async fn report(&self) -> Result<(), Error> {
        self.open_mail();
        let mut failed = None;
        for (token, ends) in self.ended() {
            let told: Vec<(RunId, Finish)> =
                ends.iter().map(|(run, ended)| (*run, ended.finish.clone())).collect();
            let finished = match within(self.parts.store.finish_many(token, &told)).await {
                Ok(finished) => finished,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            let now = self.parts.clock.boottime();
            for ((run, ended), outcome) in ends.iter().zip(finished) {
                if let Outcome::Lost(lost) = outcome {
                    tracing::info!(run_id = %run, worker_id = %self.id, state = ?lost.state, "a result came too late");
                }
                self.parts.executor.forget(ended.key);
                self.done(token, *run, now);
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roll(&self) -> u32 {
        self.parts.dice.roll() as u32
    }

    /// Remembers what is assigned to it. `false`: it knew.
    fn adopt(&self, token: LeaseToken, runs: &[(RunId, Timestamp)]) -> bool {
        // What is long due when it comes has its whole patience before it.
        let not_before = self.parts.clock.boottime();
        let mut state = self.state();
        if state.leases.contains_key(&token) {
            return false;
        }
        let waiting = |due_at: Timestamp| Here::Waiting { due_at, not_before };
        let runs = runs.iter().map(|&(run, due_at)| (run, waiting(due_at))).collect();
        state.leases.insert(token, Lease { runs, ..Lease::default() });
        true
    }

    /// What is due now and finds room, marked as being started.
    fn take_due(&self) -> Vec<(LeaseToken, Vec<RunId>)> {
        let ours = self.parts.clock.boottime();
        let mut state = self.state();
        let Some(ahead) = state.ahead.filter(|_| !state.draining) else { return Vec::new() };
        let now = database_time(ours, ahead);
        let mut room = state.slots.0.saturating_sub(count(&state, is_command));
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

    /// T7w: what has not started goes back. All of it if it is draining, else what found no room for so
    /// long that it is not worth waiting here.
    async fn give_back(&self) -> Result<(), Error> {
        let waiting: Vec<(LeaseToken, RunId)> = {
            let state = self.state();
            let draining = state.draining;
            let ours = self.parts.clock.boottime();
            let goes = |here: &Here| match here {
                Here::Waiting { due_at, not_before } => {
                    let patience = |ahead| our_time(*due_at, ahead).max(*not_before) + PATIENCE;
                    draining || state.ahead.is_some_and(|ahead| patience(ahead) <= ours)
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
                Outcome::Lost(lost) => {
                    tracing::info!(run_id = %run, worker_id = %self.id, state = ?lost.state, "a start was lost");
                    lease.runs.remove(run);
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
    async fn launch(&self, token: LeaseToken, taken: Vec<Taken>) {
        for taken in taken {
            let run = taken.id;
            let key = JobKey { run: run.0, attempt: taken.attempt_no };
            let here = match self.prepare(token, taken).await {
                Err(error) => {
                    tracing::warn!(run_id = %run, worker_id = %self.id, %error, "a run cannot be launched yet");
                    Here::Unsure
                }
                Ok(Err(finish)) => {
                    self.parts.mail.ring();
                    Here::Ended(Box::new(Ended { key, finish }))
                }
                Ok(Ok(attempt)) => {
                    let running = self.running(&attempt);
                    if self.put(token, run, Here::Running(Box::new(running))) {
                        self.parts.executor.launch(attempt);
                    }
                    continue;
                }
            };
            self.put(token, run, here);
        }
    }

    /// Everything an attempt needs, or why it cannot be.
    async fn prepare(
        &self,
        token: LeaseToken,
        taken: Taken,
    ) -> Result<Result<Attempt, Finish>, Error> {
        let store = &self.parts.store;
        let Some(recipe) = self.recipes.get(store, taken.job, taken.job_version).await? else {
            let failure = tasuki_core::exit::FailureRules::default();
            let failure = failure.failure(ErrorCode::INVALID_INPUT, None);
            let why = "this tasuki cannot read its definition";
            return Ok(Err(attempt::failed(failure, why, self.roll())));
        };
        let payload = match taken.event {
            Some(event) => store.event(event).await?.and_then(|event| event.payload),
            None => None,
        };
        Ok(Attempt::new(token, taken, Arc::clone(&recipe), payload)
            .map_err(|refused| attempt::finish(&recipe, End::Unfit(refused), None, self.roll())))
    }

    fn running(&self, attempt: &Attempt) -> Running {
        let now = self.parts.clock.boottime();
        let settings = self.settings();
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

    /// `false`: its lease is no longer ours, and neither is it.
    fn put(&self, token: LeaseToken, run: RunId, here: Here) -> bool {
        let mut state = self.state();
        let lease = state.leases.get_mut(&token);
        lease.map(|lease| lease.runs.insert(run, here)).is_some()
    }

    fn each(&self, token: LeaseToken, runs: &[RunId], change: impl Fn(&mut Here)) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for run in runs {
            lease.runs.get_mut(run).into_iter().for_each(&change);
        }
    }

    /// How many more of a kind it can run.
    fn free(&self, kind: WorkKind) -> u32 {
        let state = self.state();
        let (slots, taken) = match is_command(kind) {
            true => (state.slots.0, count(&state, is_command)),
            false => (state.slots.1, count(&state, |kind| !is_command(kind))),
        };
        slots.saturating_sub(taken)
    }

    /// Claims from a lane. Whether it got all it asked for, so that there may be more.
    async fn claim_from(&self, lane: &str, kind: WorkKind, most: u32) -> Result<bool, Error> {
        let token = LeaseToken::from_random(self.parts.dice.roll());
        let sent = self.parts.clock.boottime();
        let settings = self.settings();
        // Known before it is sent: nobody else may take what is found under it for lost.
        let since = Some(sent);
        let lease = Lease { since, claim: Claim::Sent, claimed: true, kind, ..Lease::default() };
        self.state().leases.insert(token, lease);
        let batch =
            ClaimBatch { worker: self.id, token, lane, most, lease_ttl: settings.lease_ttl() };
        let claimed = within(self.parts.store.claim(&batch)).await;
        let runs = {
            let mut state = self.state();
            let Some(lease) = state.leases.get_mut(&token) else { return Ok(false) };
            match claimed {
                Ok(Claimed::Runs(runs)) if runs.is_empty() => {
                    state.leases.remove(&token);
                    return Ok(false);
                }
                Ok(Claimed::Runs(runs)) => {
                    lease.claim = Claim::Known;
                    lease.runs.extend(runs.iter().map(|taken| (taken.id, Here::Starting)));
                    runs
                }
                Ok(Claimed::Before) => {
                    lease.claim = Claim::Unanswered;
                    return Ok(false);
                }
                Err(error) => {
                    lease.claim = Claim::Unanswered;
                    return Err(error);
                }
            }
        };
        self.parts.executor.lease(token, sent + settings.kill_after().as_micros() as u64);
        let full = runs.len() as u32 >= most.min(tasuki_store::MOST_CLAIMED);
        self.launch(token, runs).await;
        Ok(full)
    }

    /// Does what a renewal asked for.
    async fn follow(&self, token: LeaseToken, todo: Vec<Todo>) {
        let mut launches = Vec::new();
        let mut ghosts = Vec::new();
        for one in todo {
            match one {
                Todo::Stop(run) => {
                    let mut state = self.state();
                    let lease = state.leases.get_mut(&token);
                    if let Some(Here::Running(running)) = lease.and_then(|l| l.runs.get_mut(&run)) {
                        self.stop(running, Stopped::Cancel);
                    }
                }
                Todo::Drop(run) => self.drop_run(token, run),
                Todo::Launch(run, canceled) => launches.push((run, canceled)),
                Todo::WaitOn(run) => {
                    let not_before = self.parts.clock.boottime();
                    let waiting = Here::Waiting { due_at: Timestamp::MIN, not_before };
                    self.put(token, run, waiting);
                    self.orders.notify_one();
                }
                Todo::Ghost(run) => ghosts.push(run),
            }
        }
        if launches.is_empty() && ghosts.is_empty() {
            self.answered(token);
            return;
        }
        let Ok(running) = self.parts.store.running_under(token).await else { return };
        for taken in running {
            let wanted = launches.iter().find(|(run, _)| *run == taken.id);
            match wanted {
                Some(_) if !self.take_unsure(token, taken.id) => {}
                Some((_, false)) => self.launch(token, vec![taken]).await,
                Some((_, true)) => self.end_unlaunched(token, &taken, Stopped::Cancel.error_code()),
                None if ghosts.contains(&taken.id) => {
                    self.end_unlaunched(token, &taken, ErrorCode::HEARTBEAT_TIMEOUT);
                }
                None => {}
            }
        }
        self.answered(token);
    }

    /// Marks as being started what nobody was sure of. `false`: somebody is by now, and whoever that is has
    /// launched or ended it.
    fn take_unsure(&self, token: LeaseToken, run: RunId) -> bool {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return false };
        let unsure = match lease.runs.get(&run) {
            Some(here) => matches!(here, Here::Unsure),
            None => lease.claim == Claim::Unanswered && !lease.done.contains_key(&run),
        };
        if unsure {
            lease.runs.insert(run, Here::Starting);
        }
        unsure
    }

    /// What is under a lease is known now.
    fn answered(&self, token: LeaseToken) {
        let mut state = self.state();
        if let Some(lease) = state.leases.get_mut(&token)
            && lease.claim == Claim::Unanswered
        {
            lease.claim = Claim::Known;
        }
        drop_if_empty(&mut state, token);
    }

    /// It runs in the database, and nothing of it was or will be launched here.
    fn end_unlaunched(&self, token: LeaseToken, taken: &Taken, code: ErrorCode) {
        let failure = tasuki_core::exit::FailureRules::default().failure(code, None);
        let finish = attempt::failed(failure, "it was not running on its worker", self.roll());
        let key = JobKey { run: taken.id.0, attempt: taken.attempt_no };
        self.put(token, taken.id, Here::Ended(Box::new(Ended { key, finish })));
        self.parts.mail.ring();
    }

    /// The lease is gone: kill what runs under it and write nothing.
    fn lose(&self, token: LeaseToken) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for running in running_in(lease) {
            tracing::warn!(run_id = running.key.run, worker_id = %self.id, "its lease was lost: it is killed");
            self.parts.executor.stop(running.key, Duration::ZERO);
        }
        // What is being started or reported learns for itself that it lost.
        lease.runs.retain(|_, here| matches!(here, Here::Starting | Here::Ended(_)));
        lease.claim = Claim::Known;
        drop_if_empty(&mut state, token);
    }

    /// One run is no longer ours.
    fn drop_run(&self, token: LeaseToken, run: RunId) {
        let mut state = self.state();
        if let Some(lease) = state.leases.get_mut(&token)
            && let Some(Here::Running(running)) = lease.runs.remove(&run)
        {
            tracing::warn!(run_id = %run, worker_id = %self.id, "it is no longer ours: it is killed");
            self.parts.executor.stop(running.key, Duration::ZERO);
        }
        drop_if_empty(&mut state, token);
    }

    fn stop(&self, running: &mut Running, why: Stopped) {
        running.stopped = running.stopped.or(Some(why));
        self.parts.executor.stop(running.key, running.grace);
    }

    /// Turns what executors told into ends to be reported.
    fn open_mail(&self) {
        for happened in self.parts.mail.drain() {
            let mut state = self.state();
            let run = RunId(happened.key.run);
            let here = state.leases.get_mut(&happened.token).and_then(|l| l.runs.get_mut(&run));
            let Some(here) = here else {
                // Dropped before: somebody else carries it, or nobody.
                self.parts.executor.forget(happened.key);
                continue;
            };
            match &*here {
                Here::Running(running) if running.key == happened.key => {
                    let (recipe, stopped) = (&running.recipe, running.stopped);
                    let finish = attempt::finish(recipe, happened.end, stopped, self.roll());
                    *here = Here::Ended(Box::new(Ended { key: happened.key, finish }));
                }
                // Told twice.
                Here::Ended(ended) if ended.key == happened.key => {}
                // Dropped as well, although an old order has named it again since.
                Here::Waiting { .. }
                | Here::Starting
                | Here::Unsure
                | Here::Running(_)
                | Here::Ended(_) => self.parts.executor.forget(happened.key),
            }
        }
    }

    fn ended(&self) -> Vec<(LeaseToken, Vec<(RunId, Ended)>)> {
        let state = self.state();
        let ends = |lease: &Lease| {
            let ended = lease.runs.iter().filter_map(|(run, here)| match here {
                Here::Ended(ended) => Some((*run, (**ended).clone())),
                Here::Waiting { .. } | Here::Starting | Here::Unsure | Here::Running(_) => None,
            });
            ended.collect::<Vec<_>>()
        };
        let all = state.leases.iter().map(|(token, lease)| (*token, ends(lease)));
        all.filter(|(_, ends)| !ends.is_empty()).collect()
    }

    fn done(&self, token: LeaseToken, run: RunId, now: u64) {
        let mut state = self.state();
        let mut claimed = false;
        if let Some(lease) = state.leases.get_mut(&token) {
            claimed = lease.claimed;
            lease.runs.remove(&run);
            lease.done.insert(run, now);
        }
        drop_if_empty(&mut state, token);
        drop(state);
        // Room for what was claimed is no business of the leader's.
        if !claimed {
            self.parts.wake.leader();
        }
        self.parts.wake.claims();
        self.orders.notify_one();
    }
}

fn is_command(kind: WorkKind) -> bool {
    match kind {
        WorkKind::Command | WorkKind::Django => true,
        WorkKind::Function => false,
    }
}

fn count(state: &State, of: impl Fn(WorkKind) -> bool) -> u32 {
    state.leases.values().map(|lease| lease.running(&of)).sum::<usize>() as u32
}

fn running_in(lease: &mut Lease) -> impl Iterator<Item = &mut Running> {
    lease.runs.values_mut().filter_map(|here| match here {
        Here::Running(running) => Some(&mut **running),
        Here::Waiting { .. } | Here::Starting | Here::Unsure | Here::Ended(_) => None,
    })
}

fn drop_if_empty(state: &mut State, token: LeaseToken) {
    let empty = |lease: &Lease| lease.runs.is_empty() && lease.claim == Claim::Known;
    if state.leases.get(&token).is_some_and(empty) {
        state.leases.remove(&token);
    }
}

fn database_time(ours: u64, ahead: i64) -> Timestamp {
    Timestamp::from_microsecond(ours as i64 + ahead).unwrap_or(Timestamp::MAX)
}

fn our_time(at: Timestamp, ahead: i64) -> u64 {
    (at.as_microsecond().saturating_sub(ahead)).max(0) as u64
}
