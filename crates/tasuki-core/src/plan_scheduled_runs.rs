//! Plans the runs of scheduled jobs, and decides about missed slots (misfires).
//!
//! The leader creates runs ahead of time, starting at a job's cursor. A slot that is already in the past
//! when it is planned was missed: there was no leader, or the database was unavailable. The misfire
//! policy gives one instant: missed slots before it are late and are recorded as SKIPPED, missed slots
//! after it run.

use std::num::NonZeroUsize;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::InvalidInput;
use crate::schedule::{Fire, Schedule};

/// A job's policy for planned times that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MisfirePolicy {
    /// Runs that are later than this are skipped. This is the default, with the setting
    /// `skip_late_after`. It skips the same runs as [`MisfirePolicy::EveryWithin`], but does not
    /// guarantee that the others run: one that is due while another one is running may still be skipped.
    SkipLate(Duration),
    /// Only the newest missed planned time gets a run, however late it is. A newer run replaces this run.
    LatestOnly,
    /// Every planned time that was missed within this window gets a run. The runs execute one after the
    /// other if necessary.
    EveryWithin(Duration),
    /// At most this many of the newest missed planned times get a run.
    AtMost(u32),
}

impl MisfirePolicy {
    /// Checks the limits of the policy's values.
    pub fn validate(self) -> Result<Self, InvalidInput> {
        let error = |found: String, expected| {
            Err(InvalidInput::with_described_value("misfire", found, expected))
        };
        match self {
            Self::SkipLate(tolerance) | Self::EveryWithin(tolerance)
                if tolerance < Duration::from_secs(1) =>
            {
                error(format!("{tolerance:?}"), "at least 1 s, or no run could ever start")
            }
            Self::AtMost(count) if !(1..=MAX_CATCH_UP).contains(&count) => {
                error(format!("at most {count}"), "1 to 100 planned times")
            }
            Self::SkipLate(_) | Self::EveryWithin(_) | Self::LatestOnly | Self::AtMost(_) => {
                Ok(self)
            }
        }
    }

    /// Whether missed slots must run. Such a slot waits while another run of the job is running, instead
    /// of being skipped.
    pub fn catches_up(self) -> bool {
        match self {
            Self::EveryWithin(_) | Self::AtMost(_) => true,
            Self::SkipLate(_) | Self::LatestOnly => false,
        }
    }
}

/// Maximum number of late slots of one outage that get a run of their own (SKIPPED, visible). Further
/// late slots are reported as one range: a schedule of every second must not fill the table with
/// rows after an outage of a month.
pub const MAX_LATE_RUNS: usize = 100;

/// Limit up to which the slots in such a range are counted.
const MAX_COUNTED_SLOTS: usize = 1_000;

/// Maximum value of [`MisfirePolicy::AtMost`].
pub const MAX_CATCH_UP: u32 = 100;

/// The instants between which slots are planned.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput {
    /// The next fire of the job that has no run yet.
    pub cursor: Timestamp,
    /// The current time by the database's clock.
    pub now: Timestamp,
    /// Runs are planned for slots up to this instant: the current time plus `assign_ahead`.
    pub horizon: Timestamp,
}

/// The runs to create and the new cursor of the job. The default is no runs and no further fire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotPlan {
    /// Runs to create, in order. A late run has a `skip_at` in the past, so that T12 skips it.
    pub runs: Vec<PlannedRun>,
    /// Late slots for which no run is created.
    pub skipped_slots: Option<SkippedSlots>,
    /// The first fire that has no run yet; `None`: the schedule never fires again.
    pub cursor: Option<Timestamp>,
    /// Whether the batch is full and slots before the horizon are left: plan again immediately.
    pub has_more: bool,
}

/// A run to create (T0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    /// The fire whose slot the run gets.
    pub fire: Fire,
    /// The instant from which it is too late to start the run; `None`: never.
    pub skip_at: Option<Timestamp>,
}

/// A range of late slots without runs of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedSlots {
    /// The planned instant of the first slot.
    pub first: Timestamp,
    /// The planned instant of the last slot.
    pub last: Timestamp,
    /// The number of slots, counted up to 1,000.
    pub count: usize,
    /// Whether `count` is exact; otherwise there are more slots.
    pub exact: bool,
}

