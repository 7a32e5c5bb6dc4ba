//! The leader and its terms, the workers, and notifications between processes.

pub(crate) mod leader;
pub(crate) mod notify;
pub(crate) mod worker;
