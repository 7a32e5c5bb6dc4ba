//! The small process that runs commands.
//!
//! A worker starts one and talks to it over a socket. It forks the jobs and is the parent of whatever
//! they leave behind. It knows until when each lease lasts, and outlives neither: when a deadline
//! passes, or the worker is gone, everything that ran under it is killed. So a worker that is stopped,
//! swapped out or killed leaves no child running past its lease.

#[allow(
    unsafe_code,
    reason = "what shares our memory until it is another program cannot be said otherwise"
)]
mod birth;
mod capture;
mod cgroup;
mod handle;
mod order;
mod process;
mod record;
mod spawn;
mod tree;
mod wire;

pub use handle::Spawner;
pub use order::{Exit, JobKey, Launch, Order, Printed, Refusal, Report, Text};
pub(crate) use process::raise_open_files;
pub use process::{HOME, run, serve};

/// Microseconds since the machine was started, sleep included: the clock of lease deadlines.
pub fn boottime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
