//! Error codes: the class of a failed attempt, as one identifier for retries, pages and alerts.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::InvalidInput;

/// The class of a failure: a built-in code, or a code that the job defines.
///
/// Upper-case letters, digits and underscores, at most 64 characters, so that it is safe in SQL,
/// metric labels and URLs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptErrorCode(Cow<'static, str>);

impl AttemptErrorCode {
    /// An unclassified failure, such as a plain non-zero exit code.
    pub const UNEXPECTED_ERROR: Self = Self::built_in("UNEXPECTED_ERROR");
    /// A database or file that the job needs was not available.
    pub const STORAGE_ERROR: Self = Self::built_in("STORAGE_ERROR");
    /// The worker stopped renewing its lease, or the job stopped sending heartbeats.
    pub const HEARTBEAT_TIMEOUT: Self = Self::built_in("HEARTBEAT_TIMEOUT");
    /// The attempt ran longer than its time limit.
    pub const RUNTIME_TIMEOUT: Self = Self::built_in("RUNTIME_TIMEOUT");
    /// The worker was drained and the attempt did not end in time.
    pub const DRAINED: Self = Self::built_in("DRAINED");
    /// The worker was detached and did not get permission to continue.
    pub const DETACHED: Self = Self::built_in("DETACHED");
    /// The arguments of the run are invalid.
    pub const INVALID_INPUT: Self = Self::built_in("INVALID_INPUT");
    /// The object that the run should work on does not exist.
    pub const NOT_FOUND: Self = Self::built_in("NOT_FOUND");
    /// The handler succeeded, but its result exceeds the size limit.
    pub const RESULT_TOO_LONG: Self = Self::built_in("RESULT_TOO_LONG");
    /// The run was canceled.
    pub const CANCELED: Self = Self::built_in("CANCELED");

    /// The built-in codes, each with whether a retry may help.
    pub const BUILT_IN: &'static [(Self, bool)] = &[
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

    /// Whether only tasuki may set this code. A job that writes it into its result file was not really
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

    const fn built_in(code: &'static str) -> Self {
        Self(Cow::Borrowed(code))
    }

    /// The code as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a retry may help, if the job has no rule for the code. An unknown code is retryable, like
    /// an unexpected error: the job's author can turn retries off, but a missed retry cannot be repaired.
    pub fn is_retryable(&self) -> bool {
        Self::BUILT_IN.iter().find(|(code, _)| code == self).is_none_or(|(_, retryable)| *retryable)
    }
}

impl fmt::Display for AttemptErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for AttemptErrorCode {
    type Err = InvalidInput;

    fn from_str(typed: &str) -> Result<Self, InvalidInput> {
        let fits = typed.len() <= 64
            && typed.starts_with(|first: char| first.is_ascii_uppercase())
            && typed.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !fits {
            let expected = "capital letters, digits and underscores, such as QUOTA_EXCEEDED";
            return Err(InvalidInput::with_value("error code", typed, expected));
        }
        let known = Self::BUILT_IN.iter().find(|(code, _)| code.as_str() == typed);
        Ok(known.map_or_else(|| Self(Cow::Owned(typed.to_owned())), |(code, _)| code.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_codes_parse_back_and_jobs_may_define_codes() {
        for (code, _) in AttemptErrorCode::BUILT_IN {
            assert_eq!(code.as_str().parse().as_ref(), Ok(code));
        }
        let own: AttemptErrorCode = "QUOTA_EXCEEDED".parse().unwrap();
        assert!(own.is_retryable());
        for wrong in ["", "quota", "_X", "1X", "A B", "A-B", &"A".repeat(65)] {
            assert!(wrong.parse::<AttemptErrorCode>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn permanent_failures_are_not_retried() {
        let permanent: Vec<&str> = AttemptErrorCode::BUILT_IN
            .iter()
            .filter(|(code, _)| !code.is_retryable())
            .map(|(code, _)| code.as_str())
            .collect();
        assert_eq!(permanent, ["INVALID_INPUT", "NOT_FOUND", "RESULT_TOO_LONG", "CANCELED"]);
    }
}
