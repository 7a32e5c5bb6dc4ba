//! The leader: makes runs of slots and events, gives them to workers, and passes over or gives up what
//! cannot be. Supervision too: what was lost is recovered.
//!
//! It acts only while it may trust its lease, and every write of it is fenced by its epoch: one that comes
//! too late changes nothing.

mod slots;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tasuki_core::misfire::Misfire;
use tasuki_core::{
    Epoch, JobId, JobName, LeaseToken, Origin, RunId, Scope, Settings, WorkerId, assign,
};
use tasuki_store::{
    AssignBatch, Author, Error, Event, Job, NewRun, Outcome, Store, Waiting, Wanted,
};

use self::slots::Timed;
use super::coordinate::Coordinator;
use super::peers::{Peers, StartOrder};
use super::plan::{self, Verdict};
use super::recipes::Recipes;
use super::within::within;
use super::world::{Clock, Dice};
use crate::Wake;

/// How many of anything one look takes in.
const PAGE: u32 = 500;
/// How many pages one tick goes through: the next tick is not far.
const PAGES: usize = 20;
/// Before every place in due.
const START: (Timestamp, RunId) = (Timestamp::UNIX_EPOCH, RunId(0));

/// A term, and until when its holder may act.
#[derive(Debug, Clone, Copy)]
struct Term {
    epoch: Epoch,
    renew_at: u64,
    trusted_until: u64,
}

/// Somebody who leads, or stands ready to.
pub struct Leader {
    me: WorkerId,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    dice: Arc<dyn Dice>,
    wake: Wake,
    recipes: Recipes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    term: Option<Term>,
    /// Where the sweep of each lane goes on.
    places: HashMap<String, (Timestamp, RunId)>,
    /// When all lanes were last swept.
    swept_at: Option<u64>,
    /// Jobs that fire by time.
    timed: HashMap<JobId, Arc<Timed>>,
}

impl Leader {
    pub(crate) fn new(
        me: WorkerId,
        store: Store,
        coordinator: Arc<dyn Coordinator>,
        peers: Arc<dyn Peers>,
        world: (Arc<dyn Clock>, Arc<dyn Dice>),
        wake: Wake,
    ) -> Self {
        let (clock, dice) = world;
        let (recipes, state) = (Recipes::default(), Mutex::default());
        Self { me, store, coordinator, peers, clock, dice, wake, recipes, state }
    }

    /// Keeps the lead, or takes it where nobody has it. Whether it leads.
    pub(crate) async fn lead(&self, settings: &Settings) -> Result<bool, Error> {
        let now = self.clock.boottime();
        let term = self.state().term;
        if let Some(term) = term {
            if now < term.renew_at {
                return Ok(self.term().is_some());
            }
            return self.renew(term.epoch, settings).await;
        }
        let seen = within(self.store.leader()).await?;
        if seen.lease_until > seen.clock {
            return match seen.holder == Some(self.me) {
                // A mint whose answer was lost.
                true => self.renew(seen.epoch, settings).await,
                false => Ok(false),
            };
        }
        let mirror = match self.coordinator.stand(self.me, settings.leader_ttl()).await {
            Ok(Some(mirror)) => mirror,
            Ok(None) => return Ok(false),
            // Gone: the database carries on alone.
            Err(_) => Epoch(0),
        };
        let sent = self.clock.boottime();
        let minted =
            within(self.store.mint(self.me, seen.epoch, mirror, settings.leader_ttl())).await?;
        let Some(epoch) = minted else { return Ok(false) };
        tracing::info!(worker_id = %self.me, %epoch, "this worker leads");
        self.trust(epoch, sent, settings);
        let _ = self.coordinator.leads(self.me, epoch, settings.leader_ttl()).await;
        self.wake.leader();
        self.wake.recovery();
        Ok(true)
    }

    async fn renew(&self, epoch: Epoch, settings: &Settings) -> Result<bool, Error> {
        let sent = self.clock.boottime();
        let (ttl, pace) = (settings.leader_ttl(), settings.leader_renew());
        if !within(self.store.renew_term(self.me, epoch, ttl, pace)).await? {
            tracing::info!(worker_id = %self.me, %epoch, "this worker no longer leads");
            self.state().term = None;
            return Ok(false);
        }
        self.trust(epoch, sent, settings);
        let _ = self.coordinator.leads(self.me, epoch, ttl).await;
        Ok(true)
    }

