//! What becomes of slots that were missed, and which runs to make now.
//!
//! Runs are made ahead of time from a job's cursor, so a slot that lies in the past when it is
//! planned was missed: nobody led, or the database was away. The policy draws one line through the
//! missed slots: those before it are late and are recorded as such, those after it run.

use std::num::NonZeroUsize;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Invalid;
use crate::schedule::{Fire, Schedule};

/// What a job's owner wants done about missed slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfire {
    /// What is later than this is skipped; the default, with the setting `skip_late_after`. Draws
    /// the same line as [`Misfire::EveryWithin`], but does not insist on what it lets through.
    SkipLate(Duration),
    /// Only the newest missed slot runs, however late; a newer one takes its place.
    LatestOnly,
    /// Every slot missed within this window runs, one after the other if need be.
    EveryWithin(Duration),
    /// The newest missed slots run, at most so many.
    AtMost(u32),
}

impl Misfire {
    /// Checks what a job's owner chose.
    pub fn checked(self) -> Result<Self, Invalid> {
        let refuse = |found: String, expected| Err(Invalid::described("misfire", found, expected));
        match self {
            Self::SkipLate(tolerance) | Self::EveryWithin(tolerance)
                if tolerance < Duration::from_secs(1) =>
            {
                refuse(format!("{tolerance:?}"), "at least 1 s, or nothing could ever start")
            }
            Self::AtMost(count) if !(1..=MOST_CAUGHT_UP).contains(&count) => {
                refuse(format!("at most {count}"), "1 to 100 slots")
            }
            Self::SkipLate(_) | Self::EveryWithin(_) | Self::LatestOnly | Self::AtMost(_) => {
                Ok(self)
            }
        }
    }

    /// Whether missed slots are to be caught up: then they take turns rather than being skipped
    /// while another runs.
    pub fn catches_up(self) -> bool {
        match self {
            Self::EveryWithin(_) | Self::AtMost(_) => true,
            Self::SkipLate(_) | Self::LatestOnly => false,
        }
    }
}

/// How many late slots of one outage are kept as runs of their own, SKIPPED and visible. What
/// exceeds it is told as one stretch: a month of missed seconds must not fill the table.
pub const LATE_KEPT: usize = 100;

/// How far a stretch of passed-over slots is counted.
const COUNTED: usize = 1_000;

/// The most runs [`Misfire::AtMost`] can ask for.
pub const MOST_CAUGHT_UP: u32 = 100;

/// Where planning stands.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The next fire of the job that has no run yet.
    pub cursor: Timestamp,
    /// The database's clock.
    pub now: Timestamp,
    /// Runs are made for slots up to here: the clock plus `assign_ahead`.
    pub until: Timestamp,
}

/// What to write: these runs, and the cursor that goes with them. By default nothing, ever.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs to make, in order. A late one has a `skip_at` that has passed, so T12 ends it.
    pub runs: Vec<PlannedRun>,
    /// Late slots that get no run of their own.
    pub passed_over: Option<PassedOver>,
    /// The first fire that still has no run; `None` if there is none ever.
    pub cursor: Option<Timestamp>,
    /// The batch is full and slots up to `until` are left: plan again at once.
    pub more: bool,
}

/// A run to be made (T0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    /// Its slot.
    pub fire: Fire,
    /// When it is too late to start it.
    pub skip_at: Option<Timestamp>,
}

/// A stretch of late slots, told in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOver {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many, if they could be counted quickly; otherwise there are more than that.
    pub count: usize,
    /// Whether `count` is all of them.
    pub exact: bool,
}

/// Plans the runs of one job and scope, at most `batch` that are not late.
pub fn plan(schedule: &Schedule, policy: Misfire, moment: Moment, batch: NonZeroUsize) -> Plan {
    let Moment { now, until, .. } = moment;
    let line = line(schedule, policy, moment);
    let mut plan = Plan { runs: Vec::new(), passed_over: None, cursor: None, more: false };

    let mut next = schedule.next_after(just_before(moment.cursor));
    while let Some(fire) = next.filter(|fire| fire.at < line) {
        if plan.runs.len() == LATE_KEPT {
            let passed_over = pass_over(schedule, fire, line);
            next = schedule.next_after(passed_over.last);
            plan.passed_over = Some(passed_over);
            break;
        }
        plan.runs.push(PlannedRun { fire, skip_at: Some(fire.at.min(just_before(now))) });
        next = schedule.next_after(fire.at);
    }

    let late = plan.runs.len();
    while let Some(fire) = next.filter(|fire| fire.at <= until) {
        if plan.runs.len() - late == batch.get() {
            plan.more = true;
            break;
        }
        plan.runs.push(PlannedRun { fire, skip_at: skip_at(schedule, policy, fire) });
        next = schedule.next_after(fire.at);
    }
    plan.cursor = next.map(|fire| fire.at);
    plan
}

