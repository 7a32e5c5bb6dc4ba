//! A cgroup (v2) for each attempt, where the system has delegated one to this process. A process cannot leave its
//! cgroup, whatever sessions it starts and whatever environment it gives its children. So the spawner knows all
//! processes of an attempt, and kills them with one write.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, WaitOptions};

use super::clone_exec::ChildSetup;

/// Prefix of the names of our cgroups, by which those of a killed spawner are found.
const CGROUP_PREFIX: &str = "tasuki-";

/// Maximum number of empty cgroups that are kept for reuse: about as many as a busy node uses at the same time.
const MAX_SPARE_CGROUPS: usize = 1_024;

/// Creates cgroups for attempts and reuses empty ones: creating and removing one for each attempt would cost as much as
/// the start itself.
pub(super) struct CgroupPool {
    root: PathBuf,
    created: u64,
    spare: Vec<AttemptCgroup>,
    /// Whether the kernel can create a child directly in a cgroup (`CLONE_INTO_CGROUP`).
    clone_into: bool,
}

/// A cgroup, used by one attempt at a time.
pub(super) struct AttemptCgroup {
    path: PathBuf,
    dir: File,
    clone_into: bool,
    /// Whether it was killed. Linux also kills every process that is created later in such a cgroup.
    killed: Cell<bool>,
    /// `cgroup.procs`: a process that writes its id there moves into the cgroup.
    pub(super) procs_file: File,
    /// `cgroup.events`: shows whether a process is in the cgroup.
    events_file: File,
}

impl CgroupPool {
    /// Creates the pool. `None`: there is no cgroup v2, this process may not create cgroups, or `TASUKI_CGROUPS=off` is
    /// set.
    pub(super) fn detect() -> Option<Self> {
        if std::env::var_os("TASUKI_CGROUPS").is_some_and(|value| value == "off") {
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let parent = cgroup2_mount(&mounts)?.join(own_cgroup(&own)?);
        remove_leftovers(&parent);
        let root = parent.join(format!("{CGROUP_PREFIX}{}", std::process::id()));
        fs::create_dir(&root).ok()?;
        let mut pool = Self { root, created: 0, spare: Vec::new(), clone_into: true };
        // Whether it works depends on the kernel and on our own cgroup, so it is tried.
        let first = pool.take().filter(AttemptCgroup::can_clone_into);
        pool.clone_into = first.is_some();
        first.into_iter().for_each(|first| pool.give_back(first));
        Some(pool)
    }

    /// Takes a cgroup for an attempt. `None`: it cannot be created, and the processes are found in other ways.
    pub(super) fn take(&mut self) -> Option<AttemptCgroup> {
        if let Some(spare) = self.spare.pop() {
            return Some(spare);
        }
        let path = self.root.join(self.created.to_string());
        self.created += 1;
        fs::create_dir(&path).ok()?;
        let cgroup = AttemptCgroup::open(&path, self.clone_into);
        if cgroup.is_err() {
            let _ = fs::remove_dir(&path);
        }
        cgroup.ok()
    }

    /// Gives the cgroup of an ended attempt back. It is kept if another attempt can use it.
    pub(super) fn give_back(&mut self, cgroup: AttemptCgroup) {
        if self.spare.len() < MAX_SPARE_CGROUPS && cgroup.is_reusable() {
            self.spare.push(cgroup);
        }
    }
}

impl Drop for CgroupPool {
    fn drop(&mut self) {
        self.spare.clear();
        let _ = fs::remove_dir(&self.root);
    }
}

impl AttemptCgroup {
    fn open(path: &Path, clone_into: bool) -> io::Result<Self> {
        Ok(Self {
            dir: File::open(path)?,
            clone_into,
            killed: Cell::new(false),
            procs_file: File::options().write(true).open(path.join("cgroup.procs"))?,
            events_file: File::open(path.join("cgroup.events"))?,
            path: path.to_owned(),
        })
    }

    /// The directory of the cgroup as a target of `clone3`, if a child can be created in it.
    pub(super) fn clone_target(&self) -> Option<BorrowedFd<'_>> {
        self.clone_into.then(|| self.dir.as_fd())
    }

    /// Tests whether a child can be created in it and exits normally.
    fn can_clone_into(&self) -> bool {
        let mut setup = ChildSetup::new(None);
        setup.exit();
        let Ok((child, ..)) = setup.clone_child(self.clone_target(), true) else { return false };
        let ended = rustix::process::waitpid(Some(child), WaitOptions::empty());
        ended.ok().flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) {
        self.killed.set(true);
        kill_cgroup(&self.path);
    }

    /// Whether a process is still in it.
    pub(super) fn is_populated(&self) -> bool {
        self.read_events().contains("populated 1\n")
    }

    /// Whether another attempt can use it: it is empty, was never killed or frozen, and has no cgroups below it.
    fn is_reusable(&self) -> bool {
        // A directory has one link for itself, one for its name, and one for each directory below it.
        let no_children = self.dir.metadata().is_ok_and(|dir| dir.nlink() <= 2);
        let events = self.read_events();
        no_children
            && !self.killed.get()
            && events.contains("populated 0\n")
            && !events.contains("frozen 1\n")
    }

    fn read_events(&self) -> String {
        let mut events = [0; 128];
        let read = self.events_file.read_at(&mut events, 0).unwrap_or_default();
        String::from_utf8_lossy(&events[..read]).into_owned()
    }
}

impl Drop for AttemptCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn kill_cgroup(path: &Path) {
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

/// Mount point of cgroup v2, alone or beside cgroup v1.
fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let is_v2 = kind.split(' ').next() == Some("cgroup2");
        is_v2.then(|| mount.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

/// Path of our own cgroup below the mount point.
fn own_cgroup(own: &str) -> Option<&str> {
    own.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// Removes the cgroups that killed spawners have left, and kills what is in them. A spawner that is alive has a process
/// with the id in the name.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix(CGROUP_PREFIX)?.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        if Path::new(&format!("/proc/{pid}")).exists() && pid != std::process::id() {
            continue;
        }
        for child in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if child.path().is_dir() {
                kill_cgroup(&child.path());
                let _ = fs::remove_dir(child.path());
            }
        }
        let _ = fs::remove_dir(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_alone_or_beside_v1() {
        let alone = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let both = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n32 30 0:28 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup rw\n";
        assert_eq!(cgroup2_mount(alone), Some("/sys/fs/cgroup".into()));
        assert_eq!(cgroup2_mount(both), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            cgroup2_mount("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
            None
        );
        assert_eq!(
            own_cgroup("5:memory:/x\n0::/user.slice/a.service\n"),
            Some("user.slice/a.service")
        );
        assert_eq!(own_cgroup("0::/\n"), Some(""));
        assert_eq!(own_cgroup("5:memory:/x\n"), None);
    }
}
