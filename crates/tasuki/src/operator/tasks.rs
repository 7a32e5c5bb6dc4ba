//! Runs that somebody asks for: tasks, one or many, and a job run by hand.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tasuki_core::{Invalid, Lane, Priority, Queue, RunId, Scope};
use tasuki_store::{
    AppTransaction, Writer, Created, Enqueuer, Job, JobVersion, NewRun, Store, Task,
};

use crate::notify::announce::Announce;

use super::{Actor, Current, Error, Operator, RunNow};

/// How often a job that changes while it is being run by hand is looked at again.
const LOOKS: u32 = 5;
/// How long a definition is taken for what it was.
const FRESH: Duration = Duration::from_millis(500);
/// From when on a submit that was acknowledged has it read again: who submits all the time never waits for that.
const AHEAD: Duration = Duration::from_millis(250);
/// More definitions than this are forgotten all at once.
const MOST_KNOWN: usize = 10_000;

/// A run somebody asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskDraft {
    /// Of which job.
    pub job: String,
    /// What it is given, as a JSON object.
    pub args: Option<String>,
    /// For what; for everything, unless said.
    pub scope: Option<Scope>,
    /// Not before; now, unless said.
    pub scheduled_for: Option<Timestamp>,
    /// Given up after this.
    pub expires_at: Option<Timestamp>,
    /// The same key twice is the same run.
    pub idempotency_key: Option<String>,
    /// Whose slots it uses, if not those its job says; only of functions that workers claim.
    pub queue: Option<Queue>,
    /// How much of a head start it has, if not what its job says; only of functions that workers claim.
    pub priority: Option<Priority>,
}

/// A run that is there now.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run.
    pub run: RunNow,
    /// Whether it was there before: the same idempotency key.
    pub existed: bool,
}

/// A job as it was a moment ago.
struct Known {
    job: Job,
    newest: Arc<JobVersion>,
    /// When it was read.
    read: Instant,
    /// Whether it is being read again.
    again: AtomicBool,
}

impl Known {
    fn new(job: Job) -> Self {
        let (newest, read) = (Arc::new(job.newest.clone()), Instant::now());
        Self { job, newest, read, again: AtomicBool::new(false) }
    }
}

/// Jobs by their names.
type Jobs<'t> = BTreeMap<&'t str, Arc<Known>>;

/// What makes many submits cheap: definitions that were just read, and single tasks that travel together.
#[derive(Default)]
pub(super) struct Submits {
    known: Mutex<Definitions>,
    enqueuer: Mutex<Option<Enqueuer>>,
}

#[derive(Default)]
struct Definitions {
    jobs: HashMap<String, Arc<Known>>,
    /// How often they were forgotten.
    forgotten: u64,
}

impl Submits {
    fn known(&self) -> MutexGuard<'_, Definitions> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something about jobs has changed here: it counts at once.
    pub(super) fn forget(&self) {
        let mut known = self.known();
        known.jobs.clear();
        known.forgotten += 1;
    }
}

impl TaskDraft {
    fn task(&self, job: &Known) -> Result<Task, Invalid> {
        Ok(Task {
            scope: self.scope.clone().unwrap_or_default(),
            scheduled_for: self.scheduled_for,
            idempotency_key: self.idempotency_key.clone(),
            args: self.args.clone(),
            expires_at: self.expires_at,
            lane: self.lane(&job.newest.spec.lane)?,
            ..Task::new(Arc::clone(&job.newest))
        })
    }

    fn run<'j>(&self, job: &'j Known) -> Result<NewRun<'j>, Invalid> {
        Ok(NewRun {
            scope: self.scope.clone().unwrap_or_default(),
            scheduled_for: self.scheduled_for,
            idempotency_key: self.idempotency_key.clone(),
            args: self.args.clone(),
            expires_at: self.expires_at,
            lane: self.lane(&job.newest.spec.lane)?,
            ..NewRun::task(&job.newest)
        })
    }

    /// Where it waits, if not where its job says.
    fn lane(&self, usual: &str) -> Result<Option<String>, Invalid> {
        let (field, typed) = match (&self.queue, self.priority) {
            (None, None) => return Ok(None),
            (Some(queue), _) => ("queue", queue.as_str()),
            (None, Some(priority)) => ("priority", priority.as_str()),
        };
        let Ok(mut lane) = usual.parse::<Lane>() else {
            let expected = "none: only functions that workers claim have one";
            return Err(Invalid::typed(field, typed, expected));
        };
        if let Some(queue) = &self.queue {
            lane.queue = queue.clone();
        }
        if let Some(priority) = self.priority {
            lane.priority = priority;
        }
        Ok(Some(lane.to_string()))
    }
}

