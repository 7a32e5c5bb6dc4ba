//! How things ended, on disk where nobody has heard it: after a moment, and at once when the worker is gone. By
//! a thread of its own: whoever keeps deadlines must not wait for a disk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::{Exit, JobKey, Printed};

/// How long an end is remembered only here, in microseconds. Mostly it is known where it has to be before that.
const SOON: u64 = 100_000;

/// An end that may have to be written down.
pub(super) struct Ended {
    pub(super) path: PathBuf,
    pub(super) result: Option<PathBuf>,
    pub(super) token: String,
    pub(super) job: JobKey,
    pub(super) exit: Exit,
    /// What it printed, where nobody else has read it.
    pub(super) printed: Option<Printed>,
}

/// Ends that nobody has heard yet.
pub(super) struct Unheard {
    /// Those that are written are only a path.
    ends: HashMap<JobKey, Result<Box<Ended>, PathBuf>>,
    /// When each is to be written, in that order; some of them were heard since.
    due: VecDeque<(u64, JobKey)>,
    disk: Option<Sender<Write>>,
    thread: Option<JoinHandle<()>>,
}

enum Write {
    Down(Box<Ended>),
    Off(PathBuf),
}

impl Unheard {
    pub(super) fn start() -> io::Result<Self> {
        let (disk, given) = channel();
        let work = move || keep(&given);
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(work)?;
        let (ends, due) = (HashMap::new(), VecDeque::new());
        Ok(Self { ends, due, disk: Some(disk), thread: Some(thread) })
    }

    pub(super) fn add(&mut self, ended: Ended, now: u64) {
        self.due.push_back((now + SOON, ended.job));
        self.ends.insert(ended.job, Ok(Box::new(ended)));
    }

    /// Somebody has.
    pub(super) fn forget(&mut self, job: JobKey) {
        if let Some(Err(path)) = self.ends.remove(&job) {
            self.to_disk(Write::Off(path));
        }
        while self.due.front().is_some_and(|(_, job)| !self.ends.contains_key(job)) {
            self.due.pop_front();
        }
    }

    /// When the next is to be written.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Writes down what has waited long enough.
    pub(super) fn look_after(&mut self, now: u64) {
        while let Some((_, job)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            let Some(end) = self.ends.get_mut(&job) else { continue };
            let Ok(ended) = end else { continue };
            let path = ended.path.clone();
            if let Ok(ended) = std::mem::replace(end, Err(path)) {
                self.to_disk(Write::Down(ended));
            }
        }
    }

    fn to_disk(&self, write: Write) {
        // The thread ends only after us.
        let _ = self.disk.as_ref().map(|disk| disk.send(write));
    }
}

impl Drop for Unheard {
    /// Nobody will hear them any more: waits until all is written.
    fn drop(&mut self) {
        self.look_after(u64::MAX);
        self.disk.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(given: &Receiver<Write>) {
    while let Ok(first) = given.recv() {
        let mut folders = BTreeSet::new();
        for what in std::iter::once(first).chain(given.try_iter()) {
            match what {
                Write::Down(ended) => match write(&ended) {
                    Ok(()) => folders.extend(ended.path.parent().map(Path::to_owned)),
                    // Only a worker that dies before it has reported it would miss it.
                    Err(error) => complain(&ended.path, &error),
                },
                Write::Off(path) => drop(fs::remove_file(path)),
            }
        }
        for folder in folders {
            if let Err(error) = File::open(&folder).and_then(|folder| folder.sync_all()) {
                complain(&folder, &error);
            }
        }
    }
}

/// To whoever reads what we say; nobody may.
fn complain(path: &Path, error: &io::Error) {
    let _ = writeln!(io::stderr(), "tasuki spawner: {}: {error}", path.display());
}

/// Now, by the clock on the wall.
fn micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as i64
}

/// Whole or not at all. What it is in has to be kept too.
fn write(ended: &Ended) -> io::Result<()> {
    let fresh: &Path = &ended.path.with_extension("part");
    let mut file = File::create(fresh)?;
    let Ended { job, token, exit, result, printed, .. } = ended;
    let told = json!({ "job": job, "token": token, "exit": exit, "result": result, "printed": printed, "at": micros() });
    file.write_all(told.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(fresh, &ended.path)
}
