//! T9, T10, T12, T13: what waits although it is due is passed over, given up or makes room.

use std::collections::HashMap;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::{Epoch, JobId, Origin, RunId, Scope, Settings};
use tasuki_store::{Writer, Canceled, Error, Outcome, Waiting};

use super::{FEW, Leader, PAGE, PAGES, START};
use crate::node::leader::plan::{self, Verdict};

impl Leader {
    /// Looks at what is overdue, in turn: a page each time, and all of it once in a while. So too what workers
    /// claim for themselves, which mostly waits no longer than it takes them.
    pub(super) async fn sweep(
        &self,
        epoch: Epoch,
        settings: &Settings,
        clock: Timestamp,
    ) -> Result<(), Error> {
        let all = self.all_lanes_again(settings);
        let lanes = match all {
            true => self.store.lanes().await?,
            false => vec![String::new()],
        };
        // Woken for something, a leader does not go through a whole backlog each time.
        let (pages, most) = if all { (PAGES, PAGE) } else { (1, FEW) };
        for lane in lanes {
            let mut place = self.state().places.get(&lane).copied().unwrap_or(START);
            for _ in 0..pages {
                if self.term() != Some(epoch) {
                    return Ok(());
                }
                let page = self.store.overdue(&lane, place, most).await?;
                self.judge(epoch, &page, clock).await?;
                place = match page.last() {
                    Some(last) if page.len() == most as usize => {
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
        let me = self.me.id().to_string();
        // Of those that would replace one another, the newest of each job and scope.
        let mut newest: HashMap<(JobId, &Scope), (Timestamp, RunId)> = HashMap::new();
        for one in page {
            let place = newest.entry((one.job, &one.scope)).or_insert(START);
            *place = (*place).max((one.scheduled_for, one.wanted.run));
        }
        self.recipes.fetch(&self.store, page.iter().map(|one| (one.job, one.job_version))).await?;
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
            let replaces = recipe.spec.concurrency == ConcurrencyPolicy::Replace;
            let outdone = newest.get(&(one.job, &one.scope)) != Some(&(one.scheduled_for, run));
            match verdict {
                Verdict::Expire => drop(self.store.expire(epoch, run).await?),
                Verdict::Skip(reason) => drop(self.store.skip(epoch, run, reason).await?),
                Verdict::Replace(_) | Verdict::Leave if replaces && outdone => {
                    let author = Writer::Leader(epoch);
                    let why = Some("a newer run takes its place");
                    let _ = self.store.cancel(author, run, me.as_str(), why).await?;
                }
                Verdict::Replace(older) => {
                    let author = Writer::Leader(epoch);
                    let why = format!("run {run} takes its place");
                    let asked = self.store.cancel(author, older, me.as_str(), Some(&why)).await?;
                    if let Outcome::Applied(done) = asked {
                        self.announce.leases();
                        let carrier = holder.and_then(|holder| holder.worker);
                        if let (Canceled::Asked, Some(worker)) = (done, carrier) {
                            self.announce.words().canceled(worker, older);
                        }
                    }
                }
                Verdict::Leave => {}
            }
        }
        Ok(())
    }
}
