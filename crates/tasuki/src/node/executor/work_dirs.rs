//! Work directories: each attempt of a command has one while it runs, for its result file. A directory that is empty
//! afterwards is reused, because creating one for each attempt would cost more than many a command.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::spawner::AttemptKey;

/// Maximum number of unused directories that are kept for reuse: about as many as a busy node uses at the same time.
const MAX_SPARE_DIRS: usize = 1_024;

pub(crate) struct WorkDirs {
    /// Directory that contains the work directories.
    root: PathBuf,
    /// Prefix of their names: the worker id.
    prefix: String,
    created: u64,
    spare: Vec<PathBuf>,
    in_use: HashMap<AttemptKey, PathBuf>,
}

impl WorkDirs {
    pub(crate) fn new(data: &Path, worker: &str) -> Self {
        let (root, prefix) = (data.join("work"), prefix(worker));
        Self { root, prefix, created: 0, spare: Vec::new(), in_use: HashMap::new() }
    }

    /// Takes a directory for an attempt.
    pub(crate) fn take(&mut self, key: AttemptKey) -> io::Result<PathBuf> {
        let dir = match self.spare.pop() {
            Some(dir) => dir,
            None => {
                let dir = self.root.join(format!("{}{}", self.prefix, self.created));
                self.created += 1;
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
                dir
            }
        };
        self.in_use.insert(key, dir.clone());
        Ok(dir)
    }

    /// Gives the directory of an attempt back: it is kept if it is empty, else removed.
    pub(crate) fn give_back(&mut self, key: AttemptKey) {
        let Some(dir) = self.in_use.remove(&key) else { return };
        let is_empty = fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty && self.spare.len() < MAX_SPARE_DIRS {
            self.spare.push(dir);
        } else {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

impl Drop for WorkDirs {
    fn drop(&mut self) {
        for dir in &self.spare {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Removes all work directories of a worker.
pub(crate) fn remove_work_dirs(data: &Path, worker: &str) {
    let prefix = prefix(worker);
    for entry in fs::read_dir(data.join("work")).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn prefix(worker: &str) -> String {
    format!("{worker}-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_dirs_are_empty_at_start_and_removed_at_the_end() {
        let data = std::env::temp_dir().join(format!("tasuki_folders_{}", std::process::id()));
        let _ = fs::remove_dir_all(&data);
        let key = |run| AttemptKey { run, attempt: 1 };
        let mut dirs = WorkDirs::new(&data, "w");
        let first = dirs.take(key(1)).unwrap();
        let other = dirs.take(key(2)).unwrap();
        assert_ne!(first, other);
        fs::write(first.join("result.json"), "{}").unwrap();
        dirs.give_back(key(1));
        assert!(!first.exists(), "a directory with files is removed");
        dirs.give_back(key(2));
        assert_eq!(dirs.take(key(3)).unwrap(), other, "an empty directory is reused");
        dirs.give_back(key(3));
        let left = dirs.take(key(4)).unwrap();
        fs::write(left.join("half"), "").unwrap();
        drop(dirs);
        remove_work_dirs(&data, "another");
        assert!(left.exists());
        remove_work_dirs(&data, "w");
        assert_eq!(fs::read_dir(data.join("work")).unwrap().count(), 0);
        fs::remove_dir_all(data).unwrap();
    }
}
