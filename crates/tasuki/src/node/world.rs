//! What a node is handed instead of reaching for it: a clock that only goes forward, and dice.

use jiff::Timestamp;

use crate::spawner::boottime;

// For simulations, which hand all of it in.
#[cfg(test)]
pub(crate) use super::worker::{Parts, Pulse};
#[cfg(test)]
pub(crate) use crate::node::coordination::called::Callee;
#[cfg(test)]
pub(crate) use crate::node::worker::me::Me;

/// Time since the machine started, also while it slept. For how long, never for when: instants are the
/// database's.
pub trait Clock: Send + Sync {
    /// In microseconds.
    fn boottime(&self) -> u64;

    /// What the clock on the wall says: for the lines of logs, which decide nothing.
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Randomness.
pub trait Dice: Send + Sync {
    /// 128 bits that nobody could have guessed.
    fn roll(&self) -> u128;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn boottime(&self) -> u64 {
        boottime()
    }
}

/// The machine's own dice.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDice;

impl Dice for RealDice {
    fn roll(&self) -> u128 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("a machine without randomness can keep no lease");
        u128::from_be_bytes(bytes)
    }
}
