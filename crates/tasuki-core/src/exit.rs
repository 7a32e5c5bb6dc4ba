//! Classifies the end of a command: maps an exit status to an error code, and decides with the job's
//! rules whether a retry may help.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AttemptErrorCode, InvalidInput};

/// The exit code "temporary failure" of `sysexits.h`. It is retried unless the job has another rule.
pub const EX_TEMPFAIL: i32 = 75;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// The process exited with this exit code.
    Exited(i32),
    /// This signal ended the process.
    Signaled(i32),
}

impl ProcessEnd {
    fn exit_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(_) => None,
        }
    }
}

/// Why the worker stopped a running attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptStopReason {
    /// The attempt exceeded its timeout.
    Timeout,
    /// The attempt sent no heartbeat for longer than its `heartbeat_timeout`.
    Silence,
    /// A user requested a cancel.
    Cancel,
    /// The worker is draining.
    Drain,
    /// The worker is detached.
    Detach,
}

impl AttemptStopReason {
    /// The error code of an attempt that was stopped for this reason.
    pub fn error_code(self) -> AttemptErrorCode {
        match self {
            Self::Timeout => AttemptErrorCode::RUNTIME_TIMEOUT,
            Self::Silence => AttemptErrorCode::HEARTBEAT_TIMEOUT,
            Self::Cancel => AttemptErrorCode::CANCELED,
            Self::Drain => AttemptErrorCode::DRAINED,
            Self::Detach => AttemptErrorCode::DETACHED,
        }
    }
}

/// The classification of a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifiedFailure {
    /// The error code.
    pub code: AttemptErrorCode,
    /// Whether a retry may help.
    pub retryable: bool,
}

/// A job's rules for its failures: error codes by exit code, and which codes are retried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureRules {
    codes: BTreeMap<i32, AttemptErrorCode>,
    /// Whether a cause is retried, for the causes that the job lists.
    retried: BTreeMap<Cause, bool>,
}

/// A key of the retry rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Exit(i32),
    Code(AttemptErrorCode),
}

impl FailureRules {
    /// Makes the rules from a job's definition. `codes` maps exit codes to error codes; `retry_on` and
    /// `fail_on` list the exit codes (`"75"`) and error codes (`"NOT_FOUND"`) that are or are not retried.
    pub fn new<S: AsRef<str>>(
        codes: impl IntoIterator<Item = (i32, AttemptErrorCode)>,
        retry_on: &[S],
        fail_on: &[S],
    ) -> Result<Self, InvalidInput> {
        let codes: BTreeMap<i32, AttemptErrorCode> = codes.into_iter().collect();
        for (exit, code) in &codes {
            parse_exit_code("exit_codes", &exit.to_string())?;
            if code.is_reserved() {
                let expected = "a code that jobs may use; this one is reserved for tasuki";
                return Err(InvalidInput::with_value("exit_codes", code.as_str(), expected));
            }
        }
        let mut retried = BTreeMap::new();
        for (field, list, retry) in [("retry_on", retry_on, true), ("fail_on", fail_on, false)] {
            for typed in list.iter().map(AsRef::as_ref) {
                if retried.insert(parse_cause(field, typed)?, retry) == Some(!retry) {
                    let expected = "each code in retry_on or in fail_on, but not in both";
                    return Err(InvalidInput::with_value(field, typed, expected));
                }
            }
        }
        Ok(Self { codes, retried })
    }

    /// Classifies the end of a process; `None` means success.
    ///
    /// `stopped` has precedence over the exit status: a process that the worker stopped and that then
    /// exits with 0 has not finished its work. `reported` is the `error_code` of the result file. It has
    /// precedence over the exit code, except that exit code 0 is always a success and a reserved code
    /// is ignored.
    pub fn classify(
        &self,
        end: ProcessEnd,
        stopped: Option<AttemptStopReason>,
        reported: Option<&AttemptErrorCode>,
    ) -> Option<ClassifiedFailure> {
        if let Some(stopped) = stopped {
            return Some(self.classify_code(stopped.error_code(), None));
        }
        let exit = end.exit_code();
        if exit == Some(0) {
            return None;
        }
        let accepted = reported.filter(|code| !code.is_reserved());
        let known = accepted.or_else(|| exit.and_then(|exit| self.codes.get(&exit)));
        Some(match known {
            Some(code) => self.classify_code(code.clone(), exit),
            None => {
                let code = AttemptErrorCode::UNEXPECTED_ERROR;
                let retry = exit.and_then(|exit| self.retried.get(&Cause::Exit(exit)));
                match (retry, exit) {
                    (None, Some(EX_TEMPFAIL)) => ClassifiedFailure { code, retryable: true },
                    _ => self.classify_code(code, exit),
                }
            }
        })
    }

    /// Classifies a failure with a known error code. The job's rule for the exit code comes first, then
    /// its rule for the error code, then the default of the error code.
    pub fn classify_code(&self, code: AttemptErrorCode, exit: Option<i32>) -> ClassifiedFailure {
        let retryable = exit
            .and_then(|exit| self.retried.get(&Cause::Exit(exit)))
            .or_else(|| self.retried.get(&Cause::Code(code.clone())))
            .copied()
            .unwrap_or_else(|| code.is_retryable());
        ClassifiedFailure { code, retryable }
    }
}

