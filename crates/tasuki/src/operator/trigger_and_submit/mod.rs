//! Runs on request: submitted tasks, one or many, and manually triggered jobs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tasuki_core::{InvalidInput, Lane, Priority, QueueName, RunId, RunScope};
use tasuki_store::{
    AppTransaction, CreatedRun, Job, JobVersion, NewRun, PendingTask, Store, SubmitBatcher, Writer,
};

use crate::wakeups_and_hints::wakeup_notifier::Notifier;

use super::{Actor, CurrentState, Error, Operator, RunOverview};

/// Maximum number of times that a trigger is tried while the job is being changed by other requests.
const MAX_TRIES: u32 = 5;
/// How long a cached job is used without reading it again.
const CACHE_TTL: Duration = Duration::from_millis(500);
/// Age from which a successful submit refreshes the cached job in the background. A program that submits constantly
/// therefore never waits for the read.
const REFRESH_AFTER: Duration = Duration::from_millis(250);
/// Maximum number of cached jobs. The cache is cleared when it is full.
const MAX_CACHED_JOBS: usize = 10_000;

/// The input for submitting a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskDraft {
    /// The name of the job.
    pub job: String,
    /// The arguments, as a JSON object.
    pub args: Option<String>,
    /// The scope; `None`: the global scope.
    pub scope: Option<RunScope>,
    /// The earliest start; `None`: now.
    pub scheduled_for: Option<Timestamp>,
    /// The instant after which the run expires if it has not ended.
    pub expires_at: Option<Timestamp>,
    /// A key that identifies the run: a second submit with the same key returns the existing run.
    pub idempotency_key: Option<String>,
    /// The queue; `None`: that of the job. Only for functions that workers claim.
    pub queue: Option<QueueName>,
    /// The priority; `None`: that of the job. Only for functions that workers claim.
    pub priority: Option<Priority>,
}

/// The result of submitting a task.
#[derive(Debug, Clone)]
pub struct SubmitResult {
    /// The new or existing run.
    pub run: RunOverview,
    /// Whether a run with the same idempotency key existed already.
    pub existed: bool,
}

/// A job in the cache.
struct CachedJob {
    job: Job,
    newest: Arc<JobVersion>,
    /// When the job was read from the database.
    read_at: Instant,
    /// Whether a background refresh was started.
    is_refreshing: AtomicBool,
}

impl CachedJob {
    fn new(job: Job) -> Self {
        let (newest, read_at) = (Arc::new(job.newest.clone()), Instant::now());
        Self { job, newest, read_at, is_refreshing: AtomicBool::new(false) }
    }
}

/// Cached jobs by name.
type Jobs<'t> = BTreeMap<&'t str, Arc<CachedJob>>;

/// State that makes frequent submits cheap: a cache of jobs, and the batcher that combines concurrent submits.
#[derive(Default)]
pub(super) struct SubmitCache {
    cached: Mutex<CachedJobs>,
    batcher: Mutex<Option<SubmitBatcher>>,
}

#[derive(Default)]
struct CachedJobs {
    jobs: HashMap<String, Arc<CachedJob>>,
    /// How many times the cache was cleared.
    generation: u64,
}

impl SubmitCache {
    fn lock_jobs(&self) -> MutexGuard<'_, CachedJobs> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the cache after a job was changed through this operator, so that the change applies immediately.
    pub(super) fn clear(&self) {
        let mut cached = self.lock_jobs();
        cached.jobs.clear();
        cached.generation += 1;
    }
}

impl TaskDraft {
    fn to_pending_task(&self, job: &CachedJob) -> Result<PendingTask, InvalidInput> {
        Ok(PendingTask {
            scope: self.scope.clone().unwrap_or_default(),
            scheduled_for: self.scheduled_for,
            idempotency_key: self.idempotency_key.clone(),
            args: self.args.clone(),
            expires_at: self.expires_at,
            lane: self.lane(&job.newest.spec.lane)?,
            ..PendingTask::new(Arc::clone(&job.newest))
        })
    }

