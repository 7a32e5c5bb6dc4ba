//! Parses cron expressions: five fields, or six with seconds in front, or a nickname such as `@daily`.
//!
//! The crate croner parses the fields; [`super::next_fire`] computes the fires. croner accepts more than
//! tasuki supports (`L`, `W` and `#`, years, names in fields without names, empty list items). This
//! module rejects those first, with an error that names the field and the item.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use super::dst::DstRule;
use super::wall_clock_pattern::{Days, MonthDays, NumberSet, Pattern, Times};
use crate::InvalidInput;

/// Parses an expression. Returns its wall-clock times and its default rule for clock changes.
pub(super) fn parse(typed: &str) -> Result<(Pattern, DstRule), InvalidInput> {
    let expression = match typed.trim().strip_prefix('@') {
        Some(nickname) => expand_nickname(nickname).ok_or_else(|| {
            let names: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
            InvalidInput::with_value("cron", typed, format!("a nickname: @{}", names.join(", @")))
        })?,
        None => typed,
    };
    let fields = split_fields(expression)?;
    for (field, text) in &fields {
        check_field(field, text)?;
    }
    // Fields that pass the checks above are a subset of what croner accepts.
    let expression = fields.map(|(_, text)| text).join(" ");
    let cron = parse_with_croner(&expression).map_err(|_| find_invalid_item(&fields))?;
    let sets = &cron.pattern;
    let set = |values: Vec<u16>| values.into_iter().map(|value| value as u8).collect::<NumberSet>();

    let days_of_month = MonthDays { numbers: set(sets.days.values()), last: false };
    let days_of_week = set(sets.days_of_week.values());
    let days = match (sets.is_dom_wildcard(), sets.is_dow_wildcard()) {
        (true, true) => Days::Every,
        (false, true) => Days::OfMonth(days_of_month),
        (true, false) => Days::OfWeek(days_of_week),
        (false, false) => Days::Either(days_of_month, days_of_week),
    };
    let times = Times::Grid {
        hours: set(sets.hours.values()),
        minutes: set(sets.minutes.values()),
        seconds: set(sets.seconds.values()),
    };
    let [seconds, minutes, hours, ..] = fields;
    let is_periodic = [seconds, minutes, hours].iter().any(|(_, text)| text.starts_with('*'));
    let rule = if is_periodic { DstRule::PERIODIC } else { DstRule::TIME_OF_DAY };
    Ok((Pattern { times, days, months: set(sets.months.values()) }, rule))
}

/// The name and the valid values of a field.
struct Field {
    name: &'static str,
    expected: &'static str,
    names: &'static [&'static str],
}

const FIELDS: [Field; 6] = [
    Field { name: "second", expected: "0 to 59", names: &[] },
    Field { name: "minute", expected: "0 to 59", names: &[] },
    Field { name: "hour", expected: "0 to 23", names: &[] },
    Field { name: "day of month", expected: "1 to 31", names: &[] },
    Field { name: "month", expected: "1 to 12 or JAN to DEC", names: &MONTHS },
    Field { name: "day of week", expected: "0 to 7 or SUN to SAT", names: &WEEKDAYS },
];

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const NICKNAMES: [(&str, &str); 7] = [
    ("yearly", "0 0 1 1 *"),
    ("annually", "0 0 1 1 *"),
    ("monthly", "0 0 1 * *"),
    ("weekly", "0 0 * * 0"),
    ("daily", "0 0 * * *"),
    ("midnight", "0 0 * * *"),
    ("hourly", "0 * * * *"),
];

fn expand_nickname(typed: &str) -> Option<&'static str> {
    let found = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(typed));
    found.map(|(_, expression)| *expression)
}

type Fields<'a> = [(&'static Field, &'a str); 6];

