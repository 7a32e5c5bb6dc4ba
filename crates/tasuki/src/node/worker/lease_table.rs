//! The worker's table of leases and leased runs in memory, and the decisions after a renewal. Pure: the loops of the
//! worker talk to the database, this module decides. Only the database knows which leases the worker still holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::work_spec::WorkKind;
use tasuki_core::{RunId, RunState};
use tasuki_store::{AttemptResult, FirstOutputLines, RenewedRun};

use super::configured_slots_and_lanes::SlotPool;
use crate::node::executor::attempt_input_and_result::LastSignOfLife;
use crate::node::job_version_cache::ParsedJobVersion;
use crate::spawner::AttemptKey;

/// How long a report waits for other reports of its lease, in microseconds, so that one statement writes them all.
const BATCH_DELAY_MICROS: u64 = 1_000;
/// Maximum wait in microseconds while the runs of the lease were launched a moment ago: runs that were launched
/// together often end together.
const LAUNCH_BATCH_DELAY_MICROS: u64 = 5_000;

/// A lease that the worker holds, with its runs.
#[derive(Debug)]
pub(crate) struct LeaseWithRuns {
    /// When the last successful renewal (or start or claim) was sent, by the local clock in microseconds. The lease
    /// lasts from then. `None`: no run of it has started.
    pub(crate) renewed_at: Option<u64>,
    /// State of the claim that created this lease. Until it is answered, the worker does not know the runs of the
    /// lease.
    pub(crate) claim: ClaimStatus,
    /// Whether the worker claimed it; otherwise a leader assigned it.
    pub(crate) claimed: bool,
    /// Pool of the slots that its runs use. Assigned runs count as commands until they are launched.
    pub(crate) pool: SlotPool,
    /// Maximum number of runs that the claim may return. So many slots are reserved until the claim is answered.
    pub(crate) requested: u32,
    /// When a run of it was last launched, by the local clock in microseconds.
    pub(crate) launched_at: u64,
    /// Number of its runs that have ended and are not reported yet.
    pub(crate) unreported: usize,
    /// When the first of the unreported runs ended, by the local clock in microseconds.
    pub(crate) first_end_at: Option<u64>,
    /// Whether reports of this lease are being written. The next reports wait until that has finished.
    pub(crate) reporting: bool,
    /// Its leased runs.
    pub(crate) runs: BTreeMap<RunId, LocalRunState>,
    /// Runs that were reported, and when, by the local clock in microseconds. A run in this map is never launched
    /// again.
    pub(crate) reported: BTreeMap<RunId, u64>,
}

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimStatus {
    /// It was answered, or the lease was not claimed.
    Answered,
    /// The statement is running. Renewals leave the lease alone.
    Sent,
    /// The statement failed or timed out, and may have taken effect.
    Unanswered,
}

/// State of a leased run in the worker.
#[derive(Debug)]
pub(crate) enum LocalRunState {
    /// Assigned; it starts when it is due.
    Waiting {
        /// When it is due, by the database clock.
        due_at: Timestamp,
        /// Earliest next try, by the local clock in microseconds: a start that came too early is repeated a little
        /// later.
        not_before: u64,
    },
    /// The start statement is running.
    Starting,
    /// The start got no answer. The next renewal shows whether the run is RUNNING.
    Unconfirmed,
    /// Launched and not ended.
    Running(Box<RunningAttempt>),
    /// Ended and not reported yet.
    Ended(Box<PendingReport>),
}

/// An attempt that was launched. All instants are microseconds of the local clock.
#[derive(Debug)]
pub(crate) struct RunningAttempt {
    pub(crate) key: AttemptKey,
    pub(crate) job: Arc<ParsedJobVersion>,
    pub(crate) liveness: LastSignOfLife,
    /// When its timeout passes.
    pub(crate) deadline: u64,
    /// Maximum time between two signs of life (output or progress). `None`: no limit.
    pub(crate) max_silence: Option<Duration>,
    /// As `max_silence`, once it has reported progress.
    pub(crate) max_silence_after_progress: Option<Duration>,
    /// Time between the stop signal and the kill.
    pub(crate) stop_grace: Duration,
    /// Why the worker stopped it, if it did.
    pub(crate) stop_reason: Option<AttemptStopReason>,
}

