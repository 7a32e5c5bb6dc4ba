//! A node's clock and source of randomness, as traits that simulations and tests replace.

use jiff::Timestamp;

use crate::spawner::boottime;

/// Monotonic clock of the machine. It measures durations only: instants come from the database's clock.
pub trait Clock: Send + Sync {
    /// Time since the machine started, in microseconds, including time in sleep.
    fn boottime(&self) -> u64;

    /// Wall-clock time of the machine. Only for timestamps of log lines; no decision uses it.
    fn wall_clock(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Source of randomness.
pub trait Random: Send + Sync {
    /// Returns 128 unpredictable bits.
    fn next_u128(&self) -> u128;
}

/// The operating system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn boottime(&self) -> u64 {
        boottime()
    }
}

/// The operating system's source of randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn next_u128(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .expect("the operating system provides randomness; lease tokens need it");
        u128::from_be_bytes(bytes)
    }
}
