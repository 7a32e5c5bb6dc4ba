//! Random schedules, each as text and as a model of its times. tasuki gets the text, the oracle gets the
//! model, so the test checks both the parser and the search for the next fire.

use jiff::civil::DateTime;
use proptest::prelude::*;
use tasuki_core::schedule::ScheduleKind;

/// A schedule as text, with the times that it matches.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) kind: ScheduleKind,
    pub(crate) value: String,
    /// Whether it fires every few minutes or hours and not at times of day.
    pub(crate) is_periodic: bool,
    /// Times of day; `None`: the fields apply.
    times: Option<Vec<(i8, i8, i8)>>,
    fields: [Option<Vec<i8>>; 3],
    days_of_month: Option<Vec<i8>>,
    last_day: bool,
    days_of_week: Option<Vec<i8>>,
    months: Option<Vec<i8>>,
}

impl Model {
    fn new(kind: ScheduleKind, value: String) -> Self {
        Self {
            kind,
            value,
            is_periodic: false,
            times: None,
            fields: [Some(vec![0]), None, None],
            days_of_month: None,
            last_day: false,
            days_of_week: None,
            months: None,
        }
    }

    /// Whether the schedule matches this wall-clock time.
    pub(crate) fn matches(&self, wall: DateTime) -> bool {
        let any =
            |list: &Option<Vec<i8>>, number| list.as_ref().is_none_or(|l| l.contains(&number));
        let of_month = any(&self.days_of_month, wall.day())
            || self.last_day && wall.day() == wall.days_in_month();
        let of_week = any(&self.days_of_week, wall.weekday().to_sunday_zero_offset());
        let day = match (&self.days_of_month, &self.days_of_week) {
            (Some(_), Some(_)) => of_month || of_week,
            _ => of_month && of_week,
        };
        let time = match &self.times {
            Some(times) => times.contains(&(wall.hour(), wall.minute(), wall.second())),
            None => {
                any(&self.fields[0], wall.second())
                    && any(&self.fields[1], wall.minute())
                    && any(&self.fields[2], wall.hour())
            }
        };
        day && time && any(&self.months, wall.month())
    }
}

/// A field of a cron expression: its text, and the numbers that it matches (`None`: all).
#[derive(Debug, Clone)]
struct Field {
    text: String,
    members: Option<Vec<i8>>,
}

impl Field {
    fn starts_with_star(&self) -> bool {
        self.text.starts_with('*')
    }
}

fn star() -> Field {
    Field { text: "*".to_owned(), members: None }
}

fn field(first: i8, last: i8) -> impl Strategy<Value = Field> {
    field_within(first, last, last)
}

/// A field with numbers from a part of its range; a star still means the whole range.
fn field_within(first: i8, last: i8, top: i8) -> impl Strategy<Value = Field> {
    let single = (first..=last).prop_map(|n| (n.to_string(), vec![n]));
    // At least two numbers: croniter interprets 4-4/6 as a range around the whole clock.
    let bounds = (first..last, first..last).prop_map(|(a, b)| (a.min(b), a.max(b) + 1));
    let range = bounds.clone().prop_map(|(a, b)| (format!("{a}-{b}"), (a..=b).collect()));
    let stepped = (bounds, 1..=15usize)
        .prop_map(|((a, b), step)| (format!("{a}-{b}/{step}"), (a..=b).step_by(step).collect()));
    let star_step = (2..=20usize)
        .prop_map(move |step| (format!("*/{step}"), (first..=top).step_by(step).collect()));
    let item = prop_oneof![4 => single, 2 => range, 1 => stepped, 2 => star_step];
    prop::collection::vec(item, 1..=3).prop_map(|items: Vec<(String, Vec<i8>)>| Field {
        text: items.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(","),
        members: Some(items.into_iter().flat_map(|(_, members)| members).collect()),
    })
}

/// Mostly `*`, so that most schedules fire within a few days.
fn mostly_star(first: i8, last: i8) -> impl Strategy<Value = Field> {
    prop_oneof![5 => Just(star()), 2 => field(first, last)]
}

/// Mostly hours near the usual clock changes.
fn hour() -> impl Strategy<Value = Field> {
    prop_oneof![3 => field_within(0, 4, 23), 1 => field(0, 23), 2 => Just(star())]
}

