//! Chooses a worker for a run.
//!
//! The leader assigns a run to the least loaded worker that has a fresh heartbeat, the labels and a free
//! slot. On a tie, the newest heartbeat wins. The leader's own worker gets only the runs that no other
//! worker can take, because the leader also plans.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::{JobId, RunId, RunScope, WorkerId};

/// Two runs compete for a slot if their due times differ by at most this. A run that is due in half a
/// minute does not block a slot for a run that is due now.
const SAME_TIME_WINDOW: SignedDuration = SignedDuration::from_secs(1);

/// A worker that the leader may assign runs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCandidate {
    /// The worker's id, which is new at each start of its process.
    pub worker: WorkerId,
    /// The time of its last heartbeat by the database's clock.
    pub heartbeat_at: Timestamp,
    /// Whether it accepts new runs.
    pub availability: WorkerAvailability,
    /// Whether this worker's node is the leader.
    pub is_leader: bool,
    /// The labels of the worker: `gpu`, `tokyo`, `queue=mail`.
    pub labels: BTreeSet<String>,
    /// Maximum number of runs at the same time (its slots).
    pub max_runs: u32,
    /// The number of runs that are RUNNING on it.
    pub running: u32,
    /// The due times of the runs that are ASSIGNED to it.
    pub assigned_due: Vec<Timestamp>,
}

/// Whether a worker accepts new runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerAvailability {
    /// It accepts new runs.
    Active,
    /// It accepts no new runs and finishes its current ones.
    Draining,
    /// It accepts no new runs: the leader declared it dead.
    Detached,
}

/// A run that needs a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunToPlace {
    /// The id of the run.
    pub run: RunId,
    /// The time at which the run must start.
    pub due_at: Timestamp,
    /// The labels that the worker must have.
    pub labels: BTreeSet<String>,
    /// The (job, scope) of the hold that the run needs, if its job allows one run at a time.
    pub hold_key: Option<(JobId, RunScope)>,
}

/// Why a worker cannot take a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignRefusal {
    /// The worker is draining.
    Draining,
    /// The worker is detached.
    Detached,
    /// The worker's last heartbeat is too old.
    Stale,
    /// The worker does not have this label.
    Label(String),
    /// The worker has no free slot at that time.
    Full,
}

/// The worker chosen for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// The run to assign.
    pub run: RunId,
    /// The chosen worker.
    pub worker: WorkerId,
}

impl WorkerCandidate {
    /// The reason why this worker cannot take the run; `None`: it can.
    pub fn refusal(
        &self,
        run: &RunToPlace,
        now: Timestamp,
        heartbeat_ttl: Duration,
    ) -> Option<AssignRefusal> {
        match self.availability {
            WorkerAvailability::Detached => return Some(AssignRefusal::Detached),
            WorkerAvailability::Draining => return Some(AssignRefusal::Draining),
            WorkerAvailability::Active => {}
        }
        if now.duration_since(self.heartbeat_at) > signed(heartbeat_ttl) {
            return Some(AssignRefusal::Stale);
        }
        if let Some(missing) = run.labels.difference(&self.labels).next() {
            return Some(AssignRefusal::Label(missing.clone()));
        }
        (self.used_slots_at(run.due_at, now) >= self.max_runs).then_some(AssignRefusal::Full)
    }

    /// The number of slots in use at `start`: running runs, assigned runs that are due within a second
    /// from now, and assigned runs that start at about the same time.
    fn used_slots_at(&self, start: Timestamp, now: Timestamp) -> u32 {
        let competes = |due: &&Timestamp| {
            due.duration_since(now) <= SAME_TIME_WINDOW
                || due.duration_since(start).abs() <= SAME_TIME_WINDOW
        };
        self.running + self.assigned_due.iter().filter(competes).count() as u32
    }

    /// The number of runs that are running on it or assigned to it.
    fn load(&self) -> usize {
        self.running as usize + self.assigned_due.len()
    }
}

/// The best worker for the run; `None`: no worker can take it.
pub fn choose_worker<'a>(
    run: &RunToPlace,
    candidates: &'a [WorkerCandidate],
    now: Timestamp,
    heartbeat_ttl: Duration,
) -> Option<&'a WorkerCandidate> {
    candidates
        .iter()
        .filter(|candidate| candidate.refusal(run, now, heartbeat_ttl).is_none())
        .min_by_key(|candidate| {
            let freshest = std::cmp::Reverse(candidate.heartbeat_at);
            (candidate.is_leader, candidate.load(), freshest, candidate.worker)
        })
}

