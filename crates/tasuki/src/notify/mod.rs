//! Notifications: wake-ups inside this process, LISTEN/NOTIFY between processes, and RPC hints to workers.

pub(crate) mod announce;
pub(crate) mod wake;
pub(crate) mod word;