/// The line: missed slots before it are late.
fn line(schedule: &Schedule, policy: Misfire, moment: Moment) -> Timestamp {
    let newest = |count: u32| {
        let mut line = moment.now;
        for _ in 0..count.min(MOST_CAUGHT_UP) {
            let before = just_before(moment.cursor);
            match schedule.last_between(before, just_before(line.min(moment.now))) {
                Some(fire) => line = fire.at,
                None => return moment.cursor.min(moment.now),
            }
        }
        line
    };
    match policy {
        Misfire::SkipLate(tolerance) | Misfire::EveryWithin(tolerance) => {
            earlier(moment.now, tolerance)
        }
        Misfire::LatestOnly => newest(1),
        Misfire::AtMost(count) => newest(count),
    }
}

fn skip_at(schedule: &Schedule, policy: Misfire, fire: Fire) -> Option<Timestamp> {
    let superseded_by =
        |count: u32| schedule.fires_after(fire.at).nth(count.max(1) as usize - 1).map(|f| f.at);
    match policy {
        Misfire::SkipLate(tolerance) | Misfire::EveryWithin(tolerance) => {
            Some(later(fire.at, tolerance))
        }
        Misfire::LatestOnly => superseded_by(1),
        Misfire::AtMost(count) => superseded_by(count.min(MOST_CAUGHT_UP)),
    }
}

fn pass_over(schedule: &Schedule, first: Fire, line: Timestamp) -> PassedOver {
    let last = schedule.last_between(just_before(first.at), just_before(line)).unwrap_or(first);
    let count = schedule
        .fires_after(just_before(first.at))
        .take(COUNTED + 1)
        .take_while(|fire| fire.at < line)
        .count();
    PassedOver {
        first: first.at,
        last: last.at,
        count: count.min(COUNTED),
        exact: count <= COUNTED,
    }
}

fn just_before(instant: Timestamp) -> Timestamp {
    shifted(instant, SignedDuration::from_micros(-1))
}

fn earlier(instant: Timestamp, by: Duration) -> Timestamp {
    shifted(instant, -signed(by))
}

