//! T1: what comes up is given to those who have room.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use tasuki_core::assign::{self, Placing};
use tasuki_core::{Epoch, LeaseToken, RunId, Settings, WorkerId};
use tasuki_store::{AssignBatch, Error, DueRun};

use super::{FEW, Leader, PAGE, PAGES, START, signed};
use crate::node::coordination::peers::{Peer, StartOrder};
use crate::node::leader::plan;

impl Leader {
    /// Gives what is due within assign_ahead to workers, page by page while somebody has room.
    pub(super) async fn assign(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let mut place = START;
        let until = clock + signed(settings.assign_ahead());
        let (mut placing, mut most) = (None, FEW);
        let mut peers = HashMap::new();
        for _ in 0..PAGES {
            let page = self.store.assignable(place, until, most).await?;
            let Some(last) = page.last() else { return Ok(()) };
            place = (last.wanted.due_at, last.wanted.run);
            let placing = match &mut placing {
                Some(placing) => placing,
                none => {
                    let (given, workers) = (self.store.given().await?, self.store.workers().await?);
                    let candidates = plan::candidates(&workers, &given, self.me.id());
                    let addresses = workers.into_iter().map(|worker| (worker.id, worker.address));
                    peers.extend(addresses);
                    none.insert(Placing::new(candidates, clock, settings.heartbeat_ttl()))
                }
            };
            self.recipes
                .fetch(&self.store, page.iter().map(|one| (one.job, one.job_version)))
                .await?;
            let mut wanted = Vec::with_capacity(page.len());
            for one in &page {
                let recipe = self.recipes.get(&self.store, one.job, one.job_version).await?;
                let Some(recipe) = recipe else { continue };
                wanted.push(assign::Wanted {
                    run: one.wanted.run,
                    due_at: one.wanted.due_at,
                    labels: plan::labels(&recipe),
                    alone: one.wanted.exclusive.then(|| (one.job, one.scope.clone())),
                });
            }
            let placed = placing.place(&wanted);
            let mut by_worker: BTreeMap<WorkerId, Vec<DueRun>> = BTreeMap::new();
            for one in placed {
                let run = page.iter().find(|waiting| waiting.wanted.run == one.run);
                let run = run.expect("placed from this page").wanted;
                by_worker.entry(one.worker).or_default().push(run);
            }
            for (worker, runs) in by_worker {
                if self.term() != Some(epoch) {
                    return Ok(());
                }
                let address = peers.get(&worker).cloned().flatten();
                self.give(epoch, Peer { worker, address }, &runs, settings).await?;
            }
            if page.len() < most as usize || !placing.has_room() {
                return Ok(());
            }
            // Nobody has room for these, or there is room for many.
            most = PAGE;
        }
        Ok(())
    }

    async fn give(
        &self,
        epoch: Epoch,
        peer: Peer,
        runs: &[DueRun],
        settings: &Settings,
    ) -> Result<(), Error> {
        let (worker, token) = (peer.worker, LeaseToken::from_random(self.dice.roll()));
        let (assign_ahead, reassign_after) = (settings.assign_ahead(), settings.reassign_after());
        let batch = AssignBatch { epoch, worker, token, runs, assign_ahead, reassign_after };
        let given = self.store.assign(&batch).await?;
        let due_at = |run: &RunId| runs.iter().find(|one| one.run == *run).map(|one| one.due_at);
        let runs: Vec<(RunId, Timestamp)> =
            given.iter().filter_map(|run| Some((*run, due_at(run)?))).collect();
        if !runs.is_empty() {
            self.send(peer, StartOrder { epoch, token, runs });
        }
        Ok(())
    }
}