    /// The lease is trusted from before it was asked for, less a margin.
    fn trust(&self, epoch: Epoch, sent: u64, settings: &Settings) {
        let micros = |duration: std::time::Duration| duration.as_micros() as u64;
        let lasts = micros(settings.leader_ttl()).saturating_sub(micros(settings.leader_margin()));
        let renew_at = sent + micros(settings.leader_renew());
        self.state().term = Some(Term { epoch, renew_at, trusted_until: sent + lasts });
    }

    /// Gives the lead up, if it has it.
    pub(crate) async fn resign(&self) -> Result<(), Error> {
        let Some(term) = self.state().term.take() else { return Ok(()) };
        let me = self.me.to_string();
        self.store.depose(me.as_str(), term.epoch).await?;
        let _ = self.coordinator.resigns(self.me).await;
        Ok(())
    }

    /// The epoch it may act in, while it may.
    pub(crate) fn term(&self) -> Option<Epoch> {
        let now = self.clock.boottime();
        self.state().term.filter(|term| now < term.trusted_until).map(|term| term.epoch)
    }

    /// One turn of planning. Whether there is more to do at once.
    pub(crate) async fn plan(&self, settings: &Settings) -> Result<bool, Error> {
        let mut more = false;
        if self.term().is_none() {
            return Ok(false);
        }
        let clock = self.store.clock().await?;
        for step in [Step::Slots, Step::Events, Step::Sweep, Step::Assign] {
            let Some(epoch) = self.term() else { return Ok(false) };
            let done = match step {
                Step::Slots => self.make_slots(epoch, settings, clock).await,
                Step::Events => self.take_events(epoch, clock).await,
                Step::Sweep => self.sweep(epoch, settings, clock).await.map(|()| false),
                Step::Assign => self.assign(epoch, settings, clock).await.map(|()| false),
            };
            more |= self.unless_fenced(done)?.unwrap_or(false);
        }
        Ok(more)
    }

    /// One turn of supervision: what nobody renewed is recovered, what nobody will start goes back.
    pub(crate) async fn recover(&self, settings: &Settings) -> Result<(), Error> {
        let Some(epoch) = self.term().filter(|_| settings.recovery_enabled()) else {
            return Ok(());
        };
        let done = self.recover_in(epoch, settings).await;
        self.unless_fenced(done).map(drop)
    }

    async fn recover_in(&self, epoch: Epoch, settings: &Settings) -> Result<(), Error> {
        for lapsed in self.store.lapsed(settings.steal_grace(), PAGE).await? {
            if self.term() != Some(epoch) {
                return Ok(());
            }
            let dice = self.dice.roll() as u32;
            let recovered =
                self.store.recover(epoch, &lapsed, settings.steal_grace(), dice).await?;
            for one in recovered.unwrap_or_default() {
                tracing::info!(run_id = %one.run, %epoch, worker_id = %lapsed.worker, to = %one.state, "a lost run was recovered");
                self.wake.leader();
            }
        }
        let given = self.store.given().await?;
        if given.is_empty() {
            return Ok(());
        }
        let workers = self.store.workers().await?;
        let clock = self.store.clock().await?;
        for one in plan::stranded(&given, &workers, clock) {
            if self.store.orphan(epoch, one.run, one.token).await?.is_applied() {
                tracing::info!(run_id = %one.run, %epoch, worker_id = %one.worker, "a run was not started and goes elsewhere");
                self.wake.leader();
            }
        }
        Ok(())
    }

