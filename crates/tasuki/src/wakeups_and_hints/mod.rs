//! Signals that save polling time: wake-ups and local submits inside this process, notifications between processes, and
//! RPC hints to workers.

pub(crate) mod local_submit_channel;
pub(crate) mod wakeup_notifier;
pub(crate) mod wakeups;
pub(crate) mod worker_hint_outbox;
