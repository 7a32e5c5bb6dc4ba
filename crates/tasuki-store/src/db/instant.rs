//! Conversions between instants and durations and their form in the database: integer microseconds on every database, so
//! that one SQL text serves all.

use jiff::Timestamp;

use crate::Error;

/// Converts microseconds since the Unix epoch, the unit of all instants in the database, to a timestamp.
pub(crate) fn timestamp_from_micros(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros).map_err(|_| {
        Error::broken(format!("{micros} microseconds are outside the range of timestamps"))
    })
}

/// Converts a duration to microseconds, the unit of all durations in the database.
pub(crate) fn duration_to_micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
