//! The leader: makes runs of slots and events, gives them to workers, and passes over or gives up what
//! cannot be. Supervision too: what was lost is recovered.
//!
//! It acts only while it may trust its lease, and every write of it is fenced by its epoch: one that comes
//! too late changes nothing.

mod assign;
mod events;
mod others;
pub(crate) mod plan;
pub(crate) mod scopes;
mod slots;
mod sweep;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tasuki_core::{Epoch, JobId, RunId, Settings, WorkerId};
use tasuki_store::{Error, News, Store};
use tokio::sync::Notify;

use self::slots::Timed;
use super::within::within;
use super::world::{Clock, Dice};
use crate::Wake;
use crate::node::coordination::coordinate::{Coordinator, Role};
use crate::node::coordination::peers::{Answer, Peer, Peers, StartOrder};
use crate::node::worker::me::Me;
use crate::node::worker::recipes::Recipes;
use crate::notify::announce::Announce;

/// How many of anything one look takes in.
const PAGE: u32 = 500;
/// How many a first look takes in: mostly few find room, however many wait.
const FEW: u32 = 64;
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
    me: Me,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    dice: Arc<dyn Dice>,
    wake: Wake,
    announce: Announce,
    recipes: Recipes,
    state: Mutex<State>,
    /// What was given and is still to be told.
    orders: Mutex<Vec<(Peer, StartOrder)>>,
    ordered: Notify,
}

#[derive(Default)]
struct State {
    term: Option<Term>,
    /// Where the sweep of each lane goes on.
    places: HashMap<String, (Timestamp, RunId)>,
    /// When all lanes were last swept.
    swept_at: Option<u64>,
    /// Whether it watches the leader for its node.
    watches: bool,
    /// When that was last decided by the tables.
    decided_at: Option<u64>,
    /// Workers of which nothing was heard, and since when.
    silent: HashMap<WorkerId, u64>,
    /// A leader of which nothing was seen, and since when.
    suspect: Option<(Epoch, u64)>,
    /// When it last looked after workers.
    looked_at: Option<u64>,
    /// Since when it has seen nobody lead.
    vacant_since: Option<u64>,
    /// It does not stand before then: it lost the lead, or could not take it, and others may have more luck.
    stands_at: u64,
    /// It lost the lead and has not told so where leaders are seen.
    untold: bool,
    /// Jobs that fire by time.
    timed: HashMap<JobId, Arc<Timed>>,
}

impl Leader {
    pub(crate) fn new(
        me: Me,
        store: Store,
        coordinator: Arc<dyn Coordinator>,
        peers: Arc<dyn Peers>,
        world: (Arc<dyn Clock>, Arc<dyn Dice>),
        wake: Wake,
    ) -> Self {
        let (clock, dice) = world;
        // Where nobody decides who watches, everybody does.
        let state = Mutex::new(State { watches: true, ..State::default() });
        let recipes = Recipes::default();
        let announce = Announce::new(&store, wake.clone());
        let (orders, ordered) = (Mutex::default(), Notify::new());
        Self {
            me,
            store,
            coordinator,
            peers,
            clock,
            dice,
            wake,
            announce,
            recipes,
            state,
            orders,
            ordered,
        }
    }

    /// Keeps the lead, or takes it where nobody has it. Whether it leads.
    pub(crate) async fn lead(&self, settings: &Settings) -> Result<bool, Error> {
        let now = self.clock.boottime();
        self.tell_lost().await;
        let term = self.state().term;
        if let Some(term) = term {
            self.state().vacant_since = None;
            if now < term.renew_at {
                return Ok(self.term().is_some());
            }
            return self.renew(term.epoch, settings).await;
        }
        let seen = within(self.store.leader()).await?;
        if seen.lease_until > seen.clock {
            self.state().vacant_since = None;
            return match seen.holder == Some(self.me.id()) {
                // A mint whose answer was lost.
                true => self.renew(seen.epoch, settings).await,
                false => Ok(false),
            };
        }
        // Those who watch go first. What was resigned, or lapsed a while ago, is for everybody.
        let patience = signed(settings.subleader_check());
        let vacant = {
            let mut state = self.state();
            let since = *state.vacant_since.get_or_insert(now);
            let early = seen.clock.duration_since(seen.lease_until) < patience;
            // Its own lease that merely ran out is its own to take again; one that was taken from it is not.
            let ran_out =
                seen.holder == Some(self.me.id()) && seen.lease_until > Timestamp::UNIX_EPOCH;
            if (now < state.stands_at && !ran_out) || (early && !state.watches) {
                return Ok(false);
            }
            now.saturating_sub(since)
        };
        let mirror = match self.coordinator.stand(self.me.id(), settings.leader_ttl()).await {
            Ok(Some(mirror)) => mirror,
            // Who has the lock and does not lead after so long cannot: the mint lets one through anyway.
            Ok(None) if vacant > settings.leader_ttl().as_micros() as u64 => Epoch(0),
            Ok(None) => return Ok(false),
            // Gone: the database carries on alone.
            Err(_) => Epoch(0),
        };
        let sent = self.clock.boottime();
        let asked = self.store.mint(self.me.id(), seen.epoch, mirror, settings.leader_ttl());
        let epoch = match within(asked).await {
            Ok(Some(epoch)) => epoch,
            told => {
                // Whoever has more luck must not wait for our lock.
                self.lost(settings);
                self.tell_lost().await;
                return told.map(|_| false);
            }
        };
        tracing::info!(worker_id = %self.me.id(), %epoch, "this worker leads");
        self.trust(epoch, sent, settings);
        let _ = self.coordinator.leads(self.me.id(), epoch, settings.leader_ttl()).await;
        self.wake.leader();
        self.wake.recovery();
        Ok(true)
    }

