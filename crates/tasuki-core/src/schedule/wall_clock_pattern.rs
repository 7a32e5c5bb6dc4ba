//! Patterns of wall-clock times, and the search for the next match. Without time zones: the calendar and
//! the clock have no gaps and no repetitions here.

use jiff::civil::{Date, DateTime, Time};

/// A set of numbers from 0 to 63 as a bit mask: minutes, hours, days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NumberSet(u64);

impl NumberSet {
    pub(super) const fn range(first: u8, last: u8) -> Self {
        let upto_last = if last >= 63 { u64::MAX } else { (1 << (last + 1)) - 1 };
        Self(upto_last & !((1 << first) - 1))
    }

    pub(super) const fn contains(self, number: u8) -> bool {
        self.0 >> number & 1 == 1
    }

    /// The smallest member that is at least `number`.
    fn first_from(self, number: u8) -> Option<u8> {
        let rest = if number > 63 { 0 } else { self.0 >> number };
        (rest != 0).then(|| number + rest.trailing_zeros() as u8)
    }

    pub(super) fn first(self) -> Option<u8> {
        self.first_from(0)
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        (0..64).filter(move |&number| self.contains(number))
    }
}

impl FromIterator<u8> for NumberSet {
    fn from_iter<I: IntoIterator<Item = u8>>(numbers: I) -> Self {
        Self(numbers.into_iter().fold(0, |bits, number| bits | 1 << number))
    }
}

/// The times of day of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Times {
    /// Every combination of these fields, as in a cron expression.
    Grid { hours: NumberSet, minutes: NumberSet, seconds: NumberSet },
    /// Exactly these times, in ascending order.
    List(Vec<Time>),
}

/// Days of a month by number, and optionally its last day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MonthDays {
    pub(super) numbers: NumberSet,
    pub(super) last: bool,
}

/// The days of a pattern. Weekdays count from Sunday = 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Days {
    Every,
    OfMonth(MonthDays),
    OfWeek(NumberSet),
    /// Both day fields of a cron expression are restricted: a day matches if one of them matches.
    Either(MonthDays, NumberSet),
}

/// The wall-clock times at which a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) times: Times,
    pub(super) days: Days,
    pub(super) months: NumberSet,
}

pub(super) const ALL_MONTHS: NumberSet = NumberSet::range(1, 12);

impl Pattern {
    /// The first wall-clock time of the pattern in `[from, before)`.
    ///
    /// The search skips whole months that do not match and computes the time within a day, so it needs
    /// only a few operations per day of a matching month, also for a pattern of every second.
    pub(super) fn first_within(&self, from: DateTime, before: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        let mut time = from.time();
        while date <= before.date() {
            if !self.months.contains(date.month() as u8) {
                date = date.last_of_month().tomorrow().ok()?;
                time = Time::midnight();
                continue;
            }
            if self.days.contains(date)
                && let Some(time) = self.times.first_from(time)
            {
                let found = date.to_datetime(time);
                return (found < before).then_some(found);
            }
            date = date.tomorrow().ok()?;
            time = Time::midnight();
        }
        None
    }

    /// Whether the pattern contains this second.
    pub(super) fn contains(&self, wall: DateTime) -> bool {
        self.months.contains(wall.month() as u8)
            && self.days.contains(wall.date())
            && self.times.first_from(wall.time()) == Some(wall.time())
    }
}

impl Days {
    fn contains(self, date: Date) -> bool {
        match self {
            Self::Every => true,
            Self::OfMonth(days) => days.contains(date),
            Self::OfWeek(days) => days.contains(weekday(date)),
            Self::Either(of_month, of_week) => {
                of_month.contains(date) || of_week.contains(weekday(date))
            }
        }
    }
}

fn weekday(date: Date) -> u8 {
    date.weekday().to_sunday_zero_offset() as u8
}

impl MonthDays {
    fn contains(self, date: Date) -> bool {
        self.numbers.contains(date.day() as u8) || self.last && date.day() == date.days_in_month()
    }
}

impl Times {
    /// The first time of day that is not before `from`.
    fn first_from(&self, from: Time) -> Option<Time> {
        match self {
            Self::List(times) => times.iter().copied().find(|&time| time >= from),
            Self::Grid { hours, minutes, seconds } => {
                first_on_grid(*hours, *minutes, *seconds, from)
            }
        }
    }
}

