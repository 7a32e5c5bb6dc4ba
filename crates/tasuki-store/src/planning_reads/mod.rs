//! Reads for planning, and the cursors of schedules.

pub(crate) mod cursor;
pub(crate) mod lane_due_times;
pub(crate) mod waiting_and_leased;
