//! Checks a cluster after a fault: the invariants that must hold after any fault, and how long each reaction took
//! compared with its promised time bound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, RunState};
use tasuki_store::{Execution, Run};

use crate::cluster::Cluster;
use crate::invariants::{self, RunWithAttempts};
use crate::load::{SCHEDULED_JOBS, TRIGGERED_JOBS, list_runs_of};
use crate::test_support::wait_until;

/// A promised time bound for the default settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeBound {
    /// Description of the measured time.
    pub label: &'static str,
    /// Maximum number of seconds; `None` if nothing is promised.
    pub seconds: Option<f64>,
}

impl TimeBound {
    pub(crate) const NEXT_LEADER: Self =
        Self { label: "first write of the next leader", seconds: Some(8.0) };
    pub(crate) const SUCCESSOR: Self =
        Self { label: "first write of the next leader after SIGTERM", seconds: Some(2.0) };
    const HEALTHY: Self = Self { label: "start of a due run, healthy (p99)", seconds: Some(0.05) };
    const ACROSS: Self =
        Self { label: "start of a due run, across a failover (worst)", seconds: Some(11.0) };
    const OUTAGE: Self =
        Self { label: "start of a due run, across a database outage (worst)", seconds: None };
    pub(crate) const RESTARTED: Self =
        Self { label: "recovery of runs of a killed and restarted worker", seconds: Some(10.0) };
    pub(crate) const NODE_LOST: Self =
        Self { label: "recovery of runs of a lost node", seconds: Some(45.0) };
    pub(crate) const RECORDED: Self =
        Self { label: "results stored after the database's return", seconds: Some(10.0) };
    const HEALED: Self =
        Self { label: "all due runs started or skipped after the heal", seconds: Some(30.0) };
}

/// A measured time and its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// What was measured, and its promised maximum.
    pub bound: TimeBound,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// The result of the checks.
#[derive(Debug, Default)]
pub struct CheckResult {
    /// Violated invariants, as texts for people. Empty if all checks passed.
    pub violations: Vec<String>,
    /// Measured times with their bounds.
    pub measurements: Vec<Measurement>,
    /// Counts for the report, for example of executed slots and terms.
    pub counts: BTreeMap<&'static str, usize>,
}

/// What a fault recorded while it ran.
#[derive(Debug, Default)]
pub(crate) struct FaultRecord {
    pub(crate) broke_at: Timestamp,
    pub(crate) healed_at: Timestamp,
    /// Set if another leader must follow this epoch: the epoch, and the bound for the start of the next term.
    pub(crate) takeover: Option<(Epoch, TimeBound)>,
    pub(crate) measurements: Vec<Measurement>,
    pub(crate) violations: Vec<String>,
    /// Whether the database was unavailable, so that no leader could plan.
    pub(crate) outage: bool,
}

impl Cluster {
    /// Waits until the cluster has recovered, stops it in order, and checks everything.
    pub(crate) fn check_after_fault(&mut self, record: FaultRecord) -> CheckResult {
        let FaultRecord { broke_at, healed_at, takeover, measurements, violations, outage } =
            record;
        let mut result = CheckResult { violations, measurements, counts: BTreeMap::new() };
        self.wait_until_not_overdue();
        let settled = Timestamp::now();
        self.wait_until_jobs_succeed(healed_at);
        let disabled_at = self.query_store(async |store| store.read_clock().await);
        self.stop_load();
        let runs_by_job: BTreeMap<&str, Vec<RunWithAttempts>> = SCHEDULED_JOBS
            .iter()
            .map(|job| job.name)
            .chain(TRIGGERED_JOBS)
            .map(|job| (job, self.read_runs_with_attempts(job)))
            .collect();
        let trace = self.read_trace();
        // A job that outlived its run writes five lines in this second; they are found by `lines_after` below.
        thread::sleep(Duration::from_secs(1));
        for job in &SCHEDULED_JOBS {
            invariants::check_slots(job, &runs_by_job[job.name], disabled_at, &trace, &mut result);
        }
        let all_runs: Vec<&RunWithAttempts> = runs_by_job.values().flatten().collect();
        invariants::check_attempts(&all_runs, &trace, &mut result);
        self.check_terms(&all_runs, &mut result);
        if let Some((old, bound)) = takeover {
            // The first write of a new leader is its term row. Assignments come later, when there are due runs.
            let terms = self.query_store(async |store| store.list_terms().await);
            let next = terms.iter().filter(|term| term.epoch > old).map(|term| term.began_at).min();
            match next {
                Some(next) => {
                    result
                        .measurements
                        .push(Measurement { bound, seconds: seconds_between(broke_at, next) });
                }
                None => result.violations.push("no other leader followed".to_owned()),
            }
        }
        let across = if outage { TimeBound::OUTAGE } else { TimeBound::ACROSS };
        let fired = SCHEDULED_JOBS.iter().flat_map(|job| &runs_by_job[job.name]);
        result.measurements.push(measure_healing(fired, healed_at));
        measure_start_delays(
            &runs_by_job[SCHEDULED_JOBS[0].name],
            broke_at..settled,
            across,
            &mut result,
        );
        self.stop_all();
        let report = self.query_store(async |store| store.check_invariants(Timestamp::now).await);
        for check in
            report.checks.iter().filter(|check| !check.was_run || !check.findings.is_empty())
        {
            result.violations.push(format!("doctor: {} {:?}", check.id, check.findings));
        }
        result.violations.extend(self.read_trace().lines_after(&trace));
        result
    }

