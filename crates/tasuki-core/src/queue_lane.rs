//! Lanes: where the runs of claimable functions wait, by queue, handler and priority.
//!
//! A lane is stored as text in the run and in its due row, so that a worker queries exactly the runs that it can
//! execute. [`Priority::effective_due_at`] alone decides the order between lanes.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

use crate::InvalidInput;
use crate::id::check_name;
use crate::string_enum::string_enum;

/// Maximum length of a queue name in characters. With the longest handler and priority, a lane then has
/// 191 characters, which fit the column.
pub const MAX_QUEUE_CHARS: usize = 32;
/// Maximum length of a handler name in characters.
pub const MAX_HANDLER_CHARS: usize = 150;

/// Prefix of the text of a lane in the default queue at normal priority.
const DEFAULT_LANE_PREFIX: &str = "function ";
const DEFAULT_QUEUE: &str = "default";

string_enum! {
    /// The priority of a run: a head start over other runs that wait for the same slots. It is not a strict order, so
    /// a run of low priority is claimed too once it has waited long enough.
    #[derive(Default)]
    pub enum Priority, "priority" {
        /// Claimed as if it were due a day later.
        Lowest = "lowest",
        /// Claimed as if it were due an hour later.
        Low = "low",
        /// Claimed in the order of due times.
        #[default]
        Normal = "normal",
        /// Claimed as if it were due an hour earlier.
        High = "high",
        /// Claimed as if it were due a day earlier.
        Highest = "highest",
    }
}

impl Priority {
    /// The time that is subtracted from the due time; negative for low priorities.
    pub const fn head_start(self) -> SignedDuration {
        match self {
            Self::Lowest => SignedDuration::from_hours(-24),
            Self::Low => SignedDuration::from_hours(-1),
            Self::Normal => SignedDuration::ZERO,
            Self::High => SignedDuration::from_hours(1),
            Self::Highest => SignedDuration::from_hours(24),
        }
    }

    /// The due time less the head start. The run with the earliest effective due time is claimed first.
    pub fn effective_due_at(self, due_at: Timestamp) -> Timestamp {
        due_at.saturating_sub(self.head_start()).unwrap_or(due_at)
    }
}

/// The name of a queue. Its runs share the slots that each node has for this queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(String);

impl QueueName {
    /// The name as the user typed it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the default queue.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT_QUEUE
    }
}

impl Default for QueueName {
    /// The queue named `default`.
    fn default() -> Self {
        Self(DEFAULT_QUEUE.to_owned())
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for QueueName {
    type Err = InvalidInput;

    fn from_str(typed: &str) -> Result<Self, InvalidInput> {
        if typed.contains('/') || typed.chars().count() > MAX_QUEUE_CHARS {
            let expected = format!("a name of 1 to {MAX_QUEUE_CHARS} characters without a slash");
            return Err(InvalidInput::with_value("queue", typed, expected));
        }
        check_name("queue", typed).map(Self)
    }
}

/// The lane of one function's runs. Any worker that has the function may claim them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The queue whose slots the runs use.
    pub queue: QueueName,
    /// The name of the function.
    pub handler: String,
    /// The priority of the runs.
    pub priority: Priority,
}

impl Lane {
    /// The lane of a function in the default queue at normal priority.
    pub fn new(handler: impl Into<String>) -> Self {
        Self { queue: QueueName::default(), handler: handler.into(), priority: Priority::default() }
    }
}

impl fmt::Display for Lane {
    /// The stored text. The default queue at normal priority keeps the text `function <handler>`, which
    /// is older than queues and priorities.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, handler, priority } = self;
        match queue.is_default() && *priority == Priority::Normal {
            true => write!(f, "{DEFAULT_LANE_PREFIX}{handler}"),
            // This text parses unambiguously: the priority is one of five words without a space, none of
            // which is "function", and the queue contains no slash.
            false => write!(f, "{priority} {queue}/{handler}"),
        }
    }
}

impl FromStr for Lane {
    type Err = InvalidInput;

