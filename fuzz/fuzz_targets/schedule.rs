//! Fuzz target: parses arbitrary input as a schedule. The parser must return a readable error or a schedule whose fires
//! are in order, and neither may take long.
#![no_main]

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use tasuki_core::Language;
use tasuki_core::schedule::{
    DstRuleOverrides, FoldRule, GapRule, Schedule, ScheduleKind, ScheduleSlotKey,
};

const ZONES: [&str; 6] = [
    "UTC",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Beirut",
    "Pacific/Apia",
];

fuzz_target!(|data: &[u8]| {
    let [kind, zone, dst, a, b, c, value @ ..] = data else { return };
    let Ok(value) = std::str::from_utf8(value) else { return };
    let kind = ScheduleKind::ALL[usize::from(*kind) % ScheduleKind::ALL.len()];
    // For 255 the value is also used as the time zone name.
    let zone = match zone {
        255 => value,
        index => ZONES[usize::from(*index) % ZONES.len()],
    };
    let dst = DstRuleOverrides {
        gap: [None, Some(GapRule::Skip), Some(GapRule::Shift)][usize::from(*dst) % 3],
        fold: [None, Some(FoldRule::Once), Some(FoldRule::Twice)][usize::from(*dst) / 3 % 3],
    };
    let schedule = match Schedule::parse(kind, value, zone, dst) {
        Ok(schedule) => schedule,
        Err(refused) => {
            assert!(!refused.field.is_empty() && !refused.found.is_empty());
            assert!(!refused.expected.is_empty() && refused.to_string().len() < 1_000);
            return;
        }
    };

    // Any instant from 1930 to 2060, and the minimum and maximum timestamps.
    let second = i64::from(u32::from_be_bytes([0, *a, *b, *c])) * 244 - 1_262_304_000;
    let start = match (a, b) {
        (255, 255) => Timestamp::MAX,
        (0, 0) => Timestamp::MIN,
        _ => Timestamp::from_second(second).expect("the second is between 1930 and 2060"),
    };
    let mut before = start;
    for fire in schedule.iter_fires_after(start).take(20) {
        assert!(fire.at > before, "{schedule}: {fire:?} is not after {before}");
        assert_eq!(fire.slot.to_string().parse::<ScheduleSlotKey>().as_ref(), Ok(&fire.slot));
        before = fire.at;
    }
    if before > start {
        let last = schedule.last_between(start, before).expect("the schedule fired in this period");
        assert_eq!(last.at, before, "{schedule} after {start}");
    }
    for &language in Language::ALL {
        assert!(!schedule.describe(language).is_empty());
    }
    let preview = schedule.preview(start, 5);
    assert!(preview.rows.windows(2).all(|pair| pair[0].instant() <= pair[1].instant()));
});
