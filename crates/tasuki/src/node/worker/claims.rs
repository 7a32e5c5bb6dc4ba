//! T1c: what may be claimed is taken and launched.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::LeaseToken;
use tasuki_core::work::WorkKind;
use tasuki_store::{ClaimBatch, Claimed, Error};

use super::super::carry::{Claim, Here, Lease};
use super::super::within::within;
use super::{Worker, count, database_time, is_command, our_time};

/// How far ahead a claimer looks for its next work.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_secs(1);

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
}
