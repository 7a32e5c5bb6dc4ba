//! What jobs wrote down themselves while they lived: the view from outside.
//!
//! The file's order is the order in which things happened, so whether two that must not live at the same time ever
//! did can be read from it without believing anybody.

use std::collections::{BTreeMap, BTreeSet};

use tasuki_core::RunId;

/// What jobs wrote, in the order in which it happened.
pub(crate) struct Witness {
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) word: String,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) process: u32,
}

impl Line {
    fn read(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("half a line: {text:?}"));
        let name = word().to_owned();
        let mut number = || word().parse::<i64>().unwrap_or_else(|_| panic!("no number: {text:?}"));
        let (run, attempt, process) = (RunId(number()), number() as u32, number() as u32);
        Self { word: name, run, attempt, process }
    }
}

impl Witness {
    pub(crate) fn read(text: &str) -> Self {
        Self { lines: text.lines().map(|line| Line::read(line.trim())).collect() }
    }

    /// Whether an attempt at a run ever said this.
    pub(crate) fn said(&self, run: RunId, attempt: u32, word: &str) -> bool {
        let same = |line: &Line| line.run == run && line.attempt == attempt && line.word == word;
        self.lines.iter().any(same)
    }

    /// Whether anything of a run ever lived.
    pub(crate) fn lived(&self, run: RunId) -> bool {
        self.lines.iter().any(|line| line.run == run)
    }

    /// Attempts that still wrote after a later attempt at the same run had begun (I5).
    pub(crate) fn overlaps(&self) -> Vec<String> {
        let mut latest: BTreeMap<RunId, u32> = BTreeMap::new();
        let mut found = Vec::new();
        for line in &self.lines {
            let newest = latest.entry(line.run).or_insert(line.attempt);
            if line.attempt < *newest {
                found.push(format!(
                    "attempt {} of run {} still lived when attempt {newest} had begun",
                    line.attempt, line.run
                ));
            }
            *newest = line.attempt.max(*newest);
        }
        found.dedup();
        found
    }

    /// Attempts that were begun by more than one process.
    pub(crate) fn doubled(&self) -> Vec<String> {
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

    /// Of runs of which only one may live at a time: attempts that still wrote after another run had begun (I13).
    pub(crate) fn beside(&self, runs: &BTreeSet<RunId>) -> Vec<String> {
        let mut begun: BTreeSet<(RunId, u32)> = BTreeSet::new();
        let mut latest = None;
        let mut found = Vec::new();
        for line in self.lines.iter().filter(|line| runs.contains(&line.run)) {
            let attempt = (line.run, line.attempt);
            match latest {
                Some((other, _)) if begun.contains(&attempt) && other != line.run => {
                    found.push(format!(
                        "attempt {} of run {} still lived when run {other} had begun",
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

    /// Attempts that wrote something which an earlier witness, of when everything had ended, does not have.
    pub(crate) fn outlived(&self, ended: &Self) -> Vec<String> {
        let late = self.lines.iter().skip(ended.lines.len());
        let mut found: Vec<String> = late
            .map(|line| {
                format!(
                    "attempt {} of run {} still lived when everything had ended",
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
    fn one_attempt_after_the_other_is_well() {
        let told = Witness::read(
            "begin 7 1 100
             beat 7 1 100
             begin 8 1 101
             begin 7 2 102
             end 8 1 101
             end 7 2 102",
        );
        assert!(told.overlaps().is_empty() && told.doubled().is_empty());
    }

    #[test]
    fn an_attempt_that_lives_beside_its_successor_is_found() {
        let told = Witness::read("begin 7 1 100\nbegin 7 2 102\nbeat 7 1 100\nbeat 7 1 100");
        assert_eq!(told.overlaps(), ["attempt 1 of run 7 still lived when attempt 2 had begun"]);
    }

    #[test]
    fn an_attempt_with_two_processes_is_found() {
        let told = Witness::read("begin 7 1 100\nbegin 7 1 101\nend 7 1 100");
        assert_eq!(told.doubled(), ["attempt 1 of run 7 has two processes"]);
    }

    /// The first is lost and tried again when the second has ended; what else lives does not count.
    #[test]
    fn one_run_after_the_other_is_alone() {
        let told = Witness::read(
            "begin 7 1 100
             beat 5 1 90
             beat 7 1 100
             begin 8 1 101
             beat 5 1 90
             end 8 1 101
             begin 7 2 102
             end 7 2 102",
        );
        assert!(told.beside(&BTreeSet::from([RunId(7), RunId(8)])).is_empty());
    }

    #[test]
    fn a_run_that_lives_beside_another_is_found() {
        let told = Witness::read(
            "begin 7 1 100
             begin 8 1 101
             beat 7 1 100
             beat 8 1 101
             beat 7 1 100
             end 8 1 101
             end 7 1 100",
        );
        let both = BTreeSet::from([RunId(7), RunId(8)]);
        assert_eq!(told.beside(&both), ["attempt 1 of run 7 still lived when run 8 had begun"]);
        assert!(told.beside(&BTreeSet::from([RunId(7)])).is_empty());
    }

    #[test]
    fn what_outlives_everything_is_found() {
        let ended = Witness::read("begin 7 1 100\nend 7 1 100");
        assert!(ended.outlived(&ended).is_empty());
        let later = Witness::read("begin 7 1 100\nend 7 1 100\nbeat 6 3 99\nbeat 6 3 99");
        let found = ["attempt 3 of run 6 still lived when everything had ended"];
        assert_eq!(later.outlived(&ended), found);
    }
}
