//! How a command becomes a process: a session and a process group of its own, and nothing open but what it prints
//! to. Without a copy of this process in between, which would cost more than many a command does.

use std::collections::BTreeMap;
use std::ffi::{CString, NulError, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::SigSet;
use rustix::fs::{Access, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::cgroup::Cgroup;

/// `POSIX_SPAWN_SETSID`, of glibc and of musl.
const OWN_SESSION: PosixSpawnFlags = PosixSpawnFlags::from_bits_retain(0x80);
/// Where programs are looked for when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

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
    me: Pid,
    nothing: File,
    attributes: PosixSpawnAttr,
    /// Where this process is, and is again after each start.
    here: OwnedFd,
    /// How many files a command may have open, as long as it does not ask for more.
    files: Rlimit,
}

impl Nursery {
    pub(super) fn new(me: Pid, files: Rlimit) -> io::Result<Self> {
        let mut attributes = PosixSpawnAttr::init()?;
        let mask = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
        attributes.set_flags(OWN_SESSION | mask | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
        attributes.set_sigmask(&SigSet::empty())?;
        // Which programs in Rust ignore.
        attributes.set_sigdefault(&SigSet::from(nix::sys::signal::Signal::SIGPIPE))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = rustix::fs::open(".", flags, Mode::empty())?;
        Ok(Self { me, nothing: File::open("/dev/null")?, attributes, here, files })
    }

    /// Starts it, in a cgroup if there is one.
    pub(super) fn start(&self, start: Start<'_>, cgroup: Option<&Cgroup>) -> io::Result<Pid> {
        // Only who is between fork and exec can move there before it does anything else.
        if cgroup.is_some() {
            return self.fork(start, cgroup);
        }
        match self.spawn(&start) {
            // A script that does not say what runs it: it is for the shell.
            Err(Errno::NOEXEC) => self.fork(start, None),
            started => Ok(started?),
        }
    }

    fn spawn(&self, start: &Start<'_>) -> Result<Pid, Errno> {
        let text = |text: &str| CString::new(text).map_err(|_: NulError| Errno::INVAL);
        let argv = start.argv.iter().map(|word| text(word)).collect::<Result<Vec<_>, _>>()?;
        // Of what is given twice the last counts.
        let env: BTreeMap<&str, &str> =
            start.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let path = env.get("PATH").copied().unwrap_or(DEFAULT_PATH);
        let variables = env.iter().map(|(name, value)| text(&format!("{name}={value}")));
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let [output, errors] = &start.files;
        let mut actions = PosixSpawnFileActions::init().map_err(ours)?;
        let files = [self.nothing.as_raw_fd(), output.as_raw_fd(), errors.as_raw_fd()];
        for (number, file) in (0..).zip(files) {
            actions.add_dup2(file, number).map_err(ours)?;
        }
        if let Some(directory) = start.directory {
            rustix::process::chdir(directory)?;
        }
        let before = getrlimit(Resource::Nofile);
        let started = find(&start.argv[0], path).and_then(|program| {
            // What is open already stays open; of what it opens itself this process needs none now.
            setrlimit(Resource::Nofile, self.files)?;
            let pid = posix_spawn(&*program, &actions, &self.attributes, &argv, &variables);
            setrlimit(Resource::Nofile, before)?;
            pid.map_err(ours)
        });
        if start.directory.is_some() {
            rustix::process::fchdir(&self.here)?;
        }
        Ok(Pid::from_raw(started?.as_raw()).expect("a process has a number"))
    }

    /// By way of a copy of this process.
    fn fork(&self, start: Start<'_>, cgroup: Option<&Cgroup>) -> io::Result<Pid> {
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

fn ours(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Where the program of this name is, as the shell would find it.
fn find(name: &str, path: &str) -> Result<CString, Errno> {
    let whole = |place: &OsStr| CString::new(place.as_bytes()).map_err(|_| Errno::INVAL);
    if name.contains('/') {
        return whole(name.as_ref());
    }
    let mut why = Errno::NOENT;
    for folder in path.split(':').filter(|_| !name.is_empty()) {
        let place = Path::new(folder).join(name);
        match rustix::fs::accessat(CWD, &place, Access::EXEC_OK, rustix::fs::AtFlags::EACCESS) {
            Ok(()) if is_file(&place) => return whole(place.as_os_str()),
            Ok(()) | Err(Errno::ACCESS) => why = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(why)
}

fn is_file(place: &Path) -> bool {
    rustix::fs::stat(place)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_where_the_shell_would_find_it() {
        let folder = std::env::temp_dir().join(format!("tasuki_find_{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("sh")).unwrap();
        std::fs::write(folder.join("plain"), "").unwrap();
        let path = format!("/nowhere:{}:/bin", folder.display());
        let found = |name: &str| find(name, &path).map(|found| found.into_string().unwrap());
        assert_eq!(found("sh").unwrap(), "/bin/sh", "a folder of that name is not it");
        assert_eq!(found("./plain").unwrap(), "./plain");
        assert_eq!(found("plain"), Err(Errno::ACCESS));
        assert_eq!(found("no such program"), Err(Errno::NOENT));
        assert_eq!(found(""), Err(Errno::NOENT));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
