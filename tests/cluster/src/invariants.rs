//! Invariants of slots and attempts that must hold after any fault. The database is compared with the trace of the jobs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tasuki_core::{RunId, RunState};
use tasuki_store::{Execution, Run};

use crate::checker::CheckResult;
use crate::job_trace::JobTrace;
use crate::load::LoadJob;

/// A run and all its attempts.
pub(crate) type RunWithAttempts = (Run, Vec<Execution>);

/// Checks that each slot has exactly one run with an allowed end, and that runs of a `forbid` job never ran side by
/// side.
pub(crate) fn check_slots(
    job: &LoadJob,
    runs: &[RunWithAttempts],
    disabled_at: Timestamp,
    trace: &JobTrace,
    result: &mut CheckResult,
) {
    let mut planned: Vec<Timestamp> = Vec::new();
    for (run, _) in runs {
        let reason = run.reason.as_deref().unwrap_or_default();
        let late = || run.skip_at.is_some_and(|at| run.finished_at.is_some_and(|ended| ended > at));
        let good = match run.state {
            RunState::Succeeded => true,
            RunState::Skipped if reason == "LATE" => late(),
            RunState::Skipped => job.concurrency == "forbid" && reason == "CONCURRENT",
            // Slots that were still in the future when the job was disabled at the end.
            RunState::Canceled => run.scheduled_for >= disabled_at,
            _ => false,
        };
        if !good {
            let error = (run.error_code.clone(), run.error_message.clone());
            result.violations.push(format!(
                "{} {}: {} {reason} {error:?}",
                job.name, run.scheduled_for, run.state
            ));
        }
        if matches!(run.state, RunState::Skipped | RunState::Canceled) && trace.has_lines_of(run.id)
        {
            result
                .violations
                .push(format!("run {} is {}, but wrote trace lines", run.id, run.state));
        }
        let count = match run.state {
            RunState::Skipped => "skipped",
            RunState::Canceled => "canceled at the end",
            _ => "slots run",
        };
        *result.counts.entry(count).or_default() += 1;
        planned.push(run.scheduled_for);
    }
    if !runs.iter().any(|(run, _)| run.state == RunState::Succeeded) {
        result.violations.push(format!("{}: no run has succeeded", job.name));
    }
    planned.sort_unstable();
    for pair in planned.windows(2) {
        let apart = pair[1].duration_since(pair[0]).as_secs();
        if apart != job.every_seconds {
            let problem = if apart == 0 { "doubled" } else { "missing" };
            result.violations.push(format!("{}: a slot is {problem} after {}", job.name, pair[0]));
        }
    }
    if job.concurrency == "forbid" {
        let runs: BTreeSet<RunId> = runs.iter().map(|(run, _)| run.id).collect();
        result.violations.extend(trace.concurrent_runs(&runs));
    }
}

/// Compares the trace with the attempts in the database.
pub(crate) fn check_attempts(
    runs: &[&RunWithAttempts],
    trace: &JobTrace,
    result: &mut CheckResult,
) {
    let known: BTreeMap<(RunId, u32), &Execution> = runs
        .iter()
        .flat_map(|(run, all)| all.iter().map(|one| ((run.id, one.attempt_no), one)))
        .collect();
    for line in trace.lines.iter().filter(|line| line.event == "begin") {
        if known.get(&(line.run, line.attempt)).is_none_or(|one| one.started_at.is_none()) {
            result.violations.push(format!(
                "attempt {} of run {} wrote trace lines, but was never RUNNING",
                line.attempt, line.run
            ));
        }
    }
    for (run, _) in runs.iter().filter(|(run, _)| run.state == RunState::Succeeded) {
        let attempt = run.counters.attempt_no;
        if !trace.has_event(run.id, attempt, "end") {
            result.violations.push(format!(
                "run {} SUCCEEDED with attempt {attempt}, which wrote no end",
                run.id
            ));
        }
    }
    result.violations.extend(trace.duplicate_attempts());
    let overlaps = trace.overlapping_attempts();
    result.counts.insert("overlaps", overlaps.len());
    result.violations.extend(overlaps);
    let again = |one: &&&Execution| one.started_at.is_some() && one.attempt_no > 1;
    result.counts.insert("tried again", known.values().filter(again).count());
}

#[cfg(test)]
mod tests {
    use tasuki_core::run::RunCounters;
    use tasuki_core::{AttemptOutcome, JobId, Origin, RunScope, WorkerId};

    use super::*;
    use crate::load::SCHEDULED_JOBS;

