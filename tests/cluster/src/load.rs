//! What runs while things break, and what it wrote down itself: the view from outside.
//!
//! Every job appends lines to one file while it lives. The file's order is the order in which things happened, so
//! whether two attempts at one run ever lived at the same time can be read from it without believing anybody.

use std::collections::BTreeMap;
use std::fs;

use tasuki_core::{RunId, RunState};
use tasuki_store::{Run, RunFilter};

use crate::cluster::Cluster;
use crate::place::until;

/// A job that fires by itself while things break.
pub(crate) struct Fires {
    pub(crate) name: &'static str,
    pub(crate) every_seconds: i64,
    pub(crate) concurrency: &'static str,
    /// How often it tells that it still lives, five times a second.
    beats: u32,
}

pub(crate) const FIRES: [Fires; 3] = [
    Fires { name: "tick", every_seconds: 1, concurrency: "allow", beats: 0 },
    Fires { name: "walk", every_seconds: 1, concurrency: "allow", beats: 15 },
    Fires { name: "alone", every_seconds: 2, concurrency: "forbid", beats: 2 },
];

/// Runs on request and takes about twelve seconds.
pub(crate) const LONG: &str = "long";
const LONG_BEATS: u32 = 60;

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

impl Cluster {
    fn witness_file(&self) -> String {
        self.folder().join("witness").display().to_string()
    }

    fn script(&self, beats: u32) -> String {
        let file = self.witness_file();
        format!(
            "say() {{ echo \"$1 $TASUKI_RUN_ID $TASUKI_ATTEMPT $$\" >> '{file}'; }}
             say begin; i=0
             while [ $i -lt {beats} ]; do sleep 0.2; say beat; i=$((i+1)); done
             say end"
        )
    }

    /// Creates the jobs; those that fire begin to.
    pub fn load(&self) {
        let again = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        for job in &FIRES {
            let (every, script) = (format!("{}s", job.every_seconds), self.script(job.beats));
            let create = ["job", "create", job.name, "--every", &every];
            let how = ["--concurrency", job.concurrency, "--stop-grace", "1s"];
            self.ask(&[&create[..], &how, &again, &["--", "sh", "-c", &script]].concat());
        }
        self.create_long(LONG, &[]);
        until("some have run", || {
            let ended = self.runs(FIRES[1].name).iter().filter(|run| run.state.is_ended()).count();
            (ended >= 2).then_some(())
        });
    }

    /// Creates a job that runs on request, takes about twelve seconds, and needs more than that is said here.
    pub fn create_long(&self, name: &str, more: &[&str]) {
        let script = self.script(LONG_BEATS);
        let create = ["job", "create", name, "--on-request", "--concurrency", "allow"];
        let how = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        self.ask(&[&create[..], &how, more, &["--", "sh", "-c", &script]].concat());
    }

    /// Asks for a run of a job, and waits until it runs: which it is, and on which node.
    pub fn trigger(&self, job: &str) -> (RunId, usize) {
        let asked = self.ask(&["job", "trigger", job]);
        let run = RunId(asked["id"].as_i64().unwrap_or_else(|| panic!("no run in {asked}")));
        until("it runs", || {
            let run = self.run(run)?;
            let running = run.state == RunState::Running;
            Some((run.id, self.node_of(run.worker.filter(|_| running)?)?))
        })
    }

    /// A run as the database has it.
    pub fn run(&self, run: RunId) -> Option<Run> {
        self.look(async |store| store.run(run).await)?
    }

    /// Every run of a job that the database knows of, the first one first. Empty if it does not answer.
    pub fn runs(&self, job: &str) -> Vec<Run> {
        let name = job.parse().unwrap();
        let found = self.look(async |store| {
            let Some(job) = store.job(&name).await? else { return Ok(Vec::new()) };
            let filter = RunFilter { job: Some(job.id), ..RunFilter::default() };
            let (mut runs, mut next) = (Vec::new(), None);
            loop {
                let page = store.runs(&filter, next.as_ref(), 200).await?;
                runs.extend(page.runs);
                next = page.next;
                if next.is_none() {
                    return Ok(runs);
                }
            }
        });
        let mut runs = found.unwrap_or_default();
        runs.sort_unstable_by_key(|run| run.id);
        runs
    }

    /// Stops what fires, and waits until everything has ended.
    pub(crate) fn unload(&self) {
        for job in &FIRES {
            self.ask(&["job", "disable", job.name]);
        }
        for job in FIRES.iter().map(|job| job.name).chain([LONG]) {
            until("every run has ended", || {
                let runs = self.runs(job);
                let done = (job == LONG || !runs.is_empty())
                    && runs.iter().all(|run| run.state.is_ended());
                done.then_some(())
            });
        }
    }

    pub(crate) fn witness(&self) -> Witness {
        let text = fs::read_to_string(self.witness_file()).unwrap_or_default();
        Witness { lines: text.lines().map(Line::read).collect() }
    }
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
    /// Attempts that still wrote after a later attempt at the same run had begun.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witness(text: &str) -> Witness {
        Witness { lines: text.lines().map(|line| Line::read(line.trim())).collect() }
    }

    #[test]
    fn one_attempt_after_the_other_is_well() {
        let told = witness(
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
        let told = witness("begin 7 1 100\nbegin 7 2 102\nbeat 7 1 100\nbeat 7 1 100");
        assert_eq!(told.overlaps(), ["attempt 1 of run 7 still lived when attempt 2 had begun"]);
    }

    #[test]
    fn an_attempt_with_two_processes_is_found() {
        let told = witness("begin 7 1 100\nbegin 7 1 101\nend 7 1 100");
        assert_eq!(told.doubled(), ["attempt 1 of run 7 has two processes"]);
    }
}
