//! T4 to T6, T11: what has ended is reported, and reported again until somebody has heard it.

use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{Ending, Error, Outcome};

use super::super::attempt::{self, End, Happened};
use super::super::carry::{Ended, Here, Lease};
use super::super::within::within;
use super::{Worker, drop_if_empty};
use crate::spawner::JobKey;

/// What is to be reported.
#[derive(Default)]
struct Ends {
    endings: Vec<Ending>,
    /// Which attempts these are.
    keys: Vec<JobKey>,
    /// Leases under which there is nothing else.
    closing: Vec<LeaseToken>,
}

impl Worker {
    /// Reports what has ended. What cannot be reported now is kept and tried again. Returns when it is to look
    /// again: ends wait a moment for the others under their lease, so that those of one batch travel together.
    pub(crate) async fn report(&self) -> Result<Option<u64>, Error> {
        self.open_mail();
        let next = self.state().leases.values().filter_map(Lease::report_at).min();
        match next {
            Some(at) if at <= self.parts.clock.boottime() => {
                self.report_all().await?;
                Ok(Some(0))
            }
            at => Ok(at),
        }
    }

    /// Reports what has ended, and waits for nothing.
    pub(crate) async fn report_all(&self) -> Result<(), Error> {
        self.open_mail();
        let Ends { endings, keys, closing } = self.ended();
        if endings.is_empty() {
            return Ok(());
        }
        // What has ended makes room, heard or not.
        if self.lacks_room() {
            self.parts.wake.claims();
        }
        let outcomes = within(self.parts.store.finish_all(&endings, &closing)).await?;
        for ((key, Ending { run, .. }), outcome) in keys.iter().zip(&endings).zip(outcomes) {
            if let Outcome::Lost(lost) = outcome {
                tracing::info!(run_id = %run, worker_id = %self.id, state = ?lost.state, "a result came too late");
            }
            self.parts.executor.forget(*key);
        }
        self.done(&endings);
        Ok(())
    }

    /// Turns what executors told into ends to be reported.
    fn open_mail(&self) {
        let letters = self.parts.mail.drain();
        let at = self.parts.clock.boottime();
        let mut state = self.state();
        for Happened { key, token, end } in letters {
            let run = RunId(key.run);
            let Some(lease) = state.leases.get_mut(&token) else {
                self.parts.executor.forget(key);
                continue;
            };
            match lease.runs.get(&run) {
                Some(Here::Running(running)) if running.key == key => {
                    let (recipe, stopped) = (&running.recipe, running.stopped);
                    // Who succeeded is not tried again, so there is nothing to roll for.
                    let good = stopped.is_none() && matches!(end, End::Returned(Ok(_)));
                    let dice = if good { 0 } else { self.roll() };
                    let finish = attempt::finish(recipe, end, stopped, dice);
                    let ended = Here::Ended(Box::new(Ended { key, finish, at }));
                    lease.put(run, ended);
                }
                // Told twice.
                Some(Here::Ended(ended)) if ended.key == key => {}
                // Dropped before: somebody else carries it, or nobody. So it was, too, where an old order has
                // named it again since.
                Some(
                    Here::Waiting { .. }
                    | Here::Starting
                    | Here::Unsure
                    | Here::Running(_)
                    | Here::Ended(_),
                )
                | None => self.parts.executor.forget(key),
            }
        }
    }

    /// What has ended.
    fn ended(&self) -> Ends {
        let state = self.state();
        let mut ends = Ends::default();
        for (&token, lease) in &state.leases {
            for (&run, here) in &lease.runs {
                if let Here::Ended(ended) = here {
                    ends.keys.push(ended.key);
                    ends.endings.push(Ending { token, run, finish: ended.finish.clone() });
                }
            }
            if lease.report_at() == Some(0) {
                ends.closing.push(token);
            }
        }
        ends
    }

    /// What was carried and is reported: there is room again.
    fn done(&self, endings: &[Ending]) {
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        let mut assigned = false;
        for Ending { token, run, .. } in endings {
            let Some(lease) = state.leases.get_mut(token) else { continue };
            assigned |= !lease.claimed;
            lease.take(*run);
            lease.done.insert(*run, now);
            drop_if_empty(&mut state, *token);
        }
        drop(state);
        // Room for what was claimed is no business of the leader's.
        if assigned {
            self.parts.wake.leader();
        }
        if self.lacks_room() {
            self.parts.wake.claims();
        }
        self.orders.notify_one();
    }
}