    fn to_new_run<'j>(&self, job: &'j CachedJob) -> Result<NewRun<'j>, InvalidInput> {
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

    /// The lane of the run, if the task overrides the queue or priority of its job.
    fn lane(&self, job_lane: &str) -> Result<Option<String>, InvalidInput> {
        let (field, typed) = match (&self.queue, self.priority) {
            (None, None) => return Ok(None),
            (Some(queue), _) => ("queue", queue.as_str()),
            (None, Some(priority)) => ("priority", priority.as_str()),
        };
        let Ok(mut lane) = job_lane.parse::<Lane>() else {
            let expected = "none: only functions that workers claim have one";
            return Err(InvalidInput::with_value(field, typed, expected));
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
    /// Submits a task and returns the run with its details.
    pub async fn submit_and_read(&self, task: &TaskDraft) -> Result<SubmitResult, Error> {
        let created = self.submit(task).await?;
        Ok(SubmitResult { run: self.get_run(created.run).await?, existed: created.existed })
    }

    /// Submits a task and returns only its run id. Concurrent submits share one transaction; each returns when its
    /// own run is durable.
    pub async fn submit(&self, task: &TaskDraft) -> Result<CreatedRun, Error> {
        let job = self.cached_job(&task.job).await?;
        let created = self.batcher().submit(task.to_pending_task(&job)?).await?;
        self.refresh_in_background(&job);
        if created.existed {
            self.check_belongs_to(created.run, &job.job).await?;
        }
        Ok(created)
    }

    /// Submits many tasks, all or none. The result has the same order.
    pub async fn submit_all(&self, tasks: &[TaskDraft]) -> Result<Vec<CreatedRun>, Error> {
        let jobs = self.cached_jobs(tasks).await?;
        let created =
            self.store.create_or_find_runs(Writer::Api, &to_new_runs(tasks, &jobs)?).await?;
        if created.iter().any(|created| !created.existed) {
            jobs.values().for_each(|job| notify_lane(&self.notifier, &job.newest.spec.lane));
        }
        jobs.values().for_each(|job| self.refresh_in_background(job));
        for (created, task) in created.iter().zip(tasks).filter(|(created, _)| created.existed) {
            self.check_belongs_to(created.run, &jobs[&*task.job].job).await?;
        }
        Ok(created)
    }

    /// Submits tasks in a transaction of the application. The runs exist if and only if that transaction commits.
    /// Workers find them at most a second later, or immediately if [`notify_committed`](Operator::notify_committed)
    /// is called after the commit.
    pub async fn submit_all_in_transaction<'a>(
        &self,
        transaction: impl Into<AppTransaction<'a>>,
        tasks: &[TaskDraft],
    ) -> Result<Vec<CreatedRun>, Error> {
        let jobs = self.cached_jobs(tasks).await?;
        let created = self
            .store
            .create_runs_in_app_transaction(transaction, &to_new_runs(tasks, &jobs)?)
            .await?;
        jobs.values().for_each(|job| self.refresh_in_background(job));
        Ok(created)
    }

    async fn cached_jobs<'t>(&self, tasks: &'t [TaskDraft]) -> Result<Jobs<'t>, Error> {
        let mut jobs = Jobs::new();
        for task in tasks {
            if !jobs.contains_key(task.job.as_str()) {
                jobs.insert(&task.job, self.cached_job(&task.job).await?);
            }
        }
        Ok(jobs)
    }

    fn batcher(&self) -> SubmitBatcher {
        let mut cached = self.submit_cache.batcher.lock().unwrap_or_else(PoisonError::into_inner);
        // The batcher stops with the async runtime on which it was started; then a new one is started on the current
        // runtime.
        if let Some(batcher) = cached.as_ref().filter(|batcher| !batcher.has_stopped()) {
            return batcher.clone();
        }
        let (store, notifier) = (self.store.clone(), self.notifier.clone());
        let submit_all = move |tasks| submit_batch(store.clone(), notifier.clone(), tasks);
        let (batcher, work) = SubmitBatcher::with_submit(submit_all);
        tokio::spawn(work);
        cached.insert(batcher).clone()
    }

    /// The job of a task, from the cache or the database. An error if the job is disabled or paused. Changes by other
    /// processes apply after [`CACHE_TTL`] at the latest.
    async fn cached_job(&self, name: &str) -> Result<Arc<CachedJob>, Error> {
        let cached = self.submit_cache.lock_jobs().jobs.get(name).cloned();
        match cached.filter(|job| job.read_at.elapsed() < CACHE_TTL) {
            Some(job) => Ok(job),
            None => self.read_job(name).await,
        }
    }

    async fn read_job(&self, name: &str) -> Result<Arc<CachedJob>, Error> {
        let generation = self.submit_cache.lock_jobs().generation;
        let job = self.get_stored_job(name).await?;
        self.check_takes_tasks(&job).await?;
        let fresh = Arc::new(CachedJob::new(job));
        let mut cached = self.submit_cache.lock_jobs();
        // Do not cache a job that was read before the cache was cleared: it may be outdated.
        if cached.generation == generation {
            if cached.jobs.len() >= MAX_CACHED_JOBS && !cached.jobs.contains_key(name) {
                cached.jobs.clear();
            }
            cached.jobs.insert(name.to_owned(), Arc::clone(&fresh));
        }
        Ok(fresh)
    }

    /// Reads a job again in the background if its cached copy is getting old.
    fn refresh_in_background(&self, job: &Arc<CachedJob>) {
        let name = job.job.name.as_str();
        let is_cached = || {
            self.submit_cache
                .lock_jobs()
                .jobs
                .get(name)
                .is_some_and(|cached| Arc::ptr_eq(cached, job))
        };
        if job.read_at.elapsed() < REFRESH_AFTER
            || !is_cached()
            || job.is_refreshing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let (this, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            if this.read_job(&name).await.is_err() {
                // The next submit reads the job and returns the error.
                this.submit_cache.lock_jobs().jobs.remove(&name);
            }
        });
    }

    /// Creates a run of a job now, also if the job is disabled or paused.
    pub async fn trigger(&self, by: &Actor, task: &TaskDraft) -> Result<SubmitResult, Error> {
        for _ in 0..MAX_TRIES {
            let cached = CachedJob::new(self.get_stored_job(&task.job).await?);
            let run = task.to_new_run(&cached)?;
            if let Some(created) =
                self.store.trigger(by.for_store(), cached.job.expected_version(), &run).await?
            {
                if created.existed {
                    self.check_belongs_to(created.run, &cached.job).await?;
                }
                self.notifier.wake_all();
                return Ok(SubmitResult {
                    run: self.get_run(created.run).await?,
                    existed: created.existed,
                });
            }
            // The job was changed between the read and the write: try again with the new version.
        }
        let job = self.get_job(&task.job).await?;
        let message = format!(
            "job {} is being changed by other requests; it was not triggered",
            job.job.name
        );
        Err(Error::lost(message, CurrentState::Job(job)))
    }

    /// Returns an error if the job is disabled or paused. Such a job can only be triggered manually.
    async fn check_takes_tasks(&self, job: &Job) -> Result<(), Error> {
        let clock = match job.paused_until {
            Some(_) => self.store.read_clock().await?,
            // Without the end of a pause, the result does not depend on the time.
            None => Timestamp::UNIX_EPOCH,
        };
        if job.creates_runs_at(clock) {
            return Ok(());
        }
        let why = if job.enabled { "paused" } else { "disabled" };
        let now = self.get_job(&job.name).await?;
        Err(Error::lost(
            format!("job {} is {why} and accepts no tasks", job.name),
            CurrentState::Job(now),
        ))
    }

    /// Returns an error if an existing run belongs to another job. Idempotency keys are unique across all jobs.
    async fn check_belongs_to(&self, run: RunId, job: &Job) -> Result<(), Error> {
        let found = self.get_run(run).await?;
        match found.run.job == job.id {
            true => Ok(()),
            false => {
                let message =
                    format!("this idempotency key already belongs to run {run} of another job");
                Err(Error::lost(message, CurrentState::Run(found)))
            }
        }
    }
}

