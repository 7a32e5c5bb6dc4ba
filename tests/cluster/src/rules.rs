//! What must hold of slots and attempts, whatever broke: what the database says, beside what the jobs saw themselves.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tasuki_core::{RunId, RunState};
use tasuki_store::{Execution, Run};

use crate::judge::Verdict;
use crate::load::Fires;
use crate::witness::Witness;

/// A run and all attempts at it.
pub(crate) type Told = (Run, Vec<Execution>);

/// Every slot once, none left out, and ended as it should; and of a job that is to be alone, one at a time.
pub(crate) fn slots(
    job: &Fires,
    runs: &[Told],
    disabled_at: Timestamp,
    witness: &Witness,
    verdict: &mut Verdict,
) {
    let mut planned: Vec<Timestamp> = Vec::new();
    for (run, _) in runs {
        let reason = run.reason.as_deref().unwrap_or_default();
        let late = || run.skip_at.is_some_and(|at| run.finished_at.is_some_and(|ended| ended > at));
        let good = match run.state {
            RunState::Succeeded => true,
            RunState::Skipped if reason == "LATE" => late(),
            RunState::Skipped => job.concurrency == "forbid" && reason == "CONCURRENT",
            // What had not come when the job was disabled in the end.
            RunState::Canceled => run.scheduled_for >= disabled_at,
            _ => false,
        };
        if !good {
            let error = (run.error_code.clone(), run.error_message.clone());
            verdict.broken.push(format!(
                "{} {}: {} {reason} {error:?}",
                job.name, run.scheduled_for, run.state
            ));
        }
        if matches!(run.state, RunState::Skipped | RunState::Canceled) && witness.lived(run.id) {
            verdict.broken.push(format!("run {} is {}, and lived", run.id, run.state));
        }
        let count = match run.state {
            RunState::Skipped => "skipped",
            RunState::Canceled => "canceled in the end",
            _ => "slots run",
        };
        *verdict.counted.entry(count).or_default() += 1;
        planned.push(run.scheduled_for);
    }
    if !runs.iter().any(|(run, _)| run.state == RunState::Succeeded) {
        verdict.broken.push(format!("{}: no slot was run", job.name));
    }
    planned.sort_unstable();
    for pair in planned.windows(2) {
        let apart = pair[1].duration_since(pair[0]).as_secs();
        if apart != job.every_seconds {
            let word = if apart == 0 { "doubled" } else { "missing" };
            verdict.broken.push(format!("{}: a slot is {word} after {}", job.name, pair[0]));
        }
    }
    if job.concurrency == "forbid" {
        let runs: BTreeSet<RunId> = runs.iter().map(|(run, _)| run.id).collect();
        verdict.broken.extend(witness.beside(&runs));
    }
}

/// What the jobs themselves saw, against what the database says of them.
pub(crate) fn attempts(runs: &[&Told], witness: &Witness, verdict: &mut Verdict) {
    let known: BTreeMap<(RunId, u32), &Execution> = runs
        .iter()
        .flat_map(|(run, all)| all.iter().map(|one| ((run.id, one.attempt_no), one)))
        .collect();
    for line in witness.lines.iter().filter(|line| line.word == "begin") {
        if known.get(&(line.run, line.attempt)).is_none_or(|one| one.started_at.is_none()) {
            verdict.broken.push(format!(
                "attempt {} of run {} lived, and was never RUNNING",
                line.attempt, line.run
            ));
        }
    }
    for (run, _) in runs.iter().filter(|(run, _)| run.state == RunState::Succeeded) {
        let attempt = run.counters.attempt_no;
        if !witness.said(run.id, attempt, "end") {
            verdict.broken.push(format!(
                "run {} SUCCEEDED with attempt {attempt}, which never came to its end",
                run.id
            ));
        }
    }
    verdict.broken.extend(witness.doubled());
    let overlaps = witness.overlaps();
    verdict.counted.insert("overlaps", overlaps.len());
    verdict.broken.extend(overlaps);
    let again = |one: &&&Execution| one.started_at.is_some() && one.attempt_no > 1;
    verdict.counted.insert("tried again", known.values().filter(again).count());
}

#[cfg(test)]
mod tests {
    use tasuki_core::run::Counters;
    use tasuki_core::{AttemptOutcome, JobId, Origin, Scope, WorkerId};

    use super::*;
    use crate::load::FIRES;

