//! How a command becomes a process: a session and a process group of its own, nothing open but what it prints to, and
//! an end with its spawner's, however that comes about: it would otherwise outlive a worker and a spawner that are killed
//! at once.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::{DupFlags, dup3};
use rustix::process::{Pid, Rlimit, WaitOptions};

use super::birth::{Birth, Inside, Plan};
use super::cgroup::Cgroup;

/// So many can be born at once without a copy of all our files.
const COTS: usize = 32;
/// So many numbers of files Linux remembers together.
const BLOCK: i32 = 64;
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
    /// In the order of their numbers.
    cots: Vec<Cot>,
}

/// Where a child finds what it prints to: under numbers that are lower than those of all that is open for others, so that it
/// need not copy and close what is above them. Where many run that would be a seventh of what it costs to start one.
struct Cot {
    files: [OwnedFd; 2],
    /// Who uses it; then it must stay as it is.
    child: Option<Inside>,
}

impl Cot {
    /// The first number above.
    fn end(&self) -> usize {
        self.files.iter().map(|file| file.as_raw_fd() as usize + 1).max().unwrap_or(0)
    }

    fn fill(&mut self, with: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        for (ours, file) in self.files.iter_mut().zip(with) {
            dup3(file, ours, DupFlags::CLOEXEC)?;
        }
        Ok(())
    }
}

impl Nursery {
    /// To be made before there is much open.
    pub(super) fn new(files: Rlimit) -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        let copy = || nothing.try_clone().map(OwnedFd::from);
        let cot = || Some(Cot { files: [copy().ok()?, copy().ok()?], child: None });
        let cots = std::iter::from_fn(cot).take(COTS).collect();
        let mut all = Self { me: rustix::process::getpid(), files, nothing, cots };
        if !all.has_a_child() {
            all.cots.clear();
        }
        Ok(all)
    }

    /// Tries whether a child can leave our files behind. Linux before 5.9 has no way to, and before 6.11, where it was not
    /// mended, takes the numbers of many that were left for ones in use.
    fn has_a_child(&self) -> bool {
        let mut many = Vec::new();
        while many.last().is_none_or(|file: &File| file.as_raw_fd() < 2 * BLOCK) {
            let Ok(one) = self.nothing.try_clone() else { return false };
            many.push(one);
        }
        let mut plan = Plan::new(None);
        plan.leave_files(BLOCK as usize);
        plan.find_free(self.nothing.as_fd(), BLOCK as usize);
        plan.leave();
        let Ok((child, ..)) = plan.start(None, true) else { return false };
        let ended = rustix::process::waitpid(Some(child), WaitOptions::empty());
        ended.ok().flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
    }

    /// Lets go of what was kept for children that have it now: who reads it must see its end.
    pub(super) fn tidy(&mut self) {
        tidy(&mut self.cots, self.nothing.as_fd());
    }

    /// Starts it, in a cgroup if there is one; what becomes of that is known when its birth is over. `wait`: until
    /// then.
    pub(super) fn start(
        &mut self,
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
        let (argv, env) = (argv?, env?);
        let directory = start.directory.map(|path| CString::new(path.as_os_str().as_bytes()));
        let directory = directory.transpose()?;
        let theirs = [start.files[0].as_fd(), start.files[1].as_fd()];
        let nothing = self.nothing.as_fd();
        let free = if wait { None } else { free(&mut self.cots, nothing) };
        let cot = free.and_then(|cot| cot.fill(theirs).is_ok().then_some(cot));
        let mut plan = Plan::new(cgroup.map(|cgroup| cgroup.entry.as_fd()));
        let files = match &cot {
            Some(cot) => {
                plan.leave_files(cot.end());
                [cot.files[0].as_fd(), cot.files[1].as_fd()]
            }
            None => theirs,
        };
        plan.limit_files(self.files);
        plan.own_session();
        plan.follow(self.me);
        plan.open(nothing, 0);
        plan.open(files[0], 1);
        plan.open(files[1], 2);
        if let Some(directory) = directory {
            plan.be_in(directory);
        }
        plan.hear_signals();
        plan.become_one_of(programs, argv, env);
        let born = plan.start(cgroup.and_then(Cgroup::cradle), wait);
        match (cot, &born) {
            (Some(cot), Ok((_, _, birth))) => cot.child = Some(birth.inside()),
            (Some(cot), Err(_)) => drop(cot.fill([nothing; 2])),
            (None, _) => {}
        }
        born
    }
}

/// One that nobody uses.
fn free<'c>(cots: &'c mut [Cot], nothing: BorrowedFd<'_>) -> Option<&'c mut Cot> {
    if cots.iter().all(|cot| cot.child.is_some()) {
        tidy(cots, nothing);
    }
    cots.iter_mut().find(|cot| cot.child.is_none())
}

/// Lets go of what was kept for children that have it now.
fn tidy(cots: &mut [Cot], nothing: BorrowedFd<'_>) {
    for cot in cots {
        // One that cannot be emptied stays somebody's.
        if cot.child.as_ref().is_some_and(Inside::is_over) && cot.fill([nothing; 2]).is_ok() {
            cot.child = None;
        }
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
    use std::io::Read as _;

    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Resource, getrlimit, waitpid};

    /// More than there are cots, and nobody waits for the first before the last is born.
    #[test]
    fn many_are_born_at_once_and_each_prints_to_its_own() {
        let mut nursery = Nursery::new(getrlimit(Resource::Nofile)).unwrap();
        let mut born = Vec::new();
        for number in 0..3 * COTS {
            let (printed, output) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let argv = ["echo".to_owned(), number.to_string()];
            let files = [output, File::open("/dev/null").unwrap().into()];
            let start = Start { argv: &argv, env: &[], directory: None, files };
            let (child, _, birth) = nursery.start(&start, None, false).unwrap();
            born.push((number, child, birth, File::from(printed)));
        }
        for (_, child, birth, _) in &born {
            waitpid(Some(*child), WaitOptions::empty()).unwrap().unwrap();
            assert!(birth.is_over() && birth.failure().is_none());
        }
        nursery.tidy();
        for (number, _, _, mut printed) in born {
            let mut text = String::new();
            // It has an end: nobody keeps it open.
            printed.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("{number}\n"));
        }
    }

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
