//! A process of ours, which ends with the value that stands for it, or with the thread that started it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::until;

pub(crate) struct Process {
    child: Child,
}

/// A command that dies with us; as another user, if we are root and one is named.
pub(crate) fn command(user: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| nix::unistd::geteuid().is_root()) {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Gives a folder to the user that `command` uses.
pub(crate) fn own(user: &str, folder: &Path) {
    if nix::unistd::geteuid().is_root() {
        let status = Command::new("chown").arg("-R").arg(format!("{user}:")).arg(folder).status();
        assert!(status.unwrap().success(), "{} is not given to {user}", folder.display());
    }
}

impl Process {
    /// Starts it in a process group of its own, so that Ctrl-C reaches us and not it.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        use std::os::unix::process::CommandExt as _;
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let child = command.spawn();
        Self { child: child.expect("there is no setpriv: run ./test, which says what is missing") }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        until("a process has ended", || self.ended())
    }

    /// Ends it and all that it started, without a word.
    pub(crate) fn kill_all(mut self) {
        self.signal(Signal::SIGSTOP);
        for child in children(self.id()) {
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
            eprintln!("process {} was ended, because the test was", self.id());
        }
    }
}

/// The processes that another started.
fn children(of: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let processes = all.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
    let parent = |process: &u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before the last parenthesis may hold anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    processes.filter(|process| parent(process) == Some(of)).collect()
}
