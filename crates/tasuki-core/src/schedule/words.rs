//! Schedules in words, English and Japanese.
//!
//! Written from what the schedule means, not from what was typed, so that a cron expression and a
//! `daily_at` that do the same thing say the same.

use super::Rhythm;
use super::pattern::{ALL_MONTHS, Days, MonthDays, Pattern, Set, Times, time};
use crate::Language;
use jiff::civil::Time;

pub(super) fn of(rhythm: &Rhythm, language: Language) -> String {
    match (rhythm, language) {
        (Rhythm::Seconds(seconds), Language::English) => english_period(*seconds),
        (Rhythm::Seconds(seconds), Language::Japanese) => japanese_period(*seconds),
        (Rhythm::Wall(pattern), Language::English) => english(pattern),
        (Rhythm::Wall(pattern), Language::Japanese) => japanese(pattern),
    }
}

/// The largest unit that divides a period: 90 s stay seconds, 3,600 s are one hour.
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

/// How the times of a day are best told.
enum Told {
    /// Few enough to list.
    Times(Vec<Time>),
    /// Every so many minutes or seconds, all day.
    EveryMinutes(u8),
    EverySeconds(u8),
    /// Field by field.
    Fields {
        hours: Option<Set>,
        minutes: Option<Set>,
        seconds: Option<Set>,
    },
}

fn tell(times: &Times) -> Told {
    let (hours, minutes, seconds) = match times {
        Times::List(times) => return Told::Times(times.clone()),
        Times::Grid { hours, minutes, seconds } => (*hours, *minutes, *seconds),
    };
    let (all_hours, all_sixty) = (Set::range(0, 23), Set::range(0, 59));
    if hours == all_hours
        && seconds == Set::range(0, 0)
        && let Some(step) = even_step(minutes)
    {
        return Told::EveryMinutes(step);
    }
    if hours == all_hours
        && minutes == all_sixty
        && let Some(step) = even_step(seconds)
    {
        return Told::EverySeconds(step);
    }
    if hours.len() * minutes.len() * seconds.len() <= 8 {
        let mut list = Vec::new();
        for hour in hours.iter() {
            for minute in minutes.iter() {
                list.extend(seconds.iter().map(|second| time(hour, minute, second)));
            }
        }
        return Told::Times(list);
    }
    Told::Fields {
        hours: (hours != all_hours).then_some(hours),
        minutes: (minutes != all_sixty).then_some(minutes),
        seconds: (seconds != Set::range(0, 0)).then_some(seconds),
    }
}

/// The step of a set that goes round the clock evenly: 0, 15, 30, 45 has 15.
fn even_step(set: Set) -> Option<u8> {
    let step = (60 / set.len().max(1)) as u8;
    let even = (0..60).step_by(usize::from(step)).collect::<Set>() == set;
    (even && 60 % step == 0 && step < 60).then_some(step)
}

fn clock(time: &Time) -> String {
    match time.second() {
        0 => format!("{:02}:{:02}", time.hour(), time.minute()),
        second => format!("{:02}:{:02}:{second:02}", time.hour(), time.minute()),
    }
}

/// Members with runs of three or more told as ranges.
fn runs(set: Set) -> Vec<(u8, u8)> {
    let mut runs: Vec<(u8, u8)> = Vec::new();
    for number in set.iter() {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs.into_iter()
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

fn english_set(set: Set, name: impl Fn(u8) -> String) -> String {
    let items: Vec<String> = runs(set)
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
    let (times, often) = match tell(&pattern.times) {
        Told::Times(times) => {
            let times: Vec<String> = times.iter().map(clock).collect();
            (format!("at {}", english_list(&times)), false)
        }
        Told::EveryMinutes(step) => (english_period(i64::from(step) * 60), true),
        Told::EverySeconds(step) => (english_period(i64::from(step)), true),
        Told::Fields { hours, minutes, seconds } => {
            let mut parts = Vec::new();
            if let Some(seconds) = seconds {
                match seconds == Set::range(0, 59) {
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
    let every_day = (days.is_none() && !often).then(|| "every day".to_owned());
    let phrases = match often {
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

fn japanese_set(set: Set, name: impl Fn(u8) -> String) -> String {
    let items: Vec<String> = runs(set)
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
    let (times, often) = match tell(&pattern.times) {
        Told::Times(times) => (times.iter().map(clock).collect::<Vec<_>>().join("・"), false),
        Told::EveryMinutes(step) => (japanese_period(i64::from(step) * 60), true),
        Told::EverySeconds(step) => (japanese_period(i64::from(step)), true),
        Told::Fields { hours, minutes, seconds } => {
            let hours = hours.map_or("毎時".to_owned(), |hours| {
                japanese_set(hours, |hour| format!("{hour}時"))
            });
            let minutes = minutes.map_or("毎分".to_owned(), |minutes| {
                japanese_set(minutes, |minute| format!("{minute}分"))
            });
            let seconds =
                seconds.map_or(String::new(), |seconds| match seconds == Set::range(0, 59) {
                    true => "の毎秒".to_owned(),
                    false => format!("の{}", japanese_set(seconds, |second| format!("{second}秒"))),
                });
            (format!("{hours}の{minutes}{seconds}"), true)
        }
    };
    let every_day = (days.is_none() && !often).then(|| "毎日".to_owned());
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
