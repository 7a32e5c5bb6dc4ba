//! Reading `schedule_value`, for each `schedule_type`.

use jiff::civil::Time;

use super::dst::DstRule;
use super::pattern::{ALL_MONTHS, Days, MonthDays, Pattern, Set, Times, time};
use super::{Rhythm, ScheduleKind, cron};
use crate::Invalid;

/// The rhythm a value stands for, and the rule of clock changes that goes with it.
pub(super) fn parse(kind: ScheduleKind, value: &str) -> Result<(Rhythm, DstRule), Invalid> {
    // `mon, thu 09:00` is what people type.
    let tidy = value.split(',').map(str::trim).collect::<Vec<_>>().join(",");
    let value = if kind == ScheduleKind::Cron { value } else { tidy.as_str() };
    let (pattern, rule) = match kind {
        ScheduleKind::Every => return Ok((Rhythm::Seconds(period(value)?), DstRule::RHYTHM)),
        ScheduleKind::Cron => cron::parse(value)?,
        ScheduleKind::HourlyAt => (on(Days::Every, minutes(value)?), DstRule::RHYTHM),
        ScheduleKind::DailyAt => (on(Days::Every, times(value)?), DstRule::FIXED),
        ScheduleKind::WeekdaysAt => {
            (on(Days::OfWeek(Set::range(1, 5)), times(value)?), DstRule::FIXED)
        }
        ScheduleKind::WeeklyAt => {
            let (days, rest) = days_and_times(value, "weekday", "mon,thu 09:00")?;
            (on(Days::OfWeek(weekdays(days)?), times(rest)?), DstRule::FIXED)
        }
        ScheduleKind::MonthlyAt => {
            let (days, rest) = days_and_times(value, "day of month", "1 09:00 or last 18:00")?;
            (on(Days::OfMonth(month_days(days)?), times(rest)?), DstRule::FIXED)
        }
    };
    Ok((Rhythm::Wall(pattern), rule))
}

fn on(days: Days, times: Times) -> Pattern {
    Pattern { times, days, months: ALL_MONTHS }
}

/// `5m`, `30s`, `2h`, `1d`
fn period(typed: &str) -> Result<i64, Invalid> {
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
    match read_number(number).and_then(|number| number.checked_mul(unit)) {
        Some(seconds @ 1..=LONGEST) => Ok(seconds),
        _ => Err(Invalid::typed(
            "period",
            typed,
            "a whole number with its unit, such as 30s, 5m, 2h or 1d, from 1s to 366d",
        )),
    }
}

/// `15`, `0,30`
fn minutes(typed: &str) -> Result<Times, Invalid> {
    let minute = |item: &str| match read_number(item) {
        Some(minute @ 0..=59) => Ok(minute as u8),
        _ => Err(Invalid::typed("minute", item, "0 to 59, or a list such as 0,30")),
    };
    let minutes = items(typed).map(minute).collect::<Result<Set, _>>()?;
    Ok(Times::Grid { hours: Set::range(0, 23), minutes, seconds: Set::range(0, 0) })
}

/// `02:30`, `09:00,18:00:30`
fn times(typed: &str) -> Result<Times, Invalid> {
    let mut times = items(typed).map(time_of_day).collect::<Result<Vec<Time>, _>>()?;
    times.sort_unstable();
    times.dedup();
    Ok(Times::List(times))
}

fn time_of_day(typed: &str) -> Result<Time, Invalid> {
    let refuse = || {
        let expected = "a time from 00:00 to 23:59, or with seconds such as 02:30:15";
        Invalid::typed("time", typed, expected)
    };
    let parts: Vec<&str> = typed.split(':').collect();
    let (hour, minute, second) = match *parts.as_slice() {
        [hour, minute] => (hour, minute, "00"),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(refuse()),
    };
    // Two digits after a colon: 2:5 could mean five past or ten to.
    if minute.len() != 2 || second.len() != 2 || hour.len() > 2 {
        return Err(refuse());
    }
    match (read_number(hour), read_number(minute), read_number(second)) {
        (Some(hour @ 0..=23), Some(minute @ 0..=59), Some(second @ 0..=59)) => {
            Ok(time(hour as u8, minute as u8, second as u8))
        }
        _ => Err(refuse()),
    }
}

/// `mon,thu 09:00` is days and times.
fn days_and_times<'a>(
    typed: &'a str,
    field: &'static str,
    example: &'static str,
) -> Result<(&'a str, &'a str), Invalid> {
    let parts = typed.trim().split_once(char::is_whitespace);
    parts.ok_or_else(|| {
        let expected = format!("days and times with a space between, such as {example}");
        Invalid::typed(field, typed, expected)
    })
}

/// `mon`, `mon-fri`, `sat,sun`
fn weekdays(typed: &str) -> Result<Set, Invalid> {
    let mut days = Vec::new();
    for item in items(typed) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        match (weekday(first), weekday(last)) {
            // A week is a ring: sat-mon is three days.
            (Some(first), Some(last)) => {
                let length = (last + 7 - first) % 7;
                days.extend((0..=length).map(|step| (first + step) % 7));
            }
            _ => {
                let expected =
                    "mon, tue, wed, thu, fri, sat, sun, a range such as mon-fri, or a list";
                return Err(Invalid::typed("weekday", item, expected));
            }
        }
    }
    Ok(days.into_iter().collect())
}

fn weekday(typed: &str) -> Option<u8> {
    const NAMES: [&str; 7] =
        ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
    let typed = typed.trim().to_ascii_lowercase();
    let matches = |name: &&str| typed == **name || typed == name[..3];
    NAMES.iter().position(matches).map(|index| index as u8)
}

/// `1`, `1,15`, `last`
fn month_days(typed: &str) -> Result<MonthDays, Invalid> {
    let mut numbers = Vec::new();
    let mut last = false;
    for item in items(typed) {
        match read_number(item) {
            Some(day @ 1..=31) => numbers.push(day as u8),
            _ if item.eq_ignore_ascii_case("last") => last = true,
            _ => {
                let expected = "1 to 31, last, or a list such as 1,15,last";
                return Err(Invalid::typed("day of month", item, expected));
            }
        }
    }
    Ok(MonthDays { numbers: numbers.into_iter().collect(), last })
}

fn items(typed: &str) -> impl Iterator<Item = &str> {
    typed.split(',').map(str::trim)
}

/// Digits and nothing else: no sign, no space, no other script's digits.
fn read_number(typed: &str) -> Option<i64> {
    let digits = !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| typed.parse().ok()).flatten()
}