/// An attempt that has ended and is not reported yet.
#[derive(Debug, Clone)]
pub(crate) struct PendingReport {
    pub(crate) key: AttemptKey,
    pub(crate) result: AttemptResult,
    /// Its captured output, where that is stored together with its result.
    pub(crate) output: Option<FirstOutputLines>,
    /// When it ended, by the local clock in microseconds. 0: it is reported immediately.
    pub(crate) ended_at: u64,
    /// Whether the report may make another run claimable: it releases a hold, or the run is retried.
    pub(crate) frees_claim: bool,
}

impl PendingReport {
    /// A report without captured output, after which another run may become claimable.
    pub(crate) fn new_without_output(
        key: AttemptKey,
        result: AttemptResult,
        ended_at: u64,
    ) -> Self {
        Self { key, result, output: None, ended_at, frees_claim: true }
    }
}

impl RunningAttempt {
    /// The reason to stop it now: its timeout or its maximum silence has passed.
    pub(crate) fn timeout_reason(&self, now: u64) -> Option<AttemptStopReason> {
        if self.stop_reason.is_some() || self.liveness.has_ended() {
            return None;
        }
        if now >= self.deadline {
            return Some(AttemptStopReason::Timeout);
        }
        self.silence_deadline().is_some_and(|end| now >= end).then_some(AttemptStopReason::Silence)
    }

    /// Whether its process is gone and the worker does not know its result yet. Never true of a function: one that has
    /// returned uses its slot until its completion is processed.
    fn has_unreported_end(&self) -> bool {
        self.liveness.has_ended() && self.job.work.kind() != WorkKind::Function
    }

    /// When [`Self::timeout_reason`] has to be checked next, by the local clock. `None`: never again.
    pub(crate) fn next_check_at(&self) -> Option<u64> {
        match self.stop_reason {
            Some(_) => None,
            None if self.liveness.has_ended() => None,
            None => {
                Some(self.silence_deadline().map_or(self.deadline, |end| end.min(self.deadline)))
            }
        }
    }

    fn silence_deadline(&self) -> Option<u64> {
        let max_silence = match self.liveness.has_reported_progress() {
            true => self.max_silence_after_progress,
            false => self.max_silence,
        };
        max_silence.map(|max_silence| self.liveness.last_seen() + max_silence.as_micros() as u64)
    }
}

impl Default for LeaseWithRuns {
    fn default() -> Self {
        Self {
            renewed_at: None,
            claim: ClaimStatus::Answered,
            claimed: false,
            pool: SlotPool::Commands,
            requested: 0,
            launched_at: 0,
            unreported: 0,
            first_end_at: None,
            reporting: false,
            runs: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }
}

impl LeaseWithRuns {
    /// Whether the lease must be renewed: one of its runs was started, or may have been.
    pub(crate) fn needs_renewal(&self) -> bool {
        self.claim != ClaimStatus::Answered
            || self.runs.values().any(|status| !matches!(status, LocalRunState::Waiting { .. }))
    }

    /// Slots of a pool that this lease uses or reserves. A process that has ended uses none, even before its result
    /// is known.
    pub(crate) fn used_slots(&self, pool: SlotPool) -> usize {
        let counts = |status: &&LocalRunState| match status {
            LocalRunState::Running(running) => {
                !running.has_unreported_end() && pool == self.pool_of(running)
            }
            LocalRunState::Starting | LocalRunState::Unconfirmed => pool == self.pool,
            LocalRunState::Waiting { .. } | LocalRunState::Ended(_) => false,
        };
        let running = match self.pool {
            SlotPool::Commands | SlotPool::Claimed => self.runs.values().filter(counts).count(),
            // Functions were claimed, so none of them waits. There may be many, so they are not counted one by one at
            // every completion.
            SlotPool::Queue(_) if pool == self.pool => self.runs.len() - self.unreported,
            SlotPool::Queue(_) => 0,
        };
        running + self.reserved_slots(pool)
    }

