//! T4 to T6, T11: what has ended is reported, and reported again until somebody has heard it.

use futures_util::future::join_all;
use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{Dialect, AttemptReport, Error, FirstLines, Outcome, Succeeded};

use super::super::within::within;
use super::{State, Worker, drop_if_empty};
use crate::node::executor::attempt::{self, End, Happened};
use crate::node::worker::carry::{Ended, Here, Lease};
use crate::spawner::JobKey;

/// How many ends are told at the same time where they cannot be told together.
const AT_ONCE: usize = 4;

/// What is to be reported.
struct Ends {
    endings: Vec<AttemptReport>,
    /// What else is known of each.
    known: Vec<Known>,
    /// Leases under which there is nothing else.
    closing: Vec<LeaseToken>,
}

/// The leases of which ends are being reported, until that is over, however it ends: nobody else reports them meanwhile.
struct Reporting<'w> {
    worker: &'w Worker,
    tokens: Vec<LeaseToken>,
}

impl Drop for Reporting<'_> {
    fn drop(&mut self) {
        let mut state = self.worker.state();
        for token in &self.tokens {
            state.leases.get_mut(token).into_iter().for_each(|lease| lease.reporting = false);
        }
    }
}

/// What is known of an end, besides what is told.
#[derive(Clone, Copy)]
struct Known {
    /// Which attempt it is.
    key: JobKey,
    stirs: bool,
}

impl Worker {
    /// Reports what has ended. What cannot be reported now is kept and tried again. Returns when it is to look
    /// again: ends wait a moment for the others under their lease, so that those of one batch travel together.
    pub(crate) async fn report(&self) -> Result<Option<u64>, Error> {
        self.open_mail();
        // What has ended makes room, heard or not.
        if self.lacks_room() && self.state().leases.values().any(|lease| lease.ending() > 0) {
            self.parts.wake.claims();
        }
        let next = {
            let state = self.state();
            let unkept = (!state.unkept.is_empty()).then_some(0);
            state.leases.values().filter_map(Lease::report_at).chain(unkept).min()
        };
        match next {
            Some(at) if at <= self.parts.clock.boottime() => {
                // Boxed: every end wakes us, most of them only to be looked at, and what is large is moved about each time.
                Box::pin(self.report_all()).await?;
                Ok(Some(0))
            }
            at => Ok(at),
        }
    }

