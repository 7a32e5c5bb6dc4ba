//! The worker id that this process uses. A worker that was detached registers again under a new id, in the same
//! process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tasuki_core::WorkerId;

/// Current and previous worker ids of this process, shared by everything that acts under the current one.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct WorkerIdentity(Arc<Mutex<Vec<WorkerId>>>);

impl WorkerIdentity {
    pub(crate) fn id(&self) -> WorkerId {
        *self.ids().last().expect("the list starts with one id and never shrinks")
    }

    /// Replaces the current id by a new one.
    pub(crate) fn replace(&self, id: WorkerId) {
        self.ids().push(id);
    }

    /// All ids that this process has used, the current one last.
    pub(crate) fn current_and_previous_worker_ids(&self) -> Vec<WorkerId> {
        self.ids().clone()
    }

    fn ids(&self) -> MutexGuard<'_, Vec<WorkerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<WorkerId> for WorkerIdentity {
    fn from(id: WorkerId) -> Self {
        Self(Arc::new(Mutex::new(vec![id])))
    }
}
