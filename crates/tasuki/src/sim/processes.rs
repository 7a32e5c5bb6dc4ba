//! Simulated processes of jobs. The simulated spawner kills a process when its lease expires, whatever the worker does,
//! and when its worker dies.

use std::time::Duration;

use tasuki_core::exit::AttemptStopReason;
use tasuki_core::work_spec::WorkKind;
use tasuki_core::{AttemptErrorCode, JobId, LeaseToken, RunId, RunScope, WorkerId};

use super::state::{SECOND, SimState, SimStateInner};
use crate::handler::{TaskError, TaskSuccess};
use crate::node::executor::attempt_input_and_result::{
    Attempt, Completion, CompletionQueue, ExecutionEnd, Executor, ResultFile,
};
use crate::spawner::{AttemptKey, LaunchRefusal, ProcessExit};

/// A living process.
pub(super) struct Process {
    pub(super) key: AttemptKey,
    pub(super) token: LeaseToken,
    pub(super) worker: WorkerId,
    pub(super) host: usize,
    pub(super) kind: WorkKind,
    /// Job and scope of which only one run may execute at a time, if the job's policy needs a hold.
    pub(super) exclusive: Option<(JobId, RunScope)>,
    attempt: Attempt,
    completions: CompletionQueue,
    /// Instant at which it exits if it is not stopped before.
    ends_at: u64,
    /// Exit code.
    exit_code: i32,
    /// Whether it ignores SIGTERM.
    ignores_term: bool,
    /// Whether it gives signs of life.
    reports_liveness: bool,
    kill_at: Option<u64>,
    stop_reason: Option<AttemptStopReason>,
    /// Time between SIGKILL and its exit.
    kill_delay: u64,
}

/// A launched process, to be compared with the database.
pub(super) struct Launch {
    pub(super) key: AttemptKey,
    pub(super) token: LeaseToken,
}

/// The end of an attempt, as it would be recorded on disk.
#[derive(Clone)]
pub(super) struct RecordedExit {
    pub(super) attempt: Attempt,
    pub(super) end: ExecutionEnd,
}

/// Executor of one incarnation.
pub(super) struct SimExecutor {
    pub(super) state: SimState,
    pub(super) host: usize,
    pub(super) worker: WorkerId,
    pub(super) completions: CompletionQueue,
}

impl Executor for SimExecutor {
    fn set_lease_deadline(&self, token: LeaseToken, until: u64) {
        self.state.lock().leases.insert((self.worker, token), until);
    }

    fn launch(&self, attempt: Attempt) {
        let inner = &mut *self.state.lock();
        let (key, token, kind) = (attempt.key(), attempt.token, attempt.job.work.kind());
        let now = inner.boottime(self.host);
        let lease = inner.leases.get(&(self.worker, token));
        if lease.is_none_or(|&until| until <= now) {
            inner.log(|| format!("{key:?} refused: its lease has expired"));
            let end = ExecutionEnd::NotStarted(LaunchRefusal::LeaseExpired);
            self.completions.push(Completion { key, token, end });
            return;
        }
        if inner.rng.chance(15) {
            let end =
                ExecutionEnd::NotStarted(LaunchRefusal::NotFound("no such program".to_owned()));
            self.completions.push(Completion { key, token, end });
            return;
        }
        if !inner.ever_launched.insert(key) {
            inner.fail(|| format!("{key:?} was launched twice"));
        }
        let exclusive = attempt.job.spec.concurrency.needs_hold();
        let exclusive = exclusive.then(|| (attempt.run.job, attempt.run.scope.clone()));
        let rng = &mut inner.rng;
        let max_seconds = match inner.no_faults {
            true => 2,
            false if inner.long_jobs => rng.pick_weighted(&[(20, 2), (80, 60)]),
            false => rng.pick_weighted(&[(60, 2), (25, 6), (10, 20), (5, 120)]),
        };
        let process = Process {
            key,
            token,
            worker: self.worker,
            host: self.host,
            kind,
            exclusive,
            completions: self.completions.clone(),
            ends_at: inner.now + rng.below(max_seconds * SECOND),
            exit_code: rng.pick_weighted(&[(75, 0), (18, 1), (5, 75), (2, 137)]),
            ignores_term: rng.chance(200),
            reports_liveness: inner.no_faults || rng.chance(700),
            kill_at: None,
            stop_reason: None,
            kill_delay: rng.below(SECOND / 4),
            attempt,
        };
        inner.log(|| format!("{key:?} launched on {}", self.host));
        inner.new_launches.push(Launch { key, token });
        inner.processes.push(process);
    }

