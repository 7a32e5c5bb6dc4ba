//! Describes schedules for users, in English and Japanese.
//!
//! The description is made from the parsed schedule, not from the typed text, so that a cron expression
//! and a `daily_at` that fire at the same times have the same description.

use super::Recurrence;
use super::wall_clock_pattern::{ALL_MONTHS, Days, MonthDays, NumberSet, Pattern, Times, time};
use crate::Language;
use jiff::civil::Time;

pub(super) fn describe(recurrence: &Recurrence, language: Language) -> String {
    match (recurrence, language) {
        (Recurrence::Interval(seconds), Language::English) => english_period(*seconds),
        (Recurrence::Interval(seconds), Language::Japanese) => japanese_period(*seconds),
        (Recurrence::WallClock(pattern), Language::English) => english(pattern),
        (Recurrence::WallClock(pattern), Language::Japanese) => japanese(pattern),
    }
}

/// The count and index of the largest unit that divides an interval: 90 s stay seconds, 3,600 s are
/// one hour.
fn in_units(seconds: i64) -> (i64, usize) {
    let units = [86_400, 3_600, 60, 1];
    let index = units.iter().position(|unit| seconds % unit == 0).expect("1 divides everything");
    (seconds / units[index], index)
}

fn english_period(seconds: i64) -> String {
    let (count, unit) = in_units(seconds);
    let unit = ["day", "hour", "minute", "second"][unit];
    if count == 1 { format!("every {unit}") } else { format!("every {count} {unit}s") }
}

fn japanese_period(seconds: i64) -> String {
    let (count, unit) = in_units(seconds);
    format!("{count}{}ごと", ["日", "時間", "分", "秒"][unit])
}

/// The shortest form in which to describe the times of a day.
enum TimesForm {
    /// A list of times, if there are few.
    Times(Vec<Time>),
    /// An interval in minutes or seconds, all day.
    EveryMinutes(u8),
    EverySeconds(u8),
    /// The fields one by one; `None` for a field that matches every value.
    Fields {
        hours: Option<NumberSet>,
        minutes: Option<NumberSet>,
        seconds: Option<NumberSet>,
    },
}

fn shortest_form(times: &Times) -> TimesForm {
    let (hours, minutes, seconds) = match times {
        Times::List(times) => return TimesForm::Times(times.clone()),
        Times::Grid { hours, minutes, seconds } => (*hours, *minutes, *seconds),
    };
    let (all_hours, all_sixty) = (NumberSet::range(0, 23), NumberSet::range(0, 59));
    if hours == all_hours
        && seconds == NumberSet::range(0, 0)
        && let Some(step) = even_step(minutes)
    {
        return TimesForm::EveryMinutes(step);
    }
    if hours == all_hours
        && minutes == all_sixty
        && let Some(step) = even_step(seconds)
    {
        return TimesForm::EverySeconds(step);
    }
    if hours.len() * minutes.len() * seconds.len() <= 8 {
        let mut list = Vec::new();
        for hour in hours.iter() {
            for minute in minutes.iter() {
                list.extend(seconds.iter().map(|second| time(hour, minute, second)));
            }
        }
        return TimesForm::Times(list);
    }
    TimesForm::Fields {
        hours: (hours != all_hours).then_some(hours),
        minutes: (minutes != all_sixty).then_some(minutes),
        seconds: (seconds != NumberSet::range(0, 0)).then_some(seconds),
    }
}

/// The step of a set that divides an hour or minute evenly: 15 for 0, 15, 30, 45.
fn even_step(set: NumberSet) -> Option<u8> {
    let step = (60 / set.len().max(1)) as u8;
    let even = (0..60).step_by(usize::from(step)).collect::<NumberSet>() == set;
    (even && 60 % step == 0 && step < 60).then_some(step)
}

fn clock(time: &Time) -> String {
    match time.second() {
        0 => format!("{:02}:{:02}", time.hour(), time.minute()),
        second => format!("{:02}:{:02}:{second:02}", time.hour(), time.minute()),
    }
}

/// The members of a set, with three or more consecutive numbers combined into a range.
fn ranges(set: NumberSet) -> Vec<(u8, u8)> {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for number in set.iter() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            1 => vec![(first, first), (last, last)],
            _ => vec![(first, last)],
        })
        .collect()
}

fn english_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [start @ .., last] => format!("{} and {last}", start.join(", ")),
    }
}

fn english_set(set: NumberSet, name: impl Fn(u8) -> String) -> String {
    let items: Vec<String> = ranges(set)
        .into_iter()
        .map(|(first, last)| match first == last {
            true => name(first),
            false => format!("{} to {}", name(first), name(last)),
        })
        .collect();
    english_list(&items)
}