    async fn renew(&self, epoch: Epoch, settings: &Settings) -> Result<bool, Error> {
        let sent = self.clock.boottime();
        let (ttl, pace) = (settings.leader_ttl(), settings.leader_renew());
        if !within(self.store.renew_term(self.me.id(), epoch, ttl, pace)).await? {
            tracing::info!(worker_id = %self.me.id(), %epoch, "this worker no longer leads");
            self.state().term = None;
            self.lost(settings);
            self.tell_lost().await;
            return Ok(false);
        }
        self.trust(epoch, sent, settings);
        let _ = self.coordinator.leads(self.me.id(), epoch, ttl).await;
        Ok(true)
    }

    /// The lead is another's, or nobody's: others have a look first.
    fn lost(&self, settings: &Settings) {
        let mut state = self.state();
        state.stands_at = self.clock.boottime() + settings.subleader_check().as_micros() as u64;
        state.untold = true;
    }

    /// Tells where leaders are seen that this one is none any more.
    async fn tell_lost(&self) {
        let untold = std::mem::take(&mut self.state().untold);
        if untold {
            let _ = self.coordinator.resigns(self.me.id()).await;
        }
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
        let me = self.me.id().to_string();
        let resigned = within(self.store.depose(me.as_str(), term.epoch)).await?;
        let _ = self.coordinator.resigns(self.me.id()).await;
        if !resigned {
            return Ok(());
        }
        // Who does not hear it looks within a second.
        let news = News { from: self.wake.id(), lead: true, ..News::default() };
        let _ = self.coordinator.tell(news).await;
        let _ = within(self.store.tell(news)).await;
        Ok(())
    }

    /// The epoch it may act in, while it may.
    pub(crate) fn term(&self) -> Option<Epoch> {
        let now = self.clock.boottime();
        self.state().term.filter(|term| now < term.trusted_until).map(|term| term.epoch)
    }

    /// What it is in its cluster.
    pub(crate) fn role(&self) -> Role {
        match (self.term(), self.state().watches) {
            (Some(_), _) => Role::Leader,
            (None, true) => Role::Subleader,
            (None, false) => Role::Worker,
        }
    }

    /// Has somebody told of an order, as soon as may be.
    fn send(&self, peer: Peer, order: StartOrder) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push((peer, order));
        self.ordered.notify_one();
    }

    /// Waits until there is an order to tell of.
    pub(crate) async fn ordered(&self) {
        self.ordered.notified().await;
    }

    /// Tells of the orders there are. What is not heard is found with a heartbeat.
    pub(crate) async fn deliver(&self) {
        let orders =
            std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        let told = orders.iter().map(async |(peer, order)| {
            match self.peers.start(peer, order).await {
                Ok(Answer::Accepted | Answer::AlreadyRunning) => {}
                Ok(refusal) => {
                    tracing::info!(epoch = %order.epoch, worker_id = %peer.worker, ?refusal, "an order was refused");
                }
                Err(silent) => {
                    tracing::debug!(epoch = %order.epoch, worker_id = %peer.worker, %silent, "an order was not heard");
                }
            }
        });
        join_all(told).await;
    }

    /// One turn of planning. Whether there is more to do at once.
    pub(crate) async fn plan(&self, settings: &Settings) -> Result<bool, Error> {
        let (mut more, mut failed) = (false, None);
        if self.term().is_none() {
            return Ok(false);
        }
        let begun = self.clock.boottime();
        let seen = self.store.glance(slots::near(settings)).await?;
        let clock = seen.clock;
        // What the first two make waits for the last two.
        let waits = seen.waiting || seen.fires || seen.events;
        let steps = [
            (Step::Slots, seen.fires),
            (Step::Events, seen.events),
            (Step::Sweep, waits),
            (Step::Assign, waits),
        ];
        for (step, _) in steps.into_iter().filter(|(_, wanted)| *wanted) {
            let Some(epoch) = self.term() else { return Ok(false) };
            let done = match step {
                Step::Slots => self.make_slots(epoch, settings, clock).await,
                Step::Events => self.take_events(epoch, clock).await,
                Step::Sweep => self.sweep(epoch, settings, clock).await.map(|()| false),
                Step::Assign => self.assign(epoch, settings, clock).await.map(|()| false),
            };
            match self.unless_fenced(done) {
                Ok(done) => more |= done.unwrap_or(false),
                // What is wrong with one step keeps no other from being done.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let micros = self.clock.boottime().saturating_sub(begun);
        tracing::debug!(micros, waits, more, "a tick");
        match failed {
            Some(error) => Err(error),
            None => Ok(more),
        }
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
                tracing::info!(worker_id = %self.me.id(), %epoch, "a newer leader is there");
                let mut state = self.state();
                state.term = state.term.filter(|term| term.epoch != epoch);
                state.untold = state.term.is_none();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
