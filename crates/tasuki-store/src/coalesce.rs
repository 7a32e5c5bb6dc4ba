//! Concurrent single enqueues travel together: one insert, and each caller still hears only when its
//! own run is durable.

use std::sync::Arc;

use tasuki_core::RunId;
use tokio::sync::{mpsc, oneshot};

use crate::{Author, Created, Error, JobVersion, NewRun, Store, check};

/// The most runs that travel in one insert.
const MOST: usize = 256;

/// A task to be enqueued, owned by the trip it takes.
#[derive(Debug, Clone)]
pub struct Task {
    /// Of which job.
    pub job: Arc<JobVersion>,
    /// What it is given, as JSON.
    pub args: Option<String>,
    /// The same key twice is the same run.
    pub idempotency_key: Option<String>,
}

struct Waiting {
    task: Task,
    answer: oneshot::Sender<Result<Created, Arc<Error>>>,
}

/// Takes single tasks from many callers. Cheap to clone; ends when the last clone is dropped.
#[derive(Clone)]
pub struct Enqueuer {
    waiting: mpsc::Sender<Waiting>,
}

impl Enqueuer {
    /// Begins to take tasks for a store. The returned future does the work: whoever calls owns it.
    pub fn new(store: Store) -> (Self, impl Future<Output = ()> + Send) {
        let (waiting, mut arrivals) = mpsc::channel::<Waiting>(MOST);
        let work = async move {
            let mut batch = Vec::with_capacity(MOST);
            // While one insert is under way the next ones gather; nobody waits for company.
            while arrivals.recv_many(&mut batch, MOST).await > 0 {
                enqueue(&store, std::mem::take(&mut batch)).await;
            }
        };
        (Self { waiting }, work)
    }

    /// Enqueues one task; returns when it is durable. A task that cannot be stored is refused before it
    /// travels with those of strangers.
    pub async fn enqueue(&self, task: Task) -> Result<Created, Arc<Error>> {
        check::task(task.idempotency_key.as_deref(), task.args.as_deref())
            .map_err(|refused| Arc::new(Error::from(refused)))?;
        let (answer, told) = oneshot::channel();
        let stopped = || Arc::new(Error::broken("the enqueuer has stopped"));
        self.waiting.send(Waiting { task, answer }).await.map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }
}

async fn enqueue(store: &Store, batch: Vec<Waiting>) {
    let runs: Vec<NewRun<'_>> = batch
        .iter()
        .map(|one| NewRun {
            args: one.task.args.clone(),
            idempotency_key: one.task.idempotency_key.clone(),
            ..NewRun::task(&one.task.job)
        })
        .collect();
    let made = store.create(Author::Api, &runs).await.map_err(Arc::new);
    drop(runs);
    for (index, one) in batch.into_iter().enumerate() {
        let answer = match &made {
            Ok(created) => Ok(created[index]),
            Err(error) => Err(Arc::clone(error)),
        };
        // A caller that has gone away does not mind.
        let _ = one.answer.send(answer);
    }
}

/// The run that came of it, for callers that do not care whether it was there before.
impl From<Created> for RunId {
    fn from(created: Created) -> Self {
        created.run
    }
}
