//! From wall times to instants: the next fire, across any change of the clocks.
//!
//! A zone's time line is cut into stretches of one offset. Inside a stretch wall and real time run
//! in step, so finding the next match is plain calendar work. Between stretches the wall either
//! jumps forward over times that never show (a gap), or back to times that show again (a fold), and
//! there the [`DstRule`] decides. Nothing is enumerated, so a schedule of every second costs no more
//! than one of every year.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::dst::{DstRule, FoldRule, GapRule};
use super::pattern::Pattern;
use super::slot::Slot;

/// One planned occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fire {
    /// When, in real time.
    pub at: Timestamp,
    /// Under which name.
    pub slot: Slot,
    /// Whether its wall time does not exist that day and it runs at the shift instead.
    pub shifted: bool,
}

/// A schedule that has not fired for this long never will: the rarest real one, 29 February, comes
/// at least every eight years, and every pattern of zone rules has come round several times.
const NEVER_AFTER: SignedDuration = SignedDuration::from_hours(30 * 366 * 24);

/// How far a change of the clocks can reach: no zone ever repeated or skipped more than a day.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(48);

/// The first fire strictly after `after`.
pub(super) fn next_on_the_wall(
    pattern: &Pattern,
    zone: &TimeZone,
    rule: DstRule,
    after: Timestamp,
) -> Option<Fire> {
    let earliest = second_after(after)?;
    let mut shown_until = None; // the wall has shown everything before this already
    for stretch in stretches(zone, after) {
        let begin = stretch.offset.to_datetime(stretch.begin);
        let end = stretch.offset.to_datetime(stretch.end);
        // Several times lost in one gap are one fire, and none where the shift itself is a match.
        if rule.gap == GapRule::Shift
            && stretch.begin > after
            && !pattern.contains(begin)
            && let Some(time) = shown_until.and_then(|shown| pattern.first_within(shown, begin))
        {
            let slot = Slot::Wall { time, pass: 1 };
            return Some(Fire { at: stretch.begin, slot, shifted: true });
        }
        let unrepeated = match rule.fold {
            FoldRule::Once => shown_until.map_or(begin, |shown| shown.max(begin)),
            FoldRule::Twice => begin,
        };
        let from = unrepeated.max(stretch.offset.to_datetime(earliest));
        if let Some(time) = pattern.first_within(from, end) {
            let pass = if shown_until.is_some_and(|shown| time < shown) { 2 } else { 1 };
            // The end of the calendar is the only instant that cannot be told.
            let at = stretch.offset.to_timestamp(time).ok()?;
            return Some(Fire { at, slot: Slot::Wall { time, pass }, shifted: false });
        }
        shown_until = shown_until.max(Some(end));
    }
    None
}

/// Wall times in `[from, until)` that the pattern names but the wall never shows, one per gap.
pub(super) fn skipped_in_gaps(
    pattern: &Pattern,
    zone: &TimeZone,
    from: Timestamp,
    until: Timestamp,
) -> Vec<(Timestamp, DateTime)> {
    let mut found = Vec::new();
    let mut shown_until = DateTime::MAX;
    for stretch in stretches(zone, from).take_while(|stretch| stretch.begin < until) {
        let begin = stretch.offset.to_datetime(stretch.begin);
        if stretch.begin > from
            && let Some(time) = pattern.first_within(shown_until, begin)
        {
            found.push((stretch.begin, time));
        }
        shown_until = stretch.offset.to_datetime(stretch.end);
    }
    found
}

/// The first whole second after an instant; at the end of time there is none.
fn second_after(instant: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(instant.as_microsecond().div_euclid(1_000_000) + 1).ok()
}

/// A piece of a zone's time line with one offset.
struct Stretch {
    begin: Timestamp,
    end: Timestamp,
    offset: Offset,
}

/// The stretches from a little before `after` until a schedule can be called dead.
fn stretches(zone: &TimeZone, after: Timestamp) -> impl Iterator<Item = Stretch> + '_ {
    let start = saturating_add(after, -LOOK_BACK);
    let horizon = saturating_add(after, NEVER_AFTER);
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
        let stretch = Stretch { begin, end, offset };
        (begin, offset) = (end, next_offset);
        Some(stretch)
    })
}

pub(super) fn saturating_add(instant: Timestamp, duration: SignedDuration) -> Timestamp {
    instant
        .saturating_add(duration)
        .expect("a duration, unlike a span of days or months, can always be added")
}
