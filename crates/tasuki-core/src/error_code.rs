//! Why an attempt failed, as one word that retries, pages and alerts can act on.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::Invalid;

/// A failure's class: one of ours, or a word of the job's own.
///
/// Upper case with underscores, at most 64 characters, so that it is safe in SQL, labels and URLs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(Cow<'static, str>);

impl ErrorCode {
    /// Something went wrong and nothing more is known; also a plain non-zero exit.
    pub const UNEXPECTED_ERROR: Self = Self::known("UNEXPECTED_ERROR");
    /// A store or file the work needs did not answer.
    pub const STORAGE_ERROR: Self = Self::known("STORAGE_ERROR");
    /// The worker, or the job inside it, fell silent.
    pub const HEARTBEAT_TIMEOUT: Self = Self::known("HEARTBEAT_TIMEOUT");
    /// The attempt ran longer than its time limit.
    pub const RUNTIME_TIMEOUT: Self = Self::known("RUNTIME_TIMEOUT");
    /// The worker was drained and the work did not end in time.
    pub const DRAINED: Self = Self::known("DRAINED");
    /// The worker was detached and nobody allowed it to go on.
    pub const DETACHED: Self = Self::known("DETACHED");
    /// What the work was given cannot be worked on.
    pub const INVALID_INPUT: Self = Self::known("INVALID_INPUT");
    /// What the work was to work on does not exist.
    pub const NOT_FOUND: Self = Self::known("NOT_FOUND");
    /// The work was done, but what it gave back is longer than a result may be.
    pub const RESULT_TOO_LONG: Self = Self::known("RESULT_TOO_LONG");
    /// Somebody asked for it to stop.
    pub const CANCELED: Self = Self::known("CANCELED");

    /// The codes tasuki itself gives, and whether another try may help.
    pub const KNOWN: &'static [(Self, bool)] = &[
        (Self::UNEXPECTED_ERROR, true),
        (Self::STORAGE_ERROR, true),
        (Self::HEARTBEAT_TIMEOUT, true),
        (Self::RUNTIME_TIMEOUT, true),
        (Self::DRAINED, true),
        (Self::DETACHED, true),
        (Self::INVALID_INPUT, false),
        (Self::NOT_FOUND, false),
        (Self::RESULT_TOO_LONG, false),
        (Self::CANCELED, false),
    ];

    /// Whether only tasuki itself gives it: a job that writes it into its result file has not been
    /// timed out, drained or canceled.
    pub fn is_reserved(&self) -> bool {
        [
            Self::HEARTBEAT_TIMEOUT,
            Self::RUNTIME_TIMEOUT,
            Self::DRAINED,
            Self::DETACHED,
            Self::RESULT_TOO_LONG,
            Self::CANCELED,
        ]
        .contains(self)
    }

    const fn known(code: &'static str) -> Self {
        Self(Cow::Borrowed(code))
    }

    /// The word itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether another try may help, if the job does not say. A word we do not know is treated as an
    /// unexpected error: the job's author can say otherwise, a lost retry cannot be made good.
    pub fn is_retryable(&self) -> bool {
        Self::KNOWN.iter().find(|(code, _)| code == self).is_none_or(|(_, retryable)| *retryable)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ErrorCode {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        let fits = typed.len() <= 64
            && typed.starts_with(|first: char| first.is_ascii_uppercase())
            && typed.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !fits {
            let expected = "capital letters, digits and underscores, such as QUOTA_EXCEEDED";
            return Err(Invalid::typed("error code", typed, expected));
        }
        let known = Self::KNOWN.iter().find(|(code, _)| code.as_str() == typed);
        Ok(known.map_or_else(|| Self(Cow::Owned(typed.to_owned())), |(code, _)| code.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_and_own_words_are_welcome() {
        for (code, _) in ErrorCode::KNOWN {
            assert_eq!(code.as_str().parse().as_ref(), Ok(code));
        }
        let own: ErrorCode = "QUOTA_EXCEEDED".parse().unwrap();
        assert!(own.is_retryable());
        for wrong in ["", "quota", "_X", "1X", "A B", "A-B", &"A".repeat(65)] {
            assert!(wrong.parse::<ErrorCode>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_cannot_be_mended_by_trying_again_is_not_tried_again() {
        let refused: Vec<&str> = ErrorCode::KNOWN
            .iter()
            .filter(|(code, _)| !code.is_retryable())
            .map(|(code, _)| code.as_str())
            .collect();
        assert_eq!(refused, ["INVALID_INPUT", "NOT_FOUND", "RESULT_TOO_LONG", "CANCELED"]);
    }
}
