//! T3: leases are renewed, and what the answers ask for is done; what overstays is stopped.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::Stopped;
use tasuki_core::{ErrorCode, LeaseToken, RunId};
use tasuki_store::{Error, Renewed, Taken};

use super::super::within::within;
use super::{Worker, drop_if_empty, running_in};
use crate::node::executor::attempt;
use crate::node::worker::carry::{Claim, Ended, Here, Lease, Todo, after_renewal};
use crate::spawner::JobKey;

/// For how long, in microseconds, a claim that was given up may still land.
const LATEST: u64 = 600_000_000;

impl Worker {
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
        let asked = self.parts.store.renew_many(self.id(), &tokens, settings.lease_ttl());
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
    /// renewed; that is given no longer than the lease lasts. Returns when it is to look again.
    pub(crate) fn tend(&self) -> Option<u64> {
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        let term_after = state.settings.term_after().as_micros() as u64;
        let kill_after = state.settings.kill_after().as_micros() as u64;
        let mut next: Option<u64> = None;
        for lease in state.leases.values_mut() {
            let lapses = lease.since.map(|since| since + term_after);
            let lapsed = lapses.is_some_and(|at| at <= now);
            let ends = lease.since.map(|since| since + kill_after);
            let over = ends.is_some_and(|at| at <= now);
            for running in running_in(lease) {
                // Somebody else may have it soon, however long it may take to stop.
                if over {
                    running.grace = Duration::ZERO;
                }
                let why = running.overstays(now).or(lapsed.then_some(Stopped::Silence));
                if let Some(why) = why {
                    self.stop(running, why);
                }
                let leased = if lapsed { ends } else { lapses };
                let look = [running.next_look(), leased.filter(|_| !over)];
                next = look.into_iter().chain([next]).flatten().min();
            }
        }
        next
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
        let Ok(running) = within(self.parts.store.running_under(token)).await else { return };
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
            lease.put(run, Here::Starting);
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
    pub(super) fn end_unlaunched(&self, token: LeaseToken, taken: &Taken, code: ErrorCode) {
        let failure = tasuki_core::exit::FailureRules::default().failure(code, None);
        let finish = attempt::failed(failure, "it was not running on its worker", self.roll());
        let key = JobKey { run: taken.id.0, attempt: taken.attempt_no };
        let ended = Ended::unheard(key, finish, self.parts.clock.boottime());
        self.put(token, taken.id, Here::Ended(Box::new(ended)));
        self.parts.mail.ring();
    }

    /// The lease is gone: kill what runs under it and write nothing.
    fn lose(&self, token: LeaseToken) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for running in running_in(lease) {
            tracing::warn!(run_id = running.key.run, worker_id = %self.id(), "its lease was lost: it is killed");
            self.parts.executor.stop(running.key, Stopped::Silence, Duration::ZERO);
        }
        // What is being started or reported learns for itself that it lost.
        lease.runs.retain(|_, here| matches!(here, Here::Starting | Here::Ended(_)));
        let (unanswered, pool) = (lease.claim == Claim::Unanswered, lease.pool);
        lease.claim = Claim::Known;
        drop_if_empty(&mut state, token);
        if unanswered {
            // Nothing is there yet, which is not to say that nothing comes.
            let now = self.parts.clock.boottime();
            state.late.retain(|_, (since, _)| now < *since + LATEST);
            state.late.insert(token, (now, pool));
        }
    }

    /// One run is no longer ours.
    pub(super) fn drop_run(&self, token: LeaseToken, run: RunId) {
        let mut state = self.state();
        if let Some(lease) = state.leases.get_mut(&token)
            && let Some(Here::Running(running)) = lease.take(run)
        {
            tracing::warn!(run_id = %run, worker_id = %self.id(), "it is no longer ours: it is killed");
            self.parts.executor.stop(running.key, Stopped::Silence, Duration::ZERO);
        }
        drop_if_empty(&mut state, token);
    }
}
