//! What a worker carries, and what follows when a renewal says what is still its own. No I/O here: the
//! ticks of the worker ask the database, this decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::Stopped;
use tasuki_core::job_spec::WorkKind;
use tasuki_core::{RunId, RunState};
use tasuki_store::{AttemptResult, FirstLines, RenewedRun};

use super::queues::Pool;
use super::recipes::Recipe;
use crate::node::executor::attempt::Signs;
use crate::spawner::JobKey;

/// How long an end waits for others to travel with, in microseconds.
const COMPANY: u64 = 1_000;
/// The same for those that were launched a moment ago.
const TOGETHER: u64 = 5_000;

/// A lease as its worker sees it.
#[derive(Debug)]
pub(crate) struct Lease {
    /// When the renewal was sent that it lasts from; `None`: nothing under it has started.
    pub(crate) since: Option<u64>,
    /// A claim is under way, or got no answer: what is under it is not known yet.
    pub(crate) claim: Claim,
    /// Whether it was claimed; else a leader gave it.
    pub(crate) claimed: bool,
    /// Whose slots what was claimed with it uses; what was assigned is a command until it is launched.
    pub(crate) pool: Pool,
    /// How many were asked for: so much room is taken until it is known how many came.
    pub(crate) asked: u32,
    /// When something was last launched under it.
    pub(crate) launched: u64,
    /// How many have ended and are not reported yet, and when the first of them did.
    pub(crate) unheard: usize,
    pub(crate) first_end: Option<u64>,
    /// Whether a report of what has ended under it is under way: the next waits for its answer.
    pub(crate) reporting: bool,
    /// What is carried under it.
    pub(crate) runs: BTreeMap<RunId, Here>,
    /// What was carried and reported, and when: nothing is launched twice.
    pub(crate) done: BTreeMap<RunId, u64>,
}

/// How far a claim got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// There was none, or it was answered.
    Known,
    /// It is under way: hands off.
    Sent,
    /// It got no answer.
    Unanswered,
}

/// A run in a worker's hands.
#[derive(Debug)]
pub(crate) enum Here {
    /// Assigned: to be started at its time.
    Waiting {
        /// By the database's clock.
        due_at: Timestamp,
        /// By ours: a start that came too early is tried again a little later.
        not_before: u64,
    },
    /// A start is under way.
    Starting,
    /// A start got no answer: the next renewal tells.
    Unsure,
    /// Launched.
    Running(Box<Running>),
    /// Ended: to be reported.
    Ended(Box<Ended>),
}

/// A launched attempt.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) key: JobKey,
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) signs: Signs,
    /// When its time is up.
    pub(crate) deadline: u64,
    /// How long it may be silent.
    pub(crate) silence: Option<Duration>,
    /// The same once it has reported progress.
    pub(crate) silence_after_progress: Option<Duration>,
    pub(crate) grace: Duration,
    /// Why it was told to stop.
    pub(crate) stopped: Option<Stopped>,
}

/// An ended attempt.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) key: JobKey,
    pub(crate) finish: AttemptResult,
    /// What it printed, where that is kept with its end.
    pub(crate) printed: Option<FirstLines>,
    /// Since when it waits for company.
    pub(crate) at: u64,
    /// Whether something else may be claimed once this is reported: its hold is given back, or it has another try.
    pub(crate) stirs: bool,
}

impl Ended {
    /// One of which nothing else is known, and that may stir others.
    pub(crate) fn unheard(key: JobKey, finish: AttemptResult, at: u64) -> Self {
        Self { key, finish, printed: None, at, stirs: true }
    }
}

impl Running {
    /// Why it has to stop now, if it has to.
    pub(crate) fn overstays(&self, now: u64) -> Option<Stopped> {
        if self.stopped.is_some() || self.signs.have_ended() {
            return None;
        }
        if now >= self.deadline {
            return Some(Stopped::Timeout);
        }
        self.silence_ends().is_some_and(|end| now >= end).then_some(Stopped::Silence)
    }

    /// Whether its process is gone, and it is not known yet how it ended. A function that has returned is not: it uses its slot
    /// until somebody has heard of it.
    fn is_ending(&self) -> bool {
        self.signs.have_ended() && self.recipe.work.kind() != WorkKind::Function
    }

