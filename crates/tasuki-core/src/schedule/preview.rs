//! Previews of a schedule for users: the next fires, with the clock changes on those days.

use jiff::civil::DateTime;
use jiff::{Timestamp, Zoned};

use super::dst::GapRule;
use super::{Fire, Recurrence, Schedule, ScheduleSlotKey, next_fire};

/// The next fires of a schedule.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Fires and skipped times, in chronological order.
    pub rows: Vec<PreviewRow>,
    /// Whether the schedule never fires after the last row. If it never fires at all, there are no rows.
    pub no_more_fires: bool,
}

/// One row of a preview.
#[derive(Debug, Clone)]
pub enum PreviewRow {
    /// The schedule fires.
    Fire {
        /// The instant and the slot.
        fire: Fire,
        /// The local time at that instant.
        local: Zoned,
        /// The clock change on that day, if there is one.
        change: Option<ClockChange>,
    },
    /// The schedule does not fire, because a clock change skips the wall-clock time.
    Skipped {
        /// The first wall-clock time of the schedule that is skipped.
        wall: DateTime,
        /// The clock change that skips it.
        change: ClockChange,
    },
}

/// A clock change: at one instant, the wall clock jumps from one time to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockChange {
    /// The instant of the change.
    pub at: Timestamp,
    /// The local time at that instant before the change.
    pub from: DateTime,
    /// The local time at that instant after the change.
    pub to: DateTime,
}

impl ClockChange {
    /// Whether the clocks go forward and skip times. Otherwise they go back and repeat times.
    pub fn is_forward(&self) -> bool {
        self.to > self.from
    }
}

impl PreviewRow {
    /// The instant of the fire, or of the clock change that skips the time.
    pub fn instant(&self) -> Timestamp {
        match self {
            Self::Fire { fire, .. } => fire.at,
            Self::Skipped { change, .. } => change.at,
        }
    }

    /// The slot of a fire; `None` for a skipped time.
    pub fn slot(&self) -> Option<ScheduleSlotKey> {
        match self {
            Self::Fire { fire, .. } => Some(fire.slot),
            Self::Skipped { .. } => None,
        }
    }
}

pub(super) fn build_preview(schedule: &Schedule, after: Timestamp, count: usize) -> Preview {
    let fires: Vec<Fire> = schedule.iter_fires_after(after).take(count).collect();
    let mut rows: Vec<PreviewRow> = fires.iter().map(|fire| fire_row(schedule, *fire)).collect();
    let last = fires.last().map(|fire| fire.at);
    if let Some(last) = last {
        rows.extend(skipped_rows(schedule, after, last));
        rows.sort_by_key(PreviewRow::instant);
    }
    Preview { rows, no_more_fires: last.is_none_or(|last| schedule.next_after(last).is_none()) }
}

fn fire_row(schedule: &Schedule, fire: Fire) -> PreviewRow {
    let local = fire.at.to_zoned(schedule.zone.rules().clone());
    let change = change_on_the_day_of(schedule, &local);
    PreviewRow::Fire { fire, local, change }
}

fn skipped_rows(schedule: &Schedule, after: Timestamp, until: Timestamp) -> Vec<PreviewRow> {
    let Recurrence::WallClock(pattern) = &schedule.recurrence else { return Vec::new() };
    if schedule.rule.gap == GapRule::Shift {
        return Vec::new();
    }
    next_fire::skipped_in_gaps(pattern, schedule.zone.rules(), after, until)
        .into_iter()
        .map(|(at, wall)| PreviewRow::Skipped { wall, change: change_at(schedule, at) })
        .collect()
}

/// The first clock change on the local day of the fire.
fn change_on_the_day_of(schedule: &Schedule, local: &Zoned) -> Option<ClockChange> {
    // The search starts just before midnight, because the change may be the first instant of the day.
    let before = next_fire::saturating_add(
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
    let just_before = next_fire::saturating_add(at, jiff::SignedDuration::from_nanos(-1));
    let from = zone.to_offset(just_before).to_datetime(at);
    ClockChange { at, from, to: zone.to_offset(at).to_datetime(at) }
}
