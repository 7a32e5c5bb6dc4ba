//! What only SQLite needs.

pub(crate) mod group_commit;
