//! The spawner: a small process that runs commands for a worker.
//!
//! A worker starts one spawner and sends it requests over a socket. The spawner starts the commands and adopts every
//! process that they leave behind. It knows the deadline of each lease: when a deadline passes, or the worker has gone,
//! it kills everything that ran under the lease. So a worker that is stopped, swapped out or killed leaves no process
//! running past its lease.

mod capture_short_output;
mod cgroup;
#[allow(
    unsafe_code,
    reason = "a child that shares our memory until it executes a program needs raw system calls"
)]
mod clone_exec;
mod exit_journal;
mod protocol;
mod spawner_loop;
mod start_command_process;
mod tree;
mod wire;
mod worker_side_handle;

pub use protocol::{
    AttemptKey, LaunchRefusal, LaunchSpec, OutputText, ProcessExit, ProcessOutput, SpawnerEvent,
    SpawnerRequest,
};
pub(crate) use spawner_loop::raise_open_files;
pub use spawner_loop::{DATA_DIR_ID_ENV, run_spawner, run_spawner_of_data_dir};
pub use worker_side_handle::SpawnerHandle;

/// Microseconds since the machine was started, including sleep (`CLOCK_BOOTTIME`): the clock of lease deadlines.
pub fn boottime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
