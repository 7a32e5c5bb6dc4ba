//! All faults, again and again, on every kind of cluster. What was done is written down, so that it can be gone on with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::cluster::{Pace, Plan, RedisKind};
use crate::database::DatabaseKind;
use crate::faults::{Fault, all_faults};
use crate::judge::Verdict;

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
    round: usize,
    plan: Plan,
}

impl Chaos {
    /// The kinds of cluster there are.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|kind| kind.0)
    }

    /// Does what is left to do, telling of each step, and tells all of it in the end.
    pub fn run(&self, say: impl Fn(&str)) -> Told {
        let done = done(&self.journal);
        let steps: Vec<Step> = self.steps().filter(|step| !done.contains(&step.key())).collect();
        say(&format!("{} done before, {} to do", done.len(), steps.len()));
        for (number, step) in steps.iter().enumerate() {
            say(&format!("{} of {}: {}", number + 1, steps.len(), step.key()));
            let began = std::time::Instant::now();
            let verdict = step.strike();
            let taken = began.elapsed().as_secs();
            say(&match verdict.broken.as_slice() {
                [] => format!("  held, {taken} s"),
                broken => format!("  BROKEN, {taken} s:\n    {}", broken.join("\n    ")),
            });
            self.note(step, &verdict);
        }
        told(&self.journal)
    }

    fn steps(&self) -> impl Iterator<Item = Step> {
        let faults: Vec<Fault> =
            all_faults().into_iter().filter(|fault| self.wants(fault)).collect();
        let kinds =
            KINDS.iter().filter(|kind| self.kind.as_deref().is_none_or(|one| one == kind.0));
        let mut steps = Vec::new();
        for round in 1..=self.rounds {
            for &(kind, database, redis, all) in kinds.clone() {
                let suits = |fault: &&Fault| (all || fault.everywhere) && fault.suits(redis);
                for &fault in faults.iter().filter(suits) {
                    let (binary, nodes) = (self.binary.clone(), self.nodes);
                    let (pace, keep) = (self.pace, self.keep);
                    let plan = Plan { binary, nodes, database, redis, pace, wires: true, keep };
                    steps.push(Step { kind, fault, round, plan });
                }
            }
        }
        steps.into_iter()
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
            "step": step.key(),
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

impl Step {
    fn key(&self) -> String {
        format!("{} {} {}", self.kind, self.fault.name, self.round)
    }

    /// In a thread of its own, so that what fails in one ends only that one, and all that it started.
    fn strike(&self) -> Verdict {
        let (fault, plan) = (self.fault, self.plan.clone());
        let struck = thread::Builder::new().name(self.key()).spawn(move || fault.strike(plan));
        struck.unwrap().join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let broken = vec![text.unwrap_or_else(|| "it failed without words".to_owned())];
            Verdict { broken, ..Verdict::default() }
        })
    }
}

fn lines(journal: &Path) -> Vec<Value> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    // A run that was killed may have written half a line.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What held; what broke is tried again.
fn done(journal: &Path) -> BTreeSet<String> {
    let held = |line: &Value| line["broken"].as_array().is_some_and(Vec::is_empty);
    let held = lines(journal).into_iter().filter(held);
    held.filter_map(|line| Some(line["step"].as_str()?.to_owned())).collect()
}

/// All that the journal says, as a table.
fn told(journal: &Path) -> Told {
    let mut times: BTreeMap<(String, String), (usize, usize, usize)> = BTreeMap::new();
    let mut measured: BTreeMap<(String, String), (Option<f64>, Vec<f64>)> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for line in lines(journal) {
        let key = (text(&line["kind"]), text(&line["fault"]));
        let (held, broken, overlaps) = times.entry(key).or_default();
        match line["broken"].as_array().is_some_and(Vec::is_empty) {
            true => *held += 1,
            false => *broken += 1,
        }
        *overlaps += line["counted"]["overlaps"].as_u64().unwrap_or(0) as usize;
        for one in line["measured"].as_array().into_iter().flatten() {
            let (what, bound) = (text(&one[0]), one[1].as_f64());
            let entry = measured.entry((what, text(&line["kind"])));
            entry.or_insert((bound, Vec::new())).1.extend(one[2].as_f64());
        }
    }
    let mut table = String::new();
    let mut row = |words: &[&str; 5]| {
        let [a, b, c, d, e] = words;
        writeln!(table, "{a:<24} {b:<50} {c:>8} {d:>8} {e:>8}").unwrap();
    };
    row(&["CLUSTER", "FAULT", "HELD", "BROKEN", "OVERLAPS"]);
    for ((kind, fault), (held, broken, overlaps)) in &times {
        row(&[kind, fault, &held.to_string(), &broken.to_string(), &overlaps.to_string()]);
    }
    row(&["", "", "", "", ""]);
    row(&["CLUSTER", "SECONDS UNTIL", "MEDIAN", "WORST", "BOUND"]);
    for ((what, kind), (bound, seconds)) in &mut measured {
        seconds.sort_unstable_by(f64::total_cmp);
        let (median, worst) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        let [median, worst] = [median, worst].map(|number| format!("{number:.3}"));
        let bound = bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound:.3}"));
        row(&[kind, what, &median, &worst, &bound]);
    }
    Told { table, broken: times.values().any(|(_, broken, _)| *broken > 0) }
}
