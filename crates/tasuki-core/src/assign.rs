//! Which worker takes a run.
//!
//! The least loaded fresh worker that has the labels and the room; ties go to the freshest
//! heartbeat. The leader plans and takes only what no other can.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::{JobId, RunId, Scope, WorkerId};

/// Runs that start within this of one another compete for the same room; something due in half a
/// minute blocks nothing that is due now.
const SAME_MOMENT: SignedDuration = SignedDuration::from_secs(1);

/// What is known of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which incarnation.
    pub worker: WorkerId,
    /// Its last heartbeat by the database's clock.
    pub heartbeat_at: Timestamp,
    /// Whether it takes new work at all.
    pub standing: Standing,
    /// Whether it is the leader itself.
    pub is_leader: bool,
    /// What it is good for: `gpu`, `tokyo`, `queue=mail`.
    pub labels: BTreeSet<String>,
    /// How many runs it takes at once.
    pub limit: u32,
    /// How many are RUNNING on it.
    pub running: u32,
    /// When each run that is ASSIGNED to it is due.
    pub assigned_due: Vec<Timestamp>,
}

/// Whether a worker takes new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Yes.
    Active,
    /// No: it finishes what it has.
    Draining,
    /// No: it was cut off.
    Detached,
}

/// A run to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub run: RunId,
    /// When it is to start.
    pub due_at: Timestamp,
    /// The labels its worker must have.
    pub labels: BTreeSet<String>,
    /// What it must not overlap with: other runs of the same.
    pub alone: Option<(JobId, Scope)>,
}

/// Why a worker does not take a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It finishes what it has.
    Draining,
    /// It was cut off.
    Detached,
    /// Its last heartbeat is too old.
    Stale,
    /// It lacks this label.
    Label(String),
    /// It has as much as it takes.
    Full,
}

/// Where one run goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Which run.
    pub run: RunId,
    /// To whom.
    pub worker: WorkerId,
}

impl Candidate {
    /// Why it would not take the run, if so.
    pub fn refuses(
        &self,
        wanted: &Wanted,
        now: Timestamp,
        heartbeat_ttl: Duration,
    ) -> Option<Refusal> {
        match self.standing {
            Standing::Detached => return Some(Refusal::Detached),
            Standing::Draining => return Some(Refusal::Draining),
            Standing::Active => {}
        }
        if now.duration_since(self.heartbeat_at) > signed(heartbeat_ttl) {
            return Some(Refusal::Stale);
        }
        if let Some(missing) = wanted.labels.difference(&self.labels).next() {
            return Some(Refusal::Label(missing.clone()));
        }
        (self.occupied_at(wanted.due_at, now) >= self.limit).then_some(Refusal::Full)
    }

    /// How much of its room is taken at that moment: what runs, what is due within a second, and what
    /// starts about when the run does.
    fn occupied_at(&self, moment: Timestamp, now: Timestamp) -> u32 {
        let competes = |due: &&Timestamp| {
            due.duration_since(now) <= SAME_MOMENT
                || due.duration_since(moment).abs() <= SAME_MOMENT
        };
        self.running + self.assigned_due.iter().filter(competes).count() as u32
    }

    /// All it has been given.
    fn load(&self) -> usize {
        self.running as usize + self.assigned_due.len()
    }
}

/// The worker that takes the run, if there is one.
pub fn choose<'a>(
    wanted: &Wanted,
    candidates: &'a [Candidate],
    now: Timestamp,
    heartbeat_ttl: Duration,
) -> Option<&'a Candidate> {
    candidates
        .iter()
        .filter(|candidate| candidate.refuses(wanted, now, heartbeat_ttl).is_none())
        .min_by_key(|candidate| {
            let freshest = std::cmp::Reverse(candidate.heartbeat_at);
            (candidate.is_leader, candidate.load(), freshest, candidate.worker)
        })
}