    /// When it would have to stop.
    pub(crate) fn next_look(&self) -> Option<u64> {
        match self.stopped {
            Some(_) => None,
            None if self.signs.have_ended() => None,
            None => Some(self.silence_ends().map_or(self.deadline, |end| end.min(self.deadline))),
        }
    }

    fn silence_ends(&self) -> Option<u64> {
        let silence = match self.signs.of_progress() {
            true => self.silence_after_progress,
            false => self.silence,
        };
        silence.map(|silence| self.signs.last() + silence.as_micros() as u64)
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            since: None,
            claim: Claim::Known,
            claimed: false,
            pool: Pool::Commands,
            asked: 0,
            launched: 0,
            unheard: 0,
            first_end: None,
            reporting: false,
            runs: BTreeMap::new(),
            done: BTreeMap::new(),
        }
    }
}

impl Lease {
    /// Whether it is to be renewed: something started under it, or may have.
    pub(crate) fn is_live(&self) -> bool {
        self.claim != Claim::Known
            || self.runs.values().any(|here| !matches!(here, Here::Waiting { .. }))
    }

    /// How much room of a pool is taken. A process that has ended takes none, though it is not known yet how it did.
    pub(crate) fn running(&self, pool: Pool) -> usize {
        let counts = |here: &&Here| match here {
            Here::Running(running) => !running.is_ending() && pool == self.pool_of(running),
            Here::Starting | Here::Unsure => pool == self.pool,
            Here::Waiting { .. } | Here::Ended(_) => false,
        };
        let running = match self.pool {
            Pool::Commands | Pool::Claimed => self.runs.values().filter(counts).count(),
            // Functions, and many: they were claimed, so none of them waits, and they are not looked through at every end.
            Pool::Queue(_) if pool == self.pool => self.runs.len() - self.unheard,
            Pool::Queue(_) => 0,
        };
        running + self.expected(pool)
    }

    /// How many commands have ended of which it is not known yet how.
    pub(crate) fn ending(&self) -> usize {
        let ends = |here: &&Here| matches!(here, Here::Running(running) if running.is_ending());
        match self.pool {
            Pool::Commands | Pool::Claimed => self.runs.values().filter(ends).count(),
            // Functions, and many: they are not looked through at every end.
            Pool::Queue(_) => 0,
        }
    }

    /// A function that was assigned uses a slot of the default queue.
    fn pool_of(&self, running: &Running) -> Pool {
        match (self.pool, running.recipe.work.kind()) {
            (Pool::Commands, WorkKind::Function) => Pool::Queue(0),
            (pool, _) => pool,
        }
    }

    /// How much of a pool may come under it, of which nothing is known yet.
    fn expected(&self, pool: Pool) -> usize {
        match self.claim {
            Claim::Sent | Claim::Unanswered if pool == self.pool => self.asked as usize,
            Claim::Sent | Claim::Unanswered | Claim::Known => 0,
        }
    }

    /// When what has ended under it is to be reported: at once where nothing else runs, else after a moment in
    /// which others may end. Of what was launched together much ends together.
    pub(crate) fn report_at(&self) -> Option<u64> {
        let first = self.first_end.filter(|_| self.unheard > 0 && !self.reporting)?;
        let all = self.unheard == self.runs.len();
        let soon = (first + COMPANY).max(self.launched + TOGETHER).min(first + TOGETHER);
        Some(if all { 0 } else { soon })
    }

    /// Puts a run where it is now. What has ended is put here and nowhere else, and taken away by [`Self::take`].
    pub(crate) fn put(&mut self, run: RunId, here: Here) {
        if let Here::Ended(ended) = &here {
            if self.unheard == 0 {
                self.first_end = Some(ended.at);
            }
            self.unheard += 1;
        }
        if let Some(Here::Ended(_)) = self.runs.insert(run, here) {
            self.unheard -= 1;
        }
    }

