//! What jobs run as: processes that exist only in a list. The spawner of each incarnation kills them at
//! the end of their lease whatever their worker does, and with it when it dies.

use std::time::Duration;

use tasuki_core::exit::Stopped;
use tasuki_core::job_spec::WorkKind;
use tasuki_core::{ErrorCode, JobId, LeaseToken, RunId, Scope, WorkerId};

use super::stage::{Inside, SECOND, Stage};
use crate::handler::{Done, TaskError};
use crate::node::executor::attempt::{Attempt, End, Executor, Happened, Mail, Told};
use crate::spawner::{Exit, JobKey, Refusal};

/// A process that lives.
pub(super) struct Process {
    pub(super) key: JobKey,
    pub(super) token: LeaseToken,
    pub(super) worker: WorkerId,
    pub(super) host: usize,
    pub(super) kind: WorkKind,
    /// What must not run twice at once, if so.
    pub(super) exclusive: Option<(JobId, Scope)>,
    attempt: Attempt,
    mail: Mail,
    /// When it ends by itself, and how.
    ends_at: u64,
    code: i32,
    /// Whether it takes no notice of TERM.
    stubborn: bool,
    /// Whether it shows that it lives.
    talks: bool,
    kill_at: Option<u64>,
    stopped: Option<Stopped>,
    /// How long it takes to die.
    dies_in: u64,
}

/// A process that was launched, to be compared with the database.
pub(super) struct Launched {
    pub(super) key: JobKey,
    pub(super) token: LeaseToken,
}

/// How something ended, as it would be kept on disk.
#[derive(Clone)]
pub(super) struct Spooled {
    pub(super) attempt: Attempt,
    pub(super) end: End,
}

/// The executor of one incarnation.
pub(super) struct SimExecutor {
    pub(super) stage: Stage,
    pub(super) host: usize,
    pub(super) worker: WorkerId,
    pub(super) mail: Mail,
}

impl Executor for SimExecutor {
    fn lease(&self, token: LeaseToken, until: u64) {
        self.stage.inside().leases.insert((self.worker, token), until);
    }

    fn launch(&self, attempt: Attempt) {
        let inside = &mut *self.stage.inside();
        let (key, token, kind) = (attempt.key(), attempt.token, attempt.recipe.work.kind());
        let now = inside.boottime(self.host);
        let lease = inside.leases.get(&(self.worker, token));
        if lease.is_none_or(|&until| until <= now) {
            inside.tell(|| format!("{key:?} refused: its lease has passed"));
            let end = End::Refused(Refusal::Lease);
            self.mail.send(Happened { key, token, end });
            return;
        }
        if inside.rng.chance(15) {
            let end = End::Refused(Refusal::NotFound("no such program".to_owned()));
            self.mail.send(Happened { key, token, end });
            return;
        }
        if !inside.ever_launched.insert(key) {
            inside.broken(|| format!("{key:?} was launched twice"));
        }
        let exclusive = attempt.recipe.spec.concurrency.needs_hold();
        let exclusive = exclusive.then(|| (attempt.taken.job, attempt.taken.scope.clone()));
        let rng = &mut inside.rng;
        let lasts = match inside.calm {
            true => 2,
            false if inside.long => rng.weigh(&[(20, 2), (80, 60)]),
            false => rng.weigh(&[(60, 2), (25, 6), (10, 20), (5, 120)]),
        };
        let process = Process {
            key,
            token,
            worker: self.worker,
            host: self.host,
            kind,
            exclusive,
            mail: self.mail.clone(),
            ends_at: inside.now + rng.below(lasts * SECOND),
            code: rng.weigh(&[(75, 0), (18, 1), (5, 75), (2, 137)]),
            stubborn: rng.chance(200),
            talks: inside.calm || rng.chance(700),
            kill_at: None,
            stopped: None,
            dies_in: rng.below(SECOND / 4),
            attempt,
        };
        inside.tell(|| format!("{key:?} launched on {}", self.host));
        inside.launches.push(Launched { key, token });
        inside.processes.push(process);
    }

