//! Commands: each attempt a process of the spawner. What it printed and how it ended come together where it was
//! soon over; else what it prints is read as it comes. The spawner remembers an end until it is told to forget it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasuki_core::LeaseToken;
use tasuki_core::exit::Stopped;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::attempt::{Attempt, End, Executor, Happened, Mail, Signs};
use super::config::Config;
use super::ends::{Ended, Ends};
use super::folders::Folders;
use super::keeper::Keeper;
use super::launch::{self, Places, token_text};
use super::world::Clock;
use crate::spawner::{JobKey, Order, Refusal, Report, Spawner};

/// What runs commands on this node.
pub(crate) struct Commands {
    spawner: Mutex<Option<Spawner>>,
    config: Config,
    home: String,
    /// Where ends are written.
    records: PathBuf,
    folders: Mutex<Folders>,
    mail: Mail,
    book: Arc<Mutex<Book>>,
}

/// What was ordered, and who waits to hear of it.
#[derive(Default)]
struct Book {
    /// What was started, and has not been told to have ended.
    launched: HashMap<JobKey, Launched>,
    /// What is to stop although it has not been started yet.
    stops: HashMap<JobKey, (Stopped, Duration)>,
}

struct Launched {
    token: LeaseToken,
    signs: Signs,
    result: PathBuf,
    /// Who reads what it prints, and waits for its end.
    reader: Option<oneshot::Sender<Ended>>,
}

impl Book {
    /// Takes in what the spawner told. Returns what has ended and is read by nobody.
    fn take_in(&mut self, reports: Vec<Report>, ends: &Arc<Ends>, runtime: &Handle) -> Vec<Ended> {
        let mut over = Vec::new();
        for report in reports {
            let (key, how, printed) = match report {
                Report::Ready => continue,
                Report::Started { job, pid } => {
                    tracing::debug!(run_id = job.run, attempt = job.attempt, pid, "launched");
                    continue;
                }
                Report::Prints { job, from } => {
                    if let Some(launched) = self.launched.get_mut(&job) {
                        let (tell, told) = oneshot::channel();
                        launched.reader = Some(tell);
                        let read = Arc::clone(ends).read(job, launched.signs.clone(), from, told);
                        runtime.spawn(read);
                    }
                    continue;
                }
                Report::Ended { job, exit, printed } => (job, Ok(exit), printed),
                Report::Refused { job, why } => (job, Err(why), None),
            };
            let Some(Launched { token, signs, result, reader }) = self.launched.remove(&key) else {
                continue;
            };
            signs.end();
            let printed = printed.unwrap_or_default();
            let ended = Ended { key, token, how, printed, result };
            match reader {
                Some(reader) => drop(reader.send(ended)),
                None => over.push(ended),
            }
        }
        over
    }
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
        let (mut ready, told, runtime) = (Some(ready), Arc::clone(&book), Handle::current());
        let ends = Arc::new(Ends::new(keeper, clock, config.log_cap, mail.clone()));
        let spawner = Spawner::start(spawner, move |reports| match reports {
            Some(reports) => {
                if reports.iter().any(|report| matches!(report, Report::Ready)) {
                    let _ = ready.take().map(|ready| ready.send(()));
                }
                let over = lock(&told).take_in(reports, &ends, &runtime);
                if !over.is_empty() {
                    runtime.spawn(Arc::clone(&ends).tell(over));
                }
            }
            None => gone(),
        })?;
        // After it was started: it has its own.
        crate::spawner::raise_open_files();
        is_ready.await.map_err(|_| io::Error::other("the spawner ended before it was ready"))?;
        let Home { data, id, records } = home;
        let spawner = Mutex::new(Some(spawner));
        let worker = records.file_name().unwrap_or_default().to_string_lossy();
        let folders = Mutex::new(Folders::new(&data, &worker));
        Ok(Self { spawner, config, home: id, records, folders, mail, book })
    }

    fn order(&self, order: &Order) -> io::Result<()> {
        match &*lock(&self.spawner) {
            Some(spawner) => spawner.order(order, Vec::new()),
            None => Err(io::Error::other("the spawner has ended")),
        }
    }

    fn order_stop(&self, key: JobKey, why: Stopped, grace: Duration) {
        let order = Order::Stop { job: key, why, grace: grace.as_micros() as u64 };
        if let Err(error) = self.order(&order) {
            tracing::warn!(%error, "the spawner does not listen");
        }
    }

    /// Ends the spawner, and with it everything it may still have.
    pub(crate) fn end(&self) {
        drop(lock(&self.spawner).take());
    }

    /// Launches it, or says how it ended at once.
    fn try_launch(&self, attempt: &Attempt) -> Result<(), Box<End>> {
        let key = attempt.key();
        // Of this worker, and of this moment: another try may fare better.
        let unable = |what: &str, error: io::Error| {
            Box::new(End::Refused(Refusal::Unable(format!("{what}: {error}"))))
        };
        let folder = lock(&self.folders).take(key);
        let folder = folder.map_err(|error| unable("a folder for its result", error))?;
        let record = self.records.join(format!("{}-{}.json", key.run, key.attempt));
        let places = Places { result: folder.join("result.json"), record };
        let inherited = |name: &str| std::env::var(name).ok();
        let launch = launch::command(attempt, &self.config, &self.home, &places, inherited)
            .map_err(|refused| Box::new(End::Unfit(refused)))?;
        let mut book = lock(&self.book);
        self.order(&Order::Start(launch)).map_err(|error| unable("the spawner", error))?;
        let (token, signs, result) = (attempt.token, attempt.signs.clone(), places.result);
        book.launched.insert(key, Launched { token, signs, result, reader: None });
        // Somebody was quicker than we.
        if let Some((why, grace)) = book.stops.remove(&key) {
            self.order_stop(key, why, grace);
        }
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
        let told = self.order(&Order::Lease { token: token_text(token), until });
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
        match book.launched.contains_key(&key) {
            true => self.order_stop(key, why, grace),
            false => drop(book.stops.insert(key, (why, grace))),
        }
    }

    fn forget(&self, key: JobKey) {
        lock(&self.book).stops.remove(&key);
        // One that has ended has written down what it knows, and nobody needs that any more.
        let _ = self.order(&Order::Forget { job: key });
        lock(&self.folders).give_back(key);
    }
}
