//! Channel through which this process submits tasks directly to the node in the same process.
//!
//! The node's worker can then create and claim a task in one statement. If no node runs here, or the worker
//! cannot claim immediately, the caller submits the tasks through the database as usual.

use std::sync::{Arc, Mutex, PoisonError};

use tasuki_store::{CreatedRun, Error, PendingTask};
use tokio::sync::{mpsc, oneshot};

/// Sending side of the channel to the node in this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct LocalSubmitSender {
    sender: Mutex<Option<mpsc::Sender<LocalSubmitRequest>>>,
}

/// Tasks submitted in this process that the worker may create and claim in one write.
#[derive(Debug)]
pub(crate) struct LocalSubmitRequest {
    /// The tasks to create.
    pub(crate) tasks: Arc<[PendingTask]>,
    /// Receives the created runs. `None`: the worker did not accept the tasks and created nothing.
    pub(crate) reply: oneshot::Sender<Result<Option<Vec<CreatedRun>>, Error>>,
}

impl LocalSubmitSender {
    /// Opens the channel: requests arrive at the returned receiver until it is closed or dropped.
    pub(crate) fn open(&self) -> mpsc::Receiver<LocalSubmitRequest> {
        let (sender, requests) = mpsc::channel(1);
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        requests
    }

    /// Submits tasks to the node in this process. `None`: no node accepted them, and nothing was created.
    pub(crate) async fn submit(
        &self,
        tasks: &Arc<[PendingTask]>,
    ) -> Result<Option<Vec<CreatedRun>>, Error> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(sender) = sender else { return Ok(None) };
        let (reply, response) = oneshot::channel();
        let tasks = Arc::clone(tasks);
        if sender.send(LocalSubmitRequest { tasks, reply }).await.is_err() {
            return Ok(None);
        }
        // The node received the request, so it may have created the tasks: this must not look like "not created".
        let no_response =
            || Error::Broken("the node received the task and ended before it replied".to_owned());
        response.await.map_err(|_| no_response())?
    }
}
