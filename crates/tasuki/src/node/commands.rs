//! Commands: each attempt a process of the spawner, its output on its way to the log, its end on disk
//! before it is told.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::Value;
use tasuki_core::LeaseToken;
use tasuki_core::exit::Stopped;
use tasuki_store::Stream;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{oneshot, watch};

use super::attempt::{Attempt, End, Executor, Happened, Mail, Told};
use super::config::Config;
use super::keeper::Keeper;
use super::launch::{self, Places, token_text};
use super::logs::Log;
use super::world::Clock;
use crate::spawner::{JobKey, Order, Refusal, Report, Spawner};

/// How long a result file may take to be read.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest result file that is read.
const LONGEST_RESULT: u64 = 256 << 10;

/// What runs commands on this node.
pub(crate) struct Commands {
    spawner: Mutex<Option<Spawner>>,
    config: Config,
    data: PathBuf,
    home: String,
    /// Where ends are written.
    records: PathBuf,
    keeper: Keeper,
    clock: Arc<dyn Clock>,
    mail: Mail,
    book: Arc<Mutex<Book>>,
}

/// What was ordered, and who waits to hear of it.
#[derive(Default)]
struct Book {
    /// How each that was started will be told to have ended.
    ends: HashMap<JobKey, oneshot::Sender<Report>>,
    /// What is to stop although it has not been started yet.
    stops: HashMap<JobKey, (Stopped, Duration)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Starts the spawner and waits until it has swept up after the one before it. `gone` is called when
    /// it is no longer there.
    pub(crate) async fn start(
        spawner: Command,
        config: Config,
        home: Home,
        keeper: Keeper,
        clock: Arc<dyn Clock>,
        mail: Mail,
        gone: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let book: Arc<Mutex<Book>> = Arc::default();
        let (ready, is_ready) = oneshot::channel();
        let (mut ready, told) = (Some(ready), Arc::clone(&book));
        let spawner = Spawner::start(spawner, move |report| match report {
            Some(Report::Ready) => drop(ready.take().map(|ready| ready.send(()))),
            Some(report @ (Report::Ended { job, .. } | Report::Refused { job, .. })) => {
                if let Some(end) = lock(&told).ends.remove(&job) {
                    let _ = end.send(report);
                }
            }
            Some(Report::Started { job, pid }) => {
                tracing::debug!(run_id = job.run, attempt = job.attempt, pid, "launched");
            }
            None => gone(),
        })?;
        // After it was started: it has its own.
        crate::spawner::raise_open_files();
        is_ready.await.map_err(|_| io::Error::other("the spawner ended before it was ready"))?;
        let Home { data, id, records } = home;
        let spawner = Mutex::new(Some(spawner));
        Ok(Self { spawner, config, data, home: id, records, keeper, clock, mail, book })
    }

    fn order(&self, order: &Order, files: Vec<OwnedFd>) -> io::Result<()> {
        match &*lock(&self.spawner) {
            Some(spawner) => spawner.order(order, files),
            None => Err(io::Error::other("the spawner has ended")),
        }
    }

    fn order_stop(&self, key: JobKey, why: Stopped, grace: Duration) {
        let order = Order::Stop { job: key, why, grace: grace.as_micros() as u64 };
        if let Err(error) = self.order(&order, Vec::new()) {
            tracing::warn!(%error, "the spawner does not listen");
        }
    }

    /// Ends the spawner, and with it everything it may still have.
    pub(crate) fn end(&self) {
        drop(lock(&self.spawner).take());
    }

    fn places(&self, key: JobKey) -> Places {
        Places {
            result: launch::folder(&self.data, key.run, key.attempt).join("result.json"),
            record: self.records.join(format!("{}-{}.json", key.run, key.attempt)),
        }
    }

    /// Launches it, or says how it ended at once.
    fn try_launch(&self, attempt: &Attempt) -> Result<(), Box<End>> {
        let key = attempt.key();
        let places = self.places(key);
        let inherited = |name: &str| std::env::var(name).ok();
        let launch = launch::command(attempt, &self.config, &self.home, &places, inherited)
            .map_err(|refused| Box::new(End::Unfit(refused)))?;
        // Of this worker, and of this moment: another try may fare better.
        let unable = |what: &str, error: io::Error| {
            Box::new(End::Refused(Refusal::Unable(format!("{what}: {error}"))))
        };
        if let Some(folder) = places.result.parent() {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| unable(&folder.display().to_string(), error))?;
        }
        let pipes = pipe().and_then(|output| Ok((output, pipe()?)));
        let ((output, output_end), (errors, errors_end)) =
            pipes.map_err(|error| unable("a pipe for its output", error))?;
        let (tell, told) = oneshot::channel();
        {
            let mut book = lock(&self.book);
            if let Err(error) = self.order(&Order::Start(launch), vec![output_end, errors_end]) {
                return Err(unable("the spawner", error));
            }
            book.ends.insert(key, tell);
            // Somebody was quicker than we.
            if let Some((why, grace)) = book.stops.remove(&key) {
                self.order_stop(key, why, grace);
            }
        }
        let cap = self.config.log_cap;
        let log = Log::new(self.keeper.clone(), Arc::clone(&self.clock), key, cap);
        let (mail, token, signs) = (self.mail.clone(), attempt.token, attempt.signs.clone());
        tokio::spawn(async move {
            let (tell_end, end) = watch::channel(false);
            let read =
                |from, stream| Arc::clone(&log).read(from, stream, signs.clone(), end.clone());
            let mut readers = tokio::task::JoinSet::new();
            readers.spawn(read(output, Stream::Out));
            readers.spawn(read(errors, Stream::Err));
            let Ok(report) = told.await else { return };
            signs.end();
            let _ = tell_end.send(true);
            log.finish(async { while readers.join_next().await.is_some() {} }).await;
            let end = match report {
                Report::Ended { exit, .. } => {
                    // Not here: a job may have put anything there, also what never answers.
                    let read = tokio::task::spawn_blocking(move || read_result(&places.result));
                    let told = match tokio::time::timeout(PATIENCE, read).await {
                        Ok(Ok(told)) => told,
                        Ok(Err(_)) | Err(_) => problem("it could not be read in time"),
                    };
                    End::Exited { exit, told }
                }
                Report::Refused { why, .. } => End::Refused(why),
                Report::Started { .. } | Report::Ready => return,
            };
            mail.send(Happened { key, token, end });
        });
        Ok(())
    }
}

