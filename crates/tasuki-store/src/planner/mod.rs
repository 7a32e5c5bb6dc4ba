//! Reads for planning, and the cursors of schedules.

pub(crate) mod cursor;
pub(crate) mod lane_heads;
pub(crate) mod queries;
