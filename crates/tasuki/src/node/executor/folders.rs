//! Folders for what jobs write: each attempt has one of its own while it runs, and the next takes it over where
//! nothing was left in it. To make one anew for each would cost more than many a command does.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::spawner::JobKey;

/// So many that nobody uses are kept: as many as many commands use at once.
const SPARE: usize = 1_024;

pub(crate) struct Folders {
    /// Where they are.
    place: PathBuf,
    /// What their names begin with.
    prefix: String,
    made: u64,
    spare: Vec<PathBuf>,
    used: HashMap<JobKey, PathBuf>,
}

impl Folders {
    pub(crate) fn new(data: &Path, worker: &str) -> Self {
        let (place, prefix) = (data.join("work"), prefix(worker));
        Self { place, prefix, made: 0, spare: Vec::new(), used: HashMap::new() }
    }

    /// One for an attempt.
    pub(crate) fn take(&mut self, job: JobKey) -> io::Result<PathBuf> {
        let folder = match self.spare.pop() {
            Some(folder) => folder,
            None => {
                let folder = self.place.join(format!("{}{}", self.prefix, self.made));
                self.made += 1;
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
                folder
            }
        };
        self.used.insert(job, folder.clone());
        Ok(folder)
    }

    /// It needs it no longer.
    pub(crate) fn give_back(&mut self, job: JobKey) {
        let Some(folder) = self.used.remove(&job) else { return };
        let is_empty = fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty && self.spare.len() < SPARE {
            self.spare.push(folder);
        } else {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in &self.spare {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Removes all that a worker had.
pub(crate) fn remove_all(data: &Path, worker: &str) {
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
    fn an_attempt_finds_its_folder_empty_and_nothing_stays() {
        let data = std::env::temp_dir().join(format!("tasuki_folders_{}", std::process::id()));
        let _ = fs::remove_dir_all(&data);
        let job = |run| JobKey { run, attempt: 1 };
        let mut folders = Folders::new(&data, "w");
        let first = folders.take(job(1)).unwrap();
        let other = folders.take(job(2)).unwrap();
        assert_ne!(first, other);
        fs::write(first.join("result.json"), "{}").unwrap();
        folders.give_back(job(1));
        assert!(!first.exists(), "something was left in it");
        folders.give_back(job(2));
        assert_eq!(folders.take(job(3)).unwrap(), other, "nothing was");
        folders.give_back(job(3));
        let left = folders.take(job(4)).unwrap();
        fs::write(left.join("half"), "").unwrap();
        drop(folders);
        remove_all(&data, "another");
        assert!(left.exists());
        remove_all(&data, "w");
        assert_eq!(fs::read_dir(data.join("work")).unwrap().count(), 0);
        fs::remove_dir_all(data).unwrap();
    }
}