    /// Number of commands whose process has ended and whose result is not known yet.
    pub(crate) fn unreported_ends(&self) -> usize {
        let is_unreported = |status: &&LocalRunState| matches!(status, LocalRunState::Running(running) if running.has_unreported_end());
        match self.pool {
            SlotPool::Commands | SlotPool::Claimed => {
                self.runs.values().filter(is_unreported).count()
            }
            // There may be many functions: they are not counted one by one at every completion.
            SlotPool::Queue(_) => 0,
        }
    }

    /// The pool that a run uses. A function that was assigned uses a slot of the default queue.
    fn pool_of(&self, running: &RunningAttempt) -> SlotPool {
        match (self.pool, running.job.work.kind()) {
            (SlotPool::Commands, WorkKind::Function) => SlotPool::Queue(0),
            (pool, _) => pool,
        }
    }

    /// Slots of a pool that an unanswered claim may need.
    fn reserved_slots(&self, pool: SlotPool) -> usize {
        match self.claim {
            ClaimStatus::Sent | ClaimStatus::Unanswered if pool == self.pool => {
                self.requested as usize
            }
            ClaimStatus::Sent | ClaimStatus::Unanswered | ClaimStatus::Answered => 0,
        }
    }

    /// When the ended runs are to be reported, by the local clock: now (0) if no other run of the lease is left,
    /// else after a short delay in which others may end. `None`: nothing to report, or reports are being written.
    pub(crate) fn report_due_at(&self) -> Option<u64> {
        let first = self.first_end_at.filter(|_| self.unreported > 0 && !self.reporting)?;
        let all = self.unreported == self.runs.len();
        let soon = (first + BATCH_DELAY_MICROS)
            .max(self.launched_at + LAUNCH_BATCH_DELAY_MICROS)
            .min(first + LAUNCH_BATCH_DELAY_MICROS);
        Some(if all { 0 } else { soon })
    }

    /// Sets the state of a run. Only this method sets [`LocalRunState::Ended`], and only [`Self::remove_run`] removes it,
    /// so that `unreported` stays right.
    pub(crate) fn set_run_status(&mut self, run: RunId, status: LocalRunState) {
        if let LocalRunState::Ended(report) = &status {
            if self.unreported == 0 {
                self.first_end_at = Some(report.ended_at);
            }
            self.unreported += 1;
        }
        if let Some(LocalRunState::Ended(_)) = self.runs.insert(run, status) {
            self.unreported -= 1;
        }
    }

    /// Removes a run from the lease.
    pub(crate) fn remove_run(&mut self, run: RunId) -> Option<LocalRunState> {
        let status = self.runs.remove(&run);
        if let Some(LocalRunState::Ended(_)) = status {
            self.unreported -= 1;
        }
        status
    }
}

/// What the worker does with one run after a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewalAction {
    /// A cancel was requested: stop it.
    Stop(RunId),
    /// The worker no longer leases it: kill it and write nothing.
    DropRun(RunId),
    /// It is RUNNING in the database and was never launched: launch it, or end it if a cancel was requested.
    Launch(RunId, CancelRequested),
    /// It is still ASSIGNED: the start had no effect, so it waits again.
    WaitAgain(RunId),
    /// It is RUNNING in the database although its end was reported before: report that it is not running here.
    ReportNotRunning(RunId),
}

/// Whether a cancel was requested.
pub(crate) type CancelRequested = bool;