impl Operator {
    /// Submits a task.
    pub async fn submit(&self, task: &TaskDraft) -> Result<Submitted, Error> {
        let made = self.enqueue(task).await?;
        Ok(Submitted { run: self.run(made.run).await?, existed: made.existed })
    }

    /// The same, and tells no more than which run it is. Those of callers at the same time travel together;
    /// each hears when its own is durable.
    pub async fn enqueue(&self, task: &TaskDraft) -> Result<Created, Error> {
        let job = self.known_job(&task.job).await?;
        let made = self.enqueuer().enqueue(task.task(&job)?).await?;
        self.read_ahead(&job);
        if made.existed {
            self.is_of(made.run, &job.job).await?;
        }
        Ok(made)
    }

    /// Submits many tasks, all or none; answers in the same order.
    pub async fn submit_all(&self, tasks: &[TaskDraft]) -> Result<Vec<Created>, Error> {
        let jobs = self.known_jobs(tasks).await?;
        let created = self.store.create(Writer::Api, &runs(tasks, &jobs)?).await?;
        if created.iter().any(|made| !made.existed) {
            jobs.values().for_each(|job| tell_of(&self.wake, &job.newest.spec.lane));
        }
        jobs.values().for_each(|job| self.read_ahead(job));
        for (made, task) in created.iter().zip(tasks).filter(|(made, _)| made.existed) {
            self.is_of(made.run, &jobs[&*task.job].job).await?;
        }
        Ok(created)
    }

