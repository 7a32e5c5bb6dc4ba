//! The name of a planned instant: one run per (job, scope, slot).

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;

use crate::Invalid;

/// What makes a planned run the same run, whoever plans it and however often.
///
/// A schedule on the wall is known by its wall time and by which pass of a repeated hour it is, so
/// that neither a clock that is set back nor new zone rules can make a slot happen twice. A schedule
/// that counts real time is known by its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// A point in real time, on a whole second.
    Instant(Timestamp),
    /// A time on the wall. `pass` is 1, or 2 for the second time the wall shows it.
    Wall {
        /// What the wall shows, or would have shown had the time not been skipped.
        time: DateTime,
        /// 1 or 2.
        pass: u8,
    },
}

impl fmt::Display for Slot {
    /// The key: `2026-11-15T02:30:00`, `2026-10-25T02:30:00#2`, `2026-11-15T02:30:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instant(at) => write!(f, "{at}"),
            Self::Wall { time, pass: 1 } => write!(f, "{time}"),
            Self::Wall { time, pass } => write!(f, "{time}#{pass}"),
        }
    }
}

impl FromStr for Slot {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        read(typed)
            .filter(|slot| slot.to_string() == typed && slot.is_whole())
            .ok_or_else(|| Invalid::typed("slot", typed, "a slot such as 2026-11-15T02:30:00"))
    }
}

impl Slot {
    /// On a whole second, and the first or second pass.
    fn is_whole(&self) -> bool {
        match self {
            Self::Instant(at) => at.subsec_nanosecond() == 0,
            Self::Wall { time, pass } => time.subsec_nanosecond() == 0 && (1..=2).contains(pass),
        }
    }
}

fn read(typed: &str) -> Option<Slot> {
    if typed.ends_with('Z') {
        return typed.parse().ok().map(Slot::Instant);
    }
    let (time, pass) = typed.split_once('#').unwrap_or((typed, "1"));
    Some(Slot::Wall { time: time.parse().ok()?, pass: pass.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::datetime;

    #[test]
    fn a_key_reads_back_as_the_slot_it_names() {
        let wall = datetime(2026, 10, 25, 2, 30, 0, 0);
        let instant = "2026-11-15T02:30:00Z".parse().unwrap();
        for (slot, key) in [
            (Slot::Wall { time: wall, pass: 1 }, "2026-10-25T02:30:00"),
            (Slot::Wall { time: wall, pass: 2 }, "2026-10-25T02:30:00#2"),
            (Slot::Instant(instant), "2026-11-15T02:30:00Z"),
        ] {
            assert_eq!(slot.to_string(), key);
            assert_eq!(key.parse(), Ok(slot));
        }
    }

    #[test]
    fn only_the_one_spelling_is_a_key() {
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
            assert!(wrong.parse::<Slot>().is_err(), "{wrong:?}");
        }
    }
}
