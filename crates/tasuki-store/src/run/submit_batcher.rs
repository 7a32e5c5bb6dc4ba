//! Combines concurrent single submits into one insert. Each caller gets its result only when its own run is durable.

use std::sync::Arc;

use jiff::Timestamp;
use tasuki_core::{RunId, RunScope};
use tokio::sync::{mpsc, oneshot};

use crate::{CreatedRun, Error, JobVersion, NewRun, Store, Writer, validate};

/// Maximum number of runs in one insert.
const MAX_BATCH: usize = 256;
/// Number of yields to other async tasks without a new submit, after which the batcher stops waiting for more.
const MAX_IDLE_YIELDS: usize = 3;
/// Maximum number of yields to other async tasks before an insert, even if submits keep arriving.
const MAX_YIELDS: usize = 16;

/// A job task to submit. It owns its values, because another async task inserts it.
#[derive(Debug, Clone)]
pub struct PendingTask {
    /// Job version that the task belongs to.
    pub job: Arc<JobVersion>,
    /// Arguments of the job, as JSON.
    pub args: Option<String>,
    /// Key that identifies the request: a second request with the same key finds the same run.
    pub idempotency_key: Option<String>,
    /// Scope that the run works on.
    pub scope: RunScope,
    /// Planned instant; `None` is now.
    pub scheduled_for: Option<Timestamp>,
    /// Instant after which the run expires while it waits.
    pub expires_at: Option<Timestamp>,
    /// Lane in which the run waits; `None` is the lane of its job.
    pub lane: Option<String>,
}

impl PendingTask {
    /// Lane in which the run waits; the empty lane if the leader assigns it.
    pub fn lane(&self) -> &str {
        self.lane.as_deref().unwrap_or(&self.job.spec.lane)
    }

    /// Whether the task can start as soon as a slot is free: it is due now, cannot exist already (no key) and needs
    /// no hold.
    pub fn can_start_at_once(&self) -> bool {
        self.idempotency_key.is_none()
            && self.scheduled_for.is_none()
            && self.expires_at.is_none()
            && !self.job.spec.concurrency.needs_hold()
    }

    /// A task of a job, due now.
    pub fn new(job: Arc<JobVersion>) -> Self {
        Self {
            job,
            args: None,
            idempotency_key: None,
            scope: RunScope::default(),
            scheduled_for: None,
            expires_at: None,
            lane: None,
        }
    }

    /// The run to create for this task.
    pub fn new_run(&self) -> NewRun<'_> {
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

/// A task in the queue, and the channel for its result.
struct QueuedTask {
    task: PendingTask,
    reply: oneshot::Sender<Result<CreatedRun, Error>>,
}

/// Batches the single tasks of many callers. Cheap to clone; its work ends when the last clone is dropped.
#[derive(Clone)]
pub struct SubmitBatcher {
    queue: mpsc::Sender<QueuedTask>,
}

impl SubmitBatcher {
    /// Creates a batcher that inserts into a store. The returned future does the work; the caller must poll or spawn
    /// it.
    pub fn new(store: Store) -> (Self, impl Future<Output = ()> + Send) {
        Self::with_submit(move |tasks: Arc<[PendingTask]>| {
            let store = store.clone();
            async move {
                let runs: Vec<NewRun<'_>> = tasks.iter().map(PendingTask::new_run).collect();
                store.create_or_find_runs(Writer::Api, &runs).await
            }
        })
    }

    /// Creates a batcher that submits with a function of the caller. The function creates a run for each task, all or
    /// none, in their order.
    pub fn with_submit<F>(
        submit: impl Fn(Arc<[PendingTask]>) -> F + Send,
    ) -> (Self, impl Future<Output = ()> + Send)
    where
        F: Future<Output = Result<Vec<CreatedRun>, Error>> + Send,
    {
        let (queue, mut queued) = mpsc::channel::<QueuedTask>(MAX_BATCH);
        let work = async move {
            let mut batch = Vec::with_capacity(MAX_BATCH);
            let mut last_batch = 0;
            // While one insert is in progress, the next tasks collect in the channel.
            while queued.recv_many(&mut batch, MAX_BATCH).await > 0 {
                let expected = batch.len() + last_batch;
                collect_more(&mut queued, &mut batch, expected).await;
                last_batch = batch.len();
                let (tasks, replies): (Vec<PendingTask>, Vec<_>) =
                    batch.drain(..).map(|queued| (queued.task, queued.reply)).unzip();
                send_results(replies, submit(tasks.into()).await);
            }
        };
        (Self { queue }, work)
    }

    /// Whether the future that does the work has ended.
    pub fn has_stopped(&self) -> bool {
        self.queue.is_closed()
    }

    /// Submits one task and returns when its run is durable. An invalid task is refused here, so that it cannot fail
    /// the batch of other callers.
    pub async fn submit(&self, task: PendingTask) -> Result<CreatedRun, Error> {
        validate::check_new_runs(&[task.new_run()])?;
        let (reply, result) = oneshot::channel();
        let stopped = || Error::broken("the submit batcher has stopped");
        self.queue.send(QueuedTask { task, reply }).await.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())?
    }
}

/// Waits for more tasks before an insert. Callers whose results were just sent often submit again immediately; without
/// this wait the first of them would be inserted alone, and the others would wait for another insert. The wait is
/// bounded by [`MAX_YIELDS`].
async fn collect_more(
    queued: &mut mpsc::Receiver<QueuedTask>,
    batch: &mut Vec<QueuedTask>,
    expected: usize,
) {
    let mut idle_yields = 0;
    for _ in 0..MAX_YIELDS {
        if batch.len() >= expected.min(MAX_BATCH) || idle_yields == MAX_IDLE_YIELDS {
            return;
        }
        tokio::task::yield_now().await;
        let before = batch.len();
        while batch.len() < MAX_BATCH
            && let Ok(task) = queued.try_recv()
        {
            batch.push(task);
        }
        idle_yields = if batch.len() > before { 0 } else { idle_yields + 1 };
    }
}

/// Sends each caller its own result, or the shared error of the batch.
fn send_results(
    replies: Vec<oneshot::Sender<Result<CreatedRun, Error>>>,
    created: Result<Vec<CreatedRun>, Error>,
) {
    let created = created.map_err(Arc::new);
    for (index, reply) in replies.into_iter().enumerate() {
        let result = match &created {
            Ok(runs) => Ok(runs[index]),
            Err(error) => Err(Error::Shared(Arc::clone(error))),
        };
        // The caller may have dropped its receiver; then no one needs the result.
        let _ = reply.send(result);
    }
}

/// The id of the run, for callers that do not need to know whether it existed before.
impl From<CreatedRun> for RunId {
    fn from(created: CreatedRun) -> Self {
        created.run
    }
}
