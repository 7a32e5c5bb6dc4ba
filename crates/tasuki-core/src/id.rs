//! Who is who: ids that cannot be mixed up, and names with their limits.
//!
//! Jobs, runs and events have numbers that people can type. Workers and lease tokens are UUIDs that
//! are never reused. Making random ones needs dice, so the caller brings them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::Invalid;

/// The longest name in characters; a key column on every database can hold it.
const NAME_CHARS: usize = 191;
/// The longest kind of a scope: MySQL keeps room for it in the row of every run.
const KIND_CHARS: usize = 100;
/// The scope of what has none.
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
            type Err = Invalid;

            fn from_str(typed: &str) -> Result<Self, Invalid> {
                match typed.parse() {
                    Ok(number) if number > 0 => Ok(Self(number)),
                    _ => Err(Invalid::typed($field, typed, "a number from 1 upwards")),
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
    /// An event: something that happened and may start runs.
    EventId, "event id"
}
number! {
    /// The leader's term number. It only rises, and it fences what a leader writes.
    Epoch, "epoch"
}

macro_rules! uuid {
    ($(#[$meta:meta])* $name:ident, $field:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// Makes one of 128 random bits.
            pub fn from_random(bits: u128) -> Self {
                Self(uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid())
            }

            /// The sixteen bytes that databases store.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Back from the sixteen bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(typed: &str) -> Result<Self, Invalid> {
                Uuid::try_parse(typed)
                    .map(Self)
                    .map_err(|_| Invalid::typed($field, typed, "a UUID"))
            }
        }
    };
}

uuid! {
    /// One start of a worker process: its incarnation. A restart is another worker.
    WorkerId, "worker id"
}
uuid! {
    /// Who holds it carries the run. New with every assignment or claim; it fences a worker's writes.
    ///
    /// It is a secret of its holder, so printing one shows only that it is there.
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
            /// The name as it was typed.
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
            type Err = Invalid;

            fn from_str(typed: &str) -> Result<Self, Invalid> {
                check_name($field, typed).map(Self)
            }
        }
    };
}

name! {
    /// What people call a job. Unique among jobs.
    JobName, "job name"
}
name! {
    /// The host, container or pod a worker is on. Two workers of one node have the same.
    NodeName, "node name"
}

/// Names are for people and for keys: any script, but nothing invisible and nothing that is cut.
pub(crate) fn check_name(field: &'static str, typed: &str) -> Result<String, Invalid> {
    check_length(field, typed, NAME_CHARS)?;
    if typed.is_empty() || typed != typed.trim() || typed.chars().any(is_invisible) {
        let expected = "a name without invisible characters or space around it";
        return Err(Invalid::typed(field, typed, expected));
    }
    Ok(typed.to_owned())
}

fn check_length(field: &'static str, typed: &str, most: usize) -> Result<(), Invalid> {
    let length = typed.chars().count();
    match length > most {
        true => {
            let expected = format!("at most {most} characters");
            Err(Invalid::described(field, format!("{length} characters"), expected))
        }
        false => Ok(()),
    }
}

/// Two names that look alike are alike: nothing in them goes unseen or turns the text around.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// What a job runs for: everything (`global/global`), or one tenant, shop or object at a time.
///
/// Slots and holds are per (job, scope), so that scopes neither block nor replace one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    // Nearly every run has the one that needs no memory of its own.
    kind: Cow<'static, str>,
    id: Cow<'static, str>,
}

impl Scope {
    /// One scope of a kind: `Scope::new("tenant", "42")`.
    pub fn new(kind: &str, id: &str) -> Result<Self, Invalid> {
        check_length("scope kind", kind, KIND_CHARS)?;
        Self::stored(kind, id)
    }

    /// One that is stored, which may be longer than a new one.
    pub fn stored(kind: &str, id: &str) -> Result<Self, Invalid> {
        if (kind, id) == (GLOBAL, GLOBAL) {
            return Ok(Self::default());
        }
        if kind.contains('/') {
            return Err(Invalid::typed("scope kind", kind, "a name without a slash"));
        }
        let (kind, id) = (check_name("scope kind", kind)?, check_name("scope id", id)?);
        Ok(Self { kind: kind.into(), id: id.into() })
    }

    /// `tenant`
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// `42`
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Default for Scope {
    /// `global/global`: never NULL, so that the unique key on slots holds for unscoped jobs too.
    fn default() -> Self {
        Self { kind: GLOBAL.into(), id: GLOBAL.into() }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_typed_by_people() {
        assert_eq!("17".parse(), Ok(RunId(17)));
        for wrong in ["", "0", "-3", "x", "99999999999999999999"] {
            let refused = wrong.parse::<RunId>().unwrap_err();
            assert_eq!(refused.expected, "a number from 1 upwards", "{wrong:?}");
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = LeaseToken::from_random(u128::MAX);
        assert_eq!(format!("{token:?}"), "LeaseToken(…)");
        assert_eq!(LeaseToken::from_bytes(*token.as_bytes()), token);
    }

    #[test]
    fn a_random_id_is_a_version_4_uuid_and_reads_back() {
        let worker = WorkerId::from_random(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(worker.to_string(), "01234567-89ab-4def-8123-456789abcdef");
        assert_eq!(worker.to_string().parse(), Ok(worker));
    }

    #[test]
    fn names_may_be_japanese_but_not_invisible() {
        assert!("日次集計 (本番)".parse::<JobName>().is_ok());
        for wrong in ["", " a", "a ", "a\nb", "a\0", "a\u{200b}", "a\u{202e}b", "\u{3164}"] {
            assert!(wrong.parse::<JobName>().is_err(), "{wrong:?}");
        }
        assert!("x".repeat(191).parse::<JobName>().is_ok());
        let refused = "x".repeat(192).parse::<JobName>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "job name: found 192 characters, expected at most 191 characters"
        );
    }

    #[test]
    fn a_scope_is_global_unless_said() {
        assert_eq!(Scope::default().to_string(), "global/global");
        assert_eq!(Scope::new("tenant", "42").unwrap().to_string(), "tenant/42");
        assert!(Scope::new("tenant", "").is_err() && Scope::new("a/b", "c").is_err());
        assert!(Scope::new(&"k".repeat(100), &"i".repeat(191)).is_ok());
        let refused = Scope::new(&"k".repeat(101), "i").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "scope kind: found 101 characters, expected at most 100 characters"
        );
    }
}
