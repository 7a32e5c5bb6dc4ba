//! The data directory: one node at a time, and what an earlier incarnation could no longer report.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use tasuki_core::{NodeName, RunId, WorkerId};
use tasuki_store::{Error, Store};

use super::world::{Dice, RealDice};
use crate::node::executor::attempt::{self, End};
use crate::node::executor::commands::Home;
use crate::node::executor::ends::lines;
use crate::node::executor::folders;
use crate::node::executor::launch::token_from;
use crate::node::executor::results::read_result;
use crate::node::worker::recipes::Recipes;
use crate::spawner::{Exit, JobKey, Printed};

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another node runs on it.
    #[error("another tasuki runs on {}", .0.display())]
    Taken(PathBuf),
    /// It cannot be written.
    #[error("{}: {error}", path.display())]
    Unusable {
        /// What.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// A data directory that is ours until this is dropped.
#[derive(Debug)]
pub struct HomeLock {
    data: PathBuf,
    id: String,
    _lock: File,
}

/// How long the node before, which may be in its last breath, is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// `None`: another has it.
fn take_lock(file: &File, data: &Path) -> Result<(), Option<io::Error>> {
    let asked = std::time::Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if asked.elapsed() < PATIENCE => {
                std::thread::sleep(LOOK);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(None),
            Err(error) => {
                tracing::debug!(data = %data.display(), %error, "it cannot be locked");
                return Err(Some(error.into()));
            }
        }
    }
}

/// What the processes of a data directory are known by. A copy of the directory gets another: what the
/// original runs, and what it has to report, is none of its business.
fn own_id(data: &Path) -> io::Result<String> {
    let place = fs::metadata(data)?;
    // By the time it was made, where that is known: the number of a device may change when the machine starts.
    let made = place.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let place = format!("{}:{}", place.ino(), made.unwrap_or_default().as_nanos());
    let path = data.join("id");
    let kept = fs::read_to_string(&path).unwrap_or_default();
    if let Some((id, known)) = kept.trim().split_once(' ')
        && known == place
    {
        return Ok(id.to_owned());
    }
    let workers = data.join("workers");
    fs::remove_dir_all(&workers)?;
    fs::DirBuilder::new().mode(0o700).create(&workers)?;
    let id = format!("{:032x}", RealDice.roll());
    fs::write(&path, format!("{id} {place}\n"))?;
    Ok(id)
}

/// How an attempt ended, as the spawner wrote it down.
#[derive(Deserialize)]
struct Record {
    job: JobKey,
    token: String,
    exit: Exit,
    /// Where it may have written its result.
    result: Option<PathBuf>,
    /// What it printed, where nobody has read it.
    printed: Option<Printed>,
    /// When it was written down, in microseconds.
    at: Option<i64>,
}