    /// Parses the stored text. The lane of the leader and the lane of commands are errors.
    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let invalid = || InvalidInput::with_value("lane", text, "the lane of a function");
        let lane = match text.strip_prefix(DEFAULT_LANE_PREFIX) {
            Some(handler) => Self::new(handler),
            None => {
                let (priority, rest) = text.split_once(' ').ok_or_else(invalid)?;
                let (queue, handler) = rest.split_once('/').ok_or_else(invalid)?;
                Self {
                    queue: queue.parse().map_err(|_| invalid())?,
                    handler: handler.to_owned(),
                    priority: priority.parse().map_err(|_| invalid())?,
                }
            }
        };
        // Lanes are compared as text, so only the canonical text is valid.
        match !lane.handler.is_empty() && lane.to_string() == text {
            true => Ok(lane),
            false => Err(invalid()),
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
    fn a_default_lane_keeps_its_old_text() {
        assert_eq!(Lane::new("send_mail").to_string(), "function send_mail");
        for (lane, text) in [
            (lane("default", "f", Priority::High), "high default/f"),
            (lane("mail", "f", Priority::Normal), "normal mail/f"),
            (lane("遅い 仕事", "a/b c", Priority::Lowest), "lowest 遅い 仕事/a/b c"),
        ] {
            assert_eq!(lane.to_string(), text);
            assert_eq!(text.parse(), Ok(lane));
        }
    }

    #[test]
    fn other_lanes_and_non_canonical_texts_are_errors() {
        for text in
            ["", "commands", "function ", "bulk", "normal default/f", "urgent mail/f", "high mail"]
        {
            assert!(text.parse::<Lane>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn invalid_queue_names_are_errors() {
        for wrong in ["", " a", "a/b", "a\0", "a\u{200b}", &"x".repeat(33)] {
            assert_eq!(wrong.parse::<QueueName>().unwrap_err().field, "queue", "{wrong:?}");
        }
        let error = "a/b".parse::<QueueName>().unwrap_err();
        let expected = "a name of 1 to 32 characters without a slash";
        assert_eq!(error.to_string(), format!("queue: found \"a/b\", expected {expected}"));
        assert!(QueueName::default().is_default());
    }

    #[test]
    fn the_longest_lane_fits_its_column() {
        let queue = "q".repeat(MAX_QUEUE_CHARS);
        let longest = lane(&queue, &"h".repeat(MAX_HANDLER_CHARS), Priority::Highest);
        assert_eq!(longest.to_string().len(), 191);
    }

    /// No run starves: after a little more than two days, no new run of any priority precedes it.
    #[test]
    fn priority_is_a_head_start_and_not_a_strict_order() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let (low, normal, high) = (Priority::Low, Priority::Normal, Priority::High);
        assert!(high.effective_due_at(now) < normal.effective_due_at(now));
        assert!(normal.effective_due_at(now) < low.effective_due_at(now));
        let an_hour = SignedDuration::from_hours(1);
        let waited = now - an_hour - SignedDuration::from_secs(1);
        assert!(low.effective_due_at(waited) < normal.effective_due_at(now));
        assert!(normal.effective_due_at(waited) < high.effective_due_at(now));
        let two_days = SignedDuration::from_hours(48) + SignedDuration::from_secs(1);
        let lowest = Priority::Lowest.effective_due_at(now - two_days);
        assert!(lowest < Priority::Highest.effective_due_at(now));
        assert_eq!(Priority::Highest.effective_due_at(Timestamp::MIN), Timestamp::MIN);
    }

    proptest! {
        /// Different lanes have different texts, and each text parses back.
        #[test]
        fn a_lane_parses_back_from_its_text(
            queue in "[a-z 日/]{1,34}",
            handler in "[a-z 日/.]{1,20}",
            priority in prop::sample::select(Priority::ALL),
        ) {
            if let Ok(queue) = queue.parse::<QueueName>() {
                let lane = Lane { queue, handler, priority };
                prop_assert_eq!(lane.to_string().parse(), Ok(lane));
            }
        }

        /// Arbitrary text never panics.
        #[test]
        fn any_text_that_parses_is_canonical(text in "(function|high|normal|x)? ?(default|q)?/?.{0,8}") {
            if let Ok(lane) = text.parse::<Lane>() {
                prop_assert_eq!(lane.to_string(), text);
            }
        }
    }
}