/// Places runs, page by page, each choice seeing the ones before it. Room that becomes free meanwhile is for the
/// next time: then it goes to what has waited longest.
#[derive(Debug, Clone)]
pub struct Placing {
    candidates: Vec<Candidate>,
    /// Of each (job, scope) that allows one run at a time, the first one was looked at.
    looked_at: HashSet<(JobId, Scope)>,
    now: Timestamp,
    heartbeat_ttl: Duration,
}

impl Placing {
    /// Among these, at this time.
    pub fn new(candidates: Vec<Candidate>, now: Timestamp, heartbeat_ttl: Duration) -> Self {
        Self { candidates, looked_at: HashSet::new(), now, heartbeat_ttl }
    }

    /// Whether anybody can take anything that is due now.
    pub fn has_room(&self) -> bool {
        let bare = |candidate: &Candidate| Wanted {
            run: RunId(0),
            due_at: self.now,
            labels: candidate.labels.clone(),
            alone: None,
        };
        let takes = |candidate: &Candidate| {
            candidate.refuses(&bare(candidate), self.now, self.heartbeat_ttl).is_none()
        };
        self.candidates.iter().any(takes)
    }

    /// Places runs in the order given. What finds no worker is left out and stays due; and of runs that must
    /// not overlap, none goes before an earlier one that is left.
    pub fn place(&mut self, wanted: &[Wanted]) -> Vec<Assignment> {
        let mut assignments = Vec::new();
        for one in wanted {
            if let Some(alone) = &one.alone
                && !self.looked_at.insert(alone.clone())
            {
                continue;
            }
            let chosen = choose(one, &self.candidates, self.now, self.heartbeat_ttl);
            let Some(worker) = chosen.map(|chosen| chosen.worker) else { continue };
            let chosen = self.candidates.iter_mut().find(|candidate| candidate.worker == worker);
            chosen.expect("chosen from these").assigned_due.push(one.due_at);
            assignments.push(Assignment { run: one.run, worker });
        }
        assignments
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn labels(labels: &[&str]) -> BTreeSet<String> {
        labels.iter().map(|&label| label.to_owned()).collect()
    }

    fn worker(number: u128) -> Candidate {
        Candidate {
            worker: WorkerId::from_random(number),
            heartbeat_at: at(0),
            standing: Standing::Active,
            is_leader: false,
            labels: labels(&["tokyo"]),
            limit: 4,
            running: 1,
            assigned_due: vec![],
        }
    }

    fn wanted(due: i64) -> Wanted {
        Wanted { run: RunId(1), due_at: at(due), labels: labels(&[]), alone: None }
    }

    #[test]
    fn the_best_of_two() {
        let plain = worker(1);
        let table = [
            ("less loaded", worker(2), Candidate { running: 0, ..worker(3) }),
            ("fresher on a tie", worker(2), Candidate { heartbeat_at: at(1), ..worker(3) }),
            (
                "load counts what is assigned",
                Candidate { assigned_due: vec![at(25)], ..worker(2) },
                plain.clone(),
            ),
            (
                "not the leader",
                Candidate { running: 0, is_leader: true, ..worker(2) },
                plain.clone(),
            ),
            (
                "not draining",
                Candidate { running: 0, standing: Standing::Draining, ..worker(2) },
                plain.clone(),
            ),
            (
                "not detached",
                Candidate { running: 0, standing: Standing::Detached, ..worker(2) },
                plain.clone(),
            ),
            (
                "not stale",
                Candidate { running: 0, heartbeat_at: at(-5), ..worker(2) },
                plain.clone(),
            ),
            ("not full", Candidate { running: 0, limit: 0, ..worker(2) }, plain),
        ];
        for (why, worse, better) in table {
            for order in [[worse.clone(), better.clone()], [better.clone(), worse]] {
                let chosen = choose(&wanted(0), &order, at(1), TTL).map(|c| c.worker);
                assert_eq!(chosen, Some(better.worker), "{why}");
            }
        }
    }

    #[test]
    fn the_leader_takes_what_no_other_can() {
        let leader = Candidate { is_leader: true, ..worker(1) };
        let full = Candidate { running: 4, ..worker(2) };
        let workers = [leader.clone(), full];
        assert_eq!(choose(&wanted(0), &workers, at(0), TTL), Some(&leader));
    }

    #[test]
    fn labels_are_respected() {
        let with_gpu = Candidate { labels: labels(&["gpu", "tokyo"]), running: 3, ..worker(1) };
        let want = Wanted { labels: labels(&["gpu"]), ..wanted(0) };
        assert_eq!(worker(2).refuses(&want, at(0), TTL), Some(Refusal::Label("gpu".to_owned())));
        assert_eq!(choose(&want, &[worker(2), with_gpu.clone()], at(0), TTL), Some(&with_gpu));
        assert_eq!(choose(&want, &[worker(2)], at(0), TTL), None);
    }

    #[test]
    fn room_is_what_runs_and_what_starts_about_then() {
        let busy = |running, assigned: &[i64]| {
            let assigned_due = assigned.iter().map(|&due| at(due)).collect();
            Candidate { running, assigned_due, ..worker(1) }
        };
        let now = at(0);
        let full = |candidate: Candidate, due| {
            candidate.refuses(&wanted(due), now, TTL) == Some(Refusal::Full)
        };
        assert!(full(busy(4, &[]), 0));
        assert!(full(busy(2, &[0, 1]), 0), "about to start");
        assert!(full(busy(2, &[-3, 0]), 0), "should have started");
        assert!(!full(busy(2, &[29, 30]), 0), "due in half a minute blocks nothing due now");
        assert!(full(busy(2, &[29, 30]), 30), "but it does block what starts with it");
        assert!(!full(busy(2, &[10, 10]), 30), "short work will be over by then");
        assert!(full(busy(2, &[0, 1]), 30), "what is due within a second counts as running");
    }

    #[test]
    fn a_batch_is_spread_and_what_does_not_fit_is_left() {
        let run = |id| Wanted { run: RunId(id), ..wanted(0) };
        let runs: Vec<Wanted> = (1..=9).map(run).collect();
        let workers =
            vec![Candidate { running: 0, ..worker(1) }, Candidate { running: 0, ..worker(2) }];
        let placed = Placing::new(workers, at(0), TTL).place(&runs);
        assert_eq!(placed.len(), 8, "two workers of four");
        let first: Vec<WorkerId> = placed.iter().map(|one| one.worker).take(2).collect();
        assert_ne!(first[0], first[1], "taken in turns");
        assert_eq!(placed.iter().filter(|one| one.worker == first[0]).count(), 4);
    }

    /// Else one that is due much later would have the only place until then.
    #[test]
    fn none_of_a_job_that_runs_alone_goes_before_an_earlier_one() {
        let alone = Some((JobId(1), Scope::default()));
        let run = |id, due| Wanted { run: RunId(id), alone: alone.clone(), ..wanted(due) };
        let busy = Candidate { running: 3, assigned_due: vec![at(5)], ..worker(1) };
        let mut placing = Placing::new(vec![busy], at(0), TTL);
        assert_eq!(placing.place(&[run(1, 5)]), [], "there is no room at that time");
        assert_eq!(placing.place(&[run(2, 20)]), [], "there is, but not for this one");
        let other = Wanted { run: RunId(3), ..wanted(20) };
        assert_eq!(placing.place(&[other]).len(), 1);
    }

    #[test]
    fn what_was_placed_before_counts_on_the_next_page() {
        let idle = Candidate { running: 0, ..worker(1) };
        let mut placing = Placing::new(vec![idle], at(0), TTL);
        let page = |ids: std::ops::Range<i64>, due| -> Vec<Wanted> {
            ids.map(|id| Wanted { run: RunId(id), ..wanted(due) }).collect()
        };
        assert_eq!(placing.place(&page(1..10, 0)).len(), 4);
        assert_eq!(placing.place(&page(10..20, 20)), []);
    }

    #[test]
    fn nobody_there_nothing_assigned() {
        assert_eq!(Placing::new(vec![], at(0), TTL).place(&[wanted(0)]), []);
    }
}
