//! Assigns due runs to workers with free slots (transition T1).

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use tasuki_core::assign::{self, PlacementPlanner};
use tasuki_core::{Epoch, LeaseToken, RunId, Settings, WorkerId};
use tasuki_store::{AssignRequest, DueRun, Error};

use super::{FIRST_PAGE_SIZE, Leader, MAX_PAGES, PAGE_SIZE, START_POSITION, to_signed};
use crate::node::coordination::node_rpc::{Peer, StartOrder};
use crate::node::leader::decisions;

impl Leader {
    /// Assigns runs that are due within `assign_ahead` to workers, page by page while a worker has a free slot.
    pub(super) async fn assign(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let mut position = START_POSITION;
        let until = clock + to_signed(settings.assign_ahead());
        let (mut planner, mut page_size) = (None, FIRST_PAGE_SIZE);
        let mut peers = HashMap::new();
        for _ in 0..MAX_PAGES {
            let page = self.store.list_assignable(position, until, page_size).await?;
            let Some(last) = page.last() else { return Ok(()) };
            position = (last.due_run.due_at, last.due_run.run);
            let planner = match &mut planner {
                Some(planner) => planner,
                empty => {
                    let (assignments, workers) = (
                        self.store.list_assigned_runs_of_all_workers().await?,
                        self.store.list_workers().await?,
                    );
                    let candidates =
                        decisions::placement_candidates(&workers, &assignments, self.identity.id());
                    let addresses = workers.into_iter().map(|worker| (worker.id, worker.address));
                    peers.extend(addresses);
                    empty.insert(PlacementPlanner::new(candidates, clock, settings.heartbeat_ttl()))
                }
            };
            self.job_cache
                .load_missing(&self.store, page.iter().map(|row| (row.job, row.job_version)))
                .await?;
            let mut to_place = Vec::with_capacity(page.len());
            for row in &page {
                let job =
                    self.job_cache.find_or_load(&self.store, row.job, row.job_version).await?;
                let Some(job) = job else { continue };
                to_place.push(assign::RunToPlace {
                    run: row.due_run.run,
                    due_at: row.due_run.due_at,
                    labels: decisions::required_labels(&job),
                    hold_key: row.due_run.exclusive.then(|| (row.job, row.scope.clone())),
                });
            }
            let placed = planner.place_runs(&to_place);
            let mut by_worker: BTreeMap<WorkerId, Vec<DueRun>> = BTreeMap::new();
            for placement in placed {
                let row = page.iter().find(|row| row.due_run.run == placement.run);
                let run = row.expect("placed from this page").due_run;
                by_worker.entry(placement.worker).or_default().push(run);
            }
            for (worker, runs) in by_worker {
                if self.active_epoch() != Some(epoch) {
                    return Ok(());
                }
                let address = peers.get(&worker).cloned().flatten();
                self.assign_to(epoch, Peer { worker, address }, &runs, settings).await?;
            }
            if page.len() < page_size as usize || !planner.has_free_slot() {
                return Ok(());
            }
            // Either no worker fits these runs, or there are many free slots: read larger pages from here on.
            page_size = PAGE_SIZE;
        }
        Ok(())
    }

    async fn assign_to(
        &self,
        epoch: Epoch,
        peer: Peer,
        runs: &[DueRun],
        settings: &Settings,
    ) -> Result<(), Error> {
        let (worker, token) = (peer.worker, LeaseToken::from_random(self.random.next_u128()));
        let (assign_ahead, reassign_after) = (settings.assign_ahead(), settings.reassign_after());
        let request = AssignRequest { epoch, worker, token, runs, assign_ahead, reassign_after };
        let assigned = self.store.assign(&request).await?;
        let due_at = |run: &RunId| runs.iter().find(|row| row.run == *run).map(|row| row.due_at);
        let runs: Vec<(RunId, Timestamp)> =
            assigned.iter().filter_map(|run| Some((*run, due_at(run)?))).collect();
        if !runs.is_empty() {
            self.queue_order(peer, StartOrder { epoch, token, runs });
        }
        Ok(())
    }
}