/// Chooses workers for several pages of runs. Each choice takes the earlier choices into account. Slots that become
/// free in the meantime are not used: the next planner pass gives them to the runs that have waited longest.
#[derive(Debug, Clone)]
pub struct PlacementPlanner {
    candidates: Vec<WorkerCandidate>,
    /// Hold keys whose first run was already handled; later runs with the same key are left waiting.
    seen_hold_keys: HashSet<(JobId, RunScope)>,
    now: Timestamp,
    heartbeat_ttl: Duration,
}

impl PlacementPlanner {
    /// Starts with these workers, as observed at `now`.
    pub fn new(candidates: Vec<WorkerCandidate>, now: Timestamp, heartbeat_ttl: Duration) -> Self {
        Self { candidates, seen_hold_keys: HashSet::new(), now, heartbeat_ttl }
    }

    /// Whether some worker can take a run that is due now.
    pub fn has_free_slot(&self) -> bool {
        let unrestricted_run = |candidate: &WorkerCandidate| RunToPlace {
            run: RunId(0),
            due_at: self.now,
            labels: candidate.labels.clone(),
            hold_key: None,
        };
        let can_take = |candidate: &WorkerCandidate| {
            candidate.refusal(&unrestricted_run(candidate), self.now, self.heartbeat_ttl).is_none()
        };
        self.candidates.iter().any(can_take)
    }

