//! The spawner process: one thread with one loop that handles requests, enforces deadlines and reports exits.

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
use tasuki_core::exit::AttemptStopReason;

use super::capture_short_output::{self, BufferedPipes, OutputPipes};
use super::cgroup::{AttemptCgroup, CgroupPool};
use super::clone_exec::PendingExec;
use super::exit_journal::{ExitJournal, ExitRecord};
use super::start_command_process::{ChildCommand, ChildLauncher};
use super::tree::{self, OwnChildren};
use super::wire::{ReceiveBuffer, SendQueue};
use super::{
    AttemptKey, LaunchRefusal, LaunchSpec, ProcessExit, SpawnerEvent, SpawnerRequest, boottime,
};

/// Variable in the environment of every process of an attempt. It identifies the attempt, so that processes that left
/// their session are found.
pub(super) const ATTEMPT_MARK_ENV: &str = "TASUKI_SPAWNED";
/// Variable with the id that a worker gives its spawner. The marks of its attempts begin with this id.
pub(super) const SPAWNER_ID_ENV: &str = "TASUKI_SPAWNER";
/// Variable in the environment of all processes of all attempts of one data directory: the id of the data directory.
pub const DATA_DIR_ID_ENV: &str = "TASUKI_HOME_ID";
/// Polling interval, in microseconds, while killed processes have not ended yet.
const KILL_POLL_MICROS: u64 = 5_000;
/// Maximum time in microseconds between two searches for stray processes while commands run and the loop is awake.
const STRAY_SWEEP_MICROS: u64 = 1_000_000;
/// How long the loop does not check for exits after it has reported some, in microseconds, for each running command.
/// The exits of that time are handled together.
const EXIT_BATCH_MICROS_PER_COMMAND: u64 = 250;
/// Maximum of that time in microseconds.
const MAX_EXIT_BATCH_MICROS: u64 = 4_000;

/// Runs as the spawner of a data directory; otherwise like [`run_spawner`]. It waits until the spawner of the previous worker
/// has ended, kills what that one left behind if it was killed itself, and then reports [`SpawnerEvent::Ready`].
pub fn run_spawner_of_data_dir(
    socket: &UnixStream,
    lock: &Path,
    data_dir_id: &str,
) -> io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(lock)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The worker that started this process may have gone.
        if worker_gone_within(socket, KILL_POLL_MICROS)? {
            return Ok(());
        }
    }
    // The worker may itself have been started by a command of this data directory, so our ancestors are spared.
    let ancestors = tree::with_ancestors(rustix::process::getpid());
    loop {
        let leftovers = tree::find_by_variable(DATA_DIR_ID_ENV, |value| value == data_dir_id);
        let leftovers: Vec<Pid> =
            leftovers.into_iter().filter(|pid| !ancestors.contains(pid)).collect();
        if leftovers.is_empty() {
            break;
        }
        leftovers.into_iter().for_each(tree::kill_tree);
        if worker_gone_within(socket, KILL_POLL_MICROS)? {
            return Ok(());
        }
    }
    let mut ready = SendQueue::default();
    ready.push(&SpawnerEvent::Ready)?;
    ready.flush(socket)?;
    let served = run_spawner(socket);
    // The lock is held until here: when the next spawner gets it, no process of this one is left.
    drop(file);
    served
}

/// Waits for at most `micros`; returns whether the worker at the other end of the socket has gone.
fn worker_gone_within(socket: &UnixStream, micros: u64) -> io::Result<bool> {
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

/// Runs commands for the worker at the other end of the socket until the worker has gone. When it returns, no process
/// of the commands is left.
pub fn run_spawner(socket: &UnixStream) -> io::Result<()> {
    // A session of its own: signals from the worker's terminal (Ctrl-C) must reach the worker only.
    let _ = rustix::process::setsid();
    let own_pid = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own_pid))?;
    let mut state = SpawnerLoop {
        own_pid,
        spawner_id: std::env::var(SPAWNER_ID_ENV).unwrap_or_default(),
        // A command gets the limit of open files that this process had at first.
        launcher: ChildLauncher::new(raise_open_files())?,
        leases: HashMap::new(),
        commands: Vec::new(),
        events: SendQueue::default(),
        next_exit_check: 0,
        last_sweep: 0,
        unidentified: HashSet::new(),
        cgroups: CgroupPool::detect(),
        exit_journal: ExitJournal::start()?,
        children: OwnChildren::open(),
    };
    let served = state.serve(socket);
    state.kill_everything();
    served
}