fn weekday() -> impl Strategy<Value = Field> {
    let names = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
    let named = (0..7usize).prop_map(move |day| Field {
        text: names[day].to_lowercase(),
        members: Some(vec![day as i8]),
    });
    let numbered = mostly_star(0, 7).prop_map(|field| Field {
        members: field.members.map(|days| days.into_iter().map(|day| day % 7).collect()),
        ..field
    });
    prop_oneof![5 => numbered, 1 => named]
}

fn cron(second: Option<Field>, rest: [Field; 5]) -> Model {
    let text: Vec<&str> = second.iter().chain(&rest).map(|field| field.text.as_str()).collect();
    let mut model = Model::new(ScheduleKind::Cron, text.join(" "));
    let [minute, hour, day, month, weekday] = rest;
    model.is_periodic = [&minute, &hour].iter().any(|field| field.starts_with_star())
        || second.as_ref().is_some_and(Field::starts_with_star);
    let second = second.map_or(Some(vec![0]), |field| field.members);
    model.fields = [second, minute.members, hour.members];
    model.days_of_month = day.members;
    model.days_of_week = weekday.members;
    model.months = month.members;
    model
}

fn cron_fields() -> impl Strategy<Value = [Field; 5]> {
    let minute = prop_oneof![3 => field(0, 59), 1 => Just(star())];
    (minute, hour(), mostly_star(1, 31), mostly_star(1, 12), weekday())
        .prop_map(|(minute, hour, day, month, weekday)| [minute, hour, day, month, weekday])
}

fn times() -> impl Strategy<Value = Vec<(i8, i8, i8)>> {
    prop::collection::vec((prop_oneof![3 => 0..=4i8, 1 => 0..=23i8], 0..=59i8, Just(0i8)), 1..=3)
}

fn times_text(times: &[(i8, i8, i8)]) -> String {
    let text = |(hour, minute, _): &(i8, i8, i8)| format!("{hour:02}:{minute:02}");
    times.iter().map(text).collect::<Vec<_>>().join(",")
}

fn hourly() -> impl Strategy<Value = Model> {
    prop::collection::vec(0..=59i8, 1..=4).prop_map(|minutes| {
        let text: Vec<String> = minutes.iter().map(ToString::to_string).collect();
        let mut model = Model::new(ScheduleKind::HourlyAt, text.join(","));
        model.is_periodic = true;
        model.fields[1] = Some(minutes);
        model
    })
}

fn at_times() -> impl Strategy<Value = Model> {
    let kinds = (0..4u8, times(), 0..=6i8, 1..=31i8, any::<bool>());
    kinds.prop_map(|(kind, times, weekday, day, last)| {
        let text = times_text(&times);
        let mut model = match kind {
            0 => Model::new(ScheduleKind::DailyAt, text),
            1 => {
                let mut model = Model::new(ScheduleKind::WeekdaysAt, text);
                model.days_of_week = Some(vec![1, 2, 3, 4, 5]);
                model
            }
            2 => {
                let names = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
                let value = format!("{} {text}", names[weekday as usize]);
                let mut model = Model::new(ScheduleKind::WeeklyAt, value);
                model.days_of_week = Some(vec![weekday]);
                model
            }
            _ => {
                let value =
                    if last { format!("{day},last {text}") } else { format!("{day} {text}") };
                let mut model = Model::new(ScheduleKind::MonthlyAt, value);
                model.days_of_month = Some(vec![day]);
                model.last_day = last;
                model
            }
        };
        model.times = Some(times);
        model
    })
}

/// Schedules that fire on whole minutes.
pub(crate) fn minute_schedules() -> impl Strategy<Value = Model> {
    prop_oneof![
        5 => cron_fields().prop_map(|fields| cron(None, fields)),
        2 => at_times(),
        1 => hourly(),
    ]
}

/// Cron expressions with a seconds field.
pub(crate) fn second_schedules() -> impl Strategy<Value = Model> {
    let second = prop_oneof![3 => field(0, 59), 1 => Just(star())];
    (second, cron_fields()).prop_map(|(second, fields)| cron(Some(second), fields))
}
