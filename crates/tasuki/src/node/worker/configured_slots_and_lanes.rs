//! The slots of a worker and the lanes it claims from: one lane for each combination of a function it has, a queue it
//! serves and a priority.

use std::collections::BTreeMap;

use tasuki_core::work_spec::COMMAND_LANE;
use tasuki_core::{InvalidInput, Lane, Priority, QueueName, Settings};

/// The group of slots that a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotPool {
    /// Slots for commands that a leader assigns.
    Commands,
    /// Slots for commands that the worker claims: as many again, so that assigned and claimed commands do not delay
    /// each other.
    Claimed,
    /// Slots of a queue of functions, by the number of the queue on this node. The default queue is number 0; functions
    /// that a leader assigns use its slots, too.
    Queue(usize),
}

/// Number of slots of each pool of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotCounts {
    /// Slots for commands that a leader assigns; there are as many again for commands that the worker claims.
    pub(crate) commands: u32,
    /// Slots of each queue of functions, by the number of the queue.
    pub(crate) queues: Vec<u32>,
}

impl SlotCounts {
    pub(crate) fn in_pool(&self, pool: SlotPool) -> u32 {
        match pool {
            SlotPool::Commands | SlotPool::Claimed => self.commands,
            SlotPool::Queue(number) => self.queues.get(number).copied().unwrap_or(0),
        }
    }

    /// Sum of the slots of all queues.
    pub(crate) fn function_total(&self) -> u32 {
        self.queues.iter().fold(0, |sum, slots| sum.saturating_add(*slots))
    }

    /// All pools that have slots here.
    pub(crate) fn pools(&self) -> impl Iterator<Item = SlotPool> + use<> {
        let commands = [SlotPool::Commands, SlotPool::Claimed];
        commands.into_iter().chain((0..self.queues.len()).map(SlotPool::Queue))
    }
}

/// A lane that a worker claims from, and the slots that its runs use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneWithSlotPool {
    pub(crate) lane: String,
    pub(crate) pool: SlotPool,
    pub(crate) priority: Priority,
}

impl LaneWithSlotPool {
    /// The lane of commands that any worker may claim.
    pub(crate) fn commands() -> Self {
        let lane = COMMAND_LANE.to_owned();
        Self { lane, pool: SlotPool::Claimed, priority: Priority::Normal }
    }
}

/// The queues that a node serves, with their slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedQueues {
    /// Slots of the default queue. `None`: the setting `function_slots`.
    default: Option<u32>,
    others: BTreeMap<QueueName, u32>,
}

impl ServedQueues {
    /// The default queue and the queues of `configured`, each a name and a number of slots.
    pub(crate) fn new(configured: &[(String, u32)]) -> Result<Self, InvalidInput> {
        let mut queues = Self::default();
        for (name, slots) in configured {
            let queue: QueueName = name.parse()?;
            match queue.is_default() {
                true => queues.default = Some(*slots),
                false => drop(queues.others.insert(queue, *slots)),
            }
        }
        Ok(queues)
    }

    /// Slots of each queue, by its number, under these settings.
    pub(crate) fn function_slots(&self, settings: &Settings) -> Vec<u32> {
        let default = self.default.unwrap_or_else(|| settings.function_slots());
        std::iter::once(default).chain(self.others.values().copied()).collect()
    }

    /// Lanes of these functions, the highest priority first. Among lanes whose first runs are equally urgent, the
    /// earlier one in this list is claimed from first.
    pub(crate) fn lanes<'h>(
        &self,
        handlers: impl Iterator<Item = &'h str>,
    ) -> Vec<LaneWithSlotPool> {
        let default = (QueueName::default(), self.default != Some(0));
        let others = self.others.iter().map(|(queue, slots)| (queue.clone(), *slots > 0));
        let queues: Vec<_> = std::iter::once(default).chain(others).collect();
        let mut lanes = Vec::new();
        for handler in handlers {
            for (number, (queue, served)) in queues.iter().enumerate() {
                for &priority in Priority::ALL.iter().filter(|_| *served) {
                    let lane = Lane { queue: queue.clone(), priority, ..Lane::new(handler) };
                    let (lane, pool) = (lane.to_string(), SlotPool::Queue(number));
                    lanes.push(LaneWithSlotPool { lane, pool, priority });
                }
            }
        }
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.priority));
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(configured: &[(&str, u32)]) -> ServedQueues {
        let configured: Vec<_> =
            configured.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect();
        ServedQueues::new(&configured).unwrap()
    }

    #[test]
    fn lanes_cover_every_function_queue_and_priority() {
        let lanes = queues(&[("slow", 2), ("closed", 0)]).lanes(["f", "g"].into_iter());
        assert_eq!(lanes.len(), 2 * 2 * Priority::ALL.len());
        let of = |name: &str| lanes.iter().find(|lane| lane.lane == name);
        assert_eq!(of("function f").unwrap().pool, SlotPool::Queue(0));
        assert_eq!(of("highest slow/g").unwrap().pool, SlotPool::Queue(2));
        assert_eq!(of("low default/g").unwrap().priority, Priority::Low);
        assert!(of("normal closed/f").is_none());
        assert_eq!(lanes[0].priority, Priority::Highest);
    }

    #[test]
    fn default_queue_uses_the_setting_unless_configured() {
        let settings = Settings::default();
        let setting = settings.function_slots();
        assert_eq!(queues(&[]).function_slots(&settings), [setting]);
        assert_eq!(queues(&[("slow", 2)]).function_slots(&settings), [setting, 2]);
        assert_eq!(
            queues(&[("default", 7), ("slow", 2), ("slow", 3)]).function_slots(&settings),
            [7, 3]
        );
        let closed = queues(&[("default", 0), ("slow", 2)]);
        assert_eq!(closed.function_slots(&settings), [0, 2]);
        let served_lanes = closed.lanes(["f"].into_iter());
        assert!(served_lanes.iter().all(|lane| lane.pool == SlotPool::Queue(1)));
        let slots = SlotCounts { commands: 4, queues: closed.function_slots(&settings) };
        assert_eq!(
            (
                slots.function_total(),
                slots.in_pool(SlotPool::Commands),
                slots.in_pool(SlotPool::Queue(1))
            ),
            (2, 4, 2)
        );
        let configured = [("a/b".to_owned(), 1)];
        assert_eq!(ServedQueues::new(&configured).unwrap_err().field, "queue");
    }
}