    fn stop(&self, key: AttemptKey, reason: AttemptStopReason, grace: Duration) {
        let inner = &mut *self.state.lock();
        inner.log(|| format!("{key:?} is stopped, grace {grace:?}"));
        inner.stop_requests += 1;
        let now = inner.now;
        let delay = inner.rng.below(SECOND / 2);
        let is_target =
            |process: &&mut Process| process.key == key && process.worker == self.worker;
        for process in inner.processes.iter_mut().filter(is_target) {
            if process.ends_at > now {
                process.stop_reason.get_or_insert(reason);
            }
            let at = now + grace.as_micros() as u64;
            process.kill_at = Some(process.kill_at.map_or(at, |before| before.min(at)));
            if !process.ignores_term {
                process.ends_at = process.ends_at.min(now + delay);
            }
        }
    }

    fn forget(&self, key: AttemptKey) {
        self.state.lock().recorded_exits.remove(&(self.worker, key));
    }
}

impl SimStateInner {
    /// Advances all processes to the current time. Functions on `frozen` hosts do not advance, because they run in the
    /// worker process.
    pub(super) fn advance_processes(&mut self, frozen: &[bool]) {
        let now = self.now;
        let frozen = |host: usize| frozen.get(host).is_some_and(|frozen| *frozen);
        for process in std::mem::take(&mut self.processes) {
            let boot_offset = self.boottime(process.host) - now;
            if process.kind == WorkKind::Function && frozen(process.host) {
                self.processes.push(process);
                continue;
            }
            if process.reports_liveness {
                process.attempt.liveness.touch(now.min(process.ends_at) + boot_offset);
            }
            let lease = self.leases.get(&(process.worker, process.token)).copied();
            let lease_deadline = lease.map_or(0, |until| until - boot_offset);
            let killed_at = process.kill_at.unwrap_or(u64::MAX).min(lease_deadline);
            match killed_at <= process.ends_at {
                true if killed_at.saturating_add(process.kill_delay) <= now => {
                    let lease_expired = lease_deadline <= killed_at;
                    let stop_reason = process.stop_reason;
                    self.end_process(
                        process,
                        ProcessExit { code: None, signal: Some(9), lease_expired, stop_reason },
                    );
                }
                false if process.ends_at <= now => {
                    let (code, stop_reason) = (Some(process.exit_code), process.stop_reason);
                    self.end_process(
                        process,
                        ProcessExit { code, signal: None, lease_expired: false, stop_reason },
                    );
                }
                _ => self.processes.push(process),
            }
        }
    }

    fn end_process(&mut self, process: Process, exit: ProcessExit) {
        let (key, token) = (process.key, process.token);
        self.log(|| format!("{key:?} ended {exit:?}"));
        let end = match process.kind {
            WorkKind::Command | WorkKind::Django => {
                ExecutionEnd::Exited { exit, result_file: ResultFile::default(), output: None }
            }
            WorkKind::Function if exit.code == Some(0) => {
                ExecutionEnd::Returned(Ok(TaskSuccess::default()))
            }
            WorkKind::Function => {
                let code = AttemptErrorCode::UNEXPECTED_ERROR;
                ExecutionEnd::Returned(Err(TaskError::new(code, "simulated failure")))
            }
        };
        if process.kind != WorkKind::Function {
            let recorded = RecordedExit { attempt: process.attempt, end: end.clone() };
            self.recorded_exits.insert((process.worker, key), recorded);
        }
        process.completions.push(Completion { key, token, end });
    }

    /// Makes all processes end soon, once the faults are over.
    pub(super) fn shorten_processes(&mut self) {
        for process in &mut self.processes {
            process.ends_at = process.ends_at.min(self.now + self.rng.below(3 * SECOND));
        }
    }

    /// Removes an incarnation with its processes and leases.
    pub(super) fn remove_incarnation(&mut self, worker: WorkerId) {
        self.processes.retain(|process| process.worker != worker);
        self.leases.retain(|(owner, _), _| *owner != worker);
    }

    /// Describes two living processes that must not exist at the same time: of one run, or of a job that allows only one
    /// run at a time.
    pub(super) fn find_duplicate_process(&self) -> Option<String> {
        let commands: Vec<_> =
            self.processes.iter().filter(|one| one.kind != WorkKind::Function).collect();
        for (index, one) in commands.iter().enumerate() {
            for other in &commands[index + 1..] {
                if one.key.run == other.key.run {
                    return Some(format!("I5: {:?} and {:?} are both alive", one.key, other.key));
                }
                if one.exclusive.is_some() && one.exclusive == other.exclusive {
                    return Some(format!("I13: {:?} beside {:?}", one.key, other.key));
                }
            }
        }
        None
    }
}

impl Process {
    pub(super) fn run(&self) -> RunId {
        RunId(self.key.run)
    }
}
