//! The cluster's parts against real servers.

mod redis;