    const WALK: &Fires = &FIRES[1];
    const ALONE: &Fires = &FIRES[2];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A run planned for this second, with so many attempts, of which the last ended so.
    fn told(id: i64, second: i64, state: RunState, attempts: u32) -> Told {
        let counters = Counters {
            attempt_no: attempts,
            tries: attempts,
            tries_allowed: 101,
            releases: 0,
            alone: false,
        };
        let run = Run {
            id: RunId(id),
            job: JobId(1),
            job_version: 1,
            state,
            origin: Origin::Time,
            scope: Scope::default(),
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

    /// What is found of a job that was disabled in second 100.
    fn of_slots(job: &Fires, runs: &[Told], witness: &str) -> Vec<String> {
        let mut verdict = Verdict::default();
        slots(job, runs, at(100), &Witness::read(witness), &mut verdict);
        verdict.broken
    }

    fn of_attempts(runs: &[Told], witness: &str) -> Vec<String> {
        let mut verdict = Verdict::default();
        attempts(&runs.iter().collect::<Vec<_>>(), &Witness::read(witness), &mut verdict);
        verdict.broken
    }

    #[test]
    fn slots_that_ran_and_what_had_not_come_in_the_end_are_well() {
        let runs = [
            told(7, 98, RunState::Succeeded, 1),
            told(8, 99, RunState::Succeeded, 1),
            told(9, 100, RunState::Canceled, 0),
        ];
        let none: [&str; 0] = [];
        assert_eq!(of_slots(WALK, &runs, "begin 7 1 100\nend 7 1 100"), none);
    }

    #[test]
    fn a_cancel_in_the_middle_of_it_is_found() {
        let runs = [told(7, 98, RunState::Succeeded, 1), told(8, 99, RunState::Canceled, 0)];
        assert_eq!(of_slots(WALK, &runs, "").len(), 1);
    }

    #[test]
    fn what_lived_was_not_canceled_before_its_time() {
        let runs = [told(7, 99, RunState::Succeeded, 1), told(8, 100, RunState::Canceled, 0)];
        assert_eq!(of_slots(WALK, &runs, "begin 8 1 100"), ["run 8 is CANCELED, and lived"]);
    }

    #[test]
    fn slots_that_are_missing_or_doubled_are_found() {
        let runs = [97, 99, 99].map(|second| told(second, second, RunState::Succeeded, 1));
        let [missing, doubled] = [97, 99].map(at);
        let found = [
            format!("walk: a slot is missing after {missing}"),
            format!("walk: a slot is doubled after {doubled}"),
        ];
        assert_eq!(of_slots(WALK, &runs, ""), found);
    }

    #[test]
    fn a_job_of_which_nothing_ran_is_found() {
        let runs = [told(7, 100, RunState::Canceled, 0)];
        assert_eq!(of_slots(WALK, &runs, ""), ["walk: no slot was run"]);
    }

    #[test]
    fn two_runs_of_a_job_that_is_to_be_alone_are_found() {
        let runs = [told(7, 96, RunState::Succeeded, 1), told(8, 98, RunState::Succeeded, 1)];
        let witness = "begin 7 1 100\nbegin 8 1 101\nend 7 1 100\nend 8 1 101";
        let found = ["attempt 1 of run 7 still lived when run 8 had begun"];
        assert_eq!(of_slots(ALONE, &runs, witness), found);
    }

    #[test]
    fn an_end_of_the_wrong_attempt_is_found() {
        let runs = [told(7, 98, RunState::Succeeded, 2)];
        let none: [&str; 0] = [];
        let both = "begin 7 1 100\nbegin 7 2 101\n";
        assert_eq!(of_attempts(&runs, &format!("{both}end 7 2 101")), none);
        let found = ["run 7 SUCCEEDED with attempt 2, which never came to its end"];
        assert_eq!(of_attempts(&runs, "begin 7 1 100\nend 7 1 100\nbegin 7 2 101"), found);
    }

    #[test]
    fn what_lived_without_being_started_is_found() {
        let runs = [told(7, 98, RunState::Failed, 1)];
        let found = ["attempt 2 of run 7 lived, and was never RUNNING"];
        assert_eq!(of_attempts(&runs, "begin 7 1 100\nbegin 7 2 101"), found);
    }

    /// Also where a worker stood still: who holds its children does not.
    #[test]
    fn two_attempts_at_once_are_found() {
        let runs = [told(7, 98, RunState::Failed, 2)];
        let found = ["attempt 1 of run 7 still lived when attempt 2 had begun"];
        assert_eq!(of_attempts(&runs, "begin 7 1 100\nbegin 7 2 101\nbeat 7 1 100"), found);
    }
}
