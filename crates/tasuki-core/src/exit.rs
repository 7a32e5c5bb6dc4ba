//! What the end of a command means: an exit status becomes an error code, and the job's own rules
//! say whether another try may help.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ErrorCode, Invalid};

/// "Try again later", as `sysexits.h` has it: retryable unless the job says otherwise.
pub const EX_TEMPFAIL: i32 = 75;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal.
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

/// Why the worker ended a process that would have gone on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stopped {
    /// The time limit of the attempt passed.
    Timeout,
    /// It reported no progress for longer than its heartbeat_timeout.
    Silence,
    /// A cancel was asked.
    Cancel,
    /// The worker was drained.
    Drain,
    /// The worker was detached.
    Detach,
}

impl Stopped {
    /// The error code that says so.
    pub fn error_code(self) -> ErrorCode {
        match self {
            Self::Timeout => ErrorCode::RUNTIME_TIMEOUT,
            Self::Silence => ErrorCode::HEARTBEAT_TIMEOUT,
            Self::Cancel => ErrorCode::CANCELED,
            Self::Drain => ErrorCode::DRAINED,
            Self::Detach => ErrorCode::DETACHED,
        }
    }
}

/// A failed attempt: its class, and whether the next try may fare better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub code: ErrorCode,
    /// Whether another try may help.
    pub retryable: bool,
}

/// What a job says about its own failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureRules {
    codes: BTreeMap<i32, ErrorCode>,
    verdicts: BTreeMap<Cause, bool>,
}

/// What a job can have an opinion on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Exit(i32),
    Code(ErrorCode),
}

impl FailureRules {
    /// Makes the rules of a job from its definition: `codes` names its exit codes, `retry_on` and
    /// `fail_on` list exit codes (`"75"`) and error codes (`"NOT_FOUND"`) either way.
    pub fn new<S: AsRef<str>>(
        codes: impl IntoIterator<Item = (i32, ErrorCode)>,
        retry_on: &[S],
        fail_on: &[S],
    ) -> Result<Self, Invalid> {
        let codes: BTreeMap<i32, ErrorCode> = codes.into_iter().collect();
        for (exit, code) in &codes {
            check_exit("exit_codes", &exit.to_string())?;
            if code.is_reserved() {
                let expected = "a code that jobs give; this one only tasuki does";
                return Err(Invalid::typed("exit_codes", code.as_str(), expected));
            }
        }
        let mut verdicts = BTreeMap::new();
        for (field, list, verdict) in [("retry_on", retry_on, true), ("fail_on", fail_on, false)] {
            for typed in list.iter().map(AsRef::as_ref) {
                if verdicts.insert(cause(field, typed)?, verdict) == Some(!verdict) {
                    let expected = "each code in one of retry_on and fail_on";
                    return Err(Invalid::typed(field, typed, expected));
                }
            }
        }
        Ok(Self { codes, verdicts })
    }

    /// What the end of a process means; `None` is success.
    ///
    /// `stopped` wins over the exit status: a job that was told to stop and then exits with 0 has
    /// not done its work. `reported` is the `error_code` of the result file and wins over the exit
    /// code, but an exit with 0 is a success whatever the file says, and a code that only tasuki
    /// gives is not believed.
    pub fn judge(
        &self,
        end: ProcessEnd,
        stopped: Option<Stopped>,
        reported: Option<&ErrorCode>,
    ) -> Option<Failure> {
        if let Some(stopped) = stopped {
            return Some(self.failure(stopped.error_code(), None));
        }
        let exit = end.exit_code();
        if exit == Some(0) {
            return None;
        }
        let believed = reported.filter(|code| !code.is_reserved());
        let named = believed.or_else(|| exit.and_then(|exit| self.codes.get(&exit)));
        Some(match named {
            Some(code) => self.failure(code.clone(), exit),
            None => {
                let code = ErrorCode::UNEXPECTED_ERROR;
                let verdict = exit.and_then(|exit| self.verdicts.get(&Cause::Exit(exit)));
                match (verdict, exit) {
                    (None, Some(EX_TEMPFAIL)) => Failure { code, retryable: true },
                    _ => self.failure(code, exit),
                }
            }
        })
    }

    /// The failure of an attempt that ended with `code`: what the job says of the exit code counts
    /// first, then what it says of the error code, then what we say.
    pub fn failure(&self, code: ErrorCode, exit: Option<i32>) -> Failure {
        let retryable = exit
            .and_then(|exit| self.verdicts.get(&Cause::Exit(exit)))
            .or_else(|| self.verdicts.get(&Cause::Code(code.clone())))
            .copied()
            .unwrap_or_else(|| code.is_retryable());
        Failure { code, retryable }
    }
}

fn cause(field: &'static str, typed: &str) -> Result<Cause, Invalid> {
    if typed.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
        return check_exit(field, typed).map(Cause::Exit);
    }
    typed.parse().map(Cause::Code).map_err(|refused: Invalid| {
        Invalid::typed(field, typed, format!("an exit code, or {}", refused.expected))
    })
}

