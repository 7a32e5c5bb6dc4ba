//! Exits that the worker has not acknowledged. Each is written to disk after a short delay, or immediately when the
//! worker has gone, so that the next worker can report it. A thread of its own writes them: the spawner enforces
//! deadlines and must not wait for a disk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::{AttemptKey, ProcessExit, ProcessOutput};

/// How long an exit is kept in memory only, in microseconds. Most exits are acknowledged before that.
const WRITE_DELAY_MICROS: u64 = 100_000;

/// An exit that may have to be written to disk.
pub(super) struct ExitRecord {
    /// File of the record.
    pub(super) path: PathBuf,
    pub(super) result_file: Option<PathBuf>,
    pub(super) token: String,
    pub(super) key: AttemptKey,
    pub(super) exit: ProcessExit,
    /// Its output, if its pipes were not handed over.
    pub(super) output: Option<ProcessOutput>,
}

/// Exits that are not acknowledged.
pub(super) struct ExitJournal {
    /// A record in memory, or the path of one that was written.
    records: HashMap<AttemptKey, Result<Box<ExitRecord>, PathBuf>>,
    /// When each record is due to be written, in that order. Some of them may have been acknowledged since.
    due: VecDeque<(u64, AttemptKey)>,
    writer: Option<Sender<DiskWrite>>,
    thread: Option<JoinHandle<()>>,
}

enum DiskWrite {
    Save(Box<ExitRecord>),
    Remove(PathBuf),
}

impl ExitJournal {
    /// Starts the thread that writes the records.
    pub(super) fn start() -> io::Result<Self> {
        let (writer, queue) = channel();
        let work = move || run_writer(&queue);
        let thread = std::thread::Builder::new().name("exit-records".to_owned()).spawn(work)?;
        let (records, due) = (HashMap::new(), VecDeque::new());
        Ok(Self { records, due, writer: Some(writer), thread: Some(thread) })
    }

    /// Adds an exit. Its record is written after [`WRITE_DELAY_MICROS`], if it is not acknowledged before.
    pub(super) fn add(&mut self, record: ExitRecord, now: u64) {
        self.due.push_back((now + WRITE_DELAY_MICROS, record.key));
        self.records.insert(record.key, Ok(Box::new(record)));
    }

    /// Forgets an acknowledged exit, and removes its file if it was written.
    pub(super) fn forget(&mut self, key: AttemptKey) {
        if let Some(Err(path)) = self.records.remove(&key) {
            self.queue_write(DiskWrite::Remove(path));
        }
        while self.due.front().is_some_and(|(_, key)| !self.records.contains_key(key)) {
            self.due.pop_front();
        }
    }

    /// When the next record is due to be written.
    pub(super) fn next_write_at(&self) -> Option<u64> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Writes the records that are due.
    pub(super) fn write_due(&mut self, now: u64) {
        while let Some((_, key)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            let Some(entry) = self.records.get_mut(&key) else { continue };
            let Ok(record) = entry else { continue };
            let path = record.path.clone();
            if let Ok(record) = std::mem::replace(entry, Err(path)) {
                self.queue_write(DiskWrite::Save(record));
            }
        }
    }

    fn queue_write(&self, write: DiskWrite) {
        // Cannot fail: the thread runs until this sender is dropped.
        let _ = self.writer.as_ref().map(|writer| writer.send(write));
    }
}

impl Drop for ExitJournal {
    /// The worker has gone and acknowledges nothing any more: writes all records and waits for that.
    fn drop(&mut self) {
        self.write_due(u64::MAX);
        self.writer.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run_writer(queue: &Receiver<DiskWrite>) {
    while let Ok(first) = queue.recv() {
        let mut dirs = BTreeSet::new();
        for write in std::iter::once(first).chain(queue.try_iter()) {
            match write {
                DiskWrite::Save(record) => match write_record(&record) {
                    Ok(()) => dirs.extend(record.path.parent().map(Path::to_owned)),
                    // Only if the worker dies before it has reported this exit, the exit is lost.
                    Err(error) => log_error(&record.path, &error),
                },
                DiskWrite::Remove(path) => drop(fs::remove_file(path)),
            }
        }
        for dir in dirs {
            if let Err(error) = File::open(&dir).and_then(|dir| dir.sync_all()) {
                log_error(&dir, &error);
            }
        }
    }
}

/// Logs an error to stderr. A failure to do so is ignored.
fn log_error(path: &Path, error: &io::Error) {
    let _ = writeln!(io::stderr(), "tasuki spawner: {}: {error}", path.display());
}

/// Current time by the wall clock, in microseconds since 1970.
fn wall_clock_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as i64
}

/// Writes a record completely or not at all. The caller must also sync the directory.
fn write_record(record: &ExitRecord) -> io::Result<()> {
    let temporary: &Path = &record.path.with_extension("part");
    let mut file = File::create(temporary)?;
    let ExitRecord { key, token, exit, result_file, output, .. } = record;
    // The next worker reads these names in `node/data_dir.rs`; it may be of another version.
    let json = json!({
        "job": key,
        "token": token,
        "exit": exit,
        "result": result_file,
        "printed": output,
        "at": wall_clock_micros(),
    });
    file.write_all(json.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, &record.path)
}