/// Plans the runs of one job and scope: late runs, and at most `batch` runs that are not late.
pub fn plan_slots(
    schedule: &Schedule,
    policy: MisfirePolicy,
    input: PlanInput,
    batch: NonZeroUsize,
) -> SlotPlan {
    let PlanInput { now, horizon, .. } = input;
    let late_before = late_before(schedule, policy, input);
    let mut plan =
        SlotPlan { runs: Vec::new(), skipped_slots: None, cursor: None, has_more: false };

    let mut next = schedule.next_after(just_before(input.cursor));
    while let Some(fire) = next.filter(|fire| fire.at < late_before) {
        if plan.runs.len() == MAX_LATE_RUNS {
            let skipped = summarize_skipped(schedule, fire, late_before);
            next = schedule.next_after(skipped.last);
            plan.skipped_slots = Some(skipped);
            break;
        }
        plan.runs.push(PlannedRun { fire, skip_at: Some(fire.at.min(just_before(now))) });
        next = schedule.next_after(fire.at);
    }

    let late = plan.runs.len();
    while let Some(fire) = next.filter(|fire| fire.at <= horizon) {
        if plan.runs.len() - late == batch.get() {
            plan.has_more = true;
            break;
        }
        plan.runs.push(PlannedRun { fire, skip_at: skip_at(schedule, policy, fire) });
        next = schedule.next_after(fire.at);
    }
    plan.cursor = next.map(|fire| fire.at);
    plan
}

/// The instant of the misfire policy: missed slots before it are late.
fn late_before(schedule: &Schedule, policy: MisfirePolicy, input: PlanInput) -> Timestamp {
    let newest = |count: u32| {
        let mut late_before = input.now;
        for _ in 0..count.min(MAX_CATCH_UP) {
            let before = just_before(input.cursor);
            match schedule.last_between(before, just_before(late_before.min(input.now))) {
                Some(fire) => late_before = fire.at,
                None => return input.cursor.min(input.now),
            }
        }
        late_before
    };
    match policy {
        MisfirePolicy::SkipLate(tolerance) | MisfirePolicy::EveryWithin(tolerance) => {
            earlier(input.now, tolerance)
        }
        MisfirePolicy::LatestOnly => newest(1),
        MisfirePolicy::AtMost(count) => newest(count),
    }
}

fn skip_at(schedule: &Schedule, policy: MisfirePolicy, fire: Fire) -> Option<Timestamp> {
    let superseded_by = |count: u32| {
        schedule.iter_fires_after(fire.at).nth(count.max(1) as usize - 1).map(|f| f.at)
    };
    match policy {
        MisfirePolicy::SkipLate(tolerance) | MisfirePolicy::EveryWithin(tolerance) => {
            Some(later(fire.at, tolerance))
        }
        MisfirePolicy::LatestOnly => superseded_by(1),
        MisfirePolicy::AtMost(count) => superseded_by(count.min(MAX_CATCH_UP)),
    }
}

fn summarize_skipped(schedule: &Schedule, first: Fire, late_before: Timestamp) -> SkippedSlots {
    let last =
        schedule.last_between(just_before(first.at), just_before(late_before)).unwrap_or(first);
    let count = schedule
        .iter_fires_after(just_before(first.at))
        .take(MAX_COUNTED_SLOTS + 1)
        .take_while(|fire| fire.at < late_before)
        .count();
    SkippedSlots {
        first: first.at,
        last: last.at,
        count: count.min(MAX_COUNTED_SLOTS),
        exact: count <= MAX_COUNTED_SLOTS,
    }
}

fn just_before(instant: Timestamp) -> Timestamp {
    shift(instant, SignedDuration::from_micros(-1))
}

fn earlier(instant: Timestamp, by: Duration) -> Timestamp {
    shift(instant, -signed(by))
}