fn check_exit(field: &'static str, typed: &str) -> Result<i32, Invalid> {
    match typed.parse() {
        Ok(exit @ 1..=255) => Ok(exit),
        _ => Err(Invalid::typed(field, typed, "an exit code from 1 to 255")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(word: &str) -> ErrorCode {
        word.parse().unwrap()
    }

    fn rules(retry_on: &[&str], fail_on: &[&str]) -> FailureRules {
        let codes = [(3, code("NOT_FOUND")), (4, code("QUOTA"))];
        FailureRules::new(codes, retry_on, fail_on).unwrap()
    }

    #[test]
    fn ends_and_what_they_mean() {
        let plain = rules(&[], &[]);
        let strict = rules(&["3"], &["UNEXPECTED_ERROR", "QUOTA", "RUNTIME_TIMEOUT", "2"]);
        let no_tempfail = rules(&[], &["75"]);
        use ProcessEnd::{Exited, Signaled};
        let table: &[(&FailureRules, ProcessEnd, Option<Stopped>, Option<&str>, &str, bool)] = &[
            (&plain, Exited(1), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Exited(3), None, None, "NOT_FOUND", false),
            (&plain, Exited(4), None, None, "QUOTA", true),
            (&plain, Exited(3), None, Some("STORAGE_ERROR"), "STORAGE_ERROR", true),
            (&plain, Signaled(9), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Signaled(11), None, Some("INVALID_INPUT"), "INVALID_INPUT", false),
            (&plain, Exited(75), None, None, "UNEXPECTED_ERROR", true),
            (&plain, Exited(1), None, Some("RUNTIME_TIMEOUT"), "UNEXPECTED_ERROR", true),
            // told to stop: the reason counts, however politely it exited
            (&plain, Exited(0), Some(Stopped::Timeout), None, "RUNTIME_TIMEOUT", true),
            (&plain, Signaled(15), Some(Stopped::Cancel), None, "CANCELED", false),
            (&plain, Signaled(15), Some(Stopped::Silence), None, "HEARTBEAT_TIMEOUT", true),
            (&plain, Signaled(9), Some(Stopped::Drain), None, "DRAINED", true),
            (&plain, Signaled(9), Some(Stopped::Detach), None, "DETACHED", true),
            // the job's own words, either way
            (&strict, Exited(1), None, None, "UNEXPECTED_ERROR", false),
            (&strict, Exited(2), None, None, "UNEXPECTED_ERROR", false),
            (&strict, Exited(3), None, None, "NOT_FOUND", true),
            (&strict, Exited(4), None, None, "QUOTA", false),
            (&strict, Exited(9), Some(Stopped::Timeout), None, "RUNTIME_TIMEOUT", false),
            // 75 is a temporary failure even where plain failures are final, unless it is named
            (&strict, Exited(75), None, None, "UNEXPECTED_ERROR", true),
            (&strict, Exited(75), None, Some("QUOTA"), "QUOTA", false),
            (&no_tempfail, Exited(75), None, None, "UNEXPECTED_ERROR", false),
        ];
        for (rules, end, stopped, reported, expected, retryable) in table {
            let reported = reported.map(code);
            let found = rules.judge(*end, *stopped, reported.as_ref());
            let expected = Some(Failure { code: code(expected), retryable: *retryable });
            assert_eq!(found, expected, "{end:?} {stopped:?} {reported:?}");
        }
    }

    #[test]
    fn exit_0_is_success_whatever_the_result_file_says() {
        let judged = rules(&[], &[]).judge(ProcessEnd::Exited(0), None, Some(&code("QUOTA")));
        assert_eq!(judged, None);
    }

    #[test]
    fn contradictions_and_nonsense_are_refused() {
        let refuse = |retry_on: &[&str], fail_on: &[&str]| {
            FailureRules::new([], retry_on, fail_on).unwrap_err().to_string()
        };
        assert_eq!(
            refuse(&["QUOTA"], &["QUOTA"]),
            "fail_on: found \"QUOTA\", expected each code in one of retry_on and fail_on"
        );
        assert_eq!(
            refuse(&["0"], &[]),
            "retry_on: found \"0\", expected an exit code from 1 to 255"
        );
        assert!(refuse(&[], &["-1"]).contains("from 1 to 255"));
        assert!(
            refuse(&[], &["oops"])
                .starts_with("fail_on: found \"oops\", expected an exit code, or capital")
        );
        let zero = FailureRules::new([(0, code("QUOTA"))], &[] as &[&str], &[]).unwrap_err();
        assert_eq!(zero.field, "exit_codes");
        let reserved = FailureRules::new([(3, ErrorCode::DRAINED)], &[] as &[&str], &[]);
        assert_eq!(reserved.unwrap_err().field, "exit_codes");
    }
}