    const WALK: &LoadJob = &SCHEDULED_JOBS[1];
    const ALONE: &LoadJob = &SCHEDULED_JOBS[2];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A run in this state, planned for this second, with this number of attempts.
    fn run_in(id: i64, second: i64, state: RunState, attempts: u32) -> RunWithAttempts {
        let counters = RunCounters {
            attempt_no: attempts,
            tries: attempts,
            tries_allowed: 101,
            releases: 0,
            isolated: false,
        };
        let run = Run {
            id: RunId(id),
            job: JobId(1),
            job_version: 1,
            state,
            origin: Origin::Time,
            scope: RunScope::default(),
            lane: String::new(),
            exclusive: false,
            max_attempts: 101,
            counters,
            version: 1,
            scheduled_for: at(second),
            slot: None,
            next_retry_at: None,
            skip_at: None,
            expires_at: None,
            worker: None,
            token: None,
            epoch: None,
            assigned_at: None,
            start_by: None,
            started_at: None,
            finished_at: None,
            cancel_requested_at: None,
            cancel_requested_by: None,
            outcome: None,
            exit_code: None,
            exit_signal: None,
            error_code: None,
            error_message: None,
            reason: None,
            result: None,
            rows_affected: None,
            log_ref: None,
            args: None,
            event: None,
            rerun_of: None,
            idempotency_key: None,
        };
        let attempt = |attempt_no| Execution {
            attempt_no,
            outcome: Some(AttemptOutcome::Lost),
            worker: WorkerId::from_random(1),
            epoch: None,
            assigned_at: at(second),
            started_at: Some(at(second)),
            finished_at: Some(at(second)),
            exit_code: None,
            exit_signal: None,
            error_code: None,
            error_message: None,
            result: None,
            rows_affected: None,
            log_ref: None,
        };
        (run, (1..=attempts).map(attempt).collect())
    }

    /// The violations found by [`check_slots`] for a job that was disabled in second 100.
    fn slot_violations(job: &LoadJob, runs: &[RunWithAttempts], trace: &str) -> Vec<String> {
        let mut result = CheckResult::default();
        check_slots(job, runs, at(100), &JobTrace::read(trace), &mut result);
        result.violations
    }

    fn attempt_violations(runs: &[RunWithAttempts], trace: &str) -> Vec<String> {
        let mut result = CheckResult::default();
        check_attempts(&runs.iter().collect::<Vec<_>>(), &JobTrace::read(trace), &mut result);
        result.violations
    }

    #[test]
    fn succeeded_slots_and_canceled_future_slots_are_no_violation() {
        let runs = [
            run_in(7, 98, RunState::Succeeded, 1),
            run_in(8, 99, RunState::Succeeded, 1),
            run_in(9, 100, RunState::Canceled, 0),
        ];
        let none: [&str; 0] = [];
        assert_eq!(slot_violations(WALK, &runs, "begin 7 1 100\nend 7 1 100"), none);
    }

    #[test]
    fn a_slot_canceled_before_the_end_is_found() {
        let runs = [run_in(7, 98, RunState::Succeeded, 1), run_in(8, 99, RunState::Canceled, 0)];
        assert_eq!(slot_violations(WALK, &runs, "").len(), 1);
    }

    #[test]
    fn a_canceled_run_with_trace_lines_is_found() {
        let runs = [run_in(7, 99, RunState::Succeeded, 1), run_in(8, 100, RunState::Canceled, 0)];
        assert_eq!(
            slot_violations(WALK, &runs, "begin 8 1 100"),
            ["run 8 is CANCELED, but wrote trace lines"]
        );
    }

    #[test]
    fn slots_that_are_missing_or_doubled_are_found() {
        let runs = [97, 99, 99].map(|second| run_in(second, second, RunState::Succeeded, 1));
        let [missing, doubled] = [97, 99].map(at);
        let found = [
            format!("walk: a slot is missing after {missing}"),
            format!("walk: a slot is doubled after {doubled}"),
        ];
        assert_eq!(slot_violations(WALK, &runs, ""), found);
    }

    #[test]
    fn a_job_without_a_succeeded_run_is_found() {
        let runs = [run_in(7, 100, RunState::Canceled, 0)];
        assert_eq!(slot_violations(WALK, &runs, ""), ["walk: no run has succeeded"]);
    }

    #[test]
    fn overlapping_runs_of_a_forbid_job_are_found() {
        let runs = [run_in(7, 96, RunState::Succeeded, 1), run_in(8, 98, RunState::Succeeded, 1)];
        let trace = "begin 7 1 100\nbegin 8 1 101\nend 7 1 100\nend 8 1 101";
        let found = ["attempt 1 of run 7 still wrote after run 8 had begun"];
        assert_eq!(slot_violations(ALONE, &runs, trace), found);
    }

    #[test]
    fn a_success_without_an_end_line_is_found() {
        let runs = [run_in(7, 98, RunState::Succeeded, 2)];
        let none: [&str; 0] = [];
        let both = "begin 7 1 100\nbegin 7 2 101\n";
        assert_eq!(attempt_violations(&runs, &format!("{both}end 7 2 101")), none);
        let found = ["run 7 SUCCEEDED with attempt 2, which wrote no end"];
        assert_eq!(attempt_violations(&runs, "begin 7 1 100\nend 7 1 100\nbegin 7 2 101"), found);
    }

    #[test]
    fn an_attempt_that_was_never_started_is_found() {
        let runs = [run_in(7, 98, RunState::Failed, 1)];
        let found = ["attempt 2 of run 7 wrote trace lines, but was never RUNNING"];
        assert_eq!(attempt_violations(&runs, "begin 7 1 100\nbegin 7 2 101"), found);
    }

    /// Also if a worker was stopped: its spawner process still runs and ends the children in time.
    #[test]
    fn overlapping_attempts_are_found() {
        let runs = [run_in(7, 98, RunState::Failed, 2)];
        let found = ["attempt 1 of run 7 still wrote after attempt 2 had begun"];
        assert_eq!(attempt_violations(&runs, "begin 7 1 100\nbegin 7 2 101\nbeat 7 1 100"), found);
    }
}