    fn stop(&self, key: JobKey, why: Stopped, grace: Duration) {
        let inside = &mut *self.stage.inside();
        inside.tell(|| format!("{key:?} told to stop, grace {grace:?}"));
        inside.stops += 1;
        let now = inside.now;
        let delay = inside.rng.below(SECOND / 2);
        let mine = |process: &&mut Process| process.key == key && process.worker == self.worker;
        for process in inside.processes.iter_mut().filter(mine) {
            if process.ends_at > now {
                process.stopped.get_or_insert(why);
            }
            let at = now + grace.as_micros() as u64;
            process.kill_at = Some(process.kill_at.map_or(at, |before| before.min(at)));
            if !process.stubborn {
                process.ends_at = process.ends_at.min(now + delay);
            }
        }
    }

    fn forget(&self, key: JobKey) {
        self.stage.inside().spool.remove(&(self.worker, key));
    }
}

impl Inside {
    /// Everything that processes do by themselves until now. `frozen` are the nodes on which no worker
    /// moves: there, functions do not move either.
    pub(super) fn settle(&mut self, frozen: &[bool]) {
        let now = self.now;
        let frozen = |host: usize| frozen.get(host).is_some_and(|frozen| *frozen);
        for process in std::mem::take(&mut self.processes) {
            let boot = self.boottime(process.host) - now;
            if process.kind == WorkKind::Function && frozen(process.host) {
                self.processes.push(process);
                continue;
            }
            if process.talks {
                process.attempt.signs.show(now.min(process.ends_at) + boot);
            }
            let lease = self.leases.get(&(process.worker, process.token)).copied();
            let lapses = lease.map_or(0, |until| until - boot);
            let killed = process.kill_at.unwrap_or(u64::MAX).min(lapses);
            match killed <= process.ends_at {
                true if killed.saturating_add(process.dies_in) <= now => {
                    let lease_passed = lapses <= killed;
                    let stopped = process.stopped;
                    self.end(process, Exit { code: None, signal: Some(9), lease_passed, stopped });
                }
                false if process.ends_at <= now => {
                    let (code, stopped) = (Some(process.code), process.stopped);
                    self.end(process, Exit { code, signal: None, lease_passed: false, stopped });
                }
                _ => self.processes.push(process),
            }
        }
    }

    fn end(&mut self, process: Process, exit: Exit) {
        let (key, token) = (process.key, process.token);
        self.tell(|| format!("{key:?} ended {exit:?}"));
        let end = match process.kind {
            WorkKind::Command | WorkKind::Django => {
                End::Exited { exit, told: Told::default(), printed: None }
            }
            WorkKind::Function if exit.code == Some(0) => End::Returned(Ok(Done::default())),
            WorkKind::Function => {
                let code = ErrorCode::UNEXPECTED_ERROR;
                End::Returned(Err(TaskError::new(code, "it would not do")))
            }
        };
        if process.kind != WorkKind::Function {
            let spooled = Spooled { attempt: process.attempt, end: end.clone() };
            self.spool.insert((process.worker, key), spooled);
        }
        process.mail.send(Happened { key, token, end });
    }

    /// The faults are over: nothing takes long any more.
    pub(super) fn hurry(&mut self) {
        for process in &mut self.processes {
            process.ends_at = process.ends_at.min(self.now + self.rng.below(3 * SECOND));
        }
    }

    /// An incarnation is gone, and all that ran under it.
    pub(super) fn sweep(&mut self, worker: WorkerId) {
        self.processes.retain(|process| process.worker != worker);
        self.leases.retain(|(owner, _), _| *owner != worker);
    }

    /// Whether two processes are alive that must not be at once: of one run, or of a job that allows one
    /// run at a time.
    pub(super) fn doubled(&self) -> Option<String> {
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
