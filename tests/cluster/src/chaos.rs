//! All faults, again and again, on every kind of cluster. What was done is written down, so that it can be gone on with.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::database::DatabaseKind;
use crate::faults::{Fault, all_faults};
use crate::judge::Verdict;
use crate::plan::{Pace, Plan, RedisKind};

/// A kind of cluster: its name, its database, its Redis, and whether it gets every fault.
const KINDS: [(&str, DatabaseKind, RedisKind, bool); 6] = [
    ("postgres+redis", DatabaseKind::Postgres, RedisKind::One, true),
    ("postgres+sentinel", DatabaseKind::Postgres, RedisKind::Sentinel, true),
    ("postgres", DatabaseKind::Postgres, RedisKind::None, false),
    ("mariadb+redis", DatabaseKind::MariaDb, RedisKind::One, false),
    ("mariadb", DatabaseKind::MariaDb, RedisKind::None, false),
    ("postgres+redis-cluster", DatabaseKind::Postgres, RedisKind::Cluster, false),
];

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Chaos {
    /// The `tasuki` to run.
    pub binary: PathBuf,
    /// How many nodes.
    pub nodes: usize,
    /// How often each fault.
    pub rounds: usize,
    /// Only faults whose name contains this.
    pub only: Option<String>,
    /// Only on this kind of cluster.
    pub kind: Option<String>,
    /// How quickly things happen.
    pub pace: Pace,
    /// Whether what the nodes told is kept.
    pub keep: bool,
    /// What was done already, one line each.
    pub journal: PathBuf,
}

/// What there is to tell.
#[derive(Debug)]
pub struct Told {
    /// The table.
    pub table: String,
    /// Whether something broke that must not.
    pub broken: bool,
}

struct Step {
    kind: &'static str,
    fault: Fault,
    /// What makes it the same step in the journal: whatever what becomes of it may depend on.
    key: String,
    plan: Plan,
}

impl Chaos {
    /// The kinds of cluster there are.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|kind| kind.0)
    }

    /// Does what is left to do, telling of each step, and tells all of it in the end. `Err`: why there is nothing.
    pub fn run(&self, say: impl Fn(&str)) -> Result<Told, String> {
        let steps = self.steps()?;
        if steps.is_empty() {
            return Err("there is no such fault for such a cluster: --list tells which there are"
                .to_owned());
        }
        let before = lines(&self.journal);
        let left: Vec<&Step> = steps.iter().filter(|step| !step.tries(&before).held).collect();
        say(&format!("{} held before, {} to do", steps.len() - left.len(), left.len()));
        for (number, step) in left.iter().enumerate() {
            say(&format!("{} of {}: {}", number + 1, left.len(), step.key));
            let began = std::time::Instant::now();
            let verdict = step.strike();
            let taken = began.elapsed().as_secs();
            say(&match verdict.broken.as_slice() {
                [] => format!("  held, {taken} s"),
                broken => format!("  BROKEN, {taken} s:\n    {}", broken.join("\n    ")),
            });
            self.note(step, &verdict);
        }
        Ok(told(&steps, &lines(&self.journal)))
    }

    fn steps(&self) -> Result<Vec<Step>, String> {
        let faults: Vec<Fault> =
            all_faults().into_iter().filter(|fault| self.wants(fault)).collect();
        let kinds =
            KINDS.iter().filter(|kind| self.kind.as_deref().is_none_or(|one| one == kind.0));
        let with = format!("{:?} {} nodes {}", self.pace, self.nodes, sum(&self.binary)?);
        let mut steps = Vec::new();
        for round in 1..=self.rounds {
            for &(kind, database, redis, all) in kinds.clone() {
                let suits = |fault: &&Fault| (all || fault.everywhere) && fault.suits(redis);
                for &fault in faults.iter().filter(suits) {
                    let (binary, nodes) = (self.binary.clone(), self.nodes);
                    let (pace, keep) = (self.pace, self.keep);
                    let plan = Plan { binary, nodes, database, redis, pace, wires: true, keep };
                    let key = format!("{kind} {} {round} {with}", fault.name).to_lowercase();
                    steps.push(Step { kind, fault, key, plan });
                }
            }
        }
        Ok(steps)
    }

    fn wants(&self, fault: &Fault) -> bool {
        self.only.as_deref().is_none_or(|part| fault.name.contains(part))
    }

    fn note(&self, step: &Step, verdict: &Verdict) {
        let measured: Vec<Value> = verdict
            .measured
            .iter()
            .map(|one| json!([one.bound.what, one.bound.seconds, one.seconds]))
            .collect();
        let line = json!({
            "step": step.key,
            "kind": step.kind,
            "fault": step.fault.name,
            "what": step.fault.what,
            "broken": verdict.broken,
            "measured": measured,
            "counted": verdict.counted,
        });
        let mut file = File::options().create(true).append(true).open(&self.journal).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// What became of a step, each time it was tried.
#[derive(Default)]
struct Tries<'a> {
    /// The last time.
    last: Option<&'a Value>,
    /// Whether it held then.
    held: bool,
    /// How often it had broken before.
    broken_before: usize,
}

