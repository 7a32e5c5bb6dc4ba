//! Runs that somebody asks for: tasks, one or many, and a job run by hand.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tasuki_core::{RunId, Scope};
use tasuki_store::{Author, Created, Job, NewRun};

use super::{Actor, Current, Error, Operator, RunNow};

/// How often a job that changes while it is being run by hand is looked at again.
const LOOKS: u32 = 5;

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
}

/// A run that is there now.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run.
    pub run: RunNow,
    /// Whether it was there before: the same idempotency key.
    pub existed: bool,
}

impl TaskDraft {
    fn run<'a>(&self, job: &'a Job) -> NewRun<'a> {
        NewRun {
            scope: self.scope.clone().unwrap_or_default(),
            scheduled_for: self.scheduled_for,
            idempotency_key: self.idempotency_key.clone(),
            args: self.args.clone(),
            expires_at: self.expires_at,
            ..NewRun::task(&job.newest)
        }
    }
}

impl Operator {
    /// Submits a task.
    pub async fn submit(&self, task: &TaskDraft) -> Result<Submitted, Error> {
        let created = self.submit_all(std::slice::from_ref(task)).await?;
        let made = created.first().copied().ok_or_else(|| Error::not_found("job", &task.job))?;
        Ok(Submitted { run: self.run(made.run).await?, existed: made.existed })
    }

    /// Submits many tasks, all or none; answers in the same order.
    pub async fn submit_all(&self, tasks: &[TaskDraft]) -> Result<Vec<Created>, Error> {
        let mut jobs: BTreeMap<&str, Job> = BTreeMap::new();
        for task in tasks {
            if !jobs.contains_key(task.job.as_str()) {
                let job = self.stored_job(&task.job).await?;
                self.takes_tasks(&job).await?;
                jobs.insert(&task.job, job);
            }
        }
        let runs: Vec<NewRun<'_>> = tasks.iter().map(|task| task.run(&jobs[&*task.job])).collect();
        let created = self.store.create(Author::Api, &runs).await?;
        for (made, task) in created.iter().zip(tasks) {
            if made.existed {
                self.is_of(made.run, &jobs[&*task.job]).await?;
            }
        }
        self.wake.all();
        Ok(created)
    }

    /// Runs a job now, whether it is enabled or not.
    pub async fn trigger(&self, by: &Actor, task: &TaskDraft) -> Result<Submitted, Error> {
        for _ in 0..LOOKS {
            let job = self.stored_job(&task.job).await?;
            let run = task.run(&job);
            if let Some(made) = self.store.trigger(by.told(), job.seen(), &run).await? {
                if made.existed {
                    self.is_of(made.run, &job).await?;
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
        let clock = self.store.clock().await?;
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