fn parse_cause(field: &'static str, typed: &str) -> Result<Cause, InvalidInput> {
    if typed.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
        return parse_exit_code(field, typed).map(Cause::Exit);
    }
    typed.parse().map(Cause::Code).map_err(|error: InvalidInput| {
        InvalidInput::with_value(field, typed, format!("an exit code, or {}", error.expected))
    })
}

fn parse_exit_code(field: &'static str, typed: &str) -> Result<i32, InvalidInput> {
    match typed.parse() {
        Ok(exit @ 1..=255) => Ok(exit),
        _ => Err(InvalidInput::with_value(field, typed, "an exit code from 1 to 255")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> AttemptErrorCode {
        text.parse().unwrap()
    }

    fn rules(retry_on: &[&str], fail_on: &[&str]) -> FailureRules {
        let codes = [(3, code("NOT_FOUND")), (4, code("QUOTA"))];
        FailureRules::new(codes, retry_on, fail_on).unwrap()
    }

    #[test]
    fn the_end_of_a_process_is_classified() {
        let plain = rules(&[], &[]);
        let strict = rules(&["3"], &["UNEXPECTED_ERROR", "QUOTA", "RUNTIME_TIMEOUT", "2"]);
        let no_tempfail = rules(&[], &["75"]);
        use ProcessEnd::{Exited, Signaled};
        let table: &[(
            &FailureRules,
            ProcessEnd,
            Option<AttemptStopReason>,
            Option<&str>,
            &str,
            bool,
        )] = &[
            (&plain, Exited(1), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Exited(3), None, None, "NOT_FOUND", false),
            (&plain, Exited(4), None, None, "QUOTA", true),
            (&plain, Exited(3), None, Some("STORAGE_ERROR"), "STORAGE_ERROR", true),
            (&plain, Signaled(9), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Signaled(11), None, Some("INVALID_INPUT"), "INVALID_INPUT", false),
            (&plain, Exited(75), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Exited(1), None, Some("RUNTIME_TIMEOUT"), "UNEXPECTED_ERROR", true),
            // stopped by the worker: the reason has precedence over the exit status
            (&plain, Exited(0), Some(AttemptStopReason::Timeout), None, "RUNTIME_TIMEOUT", true),
            (&plain, Signaled(15), Some(AttemptStopReason::Cancel), None, "CANCELED", false),
            (
                &plain,
                Signaled(15),
                Some(AttemptStopReason::Silence),
                None,
                "HEARTBEAT_TIMEOUT",
                true,
            ),
            (&plain, Signaled(9), Some(AttemptStopReason::Drain), None, "DRAINED", true),
            (&plain, Signaled(9), Some(AttemptStopReason::Detach), None, "DETACHED", true),
            // the job's rules, in both directions
            (&strict, Exited(1), None, None, "UNEXPECTED_ERROR", false),
            (&strict, Exited(2), None, None, "UNEXPECTED_ERROR", false),
            (&strict, Exited(3), None, None, "NOT_FOUND", true),
            (&strict, Exited(4), None, None, "QUOTA", false),
            (&strict, Exited(9), Some(AttemptStopReason::Timeout), None, "RUNTIME_TIMEOUT", false),
            // 75 is a temporary failure even where unclassified failures are not retried, unless the job lists it
            (&strict, Exited(75), None, None, "UNEXPECTED_ERROR", true),
            (&strict, Exited(75), None, Some("QUOTA"), "QUOTA", false),
            (&no_tempfail, Exited(75), None, None, "UNEXPECTED_ERROR", false),
        ];
        for (rules, end, stopped, reported, expected, retryable) in table {
            let reported = reported.map(code);
            let found = rules.classify(*end, *stopped, reported.as_ref());
            let expected = Some(ClassifiedFailure { code: code(expected), retryable: *retryable });
            assert_eq!(found, expected, "{end:?} {stopped:?} {reported:?}");
        }
    }

    #[test]
    fn exit_code_0_is_success_even_if_the_result_file_has_an_error_code() {
        let judged = rules(&[], &[]).classify(ProcessEnd::Exited(0), None, Some(&code("QUOTA")));
        assert_eq!(judged, None);
    }

    #[test]
    fn contradictory_and_invalid_rules_are_errors() {
        let error = |retry_on: &[&str], fail_on: &[&str]| {
            FailureRules::new([], retry_on, fail_on).unwrap_err().to_string()
        };
        assert_eq!(
            error(&["QUOTA"], &["QUOTA"]),
            "fail_on: found \"QUOTA\", expected each code in retry_on or in fail_on, but not in both"
        );
        assert_eq!(
            error(&["0"], &[]),
            "retry_on: found \"0\", expected an exit code from 1 to 255"
        );
        assert!(error(&[], &["-1"]).contains("from 1 to 255"));
        assert!(
            error(&[], &["oops"])
                .starts_with("fail_on: found \"oops\", expected an exit code, or capital")
        );
        let zero = FailureRules::new([(0, code("QUOTA"))], &[] as &[&str], &[]).unwrap_err();
        assert_eq!(zero.field, "exit_codes");
        let reserved = FailureRules::new([(3, AttemptErrorCode::DRAINED)], &[] as &[&str], &[]);
        assert_eq!(reserved.unwrap_err().field, "exit_codes");
    }
}
