//! The one shape of "this input will not do".

use std::borrow::Cow;

/// Input that was refused: where, what stood there, and what would have been right.
///
/// Everything a user can type is answered with this when it is wrong, so that pages, REST and CLI
/// can point at the field and say the same words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}, expected {expected}")]
pub struct Invalid {
    /// The field at fault, in the words of the surface: `hour`, `time zone`, `lease_ttl`.
    pub field: Cow<'static, str>,
    /// What stood there: quoted if it was typed, described if it was not (`nothing`).
    pub found: String,
    /// What would have been accepted.
    pub expected: Cow<'static, str>,
}

impl Invalid {
    /// Refuses `typed`, quoting it; something very long is cut so that the message stays readable.
    pub fn typed(
        field: impl Into<Cow<'static, str>>,
        typed: &str,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        let found = match typed.trim().is_empty() {
            true => "nothing".to_owned(),
            false => quoted(typed),
        };
        Self::described(field, found, expected)
    }

    /// Refuses something that is better described than quoted: `7 fields`.
    pub fn described(
        field: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field: field.into(), found: found.into(), expected: expected.into() }
    }
}

const QUOTED_CHARS: usize = 48;

fn quoted(typed: &str) -> String {
    let mut chars = typed.chars();
    let start: String = chars.by_ref().take(QUOTED_CHARS).collect();
    let rest = if chars.next().is_some() { "…" } else { "" };
    format!("\"{}{rest}\"", start.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_what_and_what_instead() {
        let error = Invalid::typed("hour", "25", "0 to 23");
        assert_eq!(error.to_string(), "hour: found \"25\", expected 0 to 23");
    }

    #[test]
    fn nothing_is_called_nothing() {
        assert_eq!(Invalid::typed("zone", "  ", "a name").found, "nothing");
    }

    #[test]
    fn long_and_dirty_input_stays_readable() {
        let error = Invalid::typed("value", &"\u{7}日".repeat(500), "less");
        assert_eq!(error.found.matches('日').count(), QUOTED_CHARS / 2);
        assert!(error.found.starts_with("\"\\u{7}日"));
        assert!(error.found.ends_with("…\""));
    }
}
