//! Which processes are there, from `/proc`.

use std::fs;
use std::os::unix::fs::FileExt as _;

use rustix::process::{Pid, Signal};

/// The direct children of a process.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        // A process that ends while it is looked at has no children any more.
        let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = listed.split_ascii_whitespace().filter_map(|word| word.parse().ok());
        found.extend(pids.filter_map(Pid::from_raw));
    }
    found
}

/// The children of this process, looked at often: what tells them stays open. No thread may be started later.
pub(super) struct Children(Vec<fs::File>);

impl Children {
    pub(super) fn open() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        Self(tasks.filter_map(|task| fs::File::open(task.path().join("children")).ok()).collect())
    }

    pub(super) fn list(&self) -> Vec<Pid> {
        let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
        for file in &self.0 {
            let mut offset = 0;
            while let Ok(got @ 1..) = file.read_at(&mut buffer, offset) {
                text.extend_from_slice(&buffer[..got]);
                offset += got as u64;
            }
        }
        let words = text.split(|byte| *byte == b' ').filter_map(|word| str::from_utf8(word).ok());
        words.filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
    }
}

/// A process and everything below it.
pub(super) fn below(pid: Pid) -> Vec<Pid> {
    let mut all = vec![pid];
    let mut looked_at = 0;
    while let Some(&next) = all.get(looked_at) {
        all.extend(children(next));
        looked_at += 1;
    }
    all
}

/// What a variable was in the environment a process was started with. `None` also for one that is just
/// becoming another program.
pub(super) fn variable(pid: Pid, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let value =
        |word: &[u8]| Some(word.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    let value = environment.split(|&byte| byte == 0).find_map(value)?;
    String::from_utf8(value).ok()
}

/// The processes that were started with such a value of a variable.
pub(super) fn with_variable(name: &str, fits: impl Fn(&str) -> bool) -> Vec<Pid> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
    let pids = all.flatten().filter_map(pid);
    pids.filter(|pid| variable(*pid, name).is_some_and(|value| fits(&value))).collect()
}

/// A process and those that started it, up to the first.
pub(super) fn above(pid: Pid) -> Vec<Pid> {
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

/// Kills a process and everything below it.
pub(super) fn kill(pid: Pid) {
    for pid in below(pid) {
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
