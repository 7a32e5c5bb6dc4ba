//! The chaos test: every fault, several times, on every kind of cluster. A journal file records each step, so that an
//! interrupted chaos test can be resumed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::checker::CheckResult;
use crate::cluster_config::{ClusterConfig, Pace, RedisKind};
use crate::database::DatabaseKind;
use crate::faults::{ClusterFault, all_faults};

/// Kinds of clusters: name, database, Redis, and whether every fault runs on it (or only those with `on_every_kind`).
const KINDS: [(&str, DatabaseKind, RedisKind, bool); 6] = [
    ("postgres+redis", DatabaseKind::Postgres, RedisKind::One, true),
    ("postgres+sentinel", DatabaseKind::Postgres, RedisKind::Sentinel, true),
    ("postgres", DatabaseKind::Postgres, RedisKind::None, false),
    ("mariadb+redis", DatabaseKind::MariaDb, RedisKind::One, false),
    ("mariadb", DatabaseKind::MariaDb, RedisKind::None, false),
    ("postgres+redis-cluster", DatabaseKind::Postgres, RedisKind::Cluster, false),
];

/// Options of the chaos test.
#[derive(Debug, Clone)]
pub struct Chaos {
    /// Path of the `tasuki` binary.
    pub binary: PathBuf,
    /// Number of nodes of each cluster.
    pub nodes: usize,
    /// How often each fault is repeated.
    pub rounds: usize,
    /// If set, only faults whose name contains this text.
    pub only: Option<String>,
    /// If set, only this kind of cluster.
    pub cluster_kind: Option<String>,
    /// Default settings, or shorter intervals and timeouts.
    pub pace: Pace,
    /// Whether the logs of the nodes are kept after a step without violations.
    pub keep_logs: bool,
    /// Journal file: one JSON line for each completed step.
    pub journal: PathBuf,
}

/// The result of the chaos test.
#[derive(Debug)]
pub struct ChaosReport {
    /// A table for people: outcomes for each fault, and measured times.
    pub table: String,
    /// Whether the last try of any step had violations.
    pub has_violations: bool,
}

/// One fault on one cluster, in one round.
struct Step {
    kind: &'static str,
    fault: ClusterFault,
    /// Identifies the step in the journal. Contains everything that may influence the result: the kind of cluster,
    /// the fault, the round, the pace, the number of nodes and the checksum of the binary.
    key: String,
    config: ClusterConfig,
}

