//! The coordinator on a real Redis.
