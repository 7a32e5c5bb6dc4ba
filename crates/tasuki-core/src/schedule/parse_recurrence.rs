//! Parses `schedule_value` for each `schedule_type`.

use jiff::civil::Time;

use super::dst::DstRule;
use super::wall_clock_pattern::{ALL_MONTHS, Days, MonthDays, NumberSet, Pattern, Times, time};
use super::{Recurrence, ScheduleKind, parse_cron};
use crate::InvalidInput;

/// The recurrence that a value describes, and its default rule for clock changes.
pub(super) fn parse(
    kind: ScheduleKind,
    value: &str,
) -> Result<(Recurrence, DstRule), InvalidInput> {
    // Users type spaces after commas: `mon, thu 09:00`.
    let tidy = value.split(',').map(str::trim).collect::<Vec<_>>().join(",");
    let value = if kind == ScheduleKind::Cron { value } else { tidy.as_str() };
    let (pattern, rule) = match kind {
        ScheduleKind::Every => {
            return Ok((Recurrence::Interval(parse_interval(value)?), DstRule::PERIODIC));
        }
        ScheduleKind::Cron => parse_cron::parse(value)?,
        ScheduleKind::HourlyAt => {
            (pattern_of(Days::Every, parse_minutes(value)?), DstRule::PERIODIC)
        }
        ScheduleKind::DailyAt => {
            (pattern_of(Days::Every, parse_times(value)?), DstRule::TIME_OF_DAY)
        }
        ScheduleKind::WeekdaysAt => (
            pattern_of(Days::OfWeek(NumberSet::range(1, 5)), parse_times(value)?),
            DstRule::TIME_OF_DAY,
        ),
        ScheduleKind::WeeklyAt => {
            let (days, rest) = split_days_and_times(value, "weekday", "mon,thu 09:00")?;
            (
                pattern_of(Days::OfWeek(parse_weekdays(days)?), parse_times(rest)?),
                DstRule::TIME_OF_DAY,
            )
        }
        ScheduleKind::MonthlyAt => {
            let (days, rest) =
                split_days_and_times(value, "day of month", "1 09:00 or last 18:00")?;
            (
                pattern_of(Days::OfMonth(parse_month_days(days)?), parse_times(rest)?),
                DstRule::TIME_OF_DAY,
            )
        }
    };
    Ok((Recurrence::WallClock(pattern), rule))
}

fn pattern_of(days: Days, times: Times) -> Pattern {
    Pattern { times, days, months: ALL_MONTHS }
}

/// Parses an interval in seconds: `5m`, `30s`, `2h`, `1d`.
fn parse_interval(typed: &str) -> Result<i64, InvalidInput> {
    const LONGEST: i64 = 366 * 86_400;
    let text = typed.trim();
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => 86_400,
        _ => 0,
    };
    let number = &text[..text.len() - usize::from(unit > 0)];
    match parse_digits(number).and_then(|number| number.checked_mul(unit)) {
        Some(seconds @ 1..=LONGEST) => Ok(seconds),
        _ => Err(InvalidInput::with_value(
            "period",
            typed,
            "a whole number with its unit, such as 30s, 5m, 2h or 1d, from 1s to 366d",
        )),
    }
}

/// Parses minutes of an hour: `15`, `0,30`.
fn parse_minutes(typed: &str) -> Result<Times, InvalidInput> {
    let minute = |item: &str| match parse_digits(item) {
        Some(minute @ 0..=59) => Ok(minute as u8),
        _ => Err(InvalidInput::with_value("minute", item, "0 to 59, or a list such as 0,30")),
    };
    let minutes = list_items(typed).map(minute).collect::<Result<NumberSet, _>>()?;
    Ok(Times::Grid { hours: NumberSet::range(0, 23), minutes, seconds: NumberSet::range(0, 0) })
}

/// Parses times of a day: `02:30`, `09:00,18:00:30`.
fn parse_times(typed: &str) -> Result<Times, InvalidInput> {
    let mut times = list_items(typed).map(parse_time_of_day).collect::<Result<Vec<Time>, _>>()?;
    times.sort_unstable();
    times.dedup();
    Ok(Times::List(times))
}

fn parse_time_of_day(typed: &str) -> Result<Time, InvalidInput> {
    let error = || {
        let expected = "a time from 00:00 to 23:59, or with seconds such as 02:30:15";
        InvalidInput::with_value("time", typed, expected)
    };
    let parts: Vec<&str> = typed.split(':').collect();
    let (hour, minute, second) = match *parts.as_slice() {
        [hour, minute] => (hour, minute, "00"),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(error()),
    };
    // Two digits are required after a colon: 2:5 could mean 02:05 or 02:50.
    if minute.len() != 2 || second.len() != 2 || hour.len() > 2 {
        return Err(error());
    }
    match (parse_digits(hour), parse_digits(minute), parse_digits(second)) {
        (Some(hour @ 0..=23), Some(minute @ 0..=59), Some(second @ 0..=59)) => {
            Ok(time(hour as u8, minute as u8, second as u8))
        }
        _ => Err(error()),
    }
}

/// Splits days from times: `mon,thu 09:00`.
fn split_days_and_times<'a>(
    typed: &'a str,
    field: &'static str,
    example: &'static str,
) -> Result<(&'a str, &'a str), InvalidInput> {
    let parts = typed.trim().split_once(char::is_whitespace);
    parts.ok_or_else(|| {
        let expected = format!("days and times with a space between, such as {example}");
        InvalidInput::with_value(field, typed, expected)
    })
}

/// Parses days of a week: `mon`, `mon-fri`, `sat,sun`.
fn parse_weekdays(typed: &str) -> Result<NumberSet, InvalidInput> {
    let mut days = Vec::new();
    for item in list_items(typed) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        match (parse_weekday(first), parse_weekday(last)) {
            // A range may cross the end of the week: sat-mon is three days.
            (Some(first), Some(last)) => {
                let length = (last + 7 - first) % 7;
                days.extend((0..=length).map(|step| (first + step) % 7));
            }
            _ => {
                let expected =
                    "mon, tue, wed, thu, fri, sat, sun, a range such as mon-fri, or a list";
                return Err(InvalidInput::with_value("weekday", item, expected));
            }
        }
    }
    Ok(days.into_iter().collect())
}

fn parse_weekday(typed: &str) -> Option<u8> {
    const NAMES: [&str; 7] =
        ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
    let typed = typed.trim().to_ascii_lowercase();
    let matches = |name: &&str| typed == **name || typed == name[..3];
    NAMES.iter().position(matches).map(|index| index as u8)
}

/// Parses days of a month: `1`, `1,15`, `last`.
fn parse_month_days(typed: &str) -> Result<MonthDays, InvalidInput> {
    let mut numbers = Vec::new();
    let mut last = false;
    for item in list_items(typed) {
        match parse_digits(item) {
            Some(day @ 1..=31) => numbers.push(day as u8),
            _ if item.eq_ignore_ascii_case("last") => last = true,
            _ => {
                let expected = "1 to 31, last, or a list such as 1,15,last";
                return Err(InvalidInput::with_value("day of month", item, expected));
            }
        }
    }
    Ok(MonthDays { numbers: numbers.into_iter().collect(), last })
}

fn list_items(typed: &str) -> impl Iterator<Item = &str> {
    typed.split(',').map(str::trim)
}

/// Parses ASCII digits only: no sign, no space, no digits of other scripts.
fn parse_digits(typed: &str) -> Option<i64> {
    let digits = !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| typed.parse().ok()).flatten()
}