/// State of the spawner process.
struct SpawnerLoop {
    own_pid: Pid,
    /// Id that the worker has given this spawner.
    spawner_id: String,
    launcher: ChildLauncher,
    /// Deadlines of the leases by token.
    leases: HashMap<String, u64>,
    commands: Vec<RunningCommand>,
    /// Events that are not sent to the worker yet.
    events: SendQueue,
    /// Until when exits are not checked, so that several are handled together.
    next_exit_check: u64,
    /// When stray processes were last searched.
    last_sweep: u64,
    /// Stray processes without a mark that the last search has found.
    unidentified: HashSet<Pid>,
    cgroups: Option<CgroupPool>,
    exit_journal: ExitJournal,
    children: OwnChildren,
}

/// A command that was started and not yet reported as ended.
struct RunningCommand {
    spec: LaunchSpec,
    pid: Pid,
    /// Set until it is known that the program was executed.
    pending_exec: Option<PendingExec>,
    /// Becomes readable when the first process ends.
    pidfd: OwnedFd,
    /// Whether `pidfd` is readable.
    exit_signaled: bool,
    /// Its captured output pipes, until they are handed to the worker.
    pipes: Option<BufferedPipes>,
    stop_reason: Option<AttemptStopReason>,
    /// When the grace of a stop ends.
    kill_at: Option<u64>,
    /// Whether the lease expired before the first process ended.
    lease_expired: bool,
    /// Exit status of the first process, once it has ended.
    exit: Option<ExitStatus>,
    cgroup: Option<AttemptCgroup>,
}

impl RunningCommand {
    /// Whether its first process has ended; processes that it left behind may still run.
    fn has_ended(&mut self) -> bool {
        if self.exit.is_none() {
            let ended = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
            self.exit =
                ended.unwrap_or_default().map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
        }
        self.exit.is_some()
    }
}

impl SpawnerLoop {
    fn serve(&mut self, socket: &UnixStream) -> io::Result<()> {
        let mut receive_buffer = ReceiveBuffer::default();
        loop {
            if self.wait(socket)? && !receive_buffer.fill(socket)? {
                return Ok(());
            }
            while let Some(request) = receive_buffer.next_message()? {
                self.handle_request(request, &mut receive_buffer)?;
            }
            let now = boottime();
            self.enforce_and_reap(now);
            self.exit_journal.write_due(now);
            self.events.flush(socket)?;
        }
    }

