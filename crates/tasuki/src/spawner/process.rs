//! The spawner's side: one thread, one loop.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, setrlimit};
use tasuki_core::exit::Stopped;

use super::birth::Birth;
use super::capture::{self, Held, Pipes};
use super::cgroup::{Cgroup, Cgroups};
use super::record::{Ended, Unheard};
use super::spawn::{Nursery, Start};
use super::tree::{self, Children};
use super::wire::{Inbox, Outbox};
use super::{Exit, JobKey, Launch, Order, Refusal, Report, boottime};

/// What every process of a job has in its environment, so that those that ran away are known.
pub(super) const MARK: &str = "TASUKI_SPAWNED";
/// What a worker calls its spawner: the marks of its jobs begin with it.
pub(super) const CALLED: &str = "TASUKI_SPAWNER";
/// What the processes of all jobs of one data directory have in their environment.
pub const HOME: &str = "TASUKI_HOME_ID";
/// How often it looks whether what was killed is gone, in microseconds.
const LOOK: u64 = 5_000;
/// How often at least what was left behind is looked for while something runs, if anything wakes it, in microseconds.
const CLEAR: u64 = 1_000_000;
/// How long after an end none is looked for, in microseconds, for each that still runs; and at most.
const NAP: u64 = 250;
const LONGEST_NAP: u64 = 4_000;

/// As [`run`], for one data directory: waits until the spawner of the worker before has ended, and kills
/// what that left behind should it have been killed itself. Then it says that it is ready.
pub fn serve(socket: &UnixStream, lock: &Path, home: &str) -> io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(lock)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Whoever waits for us may not want to wait any longer.
        if is_gone_after(socket, LOOK)? {
            return Ok(());
        }
    }
    // Whoever started us may itself have been started by a job.
    let above = tree::above(rustix::process::getpid());
    loop {
        let left = tree::with_variable(HOME, |value| value == home);
        let left: Vec<Pid> = left.into_iter().filter(|pid| !above.contains(pid)).collect();
        if left.is_empty() {
            break;
        }
        left.into_iter().for_each(tree::kill);
        if is_gone_after(socket, LOOK)? {
            return Ok(());
        }
    }
    let mut ready = Outbox::default();
    ready.push(&Report::Ready)?;
    ready.flush(socket)?;
    let served = run(socket);
    // Held until here: whoever waits for it finds nothing of ours.
    drop(file);
    served
}

/// Whether the worker at the other end is gone, after so many microseconds.
fn is_gone_after(socket: &UnixStream, micros: u64) -> io::Result<bool> {
    let mut watched = [PollFd::new(socket, PollFlags::empty())];
    match poll(&mut watched, Some(&timespec(micros))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

fn timespec(micros: u64) -> Timespec {
    Timespec { tv_sec: (micros / 1_000_000) as i64, tv_nsec: (micros % 1_000_000 * 1_000) as _ }
}

/// Runs commands for the worker at the other end of the socket, until that is gone. Then nothing of
/// them is left either.
pub fn run(socket: &UnixStream) -> io::Result<()> {
    // A session of its own: what is typed at the worker's terminal is for the worker.
    let _ = rustix::process::setsid();
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))?;
    let mut keeper = Keeper {
        me,
        called: std::env::var(CALLED).unwrap_or_default(),
        // As many files as we may have open at first, a job may.
        nursery: Nursery::new(raise_open_files())?,
        leases: HashMap::new(),
        jobs: Vec::new(),
        told: Outbox::default(),
        nap: 0,
        cleared: 0,
        puzzling: HashSet::new(),
        cgroups: Cgroups::find(),
        unheard: Unheard::start()?,
        children: Children::open(),
    };
    let heard = keeper.serve(socket);
    keeper.end_all();
    heard
}

struct Keeper {
    me: Pid,
    /// What its worker calls it.
    called: String,
    nursery: Nursery,
    leases: HashMap<String, u64>,
    jobs: Vec<Job>,
    told: Outbox,
    /// Until when no ends are looked for.
    nap: u64,
    /// When what was left behind was last looked for.
    cleared: u64,
    /// What was left behind by nobody knows whom, when last looked at.
    puzzling: HashSet<Pid>,
    cgroups: Option<Cgroups>,
    unheard: Unheard,
    children: Children,
}

struct Job {
    launch: Launch,
    pid: Pid,
    /// As long as it may not be the command yet.
    birth: Option<Birth>,
    /// Becomes readable when the process ends.
    end: OwnedFd,
    /// That has become so.
    is_readable: bool,
    /// What it prints to, as long as nobody else reads it.
    pipes: Option<Held>,
    stopped: Option<Stopped>,
    kill_at: Option<u64>,
    lease_passed: bool,
    exit: Option<ExitStatus>,
    cgroup: Option<Cgroup>,
}

