//! Child processes of the kit. A process is killed when its value is dropped or when the thread that started it ends.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::test_support::wait_until;

/// A running child process. It is killed when the value is dropped.
pub(crate) struct Process {
    child: Child,
}

/// A command whose process is killed when this thread ends. If this process is root and `user` is given, it runs as
/// that user.
pub(crate) fn child_command(user: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| nix::unistd::geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Makes a user the owner of a folder, if this process is root.
pub(crate) fn chown_to(user: &str, folder: &Path) {
    if nix::unistd::geteuid().is_root() {
        let status = Command::new("chown").arg("-R").arg(format!("{user}:")).arg(folder).status();
        assert!(status.unwrap().success(), "chown of {} to {user} failed", folder.display());
    }
}

impl Process {
    /// Starts the command in its own process group, so that Ctrl-C reaches only this process. The output is appended
    /// to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        use std::os::unix::process::CommandExt as _;
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let child = command.spawn();
        Self {
            child: child.expect("setpriv was not found; run ./test, which names missing packages"),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    /// The exit status, if the process has ended.
    pub(crate) fn try_exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        wait_until("a process has ended", || self.try_exit_status())
    }

    /// Kills the process and its children with SIGKILL.
    pub(crate) fn kill_tree(mut self) {
        self.signal(Signal::SIGSTOP);
        for child in child_pids(self.id()) {
            let _ = kill(Pid::from_raw(child as i32), Signal::SIGKILL);
        }
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("process {} was killed because the test failed", self.id());
        }
    }
}

/// The process ids of the children of a process.
fn child_pids(parent_pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let processes = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    let parent = |process: &u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The process name, in parentheses, may contain any character.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    processes.filter(|process| parent(process) == Some(parent_pid)).collect()
}