impl Chaos {
    /// The names of all kinds of clusters.
    pub fn cluster_kinds() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|kind| kind.0)
    }

    /// Runs all steps that have no passed try in the journal, and reports progress through `log`. `Err` explains why
    /// no step can run.
    pub fn run(&self, log: impl Fn(&str)) -> Result<ChaosReport, String> {
        let steps = self.steps()?;
        if steps.is_empty() {
            return Err("there is no such fault for this kind of cluster; --list shows all faults"
                .to_owned());
        }
        let before = read_journal(&self.journal);
        let left: Vec<&Step> = steps.iter().filter(|step| !step.history(&before).passed).collect();
        log(&format!("{} steps passed before, {} to run", steps.len() - left.len(), left.len()));
        for (number, step) in left.iter().enumerate() {
            log(&format!("{} of {}: {}", number + 1, left.len(), step.key));
            let began = std::time::Instant::now();
            let result = step.run();
            let taken = began.elapsed().as_secs();
            log(&match result.violations.as_slice() {
                [] => format!("  passed, {taken} s"),
                broken => format!("  FAILED, {taken} s:\n    {}", broken.join("\n    ")),
            });
            self.append_to_journal(step, &result);
        }
        Ok(report(&steps, &read_journal(&self.journal)))
    }

    fn steps(&self) -> Result<Vec<Step>, String> {
        let faults: Vec<ClusterFault> =
            all_faults().into_iter().filter(|fault| self.is_selected(fault)).collect();
        let kinds = KINDS
            .iter()
            .filter(|kind| self.cluster_kind.as_deref().is_none_or(|one| one == kind.0));
        let with = format!("{:?} {} nodes {}", self.pace, self.nodes, checksum(&self.binary)?);
        let mut steps = Vec::new();
        for round in 1..=self.rounds {
            for &(kind, database, redis, all) in kinds.clone() {
                let is_applicable =
                    |fault: &&ClusterFault| (all || fault.on_every_kind) && fault.applies_to(redis);
                for &fault in faults.iter().filter(is_applicable) {
                    let (binary, nodes) = (self.binary.clone(), self.nodes);
                    let (pace, keep) = (self.pace, self.keep_logs);
                    let config = ClusterConfig {
                        binary,
                        nodes,
                        database,
                        redis,
                        pace,
                        proxies: true,
                        keep_logs: keep,
                    };
                    let key = format!("{kind} {} {round} {with}", fault.name).to_lowercase();
                    steps.push(Step { kind, fault, key, config });
                }
            }
        }
        Ok(steps)
    }

    fn is_selected(&self, fault: &ClusterFault) -> bool {
        self.only.as_deref().is_none_or(|part| fault.name.contains(part))
    }

    fn append_to_journal(&self, step: &Step, result: &CheckResult) {
        let measured: Vec<Value> = result
            .measurements
            .iter()
            .map(|one| json!([one.bound.label, one.bound.seconds, one.seconds]))
            .collect();
        let line = json!({
            "step": step.key,
            "kind": step.kind,
            "fault": step.fault.name,
            "what": step.fault.description,
            "broken": result.violations,
            "measured": measured,
            "counted": result.counts,
        });
        let mut file = File::options().create(true).append(true).open(&self.journal).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// All tries of a step in the journal.
#[derive(Default)]
struct StepHistory<'a> {
    /// The journal line of the last try.
    last: Option<&'a Value>,
    /// Whether the last try had no violations.
    passed: bool,
    /// How many earlier tries had violations.
    failed_before: usize,
}

impl Step {
    /// Runs the fault in its own thread, so that a panic ends only this step and the processes that it started.
    fn run(&self) -> CheckResult {
        let (fault, config) = (self.fault, self.config.clone());
        let handle =
            thread::Builder::new().name(self.key.clone()).spawn(move || fault.run_on(config));
        handle.unwrap().join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let broken =
                vec![text.unwrap_or_else(|| "the step panicked without a message".to_owned())];
            CheckResult { violations: broken, ..CheckResult::default() }
        })
    }

    fn history<'a>(&self, lines: &'a [Value]) -> StepHistory<'a> {
        let passed = |line: &Value| line["broken"].as_array().is_some_and(Vec::is_empty);
        let mut history = StepHistory::default();
        for line in lines.iter().filter(|line| line["step"] == self.key.as_str()) {
            history.failed_before += usize::from(history.last.is_some() && !history.passed);
            history.passed = passed(line);
            history.last = Some(line);
        }
        history
    }
}

