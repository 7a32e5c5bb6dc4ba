//! When a job fires: seven kinds of schedule, a zone, and a rule for the days the clocks change.

mod cron;
mod dst;
mod fire;
mod pattern;
mod preview;
mod slot;
mod value;
mod words;
mod zone;

use std::fmt;

use jiff::Timestamp;

pub use dst::{DstChoice, DstRule, FoldRule, GapRule};
pub use fire::Fire;
pub use preview::{ClockChange, Preview, PreviewRow};
pub use slot::Slot;
pub use zone::Zone;

use crate::string_enum::words;
use crate::{Invalid, Language};
use pattern::Pattern;

words! {
    /// `schedule_type`: how the value is to be read.
    pub enum ScheduleKind, "schedule type" {
        /// A steady rhythm in real time: `5m`, `30s`.
        Every = "every",
        /// Minutes of every hour: `15`, or `0,30`.
        HourlyAt = "hourly_at",
        /// Times of every day: `02:30`, or `09:00,18:00`.
        DailyAt = "daily_at",
        /// Times of Monday to Friday: `09:00`.
        WeekdaysAt = "weekdays_at",
        /// Days of the week and times: `mon,thu 09:00`.
        WeeklyAt = "weekly_at",
        /// A day of the month, or its last, and times: `1 09:00`, `last 18:00`.
        MonthlyAt = "monthly_at",
        /// A cron expression of five fields, or six with seconds: `*/5 9-17 * * MON-FRI`.
        Cron = "cron",
    }
}

/// The longest `schedule_value` that is read.
pub const LONGEST_VALUE: usize = 256;

/// A schedule that has been understood: it can say when it fires next.
///
/// ```
/// use tasuki_core::schedule::{DstChoice, Schedule, ScheduleKind};
/// use tasuki_core::Language;
///
/// let schedule =
///     Schedule::parse(ScheduleKind::WeekdaysAt, "09:00", "Asia/Tokyo", DstChoice::default())?;
/// assert_eq!(schedule.words(Language::English), "on Monday to Friday at 09:00");
///
/// let friday_evening = "2026-11-13T10:00:00Z".parse().unwrap();
/// let monday = schedule.next_after(friday_evening).unwrap();
/// assert_eq!(monday.at.to_string(), "2026-11-16T00:00:00Z");
/// assert_eq!(monday.slot.to_string(), "2026-11-16T09:00:00");
/// # Ok::<(), tasuki_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    value: String,
    zone: Zone,
    rule: DstRule,
    rhythm: Rhythm,
}

/// What fires it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rhythm {
    /// Real time: every so many seconds, counted from 1970-01-01T00:00:00Z, so that every node and
    /// every restart counts alike.
    Seconds(i64),
    /// The clock on the wall.
    Wall(Pattern),
}

impl Schedule {
    /// Reads a schedule as a job's definition holds it.
    pub fn parse(
        kind: ScheduleKind,
        value: &str,
        zone: &str,
        dst: DstChoice,
    ) -> Result<Self, Invalid> {
        if value.len() > LONGEST_VALUE {
            let found = format!("{} bytes", value.len());
            return Err(Invalid::described("schedule value", found, "at most 256 bytes"));
        }
        let (rhythm, default_rule) = value::parse(kind, value)?;
        let zone = zone.parse()?;
        let value = value.trim().to_owned();
        Ok(Self { kind, value, zone, rule: dst.or(default_rule), rhythm })
    }

    /// How its value is read.
    pub fn kind(&self) -> ScheduleKind {
        self.kind
    }

    /// The value as it was typed.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Whose wall it goes by.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The rule of clock changes, chosen or by default; `every` counts real time and needs none.
    pub fn dst_rule(&self) -> Option<DstRule> {
        matches!(self.rhythm, Rhythm::Wall(_)).then_some(self.rule)
    }

    /// The first fire strictly after an instant, or `None` if it never fires again.
    pub fn next_after(&self, after: Timestamp) -> Option<Fire> {
        match &self.rhythm {
            Rhythm::Wall(pattern) => {
                fire::next_on_the_wall(pattern, self.zone.rules(), self.rule, after)
            }
            Rhythm::Seconds(period) => {
                let passed = after.as_microsecond().div_euclid(1_000_000 * period);
                let at = Timestamp::from_second((passed + 1) * period).ok()?;
                Some(Fire { at, slot: Slot::Instant(at), shifted: false })
            }
        }
    }

    /// All fires strictly after an instant, in order.
    pub fn fires_after(&self, after: Timestamp) -> impl Iterator<Item = Fire> + '_ {
        std::iter::successors(self.next_after(after), |fire| self.next_after(fire.at))
    }

    /// The last fire in `(after, until]`. Found by halving, not by walking: after a month's outage a
    /// schedule of every second answers as fast as one of every day.
    pub fn last_between(&self, after: Timestamp, until: Timestamp) -> Option<Fire> {
        let fires_by_then = |from: i64| {
            let from = Timestamp::from_second(from).unwrap_or(Timestamp::MIN);
            self.next_after(from.max(after)).filter(|fire| fire.at <= until)
        };
        // Fires are on whole seconds: some fire follows `low` in time, none follows `high`.
        let mut low = after.as_microsecond().div_euclid(1_000_000);
        let mut high = until.as_microsecond().div_euclid(1_000_000);
        let mut last = fires_by_then(low)?;
        while low < high {
            let middle = low + (high - low) / 2;
            match fires_by_then(middle) {
                Some(fire) => {
                    last = fire;
                    low = fire.at.as_second();
                }
                None => high = middle,
            }
        }
        Some(last)
    }

    /// What it does, in words: `every day at 02:30`.
    pub fn words(&self, language: Language) -> String {
        words::of(&self.rhythm, language)
    }

    /// The next `count` fires with what people want to know of them.
    pub fn preview(&self, after: Timestamp, count: usize) -> Preview {
        preview::of(self, after, count)
    }
}

impl fmt::Display for Schedule {
    /// `daily_at 02:30 Asia/Tokyo`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.value, self.zone)
    }
}

#[cfg(test)]
mod tests;
