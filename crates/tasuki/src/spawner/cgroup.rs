//! A cgroup for each job, where the system lets us make one: cgroup v2, delegated to us. What is in it
//! cannot leave it, whatever sessions it starts and whatever environment it gives its children; so all of
//! a job is known, and one write kills all of it.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, WaitOptions};

use super::birth::Plan;

/// What our cgroups are called, so that those of a spawner that was killed are known.
const PREFIX: &str = "tasuki-";

/// So many that nobody is in are kept: as many as many jobs use at once.
const SPARE: usize = 1_024;

/// Where jobs get cgroups of their own. One that is empty again is the next job's: to make one for each, and to remove it,
/// would cost as much as the start itself.
pub(super) struct Cgroups {
    root: PathBuf,
    made: u64,
    spare: Vec<Cgroup>,
    /// Whether children can be born into them.
    give_birth: bool,
}

/// The cgroup of one job at a time.
pub(super) struct Cgroup {
    path: PathBuf,
    place: File,
    gives_birth: bool,
    /// Linux kills what is born where once all were killed.
    killed: Cell<bool>,
    /// Whoever writes there moves in.
    pub(super) entry: File,
    /// Says whether somebody is in it.
    events: File,
}

impl Cgroups {
    /// `None`: there is no cgroup v2 here, or it is not ours to divide, or `TASUKI_CGROUPS=off` says no.
    pub(super) fn find() -> Option<Self> {
        if std::env::var_os("TASUKI_CGROUPS").is_some_and(|said| said == "off") {
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let above = mount(&mounts)?.join(place(&own)?);
        sweep(&above);
        let root = above.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&root).ok()?;
        let mut all = Self { root, made: 0, spare: Vec::new(), give_birth: true };
        // So it does if ours is such a place.
        let first = all.take().filter(Cgroup::has_a_child);
        all.give_birth = first.is_some();
        first.into_iter().for_each(|first| all.give_back(first));
        Some(all)
    }

    /// One for a job. `None`: it cannot be made, and its job is looked after in other ways.
    pub(super) fn take(&mut self) -> Option<Cgroup> {
        if let Some(spare) = self.spare.pop() {
            return Some(spare);
        }
        let path = self.root.join(self.made.to_string());
        self.made += 1;
        fs::create_dir(&path).ok()?;
        let cgroup = Cgroup::open(&path, self.give_birth);
        if cgroup.is_err() {
            let _ = fs::remove_dir(&path);
        }
        cgroup.ok()
    }

    /// Its job has ended, and nothing of it is left: the next may have it, if it is as it was.
    pub(super) fn give_back(&mut self, cgroup: Cgroup) {
        if self.spare.len() < SPARE && cgroup.is_as_new() {
            self.spare.push(cgroup);
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.spare.clear();
        let _ = fs::remove_dir(&self.root);
    }
}

impl Cgroup {
    fn open(path: &Path, gives_birth: bool) -> io::Result<Self> {
        Ok(Self {
            place: File::open(path)?,
            gives_birth,
            killed: Cell::new(false),
            entry: File::options().write(true).open(path.join("cgroup.procs"))?,
            events: File::open(path.join("cgroup.events"))?,
            path: path.to_owned(),
        })
    }

    /// Itself, where what is born into it is there from its first moment.
    pub(super) fn cradle(&self) -> Option<BorrowedFd<'_>> {
        self.gives_birth.then(|| self.place.as_fd())
    }

    /// Tries whether a child can be born into it, and lives.
    fn has_a_child(&self) -> bool {
        let mut plan = Plan::new(None);
        plan.leave();
        let Ok((child, ..)) = plan.start(self.cradle(), true) else { return false };
        let ended = rustix::process::waitpid(Some(child), WaitOptions::empty());
        ended.ok().flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) {
        self.killed.set(true);
        kill(&self.path);
    }

    /// Whether somebody is still in it.
    pub(super) fn is_populated(&self) -> bool {
        self.said().contains("populated 1\n")
    }

    /// Nobody is in it or would be stopped there, and it was not divided.
    fn is_as_new(&self) -> bool {
        // One link for itself, one for its name, and one for each below it.
        let whole = self.place.metadata().is_ok_and(|place| place.nlink() <= 2);
        let said = self.said();
        whole
            && !self.killed.get()
            && said.contains("populated 0\n")
            && !said.contains("frozen 1\n")
    }

    fn said(&self) -> String {
        let mut events = [0; 128];
        let read = self.events.read_at(&mut events, 0).unwrap_or_default();
        String::from_utf8_lossy(&events[..read]).into_owned()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn kill(path: &Path) {
    let file = File::options().write(true).open(path.join("cgroup.kill"));
    if file.and_then(|mut file| file.write_all(b"1")).is_ok() {
        return;
    }
    // Linux before 5.14 has no such file.
    let listed = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Where cgroup v2 is, alone or beside the older kind.
fn mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_v2 = kind.split(' ').next() == Some("cgroup2");
        is_v2.then(|| place.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

/// Which one we are in, below that.
fn place(own: &str) -> Option<&str> {
    own.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// What a spawner that was killed left behind. One that still lives has a process of that number.
fn sweep(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() && pid != std::process::id() {
            continue;
        }
        for job in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if job.path().is_dir() {
                kill(&job.path());
                let _ = fs::remove_dir(job.path());
            }
        }
        let _ = fs::remove_dir(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_alone_or_beside_the_older_kind() {
        let alone = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let beside = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n32 30 0:28 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup rw\n";
        assert_eq!(mount(alone), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount(beside), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(place("5:memory:/x\n0::/user.slice/a.service\n"), Some("user.slice/a.service"));
        assert_eq!(place("0::/\n"), Some(""));
        assert_eq!(place("5:memory:/x\n"), None);
    }
}
