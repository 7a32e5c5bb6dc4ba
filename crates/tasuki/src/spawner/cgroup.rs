//! A cgroup for each job, where the system lets us make one: cgroup v2, delegated to us. What is in it
//! cannot leave it, whatever sessions it starts and whatever environment it gives its children; so all of
//! a job is known, and one write kills all of it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use super::JobKey;

/// What our cgroups are called, so that those of a spawner that was killed are known.
const PREFIX: &str = "tasuki-";

/// Where jobs get cgroups of their own.
pub(super) struct Cgroups {
    root: PathBuf,
}

/// The cgroup of one job.
pub(super) struct Cgroup {
    path: PathBuf,
    /// Opened before the fork: whoever writes there moves in.
    pub(super) entry: File,
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
        Some(Self { root })
    }

    /// A new one. `None`: it cannot be made, and its job is looked after in other ways.
    pub(super) fn make(&self, job: JobKey) -> Option<Cgroup> {
        let path = self.root.join(format!("{}-{}", job.run, job.attempt));
        fs::create_dir(&path).ok()?;
        let entry = File::options().write(true).open(path.join("cgroup.procs"));
        match entry {
            Ok(entry) => Some(Cgroup { path, entry }),
            Err(_) => {
                let _ = fs::remove_dir(&path);
                None
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.root);
    }
}

impl Cgroup {
    /// Kills everything in it.
    pub(super) fn kill(&self) {
        kill(&self.path);
    }

    /// Whether somebody is still in it.
    pub(super) fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
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
