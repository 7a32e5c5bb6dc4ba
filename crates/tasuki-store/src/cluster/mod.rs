//! The leader, the workers, and notifications between processes.

pub(crate) mod leader;
pub(crate) mod news;
pub(crate) mod worker;
