//! Slots: the identity of a planned instant. There is at most one run per (job, scope, slot).

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;

use crate::InvalidInput;

/// The identity of a planned run. Two planners that plan the same instant get the same slot, so the
/// run is created once.
///
/// For a wall-clock schedule, the slot is the wall-clock time and the number of its occurrence, so
/// that neither a repeated hour nor new zone rules create a slot twice. For an interval schedule, the
/// slot is the instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScheduleSlotKey {
    /// An instant, on a whole second.
    Instant(Timestamp),
    /// A wall-clock time.
    Wall {
        /// The wall-clock time. If the clock change skips it, the time that would have been shown.
        time: DateTime,
        /// 1, or 2 for the second occurrence of a time that is repeated because the clocks go back.
        pass: u8,
    },
}

impl fmt::Display for ScheduleSlotKey {
    /// The stored key: `2026-11-15T02:30:00`, `2026-10-25T02:30:00#2`, `2026-11-15T02:30:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instant(at) => write!(f, "{at}"),
            Self::Wall { time, pass: 1 } => write!(f, "{time}"),
            Self::Wall { time, pass } => write!(f, "{time}#{pass}"),
        }
    }
}

impl FromStr for ScheduleSlotKey {
    type Err = InvalidInput;

    fn from_str(typed: &str) -> Result<Self, InvalidInput> {
        parse_key(typed).filter(|slot| slot.to_string() == typed && slot.is_valid()).ok_or_else(
            || InvalidInput::with_value("slot", typed, "a slot such as 2026-11-15T02:30:00"),
        )
    }
}

impl ScheduleSlotKey {
    /// Whether the slot is on a whole second, and its pass is 1 or 2.
    fn is_valid(&self) -> bool {
        match self {
            Self::Instant(at) => at.subsec_nanosecond() == 0,
            Self::Wall { time, pass } => time.subsec_nanosecond() == 0 && (1..=2).contains(pass),
        }
    }
}

fn parse_key(typed: &str) -> Option<ScheduleSlotKey> {
    if typed.ends_with('Z') {
        return typed.parse().ok().map(ScheduleSlotKey::Instant);
    }
    let (time, pass) = typed.split_once('#').unwrap_or((typed, "1"));
    Some(ScheduleSlotKey::Wall { time: time.parse().ok()?, pass: pass.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::datetime;

    #[test]
    fn a_key_parses_back_to_its_slot() {
        let wall = datetime(2026, 10, 25, 2, 30, 0, 0);
        let instant = "2026-11-15T02:30:00Z".parse().unwrap();
        for (slot, key) in [
            (ScheduleSlotKey::Wall { time: wall, pass: 1 }, "2026-10-25T02:30:00"),
            (ScheduleSlotKey::Wall { time: wall, pass: 2 }, "2026-10-25T02:30:00#2"),
            (ScheduleSlotKey::Instant(instant), "2026-11-15T02:30:00Z"),
        ] {
            assert_eq!(slot.to_string(), key);
            assert_eq!(key.parse(), Ok(slot));
        }
    }

    #[test]
    fn only_the_canonical_text_is_a_key() {
        for wrong in [
            "",
            "2026-10-25",
            "2026-10-25T02:30:00#1",
            "2026-10-25 02:30:00",
            "x#2",
            "2026-10-25T02:30:00#0",
            "2026-10-25T02:30:00#3",
            "2026-10-25T02:30:00.5",
        ] {
            assert!(wrong.parse::<ScheduleSlotKey>().is_err(), "{wrong:?}");
        }
    }
}
