//! Time zones by IANA name.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::InvalidInput;
use crate::did_you_mean::did_you_mean;

/// A time zone: an IANA name such as `Asia/Tokyo`, and its rules.
///
/// Offsets such as `+09:00` are not accepted: they have no rules for clock changes.
#[derive(Debug, Clone, PartialEq)]
pub struct IanaTimeZone(TimeZone);

impl IanaTimeZone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// The name as the time-zone database spells it.
    pub fn name(&self) -> &str {
        self.0.iana_name().expect("a zone is only ever made from a name")
    }

    /// The offsets and clock changes of the zone.
    pub fn rules(&self) -> &TimeZone {
        &self.0
    }
}

impl fmt::Display for IanaTimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IanaTimeZone {
    type Err = InvalidInput;

    fn from_str(typed: &str) -> Result<Self, InvalidInput> {
        // Entries of the machine's own database, such as `localtime` and `posixrules`, mean different
        // zones on different machines. The database bundled with jiff has only IANA names.
        let is_known = typed.len() <= MAX_ZONE_NAME_BYTES
            && !typed.eq_ignore_ascii_case("Factory")
            && BUNDLED_ZONES.get(typed).is_ok();
        let rules = is_known.then(|| jiff::tz::db().get(typed).ok()).flatten();
        rules.filter(|zone| zone.iana_name().is_some()).map(Self).ok_or_else(|| unknown_zone(typed))
    }
}

const MAX_ZONE_NAME_BYTES: usize = 64;

static BUNDLED_ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

fn unknown_zone(typed: &str) -> InvalidInput {
    let names: Vec<String> = BUNDLED_ZONES.available().map(|name| name.to_string()).collect();
    let expected = match did_you_mean(typed, names.iter().map(String::as_str)) {
        Some(name) => format!("the IANA name of a zone; did you mean {name}?"),
        None => "the IANA name of a zone, such as Asia/Tokyo or UTC".to_owned(),
    };
    InvalidInput::with_value("time zone", typed, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_any_case_gets_its_official_spelling() {
        for (typed, name) in
            [("Asia/Tokyo", "Asia/Tokyo"), ("europe/berlin", "Europe/Berlin"), ("utc", "UTC")]
        {
            assert_eq!(typed.parse::<IanaTimeZone>().unwrap().name(), name);
        }
    }

    #[test]
    fn an_unknown_zone_is_an_error_that_suggests_a_similar_name() {
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
            assert_eq!(wrong.parse::<IanaTimeZone>().unwrap_err().field, "time zone", "{wrong:?}");
        }
        let error = "Europe/Berln".parse::<IanaTimeZone>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "time zone: found \"Europe/Berln\", expected the IANA name of a zone; did you mean Europe/Berlin?"
        );
    }
}