fn later(instant: Timestamp, by: Duration) -> Timestamp {
    shift(instant, signed(by))
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

fn shift(instant: Timestamp, by: SignedDuration) -> Timestamp {
    instant
        .saturating_add(by)
        .expect("adding a duration cannot fail, unlike a span of days or months")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{DstRuleOverrides, ScheduleKind};

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(text: &str) -> Timestamp {
        format!("2026-11-15T{text}Z").parse().unwrap()
    }

    fn plan(
        schedule: &Schedule,
        policy: MisfirePolicy,
        input: PlanInput,
        batch: usize,
    ) -> SlotPlan {
        plan_slots(schedule, policy, input, NonZeroUsize::new(batch).unwrap())
    }

    fn every(value: &str) -> Schedule {
        Schedule::parse(ScheduleKind::Every, value, "UTC", DstRuleOverrides::default()).unwrap()
    }

    fn times(runs: &[PlannedRun], now: Timestamp) -> (Vec<String>, Vec<String>) {
        let late = |run: &&PlannedRun| run.skip_at.is_some_and(|skip_at| skip_at < now);
        let clock = |run: &PlannedRun| run.fire.at.to_string()[11..16].to_owned();
        (
            runs.iter().filter(late).map(clock).collect(),
            runs.iter().filter(|run| !late(run)).map(clock).collect(),
        )
    }

    /// The schedule fires every five minutes, the cursor is at 12:00, now is 12:21:30, the horizon 12:25.
    #[test]
    fn the_policy_decides_which_missed_slots_are_late() {
        let table: &[(MisfirePolicy, &[&str], &[&str])] = &[
            (
                MisfirePolicy::SkipLate(2 * MINUTE),
                &["12:00", "12:05", "12:10", "12:15"],
                &["12:20", "12:25"],
            ),
            (
                MisfirePolicy::SkipLate(Duration::ZERO),
                &["12:00", "12:05", "12:10", "12:15", "12:20"],
                &["12:25"],
            ),
            (MisfirePolicy::LatestOnly, &["12:00", "12:05", "12:10", "12:15"], &["12:20", "12:25"]),
            (
                MisfirePolicy::EveryWithin(12 * MINUTE),
                &["12:00", "12:05"],
                &["12:10", "12:15", "12:20", "12:25"],
            ),
            (
                MisfirePolicy::EveryWithin(999 * MINUTE),
                &[],
                &["12:00", "12:05", "12:10", "12:15", "12:20", "12:25"],
            ),
            (MisfirePolicy::AtMost(2), &["12:00", "12:05", "12:10"], &["12:15", "12:20", "12:25"]),
            (
                MisfirePolicy::AtMost(99),
                &[],
                &["12:00", "12:05", "12:10", "12:15", "12:20", "12:25"],
            ),
        ];
        let now = at("12:21:30");
        let input = PlanInput { cursor: at("12:00:00"), now, horizon: at("12:25:00") };
        for (policy, late, on_time) in table {
            let plan = plan(&every("5m"), *policy, input, 100);
            let (found_late, found_on_time) = times(&plan.runs, now);
            assert_eq!(found_late, *late, "late runs of {policy:?}");
            assert_eq!(found_on_time, *on_time, "runs on time of {policy:?}");
            assert_eq!(plan.cursor, Some(at("12:30:00")), "{policy:?}");
            assert_eq!((plan.skipped_slots, plan.has_more), (None, false), "{policy:?}");
        }
    }

    #[test]
    fn values_outside_the_limits_are_errors() {
        for wrong in [
            MisfirePolicy::SkipLate(Duration::ZERO),
            MisfirePolicy::AtMost(0),
            MisfirePolicy::AtMost(101),
        ] {
            assert_eq!(wrong.validate().unwrap_err().field, "misfire", "{wrong:?}");
        }
        for right in [
            MisfirePolicy::EveryWithin(MINUTE),
            MisfirePolicy::AtMost(100),
            MisfirePolicy::LatestOnly,
        ] {
            assert_eq!(right.validate(), Ok(right));
        }
    }

    #[test]
    fn without_missed_slots_no_run_is_late() {
        for policy in
            [MisfirePolicy::LatestOnly, MisfirePolicy::AtMost(3), MisfirePolicy::SkipLate(MINUTE)]
        {
            let input =
                PlanInput { cursor: at("12:25:00"), now: at("12:21:00"), horizon: at("12:30:00") };
            let plan = plan(&every("5m"), policy, input, 100);
            assert_eq!(times(&plan.runs, input.now).1, ["12:25", "12:30"], "{policy:?}");
        }
        let early =
            PlanInput { cursor: at("12:25:00"), now: at("12:21:00"), horizon: at("12:24:00") };
        let plan = plan(&every("5m"), MisfirePolicy::LatestOnly, early, 100);
        assert_eq!((plan.runs.len(), plan.cursor), (0, Some(at("12:25:00"))));
    }

    #[test]
    fn a_month_of_missed_seconds_is_reported_as_one_range() {
        let cursor = "2026-10-15T00:00:00Z".parse().unwrap();
        let now = at("00:00:00");
        let input = PlanInput { cursor, now, horizon: at("00:00:30") };
        let plan =
            plan(&every("1s"), MisfirePolicy::SkipLate(10 * Duration::from_secs(1)), input, 1_000);
        assert_eq!(plan.runs.len(), MAX_LATE_RUNS + 11 + 30);
        let skipped = plan.skipped_slots.unwrap();
        assert_eq!(skipped.first, "2026-10-15T00:01:40Z".parse().unwrap());
        assert_eq!(skipped.last, "2026-11-14T23:59:49Z".parse().unwrap());
        assert_eq!((skipped.count, skipped.exact), (1_000, false));
        assert_eq!(plan.cursor, Some(at("00:00:31")));
    }

    #[test]
    fn a_small_range_of_skipped_slots_is_counted_exactly() {
        let input =
            PlanInput { cursor: at("10:00:00"), now: at("12:00:00"), horizon: at("12:00:00") };
        let plan = plan(&every("1m"), MisfirePolicy::LatestOnly, input, 10);
        // 10:00 to 11:59 are 120 missed slots; 12:00 is now and is the latest slot.
        let skipped = plan.skipped_slots.unwrap();
        assert_eq!((skipped.count, skipped.exact), (19, true));
        assert_eq!(plan.runs.len(), MAX_LATE_RUNS + 2);
    }

    #[test]
    fn planning_continues_after_a_full_batch() {
        let input =
            PlanInput { cursor: at("12:00:00"), now: at("11:59:00"), horizon: at("12:09:00") };
        let first = plan(&every("1m"), MisfirePolicy::LatestOnly, input, 4);
        assert_eq!((first.runs.len(), first.has_more), (4, true));
        assert_eq!(first.cursor, Some(at("12:04:00")));
        let rest = plan(
            &every("1m"),
            MisfirePolicy::LatestOnly,
            PlanInput { cursor: first.cursor.unwrap(), ..input },
            100,
        );
        assert_eq!((rest.runs.len(), rest.has_more), (6, false));
    }

    #[test]
    fn a_waiting_run_is_skipped_when_newer_slots_replace_it() {
        let input =
            PlanInput { cursor: at("12:00:00"), now: at("11:59:00"), horizon: at("12:00:00") };
        let skip_at = |policy| plan(&every("1m"), policy, input, 9).runs[0].skip_at;
        assert_eq!(skip_at(MisfirePolicy::LatestOnly), Some(at("12:01:00")));
        assert_eq!(skip_at(MisfirePolicy::AtMost(3)), Some(at("12:03:00")));
        assert_eq!(skip_at(MisfirePolicy::SkipLate(5 * MINUTE)), Some(at("12:05:00")));
        assert_eq!(skip_at(MisfirePolicy::EveryWithin(60 * MINUTE)), Some(at("13:00:00")));
    }

    #[test]
    fn a_schedule_that_never_fires_has_no_cursor() {
        let never =
            Schedule::parse(ScheduleKind::Cron, "0 0 30 2 *", "UTC", DstRuleOverrides::default())
                .unwrap();
        let input =
            PlanInput { cursor: at("12:00:00"), now: at("12:00:00"), horizon: at("12:30:00") };
        let plan = plan(&never, MisfirePolicy::LatestOnly, input, 9);
        assert_eq!((plan.runs.len(), plan.cursor), (0, None));
    }
}
