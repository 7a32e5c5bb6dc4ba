//! Where a run waits until somebody takes it: by queue, handler and priority.
//!
//! A lane is kept as text with the run and with its place among all that waits, so that workers look for exactly
//! what they can run. Whose turn it is among lanes is decided by [`Priority::counts_from`], and nowhere else.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

use crate::Invalid;
use crate::id::check_name;
use crate::string_enum::words;

/// The longest name of a queue: with the longest handler and priority a lane has 191 characters then.
pub const LONGEST_QUEUE: usize = 32;
/// The longest name of a handler.
pub const LONGEST_HANDLER: usize = 150;

const FUNCTION: &str = "function ";
const DEFAULT: &str = "default";

words! {
    /// How much of a head start a run has before others that wait for the same workers. It is no strict order:
    /// whatever waits long enough has its turn.
    #[derive(Default)]
    pub enum Priority, "priority" {
        /// As if it were due a day later.
        Lowest = "lowest",
        /// As if it were due an hour later.
        Low = "low",
        /// By when it is due.
        #[default]
        Normal = "normal",
        /// As if it had waited an hour longer.
        High = "high",
        /// As if it had waited a day longer.
        Highest = "highest",
    }
}

impl Priority {
    /// How much longer it counts as having waited; less than nothing for the low ones.
    pub const fn head_start(self) -> SignedDuration {
        match self {
            Self::Lowest => SignedDuration::from_hours(-24),
            Self::Low => SignedDuration::from_hours(-1),
            Self::Normal => SignedDuration::ZERO,
            Self::High => SignedDuration::from_hours(1),
            Self::Highest => SignedDuration::from_hours(24),
        }
    }

    /// Since when something counts as waiting that is due then: whoever counts from earlier goes first.
    pub fn counts_from(self, due_at: Timestamp) -> Timestamp {
        due_at.saturating_sub(self.head_start()).unwrap_or(due_at)
    }
}

/// The name of a queue: what waits in it shares the slots that each node has for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue(String);

impl Queue {
    /// The name as it was typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the one that everything is in unless said.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }
}

impl Default for Queue {
    /// `default`
    fn default() -> Self {
        Self(DEFAULT.to_owned())
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Queue {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        if typed.contains('/') || typed.chars().count() > LONGEST_QUEUE {
            let expected = format!("a name of 1 to {LONGEST_QUEUE} characters without a slash");
            return Err(Invalid::typed("queue", typed, expected));
        }
        check_name("queue", typed).map(Self)
    }
}

/// Where the runs of a function wait that any worker may claim that has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// Whose slots it uses.
    pub queue: Queue,
    /// The function.
    pub handler: String,
    /// Its head start.
    pub priority: Priority,
}

impl Lane {
    /// In the default queue, at normal priority.
    pub fn new(handler: impl Into<String>) -> Self {
        Self { queue: Queue::default(), handler: handler.into(), priority: Priority::default() }
    }
}

impl fmt::Display for Lane {
    /// As it is kept. What is as usual is kept as it was before there were queues and priorities.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, handler, priority } = self;
        match queue.is_default() && *priority == Priority::Normal {
            true => write!(f, "{FUNCTION}{handler}"),
            // The priority first: it is one of five words, none of which is "function", and ends at the first
            // space. The queue has no slash.
            false => write!(f, "{priority} {queue}/{handler}"),
        }
    }
}

impl FromStr for Lane {
    type Err = Invalid;

