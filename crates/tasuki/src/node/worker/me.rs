//! Which incarnation this is. A worker that was cut off begins anew under another id, in the same process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tasuki_core::WorkerId;

/// Shared by all that acts under one id. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Me(Arc<Mutex<Vec<WorkerId>>>);

impl Me {
    pub(crate) fn id(&self) -> WorkerId {
        *self.been().last().expect("it has always been somebody")
    }

    /// From now on it is somebody else.
    pub(crate) fn becomes(&self, id: WorkerId) {
        self.been().push(id);
    }

    /// Whom it has been, this one included.
    pub(crate) fn all(&self) -> Vec<WorkerId> {
        self.been().clone()
    }

    fn been(&self) -> MutexGuard<'_, Vec<WorkerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<WorkerId> for Me {
    fn from(id: WorkerId) -> Self {
        Self(Arc::new(Mutex::new(vec![id])))
    }
}
