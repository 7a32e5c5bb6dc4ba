//! The roles of users and tokens.

use crate::string_enum::string_enum;

string_enum! {
    /// The permissions of a user or token. Each role includes the roles before it.
    pub enum AccessRole, "role" {
        /// May read everything.
        Viewer = "viewer",
        /// May control runs, workers and the leader: trigger, cancel, retry, pause, drain, demote.
        Operator = "operator",
        /// May create, change and delete jobs.
        Author = "author",
        /// May change settings and create tokens.
        Admin = "admin",
    }
}
