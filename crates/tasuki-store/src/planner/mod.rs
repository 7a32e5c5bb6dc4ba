//! Reads and cursor moves of the planning leader.

pub(crate) mod cursor;
pub(crate) mod look;
pub(crate) mod planning;
