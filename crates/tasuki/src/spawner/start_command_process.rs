//! Starts a command as a child process. The child has a session and a process group of its own, and no open files
//! besides its standard streams. It dies with the spawner in every case (parent death signal): otherwise it would
//! outlive a worker and a spawner that are killed at the same time.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{Pid, Rlimit};

use super::cgroup::AttemptCgroup;
use super::clone_exec::{ChildSetup, PendingExec};

/// Search path of a command without `PATH` in its environment.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A command to start.
pub(super) struct ChildCommand<'a> {
    /// The program and its arguments; at least the program.
    pub(super) argv: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) directory: Option<&'a Path>,
    /// Files for stdout and stderr.
    pub(super) files: [OwnedFd; 2],
}

/// Starts commands.
pub(super) struct ChildLauncher {
    spawner_pid: Pid,
    /// Limit of open files of a command. A command may raise its own soft limit.
    open_file_limit: Rlimit,
    /// `/dev/null`, the stdin of all commands.
    dev_null: File,
}

impl ChildLauncher {
    pub(super) fn new(open_file_limit: Rlimit) -> io::Result<Self> {
        let dev_null = File::open("/dev/null")?;
        Ok(Self { spawner_pid: rustix::process::getpid(), open_file_limit, dev_null })
    }

    /// Starts a command, in a cgroup if one is given. Returns its process id, its pidfd, and the pending `execve`,
    /// whose outcome is known when the child no longer shares our memory. `wait`: wait for that.
    pub(super) fn launch(
        &self,
        command: &ChildCommand<'_>,
        cgroup: Option<&AttemptCgroup>,
        wait: bool,
    ) -> io::Result<(Pid, OwnedFd, PendingExec)> {
        // Of equal names the last one counts.
        let env: BTreeMap<&str, &str> =
            command.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let path = env.get("PATH").copied().unwrap_or(DEFAULT_PATH);
        let programs =
            program_paths(&command.argv[0], path).map(CString::new).collect::<Result<_, _>>()?;
        let argv: Result<_, _> =
            command.argv.iter().map(|text| CString::new(text.as_str())).collect();
        let variable = |(name, value)| CString::new(format!("{name}={value}"));
        let env: Result<_, _> = env.into_iter().map(variable).collect();
        let (argv, env) = (argv?, env?);
        let directory = command.directory.map(|path| CString::new(path.as_os_str().as_bytes()));
        let directory = directory.transpose()?;
        let mut setup = ChildSetup::new(cgroup.map(|cgroup| cgroup.procs_file.as_fd()));
        setup.limit_open_files(self.open_file_limit);
        setup.new_session();
        setup.die_with_parent(self.spawner_pid);
        setup.set_fd(self.dev_null.as_fd(), 0);
        setup.set_fd(command.files[0].as_fd(), 1);
        setup.set_fd(command.files[1].as_fd(), 2);
        if let Some(directory) = directory {
            setup.change_dir(directory);
        }
        setup.reset_signals();
        setup.exec_first_of(programs, argv, env);
        setup.clone_child(cgroup.and_then(AttemptCgroup::clone_target), wait)
    }
}

/// Candidate paths of a program: the name itself if it contains a slash, else the name in each directory of the path.
fn program_paths(name: &str, path: &str) -> impl Iterator<Item = String> {
    let has_slash = name.contains('/') || name.is_empty();
    let path = if has_slash { "" } else { path };
    path.split(':').map(move |dir| match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Resource, WaitOptions, getrlimit, waitpid};

    /// No child is waited for before the last one is started.
    #[test]
    fn parallel_children_print_to_their_own_pipes() {
        let launcher = ChildLauncher::new(getrlimit(Resource::Nofile)).unwrap();
        let mut started = Vec::new();
        for number in 0..100 {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let argv = ["echo".to_owned(), number.to_string()];
            let files = [writer, File::open("/dev/null").unwrap().into()];
            let command = ChildCommand { argv: &argv, env: &[], directory: None, files };
            let (child, _, exec) = launcher.launch(&command, None, false).unwrap();
            started.push((number, child, exec, File::from(reader)));
        }
        for (_, child, exec, _) in &started {
            waitpid(Some(*child), WaitOptions::empty()).unwrap().unwrap();
            assert!(exec.has_left_memory() && exec.exec_error().is_none());
        }
        for (number, _, _, mut reader) in started {
            let mut text = String::new();
            // The read ends only if no copy of the pipe is left open here.
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("{number}\n"));
        }
    }

    #[test]
    fn program_is_searched_in_path_unless_its_name_has_a_slash() {
        let candidates = |name: &str, path: &str| program_paths(name, path).collect::<Vec<_>>();
        assert_eq!(candidates("echo", "/a:/b"), ["/a/echo", "/b/echo"]);
        assert_eq!(candidates("echo", "/a::b"), ["/a/echo", "echo", "b/echo"]);
        assert_eq!(candidates("./echo", "/a:/b"), ["./echo"]);
        assert_eq!(candidates("/x/echo", "/a:/b"), ["/x/echo"]);
        assert_eq!(candidates("", "/a:/b"), [""]);
    }
}