fn split_fields(expression: &str) -> Result<Fields<'_>, InvalidInput> {
    let texts: Vec<&str> = expression.split_whitespace().collect();
    let texts: [&str; 6] = match *texts.as_slice() {
        [minute, hour, day, month, weekday] => ["0", minute, hour, day, month, weekday],
        [second, minute, hour, day, month, weekday] => [second, minute, hour, day, month, weekday],
        _ => {
            let found = match texts.len() {
                0 => "nothing".to_owned(),
                1 => "1 field".to_owned(),
                count => format!("{count} fields"),
            };
            let expected = "5 fields (minute, hour, day of month, month, day of week), 6 with seconds in front, or a nickname such as @daily";
            return Err(InvalidInput::with_described_value("cron", found, expected));
        }
    };
    Ok(std::array::from_fn(|index| (&FIELDS[index], texts[index])))
}

/// Checks the form of every item of a field: letters only in valid names, no empty items.
fn check_field(field: &Field, text: &str) -> Result<(), InvalidInput> {
    for item in text.split(',') {
        let unknown_name = letter_groups(item)
            .find(|letters| !field.names.iter().any(|name| name.eq_ignore_ascii_case(letters)));
        if field.name.starts_with("day") && (item.contains('#') || is_modifier(unknown_name)) {
            let expected = "no L, W or #, which tasuki does not support; for the last day of a month use monthly_at with `last`";
            return Err(InvalidInput::with_value(field.name, item, expected));
        }
        let star_among_others = item == "*" && text != "*";
        let plain = item.chars().all(|c| c.is_ascii_alphanumeric() || "*-/".contains(c));
        if item.is_empty() || unknown_name.is_some() || star_among_others || !plain {
            return Err(invalid_item(field, item));
        }
    }
    Ok(())
}

/// Whether the letters are the modifier `L` or `W` of other cron implementations.
fn is_modifier(letters: Option<&str>) -> bool {
    letters.is_some_and(|letters| letters.chars().all(|letter| "LWlw".contains(letter)))
}

/// The groups of consecutive letters in an item.
fn letter_groups(item: &str) -> impl Iterator<Item = &str> {
    item.split(|c: char| !c.is_alphabetic()).filter(|letters| !letters.is_empty())
}

fn invalid_item(field: &Field, item: &str) -> InvalidInput {
    let expected = format!(
        "{}, an ascending range a-b, a step */n or a-b/n, a list of these, or * alone",
        field.expected
    );
    InvalidInput::with_value(field.name, item, expected)
}

fn parse_with_croner(expression: &str) -> Result<Cron, croner::errors::CronError> {
    let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).build();
    parser.parse(expression)
}

