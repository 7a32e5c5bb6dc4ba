//! Schedules: when a job fires. A schedule has one of seven kinds, a time zone, and a rule for clock changes.

mod describe;
mod dst;
mod iana_time_zone;
mod next_fire;
mod parse_cron;
mod parse_recurrence;
mod preview;
mod slot;
mod wall_clock_pattern;

use std::fmt;

use jiff::Timestamp;

pub use dst::{DstRule, DstRuleOverrides, FoldRule, GapRule};
pub use iana_time_zone::IanaTimeZone;
pub use next_fire::Fire;
pub use preview::{ClockChange, Preview, PreviewRow};
pub use slot::ScheduleSlotKey;

use crate::string_enum::string_enum;
use crate::{InvalidInput, Language};
use wall_clock_pattern::Pattern;

string_enum! {
    /// The kind of a schedule (`schedule_type`). It determines the format of the value.
    pub enum ScheduleKind, "schedule type" {
        /// A fixed interval in elapsed time: `5m`, `30s`.
        Every = "every",
        /// At minutes of every hour: `15`, or `0,30`.
        HourlyAt = "hourly_at",
        /// At times of every day: `02:30`, or `09:00,18:00`.
        DailyAt = "daily_at",
        /// At times of Monday to Friday: `09:00`.
        WeekdaysAt = "weekdays_at",
        /// On days of the week at times: `mon,thu 09:00`.
        WeeklyAt = "weekly_at",
        /// On days of the month, or its last day, at times: `1 09:00`, `last 18:00`.
        MonthlyAt = "monthly_at",
        /// A cron expression of five fields, or six with seconds: `*/5 9-17 * * MON-FRI`.
        Cron = "cron",
    }
}

/// Maximum length of `schedule_value` in bytes.
pub const MAX_VALUE_BYTES: usize = 256;

/// A parsed schedule. It computes the next fires.
///
/// ```
/// use tasuki_core::schedule::{DstRuleOverrides, Schedule, ScheduleKind};
/// use tasuki_core::Language;
///
/// let schedule =
///     Schedule::parse(ScheduleKind::WeekdaysAt, "09:00", "Asia/Tokyo", DstRuleOverrides::default())?;
/// assert_eq!(schedule.describe(Language::English), "on Monday to Friday at 09:00");
///
/// let friday_evening = "2026-11-13T10:00:00Z".parse().unwrap();
/// let monday = schedule.next_after(friday_evening).unwrap();
/// assert_eq!(monday.at.to_string(), "2026-11-16T00:00:00Z");
/// assert_eq!(monday.slot.to_string(), "2026-11-16T09:00:00");
/// # Ok::<(), tasuki_core::InvalidInput>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    value: String,
    zone: IanaTimeZone,
    rule: DstRule,
    recurrence: Recurrence,
}

/// The times at which a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Recurrence {
    /// An interval in seconds of elapsed time, counted from 1970-01-01T00:00:00Z, so that every node
    /// computes the same fires, also after a restart.
    Interval(i64),
    /// A pattern of wall-clock times.
    WallClock(Pattern),
}

impl Schedule {
    /// Parses a schedule from the fields of a job's definition.
    pub fn parse(
        kind: ScheduleKind,
        value: &str,
        zone: &str,
        dst: DstRuleOverrides,
    ) -> Result<Self, InvalidInput> {
        if value.len() > MAX_VALUE_BYTES {
            let found = format!("{} bytes", value.len());
            return Err(InvalidInput::with_described_value(
                "schedule value",
                found,
                "at most 256 bytes",
            ));
        }
        let (recurrence, default_rule) = parse_recurrence::parse(kind, value)?;
        let zone = zone.parse()?;
        let value = value.trim().to_owned();
        Ok(Self { kind, value, zone, rule: dst.or_default(default_rule), recurrence })
    }

    /// The kind of the schedule.
    pub fn kind(&self) -> ScheduleKind {
        self.kind
    }

    /// The value as the user typed it, without surrounding space.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The time zone of its wall-clock times.
    pub fn zone(&self) -> &IanaTimeZone {
        &self.zone
    }

    /// The rule for clock changes, chosen or default; `None` for `every`, which counts elapsed time.
    pub fn dst_rule(&self) -> Option<DstRule> {
        matches!(self.recurrence, Recurrence::WallClock(_)).then_some(self.rule)
    }

    /// The first fire strictly after an instant; `None`: the schedule never fires again.
    pub fn next_after(&self, after: Timestamp) -> Option<Fire> {
        match &self.recurrence {
            Recurrence::WallClock(pattern) => {
                next_fire::next_wall_clock_fire(pattern, self.zone.rules(), self.rule, after)
            }
            Recurrence::Interval(period) => {
                let passed = after.as_microsecond().div_euclid(1_000_000 * period);
                let at = Timestamp::from_second((passed + 1) * period).ok()?;
                Some(Fire { at, slot: ScheduleSlotKey::Instant(at), shifted: false })
            }
        }
    }

    /// All fires strictly after an instant, in order.
    pub fn iter_fires_after(&self, after: Timestamp) -> impl Iterator<Item = Fire> + '_ {
        std::iter::successors(self.next_after(after), |fire| self.next_after(fire.at))
    }

    /// The last fire in `(after, until]`. It is found by binary search: after an outage of a month, this is
    /// as fast for a schedule of every second as for a schedule of every day.
    pub fn last_between(&self, after: Timestamp, until: Timestamp) -> Option<Fire> {
        let fires_by_then = |from: i64| {
            let from = Timestamp::from_second(from).unwrap_or(Timestamp::MIN);
            self.next_after(from.max(after)).filter(|fire| fire.at <= until)
        };
        // Fires are on whole seconds. Invariant: a fire follows `low`, no fire follows `high`.
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

    /// A description for users: `every day at 02:30`.
    pub fn describe(&self, language: Language) -> String {
        describe::describe(&self.recurrence, language)
    }

    /// A preview of the next `count` fires for users.
    pub fn preview(&self, after: Timestamp, count: usize) -> Preview {
        preview::build_preview(self, after, count)
    }
}

impl fmt::Display for Schedule {
    /// Kind, value and zone: `daily_at 02:30 Asia/Tokyo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.value, self.zone)
    }
}

#[cfg(test)]
mod tests;