    /// Back from how it is kept, and from nothing else: the leader's lane and that of commands are refused.
    fn from_str(kept: &str) -> Result<Self, Invalid> {
        let strange = || Invalid::typed("lane", kept, "the lane of a function");
        let lane = match kept.strip_prefix(FUNCTION) {
            Some(handler) => Self::new(handler),
            None => {
                let (priority, rest) = kept.split_once(' ').ok_or_else(strange)?;
                let (queue, handler) = rest.split_once('/').ok_or_else(strange)?;
                Self {
                    queue: queue.parse().map_err(|_| strange())?,
                    handler: handler.to_owned(),
                    priority: priority.parse().map_err(|_| strange())?,
                }
            }
        };
        // One lane has one spelling: two would be two lanes.
        match !lane.handler.is_empty() && lane.to_string() == kept {
            true => Ok(lane),
            false => Err(strange()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane(queue: &str, handler: &str, priority: Priority) -> Lane {
        Lane { queue: queue.parse().unwrap(), handler: handler.to_owned(), priority }
    }

    #[test]
    fn what_is_as_usual_is_kept_as_it_always_was() {
        assert_eq!(Lane::new("send_mail").to_string(), "function send_mail");
        for (lane, kept) in [
            (lane("default", "f", Priority::High), "high default/f"),
            (lane("mail", "f", Priority::Normal), "normal mail/f"),
            (lane("遅い 仕事", "a/b c", Priority::Lowest), "lowest 遅い 仕事/a/b c"),
        ] {
            assert_eq!(lane.to_string(), kept);
            assert_eq!(kept.parse(), Ok(lane));
        }
    }

    #[test]
    fn other_lanes_and_other_spellings_are_refused() {
        for kept in
            ["", "commands", "function ", "bulk", "normal default/f", "urgent mail/f", "high mail"]
        {
            assert!(kept.parse::<Lane>().is_err(), "{kept:?}");
        }
    }

    #[test]
    fn names_of_queues_are_names() {
        for wrong in ["", " a", "a/b", "a\0", "a\u{200b}", &"x".repeat(33)] {
            assert_eq!(wrong.parse::<Queue>().unwrap_err().field, "queue", "{wrong:?}");
        }
        let refused = "a/b".parse::<Queue>().unwrap_err();
        let expected = "a name of 1 to 32 characters without a slash";
        assert_eq!(refused.to_string(), format!("queue: found \"a/b\", expected {expected}"));
        assert!(Queue::default().is_default());
    }

    #[test]
    fn the_longest_lane_fits_its_column() {
        let queue = "q".repeat(LONGEST_QUEUE);
        let longest = lane(&queue, &"h".repeat(LONGEST_HANDLER), Priority::Highest);
        assert_eq!(longest.to_string().len(), 191);
    }

    /// Whatever waits has its turn: after two days and a little nothing new goes before it, at any priority.
    #[test]
    fn a_head_start_is_no_strict_order() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let (low, normal, high) = (Priority::Low, Priority::Normal, Priority::High);
        assert!(high.counts_from(now) < normal.counts_from(now));
        assert!(normal.counts_from(now) < low.counts_from(now));
        let an_hour = SignedDuration::from_hours(1);
        let waited = now - an_hour - SignedDuration::from_secs(1);
        assert!(low.counts_from(waited) < normal.counts_from(now));
        assert!(normal.counts_from(waited) < high.counts_from(now));
        let two_days = SignedDuration::from_hours(48) + SignedDuration::from_secs(1);
        let lowest = Priority::Lowest.counts_from(now - two_days);
        assert!(lowest < Priority::Highest.counts_from(now));
        assert_eq!(Priority::Highest.counts_from(Timestamp::MIN), Timestamp::MIN);
    }

    proptest! {
        /// No two lanes are kept as one, and each reads back.
        #[test]
        fn a_lane_reads_back_as_it_was_kept(
            queue in "[a-z 日/]{1,34}",
            handler in "[a-z 日/.]{1,20}",
            priority in prop::sample::select(Priority::ALL),
        ) {
            if let Ok(queue) = queue.parse::<Queue>() {
                let lane = Lane { queue, handler, priority };
                prop_assert_eq!(lane.to_string().parse(), Ok(lane));
            }
        }

        /// Nothing that is typed there by hand makes it stumble.
        #[test]
        fn whatever_reads_is_spelt_as_it_was(kept in "(function|high|normal|x)? ?(default|q)?/?.{0,8}") {
            if let Ok(lane) = kept.parse::<Lane>() {
                prop_assert_eq!(lane.to_string(), kept);
            }
        }
    }
}