impl Job {
    /// Whether its process has; what that left behind may not.
    fn has_ended(&mut self) -> bool {
        if self.exit.is_none() {
            let ended = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
            self.exit =
                ended.unwrap_or_default().map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        }
        self.exit.is_some()
    }
}

impl Keeper {
    fn serve(&mut self, socket: &UnixStream) -> io::Result<()> {
        let mut inbox = Inbox::default();
        loop {
            if self.wait(socket)? && !inbox.fill(socket)? {
                return Ok(());
            }
            while let Some(order) = inbox.next()? {
                self.obey(order, &mut inbox)?;
            }
            let now = boottime();
            self.look_after(now);
            self.unheard.look_after(now);
            self.told.flush(socket)?;
        }
    }

    /// Waits for an order, the end of a job or a deadline. Whether there is something to read.
    fn wait(&mut self, socket: &UnixStream) -> io::Result<bool> {
        let now = boottime();
        let ending = self.jobs.iter().any(|job| {
            let out_of_time = job.lease_passed || job.kill_at.is_some_and(|at| at <= now);
            job.exit.is_some() || out_of_time
        });
        let lease = |job: &Job| self.leases.get(&job.launch.token).copied();
        let young = |job: &Job| job.pipes.as_ref().map(Held::until);
        let of_job = |job: &Job| [job.kill_at, lease(job), young(job)].into_iter().flatten().min();
        let deadlines = self.jobs.iter().filter_map(of_job).chain(self.unheard.next());
        let next = match ending {
            true => Some(now + LOOK),
            false => deadlines.min(),
        };
        // Where much runs, ends are looked for now and then: whoever sees one and tells of it does much for each time, and
        // little more for those that have ended meanwhile.
        let naps = now < self.nap;
        let next = next.into_iter().chain(naps.then_some(self.nap)).min();
        let timeout = next.map(|next| timespec(next.saturating_sub(now)));
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, !self.told.is_empty());
        let mut watched = vec![PollFd::new(socket, interest)];
        let running = self.jobs.iter().filter(|job| job.exit.is_none() && !naps);
        watched.extend(running.map(|job| PollFd::new(&job.end, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let told = watched[0].revents();
        let ends: Vec<bool> = watched[1..].iter().map(|end| !end.revents().is_empty()).collect();
        let running = self.jobs.iter_mut().filter(|job| job.exit.is_none() && !naps);
        for (job, ended) in running.zip(ends) {
            job.is_readable = ended;
        }
        Ok(told.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    fn obey(&mut self, order: Order, inbox: &mut Inbox) -> io::Result<()> {
        match order {
            Order::Lease { token, until } => {
                self.leases.insert(token, until);
            }
            Order::Start(launch) => {
                let job = launch.job;
                let crowded = || Refusal::Unable("the spawner has too many files open".into());
                let files = match launch.captured {
                    true => capture::pipes().map(|(pipes, files)| (Some(pipes), files)),
                    false => {
                        <[OwnedFd; 2]>::try_from(inbox.files()).ok().map(|files| (None, files))
                    }
                };
                let started = match files {
                    Some((pipes, files)) => self.start(launch, pipes, files),
                    None => Err(crowded()),
                };
                match started {
                    // What is captured is mostly over before anybody could want to know.
                    Ok(None) => {}
                    Ok(Some(pid)) => self.told.push(&Report::Started { job, pid })?,
                    Err(why) => self.told.push(&Report::Refused { job, why })?,
                }
            }
            Order::Forget { job } => self.unheard.forget(job),
            Order::Stop { job, why, grace } => {
                if let Some(job) = self.jobs.iter_mut().find(|known| known.launch.job == job) {
                    // What had ended by then was not ended by it.
                    if !job.has_ended() {
                        job.stopped.get_or_insert(why);
                    }
                    // Who has just been born may have no group yet.
                    let group = rustix::process::kill_process_group(job.pid, Signal::TERM);
                    if group.is_err() && job.exit.is_none() {
                        let _ = rustix::process::kill_process(job.pid, Signal::TERM);
                    }
                    let kill_at = boottime() + grace;
                    job.kill_at = Some(job.kill_at.map_or(kill_at, |before| before.min(kill_at)));
                }
            }
        }
        Ok(())
    }

    /// Returns its process, unless that is told with its pipes.
    fn start(
        &mut self,
        mut launch: Launch,
        pipes: Option<Pipes>,
        files: [OwnedFd; 2],
    ) -> Result<Option<u32>, Refusal> {
        if self.leases.get(&launch.token).is_none_or(|&until| until <= boottime()) {
            return Err(Refusal::Lease);
        }
        if self.jobs.iter().any(|known| known.launch.job == launch.job) {
            return Err(Refusal::Doubled);
        }
        let Some(name) = launch.argv.first() else {
            return Err(Refusal::NotFound("no program is named".to_owned()));
        };
        let name = name.clone();
        if let Some(directory) = &launch.directory {
            // Asked first: what the start says of it cannot be told from what it says of the program.
            check_directory(directory)?;
        }
        let cgroup = self.cgroups.as_mut().and_then(Cgroups::take);
        launch.env.push((MARK.to_owned(), self.mark(&launch)));
        let directory = launch.directory.as_deref();
        let start = Start { argv: &launch.argv, env: &launch.env, directory, files };
        // Of what is captured nobody needs to know at once whether it has begun.
        let wait = pipes.is_none();
        let born = self.nursery.start(&start, cgroup.as_ref(), wait);
        let (pid, end, birth) = born.map_err(|error| Refusal::from_error(&name, &error))?;
        if let Some(error) = birth.failure() {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            return Err(Refusal::from_error(&name, &error));
        }
        let told = wait.then(|| number(pid));
        self.jobs.push(Job {
            launch,
            pid,
            birth: Some(birth),
            is_readable: false,
            end,
            pipes: pipes.map(|pipes| Held::new(pipes, boottime())),
            stopped: None,
            kill_at: None,
            lease_passed: false,
            exit: None,
            cgroup,
        });
        Ok(told)
    }

    /// Kills what is out of time, notices what has ended, and tells what is wholly gone.
    fn look_after(&mut self, now: u64) {
        for job in &mut self.jobs {
            // What had ended by then was not ended by it.
            let passed = self.leases.get(&job.launch.token).is_none_or(|&until| until <= now);
            if passed || job.is_readable {
                job.lease_passed |= !job.has_ended() && passed;
            }
        }
        self.hand_over(now);
        self.nursery.tidy();
        let ends = |job: &Job| {
            job.exit.is_some() || job.lease_passed || job.kill_at.is_some_and(|at| at <= now)
        };
        // Where nothing runs, what was left behind is looked for too: it costs nothing then. And now and then in any case: what
        // a job lets go of becomes ours to bury.
        if self.jobs.is_empty() || self.cleared + CLEAR <= now || self.jobs.iter().any(ends) {
            self.cleared = now;
            self.clear_away(now);
        }
        self.leases.retain(|token, until| {
            *until > now || self.jobs.iter().any(|job| job.launch.token == *token)
        });
    }

    /// Ends all of what has ended or is out of time, and tells what is wholly gone.
    fn clear_away(&mut self, now: u64) {
        let strays = self.strays();
        for (stray, told) in &strays {
            let of_nobody =
                |told: &String| self.jobs.iter().all(|job| self.mark(&job.launch) != *told);
            // What was missed when its job ended.
            if told.as_ref().is_some_and(of_nobody) {
                tree::kill(*stray);
            }
        }
        let mut gone = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            let out_of_time = job.lease_passed || job.kill_at.is_some_and(|at| at <= now);
            if job.exit.is_none() && !out_of_time {
                continue;
            }
            // Always, and also where the process itself has ended: what it left behind is not wanted.
            let group = rustix::process::kill_process_group(job.pid, Signal::KILL);
            if job.exit.is_none() {
                tree::kill(job.pid);
            }
            let mut left = false;
            if let Some(cgroup) = &job.cgroup
                && cgroup.is_populated()
            {
                cgroup.kill();
                left = true;
            }
            for (stray, told) in &strays {
                let own = told.as_ref().is_some_and(|told| *told == self.mark(&job.launch));
                // Nobody's that is still nobody's at the second look goes with whoever ends.
                if own || told.is_none() && self.puzzling.contains(stray) {
                    tree::kill(*stray);
                }
                left |= own || told.is_none();
            }
            if job.exit.is_some() && group.is_err() && !left {
                gone.push(index);
            }
        }
        self.puzzling =
            strays.into_iter().filter(|(_, told)| told.is_none()).map(|(pid, _)| pid).collect();
        if !gone.is_empty() {
            let left = (self.jobs.len() - gone.len()) as u64;
            self.nap = now + (left * NAP).min(LONGEST_NAP);
        }
        for index in gone.into_iter().rev() {
            let job = self.jobs.swap_remove(index);
            self.tell_end(job);
        }
    }

    fn mark(&self, launch: &Launch) -> String {
        let JobKey { run, attempt } = launch.job;
        format!("{}{}.{run}.{attempt}", self.called, launch.token)
    }

    /// What goes on for longer has its output read by the worker, as it comes.
    fn hand_over(&mut self, now: u64) {
        let running = self.jobs.len();
        for job in &mut self.jobs {
            if job.exit.is_some() {
                continue;
            }
            // What is not a command yet, or never will be, says nothing.
            job.birth.take_if(|birth| birth.is_over() && birth.failure().is_none());
            if let Some(held) = job.pipes.as_mut().filter(|_| job.birth.is_some()) {
                held.put_off(now + LOOK);
            }
            if let Some(held) = job.pipes.take_if(|held| held.is_over(now, running)) {
                let (key, pid) = (job.launch.job, number(job.pid));
                // Only what cannot be encoded is refused, and this can.
                let _ = self.told.push(&Report::Started { job: key, pid });
                let prints = Report::Prints { job: key, from: Vec::new() };
                let _ = self.told.push_with(&prints, held.pipes().into());
            }
        }
    }

    /// What jobs have left behind: it is ours since its own parent ended. With the mark of its job, where
    /// it has one: a program may have been given another environment.
    fn strays(&self) -> Vec<(Pid, Option<String>)> {
        let is_job = |pid: &Pid| self.jobs.iter().any(|job| job.pid == *pid);
        let others = self.children.list().into_iter().filter(|pid| !is_job(pid));
        // One that has ended too waits only for this.
        let ended = |pid: &Pid| {
            matches!(rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG), Ok(Some(_)))
        };
        // One without a mark may still be in the session of its job, which is named after the job's process.
        let session = |pid: Pid| {
            let session = rustix::process::getsid(Some(pid)).ok()?;
            let job = self.jobs.iter().find(|job| job.pid == session)?;
            Some(self.mark(&job.launch))
        };
        let whose = |pid: Pid| (pid, tree::variable(pid, MARK).or_else(|| session(pid)));
        others.filter(|pid| !ended(pid)).map(whose).collect()
    }

    fn tell_end(&mut self, mut job: Job) {
        let Some(status) = job.exit else { return };
        // Whoever killed it may have killed all that is ever born there: a job may do so itself.
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        if let (Some(cgroups), Some(cgroup)) = (&mut self.cgroups, job.cgroup.take())
            && !killed
        {
            cgroups.give_back(cgroup);
        }
        let Launch { job: key, token, record, result, argv, .. } = job.launch;
        if let Some(error) = job.birth.and_then(|birth| birth.failure()) {
            let why = Refusal::from_error(&argv[0], &error);
            // Only what cannot be encoded is refused, and this can.
            let _ = self.told.push(&Report::Refused { job: key, why });
            return;
        }
        let exit = Exit {
            code: status.code(),
            signal: status.signal(),
            lease_passed: job.lease_passed,
            stopped: job.stopped,
        };
        let printed = match job.pipes.map(|held| capture::read(held.pipes())) {
            None => None,
            Some(Ok(printed)) => Some(printed),
            Some(Err(pipes)) => {
                let prints = Report::Prints { job: key, from: Vec::new() };
                let _ = self.told.push_with(&prints, pipes.into());
                None
            }
        };
        // Only what cannot be encoded is refused, and this can.
        let told = Report::Ended { job: key, exit, printed: printed.clone() };
        let _ = self.told.push(&told);
        if let Some(path) = record {
            self.unheard.add(Ended { path, result, token, job: key, exit, printed }, boottime());
        }
    }

    /// The worker is gone: nothing that it started stays.
    fn end_all(&mut self) {
        self.leases.clear();
        while !self.jobs.is_empty() || !tree::children(self.me).is_empty() {
            self.look_after(boottime());
            if self.jobs.is_empty() {
                // Whose these were nobody knows any more.
                tree::children(self.me).into_iter().for_each(tree::kill);
            }
            std::thread::sleep(std::time::Duration::from_micros(LOOK));
        }
    }
}

/// From now on this process may have as many files open as it can have: there is one or more for each job.
/// Returns the limit from before.
pub(crate) fn raise_open_files() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // Where that is refused, it has to do with what it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    before
}

fn check_directory(directory: &Path) -> Result<(), Refusal> {
    let name = directory.display();
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Refusal::NotFound(format!("{name}: not a directory"))),
        Err(error) => Err(Refusal::from_error(&name.to_string(), &error)),
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}
