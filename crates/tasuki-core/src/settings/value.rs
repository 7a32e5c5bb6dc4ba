//! The types of setting values, with parsing and formatting.

use std::time::Duration;

use crate::duration;

/// A type that a setting can have.
pub(super) trait SettingValue: Copy + PartialOrd + PartialEq {
    /// A description of the valid text, for help and error messages.
    const EXPECTED: &'static str;

    /// Parses the text of a value; `None`: it is invalid.
    fn parse(typed: &str) -> Option<Self>;

    /// Formats the value. The text parses back to the same value.
    fn format(self) -> String;

    /// Whether minimum and maximum do not apply to the value: `off`, `auto`.
    fn is_unlimited(self) -> bool {
        false
    }
}

impl SettingValue for Duration {
    const EXPECTED: &'static str = duration::EXPECTED_FORMAT;

    fn parse(typed: &str) -> Option<Self> {
        duration::parse_duration_text(typed)
    }

    fn format(self) -> String {
        duration::format_exact_duration(self)
    }
}

impl SettingValue for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(typed: &str) -> Option<Self> {
        let typed = typed.trim();
        typed.bytes().all(|byte| byte.is_ascii_digit()).then(|| typed.parse().ok()).flatten()
    }

    fn format(self) -> String {
        self.to_string()
    }
}

impl SettingValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(typed: &str) -> Option<Self> {
        typed.trim().parse().ok()
    }

    fn format(self) -> String {
        self.to_string()
    }
}

/// A duration that can be turned off.
impl SettingValue for Option<Duration> {
    const EXPECTED: &'static str = "off, or a duration such as 300ms, 1.5s, 5m, 2h or 7d";

    fn parse(typed: &str) -> Option<Self> {
        match typed.trim() {
            "off" => Some(None),
            duration => Duration::parse(duration).map(Some),
        }
    }

    fn format(self) -> String {
        self.map_or_else(|| "off".to_owned(), Duration::format)
    }

    fn is_unlimited(self) -> bool {
        self.is_none()
    }
}

/// A number of slots: fixed, or derived from the number of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotSetting {
    /// Four slots per core.
    Auto,
    /// This number of slots.
    Fixed(u32),
}

impl SlotSetting {
    /// The number of slots on a machine with this number of cores.
    pub fn count_for_cores(self, cores: u32) -> u32 {
        match self {
            Self::Auto => cores.max(1).saturating_mul(4),
            Self::Fixed(slots) => slots,
        }
    }
}

impl SettingValue for SlotSetting {
    const EXPECTED: &'static str = "auto (four for each core), or a whole number";

    fn parse(typed: &str) -> Option<Self> {
        match typed.trim() {
            "auto" => Some(Self::Auto),
            number => u32::parse(number).map(Self::Fixed),
        }
    }

    fn format(self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(slots) => slots.format(),
        }
    }

    fn is_unlimited(self) -> bool {
        self == Self::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit_and_is_shown_in_the_largest_one_that_fits() {
        for (typed, millis, shown) in [
            ("300ms", 300, "300ms"),
            ("0.3s", 300, "300ms"),
            ("1s", 1_000, "1s"),
            ("1.5s", 1_500, "1500ms"),
            ("90s", 90_000, "90s"),
            ("1800s", 1_800_000, "30m"),
            ("1.5m", 90_000, "90s"),
            ("24h", 86_400_000, "1d"),
            (" 7d ", 604_800_000, "7d"),
            ("0s", 0, "0s"),
            ("0ms", 0, "0s"),
        ] {
            let parsed = Duration::parse(typed);
            assert_eq!(parsed, Some(Duration::from_millis(millis)), "{typed}");
            assert_eq!(parsed.unwrap().format(), shown);
            assert_eq!(Duration::parse(shown), parsed, "{shown} parses back");
        }
        for wrong in [
            "",
            "5",
            "s",
            "-1s",
            "1 s",
            "1.s",
            ".5s",
            "1e3s",
            "1us",
            "0.0001s",
            "1s2ms",
            "１s",
            "99999999999999999d",
        ] {
            assert_eq!(Duration::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn numbers_booleans_off_and_auto_are_parsed() {
        assert_eq!(u32::parse(" 42 "), Some(42));
        assert!(
            ["", "-1", "+1", "1.0", "4294967296"].iter().all(|wrong| u32::parse(wrong).is_none())
        );
        assert_eq!((bool::parse("true"), bool::parse("yes")), (Some(true), None));
        assert_eq!(Option::<Duration>::parse("off"), Some(None));
        assert_eq!(SlotSetting::parse("auto"), Some(SlotSetting::Auto));
        assert_eq!(
            (
                SlotSetting::Auto.count_for_cores(2),
                SlotSetting::Auto.count_for_cores(0),
                SlotSetting::Fixed(3).count_for_cores(64)
            ),
            (8, 4, 3)
        );
    }
}
