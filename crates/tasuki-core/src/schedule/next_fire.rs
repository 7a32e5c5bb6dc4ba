//! Computes the next fire of a wall-clock schedule, across clock changes.
//!
//! The time line of a zone is divided into periods with one UTC offset. Within a period, wall-clock time
//! and elapsed time run in parallel, so the next match is a calendar calculation. Between two periods,
//! the wall clock either jumps forward over times that do not exist (a gap) or jumps back to times that
//! occur again (a fold); there the [`DstRule`] decides. Nothing is enumerated, so a schedule of every
//! second costs no more than a schedule of every year.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::dst::{DstRule, FoldRule, GapRule};
use super::slot::ScheduleSlotKey;
use super::wall_clock_pattern::Pattern;

/// One planned fire of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fire {
    /// The instant of the fire.
    pub at: Timestamp,
    /// The slot of the fire.
    pub slot: ScheduleSlotKey,
    /// Whether the wall-clock time does not exist on that day, so that it fires at the clock change.
    pub shifted: bool,
}

/// How far ahead a fire is searched. A schedule that does not fire within this time never fires: the
/// rarest real date, 29 February, occurs at least every eight years, and all patterns of zone rules
/// have repeated several times.
const SEARCH_HORIZON: SignedDuration = SignedDuration::from_hours(30 * 366 * 24);

/// Maximum size of a clock change, with a margin: no zone ever repeated or skipped more than a day.
const MAX_CLOCK_CHANGE: SignedDuration = SignedDuration::from_hours(48);

/// The first fire strictly after `after`.
pub(super) fn next_wall_clock_fire(
    pattern: &Pattern,
    zone: &TimeZone,
    rule: DstRule,
    after: Timestamp,
) -> Option<Fire> {
    let earliest = second_after(after)?;
    let mut shown_until = None; // the wall clock has already shown all times before this
    for period in offset_periods(zone, after) {
        let begin = period.offset.to_datetime(period.begin);
        let end = period.offset.to_datetime(period.end);
        // All times lost in one gap give one fire, and no fire if the pattern matches the end of the gap.
        if rule.gap == GapRule::Shift
            && period.begin > after
            && !pattern.contains(begin)
            && let Some(time) = shown_until.and_then(|shown| pattern.first_within(shown, begin))
        {
            let slot = ScheduleSlotKey::Wall { time, pass: 1 };
            return Some(Fire { at: period.begin, slot, shifted: true });
        }
        let unrepeated = match rule.fold {
            FoldRule::Once => shown_until.map_or(begin, |shown| shown.max(begin)),
            FoldRule::Twice => begin,
        };
        let from = unrepeated.max(period.offset.to_datetime(earliest));
        if let Some(time) = pattern.first_within(from, end) {
            let pass = if shown_until.is_some_and(|shown| time < shown) { 2 } else { 1 };
            // The conversion fails only at the end of the calendar.
            let at = period.offset.to_timestamp(time).ok()?;
            return Some(Fire { at, slot: ScheduleSlotKey::Wall { time, pass }, shifted: false });
        }
        shown_until = shown_until.max(Some(end));
    }
    None
}

/// The first time of the pattern in each gap in `[from, until)`, with the instant of the clock change.
pub(super) fn skipped_in_gaps(
    pattern: &Pattern,
    zone: &TimeZone,
    from: Timestamp,
    until: Timestamp,
) -> Vec<(Timestamp, DateTime)> {
    let mut found = Vec::new();
    let mut shown_until = DateTime::MAX;
    for period in offset_periods(zone, from).take_while(|period| period.begin < until) {
        let begin = period.offset.to_datetime(period.begin);
        if period.begin > from
            && let Some(time) = pattern.first_within(shown_until, begin)
        {
            found.push((period.begin, time));
        }
        shown_until = period.offset.to_datetime(period.end);
    }
    found
}

/// The first whole second after an instant; `None` at the end of the calendar.
fn second_after(instant: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(instant.as_microsecond().div_euclid(1_000_000) + 1).ok()
}

/// A period of a zone's time line with one UTC offset.
struct OffsetPeriod {
    begin: Timestamp,
    end: Timestamp,
    offset: Offset,
}

/// The offset periods from shortly before `after` to the search horizon.
fn offset_periods(zone: &TimeZone, after: Timestamp) -> impl Iterator<Item = OffsetPeriod> + '_ {
    let start = saturating_add(after, -MAX_CLOCK_CHANGE);
    let horizon = saturating_add(after, SEARCH_HORIZON);
    let mut begin = start;
    let mut offset = zone.to_offset(start);
    let mut changes = zone.following(start).map(|change| (change.timestamp(), change.offset()));
    std::iter::from_fn(move || {
        if begin >= horizon {
            return None;
        }
        let (end, next_offset) = match changes.next() {
            Some((at, next)) if at < horizon => (at, next),
            _ => (horizon, offset),
        };
        let period = OffsetPeriod { begin, end, offset };
        (begin, offset) = (end, next_offset);
        Some(period)
    })
}

pub(super) fn saturating_add(instant: Timestamp, duration: SignedDuration) -> Timestamp {
    instant
        .saturating_add(duration)
        .expect("adding a duration cannot fail, unlike a span of days or months")
}
