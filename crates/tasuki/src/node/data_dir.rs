//! The data directory: locked by one node at a time. At its start the node reports the exits that earlier
//! incarnations could not report.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tasuki_core::{NodeName, RunId, WorkerId};
use tasuki_store::{AttemptReport, Error, Outcome, Store};

use super::clock_and_random::{OsRandom, Random};
use crate::node::executor::attempt_input_and_result::{self, ExecutionEnd};
use crate::node::executor::build_launch_spec::token_from_hex;
use crate::node::executor::commands::WorkerDir;
use crate::node::executor::complete_ended_commands::output_lines;
use crate::node::executor::read_command_result_file::read_result_file;
use crate::node::executor::work_dirs;
use crate::node::job_version_cache::JobVersionCache;
use crate::spawner::{AttemptKey, ProcessExit, ProcessOutput};

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has locked it.
    #[error("another tasuki process uses the data directory {}", .0.display())]
    InUse(PathBuf),
    /// A file or directory in it cannot be read or written.
    #[error("{}: {error}", path.display())]
    Unusable {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// A data directory, locked by this process until this value is dropped.
#[derive(Debug)]
pub struct DataDirLock {
    data: PathBuf,
    id: String,
    _lock: File,
}

/// Time to wait for the lock: the previous process on this directory may be about to exit.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Locks the data directory. Error `None`: another process holds the lock.
fn acquire_lock(file: &File, data: &Path) -> Result<(), Option<io::Error>> {
    let started = std::time::Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(LOCK_POLL_INTERVAL);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(None),
            Err(error) => {
                tracing::debug!(data = %data.display(), %error, "the data directory cannot be locked");
                return Err(Some(error.into()));
            }
        }
    }
}

/// Loads the id of a data directory, or creates one. Processes of the directory are found by this id. A copy of the
/// directory gets a new id and loses its worker directories, so that it does not touch processes and exit records of
/// the original.
fn load_or_create_id(data: &Path) -> io::Result<String> {
    let identity = fs::metadata(data)?;
    // Inode and creation time identify the directory. The device number may change when the machine restarts.
    let created =
        identity.created().ok().and_then(|created| created.duration_since(UNIX_EPOCH).ok());
    let identity = format!("{}:{}", identity.ino(), created.unwrap_or_default().as_nanos());
    let path = data.join("id");
    let stored = fs::read_to_string(&path).unwrap_or_default();
    if let Some((id, stored_identity)) = stored.trim().split_once(' ')
        && stored_identity == identity
    {
        return Ok(id.to_owned());
    }
    let workers = data.join("workers");
    fs::remove_dir_all(&workers)?;
    fs::DirBuilder::new().mode(0o700).create(&workers)?;
    let id = format!("{:032x}", OsRandom.next_u128());
    fs::write(&path, format!("{id} {identity}\n"))?;
    Ok(id)
}

/// Exit record of an attempt, as written by the spawner.
#[derive(Deserialize)]
struct ExitRecord {
    job: AttemptKey,
    token: String,
    exit: ProcessExit,
    /// File to which the job may have written its result.
    result: Option<PathBuf>,
    /// Captured output that no worker has read.
    #[serde(rename = "printed")]
    output: Option<ProcessOutput>,
    /// Instant of the record, in microseconds since 1970.
    at: Option<i64>,
}

