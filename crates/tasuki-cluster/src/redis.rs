//! The coordinator on Redis.