/// Where a node keeps its things.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    /// The data directory.
    pub(crate) data: PathBuf,
    /// What it is known by.
    pub(crate) id: String,
    /// Where the ends of this incarnation are written.
    pub(crate) records: PathBuf,
}

impl Executor for Commands {
    fn lease(&self, token: LeaseToken, until: u64) {
        let told = self.order(&Order::Lease { token: token_text(token), until }, Vec::new());
        if let Err(error) = told {
            tracing::warn!(%error, "the spawner does not listen");
        }
    }

    fn launch(&self, attempt: Attempt) {
        if let Err(end) = self.try_launch(&attempt) {
            self.mail.send(Happened { key: attempt.key(), token: attempt.token, end: *end });
        }
    }

    fn stop(&self, key: JobKey, why: Stopped, grace: Duration) {
        let mut book = lock(&self.book);
        match book.ends.contains_key(&key) {
            true => self.order_stop(key, why, grace),
            false => drop(book.stops.insert(key, (why, grace))),
        }
    }

    fn forget(&self, key: JobKey) {
        lock(&self.book).stops.remove(&key);
        let places = self.places(key);
        let _ = fs::remove_file(&places.record);
        let _ = fs::remove_dir_all(launch::folder(&self.data, key.run, key.attempt));
    }
}

/// A pipe that is read here and written by a job.
fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}

/// What a job wrote into its result file, if it did.
pub(crate) fn read_result(path: &Path) -> Told {
    let text = match read_file(path) {
        Ok(None) => return Told::default(),
        Ok(Some(text)) if text.len() as u64 > LONGEST_RESULT => {
            return problem("it is longer than 262144 bytes");
        }
        Ok(Some(text)) => text,
        Err(error) => return problem(&error.to_string()),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(told)) => told_in(&told),
        Ok(_) => problem("it is not a JSON object"),
        Err(error) => problem(&format!("it is not JSON: {error}")),
    }
}

/// A file that a job may have written, and nothing else that it may have put there. `None`: there is none.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(io::Error::other("it is not a file")),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    file.take(LONGEST_RESULT + 1).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn problem(what: &str) -> Told {
    Told { problem: Some(what.to_owned()), ..Told::default() }
}

fn told_in(file: &serde_json::Map<String, Value>) -> Told {
    let mut told = Told::default();
    for (name, value) in file {
        let understood = match (name.as_str(), value) {
            (_, Value::Null) => true,
            ("result", value) => {
                told.result = Some(value.clone());
                true
            }
            ("progress", value) => {
                told.progress = Some(value.clone());
                true
            }
            ("rows_affected", value) => {
                told.rows_affected = value.as_i64();
                told.rows_affected.is_some()
            }
            ("error_code", value) => {
                told.error_code = value.as_str().and_then(|code| code.parse().ok());
                told.error_code.is_some()
            }
            ("log_ref", Value::String(text)) if text.len() <= 1_000 && !text.contains('\0') => {
                told.log_ref = Some(text.clone());
                true
            }
            _ => false,
        };
        if !understood {
            told.problem.get_or_insert_with(|| format!("{name:?} is not understood"));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_result_file_is_read_with_care() {
        let told = |value: Value| told_in(value.as_object().unwrap());
        let good = told(
            json!({"result": {"n": 1}, "rows_affected": 3, "error_code": "NO_DATA", "log_ref": "https://x", "progress": 0.5}),
        );
        assert_eq!(good.result, Some(json!({"n": 1})));
        assert_eq!((good.rows_affected, good.problem), (Some(3), None));
        assert_eq!(good.error_code.unwrap().as_str(), "NO_DATA");
        let odd = told(json!({"rows_affected": "many", "result": null}));
        assert_eq!(odd.problem.as_deref(), Some("\"rows_affected\" is not understood"));
        assert_eq!(
            told(json!({"colour": 1})).problem.as_deref(),
            Some("\"colour\" is not understood")
        );
        assert_eq!(read_result(Path::new("/nowhere/at/all")), Told::default());
    }

    /// A job may put anything where its result is looked for.
    #[test]
    fn only_a_file_is_read_as_a_result() {
        let folder = std::env::temp_dir().join(format!("tasuki_result_{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("directory")).unwrap();
        let (link, pipe) = (folder.join("link"), folder.join("pipe"));
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [folder.join("directory"), link, pipe] {
            assert_eq!(read_result(&path).problem.as_deref(), Some("it is not a file"), "{path:?}");
        }
        let (long, odd) = (folder.join("long"), folder.join("odd"));
        fs::write(&long, "x".repeat(LONGEST_RESULT as usize + 1)).unwrap();
        assert_eq!(read_result(&long).problem.unwrap(), "it is longer than 262144 bytes");
        fs::write(&odd, b"\xff").unwrap();
        assert!(read_result(&odd).problem.unwrap().contains("UTF-8"));
        fs::remove_dir_all(folder).unwrap();
    }
}
