//! The next fire against brute force.
//!
//! The oracle knows no calendar arithmetic: it walks real time step by step, reads the wall at each
//! step, and notices when the wall jumps forward or shows a time again. What it says a schedule does
//! around a change of the clocks, the engine must say too, slot for slot.

use std::sync::LazyLock;

use jiff::civil::{DateTime, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tasuki_core::Schedule;
use tasuki_core::schedule::{DstChoice, FoldRule, GapRule, Slot};

use crate::model::{self, Model};

/// Six zones with every habit of changing clocks, and two that once did something wild.
const ZONES: [&str; 8] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe", // by half an hour
    "America/Santiago",    // at midnight, in the southern summer
    "Asia/Beirut",         // at midnight
    "Asia/Tokyo",          // never
    "Antarctica/Troll",    // by two hours
    "Pacific/Apia",        // skipped 30 December 2011
];

/// A stretch of real time and what the wall showed.
struct Window {
    zone: &'static str,
    step: i64,
    wall: Vec<(Timestamp, DateTime)>,
}

fn windows(step: i64, reach: SignedDuration) -> Vec<Window> {
    let mut windows = Vec::new();
    for zone in ZONES {
        let rules = TimeZone::get(zone).unwrap();
        for centre in centres(&rules) {
            let (begin, end) = (centre - reach, centre + reach);
            let seconds = (begin.as_second()..end.as_second()).step_by(step as usize);
            let read = |second| {
                let at = Timestamp::from_second(second).unwrap();
                (at, rules.to_datetime(at))
            };
            windows.push(Window { zone, step, wall: seconds.map(read).collect() });
        }
    }
    windows
}

/// Changes of the clocks, and a leap day and a turn of the year for good measure.
fn centres(rules: &TimeZone) -> Vec<Timestamp> {
    let noon = |date: jiff::civil::Date| rules.to_timestamp(date.at(12, 0, 0, 0)).unwrap();
    let (start, wild) = (noon(date(2025, 1, 1)), noon(date(2011, 12, 1)));
    let changes =
        rules.following(start).take_while(|change| change.timestamp() < noon(date(2028, 1, 1)));
    let wild_changes =
        rules.following(wild).take_while(|change| change.timestamp() < noon(date(2012, 1, 15)));
    let mut centres: Vec<Timestamp> =
        changes.chain(wild_changes).map(|change| change.timestamp()).collect();
    centres.extend([noon(date(2028, 2, 29)), noon(date(2026, 12, 31))]);
    centres
}

#[derive(Debug, PartialEq)]
struct Seen {
    at: Timestamp,
    slot: Slot,
}

/// What a schedule does in a window, found by looking at every step.
fn walk(window: &Window, model: &Model, gap: GapRule, fold: FoldRule) -> Vec<Seen> {
    let step = SignedDuration::from_secs(window.step);
    let mut seen = Vec::new();
    let mut expected = window.wall[0].1;
    let mut newest: Option<DateTime> = None;
    for &(at, wall) in &window.wall {
        if expected < wall && gap == GapRule::Shift && !model.names(wall) {
            let lost = std::iter::successors(Some(expected), |time| Some(*time + step));
            let lost = lost.take_while(|time| *time < wall).find(|time| model.names(*time));
            if let Some(time) = lost {
                seen.push(Seen { at, slot: Slot::Wall { time, pass: 1 } });
            }
        }
        let repeated = newest.is_some_and(|newest| wall <= newest);
        if model.names(wall) && !(repeated && fold == FoldRule::Once) {
            let pass = if repeated { 2 } else { 1 };
            seen.push(Seen { at, slot: Slot::Wall { time: wall, pass } });
        }
        newest = newest.max(Some(wall));
        expected = wall + step;
    }
    seen
}

fn check(
    window: &Window,
    start: usize,
    model: &Model,
    choice: DstChoice,
) -> Result<(), TestCaseError> {
    let schedule = Schedule::parse(model.kind, &model.value, window.zone, choice)
        .map_err(|refused| TestCaseError::fail(format!("{}: {refused}", model.value)))?;
    let (gap, fold) = match model.is_rhythm {
        true => (GapRule::Skip, FoldRule::Twice),
        false => (GapRule::Shift, FoldRule::Once),
    };
    let (gap, fold) = (choice.gap.unwrap_or(gap), choice.fold.unwrap_or(fold));

    const COMPARED: usize = 40;
    let start = window.wall[start].0;
    let end = window.wall.last().unwrap().0;
    let expected: Vec<Seen> = walk(window, model, gap, fold)
        .into_iter()
        .filter(|seen| seen.at > start)
        .take(COMPARED)
        .collect();
    let found: Vec<Seen> = schedule
        .fires_after(start)
        .take_while(|fire| fire.at <= end)
        .take(COMPARED)
        .map(|fire| Seen { at: fire.at, slot: fire.slot })
        .collect();
    prop_assert_eq!(found, expected, "{} after {}, {} {}", schedule, start, gap, fold);
    Ok(())
}

fn choice() -> impl Strategy<Value = DstChoice> {
    let gap = prop_oneof![2 => Just(None), 1 => Just(Some(GapRule::Skip)), 1 => Just(Some(GapRule::Shift))];
    let fold = prop_oneof![2 => Just(None), 1 => Just(Some(FoldRule::Once)), 1 => Just(Some(FoldRule::Twice))];
    (gap, fold).prop_map(|(gap, fold)| DstChoice { gap, fold })
}

fn cases(cases: u32) -> ProptestConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/oracle.regressions");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        ..ProptestConfig::default()
    }
}

static BY_THE_MINUTE: LazyLock<Vec<Window>> =
    LazyLock::new(|| windows(60, SignedDuration::from_hours(30)));
static BY_THE_SECOND: LazyLock<Vec<Window>> =
    LazyLock::new(|| windows(1, SignedDuration::from_hours(3)));

/// Somewhere in a window, but late enough that a repeated hour is seen from its beginning.
fn start(window: &Window, share: f64) -> usize {
    let length = window.wall.len() as f64;
    (length * (0.1 + 0.8 * share)) as usize
}

proptest! {
    #![proptest_config(cases(20_000))]

    #[test]
    fn the_next_fire_is_what_brute_force_finds(
        model in model::by_the_minute(), choice in choice(), which: prop::sample::Index, share in 0.0..1.0,
    ) {
        let window = which.get(&BY_THE_MINUTE);
        check(window, start(window, share), &model, choice)?;
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn also_to_the_second(
        model in model::by_the_second(), choice in choice(), which: prop::sample::Index, share in 0.0..1.0,
    ) {
        let window = which.get(&BY_THE_SECOND);
        check(window, start(window, share), &model, choice)?;
    }
}

/// The cases are worth something only if most of them fire and many of them near a change.
#[test]
fn the_cases_are_not_empty() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut firing, mut special) = (0, 0);
    for round in 0..500 {
        let model = model::by_the_minute().new_tree(&mut runner).unwrap().current();
        let window = &BY_THE_MINUTE[round * 7 % BY_THE_MINUTE.len()];
        let all = walk(window, &model, GapRule::Shift, FoldRule::Twice);
        let least = walk(window, &model, GapRule::Skip, FoldRule::Once);
        firing += usize::from(!all.is_empty());
        special += usize::from(all.len() != least.len());
    }
    assert!(firing > 300, "{firing} of 500 fire at all");
    assert!(special > 60, "{special} of 500 touch a gap or a fold");
}
