//! How a command becomes a process: a session and a process group of its own, nothing open but what it prints to, and
//! an end with its spawner's, however that comes about: it would otherwise outlive a worker and a spawner that are killed
//! at once.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{Pid, Rlimit};

use super::birth::{Birth, Plan};
use super::cgroup::Cgroup;

/// Where programs are looked for if no `PATH` says that.
const USUAL: &str = "/bin:/usr/bin";

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
    /// How many files a command may have open, as long as it does not ask for more.
    files: Rlimit,
    /// What it reads.
    nothing: File,
}

impl Nursery {
    pub(super) fn new(files: Rlimit) -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        Ok(Self { me: rustix::process::getpid(), files, nothing })
    }

    /// Starts it, in a cgroup if there is one; what becomes of that is known when its birth is over. `wait`: until
    /// then.
    pub(super) fn start(
        &self,
        start: &Start<'_>,
        cgroup: Option<&Cgroup>,
        wait: bool,
    ) -> io::Result<(Pid, OwnedFd, Birth)> {
        // The last of the same name counts.
        let env: BTreeMap<&str, &str> =
            start.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let path = env.get("PATH").copied().unwrap_or(USUAL);
        let programs = places(&start.argv[0], path).map(CString::new).collect::<Result<_, _>>()?;
        let argv: Result<_, _> =
            start.argv.iter().map(|text| CString::new(text.as_str())).collect();
        let variable = |(name, value)| CString::new(format!("{name}={value}"));
        let env: Result<_, _> = env.into_iter().map(variable).collect();
        let mut plan = Plan::new(cgroup.map(|cgroup| cgroup.entry.as_fd()));
        plan.limit_files(self.files);
        plan.own_session();
        plan.follow(self.me);
        plan.open(self.nothing.as_fd(), 0);
        plan.open(start.files[0].as_fd(), 1);
        plan.open(start.files[1].as_fd(), 2);
        if let Some(directory) = start.directory {
            plan.be_in(CString::new(directory.as_os_str().as_bytes())?);
        }
        plan.hear_signals();
        plan.become_one_of(programs, argv?, env?);
        plan.start(cgroup.and_then(Cgroup::cradle), wait)
    }
}

/// Where a program of this name may be: exactly there if it says so, else where the path leads.
fn places(name: &str, path: &str) -> impl Iterator<Item = String> {
    let exactly = name.contains('/') || name.is_empty();
    let path = if exactly { "" } else { path };
    path.split(':').map(move |folder| match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_the_path_leads_and_not_if_it_says_where_it_is() {
        let all = |name: &str, path: &str| places(name, path).collect::<Vec<_>>();
        assert_eq!(all("echo", "/a:/b"), ["/a/echo", "/b/echo"]);
        assert_eq!(all("echo", "/a::b"), ["/a/echo", "echo", "b/echo"]);
        assert_eq!(all("./echo", "/a:/b"), ["./echo"]);
        assert_eq!(all("/x/echo", "/a:/b"), ["/x/echo"]);
        assert_eq!(all("", "/a:/b"), [""]);
    }
}
