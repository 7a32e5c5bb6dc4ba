//! Batches the creation of logs: one statement creates the logs of many attempts with their first lines.

use std::sync::Arc;

use tasuki_store::{Error, FirstOutputLines, Store};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of logs that one statement creates.
const MAX_BATCH: usize = 64;

struct PendingLog {
    log: FirstOutputLines,
    reply: oneshot::Sender<Result<bool, Error>>,
}

/// Creates logs in the store. Cheap to clone; its task ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct LogCreationBatcher {
    pub(crate) store: Store,
    pending: mpsc::Sender<PendingLog>,
}

impl LogCreationBatcher {
    pub(crate) fn new(store: Store) -> Self {
        let (pending, mut queue) = mpsc::channel::<PendingLog>(MAX_BATCH);
        let batcher = Self { store: store.clone(), pending };
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(MAX_BATCH);
            // While one statement runs, the next logs gather. A single log is written without delay.
            while queue.recv_many(&mut batch, MAX_BATCH).await > 0 {
                write_batch(&store, std::mem::take(&mut batch)).await;
            }
        });
        batcher
    }

    /// Creates a log with its first lines, which must be few. `false`: nothing was stored; [`Store::append_log`] then
    /// returns the reason.
    pub(crate) async fn create_log(&self, log: FirstOutputLines) -> Result<bool, Error> {
        let (reply, response) = oneshot::channel();
        let stopped = || Error::Broken("the log batcher has stopped".to_owned());
        self.pending.send(PendingLog { log, reply }).await.map_err(|_| stopped())?;
        response.await.map_err(|_| stopped())?
    }
}

async fn write_batch(store: &Store, batch: Vec<PendingLog>) {
    let (logs, replies): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|PendingLog { log, reply }| (log, reply)).unzip();
    let created = store.create_short_logs(&logs).await.map_err(Arc::new);
    for (index, reply) in replies.into_iter().enumerate() {
        // An error means that the attempt no longer waits for the answer.
        let _ = reply.send(match &created {
            Ok(created) => Ok(created[index]),
            Err(error) => Err(Error::Shared(Arc::clone(error))),
        });
    }
}
