//! Compares the next fires with a brute-force search (the oracle).
//!
//! The oracle uses no calendar arithmetic. It steps through elapsed time, reads the local time at each
//! step, and detects when the local time jumps forward or repeats. The fires of a schedule around clock
//! changes must be the same, slot by slot.

use std::sync::LazyLock;

use jiff::civil::{DateTime, date};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tasuki_core::Schedule;
use tasuki_core::schedule::{DstRuleOverrides, FoldRule, GapRule, ScheduleSlotKey};

use crate::model::{self, Model};

/// Zones with all kinds of clock changes.
const ZONES: [&str; 8] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe", // shifts by half an hour
    "America/Santiago",    // shifts at midnight, in the southern summer
    "Asia/Beirut",         // shifts at midnight
    "Asia/Tokyo",          // no clock changes
    "Antarctica/Troll",    // shifts by two hours
    "Pacific/Apia",        // skipped 30 December 2011
];

/// A period of elapsed time with the local time at each step.
struct Window {
    zone: &'static str,
    step: i64,
    wall: Vec<(Timestamp, DateTime)>,
}

fn windows(step: i64, reach: SignedDuration) -> Vec<Window> {
    let mut windows = Vec::new();
    for zone in ZONES {
        let rules = TimeZone::get(zone).unwrap();
        for centre in find_centres(&rules) {
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

/// Clock changes, and also a leap day and an end of a year.
fn find_centres(rules: &TimeZone) -> Vec<Timestamp> {
    let noon = |date: jiff::civil::Date| rules.to_timestamp(date.at(12, 0, 0, 0)).unwrap();
    let (start, samoa) = (noon(date(2025, 1, 1)), noon(date(2011, 12, 1)));
    let changes =
        rules.following(start).take_while(|change| change.timestamp() < noon(date(2028, 1, 1)));
    let samoa_changes =
        rules.following(samoa).take_while(|change| change.timestamp() < noon(date(2012, 1, 15)));
    let mut centres: Vec<Timestamp> =
        changes.chain(samoa_changes).map(|change| change.timestamp()).collect();
    centres.extend([noon(date(2028, 2, 29)), noon(date(2026, 12, 31))]);
    centres
}

#[derive(Debug, PartialEq)]
struct OracleFire {
    at: Timestamp,
    slot: ScheduleSlotKey,
}

/// The fires of a schedule in a window, found by checking every step.
fn oracle_fires(window: &Window, model: &Model, gap: GapRule, fold: FoldRule) -> Vec<OracleFire> {
    let step = SignedDuration::from_secs(window.step);
    let mut fires = Vec::new();
    let mut expected = window.wall[0].1;
    let mut newest: Option<DateTime> = None;
    for &(at, wall) in &window.wall {
        if expected < wall && gap == GapRule::Shift && !model.matches(wall) {
            let lost = std::iter::successors(Some(expected), |time| Some(*time + step));
            let lost = lost.take_while(|time| *time < wall).find(|time| model.matches(*time));
            if let Some(time) = lost {
                fires.push(OracleFire { at, slot: ScheduleSlotKey::Wall { time, pass: 1 } });
            }
        }
        let repeated = newest.is_some_and(|newest| wall <= newest);
        if model.matches(wall) && !(repeated && fold == FoldRule::Once) {
            let pass = if repeated { 2 } else { 1 };
            fires.push(OracleFire { at, slot: ScheduleSlotKey::Wall { time: wall, pass } });
        }
        newest = newest.max(Some(wall));
        expected = wall + step;
    }
    fires
}

fn check(
    window: &Window,
    start: usize,
    model: &Model,
    choice: DstRuleOverrides,
) -> Result<(), TestCaseError> {
    let schedule = Schedule::parse(model.kind, &model.value, window.zone, choice)
        .map_err(|error| TestCaseError::fail(format!("{}: {error}", model.value)))?;
    let (gap, fold) = match model.is_periodic {
        true => (GapRule::Skip, FoldRule::Twice),
        false => (GapRule::Shift, FoldRule::Once),
    };
    let (gap, fold) = (choice.gap.unwrap_or(gap), choice.fold.unwrap_or(fold));

    const MAX_COMPARED: usize = 40;
    let start = window.wall[start].0;
    let end = window.wall.last().unwrap().0;
    let expected: Vec<OracleFire> = oracle_fires(window, model, gap, fold)
        .into_iter()
        .filter(|fire| fire.at > start)
        .take(MAX_COMPARED)
        .collect();
    let found: Vec<OracleFire> = schedule
        .iter_fires_after(start)
        .take_while(|fire| fire.at <= end)
        .take(MAX_COMPARED)
        .map(|fire| OracleFire { at: fire.at, slot: fire.slot })
        .collect();
    prop_assert_eq!(found, expected, "{} after {}, {} {}", schedule, start, gap, fold);
    Ok(())
}

fn choice() -> impl Strategy<Value = DstRuleOverrides> {
    let gap = prop_oneof![2 => Just(None), 1 => Just(Some(GapRule::Skip)), 1 => Just(Some(GapRule::Shift))];
    let fold = prop_oneof![2 => Just(None), 1 => Just(Some(FoldRule::Once)), 1 => Just(Some(FoldRule::Twice))];
    (gap, fold).prop_map(|(gap, fold)| DstRuleOverrides { gap, fold })
}

fn cases(cases: u32) -> ProptestConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/oracle.regressions");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        ..ProptestConfig::default()
    }
}

static MINUTE_WINDOWS: LazyLock<Vec<Window>> =
    LazyLock::new(|| windows(60, SignedDuration::from_hours(30)));
static SECOND_WINDOWS: LazyLock<Vec<Window>> =
    LazyLock::new(|| windows(1, SignedDuration::from_hours(3)));

/// A start within a window, late enough that a repeated hour is seen from its beginning.
fn start(window: &Window, share: f64) -> usize {
    let length = window.wall.len() as f64;
    (length * (0.1 + 0.8 * share)) as usize
}

proptest! {
    #![proptest_config(cases(20_000))]

    #[test]
    fn fires_match_the_oracle_by_minute(
        model in model::minute_schedules(), choice in choice(), index: prop::sample::Index, share in 0.0..1.0,
    ) {
        let window = index.get(&MINUTE_WINDOWS);
        check(window, start(window, share), &model, choice)?;
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn fires_match_the_oracle_by_second(
        model in model::second_schedules(), choice in choice(), index: prop::sample::Index, share in 0.0..1.0,
    ) {
        let window = index.get(&SECOND_WINDOWS);
        check(window, start(window, share), &model, choice)?;
    }
}

/// The comparison is only useful if most cases fire, and many of them near a clock change.
#[test]
fn most_random_cases_fire_and_many_near_a_clock_change() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut firing, mut special) = (0, 0);
    for round in 0..500 {
        let model = model::minute_schedules().new_tree(&mut runner).unwrap().current();
        let window = &MINUTE_WINDOWS[round * 7 % MINUTE_WINDOWS.len()];
        let all = oracle_fires(window, &model, GapRule::Shift, FoldRule::Twice);
        let least = oracle_fires(window, &model, GapRule::Skip, FoldRule::Once);
        firing += usize::from(!all.is_empty());
        special += usize::from(all.len() != least.len());
    }
    assert!(firing > 300, "only {firing} of 500 cases fire");
    assert!(special > 60, "only {special} of 500 cases touch a gap or a fold");
}
