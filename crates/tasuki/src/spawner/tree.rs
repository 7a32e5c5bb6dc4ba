//! Finds processes in `/proc`: children, descendants, ancestors, and processes with a variable in their environment.

use std::fs;
use std::os::unix::fs::FileExt as _;

use rustix::process::{Pid, Signal};

/// The direct children of a process.
pub(super) fn list_children(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        // A process that ends during the scan has no children any more.
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = listed.split_ascii_whitespace().filter_map(|field| field.parse().ok());
        found.extend(pids.filter_map(Pid::from_raw));
    }
    found
}

/// Reads the children of this process. The files of all threads in `/proc` stay open because they are read often, so no
/// thread may be started after [`Self::open`].
pub(super) struct OwnChildren(Vec<fs::File>);

impl OwnChildren {
    pub(super) fn open() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        Self(tasks.filter_map(|task| fs::File::open(task.path().join("children")).ok()).collect())
    }

    pub(super) fn list(&self) -> Vec<Pid> {
        let (mut listed, mut buffer) = (Vec::new(), [0; 4096]);
        for file in &self.0 {
            let mut offset = 0;
            while let Ok(got @ 1..) = file.read_at(&mut buffer, offset) {
                listed.extend_from_slice(&buffer[..got]);
                offset += got as u64;
            }
        }
        let fields =
            listed.split(|byte| *byte == b' ').filter_map(|field| str::from_utf8(field).ok());
        fields.filter_map(|field| Pid::from_raw(field.parse().ok()?)).collect()
    }
}

/// A process and all its descendants.
pub(super) fn with_descendants(pid: Pid) -> Vec<Pid> {
    let mut all = vec![pid];
    let mut scanned = 0;
    while let Some(&next) = all.get(scanned) {
        all.extend(list_children(next));
        scanned += 1;
    }
    all
}

/// Value of a variable in the environment that a process was started with. Also `None` for a process that is just
/// executing another program.
pub(super) fn environment_variable(pid: Pid, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let value =
        |field: &[u8]| Some(field.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    let value = environment.split(|&byte| byte == 0).find_map(value)?;
    String::from_utf8(value).ok()
}

/// All processes that were started with a value of this variable that `fits`.
pub(super) fn find_by_variable(name: &str, fits: impl Fn(&str) -> bool) -> Vec<Pid> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
    let pids = all.flatten().filter_map(pid);
    pids.filter(|pid| environment_variable(*pid, name).is_some_and(|value| fits(&value))).collect()
}

/// A process and all its ancestors, up to the first process.
pub(super) fn with_ancestors(pid: Pid) -> Vec<Pid> {
    let mut all = vec![pid];
    while let Some(parent) = all.last().and_then(|pid| parent(*pid)) {
        all.push(parent);
    }
    all
}

fn parent(pid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

/// Kills a process and all its descendants.
pub(super) fn kill_tree(pid: Pid) {
    for pid in with_descendants(pid) {
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