impl Step {
    /// In a thread of its own, so that what fails in one ends only that one, and all that it started.
    fn strike(&self) -> Verdict {
        let (fault, plan) = (self.fault, self.plan.clone());
        let struck =
            thread::Builder::new().name(self.key.clone()).spawn(move || fault.strike(plan));
        struck.unwrap().join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let broken = vec![text.unwrap_or_else(|| "it failed without words".to_owned())];
            Verdict { broken, ..Verdict::default() }
        })
    }

    fn tries<'a>(&self, lines: &'a [Value]) -> Tries<'a> {
        let held = |line: &Value| line["broken"].as_array().is_some_and(Vec::is_empty);
        let mut tries = Tries::default();
        for line in lines.iter().filter(|line| line["step"] == self.key.as_str()) {
            tries.broken_before += usize::from(tries.last.is_some() && !tries.held);
            tries.held = held(line);
            tries.last = Some(line);
        }
        tries
    }
}

/// What tells one binary from another.
fn sum(binary: &Path) -> Result<String, String> {
    let bytes = fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

fn lines(journal: &Path) -> Vec<Value> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    // A run that was killed may have written half a line.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What the journal says of these steps, as a table. What counts is how each of them went the last time; that it had
/// broken before is told.
fn told(steps: &[Step], lines: &[Value]) -> Told {
    let mut times: BTreeMap<(&str, &str), [usize; 4]> = BTreeMap::new();
    let mut measured: BTreeMap<(String, &str), (Option<f64>, Vec<f64>)> = BTreeMap::new();
    for step in steps {
        let tries = step.tries(lines);
        let [held, broken, before, overlaps] =
            times.entry((step.kind, step.fault.name)).or_default();
        match tries.held {
            true => *held += 1,
            false => *broken += 1,
        }
        *before += tries.broken_before;
        let Some(line) = tries.last else { continue };
        *overlaps += line["counted"]["overlaps"].as_u64().unwrap_or(0) as usize;
        for one in line["measured"].as_array().into_iter().flatten() {
            let (what, bound) = (one[0].as_str().unwrap_or_default(), one[1].as_f64());
            let entry = measured.entry((what.to_owned(), step.kind));
            entry.or_insert((bound, Vec::new())).1.extend(one[2].as_f64());
        }
    }
    let mut table = String::new();
    let mut row = |words: [&str; 6]| {
        let [a, b, c, d, e, f] = words;
        let line = format!("{a:<24} {b:<50} {c:>8} {d:>8} {e:>8} {f:>14}");
        writeln!(table, "{}", line.trim_end()).unwrap();
    };
    row(["CLUSTER", "FAULT", "HELD", "BROKEN", "OVERLAPS", "BROKEN BEFORE"]);
    for ((kind, fault), counts) in &times {
        let [held, broken, before, overlaps] = counts.map(|count| count.to_string());
        row([kind, fault, &held, &broken, &overlaps, &before]);
    }
    row([""; 6]);
    row(["CLUSTER", "SECONDS UNTIL", "MEDIAN", "WORST", "BOUND", ""]);
    for ((what, kind), (bound, seconds)) in &mut measured {
        seconds.sort_unstable_by(f64::total_cmp);
        let (median, worst) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        let [median, worst] = [median, worst].map(|number| format!("{number:.3}"));
        let bound = bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound:.3}"));
        row([kind, what, &median, &worst, &bound, ""]);
    }
    Told { table, broken: times.values().any(|[_, broken, ..]| *broken > 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chaos(only: &str, pace: Pace) -> Chaos {
        Chaos {
            // Any file will do.
            binary: std::env::current_exe().unwrap(),
            nodes: 5,
            rounds: 1,
            only: Some(only.to_owned()),
            kind: Some("postgres+redis".to_owned()),
            pace,
            keep: false,
            journal: PathBuf::from("/dev/null"),
        }
    }

    fn line(step: &Step, broken: &[&str]) -> Value {
        json!({ "step": step.key, "broken": broken, "measured": [["x", 8.0, 1.5]] })
    }

    /// The words of the table's row of a fault.
    fn row(told: &Told, fault: &str) -> Vec<String> {
        let line = told.table.lines().find(|line| line.contains(fault)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_broke_and_then_held_has_held_and_is_told_of() {
        let steps = chaos("leader-killed", Pace::Quick).steps().unwrap();
        let [step] = &steps[..] else { panic!("one step") };
        let (broke, held) = (line(step, &["a slot is missing"]), line(step, &[]));
        let once = told(&steps, std::slice::from_ref(&broke));
        assert!(once.broken && !step.tries(std::slice::from_ref(&broke)).held);
        assert_eq!(row(&once, "leader-killed")[2..], ["0", "1", "0", "0"]);
        let twice = told(&steps, &[broke.clone(), held.clone()]);
        assert!(!twice.broken);
        assert_eq!(row(&twice, "leader-killed")[2..], ["1", "0", "0", "1"]);
        assert!(told(&steps, &[held, broke]).broken, "the last time counts");
    }

    #[test]
    fn what_held_otherwise_is_done_again() {
        let [quick, slow] = [Pace::Quick, Pace::Default]
            .map(|pace| chaos("leader-killed", pace).steps().unwrap().remove(0));
        let held = line(&quick, &[]);
        assert!(quick.tries(std::slice::from_ref(&held)).held);
        assert!(!slow.tries(&[held]).held);
    }

    #[test]
    fn nothing_to_do_is_told_in_words() {
        let chaos = Chaos { only: Some("typo".to_owned()), ..chaos("", Pace::Quick) };
        assert!(chaos.run(|_| {}).unwrap_err().contains("no such fault"));
        let binary = PathBuf::from("/nowhere/tasuki");
        assert!(Chaos { binary, ..chaos }.run(|_| {}).unwrap_err().contains("/nowhere/tasuki"));
    }
}
