//! Parses and formats durations as users type and read them: `300ms`, `1.5s`, `5m`, `2h`, `7d`.

use std::time::Duration;

use crate::InvalidInput;

/// The accepted format, for help texts and error messages.
pub const EXPECTED_FORMAT: &str = "a duration such as 300ms, 1.5s, 5m, 2h or 7d";

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses the text of an input field. The error names the field.
pub fn parse_duration_field(field: &'static str, typed: &str) -> Result<Duration, InvalidInput> {
    parse_duration_text(typed)
        .ok_or_else(|| InvalidInput::with_value(field, typed, EXPECTED_FORMAT))
}

/// Formats a duration with the largest unit that divides it. The text parses back to the same value.
pub fn format_exact_duration(duration: Duration) -> String {
    let millis = duration.as_millis() as u64;
    let fitting = UNITS.iter().rev().find(|(_, unit)| millis > 0 && millis.is_multiple_of(*unit));
    let (name, unit) = fitting.unwrap_or(&("s", 1_000));
    format!("{}{name}", millis / unit)
}

pub(crate) fn parse_duration_text(typed: &str) -> Option<Duration> {
    let typed = typed.trim();
    let (number, unit) = typed.split_at(typed.find(|c: char| c.is_ascii_alphabetic())?);
    let (_, millis_per_unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(fraction.len() as u32);
    let parts =
        whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction.parse().ok()?)?;
    let scaled = parts.checked_mul(*millis_per_unit)?;
    // Fractions of a millisecond are rejected: they would be lost when the value is shown.
    (scaled % scale == 0).then(|| Duration::from_millis(scaled / scale))
}
