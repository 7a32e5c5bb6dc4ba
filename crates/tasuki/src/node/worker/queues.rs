//! Which slots a worker has, and which lanes it claims from: for every function it has, each queue it serves and each
//! priority.

use std::collections::BTreeMap;

use tasuki_core::job_spec::COMMAND_LANE;
use tasuki_core::{Invalid, Lane, Priority, Queue, Settings};

/// Whose slots a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pool {
    /// Those for commands that a leader assigns.
    Commands,
    /// Those for commands that it claims: as many again, so that neither keeps the other from its turn.
    Claimed,
    /// Those of a queue of functions, by its number on this node. The default queue is number 0, and what a leader
    /// assigns counts there, too.
    Queue(usize),
}

/// How many a worker runs at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) commands: u32,
    /// Of each queue, by its number.
    pub(crate) queues: Vec<u32>,
}

impl Slots {
    pub(crate) fn of(&self, pool: Pool) -> u32 {
        match pool {
            Pool::Commands | Pool::Claimed => self.commands,
            Pool::Queue(number) => self.queues.get(number).copied().unwrap_or(0),
        }
    }

    /// Of all queues together.
    pub(crate) fn functions(&self) -> u32 {
        self.queues.iter().fold(0, |sum, slots| sum.saturating_add(*slots))
    }

    /// All there are.
    pub(crate) fn pools(&self) -> impl Iterator<Item = Pool> + use<> {
        let commands = [Pool::Commands, Pool::Claimed];
        commands.into_iter().chain((0..self.queues.len()).map(Pool::Queue))
    }
}

/// A lane that a worker claims from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) lane: String,
    pub(crate) pool: Pool,
    pub(crate) priority: Priority,
}

impl Source {
    /// Where commands wait that any worker may claim.
    pub(crate) fn commands() -> Self {
        let lane = COMMAND_LANE.to_owned();
        Self { lane, pool: Pool::Claimed, priority: Priority::Normal }
    }
}

/// The queues a node takes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    /// `None`: as many as the settings say.
    default: Option<u32>,
    others: BTreeMap<Queue, u32>,
}

impl Queues {
    /// Those that were asked for, and the default one.
    pub(crate) fn new(asked: &[(String, u32)]) -> Result<Self, Invalid> {
        let mut queues = Self::default();
        for (name, slots) in asked {
            let queue: Queue = name.parse()?;
            match queue.is_default() {
                true => queues.default = Some(*slots),
                false => drop(queues.others.insert(queue, *slots)),
            }
        }
        Ok(queues)
    }

    /// How many functions of each at once, under these settings.
    pub(crate) fn slots(&self, settings: &Settings) -> Vec<u32> {
        let default = self.default.unwrap_or_else(|| settings.function_slots());
        std::iter::once(default).chain(self.others.values().copied()).collect()
    }

    /// Where these functions wait. What counts alike goes by this order: the higher priority first.
    pub(crate) fn sources<'h>(&self, handlers: impl Iterator<Item = &'h str>) -> Vec<Source> {
        let default = (Queue::default(), self.default != Some(0));
        let others = self.others.iter().map(|(queue, slots)| (queue.clone(), *slots > 0));
        let queues: Vec<_> = std::iter::once(default).chain(others).collect();
        let mut sources = Vec::new();
        for handler in handlers {
            for (number, (queue, served)) in queues.iter().enumerate() {
                for &priority in Priority::ALL.iter().filter(|_| *served) {
                    let lane = Lane { queue: queue.clone(), priority, ..Lane::new(handler) };
                    let (lane, pool) = (lane.to_string(), Pool::Queue(number));
                    sources.push(Source { lane, pool, priority });
                }
            }
        }
        sources.sort_by_key(|source| std::cmp::Reverse(source.priority));
        sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(asked: &[(&str, u32)]) -> Queues {
        let asked: Vec<_> =
            asked.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect();
        Queues::new(&asked).unwrap()
    }

    #[test]
    fn a_worker_looks_in_every_lane_of_what_it_serves() {
        let sources = queues(&[("slow", 2), ("closed", 0)]).sources(["f", "g"].into_iter());
        assert_eq!(sources.len(), 2 * 2 * Priority::ALL.len());
        let of = |lane: &str| sources.iter().find(|source| source.lane == lane);
        assert_eq!(of("function f").unwrap().pool, Pool::Queue(0));
        assert_eq!(of("highest slow/g").unwrap().pool, Pool::Queue(2));
        assert_eq!(of("low default/g").unwrap().priority, Priority::Low);
        assert!(of("normal closed/f").is_none());
        assert_eq!(sources[0].priority, Priority::Highest);
    }

    #[test]
    fn the_default_queue_has_what_the_settings_say_unless_it_is_told() {
        let settings = Settings::default();
        let usual = settings.function_slots();
        assert_eq!(queues(&[]).slots(&settings), [usual]);
        assert_eq!(queues(&[("slow", 2)]).slots(&settings), [usual, 2]);
        assert_eq!(queues(&[("default", 7), ("slow", 2), ("slow", 3)]).slots(&settings), [7, 3]);
        let closed = queues(&[("default", 0), ("slow", 2)]);
        assert_eq!(closed.slots(&settings), [0, 2]);
        let served = closed.sources(["f"].into_iter());
        assert!(served.iter().all(|source| source.pool == Pool::Queue(1)));
        let slots = Slots { commands: 4, queues: closed.slots(&settings) };
        assert_eq!(
            (slots.functions(), slots.of(Pool::Commands), slots.of(Pool::Queue(1))),
            (2, 4, 2)
        );
        let asked = [("a/b".to_owned(), 1)];
        assert_eq!(Queues::new(&asked).unwrap_err().field, "queue");
    }
}
