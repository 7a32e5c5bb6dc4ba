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
use tokio::sync::{mpsc, oneshot};

use super::attempt::{Attempt, End, Executor, Happened, Mail, Signs};
use super::ends::{Ended, Ends};
use super::folders::Folders;
use super::keeper::Keeper;
use super::launch::{self, Places, token_text};
use crate::node::config::Config;
use crate::node::world::Clock;
use crate::spawner::{JobKey, Launch, Order, Refusal, Report, Spawner};

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
        let (tell, over) = mpsc::unbounded_channel();
        let (launched, rings) = (Arc::clone(&book), mail.clone());
        let may_come = move || !lock(&launched).launched.is_empty();
        runtime.spawn(Arc::clone(&ends).tell_all(over, may_come));
        let spawner = Spawner::start(spawner, move |reports| match reports {
            Some(reports) => {
                if reports.iter().any(|report| matches!(report, Report::Ready)) {
                    let _ = ready.take().map(|ready| ready.send(()));
                }
                let over = lock(&told).take_in(reports, &ends, &runtime);
                if !over.is_empty() {
                    let _ = tell.send(over);
                    // There is room again, before anybody is told why.
                    rings.ring();
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
        self.order_all(std::slice::from_ref(order))
    }

    fn order_all(&self, orders: &[Order]) -> io::Result<()> {
        match &*lock(&self.spawner) {
            Some(spawner) => spawner.order_all(orders),
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

    /// What is ordered of the spawner, and where the result will be; or how it ended at once.
    fn prepare(&self, attempt: &Attempt) -> Result<(Launch, PathBuf), Box<End>> {
        let key = attempt.key();
        let folder = lock(&self.folders).take(key);
        let folder = folder.map_err(|error| unable("a folder for its result", &error))?;
        let record = self.records.join(format!("{}-{}.json", key.run, key.attempt));
        let places = Places { result: folder.join("result.json"), record };
        let inherited = |name: &str| std::env::var(name).ok();
        let launch = launch::command(attempt, &self.config, &self.home, &places, inherited)
            .map_err(|refused| Box::new(End::Unfit(refused)))?;
        Ok((launch, places.result))
    }

    /// Orders the start of these, in one go.
    fn order_starts(&self, orders: &[Order], attempts: Vec<(Attempt, PathBuf)>) {
        let mut book = lock(&self.book);
        match (self.order_all(orders), &attempts[..]) {
            (Ok(()), _) => {}
            (Err(error), [(attempt, _)]) => {
                return self.mail.send(happened(attempt, *unable("the spawner", &error)));
            }
            // One of them keeps the others from being ordered: each for itself.
            (Err(_), _) => {
                drop(book);
                for (order, attempt) in orders.iter().zip(attempts) {
                    self.order_starts(std::slice::from_ref(order), vec![attempt]);
                }
                return;
            }
        }
        for (attempt, result) in attempts {
            let (key, token, signs) = (attempt.key(), attempt.token, attempt.signs.clone());
            book.launched.insert(key, Launched { token, signs, result, reader: None });
            // Somebody was quicker than we.
            if let Some((why, grace)) = book.stops.remove(&key) {
                self.order_stop(key, why, grace);
            }
        }
    }
}

/// Of this worker, and of this moment: another try may fare better.
fn unable(what: &str, error: &io::Error) -> Box<End> {
    Box::new(End::Refused(Refusal::Unable(format!("{what}: {error}"))))
}

fn happened(attempt: &Attempt, end: End) -> Happened {
    Happened { key: attempt.key(), token: attempt.token, end }
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
        self.launch_all(vec![attempt]);
    }

    fn launch_all(&self, attempts: Vec<Attempt>) {
        let mut orders = Vec::with_capacity(attempts.len());
        let mut launched = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            match self.prepare(&attempt) {
                Ok((launch, result)) => {
                    orders.push(Order::Start(launch));
                    launched.push((attempt, result));
                }
                Err(end) => self.mail.send(happened(&attempt, *end)),
            }
        }
        if !orders.is_empty() {
            self.order_starts(&orders, launched);
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
        self.forget_all(&[key]);
    }

    fn forget_all(&self, keys: &[JobKey]) {
        let mut book = lock(&self.book);
        for key in keys {
            book.stops.remove(key);
        }
        drop(book);
        // One that has ended has written down what it knows, and nobody needs that any more.
        let forget = |job: &JobKey| Order::Forget { job: *job };
        let _ = self.order_all(&keys.iter().map(forget).collect::<Vec<_>>());
        let mut folders = lock(&self.folders);
        keys.iter().for_each(|key| folders.give_back(*key));
    }
}