impl HomeLock {
    /// Makes the directory where there is none, and takes it.
    pub fn take(data: &Path) -> Result<Self, HomeError> {
        // As seen from anywhere: jobs run in directories of their own.
        let absolute = std::path::absolute(data);
        let data = &*absolute.unwrap_or_else(|_| data.to_owned());
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |error| HomeError::Unusable { path, error }
        };
        for folder in [data.to_owned(), data.join("work"), data.join("workers")] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(&folder).map_err(unusable(&folder))?;
        }
        let path = data.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(unusable(&path))?;
        take_lock(&file, data).map_err(|error| match error {
            None => HomeError::Taken(data.to_owned()),
            Some(error) => unusable(&path)(error),
        })?;
        let id = own_id(data).map_err(unusable(&data.join("id")))?;
        Ok(Self { data: data.to_owned(), id, _lock: file })
    }

    /// What its processes are known by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The file its spawners take turns with.
    pub fn spawner_lock(&self) -> PathBuf {
        self.data.join("spawner.lock")
    }

    /// A place for the ends of one incarnation.
    pub(crate) fn home(&self, worker: WorkerId) -> Result<Home, HomeError> {
        let records = self.data.join("workers").join(worker.to_string());
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&records);
        made.map_err(|error| HomeError::Unusable { path: records.clone(), error })?;
        Ok(Home { data: self.data.clone(), id: self.id.clone(), records })
    }

    /// An incarnation has left in order: there is nothing of it to be reported.
    pub(crate) fn leave(&self, worker: WorkerId) {
        let worker = worker.to_string();
        let _ = fs::remove_dir_all(self.data.join("workers").join(&worker));
        folders::remove_all(&self.data, &worker);
    }

    /// The incarnations before this one of which something is still here.
    fn earlier(&self, me: WorkerId) -> Vec<WorkerId> {
        let entries = fs::read_dir(self.data.join("workers"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse().ok());
        ids.filter(|worker| *worker != me).collect()
    }

    /// Reports how things ended that earlier incarnations could not report, then that those are dead: from
    /// then on nobody waits for their leases. Their processes are gone: the spawner has said so.
    pub(crate) async fn settle(
        &self,
        store: &Store,
        node: &NodeName,
        me: WorkerId,
        dice: &dyn Dice,
        log_cap: i64,
    ) -> Result<(), Error> {
        let recipes = Recipes::default();
        let earlier = self.earlier(me);
        let records = |worker: &WorkerId| self.data.join("workers").join(worker.to_string());
        // All ends before anybody is dead: a process that was several workers wrote them down in one place.
        let mut unread = false;
        for worker in &earlier {
            for entry in fs::read_dir(records(worker)).into_iter().flatten().flatten() {
                let text = match fs::read_to_string(entry.path()) {
                    Ok(text) => text,
                    Err(error) => {
                        tracing::warn!(file = %entry.path().display(), %error, "an end from before cannot be read");
                        unread = true;
                        continue;
                    }
                };
                if let Ok(record) = serde_json::from_str::<Record>(&text) {
                    report(store, &recipes, &record, dice, log_cap).await?;
                }
                let _ = fs::remove_file(entry.path());
            }
        }
        // Another start may read it; until then their leases are waited for.
        if unread {
            return Ok(());
        }
        for worker in earlier {
            if store.report_dead(worker, node).await? {
                tracing::info!(worker_id = %worker, "an earlier worker of this node was reported dead");
            }
            let _ = fs::remove_dir_all(records(&worker));
            folders::remove_all(&self.data, &worker.to_string());
        }
        Ok(())
    }
}

async fn report(
    store: &Store,
    recipes: &Recipes,
    record: &Record,
    dice: &dyn Dice,
    log_cap: i64,
) -> Result<(), Error> {
    let (run, exit) = (RunId(record.job.run), record.exit);
    let at = record.at.and_then(|at| Timestamp::from_microsecond(at).ok());
    let at = at.unwrap_or_else(Timestamp::now);
    let printed = record.printed.as_ref().map(|text| lines(text, at));
    if let Some(lines) = printed.filter(|lines| !lines.is_empty()) {
        // What was kept before is not kept twice.
        store.append_log(run, record.job.attempt, 0, &lines, log_cap).await?;
    }
    // It was killed with its worker: lost, which is for the supervisor to tell.
    if exit.lease_passed {
        return Ok(());
    }
    let (Some(token), Some(row)) = (token_from(&record.token), store.run(run).await?) else {
        return Ok(());
    };
    let Some(recipe) = recipes.get(store, row.job, row.job_version).await? else {
        return Ok(());
    };
    let told = record.result.as_deref().map(read_result).unwrap_or_default();
    let end = End::Exited { exit, told, printed: None };
    let finish = attempt::finish(&recipe, end, None, dice.roll() as u32);
    let reported = store.finish(token, run, &finish).await?;
    tracing::info!(run_id = %run, applied = reported.is_applied(), "an end from before was reported");
    Ok(())
}
