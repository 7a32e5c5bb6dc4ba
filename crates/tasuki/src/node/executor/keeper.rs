//! What keeps the first lines of logs: those of many attempts travel together, as single tasks do.

use std::sync::Arc;

use tasuki_store::{Error, FirstLines, Store};
use tokio::sync::{mpsc, oneshot};

/// The most logs that are opened in one write.
const MOST: usize = 64;

struct Waiting {
    log: FirstLines,
    answer: oneshot::Sender<Result<bool, Error>>,
}

/// Keeps logs in a store. Cheap to clone; its work ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) store: Store,
    waiting: mpsc::Sender<Waiting>,
}

impl Keeper {
    pub(crate) fn new(store: Store) -> Self {
        let (waiting, mut arrivals) = mpsc::channel::<Waiting>(MOST);
        let keeper = Self { store: store.clone(), waiting };
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(MOST);
            // While one write is under way the next ones gather; nobody waits for company.
            while arrivals.recv_many(&mut batch, MOST).await > 0 {
                keep(&store, std::mem::take(&mut batch)).await;
            }
        });
        keeper
    }

    /// Opens a log with its first lines, which must be few. `false`: nothing was kept, for a reason that
    /// [`Store::append_log`] knows.
    pub(crate) async fn open(&self, log: FirstLines) -> Result<bool, Error> {
        let (answer, told) = oneshot::channel();
        let stopped = || Error::Broken("nobody keeps logs any more".to_owned());
        self.waiting.send(Waiting { log, answer }).await.map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }
}

async fn keep(store: &Store, batch: Vec<Waiting>) {
    let (logs, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|Waiting { log, answer }| (log, answer)).unzip();
    let kept = store.open_logs(&logs).await.map_err(Arc::new);
    for (index, answer) in answers.into_iter().enumerate() {
        // An attempt that has gone away does not mind.
        let _ = answer.send(match &kept {
            Ok(kept) => Ok(kept[index]),
            Err(error) => Err(Error::Shared(Arc::clone(error))),
        });
    }
}