fn to_new_runs<'j>(
    tasks: &[TaskDraft],
    jobs: &'j Jobs<'_>,
) -> Result<Vec<NewRun<'j>>, InvalidInput> {
    tasks.iter().map(|task| task.to_new_run(&jobs[&*task.job])).collect()
}

/// Creates the runs of several callers' tasks. If a node of this process has free slots, it creates and claims them in
/// one statement; otherwise they are created as waiting runs and the workers are notified.
async fn submit_batch(
    store: Store,
    notifier: Notifier,
    tasks: Arc<[PendingTask]>,
) -> Result<Vec<CreatedRun>, tasuki_store::Error> {
    if let Some(created) = notifier.wakeups().local_submit_sender().submit(&tasks).await? {
        return Ok(created);
    }
    let runs: Vec<NewRun<'_>> = tasks.iter().map(PendingTask::new_run).collect();
    let created = store.create_or_find_runs(Writer::Api, &runs).await?;
    for (task, _) in tasks.iter().zip(&created).filter(|(_, created)| !created.existed) {
        notify_lane(&notifier, task.lane());
    }
    Ok(created)
}

/// Wakes the leader or the workers, whichever handles runs in this lane.
fn notify_lane(notifier: &Notifier, lane: &str) {
    match lane.is_empty() {
        true => notifier.wake_planner(),
        false => notifier.wake_claims(),
    }
}

#[cfg(test)]
mod submit_cache_tests;
