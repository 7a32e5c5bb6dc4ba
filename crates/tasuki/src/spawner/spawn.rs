//! How a command becomes a process: a session and a process group of its own, nothing open but what it prints to, and
//! an end with its spawner's, however that comes about. The last needs a copy of this process in between: what
//! `posix_spawn` starts cannot be told to follow its parent, and would outlive a worker and a spawner that are killed at
//! once.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, setrlimit};

use super::cgroup::Cgroup;

/// A command to be started.
pub(super) struct Start<'a> {
    /// The program and its arguments: one at least.
    pub(super) argv: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) directory: Option<&'a Path>,
    /// What it prints to.
    pub(super) files: [OwnedFd; 2],
}

/// What every command is started with.
pub(super) struct Nursery {
    pub(super) me: Pid,
    /// How many files a command may have open, as long as it does not ask for more.
    pub(super) files: Rlimit,
}

impl Nursery {
    /// Starts it, in a cgroup if there is one.
    pub(super) fn start(&self, start: Start<'_>, cgroup: Option<&Cgroup>) -> io::Result<Pid> {
        let mut command = Command::new(&start.argv[0]);
        command.args(&start.argv[1..]).env_clear().envs(start.env.iter().cloned());
        let [output, errors] = start.files;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        if let Some(directory) = start.directory {
            command.current_dir(directory);
        }
        let entry = cgroup.and_then(|cgroup| cgroup.entry.try_clone().ok());
        own_session(&mut command, self.me, self.files, entry);
        Ok(Pid::from_child(&command.spawn()?))
    }
}

/// A session and process group of its own for the command, and a cgroup if there is one, which does not
/// outlive its spawner.
#[allow(unsafe_code, reason = "what runs between fork and exec cannot be said otherwise")]
fn own_session(command: &mut Command, spawner: Pid, files: Rlimit, cgroup: Option<File>) {
    let prepare = move || {
        if let Some(cgroup) = &cgroup {
            // Where it may not move in, it is looked after in other ways.
            let _ = rustix::io::write(cgroup, b"0");
        }
        setrlimit(Resource::Nofile, files)?;
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died before it could be followed.
        match rustix::process::getppid() == Some(spawner) {
            true => Ok(()),
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: five system calls; nothing is allocated, locked or unwound.
    unsafe { command.pre_exec(prepare) };
}