/// Decides what follows from a renewal that was sent at `sent_at` (local clock) and returned these runs.
pub(crate) fn renewal_actions(
    lease: &LeaseWithRuns,
    sent_at: u64,
    answer: &[RenewedRun],
) -> Vec<RenewalAction> {
    let mut actions = Vec::new();
    for renewed in answer {
        let run = renewed.run;
        let runs = renewed.state == RunState::Running;
        match lease.runs.get(&run) {
            Some(LocalRunState::Unconfirmed) if runs => {
                actions.push(RenewalAction::Launch(run, renewed.cancel_requested));
            }
            Some(LocalRunState::Unconfirmed) => actions.push(RenewalAction::WaitAgain(run)),
            Some(LocalRunState::Running(running))
                if renewed.cancel_requested && running.stop_reason.is_none() =>
            {
                actions.push(RenewalAction::Stop(run));
            }
            Some(
                LocalRunState::Waiting { .. }
                | LocalRunState::Starting
                | LocalRunState::Running(_)
                | LocalRunState::Ended(_),
            ) => {}
            None if !runs => {}
            None => match lease.reported.get(&run) {
                // The renewal was sent before the report was written, so its answer is out of date.
                Some(&done) if done >= sent_at => {}
                Some(_) => actions.push(RenewalAction::ReportNotRunning(run)),
                None if lease.claim == ClaimStatus::Unanswered => {
                    actions.push(RenewalAction::Launch(run, renewed.cancel_requested));
                }
                None => {}
            },
        }
    }
    let missing = |run: &RunId| answer.iter().all(|renewed| renewed.run != *run);
    for (run, status) in &lease.runs {
        match status {
            LocalRunState::Waiting { .. }
            | LocalRunState::Unconfirmed
            | LocalRunState::Running(_)
                if missing(run) =>
            {
                actions.push(RenewalAction::DropRun(*run));
            }
            // Starts and reports that are being written find out themselves that the run is gone.
            _ => {}
        }
    }
    actions
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tasuki_core::concurrency::ConcurrencyPolicy;
    use tasuki_core::exit::FailureRules;
    use tasuki_core::work_spec::{WorkAction, WorkSpec};
    use tasuki_store::JobVersionSpec;

    pub(crate) fn runnable_job(work: WorkSpec) -> ParsedJobVersion {
        ParsedJobVersion {
            name: "job".to_owned(),
            spec: JobVersionSpec {
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

    fn running(stopped: Option<AttemptStopReason>) -> LocalRunState {
        let job = runnable_job(WorkSpec::new(WorkAction::Command(vec!["true".to_owned()])));
        LocalRunState::Running(Box::new(RunningAttempt {
            key: AttemptKey::default(),
            job: Arc::new(job),
            liveness: LastSignOfLife::default(),
            deadline: 100,
            max_silence: Some(Duration::from_micros(30)),
            max_silence_after_progress: Some(Duration::from_micros(5)),
            stop_grace: Duration::ZERO,
            stop_reason: stopped,
        }))
    }

    /// A process that has ended frees its slot immediately; a function that has returned frees it with its completion.
    #[test]
    fn ended_processes_free_their_slots_at_once() {
        let status = |what, pool| {
            let LocalRunState::Running(mut running) = running(None) else {
                unreachable!("it is running")
            };
            running.job = Arc::new(runnable_job(WorkSpec::new(what)));
            running.liveness.mark_ended();
            let runs = [(RunId(1), LocalRunState::Running(running))].into();
            LeaseWithRuns { runs, pool, ..LeaseWithRuns::default() }
        };
        let command = status(WorkAction::Command(vec!["true".to_owned()]), SlotPool::Claimed);
        assert_eq!((command.used_slots(SlotPool::Claimed), command.unreported_ends()), (0, 1));
        let function = status(WorkAction::Function("f".to_owned()), SlotPool::Queue(0));
        assert_eq!((function.used_slots(SlotPool::Queue(0)), function.unreported_ends()), (1, 0));
    }

    fn waiting() -> LocalRunState {
        LocalRunState::Waiting { due_at: Timestamp::UNIX_EPOCH, not_before: 0 }
    }

    fn renewed_run(state: RunState, cancel_requested: bool) -> Vec<RenewedRun> {
        vec![RenewedRun { run: RunId(1), state, cancel_requested }]
    }

    #[test]
    fn renewal_actions_follow_from_the_renewed_runs() {
        use RunState::{Assigned, Running};
        let ended = || {
            let finish = AttemptResult::default();
            LocalRunState::Ended(Box::new(PendingReport::new_without_output(
                AttemptKey::default(),
                finish,
                0,
            )))
        };
        let run = RunId(1);
        let table: [(Option<LocalRunState>, Vec<RenewedRun>, Vec<RenewalAction>); 15] = [
            (Some(waiting()), renewed_run(Assigned, false), vec![]),
            (Some(waiting()), vec![], vec![RenewalAction::DropRun(run)]),
            (Some(LocalRunState::Starting), renewed_run(Assigned, false), vec![]),
            (Some(LocalRunState::Starting), renewed_run(Running, false), vec![]),
            (Some(LocalRunState::Starting), vec![], vec![]),
            (
                Some(LocalRunState::Unconfirmed),
                renewed_run(Running, false),
                vec![RenewalAction::Launch(run, false)],
            ),
            (
                Some(LocalRunState::Unconfirmed),
                renewed_run(Running, true),
                vec![RenewalAction::Launch(run, true)],
            ),
            (
                Some(LocalRunState::Unconfirmed),
                renewed_run(Assigned, false),
                vec![RenewalAction::WaitAgain(run)],
            ),
            (Some(LocalRunState::Unconfirmed), vec![], vec![RenewalAction::DropRun(run)]),
            (Some(running(None)), renewed_run(Running, false), vec![]),
            (Some(running(None)), renewed_run(Running, true), vec![RenewalAction::Stop(run)]),
            (Some(running(Some(AttemptStopReason::Timeout))), renewed_run(Running, true), vec![]),
            (Some(running(None)), vec![], vec![RenewalAction::DropRun(run)]),
            (Some(ended()), vec![], vec![]),
            (None, renewed_run(Running, false), vec![]),
        ];
        for (status, answer, expected) in table {
            let context = format!("{status:?} {answer:?}");
            let runs = status.into_iter().map(|status| (run, status)).collect();
            let lease = LeaseWithRuns { runs, ..LeaseWithRuns::default() };
            assert_eq!(renewal_actions(&lease, 50, &answer), expected, "{context}");
        }
    }

    /// A renewal that was sent before the report and answered after it must not launch the run again.
    #[test]
    fn reported_runs_are_never_launched_again() {
        let answer = renewed_run(RunState::Running, false);
        for (claim, done, expected) in [
            (ClaimStatus::Unanswered, None, vec![RenewalAction::Launch(RunId(1), false)]),
            (ClaimStatus::Unanswered, Some(60), vec![]),
            (ClaimStatus::Answered, Some(60), vec![]),
            (ClaimStatus::Answered, Some(40), vec![RenewalAction::ReportNotRunning(RunId(1))]),
            (ClaimStatus::Sent, None, vec![]),
        ] {
            let done = done.into_iter().map(|at| (RunId(1), at)).collect();
            let lease = LeaseWithRuns { claim, reported: done, ..LeaseWithRuns::default() };
            assert_eq!(renewal_actions(&lease, 50, &answer), expected, "{claim:?}");
        }
    }

    #[test]
    fn timeout_and_silence_are_detected() {
        let LocalRunState::Running(job) = running(None) else { unreachable!() };
        job.liveness.touch(20);
        assert_eq!(job.timeout_reason(49), None);
        assert_eq!(job.timeout_reason(50), Some(AttemptStopReason::Silence));
        assert_eq!(job.next_check_at(), Some(50));
        job.liveness.touch_progress(40);
        assert_eq!(
            (job.timeout_reason(44), job.timeout_reason(45)),
            (None, Some(AttemptStopReason::Silence))
        );
        assert_eq!(job.next_check_at(), Some(45));
        job.liveness.touch(96);
        assert_eq!(job.timeout_reason(99), None);
        assert_eq!(job.timeout_reason(100), Some(AttemptStopReason::Timeout));
        // An ended attempt is never stopped, even if its last lines are still to be read.
        job.liveness.mark_ended();
        assert_eq!((job.timeout_reason(1_000), job.next_check_at()), (None, None));
        let LocalRunState::Running(job) = running(Some(AttemptStopReason::Cancel)) else {
            unreachable!()
        };
        assert_eq!((job.timeout_reason(1_000), job.next_check_at()), (None, None));
    }
}