    /// Reports what has ended, and waits for nothing.
    pub(crate) async fn report_all(&self) -> Result<(), Error> {
        self.open_mail();
        let (Ends { endings, known, closing }, _reporting) = self.ended();
        if endings.is_empty() {
            return self.keep_unkept().await;
        }
        // What has ended makes room, heard or not.
        if self.lacks_room() {
            self.parts.wake.claims();
        }
        let store = &self.parts.store;
        let mut failed = None;
        let Succeeded { ended, open } =
            within(store.succeed_all(&endings, &closing)).await.unwrap_or_else(|error| {
                failed = Some(error);
                Succeeded { open: closing, ..Succeeded::default() }
            });
        // Mostly all of them have, and nobody has to look for each.
        let all = ended.len() == endings.len();
        let (told, left): (Vec<_>, Vec<_>) = endings
            .iter()
            .zip(&known)
            .partition(|(ending, _)| all || ended.contains(&(ending.run, ending.token)));
        self.done(&told);
        // The rest a few at a time, and each for itself: what cannot be told now keeps no other from being told, and
        // what was told is not told again.
        for some in left.chunks(self.at_once()) {
            let each = some.iter().map(|(ending, _)| within(store.finish_open(ending)));
            for (one, outcome) in some.iter().zip(join_all(each).await) {
                match outcome {
                    Ok(Outcome::Lost(lost)) => {
                        tracing::info!(run_id = %one.0.run, worker_id = %self.id(), state = ?lost.state, "a result came too late");
                        self.done(&[*one]);
                    }
                    Ok(_) => self.done(&[*one]),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        for token in open {
            if let Err(error) = within(store.close_if_empty(token)).await {
                failed = failed.or(Some(error));
            }
        }
        let kept = self.keep_unkept().await;
        failed.map_or(kept, Err)
    }

    /// How many ends are told at the same time where they cannot be told together.
    fn at_once(&self) -> usize {
        match self.parts.store.dialect() {
            Dialect::Sqlite => 1,
            Dialect::Postgres | Dialect::MySql => AT_ONCE,
        }
    }

    /// Keeps what those printed that it no longer carries: nobody else will.
    async fn keep_unkept(&self) -> Result<(), Error> {
        let printed = std::mem::take(&mut self.state().unkept);
        if printed.is_empty() {
            return Ok(());
        }
        match within(self.parts.store.open_logs(&printed)).await {
            Err(error) if error.is_unavailable() || error.is_contention() => {
                self.state().unkept.extend(printed);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(worker_id = %self.id(), %error, "what was printed cannot be kept");
            }
            Ok(_) => {}
        }
        let key = |log: &FirstLines| JobKey { run: log.run.0, attempt: log.attempt_no };
        self.parts.executor.forget_all(&printed.iter().map(key).collect::<Vec<_>>());
        Ok(())
    }

    /// It is not ours any more; what it printed is kept all the same.
    fn let_go(&self, state: &mut State, key: JobKey, printed: Option<FirstLines>) {
        match printed {
            Some(printed) => state.unkept.push(printed),
            None => self.parts.executor.forget(key),
        }
    }

    /// Turns what executors told into ends to be reported.
    fn open_mail(&self) {
        let letters = self.parts.mail.drain();
        let at = self.parts.clock.boottime();
        let mut state = self.state();
        for Happened { key, token, mut end } in letters {
            let run = RunId(key.run);
            let printed = end.take_printed();
            let Some(lease) = state.leases.get_mut(&token) else {
                self.let_go(&mut state, key, printed);
                continue;
            };
            match lease.runs.get(&run) {
                Some(Here::Running(running)) if running.key == key => {
                    let (recipe, stopped) = (&running.recipe, running.stopped);
                    // Who succeeded is not tried again, so there is nothing to roll for.
                    // Those of commands have had company on their way.
                    let waited = matches!(end, End::Exited { .. });
                    let good = stopped.is_none() && matches!(end, End::Returned(Ok(_)));
                    let dice = if good { 0 } else { self.roll() };
                    let finish = attempt::finish(recipe, end, stopped, dice);
                    let stirs = finish.failure.is_some() || recipe.spec.concurrency.needs_hold();
                    let at = if waited { 0 } else { at };
                    let ended = Here::Ended(Box::new(Ended { key, finish, printed, at, stirs }));
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
                | None => self.let_go(&mut state, key, printed),
            }
        }
    }

    /// What has ended and nobody reports yet.
    fn ended(&self) -> (Ends, Reporting<'_>) {
        let mut reporting = Reporting { worker: self, tokens: Vec::new() };
        let mut state = self.state();
        let unheard = state.leases.values().filter(|lease| !lease.reporting);
        let unheard = unheard.map(|lease| lease.unheard).sum();
        let (endings, known) = (Vec::with_capacity(unheard), Vec::with_capacity(unheard));
        let mut ends = Ends { endings, known, closing: Vec::new() };
        for (&token, lease) in &mut state.leases {
            if lease.reporting || lease.unheard == 0 {
                continue;
            }
            for (&run, here) in &lease.runs {
                if let Here::Ended(ended) = here {
                    ends.known.push(Known { key: ended.key, stirs: ended.stirs });
                    let Ended { finish, printed, .. } = (**ended).clone();
                    ends.endings.push(AttemptReport { token, run, finish, printed });
                }
            }
            if lease.report_at() == Some(0) {
                ends.closing.push(token);
            }
            lease.reporting = true;
            reporting.tokens.push(token);
        }
        drop(state);
        (ends, reporting)
    }

    /// What was carried and is reported: there is room again.
    fn done(&self, told: &[(&AttemptReport, &Known)]) {
        if told.is_empty() {
            return;
        }
        let now = self.parts.clock.boottime();
        let (mut assigned, mut stirs) = (false, false);
        let mut state = self.state();
        for (AttemptReport { token, run, .. }, known) in told {
            stirs |= known.stirs;
            let Some(lease) = state.leases.get_mut(token) else { continue };
            assigned |= !lease.claimed;
            lease.take(*run);
            lease.done.insert(*run, now);
            drop_if_empty(&mut state, *token);
        }
        drop(state);
        let keys: Vec<JobKey> = told.iter().map(|(_, known)| known.key).collect();
        self.parts.executor.forget_all(&keys);
        // Room for what was claimed is no business of the leader's.
        if assigned {
            self.parts.wake.leader();
        }
        if stirs || self.lacks_room() {
            self.parts.wake.claims();
        }
        self.orders.notify_one();
    }
}
