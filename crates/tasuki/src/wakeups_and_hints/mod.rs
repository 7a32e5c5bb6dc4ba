//! Signals that save polling time: wake-ups and local submits inside this process, notifications between processes, and
//! RPC hints to workers.

pub(crate) mod cancel_drain_reload_outbox;
pub(crate) mod in_process_wakeups;
pub(crate) mod submit_to_local_worker;
pub(crate) mod wakeup_notifier;