fn english(pattern: &Pattern) -> String {
    let number = |number: u8| number.to_string();
    let days = match pattern.days {
        Days::Every => None,
        Days::OfWeek(days) => Some(format!("on {}", english_set(days, english_weekday))),
        Days::OfMonth(days) => Some(format!("on {}", english_month_days(days))),
        Days::Either(of_month, of_week) => Some(format!(
            "on {} or on {}",
            english_month_days(of_month),
            english_set(of_week, english_weekday)
        )),
    };
    let (times, is_periodic) = match shortest_form(&pattern.times) {
        TimesForm::Times(times) => {
            let times: Vec<String> = times.iter().map(clock).collect();
            (format!("at {}", english_list(&times)), false)
        }
        TimesForm::EveryMinutes(step) => (english_period(i64::from(step) * 60), true),
        TimesForm::EverySeconds(step) => (english_period(i64::from(step)), true),
        TimesForm::Fields { hours, minutes, seconds } => {
            let mut parts = Vec::new();
            if let Some(seconds) = seconds {
                match seconds == NumberSet::range(0, 59) {
                    true => parts.push("every second".to_owned()),
                    false => parts.push(format!("second {}", english_set(seconds, number))),
                }
            }
            parts.push(match minutes {
                Some(minutes) => format!("minute {}", english_set(minutes, number)),
                None => "every minute".to_owned(),
            });
            parts.push(match hours {
                Some(hours) => format!("hour {}", english_set(hours, number)),
                None => "every hour".to_owned(),
            });
            (format!("at {}", parts.join(" of ")).replace("at every", "every"), true)
        }
    };
    let months = (pattern.months != ALL_MONTHS)
        .then(|| format!("in {}", english_set(pattern.months, english_month)));
    let every_day = (days.is_none() && !is_periodic).then(|| "every day".to_owned());
    let phrases = match is_periodic {
        true => [Some(times), days, months, None],
        false => [every_day, days, months, Some(times)],
    };
    phrases.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn english_weekday(day: u8) -> String {
    const NAMES: [&str; 7] =
        ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    NAMES[usize::from(day % 7)].to_owned()
}

fn english_month(month: u8) -> String {
    const NAMES: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    NAMES[usize::from(month - 1)].to_owned()
}

fn english_month_days(days: MonthDays) -> String {
    let mut parts = Vec::new();
    if days.numbers.len() > 0 {
        parts.push(format!("day {}", english_set(days.numbers, |day| day.to_string())));
    }
    if days.last {
        parts.push("the last day".to_owned());
    }
    format!("{} of the month", english_list(&parts))
}

fn japanese_set(set: NumberSet, name: impl Fn(u8) -> String) -> String {
    let items: Vec<String> = ranges(set)
        .into_iter()
        .map(|(first, last)| match first == last {
            true => name(first),
            false => format!("{}〜{}", name(first), name(last)),
        })
        .collect();
    items.join("・")
}

fn japanese(pattern: &Pattern) -> String {
    let months = (pattern.months != ALL_MONTHS)
        .then(|| japanese_set(pattern.months, |month| format!("{month}月")));
    let of_month = if months.is_some() { "" } else { "毎月" };
    let days = match pattern.days {
        Days::Every => None,
        Days::OfWeek(days) => Some(format!("毎週{}", japanese_set(days, japanese_weekday))),
        Days::OfMonth(days) => Some(format!("{of_month}{}", japanese_month_days(days))),
        Days::Either(days, of_week) => Some(format!(
            "{of_month}{}または毎週{}",
            japanese_month_days(days),
            japanese_set(of_week, japanese_weekday)
        )),
    };
    let (times, is_periodic) = match shortest_form(&pattern.times) {
        TimesForm::Times(times) => (times.iter().map(clock).collect::<Vec<_>>().join("・"), false),
        TimesForm::EveryMinutes(step) => (japanese_period(i64::from(step) * 60), true),
        TimesForm::EverySeconds(step) => (japanese_period(i64::from(step)), true),
        TimesForm::Fields { hours, minutes, seconds } => {
            // 毎時 and 毎分 are followed by a number without の: 毎時15分, 毎分30秒.
            let of_minute = if minutes.is_some() { "の" } else { "" };
            let hours = match hours {
                Some(hours) => format!("{}の", japanese_set(hours, |hour| format!("{hour}時"))),
                None if minutes.is_some() => "毎時".to_owned(),
                None => String::new(),
            };
            let minutes = minutes.map_or("毎分".to_owned(), |minutes| {
                japanese_set(minutes, |minute| format!("{minute}分"))
            });
            let seconds =
                seconds.map_or(String::new(), |seconds| match seconds == NumberSet::range(0, 59) {
                    true => "の毎秒".to_owned(),
                    false => {
                        let seconds = japanese_set(seconds, |second| format!("{second}秒"));
                        format!("{of_minute}{seconds}")
                    }
                });
            (format!("{hours}{minutes}{seconds}"), true)
        }
    };
    let every_day = (days.is_none() && !is_periodic).then(|| "毎日".to_owned());
    [months.map(|months| format!("{months}の")), days, every_day, Some(times)]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
        .replace("の ", "の")
}

fn japanese_weekday(day: u8) -> String {
    const NAMES: [&str; 7] = ["日曜", "月曜", "火曜", "水曜", "木曜", "金曜", "土曜"];
    NAMES[usize::from(day % 7)].to_owned()
}

fn japanese_month_days(days: MonthDays) -> String {
    let mut parts = Vec::new();
    if days.numbers.len() > 0 {
        parts.push(japanese_set(days.numbers, |day| format!("{day}日")));
    }
    if days.last {
        parts.push("末日".to_owned());
    }
    parts.join("・")
}
