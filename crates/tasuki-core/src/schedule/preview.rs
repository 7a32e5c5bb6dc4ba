//! What a schedule will do, for people: the next fires, with the days on which the clocks change.

use jiff::civil::DateTime;
use jiff::{Timestamp, Zoned};

use super::dst::GapRule;
use super::{Fire, Rhythm, Schedule, Slot, fire};

/// The next fires of a schedule.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Fires and skipped times, in order of time.
    pub rows: Vec<PreviewRow>,
    /// Whether nothing follows the last row: a schedule that never fires has no rows at all.
    pub ends: bool,
}

/// One line of a preview.
#[derive(Debug, Clone)]
pub enum PreviewRow {
    /// It fires.
    Fire {
        /// When and under which slot.
        fire: Fire,
        /// What the wall shows then.
        local: Zoned,
        /// The change of the clocks on that day, if there is one.
        change: Option<ClockChange>,
    },
    /// It would have fired, but that day the wall never shows the time.
    Skipped {
        /// The (first) wall time that is skipped.
        wall: DateTime,
        /// The change that skips it.
        change: ClockChange,
    },
}

/// A change of the clocks: at this instant the wall goes from one time to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockChange {
    /// When.
    pub at: Timestamp,
    /// What the wall would have shown.
    pub from: DateTime,
    /// What it shows instead.
    pub to: DateTime,
}

impl ClockChange {
    /// Forward: times are skipped. Otherwise back: times are repeated.
    pub fn is_forward(&self) -> bool {
        self.to > self.from
    }
}

impl PreviewRow {
    /// When it fires, or when the clocks skip it.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Fire { fire, .. } => fire.at,
            Self::Skipped { change, .. } => change.at,
        }
    }

    /// The slot of a fire.
    pub fn slot(&self) -> Option<Slot> {
        match self {
            Self::Fire { fire, .. } => Some(fire.slot),
            Self::Skipped { .. } => None,
        }
    }
}

pub(super) fn of(schedule: &Schedule, after: Timestamp, count: usize) -> Preview {
    let fires: Vec<Fire> = schedule.fires_after(after).take(count).collect();
    let mut rows: Vec<PreviewRow> = fires.iter().map(|fire| fire_row(schedule, *fire)).collect();
    let last = fires.last().map(|fire| fire.at);
    if let Some(last) = last {
        rows.extend(skipped_rows(schedule, after, last));
        rows.sort_by_key(PreviewRow::at);
    }
    Preview { rows, ends: last.is_none_or(|last| schedule.next_after(last).is_none()) }
}

fn fire_row(schedule: &Schedule, fire: Fire) -> PreviewRow {
    let local = fire.at.to_zoned(schedule.zone.rules().clone());
    let change = change_on_the_day_of(schedule, &local);
    PreviewRow::Fire { fire, local, change }
}

fn skipped_rows(schedule: &Schedule, after: Timestamp, until: Timestamp) -> Vec<PreviewRow> {
    let Rhythm::Wall(pattern) = &schedule.rhythm else { return Vec::new() };
    if schedule.rule.gap == GapRule::Shift {
        return Vec::new();
    }
    fire::skipped_in_gaps(pattern, schedule.zone.rules(), after, until)
        .into_iter()
        .map(|(at, wall)| PreviewRow::Skipped { wall, change: change_at(schedule, at) })
        .collect()
}

/// The first change of the clocks on the fire's own day, as its wall counts days.
fn change_on_the_day_of(schedule: &Schedule, local: &Zoned) -> Option<ClockChange> {
    // The instant before midnight: a change may be the very start of the day.
    let before = fire::saturating_add(
        local.start_of_day().ok()?.timestamp(),
        jiff::SignedDuration::from_nanos(-1),
    );
    schedule
        .zone
        .rules()
        .following(before)
        .map(|change| change_at(schedule, change.timestamp()))
        .take_while(|change| change.from.date() <= local.date() || change.to.date() <= local.date())
        .find(|change| change.from != change.to)
}

fn change_at(schedule: &Schedule, at: Timestamp) -> ClockChange {
    let zone = schedule.zone.rules();
    let just_before = fire::saturating_add(at, jiff::SignedDuration::from_nanos(-1));
    let from = zone.to_offset(just_before).to_datetime(at);
    ClockChange { at, from, to: zone.to_offset(at).to_datetime(at) }
}
