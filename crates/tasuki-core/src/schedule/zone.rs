//! Time zones by their IANA name.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::Invalid;
use crate::did_you_mean::nearest;

/// A place's clock: an IANA name such as `Asia/Tokyo` and its rules.
///
/// Only names, never offsets: `+09:00` knows nothing of clock changes and cannot learn.
#[derive(Debug, Clone, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// The name as the database spells it.
    pub fn name(&self) -> &str {
        self.0.iana_name().expect("a zone is only ever made from a name")
    }

    /// The rules.
    pub fn rules(&self) -> &TimeZone {
        &self.0
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Zone {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        // A machine's own entries (`localtime`, `posixrules`) mean another zone on another machine;
        // what jiff brings along has only places.
        let is_a_place = typed.len() <= LONGEST_NAME
            && !typed.eq_ignore_ascii_case("Factory")
            && PLACES.get(typed).is_ok();
        let rules = is_a_place.then(|| jiff::tz::db().get(typed).ok()).flatten();
        rules.filter(|zone| zone.iana_name().is_some()).map(Self).ok_or_else(|| refusal(typed))
    }
}

const LONGEST_NAME: usize = 64;

static PLACES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

fn refusal(typed: &str) -> Invalid {
    let names: Vec<String> = PLACES.available().map(|name| name.to_string()).collect();
    let expected = match nearest(typed, names.iter().map(String::as_str)) {
        Some(name) => format!("the IANA name of a zone; did you mean {name}?"),
        None => "the IANA name of a zone, such as Asia/Tokyo or UTC".to_owned(),
    };
    Invalid::typed("time zone", typed, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case_and_spelled_properly() {
        for (typed, name) in
            [("Asia/Tokyo", "Asia/Tokyo"), ("europe/berlin", "Europe/Berlin"), ("utc", "UTC")]
        {
            assert_eq!(typed.parse::<Zone>().unwrap().name(), name);
        }
    }

    #[test]
    fn anything_else_is_refused_and_a_near_miss_is_named() {
        for wrong in [
            "",
            "+09:00",
            "JST-9",
            "../etc/passwd",
            "Asia",
            "Etc/Unknown",
            "\0",
            "a b",
            "localtime",
            "posixrules",
            "Factory",
            &"x".repeat(100_000),
        ] {
            assert_eq!(wrong.parse::<Zone>().unwrap_err().field, "time zone", "{wrong:?}");
        }
        let refused = "Europe/Berln".parse::<Zone>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "time zone: found \"Europe/Berln\", expected the IANA name of a zone; did you mean Europe/Berlin?"
        );
    }
}