    /// Takes a run away.
    pub(crate) fn take(&mut self, run: RunId) -> Option<Here> {
        let here = self.runs.remove(&run);
        if let Some(Here::Ended(_)) = here {
            self.unheard -= 1;
        }
        here
    }
}

/// What a worker does about one run after a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Somebody asked it to stop.
    Stop(RunId),
    /// It is no longer ours: kill it, write nothing.
    Drop(RunId),
    /// It runs in the database and was never launched: launch it, or end it where a cancel was asked.
    Launch(RunId, Canceled),
    /// It is still only assigned: the start never landed.
    WaitOn(RunId),
    /// It runs in the database, but there is nothing of it here any more.
    Ghost(RunId),
}

/// Whether a cancel was asked.
pub(crate) type Canceled = bool;

/// What follows from a renewal that was sent at this time and says this.
pub(crate) fn after_renewal(lease: &Lease, sent: u64, told: &[RenewedRun]) -> Vec<Todo> {
    let mut todo = Vec::new();
    for named in told {
        let run = named.run;
        let runs = named.state == RunState::Running;
        match lease.runs.get(&run) {
            Some(Here::Unsure) if runs => todo.push(Todo::Launch(run, named.cancel_asked)),
            Some(Here::Unsure) => todo.push(Todo::WaitOn(run)),
            Some(Here::Running(running)) if named.cancel_asked && running.stopped.is_none() => {
                todo.push(Todo::Stop(run));
            }
            Some(Here::Waiting { .. } | Here::Starting | Here::Running(_) | Here::Ended(_)) => {}
            None if !runs => {}
            None => match lease.done.get(&run) {
                // Asked before it was reported: the answer is old.
                Some(&done) if done >= sent => {}
                Some(_) => todo.push(Todo::Ghost(run)),
                None if lease.claim == Claim::Unanswered => {
                    todo.push(Todo::Launch(run, named.cancel_asked));
                }
                None => {}
            },
        }
    }
    let missing = |run: &RunId| told.iter().all(|named| named.run != *run);
    for (run, here) in &lease.runs {
        match here {
            Here::Waiting { .. } | Here::Unsure | Here::Running(_) if missing(run) => {
                todo.push(Todo::Drop(*run));
            }
            // What is being started or reported answers for itself.
            _ => {}
        }
    }
    todo
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tasuki_core::concurrency::ConcurrencyPolicy;
    use tasuki_core::exit::FailureRules;
    use tasuki_core::job_spec::{What, Work};
    use tasuki_store::JobSpec;

    pub(crate) fn recipe(work: Work) -> Recipe {
        Recipe {
            name: "job".to_owned(),
            spec: JobSpec {
                kind: WorkKind::Command,
                spec: String::new(),
                lane: String::new(),
                concurrency: ConcurrencyPolicy::Allow,
                max_attempts: 1,
                max_releases: 1,
                backoff: Duration::ZERO,
                backoff_cap: Duration::ZERO,
                jitter_percent: 0,
                retry_lost: true,
                labels: [].into(),
            },
            work,
            rules: FailureRules::default(),
        }
    }

    fn running(stopped: Option<Stopped>) -> Here {
        let recipe = recipe(Work::new(What::Command(vec!["true".to_owned()])));
        Here::Running(Box::new(Running {
            key: JobKey::default(),
            recipe: Arc::new(recipe),
            signs: Signs::default(),
            deadline: 100,
            silence: Some(Duration::from_micros(30)),
            silence_after_progress: Some(Duration::from_micros(5)),
            grace: Duration::ZERO,
            stopped,
        }))
    }

    /// A process that is gone makes room at once; a function that has returned does when somebody has heard of it.
    #[test]
    fn what_has_ended_makes_room_as_soon_as_it_uses_none() {
        let here = |what, pool| {
            let Here::Running(mut running) = running(None) else { unreachable!("it runs") };
            running.recipe = Arc::new(recipe(Work::new(what)));
            running.signs.end();
            let runs = [(RunId(1), Here::Running(running))].into();
            Lease { runs, pool, ..Lease::default() }
        };
        let command = here(What::Command(vec!["true".to_owned()]), Pool::Claimed);
        assert_eq!((command.running(Pool::Claimed), command.ending()), (0, 1));
        let function = here(What::Function("f".to_owned()), Pool::Queue(0));
        assert_eq!((function.running(Pool::Queue(0)), function.ending()), (1, 0));
    }

    fn waiting() -> Here {
        Here::Waiting { due_at: Timestamp::UNIX_EPOCH, not_before: 0 }
    }

    fn named(state: RunState, cancel_asked: bool) -> Vec<RenewedRun> {
        vec![RenewedRun { run: RunId(1), state, cancel_asked }]
    }

    #[test]
    fn what_a_renewal_asks_of_a_worker() {
        use RunState::{Assigned, Running};
        let ended = || {
            let finish = AttemptResult::default();
            Here::Ended(Box::new(Ended::unheard(JobKey::default(), finish, 0)))
        };
        let run = RunId(1);
        let table: [(Option<Here>, Vec<RenewedRun>, Vec<Todo>); 15] = [
            (Some(waiting()), named(Assigned, false), vec![]),
            (Some(waiting()), vec![], vec![Todo::Drop(run)]),
            (Some(Here::Starting), named(Assigned, false), vec![]),
            (Some(Here::Starting), named(Running, false), vec![]),
            (Some(Here::Starting), vec![], vec![]),
            (Some(Here::Unsure), named(Running, false), vec![Todo::Launch(run, false)]),
            (Some(Here::Unsure), named(Running, true), vec![Todo::Launch(run, true)]),
            (Some(Here::Unsure), named(Assigned, false), vec![Todo::WaitOn(run)]),
            (Some(Here::Unsure), vec![], vec![Todo::Drop(run)]),
            (Some(running(None)), named(Running, false), vec![]),
            (Some(running(None)), named(Running, true), vec![Todo::Stop(run)]),
            (Some(running(Some(Stopped::Timeout))), named(Running, true), vec![]),
            (Some(running(None)), vec![], vec![Todo::Drop(run)]),
            (Some(ended()), vec![], vec![]),
            (None, named(Running, false), vec![]),
        ];
        for (here, told, expected) in table {
            let shown = format!("{here:?} {told:?}");
            let runs = here.into_iter().map(|here| (run, here)).collect();
            let lease = Lease { runs, ..Lease::default() };
            assert_eq!(after_renewal(&lease, 50, &told), expected, "{shown}");
        }
    }

    /// A renewal that was sent before the report and answered after it must not launch the run again.
    #[test]
    fn what_was_reported_is_never_launched_again() {
        let told = named(RunState::Running, false);
        for (claim, done, expected) in [
            (Claim::Unanswered, None, vec![Todo::Launch(RunId(1), false)]),
            (Claim::Unanswered, Some(60), vec![]),
            (Claim::Known, Some(60), vec![]),
            (Claim::Known, Some(40), vec![Todo::Ghost(RunId(1))]),
            (Claim::Sent, None, vec![]),
        ] {
            let done = done.into_iter().map(|at| (RunId(1), at)).collect();
            let lease = Lease { claim, done, ..Lease::default() };
            assert_eq!(after_renewal(&lease, 50, &told), expected, "{claim:?}");
        }
    }

    #[test]
    fn time_and_silence_run_out() {
        let Here::Running(job) = running(None) else { unreachable!() };
        job.signs.show(20);
        assert_eq!(job.overstays(49), None);
        assert_eq!(job.overstays(50), Some(Stopped::Silence));
        assert_eq!(job.next_look(), Some(50));
        job.signs.show_progress(40);
        assert_eq!((job.overstays(44), job.overstays(45)), (None, Some(Stopped::Silence)));
        assert_eq!(job.next_look(), Some(45));
        job.signs.show(96);
        assert_eq!(job.overstays(99), None);
        assert_eq!(job.overstays(100), Some(Stopped::Timeout));
        // Its last lines may still be on their way: that is not its fault.
        job.signs.end();
        assert_eq!((job.overstays(1_000), job.next_look()), (None, None));
        let Here::Running(job) = running(Some(Stopped::Cancel)) else { unreachable!() };
        assert_eq!((job.overstays(1_000), job.next_look()), (None, None));
    }
}
