//! Real requests.
