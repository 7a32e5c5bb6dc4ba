//! The trace file, into which the jobs of the load write while they run.
//!
//! The order of its lines is the order of events, so it shows whether two attempts ran at the same time,
//! independently of what the nodes and the database claim.

use std::collections::{BTreeMap, BTreeSet};

use tasuki_core::RunId;

/// The lines that the jobs wrote, in order.
pub(crate) struct JobTrace {
    pub(crate) lines: Vec<TraceLine>,
}

/// One line of the trace: an event of an attempt, and the process that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceLine {
    pub(crate) event: String,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) process: u32,
}

impl TraceLine {
    fn read(text: &str) -> Self {
        let mut parts = text.split(' ');
        let mut part = || parts.next().unwrap_or_else(|| panic!("incomplete trace line: {text:?}"));
        let event = part().to_owned();
        let mut number = || {
            part().parse::<i64>().unwrap_or_else(|_| panic!("not a number in trace line: {text:?}"))
        };
        let (run, attempt, process) = (RunId(number()), number() as u32, number() as u32);
        Self { event, run, attempt, process }
    }
}

impl JobTrace {
    pub(crate) fn read(text: &str) -> Self {
        Self { lines: text.lines().map(|line| TraceLine::read(line.trim())).collect() }
    }

    /// Whether an attempt wrote this event (`begin`, `beat` or `end`).
    pub(crate) fn has_event(&self, run: RunId, attempt: u32, event: &str) -> bool {
        let same =
            |line: &TraceLine| line.run == run && line.attempt == attempt && line.event == event;
        self.lines.iter().any(same)
    }

    /// Whether any attempt of a run wrote a line.
    pub(crate) fn has_lines_of(&self, run: RunId) -> bool {
        self.lines.iter().any(|line| line.run == run)
    }

    /// Violations of I5: attempts that still wrote after a later attempt of the same run had begun.
    pub(crate) fn overlapping_attempts(&self) -> Vec<String> {
        let mut latest: BTreeMap<RunId, u32> = BTreeMap::new();
        let mut found = Vec::new();
        for line in &self.lines {
            let newest = latest.entry(line.run).or_insert(line.attempt);
            if line.attempt < *newest {
                found.push(format!(
                    "attempt {} of run {} still wrote after attempt {newest} had begun",
                    line.attempt, line.run
                ));
            }
            *newest = line.attempt.max(*newest);
        }
        found.dedup();
        found
    }

    /// Attempts with lines from more than one process.
    pub(crate) fn duplicate_attempts(&self) -> Vec<String> {
        let mut begun: BTreeMap<(RunId, u32), u32> = BTreeMap::new();
        let mut found = Vec::new();
        for line in &self.lines {
            let first = begun.entry((line.run, line.attempt)).or_insert(line.process);
            if *first != line.process {
                found.push(format!(
                    "attempt {} of run {} has two processes",
                    line.attempt, line.run
                ));
            }
        }
        found.dedup();
        found
    }

    /// Violations of I13 by runs of which only one may run at a time: attempts that still wrote after another run had
    /// begun.
    pub(crate) fn concurrent_runs(&self, runs: &BTreeSet<RunId>) -> Vec<String> {
        let mut begun: BTreeSet<(RunId, u32)> = BTreeSet::new();
        let mut latest = None;
        let mut found = Vec::new();
        for line in self.lines.iter().filter(|line| runs.contains(&line.run)) {
            let attempt = (line.run, line.attempt);
            match latest {
                Some((other, _)) if begun.contains(&attempt) && other != line.run => {
                    found.push(format!(
                        "attempt {} of run {} still wrote after run {other} had begun",
                        line.attempt, line.run
                    ));
                }
                _ => latest = Some(attempt),
            }
            begun.insert(attempt);
        }
        found.dedup();
        found
    }

    /// Attempts that wrote lines after `ended`, an earlier copy of this trace from when every run had ended.
    pub(crate) fn lines_after(&self, ended: &Self) -> Vec<String> {
        let late = self.lines.iter().skip(ended.lines.len());
        let mut found: Vec<String> = late
            .map(|line| {
                format!(
                    "attempt {} of run {} still wrote after every run had ended",
                    line.attempt, line.run
                )
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_attempts_are_no_violation() {
        let trace = JobTrace::read(
            "begin 7 1 100
             beat 7 1 100
             begin 8 1 101
             begin 7 2 102
             end 8 1 101
             end 7 2 102",
        );
        assert!(trace.overlapping_attempts().is_empty() && trace.duplicate_attempts().is_empty());
    }

    #[test]
    fn an_attempt_that_overlaps_its_successor_is_found() {
        let trace = JobTrace::read("begin 7 1 100\nbegin 7 2 102\nbeat 7 1 100\nbeat 7 1 100");
        assert_eq!(
            trace.overlapping_attempts(),
            ["attempt 1 of run 7 still wrote after attempt 2 had begun"]
        );
    }

    #[test]
    fn an_attempt_with_two_processes_is_found() {
        let trace = JobTrace::read("begin 7 1 100\nbegin 7 1 101\nend 7 1 100");
        assert_eq!(trace.duplicate_attempts(), ["attempt 1 of run 7 has two processes"]);
    }

    /// Run 7 is lost and tried again after run 8 has ended. The line of run 5 belongs to another job.
    #[test]
    fn consecutive_runs_are_no_violation() {
        let trace = JobTrace::read(
            "begin 7 1 100
             beat 5 1 90
             beat 7 1 100
             begin 8 1 101
             beat 5 1 90
             end 8 1 101
             begin 7 2 102
             end 7 2 102",
        );
        assert!(trace.concurrent_runs(&BTreeSet::from([RunId(7), RunId(8)])).is_empty());
    }

    #[test]
    fn a_run_that_overlaps_another_is_found() {
        let trace = JobTrace::read(
            "begin 7 1 100
             begin 8 1 101
             beat 7 1 100
             beat 8 1 101
             beat 7 1 100
             end 8 1 101
             end 7 1 100",
        );
        let both = BTreeSet::from([RunId(7), RunId(8)]);
        assert_eq!(
            trace.concurrent_runs(&both),
            ["attempt 1 of run 7 still wrote after run 8 had begun"]
        );
        assert!(trace.concurrent_runs(&BTreeSet::from([RunId(7)])).is_empty());
    }

    #[test]
    fn lines_after_the_end_are_found() {
        let ended = JobTrace::read("begin 7 1 100\nend 7 1 100");
        assert!(ended.lines_after(&ended).is_empty());
        let later = JobTrace::read("begin 7 1 100\nend 7 1 100\nbeat 6 3 99\nbeat 6 3 99");
        let found = ["attempt 3 of run 6 still wrote after every run had ended"];
        assert_eq!(later.lines_after(&ended), found);
    }
}
