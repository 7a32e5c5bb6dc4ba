//! Concurrent single enqueues travel together: one insert, and each caller still hears only when its
//! own run is durable.

use std::sync::Arc;

use jiff::Timestamp;
use tasuki_core::{RunId, Scope};
use tokio::sync::{mpsc, oneshot};

use crate::{Writer, Created, Error, JobVersion, NewRun, Store, check};

/// The most runs that travel in one insert.
const MOST: usize = 256;
/// So many turns of others without another arrival, and nobody comes any more.
const TURNS: usize = 3;
/// Nobody waits for more turns of others than this.
const MOST_TURNS: usize = 16;

/// A task to be enqueued, owned by the trip it takes.
#[derive(Debug, Clone)]
pub struct Task {
    /// Of which job.
    pub job: Arc<JobVersion>,
    /// What it is given, as JSON.
    pub args: Option<String>,
    /// The same key twice is the same run.
    pub idempotency_key: Option<String>,
    /// For what.
    pub scope: Scope,
    /// Its planned instant; now, unless said.
    pub scheduled_for: Option<Timestamp>,
    /// Given up after this.
    pub expires_at: Option<Timestamp>,
    /// Where it waits to be claimed, if not where its job says.
    pub lane: Option<String>,
}

impl Task {
    /// Where it waits to be claimed; nowhere if a leader assigns it.
    pub fn lane(&self) -> &str {
        self.lane.as_deref().unwrap_or(&self.job.spec.lane)
    }

    /// Whether nothing but room decides when it starts: it is due, nobody can have asked for it before, and it need
    /// not be alone.
    pub fn is_plain(&self) -> bool {
        self.idempotency_key.is_none()
            && self.scheduled_for.is_none()
            && self.expires_at.is_none()
            && !self.job.spec.concurrency.needs_hold()
    }

    /// A task to be run now.
    pub fn new(job: Arc<JobVersion>) -> Self {
        Self {
            job,
            args: None,
            idempotency_key: None,
            scope: Scope::default(),
            scheduled_for: None,
            expires_at: None,
            lane: None,
        }
    }

    /// The run it asks for.
    pub fn run(&self) -> NewRun<'_> {
        NewRun {
            args: self.args.clone(),
            idempotency_key: self.idempotency_key.clone(),
            scope: self.scope.clone(),
            scheduled_for: self.scheduled_for,
            expires_at: self.expires_at,
            lane: self.lane.clone(),
            ..NewRun::task(&self.job)
        }
    }
}

struct Waiting {
    task: Task,
    answer: oneshot::Sender<Result<Created, Error>>,
}

/// Takes single tasks from many callers. Cheap to clone; ends when the last clone is dropped.
#[derive(Clone)]
pub struct Enqueuer {
    waiting: mpsc::Sender<Waiting>,
}

impl Enqueuer {
    /// Begins to take tasks for a store. The returned future does the work: whoever calls owns it.
    pub fn new(store: Store) -> (Self, impl Future<Output = ()> + Send) {
        Self::by(move |tasks: Arc<[Task]>| {
            let store = store.clone();
            async move {
                let runs: Vec<NewRun<'_>> = tasks.iter().map(Task::run).collect();
                store.create(Writer::Api, &runs).await
            }
        })
    }

    /// The same with a way of one's own to make runs of tasks, all or none, in their order.
    pub fn by<F>(make: impl Fn(Arc<[Task]>) -> F + Send) -> (Self, impl Future<Output = ()> + Send)
    where
        F: Future<Output = Result<Vec<Created>, Error>> + Send,
    {
        let (waiting, mut arrivals) = mpsc::channel::<Waiting>(MOST);
        let work = async move {
            let mut batch = Vec::with_capacity(MOST);
            let mut answered = 0;
            // While one insert is under way the next ones gather.
            while arrivals.recv_many(&mut batch, MOST).await > 0 {
                let company = batch.len() + answered;
                gather(&mut arrivals, &mut batch, company).await;
                answered = batch.len();
                let (tasks, answers): (Vec<Task>, Vec<_>) =
                    batch.drain(..).map(|one| (one.task, one.answer)).unzip();
                tell(answers, make(tasks.into()).await);
            }
        };
        (Self { waiting }, work)
    }

    /// Whether nobody works on it any more.
    pub fn has_stopped(&self) -> bool {
        self.waiting.is_closed()
    }

    /// Enqueues one task; returns when it is durable. A task that cannot be stored is refused before it
    /// travels with those of strangers.
    pub async fn enqueue(&self, task: Task) -> Result<Created, Error> {
        check::runs(&[task.run()])?;
        let (answer, told) = oneshot::channel();
        let stopped = || Error::broken("the enqueuer has stopped");
        self.waiting.send(Waiting { task, answer }).await.map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }
}

/// Those who were answered a moment ago mostly come again at once: whoever is first of them does not travel alone, which
/// would keep all others waiting for one more trip. Nobody waits for longer than it takes to let the others have their turn.
async fn gather(arrivals: &mut mpsc::Receiver<Waiting>, batch: &mut Vec<Waiting>, company: usize) {
    let mut turns = 0;
    for _ in 0..MOST_TURNS {
        if batch.len() >= company.min(MOST) || turns == TURNS {
            return;
        }
        tokio::task::yield_now().await;
        let before = batch.len();
        while batch.len() < MOST
            && let Ok(one) = arrivals.try_recv()
        {
            batch.push(one);
        }
        turns = if batch.len() > before { 0 } else { turns + 1 };
    }
}

fn tell(answers: Vec<oneshot::Sender<Result<Created, Error>>>, made: Result<Vec<Created>, Error>) {
    let made = made.map_err(Arc::new);
    for (index, answer) in answers.into_iter().enumerate() {
        let told = match &made {
            Ok(created) => Ok(created[index]),
            Err(error) => Err(Error::Shared(Arc::clone(error))),
        };
        // A caller that has gone away does not mind.
        let _ = answer.send(told);
    }
}

/// The run that came of it, for callers that do not care whether it was there before.
impl From<Created> for RunId {
    fn from(created: Created) -> Self {
        created.run
    }
}