/// A checksum of the binary's content.
fn checksum(binary: &Path) -> Result<String, String> {
    let bytes = fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

fn read_journal(journal: &Path) -> Vec<Value> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    // A chaos test that was killed may have left an incomplete line.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Summarizes the journal for these steps. The last try of a step counts; earlier failed tries have their own column.
fn report(steps: &[Step], lines: &[Value]) -> ChaosReport {
    let mut times: BTreeMap<(&str, &str), [usize; 4]> = BTreeMap::new();
    let mut measured: BTreeMap<(String, &str), (Option<f64>, Vec<f64>)> = BTreeMap::new();
    for step in steps {
        let history = step.history(lines);
        let [passed, broken, before, overlaps] =
            times.entry((step.kind, step.fault.name)).or_default();
        match history.passed {
            true => *passed += 1,
            false => *broken += 1,
        }
        *before += history.failed_before;
        let Some(line) = history.last else { continue };
        *overlaps += line["counted"]["overlaps"].as_u64().unwrap_or(0) as usize;
        for one in line["measured"].as_array().into_iter().flatten() {
            let (label, bound) = (one[0].as_str().unwrap_or_default(), one[1].as_f64());
            let entry = measured.entry((label.to_owned(), step.kind));
            entry.or_insert((bound, Vec::new())).1.extend(one[2].as_f64());
        }
    }
    let mut table = String::new();
    let mut row = |cells: [&str; 6]| {
        let [a, b, c, d, e, f] = cells;
        let line = format!("{a:<24} {b:<50} {c:>8} {d:>8} {e:>8} {f:>14}");
        writeln!(table, "{}", line.trim_end()).unwrap();
    };
    row(["CLUSTER", "FAULT", "PASSED", "FAILED", "OVERLAPS", "FAILED BEFORE"]);
    for ((kind, fault), counts) in &times {
        let [passed, broken, before, overlaps] = counts.map(|count| count.to_string());
        row([kind, fault, &passed, &broken, &overlaps, &before]);
    }
    row([""; 6]);
    row(["CLUSTER", "SECONDS", "MEDIAN", "WORST", "BOUND", ""]);
    for ((label, kind), (bound, seconds)) in &mut measured {
        seconds.sort_unstable_by(f64::total_cmp);
        let (median, worst) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        let [median, worst] = [median, worst].map(|number| format!("{number:.3}"));
        let bound = bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound:.3}"));
        row([kind, label, &median, &worst, &bound, ""]);
    }
    ChaosReport { table, has_violations: times.values().any(|[_, broken, ..]| *broken > 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chaos(only: &str, pace: Pace) -> Chaos {
        Chaos {
            // Only the checksum of this file is used.
            binary: std::env::current_exe().unwrap(),
            nodes: 5,
            rounds: 1,
            only: Some(only.to_owned()),
            cluster_kind: Some("postgres+redis".to_owned()),
            pace,
            keep_logs: false,
            journal: PathBuf::from("/dev/null"),
        }
    }

    fn line(step: &Step, broken: &[&str]) -> Value {
        json!({ "step": step.key, "broken": broken, "measured": [["x", 8.0, 1.5]] })
    }

    /// The cells of the fault's row in the table.
    fn row(report: &ChaosReport, fault: &str) -> Vec<String> {
        let line = report.table.lines().find(|line| line.contains(fault)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_step_that_failed_and_then_passed_has_passed() {
        let steps = chaos("leader-killed", Pace::Quick).steps().unwrap();
        let [step] = &steps[..] else { panic!("expected one step") };
        let (broke, passed) = (line(step, &["a slot is missing"]), line(step, &[]));
        let once = report(&steps, std::slice::from_ref(&broke));
        assert!(once.has_violations && !step.history(std::slice::from_ref(&broke)).passed);
        assert_eq!(row(&once, "leader-killed")[2..], ["0", "1", "0", "0"]);
        let twice = report(&steps, &[broke.clone(), passed.clone()]);
        assert!(!twice.has_violations);
        assert_eq!(row(&twice, "leader-killed")[2..], ["1", "0", "0", "1"]);
        assert!(report(&steps, &[passed, broke]).has_violations, "the last try counts");
    }

    #[test]
    fn a_step_with_another_pace_is_run_again() {
        let [quick, slow] = [Pace::Quick, Pace::Default]
            .map(|pace| chaos("leader-killed", pace).steps().unwrap().remove(0));
        let passed = line(&quick, &[]);
        assert!(quick.history(std::slice::from_ref(&passed)).passed);
        assert!(!slow.history(&[passed]).passed);
    }

    #[test]
    fn an_empty_selection_is_an_error_with_a_reason() {
        let chaos = Chaos { only: Some("typo".to_owned()), ..chaos("", Pace::Quick) };
        assert!(chaos.run(|_| {}).unwrap_err().contains("no such fault"));
        let binary = PathBuf::from("/nowhere/tasuki");
        assert!(Chaos { binary, ..chaos }.run(|_| {}).unwrap_err().contains("/nowhere/tasuki"));
    }
}
