//! Ids and names as separate types, so that swapped arguments do not compile.
//!
//! Jobs, runs and events have numbers that users can type. Workers and lease tokens have UUIDs that
//! are never reused; the caller passes the random bits, because this crate has no randomness.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::InvalidInput;

/// Maximum length of a name in characters. An indexed column of every database can hold it.
const MAX_NAME_CHARS: usize = 191;
/// Maximum length of a scope kind in characters. MySQL reserves this space in the row of every run.
const MAX_SCOPE_KIND_CHARS: usize = 100;
/// Kind and id of the default scope.
const GLOBAL: &str = "global";

macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $field:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidInput;

            fn from_str(typed: &str) -> Result<Self, InvalidInput> {
                match typed.parse() {
                    Ok(number) if number > 0 => Ok(Self(number)),
                    _ => Err(InvalidInput::with_value($field, typed, "a number from 1 upwards")),
                }
            }
        }
    };
}

number! {
    /// A job: the definition of what runs and when.
    JobId, "job id"
}
number! {
    /// A run: one occurrence of a job, however many attempts it takes.
    RunId, "run id"
}
number! {
    /// An event: a stored fact, such as `order.paid`, that may start runs.
    EventId, "event id"
}
number! {
    /// The number of a leader's term. It only rises. Every write of a leader compares it, so that an
    /// earlier leader can write nothing (fencing).
    Epoch, "epoch"
}

macro_rules! uuid {
    ($(#[$meta:meta])* $name:ident, $field:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Makes an id from 128 random bits.
            pub fn from_random(bits: u128) -> Self {
                Self(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
            }

            /// The sixteen bytes that the database stores.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Makes the id from its sixteen stored bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl FromStr for $name {
            type Err = InvalidInput;

            fn from_str(typed: &str) -> Result<Self, InvalidInput> {
                Uuid::try_parse(typed)
                    .map(Self)
                    .map_err(|_| InvalidInput::with_value($field, typed, "a UUID"))
            }
        }
    };
}

uuid! {
    /// One incarnation of a worker: one start of its process. A restart gets a new id.
    WorkerId, "worker id"
}
uuid! {
    /// The secret of a lease. The worker that holds it may start, renew and finish the runs of the lease.
    ///
    /// Every assignment and claim makes a new token, and every write of a worker compares it (fencing).
    /// `Debug` does not show the value.
    LeaseToken, "lease token"
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerId({self})")
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(…)")
    }
}

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $field:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as the user typed it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidInput;

            fn from_str(typed: &str) -> Result<Self, InvalidInput> {
                check_name($field, typed).map(Self)
            }
        }
    };
}

name! {
    /// The name of a job, unique among jobs.
    JobName, "job name"
}
name! {
    /// The name of a node: the host, container or pod of a worker. Two workers on one node share it.
    NodeName, "node name"
}

/// Checks a name: any script, at most 191 characters, no invisible characters, no surrounding space.
pub(crate) fn check_name(field: &'static str, typed: &str) -> Result<String, InvalidInput> {
    check_length(field, typed, MAX_NAME_CHARS)?;
    if typed.is_empty() || typed != typed.trim() || typed.chars().any(is_invisible) {
        let expected = "a name without invisible characters or space around it";
        return Err(InvalidInput::with_value(field, typed, expected));
    }
    Ok(typed.to_owned())
}

fn check_length(field: &'static str, typed: &str, most: usize) -> Result<(), InvalidInput> {
    let length = typed.chars().count();
    match length > most {
        true => {
            let expected = format!("at most {most} characters");
            Err(InvalidInput::with_described_value(field, format!("{length} characters"), expected))
        }
        false => Ok(()),
    }
}

/// Control, format and filler characters. Without them, two names that look the same are the same:
/// no character is hidden and none reverses the direction of the text.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// The part of the data that a run works on: everything (`global/global`), or one tenant, shop, etc.
///
/// Slots and holds are per (job, scope), so runs of different scopes neither block nor replace each
/// other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunScope {
    // `Cow`: nearly every run has the default scope, which then needs no allocation.
    kind: Cow<'static, str>,
    id: Cow<'static, str>,
}

impl RunScope {
    /// Makes a scope from user input: `Scope::new("tenant", "42")`.
    pub fn new(kind: &str, id: &str) -> Result<Self, InvalidInput> {
        check_length("scope kind", kind, MAX_SCOPE_KIND_CHARS)?;
        Self::from_stored(kind, id)
    }

    /// Makes a scope from stored columns. A stored kind may be longer than a new one.
    pub fn from_stored(kind: &str, id: &str) -> Result<Self, InvalidInput> {
        if (kind, id) == (GLOBAL, GLOBAL) {
            return Ok(Self::default());
        }
        if kind.contains('/') {
            return Err(InvalidInput::with_value("scope kind", kind, "a name without a slash"));
        }
        let (kind, id) = (check_name("scope kind", kind)?, check_name("scope id", id)?);
        Ok(Self { kind: kind.into(), id: id.into() })
    }

    /// The kind, such as `tenant`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The id within the kind, such as `42`.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Default for RunScope {
    /// `global/global`: not NULL, so that the unique key on slots also works for unscoped jobs.
    fn default() -> Self {
        Self { kind: GLOBAL.into(), id: GLOBAL.into() }
    }
}

impl fmt::Display for RunScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_parses_from_a_positive_number() {
        assert_eq!("17".parse(), Ok(RunId(17)));
        for wrong in ["", "0", "-3", "x", "99999999999999999999"] {
            let error = wrong.parse::<RunId>().unwrap_err();
            assert_eq!(error.expected, "a number from 1 upwards", "{wrong:?}");
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = LeaseToken::from_random(u128::MAX);
        assert_eq!(format!("{token:?}"), "LeaseToken(…)");
        assert_eq!(LeaseToken::from_bytes(*token.as_bytes()), token);
    }

    #[test]
    fn a_random_id_is_a_version_4_uuid_and_parses_back() {
        let worker = WorkerId::from_random(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(worker.to_string(), "01234567-89ab-4def-8123-456789abcdef");
        assert_eq!(worker.to_string().parse(), Ok(worker));
    }

    #[test]
    fn a_name_may_be_japanese_but_not_contain_invisible_characters() {
        assert!("日次集計 (本番)".parse::<JobName>().is_ok());
        for wrong in ["", " a", "a ", "a\nb", "a\0", "a\u{200b}", "a\u{202e}b", "\u{3164}"] {
            assert!(wrong.parse::<JobName>().is_err(), "{wrong:?}");
        }
        assert!("x".repeat(191).parse::<JobName>().is_ok());
        let error = "x".repeat(192).parse::<JobName>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "job name: found 192 characters, expected at most 191 characters"
        );
    }

    #[test]
    fn a_scope_is_global_by_default() {
        assert_eq!(RunScope::default().to_string(), "global/global");
        assert_eq!(RunScope::new("tenant", "42").unwrap().to_string(), "tenant/42");
        assert!(RunScope::new("tenant", "").is_err() && RunScope::new("a/b", "c").is_err());
        assert!(RunScope::new(&"k".repeat(100), &"i".repeat(191)).is_ok());
        let error = RunScope::new(&"k".repeat(101), "i").unwrap_err();
        assert_eq!(
            error.to_string(),
            "scope kind: found 101 characters, expected at most 100 characters"
        );
    }
}