    /// Chooses workers for the runs, in this order. A run without a suitable worker is left out and stays due. Of runs
    /// with the same hold key, only the first one is considered, so that none overtakes an earlier one.
    pub fn place_runs(&mut self, runs: &[RunToPlace]) -> Vec<Assignment> {
        let mut assignments = Vec::new();
        for run in runs {
            if let Some(hold_key) = &run.hold_key
                && !self.seen_hold_keys.insert(hold_key.clone())
            {
                continue;
            }
            let chosen = choose_worker(run, &self.candidates, self.now, self.heartbeat_ttl);
            let Some(worker) = chosen.map(|chosen| chosen.worker) else { continue };
            let chosen = self.candidates.iter_mut().find(|candidate| candidate.worker == worker);
            chosen.expect("the worker is one of the candidates").assigned_due.push(run.due_at);
            assignments.push(Assignment { run: run.run, worker });
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

    fn worker(number: u128) -> WorkerCandidate {
        WorkerCandidate {
            worker: WorkerId::from_random(number),
            heartbeat_at: at(0),
            availability: WorkerAvailability::Active,
            is_leader: false,
            labels: labels(&["tokyo"]),
            max_runs: 4,
            running: 1,
            assigned_due: vec![],
        }
    }

    fn run(due: i64) -> RunToPlace {
        RunToPlace { run: RunId(1), due_at: at(due), labels: labels(&[]), hold_key: None }
    }

    #[test]
    fn the_better_of_two_workers_is_chosen() {
        let plain = worker(1);
        let table = [
            ("less loaded", worker(2), WorkerCandidate { running: 0, ..worker(3) }),
            ("fresher on a tie", worker(2), WorkerCandidate { heartbeat_at: at(1), ..worker(3) }),
            (
                "load counts what is assigned",
                WorkerCandidate { assigned_due: vec![at(25)], ..worker(2) },
                plain.clone(),
            ),
            (
                "not the leader",
                WorkerCandidate { running: 0, is_leader: true, ..worker(2) },
                plain.clone(),
            ),
            (
                "not draining",
                WorkerCandidate {
                    running: 0,
                    availability: WorkerAvailability::Draining,
                    ..worker(2)
                },
                plain.clone(),
            ),
            (
                "not detached",
                WorkerCandidate {
                    running: 0,
                    availability: WorkerAvailability::Detached,
                    ..worker(2)
                },
                plain.clone(),
            ),
            (
                "not stale",
                WorkerCandidate { running: 0, heartbeat_at: at(-5), ..worker(2) },
                plain.clone(),
            ),
            ("not full", WorkerCandidate { running: 0, max_runs: 0, ..worker(2) }, plain),
        ];
        for (why, worse, better) in table {
            for order in [[worse.clone(), better.clone()], [better.clone(), worse]] {
                let chosen = choose_worker(&run(0), &order, at(1), TTL).map(|c| c.worker);
                assert_eq!(chosen, Some(better.worker), "{why}");
            }
        }
    }

    #[test]
    fn the_leader_gets_runs_that_no_other_worker_can_take() {
        let leader = WorkerCandidate { is_leader: true, ..worker(1) };
        let full = WorkerCandidate { running: 4, ..worker(2) };
        let workers = [leader.clone(), full];
        assert_eq!(choose_worker(&run(0), &workers, at(0), TTL), Some(&leader));
    }

    #[test]
    fn a_worker_needs_the_labels_of_the_run() {
        let with_gpu =
            WorkerCandidate { labels: labels(&["gpu", "tokyo"]), running: 3, ..worker(1) };
        let gpu_run = RunToPlace { labels: labels(&["gpu"]), ..run(0) };
        assert_eq!(
            worker(2).refusal(&gpu_run, at(0), TTL),
            Some(AssignRefusal::Label("gpu".to_owned()))
        );
        assert_eq!(
            choose_worker(&gpu_run, &[worker(2), with_gpu.clone()], at(0), TTL),
            Some(&with_gpu)
        );
        assert_eq!(choose_worker(&gpu_run, &[worker(2)], at(0), TTL), None);
    }

    #[test]
    fn used_slots_are_running_runs_and_runs_that_start_at_about_the_same_time() {
        let busy = |running, assigned: &[i64]| {
            let assigned_due = assigned.iter().map(|&due| at(due)).collect();
            WorkerCandidate { running, assigned_due, ..worker(1) }
        };
        let now = at(0);
        let full = |candidate: WorkerCandidate, due| {
            candidate.refusal(&run(due), now, TTL) == Some(AssignRefusal::Full)
        };
        assert!(full(busy(4, &[]), 0));
        assert!(full(busy(2, &[0, 1]), 0), "about to start");
        assert!(full(busy(2, &[-3, 0]), 0), "should have started");
        assert!(!full(busy(2, &[29, 30]), 0), "runs due in half a minute do not block one due now");
        assert!(full(busy(2, &[29, 30]), 30), "but they block one that starts at the same time");
        assert!(!full(busy(2, &[10, 10]), 30), "earlier runs are assumed to have ended by then");
        assert!(full(busy(2, &[0, 1]), 30), "a run due within a second counts as running");
    }

    #[test]
    fn runs_are_spread_over_workers_and_the_rest_is_left_waiting() {
        let with_id = |id| RunToPlace { run: RunId(id), ..run(0) };
        let runs: Vec<RunToPlace> = (1..=9).map(with_id).collect();
        let workers = vec![
            WorkerCandidate { running: 0, ..worker(1) },
            WorkerCandidate { running: 0, ..worker(2) },
        ];
        let placed = PlacementPlanner::new(workers, at(0), TTL).place_runs(&runs);
        assert_eq!(placed.len(), 8, "two workers with four slots each");
        let first: Vec<WorkerId> =
            placed.iter().map(|assignment| assignment.worker).take(2).collect();
        assert_ne!(first[0], first[1], "the workers alternate");
        assert_eq!(placed.iter().filter(|assignment| assignment.worker == first[0]).count(), 4);
    }

    /// Otherwise a run that is due much later would own the hold until then.
    #[test]
    fn a_run_does_not_overtake_an_earlier_run_with_the_same_hold_key() {
        let hold_key = Some((JobId(1), RunScope::default()));
        let with_key =
            |id, due| RunToPlace { run: RunId(id), hold_key: hold_key.clone(), ..run(due) };
        let busy = WorkerCandidate { running: 3, assigned_due: vec![at(5)], ..worker(1) };
        let mut planner = PlacementPlanner::new(vec![busy], at(0), TTL);
        assert_eq!(planner.place_runs(&[with_key(1, 5)]), [], "no slot is free at that time");
        assert_eq!(
            planner.place_runs(&[with_key(2, 20)]),
            [],
            "a slot is free, but an earlier run waits"
        );
        let other = RunToPlace { run: RunId(3), ..run(20) };
        assert_eq!(planner.place_runs(&[other]).len(), 1);
    }

    #[test]
    fn earlier_choices_count_on_the_next_page() {
        let idle = WorkerCandidate { running: 0, ..worker(1) };
        let mut planner = PlacementPlanner::new(vec![idle], at(0), TTL);
        let page = |ids: std::ops::Range<i64>, due| -> Vec<RunToPlace> {
            ids.map(|id| RunToPlace { run: RunId(id), ..run(due) }).collect()
        };
        assert_eq!(planner.place_runs(&page(1..10, 0)).len(), 4);
        assert_eq!(planner.place_runs(&page(10..20, 20)), []);
    }

    #[test]
    fn without_workers_nothing_is_assigned() {
        assert_eq!(PlacementPlanner::new(vec![], at(0), TTL).place_runs(&[run(0)]), []);
    }
}