impl DataDirLock {
    /// Creates the directory if it is missing, and locks it.
    pub fn acquire(data: &Path) -> Result<Self, DataDirError> {
        // An absolute path, because jobs run in other working directories.
        let absolute = std::path::absolute(data);
        let data = &*absolute.unwrap_or_else(|_| data.to_owned());
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |error| DataDirError::Unusable { path, error }
        };
        for folder in [data.to_owned(), data.join("work"), data.join("workers")] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&folder).map_err(unusable(&folder))?;
        }
        let path = data.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(unusable(&path))?;
        acquire_lock(&file, data).map_err(|error| match error {
            None => DataDirError::InUse(data.to_owned()),
            Some(error) => unusable(&path)(error),
        })?;
        let id = load_or_create_id(data).map_err(unusable(&data.join("id")))?;
        Ok(Self { data: data.to_owned(), id, _lock: file })
    }

    /// Id of the data directory, by which its processes are found.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Lock file that lets only one spawner at a time use this directory.
    pub fn spawner_lock_path(&self) -> PathBuf {
        self.data.join("spawner.lock")
    }

    /// Creates the directory for exit records of one incarnation.
    pub(crate) fn create_worker_dir(&self, worker: WorkerId) -> Result<WorkerDir, DataDirError> {
        let records_dir = self.data.join("workers").join(worker.to_string());
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&records_dir);
        created.map_err(|error| DataDirError::Unusable { path: records_dir.clone(), error })?;
        Ok(WorkerDir {
            data_dir: self.data.clone(),
            data_dir_id: self.id.clone(),
            exit_records: records_dir,
        })
    }

    /// Removes all files of an incarnation that has nothing left to report.
    pub(crate) fn remove_worker_dir(&self, worker: WorkerId) {
        let worker = worker.to_string();
        let _ = fs::remove_dir_all(self.data.join("workers").join(&worker));
        work_dirs::remove_work_dirs(&self.data, &worker);
    }

    /// Lists earlier incarnations that still have files here.
    fn list_previous_workers(&self, current: WorkerId) -> Vec<WorkerId> {
        let entries = fs::read_dir(self.data.join("workers"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse().ok());
        ids.filter(|worker| *worker != current).collect()
    }

    /// Reports the recorded exits of earlier incarnations, and then marks those incarnations as dead, so that their
    /// runs are recovered without waiting for the leases to expire. The caller must know from the spawner that no
    /// process of theirs is left.
    pub(crate) async fn report_exits_of_previous_workers(
        &self,
        store: &Store,
        node: &NodeName,
        current: WorkerId,
        random: &dyn Random,
        max_log_bytes: i64,
    ) -> Result<(), Error> {
        let job_cache = JobVersionCache::default();
        let previous = self.list_previous_workers(current);
        let records_dir = |worker: &WorkerId| self.data.join("workers").join(worker.to_string());
        // All exits are reported before any worker is marked dead: a process that had several worker ids wrote all its
        // records into the directory of one of them.
        let mut has_unreadable_record = false;
        for worker in &previous {
            for entry in fs::read_dir(records_dir(worker)).into_iter().flatten().flatten() {
                let text = match fs::read_to_string(entry.path()) {
                    Ok(text) => text,
                    Err(error) => {
                        tracing::warn!(file = %entry.path().display(), %error, "an exit record of an earlier worker cannot be read");
                        has_unreadable_record = true;
                        continue;
                    }
                };
                if let Ok(record) = serde_json::from_str::<ExitRecord>(&text) {
                    report_exit(store, &job_cache, &record, random, max_log_bytes).await?;
                }
                let _ = fs::remove_file(entry.path());
            }
        }
        // A later start may be able to read it. Until then the runs are recovered when their leases expire.
        if has_unreadable_record {
            return Ok(());
        }
        for worker in previous {
            if store.mark_worker_dead(worker, node).await? {
                tracing::info!(worker_id = %worker, "an earlier worker of this node was marked as dead");
            }
            let _ = fs::remove_dir_all(records_dir(&worker));
            work_dirs::remove_work_dirs(&self.data, &worker.to_string());
        }
        Ok(())
    }
}

async fn report_exit(
    store: &Store,
    job_cache: &JobVersionCache,
    record: &ExitRecord,
    random: &dyn Random,
    max_log_bytes: i64,
) -> Result<(), Error> {
    let (run, exit) = (RunId(record.job.run), record.exit);
    let at = record.at.and_then(|at| Timestamp::from_microsecond(at).ok());
    let at = at.unwrap_or_else(Timestamp::now);
    let output = record.output.as_ref().map(|text| output_lines(text, at));
    if let Some(lines) = output.filter(|lines| !lines.is_empty()) {
        // These are all lines, from line 0 on. The store skips those that the earlier worker had already stored.
        store.append_log(run, record.job.attempt, 0, &lines, max_log_bytes).await?;
    }
    // The process was killed because its lease had expired: the attempt is lost, and the leader recovers the run.
    if exit.lease_expired {
        return Ok(());
    }
    let (Some(token), Some(row)) = (token_from_hex(&record.token), store.find_run(run).await?)
    else {
        return Ok(());
    };
    let Some(job) = job_cache.find_or_load(store, row.job, row.job_version).await? else {
        return Ok(());
    };
    let result_file = record.result.as_deref().map(read_result_file).unwrap_or_default();
    let end = ExecutionEnd::Exited { exit, result_file, output: None };
    let result =
        attempt_input_and_result::attempt_result(&job, end, None, random.next_u128() as u32);
    let outcomes = store.finish(&[AttemptReport::new(token, run, result)], &[token]).await?;
    let applied = outcomes.iter().all(Outcome::is_applied);
    tracing::info!(run_id = %run, applied, "the exit of an earlier worker's attempt was reported");
    Ok(())
}