    /// A newer leader is there: what was tried did not happen, and nothing more is.
    fn unless_fenced<T>(&self, done: Result<T, Error>) -> Result<Option<T>, Error> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(Error::Fenced(epoch)) => {
                tracing::info!(worker_id = %self.me, %epoch, "a newer leader is there");
                let mut state = self.state();
                state.term = state.term.filter(|term| term.epoch != epoch);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// T0: runs for what happened.
    async fn take_events(&self, epoch: Epoch, clock: Timestamp) -> Result<bool, Error> {
        let events = self.store.open_events(PAGE).await?;
        if events.is_empty() {
            return Ok(false);
        }
        let full = events.len() == PAGE as usize;
        let mut listeners = Vec::new();
        loop {
            let after = listeners.last().map_or(JobId(0), |job: &Job| job.id);
            let page = self.store.event_jobs(after, PAGE).await?;
            let last = page.len() < PAGE as usize;
            listeners.extend(page);
            if last {
                break;
            }
        }
        for event in &events {
            if self.term() != Some(epoch) {
                return Ok(false);
            }
            match self.take_event(epoch, event, &listeners, clock).await {
                Err(error) if error.is_invalid_input() => {
                    tracing::warn!(event_id = %event.id, %error, "an event cannot make runs");
                    self.store.refuse_event(epoch, event.id, &error.to_string()).await?;
                }
                taken => taken?,
            }
        }
        Ok(full)
    }

    async fn take_event(
        &self,
        epoch: Epoch,
        event: &Event,
        listeners: &[Job],
        clock: Timestamp,
    ) -> Result<(), Error> {
        let payload = match event.payload.as_deref().map(serde_json::from_str::<Value>) {
            None => Value::Null,
            Some(Ok(payload)) => payload,
            Some(Err(_)) => {
                let problem = "its payload is not JSON";
                return self.store.refuse_event(epoch, event.id, problem).await.map(drop);
            }
        };
        // One that names a job is for that job alone.
        let named = match &event.job_name {
            None => None,
            Some(name) => {
                let job = match name.parse::<JobName>() {
                    Ok(name) => self.store.job(&name).await?,
                    Err(_) => None,
                };
                let Some(job) = job.filter(|job| job.is_on(clock)) else {
                    let problem = format!("there is no job {name:?} that is on");
                    return self.store.refuse_event(epoch, event.id, &problem).await.map(drop);
                };
                Some(job)
            }
        };
        let jobs: Vec<&Job> = match &named {
            Some(job) => vec![job],
            None => {
                let takes = |job: &&Job| plan::takes(job, event, &payload, clock);
                listeners.iter().filter(takes).collect()
            }
        };
        if jobs.is_empty() {
            return self.store.pass_event(epoch, event.id).await.map(drop);
        }
        let args = payload.is_object().then(|| payload.to_string());
        let seen: Vec<_> = jobs.iter().map(|job| job.seen()).collect();
        let mut runs = Vec::with_capacity(jobs.len());
        for job in jobs {
            runs.push(NewRun { args: args.clone(), ..NewRun::task(&job.newest) });
        }
        if self.store.take_event(epoch, event.id, &seen, &runs).await?.is_some() {
            self.wake.claims();
        }
        Ok(())
    }

    /// T9, T10, T12, T13: what waits although it is due is looked at in turn. What workers claim for
    /// themselves mostly waits no longer than it takes them: that is looked at once in a while.
    async fn sweep(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let lanes = match self.all_lanes_again(settings) {
            true => self.store.lanes().await?,
            false => vec![String::new()],
        };
        for lane in lanes {
            let mut place = self.state().places.get(&lane).copied().unwrap_or(START);
            for _ in 0..PAGES {
                if self.term() != Some(epoch) {
                    return Ok(());
                }
                let page = self.store.overdue(&lane, place, PAGE).await?;
                self.judge(epoch, &page, clock).await?;
                place = match page.last() {
                    Some(last) if page.len() == PAGE as usize => {
                        (last.wanted.due_at, last.wanted.run)
                    }
                    Some(_) | None => START,
                };
                if place == START {
                    break;
                }
            }
            self.state().places.insert(lane, place);
        }
        Ok(())
    }

    /// Whether the lanes of claimers are to be swept too.
    fn all_lanes_again(&self, settings: &Settings) -> bool {
        let now = self.clock.boottime();
        let pause = settings.leader_tick().as_micros() as u64 / 2;
        let mut state = self.state();
        let again = state.swept_at.is_none_or(|swept_at| now >= swept_at + pause);
        if again {
            state.swept_at = Some(now);
        }
        again
    }

    async fn judge(&self, epoch: Epoch, page: &[Waiting], clock: Timestamp) -> Result<(), Error> {
        let me = self.me.to_string();
        // Of those that would replace one another, the newest of each job and scope.
        let mut newest: HashMap<(JobId, &Scope), (Timestamp, RunId)> = HashMap::new();
        for one in page {
            let place = newest.entry((one.job, &one.scope)).or_insert(START);
            *place = (*place).max((one.scheduled_for, one.wanted.run));
        }
        for one in page {
            let Some(recipe) = self.recipes.get(&self.store, one.job, one.job_version).await?
            else {
                continue;
            };
            let holder = match one.holder {
                Some(run) if one.wanted.exclusive => self.store.run(run).await?,
                Some(_) | None => None,
            };
            let catches_up = match (&holder, one.origin) {
                (Some(_), Origin::Time) => {
                    let job = self.store.job_by_id(one.job).await?;
                    job.and_then(|job| job.misfire).is_some_and(Misfire::catches_up)
                }
                _ => false,
            };
            let run = one.wanted.run;
            let verdict = plan::verdict(one, &recipe, holder.as_ref(), catches_up, clock);
            let replaces =
                recipe.spec.concurrency == tasuki_core::concurrency::ConcurrencyPolicy::Replace;
            let outdone = newest.get(&(one.job, &one.scope)) != Some(&(one.scheduled_for, run));
            match verdict {
                Verdict::Expire => drop(self.store.expire(epoch, run).await?),
                Verdict::Skip(reason) => drop(self.store.skip(epoch, run, reason).await?),
                Verdict::Replace(_) | Verdict::Leave if replaces && outdone => {
                    let author = Author::Leader(epoch);
                    let why = Some("a newer run takes its place");
                    let _ = self.store.cancel(author, run, me.as_str(), why).await?;
                }
                Verdict::Replace(holder) => {
                    let author = Author::Leader(epoch);
                    let why = format!("run {run} takes its place");
                    let asked = self.store.cancel(author, holder, me.as_str(), Some(&why)).await?;
                    if let Outcome::Applied(_) = asked {
                        self.wake.leases();
                    }
                }
                Verdict::Leave => {}
            }
        }
        Ok(())
    }

    /// T1: gives what comes up to those who have room.
    async fn assign(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let mut place = START;
        let until = clock + signed(settings.assign_ahead());
        for _ in 0..PAGES {
            let page = self.store.assignable(place, until, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            place = (last.wanted.due_at, last.wanted.run);
            let given = self.store.given().await?;
            let workers = self.store.workers().await?;
            let candidates = plan::candidates(&workers, &given, self.me);
            let mut wanted = Vec::with_capacity(page.len());
            for one in &page {
                let recipe = self.recipes.get(&self.store, one.job, one.job_version).await?;
                let Some(recipe) = recipe else { continue };
                wanted.push(assign::Wanted {
                    run: one.wanted.run,
                    due_at: one.wanted.due_at,
                    labels: plan::labels(&recipe),
                });
            }
            let placed = assign::assign(&wanted, candidates, clock, settings.heartbeat_ttl());
            let nobody_has_room = placed.is_empty();
            let mut by_worker: BTreeMap<WorkerId, Vec<Wanted>> = BTreeMap::new();
            for one in placed {
                let run = page.iter().find(|waiting| waiting.wanted.run == one.run);
                let run = run.expect("placed from this page").wanted;
                by_worker.entry(one.worker).or_default().push(run);
            }
            for (worker, runs) in by_worker {
                if self.term() != Some(epoch) {
                    return Ok(());
                }
                self.give(epoch, worker, &runs, settings).await?;
            }
            if page.len() < PAGE as usize || nobody_has_room {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn give(
        &self,
        epoch: Epoch,
        worker: WorkerId,
        runs: &[Wanted],
        settings: &Settings,
    ) -> Result<(), Error> {
        let token = LeaseToken::from_random(self.dice.roll());
        let (assign_ahead, reassign_after) = (settings.assign_ahead(), settings.reassign_after());
        let batch = AssignBatch { epoch, worker, token, runs, assign_ahead, reassign_after };
        let given = self.store.assign(&batch).await?;
        let due_at = |run: &RunId| runs.iter().find(|one| one.run == *run).map(|one| one.due_at);
        let runs: Vec<(RunId, Timestamp)> =
            given.iter().filter_map(|run| Some((*run, due_at(run)?))).collect();
        if !runs.is_empty() {
            self.peers.start(worker, StartOrder { epoch, token, runs }).await;
        }
        Ok(())
    }
}

enum Step {
    Slots,
    Events,
    Sweep,
    Assign,
}

fn signed(duration: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
