//! The kinds of values a setting can have, as people type and read them.

use std::time::Duration;

use crate::duration;

/// What a setting holds.
pub(super) trait Value: Copy + PartialOrd + PartialEq {
    /// What to type, for help and for refusals.
    const EXPECTED: &'static str;

    /// Reads what was typed.
    fn read(typed: &str) -> Option<Self>;

    /// Writes it so that it reads back as the same value.
    fn show(self) -> String;

    /// Whether limits do not concern it: `off`, `auto`.
    fn is_unlimited(self) -> bool {
        false
    }
}

impl Value for Duration {
    const EXPECTED: &'static str = duration::EXPECTED;

    fn read(typed: &str) -> Option<Self> {
        duration::parse(typed)
    }

    fn show(self) -> String {
        duration::show(self)
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn read(typed: &str) -> Option<Self> {
        let typed = typed.trim();
        typed.bytes().all(|byte| byte.is_ascii_digit()).then(|| typed.parse().ok()).flatten()
    }

    fn show(self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn read(typed: &str) -> Option<Self> {
        typed.trim().parse().ok()
    }

    fn show(self) -> String {
        self.to_string()
    }
}

/// A duration that can be left out.
impl Value for Option<Duration> {
    const EXPECTED: &'static str = "off, or a duration such as 300ms, 1.5s, 5m, 2h or 7d";

    fn read(typed: &str) -> Option<Self> {
        match typed.trim() {
            "off" => Some(None),
            duration => Duration::read(duration).map(Some),
        }
    }

    fn show(self) -> String {
        self.map_or_else(|| "off".to_owned(), Duration::show)
    }

    fn is_unlimited(self) -> bool {
        self.is_none()
    }
}

/// How many at once: as the machine has cores, or as somebody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slots {
    /// Four for each core.
    Auto,
    /// This many.
    Fixed(u32),
}

impl Slots {
    /// The number on a machine with so many cores.
    pub fn on(self, cores: u32) -> u32 {
        match self {
            Self::Auto => cores.max(1).saturating_mul(4),
            Self::Fixed(slots) => slots,
        }
    }
}

impl Value for Slots {
    const EXPECTED: &'static str = "auto (four for each core), or a whole number";

    fn read(typed: &str) -> Option<Self> {
        match typed.trim() {
            "auto" => Some(Self::Auto),
            number => u32::read(number).map(Self::Fixed),
        }
    }

    fn show(self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(slots) => slots.show(),
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
    fn durations_are_typed_with_a_unit_and_shown_in_the_largest_that_fits() {
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
            let read = Duration::read(typed);
            assert_eq!(read, Some(Duration::from_millis(millis)), "{typed}");
            assert_eq!(read.unwrap().show(), shown);
            assert_eq!(Duration::read(shown), read, "reads back");
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
            assert_eq!(Duration::read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn numbers_switches_and_special_words() {
        assert_eq!(u32::read(" 42 "), Some(42));
        assert!(
            ["", "-1", "+1", "1.0", "4294967296"].iter().all(|wrong| u32::read(wrong).is_none())
        );
        assert_eq!((bool::read("true"), bool::read("yes")), (Some(true), None));
        assert_eq!(Option::<Duration>::read("off"), Some(None));
        assert_eq!(Slots::read("auto"), Some(Slots::Auto));
        assert_eq!((Slots::Auto.on(2), Slots::Auto.on(0), Slots::Fixed(3).on(64)), (8, 4, 3));
    }
}
