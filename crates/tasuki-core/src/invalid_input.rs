//! The error for invalid user input.

use std::borrow::Cow;

/// Invalid user input: the field, the value found there, and the valid values.
///
/// Every parser and validator of user input returns this error, so that pages, REST and CLI can point
/// at the field and show the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}, expected {expected}")]
pub struct InvalidInput {
    /// The invalid field, as users know it: `hour`, `time zone`, `lease_ttl`.
    pub field: Cow<'static, str>,
    /// The value found: quoted text (`"25"`), or a description (`nothing`, `7 fields`).
    pub found: String,
    /// A description of the valid values.
    pub expected: Cow<'static, str>,
}

impl InvalidInput {
    /// An error that quotes the text found. Long text is cut so that the message stays readable.
    pub fn with_value(
        field: impl Into<Cow<'static, str>>,
        text: &str,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        let found = match text.trim().is_empty() {
            true => "nothing".to_owned(),
            false => quote(text),
        };
        Self::with_described_value(field, found, expected)
    }

    /// An error whose `found` is a description, not a quotation: `7 fields`.
    pub fn with_described_value(
        field: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field: field.into(), found: found.into(), expected: expected.into() }
    }
}

const MAX_QUOTED_CHARS: usize = 48;

fn quote(text: &str) -> String {
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(MAX_QUOTED_CHARS).collect();
    let rest = if chars.next().is_some() { "…" } else { "" };
    format!("\"{}{rest}\"", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_field_the_value_and_the_valid_values() {
        let error = InvalidInput::with_value("hour", "25", "0 to 23");
        assert_eq!(error.to_string(), "hour: found \"25\", expected 0 to 23");
    }

    #[test]
    fn blank_text_is_described_as_nothing() {
        assert_eq!(InvalidInput::with_value("zone", "  ", "a name").found, "nothing");
    }

    #[test]
    fn long_text_with_control_characters_stays_readable() {
        let error = InvalidInput::with_value("value", &"\u{7}日".repeat(500), "less");
        assert_eq!(error.found.matches('日').count(), MAX_QUOTED_CHARS / 2);
        assert!(error.found.starts_with("\"\\u{7}日"));
        assert!(error.found.ends_with("…\""));
    }
}