/// Works like an odometer: keeps as many leading fields of `from` as the sets allow, and increases the
/// next field.
fn first_on_grid(
    hours: NumberSet,
    minutes: NumberSet,
    seconds: NumberSet,
    from: Time,
) -> Option<Time> {
    let (hour, minute, second) = (from.hour() as u8, from.minute() as u8, from.second() as u8);
    let first_minute = minutes.first()?;
    let first_second = seconds.first()?;
    if hours.contains(hour) {
        if minutes.contains(minute)
            && let Some(second) = seconds.first_from(second)
        {
            return Some(time(hour, minute, second));
        }
        if let Some(minute) = minutes.first_from(minute + 1) {
            return Some(time(hour, minute, first_second));
        }
    }
    hours.first_from(hour + 1).map(|hour| time(hour, first_minute, first_second))
}

pub(super) fn time(hour: u8, minute: u8, second: u8) -> Time {
    Time::new(hour as i8, minute as i8, second as i8, 0)
        .expect("the sets of a pattern contain only valid hours, minutes and seconds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::{date, datetime};

    fn grid(hours: NumberSet, minutes: NumberSet, seconds: NumberSet) -> Times {
        Times::Grid { hours, minutes, seconds }
    }

    fn set(numbers: &[u8]) -> NumberSet {
        numbers.iter().copied().collect()
    }

    #[test]
    fn a_set_contains_exactly_its_numbers() {
        let odd = set(&[1, 3, 59]);
        assert_eq!(odd.iter().collect::<Vec<_>>(), [1, 3, 59]);
        assert_eq!(
            (odd.first_from(2), odd.first_from(59), odd.first_from(60)),
            (Some(3), Some(59), None)
        );
        assert_eq!((odd.len(), odd.first(), NumberSet::default().first()), (3, Some(1), None));
        assert_eq!(NumberSet::range(0, 63).first_from(64), None);
        assert_eq!(NumberSet::range(1, 7).iter().sum::<u8>(), 28);
    }

    #[test]
    fn the_next_time_on_a_grid_is_found() {
        let times = grid(set(&[2, 14]), set(&[0, 30]), set(&[5]));
        let next = |hour, minute, second| times.first_from(time(hour, minute, second));
        assert_eq!(next(0, 0, 0), Some(time(2, 0, 5)));
        assert_eq!(next(2, 0, 5), Some(time(2, 0, 5)));
        assert_eq!(next(2, 0, 6), Some(time(2, 30, 5)));
        assert_eq!(next(2, 30, 6), Some(time(14, 0, 5)));
        assert_eq!(next(14, 30, 6), None);
        assert_eq!(next(23, 59, 59), None);
    }

    #[test]
    fn days_that_do_not_exist_are_skipped() {
        let thirtieth = Days::OfMonth(MonthDays { numbers: set(&[30]), last: false });
        let midnight = Times::List(vec![Time::midnight()]);
        let in_february = Pattern { times: midnight.clone(), days: thirtieth, months: set(&[2]) };
        let from = datetime(2026, 1, 1, 0, 0, 0, 0);
        assert_eq!(in_february.first_within(from, datetime(2060, 1, 1, 0, 0, 0, 0)), None);

        let last = Days::OfMonth(MonthDays { numbers: NumberSet::default(), last: true });
        let leap = Pattern { times: midnight, days: last, months: set(&[2]) };
        let found = leap.first_within(datetime(2027, 3, 1, 0, 0, 0, 0), DateTime::MAX);
        assert_eq!(found, Some(date(2028, 2, 29).to_datetime(Time::midnight())));
    }

    #[test]
    fn the_search_ends_at_the_end_of_the_calendar() {
        let noon = Times::List(vec![time(12, 0, 0)]);
        let pattern = Pattern { times: noon, days: Days::Every, months: ALL_MONTHS };
        let late = datetime(9999, 12, 31, 12, 0, 1, 0);
        assert_eq!(pattern.first_within(late, DateTime::MAX), None);
    }

    #[test]
    fn a_day_matches_if_one_of_the_two_day_fields_matches() {
        let numbers = MonthDays { numbers: set(&[13]), last: false };
        let days = Days::Either(numbers, set(&[5]));
        assert!(days.contains(date(2026, 11, 13)) && days.contains(date(2026, 11, 20)));
        assert!(!days.contains(date(2026, 11, 21)));
    }
}