    /// Waits for a request, the exit of a command or a deadline. Returns whether the socket is readable.
    fn wait(&mut self, socket: &UnixStream) -> io::Result<bool> {
        let now = boottime();
        let must_poll = self.commands.iter().any(|command| {
            let out_of_time = command.lease_expired || command.kill_at.is_some_and(|at| at <= now);
            command.exit.is_some() || out_of_time
        });
        let lease = |command: &RunningCommand| self.leases.get(&command.spec.token).copied();
        let pipe_check =
            |command: &RunningCommand| command.pipes.as_ref().map(BufferedPipes::next_check_at);
        let deadline = |command: &RunningCommand| {
            [command.kill_at, lease(command), pipe_check(command)].into_iter().flatten().min()
        };
        let deadlines =
            self.commands.iter().filter_map(deadline).chain(self.exit_journal.next_write_at());
        let next = match must_poll {
            true => Some(now + KILL_POLL_MICROS),
            false => deadlines.min(),
        };
        // With many commands, exits are checked only now and then: handling one exit costs much, and handling others
        // together with it costs little more.
        let delays_exits = now < self.next_exit_check;
        let next = next.into_iter().chain(delays_exits.then_some(self.next_exit_check)).min();
        let timeout = next.map(|next| timespec(next.saturating_sub(now)));
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, !self.events.is_empty());
        let mut watched = vec![PollFd::new(socket, interest)];
        let running =
            self.commands.iter().filter(|command| command.exit.is_none() && !delays_exits);
        watched.extend(running.map(|command| PollFd::new(&command.pidfd, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let socket_state = watched[0].revents();
        let exits: Vec<bool> = watched[1..].iter().map(|end| !end.revents().is_empty()).collect();
        let running =
            self.commands.iter_mut().filter(|command| command.exit.is_none() && !delays_exits);
        for (command, ended) in running.zip(exits) {
            command.exit_signaled = ended;
        }
        Ok(socket_state.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    fn handle_request(
        &mut self,
        request: SpawnerRequest,
        receive_buffer: &mut ReceiveBuffer,
    ) -> io::Result<()> {
        match request {
            SpawnerRequest::Lease { token, until } => {
                self.leases.insert(token, until);
            }
            SpawnerRequest::Start(spec) => {
                let key = spec.key;
                let too_many_files = || {
                    LaunchRefusal::TemporaryFailure("the spawner has too many open files".into())
                };
                let files = match spec.capture_output {
                    true => capture_short_output::create_pipes()
                        .map(|(pipes, files)| (Some(pipes), files)),
                    false => <[OwnedFd; 2]>::try_from(receive_buffer.take_files())
                        .ok()
                        .map(|files| (None, files)),
                };
                let started = match files {
                    Some((pipes, files)) => self.start(spec, pipes, files),
                    None => Err(too_many_files()),
                };
                match started {
                    // A captured command has mostly ended before the worker could use this event.
                    Ok(None) => {}
                    Ok(Some(pid)) => self.events.push(&SpawnerEvent::Started { key, pid })?,
                    Err(why) => self.events.push(&SpawnerEvent::Refused { key, why })?,
                }
            }
            SpawnerRequest::Forget { key } => self.exit_journal.forget(key),
            SpawnerRequest::Stop { key, why, grace } => {
                if let Some(command) =
                    self.commands.iter_mut().find(|command| command.spec.key == key)
                {
                    // A command that has ended before was not stopped by this request.
                    if !command.has_ended() {
                        command.stop_reason.get_or_insert(why);
                    }
                    // A child that was just created may not have its process group yet.
                    let group = rustix::process::kill_process_group(command.pid, Signal::TERM);
                    if group.is_err() && command.exit.is_none() {
                        let _ = rustix::process::kill_process(command.pid, Signal::TERM);
                    }
                    let kill_at = boottime() + grace;
                    command.kill_at =
                        Some(command.kill_at.map_or(kill_at, |before| before.min(kill_at)));
                }
            }
        }
        Ok(())
    }

    /// Starts a command. Returns its process id if the caller must report it now; for captured commands it is reported
    /// together with the pipes.
    fn start(
        &mut self,
        mut spec: LaunchSpec,
        pipes: Option<OutputPipes>,
        files: [OwnedFd; 2],
    ) -> Result<Option<u32>, LaunchRefusal> {
        if self.leases.get(&spec.token).is_none_or(|&until| until <= boottime()) {
            return Err(LaunchRefusal::LeaseExpired);
        }
        if self.commands.iter().any(|command| command.spec.key == spec.key) {
            return Err(LaunchRefusal::AlreadyRunning);
        }
        let Some(name) = spec.argv.first() else {
            return Err(LaunchRefusal::NotFound("the command names no program".to_owned()));
        };
        let name = name.clone();
        if let Some(directory) = &spec.work_dir {
            // Checked before the start, because afterwards an error of the directory looks like one of the program.
            check_directory(directory)?;
        }
        let cgroup = self.cgroups.as_mut().and_then(CgroupPool::take);
        spec.env.push((ATTEMPT_MARK_ENV.to_owned(), self.attempt_mark(&spec)));
        let directory = spec.work_dir.as_deref();
        let command = ChildCommand { argv: &spec.argv, env: &spec.env, directory, files };
        // Only the start of a command without capture is reported immediately, so only that one waits for `execve`.
        let wait = pipes.is_none();
        let started = self.launcher.launch(&command, cgroup.as_ref(), wait);
        let (pid, pidfd, exec) =
            started.map_err(|error| LaunchRefusal::from_error(&name, &error))?;
        if let Some(error) = exec.exec_error() {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            return Err(LaunchRefusal::from_error(&name, &error));
        }
        let reported_pid = wait.then(|| pid_number(pid));
        self.commands.push(RunningCommand {
            spec,
            pid,
            pending_exec: Some(exec),
            exit_signaled: false,
            pidfd,
            pipes: pipes.map(|pipes| BufferedPipes::new(pipes, boottime())),
            stop_reason: None,
            kill_at: None,
            lease_expired: false,
            exit: None,
            cgroup,
        });
        Ok(reported_pid)
    }

    /// Marks commands that have ended or whose lease has expired, hands over pipes, and kills and reports what is due.
    fn enforce_and_reap(&mut self, now: u64) {
        for command in &mut self.commands {
            // A command that has ended before the deadline was not ended by it.
            let expired = self.leases.get(&command.spec.token).is_none_or(|&until| until <= now);
            if expired || command.exit_signaled {
                command.lease_expired |= !command.has_ended() && expired;
            }
        }
        self.hand_over_pipes(now);
        let is_due = |command: &RunningCommand| {
            command.exit.is_some()
                || command.lease_expired
                || command.kill_at.is_some_and(|at| at <= now)
        };
        // Stray processes are searched when nothing runs (it costs nothing then), and now and then in any case:
        // processes that a command leaves behind become our children and must be reaped.
        if self.commands.is_empty()
            || self.last_sweep + STRAY_SWEEP_MICROS <= now
            || self.commands.iter().any(is_due)
        {
            self.last_sweep = now;
            self.kill_and_report(now);
        }
        self.leases.retain(|token, until| {
            *until > now || self.commands.iter().any(|command| command.spec.token == *token)
        });
    }

    /// Kills the processes of commands that have ended or are out of time. Reports a command when none of its processes
    /// is left.
    fn kill_and_report(&mut self, now: u64) {
        let strays = self.list_strays();
        for (stray, mark) in &strays {
            let of_nobody = |mark: &String| {
                self.commands.iter().all(|command| self.attempt_mark(&command.spec) != *mark)
            };
            // It belongs to a command that was reported before, and was missed then.
            if mark.as_ref().is_some_and(of_nobody) {
                tree::kill_tree(*stray);
            }
        }
        let mut finished = Vec::new();
        for (index, command) in self.commands.iter().enumerate() {
            let out_of_time = command.lease_expired || command.kill_at.is_some_and(|at| at <= now);
            if command.exit.is_none() && !out_of_time {
                continue;
            }
            // Also if the first process has ended, because processes that it left behind must end, too.
            let group = rustix::process::kill_process_group(command.pid, Signal::KILL);
            if command.exit.is_none() {
                tree::kill_tree(command.pid);
            }
            let mut has_processes = false;
            if let Some(cgroup) = &command.cgroup
                && cgroup.is_populated()
            {
                cgroup.kill();
                has_processes = true;
            }
            for (stray, mark) in &strays {
                let own =
                    mark.as_ref().is_some_and(|mark| *mark == self.attempt_mark(&command.spec));
                // A stray without a mark in two searches in a row is killed together with any command that ends.
                if own || mark.is_none() && self.unidentified.contains(stray) {
                    tree::kill_tree(*stray);
                }
                has_processes |= own || mark.is_none();
            }
            if command.exit.is_some() && group.is_err() && !has_processes {
                finished.push(index);
            }
        }
        self.unidentified =
            strays.into_iter().filter(|(_, mark)| mark.is_none()).map(|(pid, _)| pid).collect();
        if !finished.is_empty() {
            let running = (self.commands.len() - finished.len()) as u64;
            self.next_exit_check =
                now + (running * EXIT_BATCH_MICROS_PER_COMMAND).min(MAX_EXIT_BATCH_MICROS);
        }
        for index in finished.into_iter().rev() {
            let command = self.commands.swap_remove(index);
            self.report_exit(command);
        }
    }

    fn attempt_mark(&self, spec: &LaunchSpec) -> String {
        let AttemptKey { run, attempt } = spec.key;
        format!("{}{}.{run}.{attempt}", self.spawner_id, spec.token)
    }

    /// Hands the pipes of commands that run for longer or print much to the worker.
    fn hand_over_pipes(&mut self, now: u64) {
        let running = self.commands.len();
        for command in &mut self.commands {
            if command.exit.is_some() {
                continue;
            }
            // A child that has not executed its program (or never will) has no output: keep its pipes.
            command
                .pending_exec
                .take_if(|exec| exec.has_left_memory() && exec.exec_error().is_none());
            if let Some(pipes) = command.pipes.as_mut().filter(|_| command.pending_exec.is_some()) {
                pipes.postpone_check(now + KILL_POLL_MICROS);
            }
            if let Some(pipes) = command.pipes.take_if(|pipes| pipes.hold_has_ended(now, running)) {
                let (key, pid) = (command.spec.key, pid_number(command.pid));
                // `push` fails only for messages that cannot be encoded, and this one can.
                let _ = self.events.push(&SpawnerEvent::Started { key, pid });
                let event = SpawnerEvent::OutputPipes { key, pipes: Vec::new() };
                let _ = self.events.push_with_files(&event, pipes.into_pipes().into());
            }
        }
    }

    /// Lists the processes that commands have left behind. They are children of this process since their own parents
    /// ended. Each comes with the mark of its attempt, if it has one: a program may get another environment.
    fn list_strays(&self) -> Vec<(Pid, Option<String>)> {
        let is_command = |pid: &Pid| self.commands.iter().any(|command| command.pid == *pid);
        let others = self.children.list().into_iter().filter(|pid| !is_command(pid));
        // A stray that has ended is reaped here.
        let ended = |pid: &Pid| {
            matches!(rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG), Ok(Some(_)))
        };
        // A stray without a mark may still be in the session of its command, whose id is that of the first process.
        let session = |pid: Pid| {
            let session = rustix::process::getsid(Some(pid)).ok()?;
            let command = self.commands.iter().find(|command| command.pid == session)?;
            Some(self.attempt_mark(&command.spec))
        };
        let with_mark = |pid: Pid| {
            (pid, tree::environment_variable(pid, ATTEMPT_MARK_ENV).or_else(|| session(pid)))
        };
        others.filter(|pid| !ended(pid)).map(with_mark).collect()
    }

    fn report_exit(&mut self, mut command: RunningCommand) {
        let Some(status) = command.exit else { return };
        // A command that died of SIGKILL may have killed its own cgroup; such a cgroup must not be reused.
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        if let (Some(cgroups), Some(cgroup)) = (&mut self.cgroups, command.cgroup.take())
            && !killed
        {
            cgroups.give_back(cgroup);
        }
        let LaunchSpec { key, token, exit_record, result_file, argv, .. } = command.spec;
        if let Some(error) = command.pending_exec.and_then(|exec| exec.exec_error()) {
            let why = LaunchRefusal::from_error(&argv[0], &error);
            // `push` fails only for messages that cannot be encoded, and this one can.
            let _ = self.events.push(&SpawnerEvent::Refused { key, why });
            return;
        }
        let exit = ProcessExit {
            code: status.code(),
            signal: status.signal(),
            lease_expired: command.lease_expired,
            stop_reason: command.stop_reason,
        };
        let output = match command
            .pipes
            .map(|pipes| capture_short_output::read_all_if_small(pipes.into_pipes()))
        {
            None => None,
            Some(Ok(output)) => Some(output),
            Some(Err(pipes)) => {
                let event = SpawnerEvent::OutputPipes { key, pipes: Vec::new() };
                let _ = self.events.push_with_files(&event, pipes.into());
                None
            }
        };
        // `push` fails only for messages that cannot be encoded, and this one can.
        let event = SpawnerEvent::Ended { key, exit, output: output.clone() };
        let _ = self.events.push(&event);
        if let Some(path) = exit_record {
            self.exit_journal
                .add(ExitRecord { path, result_file, token, key, exit, output }, boottime());
        }
    }

    /// Kills every process that this spawner has started, because the worker has gone.
    fn kill_everything(&mut self) {
        self.leases.clear();
        while !self.commands.is_empty() || !tree::list_children(self.own_pid).is_empty() {
            self.enforce_and_reap(boottime());
            if self.commands.is_empty() {
                // These do not belong to any known command any more.
                tree::list_children(self.own_pid).into_iter().for_each(tree::kill_tree);
            }
            std::thread::sleep(std::time::Duration::from_micros(KILL_POLL_MICROS));
        }
    }
}

/// Raises the limit of open files of this process to its maximum, because every command needs one or more. Returns the
/// previous limit.
pub(crate) fn raise_open_files() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // If that is refused, the previous limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    before
}

fn check_directory(directory: &Path) -> Result<(), LaunchRefusal> {
    let name = directory.display();
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(LaunchRefusal::NotFound(format!("{name}: not a directory"))),
        Err(error) => Err(LaunchRefusal::from_error(&name.to_string(), &error)),
    }
}

fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}