fn later(instant: Timestamp, by: Duration) -> Timestamp {
    shifted(instant, signed(by))
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

fn shifted(instant: Timestamp, by: SignedDuration) -> Timestamp {
    instant.saturating_add(by).expect("a plain duration can always be added")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{DstChoice, ScheduleKind};

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(text: &str) -> Timestamp {
        format!("2026-11-15T{text}Z").parse().unwrap()
    }

    fn plan(schedule: &Schedule, policy: Misfire, moment: Moment, batch: usize) -> Plan {
        super::plan(schedule, policy, moment, NonZeroUsize::new(batch).unwrap())
    }

    fn every(value: &str) -> Schedule {
        Schedule::parse(ScheduleKind::Every, value, "UTC", DstChoice::default()).unwrap()
    }

    fn times(runs: &[PlannedRun], now: Timestamp) -> (Vec<String>, Vec<String>) {
        let late = |run: &&PlannedRun| run.skip_at.is_some_and(|skip_at| skip_at < now);
        let clock = |run: &PlannedRun| run.fire.at.to_string()[11..16].to_owned();
        (
            runs.iter().filter(late).map(clock).collect(),
            runs.iter().filter(|run| !late(run)).map(clock).collect(),
        )
    }

    /// Every five minutes; the cursor stands at 12:00 and it is 12:21:30, planning to 12:25.
    #[test]
    fn the_policy_draws_the_line() {
        let table: &[(Misfire, &[&str], &[&str])] = &[
            (
                Misfire::SkipLate(2 * MINUTE),
                &["12:00", "12:05", "12:10", "12:15"],
                &["12:20", "12:25"],
            ),
            (
                Misfire::SkipLate(Duration::ZERO),
                &["12:00", "12:05", "12:10", "12:15", "12:20"],
                &["12:25"],
            ),
            (Misfire::LatestOnly, &["12:00", "12:05", "12:10", "12:15"], &["12:20", "12:25"]),
            (
                Misfire::EveryWithin(12 * MINUTE),
                &["12:00", "12:05"],
                &["12:10", "12:15", "12:20", "12:25"],
            ),
            (
                Misfire::EveryWithin(999 * MINUTE),
                &[],
                &["12:00", "12:05", "12:10", "12:15", "12:20", "12:25"],
            ),
            (Misfire::AtMost(2), &["12:00", "12:05", "12:10"], &["12:15", "12:20", "12:25"]),
            (Misfire::AtMost(99), &[], &["12:00", "12:05", "12:10", "12:15", "12:20", "12:25"]),
        ];
        let now = at("12:21:30");
        let moment = Moment { cursor: at("12:00:00"), now, until: at("12:25:00") };
        for (policy, late, on_time) in table {
            let plan = plan(&every("5m"), *policy, moment, 100);
            let (found_late, found_on_time) = times(&plan.runs, now);
            assert_eq!(found_late, *late, "{policy:?} late");
            assert_eq!(found_on_time, *on_time, "{policy:?} on time");
            assert_eq!(plan.cursor, Some(at("12:30:00")), "{policy:?}");
            assert_eq!((plan.passed_over, plan.more), (None, false), "{policy:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [Misfire::SkipLate(Duration::ZERO), Misfire::AtMost(0), Misfire::AtMost(101)] {
            assert_eq!(wrong.checked().unwrap_err().field, "misfire", "{wrong:?}");
        }
        for right in [Misfire::EveryWithin(MINUTE), Misfire::AtMost(100), Misfire::LatestOnly] {
            assert_eq!(right.checked(), Ok(right));
        }
    }

    #[test]
    fn nothing_missed_nothing_late() {
        for policy in [Misfire::LatestOnly, Misfire::AtMost(3), Misfire::SkipLate(MINUTE)] {
            let moment =
                Moment { cursor: at("12:25:00"), now: at("12:21:00"), until: at("12:30:00") };
            let plan = plan(&every("5m"), policy, moment, 100);
            assert_eq!(times(&plan.runs, moment.now).1, ["12:25", "12:30"], "{policy:?}");
        }
        let early = Moment { cursor: at("12:25:00"), now: at("12:21:00"), until: at("12:24:00") };
        let plan = plan(&every("5m"), Misfire::LatestOnly, early, 100);
        assert_eq!((plan.runs.len(), plan.cursor), (0, Some(at("12:25:00"))));
    }

    #[test]
    fn a_month_of_missed_seconds_is_one_line() {
        let cursor = "2026-10-15T00:00:00Z".parse().unwrap();
        let now = at("00:00:00");
        let moment = Moment { cursor, now, until: at("00:00:30") };
        let plan =
            plan(&every("1s"), Misfire::SkipLate(10 * Duration::from_secs(1)), moment, 1_000);
        assert_eq!(plan.runs.len(), LATE_KEPT + 11 + 30);
        let passed_over = plan.passed_over.unwrap();
        assert_eq!(passed_over.first, "2026-10-15T00:01:40Z".parse().unwrap());
        assert_eq!(passed_over.last, "2026-11-14T23:59:49Z".parse().unwrap());
        assert_eq!((passed_over.count, passed_over.exact), (1_000, false));
        assert_eq!(plan.cursor, Some(at("00:00:31")));
    }

    #[test]
    fn a_small_rest_is_counted_exactly() {
        let moment = Moment { cursor: at("10:00:00"), now: at("12:00:00"), until: at("12:00:00") };
        let plan = plan(&every("1m"), Misfire::LatestOnly, moment, 10);
        // 10:00 to 11:59 are 120 missed slots; 12:00 is now and still counts as the latest.
        let passed_over = plan.passed_over.unwrap();
        assert_eq!((passed_over.count, passed_over.exact), (19, true));
        assert_eq!(plan.runs.len(), LATE_KEPT + 2);
    }

    #[test]
    fn a_full_batch_goes_on_where_it_stopped() {
        let moment = Moment { cursor: at("12:00:00"), now: at("11:59:00"), until: at("12:09:00") };
        let first = plan(&every("1m"), Misfire::LatestOnly, moment, 4);
        assert_eq!((first.runs.len(), first.more), (4, true));
        assert_eq!(first.cursor, Some(at("12:04:00")));
        let rest = plan(
            &every("1m"),
            Misfire::LatestOnly,
            Moment { cursor: first.cursor.unwrap(), ..moment },
            100,
        );
        assert_eq!((rest.runs.len(), rest.more), (6, false));
    }

    #[test]
    fn a_waiting_run_is_superseded_by_newer_slots() {
        let moment = Moment { cursor: at("12:00:00"), now: at("11:59:00"), until: at("12:00:00") };
        let skip_at = |policy| plan(&every("1m"), policy, moment, 9).runs[0].skip_at;
        assert_eq!(skip_at(Misfire::LatestOnly), Some(at("12:01:00")));
        assert_eq!(skip_at(Misfire::AtMost(3)), Some(at("12:03:00")));
        assert_eq!(skip_at(Misfire::SkipLate(5 * MINUTE)), Some(at("12:05:00")));
        assert_eq!(skip_at(Misfire::EveryWithin(60 * MINUTE)), Some(at("13:00:00")));
    }

    #[test]
    fn a_schedule_that_never_fires_has_no_cursor() {
        let never =
            Schedule::parse(ScheduleKind::Cron, "0 0 30 2 *", "UTC", DstChoice::default()).unwrap();
        let moment = Moment { cursor: at("12:00:00"), now: at("12:00:00"), until: at("12:30:00") };
        let plan = plan(&never, Misfire::LatestOnly, moment, 9);
        assert_eq!((plan.runs.len(), plan.cursor), (0, None));
    }
}
