//! Decides about runs that wait although they are due: expires or skips them, or cancels an older run of a `replace` job
//! (transitions T9, T10, T12, T13).

use std::collections::HashMap;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::{Epoch, JobId, Origin, RunId, RunScope, Settings};
use tasuki_store::{CancelResult, Error, Outcome, WaitingRun, Writer};

use super::{FIRST_PAGE_SIZE, Leader, MAX_PAGES, PAGE_SIZE, START_POSITION};
use crate::node::leader::decisions::{self, WaitingPastDueDecision};

impl Leader {
    /// Processes overdue runs: usually one page, and from time to time all of them. Only these full passes include the
    /// lanes from which workers claim, because claimable runs mostly wait only for the next claim.
    pub(super) async fn expire_and_skip(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let full_pass = self.begin_full_pass(settings);
        let lanes = match full_pass {
            true => self.store.list_waiting_lanes().await?,
            false => vec![String::new()],
        };
        // A leader that is woken often must not read the whole backlog each time.
        let (max_pages, page_size) =
            if full_pass { (MAX_PAGES, PAGE_SIZE) } else { (1, FIRST_PAGE_SIZE) };
        for lane in lanes {
            let mut position = self.state().positions.get(&lane).copied().unwrap_or(START_POSITION);
            for _ in 0..max_pages {
                if self.active_epoch() != Some(epoch) {
                    return Ok(());
                }
                let page = self.store.list_waiting_past_due(&lane, position, page_size).await?;
                self.apply_decisions(epoch, &page, clock).await?;
                position = match page.last() {
                    Some(last) if page.len() == page_size as usize => {
                        (last.due_run.due_at, last.due_run.run)
                    }
                    Some(_) | None => START_POSITION,
                };
                if position == START_POSITION {
                    break;
                }
            }
            self.state().positions.insert(lane, position);
        }
        Ok(())
    }

    /// Returns whether a full pass over all lanes is due, and if so records its start.
    fn begin_full_pass(&self, settings: &Settings) -> bool {
        let now = self.clock.boottime();
        let interval = settings.leader_tick().as_micros() as u64 / 2;
        let mut state = self.state();
        let is_due = state.full_pass_at.is_none_or(|last| now >= last + interval);
        if is_due {
            state.full_pass_at = Some(now);
        }
        is_due
    }

    async fn apply_decisions(
        &self,
        epoch: Epoch,
        page: &[WaitingRun],
        clock: Timestamp,
    ) -> Result<(), Error> {
        let me = self.identity.id().to_string();
        // Newest run of each job and scope: for a `replace` job it supersedes the others.
        let mut newest: HashMap<(JobId, &RunScope), (Timestamp, RunId)> = HashMap::new();
        for waiting in page {
            let position = newest.entry((waiting.job, &waiting.scope)).or_insert(START_POSITION);
            *position = (*position).max((waiting.scheduled_for, waiting.due_run.run));
        }
        self.job_cache
            .load_missing(
                &self.store,
                page.iter().map(|waiting| (waiting.job, waiting.job_version)),
            )
            .await?;
        for waiting in page {
            let Some(job) =
                self.job_cache.find_or_load(&self.store, waiting.job, waiting.job_version).await?
            else {
                continue;
            };
            let holder = match waiting.hold_owner {
                Some(run) if waiting.due_run.exclusive => self.store.find_run(run).await?,
                Some(_) | None => None,
            };
            let catches_up = match (&holder, waiting.origin) {
                (Some(_), Origin::Time) => {
                    let job = self.store.find_job_by_id(waiting.job).await?;
                    job.and_then(|job| job.misfire).is_some_and(MisfirePolicy::catches_up)
                }
                _ => false,
            };
            let run = waiting.due_run.run;
            let decision = decisions::decide_run_waiting_past_due(
                waiting,
                &job,
                holder.as_ref(),
                catches_up,
                clock,
            );
            let replaces = job.spec.concurrency == ConcurrencyPolicy::Replace;
            let superseded =
                newest.get(&(waiting.job, &waiting.scope)) != Some(&(waiting.scheduled_for, run));
            match decision {
                WaitingPastDueDecision::Expire => {
                    drop(self.store.expire_waiting_run(epoch, run).await?);
                }
                WaitingPastDueDecision::Skip(reason) => {
                    drop(self.store.skip(epoch, run, reason).await?);
                }
                WaitingPastDueDecision::Replace(_) | WaitingPastDueDecision::KeepWaiting
                    if replaces && superseded =>
                {
                    let writer = Writer::Leader(epoch);
                    let reason = Some("replaced by a newer run");
                    let _ = self.store.cancel(writer, run, me.as_str(), reason).await?;
                }
                WaitingPastDueDecision::Replace(older) => {
                    let writer = Writer::Leader(epoch);
                    let reason = format!("replaced by run {run}");
                    let canceled =
                        self.store.cancel(writer, older, me.as_str(), Some(&reason)).await?;
                    if let Outcome::Applied(result) = canceled {
                        self.notifier.wake_renew_loops();
                        let worker = holder.and_then(|holder| holder.worker);
                        if let (CancelResult::Requested, Some(worker)) = (result, worker) {
                            self.notifier.outbox_of_worker_hints().enqueue_cancel(worker, older);
                        }
                    }
                }
                WaitingPastDueDecision::KeepWaiting => {}
            }
        }
        Ok(())
    }
}