    /// The same in a transaction of the application: if that commits, the runs are there, and else they never
    /// were. Somebody who waits for work finds it a second later at most, or when
    /// [`committed`](Operator::committed) is called after the commit.
    pub async fn submit_in<'a>(
        &self,
        transaction: impl Into<AppTransaction<'a>>,
        tasks: &[TaskDraft],
    ) -> Result<Vec<Created>, Error> {
        let jobs = self.known_jobs(tasks).await?;
        let created = self.store.create_in(transaction, &runs(tasks, &jobs)?).await?;
        jobs.values().for_each(|job| self.read_ahead(job));
        Ok(created)
    }

    async fn known_jobs<'t>(&self, tasks: &'t [TaskDraft]) -> Result<Jobs<'t>, Error> {
        let mut jobs = Jobs::new();
        for task in tasks {
            if !jobs.contains_key(task.job.as_str()) {
                jobs.insert(&task.job, self.known_job(&task.job).await?);
            }
        }
        Ok(jobs)
    }

    fn enqueuer(&self) -> Enqueuer {
        let mut known = self.submits.enqueuer.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends with the runtime it was started on, and the next one begins where it is asked for.
        if let Some(enqueuer) = known.as_ref().filter(|enqueuer| !enqueuer.has_stopped()) {
            return enqueuer.clone();
        }
        let (store, announce) = (self.store.clone(), self.wake.clone());
        let make = move |tasks| make(store.clone(), announce.clone(), tasks);
        let (enqueuer, work) = Enqueuer::by(make);
        tokio::spawn(work);
        known.insert(enqueuer).clone()
    }

    /// The job of a task, if it takes tasks. What others change about it counts a moment later.
    async fn known_job(&self, name: &str) -> Result<Arc<Known>, Error> {
        let known = self.submits.known().jobs.get(name).cloned();
        match known.filter(|job| job.read.elapsed() < FRESH) {
            Some(job) => Ok(job),
            None => self.read_job(name).await,
        }
    }

    async fn read_job(&self, name: &str) -> Result<Arc<Known>, Error> {
        let forgotten = self.submits.known().forgotten;
        let job = self.stored_job(name).await?;
        self.takes_tasks(&job).await?;
        let read = Arc::new(Known::new(job));
        let mut known = self.submits.known();
        // What was read before it changed here is not to be known after it.
        if known.forgotten == forgotten {
            if known.jobs.len() >= MOST_KNOWN && !known.jobs.contains_key(name) {
                known.jobs.clear();
            }
            known.jobs.insert(name.to_owned(), Arc::clone(&read));
        }
        Ok(read)
    }

    /// Has a job read again before anybody has to wait for it.
    fn read_ahead(&self, job: &Arc<Known>) {
        let name = job.job.name.as_str();
        let is_known =
            || self.submits.known().jobs.get(name).is_some_and(|known| Arc::ptr_eq(known, job));
        if job.read.elapsed() < AHEAD || !is_known() || job.again.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            if this.read_job(&name).await.is_err() {
                // Whoever submits next hears why.
                this.submits.known().jobs.remove(&name);
            }
        });
    }

    /// Runs a job now, whether it is enabled or not.
    pub async fn trigger(&self, by: &Actor, task: &TaskDraft) -> Result<Submitted, Error> {
        for _ in 0..LOOKS {
            let known = Known::new(self.stored_job(&task.job).await?);
            let run = task.run(&known)?;
            if let Some(made) = self.store.trigger(by.told(), known.job.seen(), &run).await? {
                if made.existed {
                    self.is_of(made.run, &known.job).await?;
                }
                self.wake.all();
                return Ok(Submitted { run: self.run(made.run).await?, existed: made.existed });
            }
            // It was changed between the look and the write; what it is now will do as well.
        }
        let job = self.job(&task.job).await?;
        Err(Error::lost(format!("job {} keeps changing", job.job.name), Current::Job(job)))
    }

    /// A job that is off makes no runs, but by hand.
    async fn takes_tasks(&self, job: &Job) -> Result<(), Error> {
        let clock = match job.paused_until {
            Some(_) => self.store.clock().await?,
            // It is the same at any time.
            None => Timestamp::UNIX_EPOCH,
        };
        if job.is_on(clock) {
            return Ok(());
        }
        let why = if job.enabled { "paused" } else { "disabled" };
        let now = self.job(&job.name).await?;
        Err(Error::lost(format!("job {} is {why} and takes no tasks", job.name), Current::Job(now)))
    }

    /// Keys are one space for all jobs: a key that stands for another job's run is no answer.
    async fn is_of(&self, run: RunId, job: &Job) -> Result<(), Error> {
        let found = self.run(run).await?;
        match found.run.job == job.id {
            true => Ok(()),
            false => {
                let what = format!("this idempotency key is that of run {run} of another job");
                Err(Error::lost(what, Current::Run(found)))
            }
        }
    }
}

fn runs<'j>(tasks: &[TaskDraft], jobs: &'j Jobs<'_>) -> Result<Vec<NewRun<'j>>, Invalid> {
    tasks.iter().map(|task| task.run(&jobs[&*task.job])).collect()
}

/// Makes runs of tasks of several callers: carried by the node of this process at once if it can, or else put where
/// whoever has room finds them.
async fn make(
    store: Store,
    announce: Announce,
    tasks: Arc<[Task]>,
) -> Result<Vec<Created>, tasuki_store::Error> {
    if let Some(created) = announce.wake().bring(&tasks).await? {
        return Ok(created);
    }
    let runs: Vec<NewRun<'_>> = tasks.iter().map(Task::run).collect();
    let created = store.create(Writer::Api, &runs).await?;
    for (task, _) in tasks.iter().zip(&created).filter(|(_, made)| !made.existed) {
        tell_of(&announce, task.lane());
    }
    Ok(created)
}

/// Wakes those who are to do something about a run that waits in this lane.
fn tell_of(announce: &Announce, lane: &str) {
    match lane.is_empty() {
        true => announce.leader(),
        false => announce.claims(),
    }
}

#[cfg(test)]
mod tests;
