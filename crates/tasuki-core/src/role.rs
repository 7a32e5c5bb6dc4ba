//! What people may do.

use crate::string_enum::words;

words! {
    /// What somebody may do. Each may also do what those before it may.
    pub enum Role, "role" {
        /// Look.
        Viewer = "viewer",
        /// Steer runs, workers and the lead: trigger, cancel, retry, pause, drain, demote.
        Operator = "operator",
        /// Say what jobs are.
        Author = "author",
        /// Change settings, and give out tokens.
        Admin = "admin",
    }
}