    /// Waits until no scheduled run is overdue.
    fn wait_until_not_overdue(&self) {
        wait_until("no run is overdue", || {
            let clock = self.try_query_store(async |store| store.read_clock().await)?;
            let runs: Option<Vec<Vec<Run>>> =
                SCHEDULED_JOBS.iter().map(|job| self.list_runs(job.name)).collect();
            let runs = runs?;
            let known = runs.iter().all(|runs| {
                runs.iter().map(|run| run.scheduled_for).max().is_some_and(|last| last > clock)
            });
            let overdue = |run: &Run| {
                let waits = !run.state.is_ended() && run.state != RunState::Running;
                waits && seconds_between(run.due_at(), clock) > 1.0
            };
            (known && !runs.iter().flatten().any(overdue)).then_some(())
        });
    }

    /// Waits until two runs of each scheduled job that were planned after the heal have succeeded.
    fn wait_until_jobs_succeed(&self, healed_at: Timestamp) {
        let well = |run: &&Run| run.state == RunState::Succeeded && run.scheduled_for > healed_at;
        for job in &SCHEDULED_JOBS {
            wait_until(&format!("runs of {} succeed again", job.name), || {
                (self.list_runs(job.name)?.iter().filter(well).count() >= 2).then_some(())
            });
        }
    }

    fn read_runs_with_attempts(&self, job: &str) -> Vec<RunWithAttempts> {
        self.query_store(async |store| {
            let mut runs = Vec::new();
            for run in list_runs_of(store, job).await? {
                let all = store.list_executions(run.id).await?;
                runs.push((run, all));
            }
            Ok(runs)
        })
    }

    /// Checks that epochs only increase, and that no run was assigned in a term after the next term had begun.
    fn check_terms(&self, runs: &[&RunWithAttempts], result: &mut CheckResult) {
        let terms = self.query_store(async |store| store.list_terms().await);
        let mut terms: Vec<_> = terms.iter().map(|term| (term.epoch, term.began_at)).collect();
        terms.sort_unstable();
        result.counts.insert("terms", terms.len());
        for pair in terms.windows(2) {
            if pair[0].1 > pair[1].1 {
                result
                    .violations
                    .push(format!("term {} began before the previous term", pair[1].0));
            }
        }
        for (run, one) in runs.iter().flat_map(|(run, all)| all.iter().map(move |one| (run, one))) {
            let Some(epoch) = one.epoch else { continue };
            let since = terms.iter().find(|term| term.0 == epoch).map(|term| term.1);
            let until = terms.iter().find(|term| term.0 > epoch).map(|term| term.1);
            let within = since.is_some_and(|since| since <= one.assigned_at)
                && until.is_none_or(|until| one.assigned_at <= until);
            if !within {
                result.violations.push(format!(
                    "attempt {} of run {} was assigned with epoch {epoch}, which was not current at that time",
                    one.attempt_no, run.id
                ));
            }
        }
    }
}

/// Measures the time from the heal until the last run that was due before the heal was started or skipped.
fn measure_healing<'a>(
    runs: impl Iterator<Item = &'a RunWithAttempts>,
    healed_at: Timestamp,
) -> Measurement {
    let due = runs.filter(|(run, _)| run.scheduled_for <= healed_at);
    let seen_to = due.filter_map(|(run, all)| {
        let started = all.iter().filter_map(|one| one.started_at).min();
        started.or(run.finished_at)
    });
    let last = seen_to.max().map_or(0.0, |last| seconds_between(healed_at, last));
    Measurement { bound: TimeBound::HEALED, seconds: last.max(0.0) }
}

/// Measures how late runs started: during healthy times, and during and after the fault.
fn measure_start_delays(
    runs: &[RunWithAttempts],
    fault: Range<Timestamp>,
    bound: TimeBound,
    result: &mut CheckResult,
) {
    let first = |all: &[Execution]| all.iter().filter_map(|one| one.started_at).min();
    let (mut healthy, mut across) = (Vec::new(), Vec::new());
    // The first three runs are ignored: they were created after their due time, because the job was new.
    for (run, all) in runs.iter().skip(3) {
        let Some(started) = first(all) else { continue };
        let late = seconds_between(run.scheduled_for, started).max(0.0);
        if started < fault.start || run.scheduled_for > fault.end {
            healthy.push(late);
        } else {
            across.push(late);
        }
    }
    healthy.sort_unstable_by(f64::total_cmp);
    let place = (healthy.len() * 99).div_ceil(100).saturating_sub(1);
    for (bound, seconds) in [
        (TimeBound::HEALTHY, healthy.get(place).copied()),
        (bound, across.into_iter().max_by(f64::total_cmp)),
    ] {
        result.measurements.extend(seconds.map(|seconds| Measurement { bound, seconds }));
    }
}

pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
