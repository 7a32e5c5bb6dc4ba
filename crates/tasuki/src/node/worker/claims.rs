//! T1c: what may be claimed is taken and launched.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::work::WorkKind;
use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{ClaimBatch, Claimed, Error};

use super::super::carry::{Claim, Here, Lease};
use super::super::within::within;
use super::{Worker, count, database_time, is_command, our_time};

/// How far ahead a claimer looks for its next work.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_secs(1);
/// For how long, in microseconds, a claimer goes on from where it was in a lane before it begins at its start
/// again, where something may have come back, or be no longer in anybody's way.
const ONWARD: u64 = 250_000;

/// Where a claimer is in a lane of which it gets as much as it asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Onward {
    behind: (Timestamp, RunId),
    /// When it was last at the start.
    since: u64,
}

impl Worker {
    /// Claims what may be claimed. Returns when it is to look again.
    pub(crate) async fn claim(&self) -> Result<Option<u64>, Error> {
        let mut next: Option<u64> = None;
        for (lane, kind) in &self.parts.lanes {
            let free = self.free(*kind);
            if free == 0 || self.is_draining() {
                continue;
            }
            let asked = self.parts.clock.boottime();
            let onward = self.state().onward.remove(lane);
            let onward = onward.filter(|onward| asked < onward.since + ONWARD);
            let last = self.claim_from(lane, *kind, free, onward).await?;
            if let Some(behind) = last {
                let since = onward.map_or(asked, |onward| onward.since);
                self.state().onward.insert(lane.clone(), Onward { behind, since });
            }
            // Before where we went on from there may be more, too.
            if last.is_some() || onward.is_some() {
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

    /// Whether there is so little room that it is better to wait a moment for more than to claim a few.
    pub(crate) fn is_crowded(&self) -> bool {
        let slots = self.state().slots.1;
        self.free(WorkKind::Function) < slots.div_ceil(2)
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

    /// How many more of a kind it can run. No more results than it has slots may be on their way: what ends
    /// faster than it is reported must not pile up.
    fn free(&self, kind: WorkKind) -> u32 {
        let state = self.state();
        let (slots, taken) = match is_command(kind) {
            true => (state.slots.0, count(&state, is_command)),
            false => (state.slots.1, count(&state, |kind| !is_command(kind))),
        };
        let unheard = state.leases.values().map(|lease| lease.unheard).sum::<usize>() as u32;
        slots.saturating_sub(taken).min((2 * slots).saturating_sub(taken + unheard))
    }

    /// Claims from a lane. The place of the last if it got all it asked for, so that there may be more.
    async fn claim_from(
        &self,
        lane: &str,
        kind: WorkKind,
        most: u32,
        onward: Option<Onward>,
    ) -> Result<Option<(Timestamp, RunId)>, Error> {
        let token = LeaseToken::from_random(self.parts.dice.roll());
        let sent = self.parts.clock.boottime();
        let settings = self.settings();
        // Known before it is sent: nobody else may take what is found under it for lost.
        let since = Some(sent);
        let (claim, claimed, asked) = (Claim::Sent, true, most);
        let lease = Lease { since, claim, claimed, kind, asked, ..Lease::default() };
        self.state().leases.insert(token, lease);
        let batch =
            ClaimBatch { worker: self.id, token, lane, most, lease_ttl: settings.lease_ttl() };
        let store = &self.parts.store;
        let claimed = match onward {
            Some(onward) => within(store.claim_behind(&batch, onward.behind)).await,
            None => within(store.claim(&batch)).await,
        };
        let runs = {
            let mut state = self.state();
            let Some(lease) = state.leases.get_mut(&token) else { return Ok(None) };
            match claimed {
                Ok(Claimed::Runs(runs)) if runs.is_empty() => {
                    state.leases.remove(&token);
                    return Ok(None);
                }
                Ok(Claimed::Runs(runs)) => {
                    lease.claim = Claim::Known;
                    lease.runs.extend(runs.iter().map(|taken| (taken.id, Here::Starting)));
                    runs
                }
                Ok(Claimed::Before) => {
                    lease.claim = Claim::Unanswered;
                    return Ok(None);
                }
                Err(error) => {
                    lease.claim = Claim::Unanswered;
                    return Err(error);
                }
            }
        };
        self.parts.executor.lease(token, sent + settings.kill_after().as_micros() as u64);
        let full = runs.len() as u32 >= most.min(tasuki_store::MOST_CLAIMED);
        let last = runs.last().filter(|_| full).map(|taken| (taken.due_at, taken.id));
        self.launch(token, runs).await;
        Ok(last)
    }
}
