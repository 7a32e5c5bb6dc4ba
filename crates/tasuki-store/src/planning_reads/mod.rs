//! Reads for planning, and the cursors of schedules.

pub(crate) mod cursor;
pub(crate) mod lane_heads;
pub(crate) mod waiting_and_leased;
