//! Which incarnation this is. A worker that was cut off begins anew under another id, in the same process.

use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::WorkerId;

/// Shared by all that acts under one id. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Me(Arc<Mutex<WorkerId>>);

impl Me {
    pub(crate) fn id(&self) -> WorkerId {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it is somebody else.
    pub(crate) fn becomes(&self, id: WorkerId) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }
}

impl From<WorkerId> for Me {
    fn from(id: WorkerId) -> Self {
        Self(Arc::new(Mutex::new(id)))
    }
}
