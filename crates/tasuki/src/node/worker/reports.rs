//! T4 to T6, T11: what has ended is reported, and reported again until somebody has heard it.

use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{Error, Finish, Outcome};

use super::super::attempt;
use super::super::carry::{Ended, Here, Lease};
use super::super::within::within;
use super::{Worker, drop_if_empty};

impl Worker {
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
            }
            self.done(token, ends.iter().map(|(run, _)| *run), now);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
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

    /// What was carried under a lease and is reported: there is room again.
    fn done(&self, token: LeaseToken, runs: impl Iterator<Item = RunId>, now: u64) {
        let mut state = self.state();
        let mut claimed = false;
        if let Some(lease) = state.leases.get_mut(&token) {
            claimed = lease.claimed;
            for run in runs {
                lease.runs.remove(&run);
                lease.done.insert(run, now);
            }
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