/// Finds the item that croner rejects, by parsing each item alone.
fn find_invalid_item(fields: &Fields<'_>) -> InvalidInput {
    for (index, (field, text)) in fields.iter().enumerate() {
        for item in text.split(',') {
            let mut single = ["*"; 6];
            single[index] = item;
            if parse_with_croner(&single.join(" ")).is_err() {
                return invalid_item(field, item);
            }
        }
    }
    // Each item alone is valid, but the whole expression is not. No such expression is known.
    let whole: Vec<&str> = fields.iter().map(|(_, text)| *text).collect();
    InvalidInput::with_value("cron", &whole.join(" "), "a valid cron expression")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(typed: &str) -> String {
        parse(typed).unwrap_err().to_string()
    }

    #[test]
    fn fields_may_contain_names_lists_ranges_and_steps() {
        let (pattern, _) = parse("30 */15 1-5,22 1,15 jan-mar,DEC mon-Fri").unwrap();
        let Times::Grid { hours, minutes, seconds } = pattern.times else { panic!("a grid") };
        let list = |set: NumberSet| set.iter().collect::<Vec<_>>();
        assert_eq!(list(seconds), [30]);
        assert_eq!(list(minutes), [0, 15, 30, 45]);
        assert_eq!(list(hours), [1, 2, 3, 4, 5, 22]);
        assert_eq!(list(pattern.months), [1, 2, 3, 12]);
        let Days::Either(of_month, of_week) = pattern.days else { panic!("both day fields") };
        assert_eq!((list(of_month.numbers), list(of_week)), (vec![1, 15], vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn sunday_is_0_and_7() {
        for typed in ["0 0 * * 0", "0 0 * * 7", "0 0 * * sun"] {
            assert_eq!(parse(typed).unwrap().0.days, Days::OfWeek([0].into_iter().collect()));
        }
    }

    #[test]
    fn nicknames_stand_for_expressions() {
        for (nickname, expression) in NICKNAMES {
            assert_eq!(parse(&format!("@{nickname}")), parse(expression), "{nickname}");
        }
        assert_eq!(parse(" @Daily "), parse("0 0 * * *"));
        assert!(
            error("@reboot").starts_with("cron: found \"@reboot\", expected a nickname: @yearly")
        );
    }

    #[test]
    fn an_expression_with_a_leading_star_is_periodic() {
        for (typed, rule) in [
            ("30 2 * * *", DstRule::TIME_OF_DAY),
            ("0,30 2-4 * * *", DstRule::TIME_OF_DAY),
            ("*/5 2 * * *", DstRule::PERIODIC),
            ("30 * * * *", DstRule::PERIODIC),
            ("* 30 2 * * *", DstRule::PERIODIC),
        ] {
            assert_eq!(parse(typed).unwrap().1, rule, "{typed}");
        }
    }

    #[test]
    fn errors_name_the_field_the_item_and_the_valid_values() {
        let table = [
            ("* 25 * * *", "hour: found \"25\", expected 0 to 23, an ascending range"),
            ("60 * * * *", "minute: found \"60\", expected 0 to 59, an ascending range"),
            ("1,2,x * * * *", "minute: found \"x\", expected 0 to 59"),
            ("1,,2 * * * *", "minute: found nothing, expected 0 to 59"),
            ("jan * * * *", "minute: found \"jan\", expected 0 to 59"),
            ("* * * mon *", "month: found \"mon\", expected 1 to 12 or JAN to DEC"),
            ("* * 0 * *", "day of month: found \"0\", expected 1 to 31"),
            ("* * 31-1 * *", "day of month: found \"31-1\", expected 1 to 31"),
            ("* * * 13 *", "month: found \"13\", expected 1 to 12"),
            ("* * * * 8", "day of week: found \"8\", expected 0 to 7 or SUN to SAT"),
            ("*/0 * * * *", "minute: found \"*/0\""),
            ("*,5 * * * *", "minute: found \"*\", expected 0 to 59"),
            (
                "* * * * FRI-MON",
                "day of week: found \"FRI-MON\", expected 0 to 7 or SUN to SAT, an ascending range",
            ),
            ("5/15 * * * *", "minute: found \"5/15\", expected 0 to 59"),
            ("*/99999999 * * * *", "minute: found \"*/99999999\""),
            ("+5 * * * *", "minute: found \"+5\""),
            ("* * * * +1", "day of week: found \"+1\""),
            ("* * ? * *", "day of month: found \"?\""),
            ("* * L * *", "day of month: found \"L\", expected no L, W or #"),
            ("* * 15W * *", "day of month: found \"15W\", expected no L, W or #"),
            ("* * * * 5#2", "day of week: found \"5#2\", expected no L, W or #"),
            ("* * * * 5L", "day of week: found \"5L\", expected no L, W or #"),
            ("mon5 * * * *", "minute: found \"mon5\""),
            ("* * * * MON5", "day of week: found \"MON5\""),
            ("* * *", "cron: found 3 fields, expected 5 fields"),
            ("0 0 0 1 1 * 2030", "cron: found 7 fields, expected 5 fields"),
            ("日 * * * *", "minute: found \"日\""),
            ("", "cron: found nothing, expected 5 fields"),
        ];
        for (typed, expected) in table {
            let message = error(typed);
            assert!(message.starts_with(expected), "{typed:?}: {message}");
        }
    }

    #[test]
    fn a_star_in_the_month_field_means_all_months() {
        assert_eq!(
            parse("* * * * *").unwrap().0.months,
            super::super::wall_clock_pattern::ALL_MONTHS
        );
    }
}
