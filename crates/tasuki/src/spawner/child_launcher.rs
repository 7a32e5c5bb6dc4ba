//! Starts a command as a child process. The child has a session and a process group of its own, and no open files
//! besides its standard streams. It dies with the spawner in every case (parent death signal): otherwise it would
//! outlive a worker and a spawner that are killed at the same time.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::{DupFlags, dup3};
use rustix::process::{Pid, Rlimit, WaitOptions};

use super::cgroup::AttemptCgroup;
use super::clone_exec::{ChildSetup, MemoryFlag, PendingExec};

/// Maximum number of children that start at the same time without copying the table of open files.
const FD_SLOTS: usize = 32;
/// Number of file descriptors in one word of the kernel's bitmap.
const FD_BITMAP_BITS: i32 = 64;
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
    /// Sorted by their file descriptors.
    slots: Vec<FdSlot>,
}

/// Two low file descriptors for the stdout and stderr of one child. All files of other commands have higher
/// descriptors, so the child drops these with one call and need not copy them and close them one by one. With many
/// commands, that would be a seventh of the cost of a start.
struct FdSlot {
    files: [OwnedFd; 2],
    /// The child that uses the slot. While it may still share our memory, the descriptors must not change.
    user: Option<MemoryFlag>,
}

impl FdSlot {
    /// Lowest file descriptor above those of this slot.
    fn first_fd_above(&self) -> usize {
        self.files.iter().map(|file| file.as_raw_fd() as usize + 1).max().unwrap_or(0)
    }

    fn set_files(&mut self, with: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        for (slot_file, file) in self.files.iter_mut().zip(with) {
            dup3(file, slot_file, DupFlags::CLOEXEC)?;
        }
        Ok(())
    }
}

impl ChildLauncher {
    /// Creates a launcher. Call it before many files are open, so that the slots get low file descriptors.
    pub(super) fn new(open_file_limit: Rlimit) -> io::Result<Self> {
        let dev_null = File::open("/dev/null")?;
        let copy = || dev_null.try_clone().map(OwnedFd::from);
        let slot = || Some(FdSlot { files: [copy().ok()?, copy().ok()?], user: None });
        let slots = std::iter::from_fn(slot).take(FD_SLOTS).collect();
        let mut launcher =
            Self { spawner_pid: rustix::process::getpid(), open_file_limit, dev_null, slots };
        if !launcher.can_drop_fds() {
            launcher.slots.clear();
        }
        Ok(launcher)
    }

    /// Tests whether a child can drop our file descriptors with `close_range`. Linux before 5.9 does not have it. Linux
    /// before 6.11, unless the fix was ported back, still takes many dropped descriptors for used ones.
    fn can_drop_fds(&self) -> bool {
        let mut copies = Vec::new();
        while copies.last().is_none_or(|file: &File| file.as_raw_fd() < 2 * FD_BITMAP_BITS) {
            let Ok(copy) = self.dev_null.try_clone() else { return false };
            copies.push(copy);
        }
        let mut setup = ChildSetup::new(None);
        setup.drop_fds_from(FD_BITMAP_BITS as usize);
        setup.expect_free_fd(self.dev_null.as_fd(), FD_BITMAP_BITS as usize);
        setup.exit();
        let Ok((child, ..)) = setup.clone_child(None, true) else { return false };
        let ended = rustix::process::waitpid(Some(child), WaitOptions::empty());
        ended.ok().flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
    }

    /// Closes our copies of the files of children that have executed their programs. Otherwise the reader of a pipe
    /// would never see its end.
    pub(super) fn free_finished_slots(&mut self) {
        free_finished_slots(&mut self.slots, self.dev_null.as_fd());
    }

    /// Starts a command, in a cgroup if one is given. Returns its process id, its pidfd, and the pending `execve`,
    /// whose outcome is known when the child no longer shares our memory. `wait`: wait for that.
    pub(super) fn launch(
        &mut self,
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
        let command_files = [command.files[0].as_fd(), command.files[1].as_fd()];
        let dev_null = self.dev_null.as_fd();
        let free = if wait { None } else { find_free_slot(&mut self.slots, dev_null) };
        let slot = free.and_then(|slot| slot.set_files(command_files).is_ok().then_some(slot));
        let mut setup = ChildSetup::new(cgroup.map(|cgroup| cgroup.procs_file.as_fd()));
        let files = match &slot {
            Some(slot) => {
                setup.drop_fds_from(slot.first_fd_above());
                [slot.files[0].as_fd(), slot.files[1].as_fd()]
            }
            None => command_files,
        };
        setup.limit_open_files(self.open_file_limit);
        setup.new_session();
        setup.die_with_parent(self.spawner_pid);
        setup.set_fd(dev_null, 0);
        setup.set_fd(files[0], 1);
        setup.set_fd(files[1], 2);
        if let Some(directory) = directory {
            setup.change_dir(directory);
        }
        setup.reset_signals();
        setup.exec_first_of(programs, argv, env);
        let started = setup.clone_child(cgroup.and_then(AttemptCgroup::clone_target), wait);
        match (slot, &started) {
            (Some(slot), Ok((_, _, exec))) => slot.user = Some(exec.memory_flag()),
            (Some(slot), Err(_)) => drop(slot.set_files([dev_null; 2])),
            (None, _) => {}
        }
        started
    }
}

/// Finds a slot that no child uses.
fn find_free_slot<'c>(slots: &'c mut [FdSlot], dev_null: BorrowedFd<'_>) -> Option<&'c mut FdSlot> {
    if slots.iter().all(|slot| slot.user.is_some()) {
        free_finished_slots(slots, dev_null);
    }
    slots.iter_mut().find(|slot| slot.user.is_none())
}

/// Frees the slots of children that have executed their programs.
fn free_finished_slots(slots: &mut [FdSlot], dev_null: BorrowedFd<'_>) {
    for slot in slots {
        // A slot whose files cannot be replaced stays in use.
        if slot.user.as_ref().is_some_and(MemoryFlag::is_cleared)
            && slot.set_files([dev_null; 2]).is_ok()
        {
            slot.user = None;
        }
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
    use rustix::process::{Resource, getrlimit, waitpid};

    /// More children than slots; no child is waited for before the last one is started.
    #[test]
    fn parallel_children_print_to_their_own_pipes() {
        let mut launcher = ChildLauncher::new(getrlimit(Resource::Nofile)).unwrap();
        let mut started = Vec::new();
        for number in 0..3 * FD_SLOTS {
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
        launcher.free_finished_slots();
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
