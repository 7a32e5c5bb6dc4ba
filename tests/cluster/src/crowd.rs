//! Many workers on one machine: what they cost together, at rest and when everything is due at once.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tasuki_core::RunState;

use crate::cluster::Cluster;
use crate::place::until;
use crate::plan::Plan;

/// How many, of what.
#[derive(Debug, Clone)]
pub struct Crowd {
    /// The cluster; its database must be PostgreSQL, which counts statements.
    pub plan: Plan,
    /// How many definitions.
    pub jobs: usize,
    /// For how long each is measured.
    pub time: Duration,
}

/// What was counted up to some moment.
struct Count {
    at: Instant,
    statements: f64,
    commits: f64,
    cpu: Vec<f64>,
    ticks: usize,
}

impl Crowd {
    /// Measures at rest, then with every definition due at once; tells both as a table.
    pub fn measure(&self, say: impl Fn(&str)) -> String {
        let mut cluster = Cluster::start(self.plan.clone());
        cluster.query("create extension if not exists pg_stat_statements");
        say(&format!("{} nodes are there; {} definitions come", self.plan.nodes, self.jobs));
        self.define(&cluster, "0 3 29 2 *");
        let mut table = String::new();
        let mut row = |words: [&str; 3]| {
            writeln!(table, "{:<44} {:>14} {:>14}", words[0], words[1], words[2]).unwrap();
        };
        row(["", "AT REST", "ALL DUE"]);
        thread::sleep(Duration::from_secs(5)); // what they did to come is over
        let rest = self.window(&cluster, |_| thread::sleep(self.time));
        say("at rest: measured; now all of them are due at the next full minute");
        self.define(&cluster, "* * * * *");
        let busy = self.window(&cluster, |cluster| self.all_ran(cluster));
        for ((what, rest), (_, busy)) in rest.into_iter().zip(busy) {
            row([what, &rest, &busy]);
        }
        // In order would take as long as what is due by then.
        for node in 0..self.plan.nodes {
            cluster.kill(node);
        }
        table
    }

    /// Makes or changes all definitions: `true`, at this time.
    fn define(&self, cluster: &Cluster, cron: &str) {
        let mut text = String::new();
        for job in 0..self.jobs {
            writeln!(
                text,
                "[[job]]\nname = \"job-{job:05}\"\nconcurrency = \"allow\"\ncommand = [\"true\"]\n\
                 trigger = {{ type = \"time\", schedule = {{ type = \"cron\", value = \"{cron}\" }} }}\n"
            )
            .unwrap();
        }
        let file = cluster.folder().join("jobs.toml");
        fs::write(&file, text).unwrap();
        cluster.ask(&["job", "apply", "--file", &file.display().to_string(), "--yes"]);
    }

    /// Waits until every definition ran at least once, and nothing more of that minute is open.
    fn all_ran(&self, cluster: &Cluster) {
        until("all of them ran", || {
            let ended = cluster.query(&format!(
                "select count(distinct job_id) from tasuki_run where state = '{}'",
                RunState::Succeeded
            ));
            (ended.parse::<usize>().unwrap() >= self.jobs).then_some(())
        });
    }

    fn window(&self, cluster: &Cluster, during: impl Fn(&Cluster)) -> Vec<(&'static str, String)> {
        let (leader, _) = cluster.leader().unwrap();
        let before = self.count(cluster, leader);
        during(cluster);
        let after = self.count(cluster, leader);
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let nodes = self.plan.nodes as f64;
        let mut ticks = ticks(cluster, leader).split_off(before.ticks);
        ticks.sort_unstable();
        let share = |node: usize| (after.cpu[node] - before.cpu[node]) / seconds * 100.0;
        let mut workers: Vec<f64> =
            (0..self.plan.nodes).filter(|node| *node != leader).map(share).collect();
        workers.sort_unstable_by(f64::total_cmp);
        let mut memory: Vec<f64> =
            (0..self.plan.nodes).map(|node| resident(cluster, node)).collect();
        memory.sort_unstable_by(f64::total_cmp);
        let middle = |of: &[f64]| of.get(of.len() / 2).copied().unwrap_or_default();
        let statements = (after.statements - before.statements) / seconds;
        let commits = (after.commits - before.commits) / seconds;
        let tick = |place: Option<&u64>| {
            place.map_or("-".to_owned(), |us| format!("{:.1} ms", *us as f64 / 1e3))
        };
        vec![
            ("time measured", format!("{seconds:.1} s")),
            ("statements, all", format!("{statements:.0} /s")),
            ("statements, each worker", format!("{:.1} /s", statements / nodes)),
            ("transactions, each worker", format!("{:.1} /s", commits / nodes)),
            ("the leader's ticks", format!("{}", ticks.len())),
            ("the leader's tick, median", tick(ticks.get(ticks.len() / 2))),
            ("the leader's tick, worst", tick(ticks.last())),
            ("CPU of the leader, of one core", format!("{:.2} %", share(leader))),
            ("CPU of a worker, median", format!("{:.2} %", middle(&workers))),
            ("memory of a node, median", format!("{:.1} MB", middle(&memory))),
        ]
    }

    fn count(&self, cluster: &Cluster, leader: usize) -> Count {
        let number = |sql: &str| cluster.query(sql).parse::<f64>().unwrap();
        Count {
            at: Instant::now(),
            statements: number("select coalesce(sum(calls), 0) from pg_stat_statements"),
            commits: number("select sum(xact_commit + xact_rollback) from pg_stat_database"),
            cpu: (0..self.plan.nodes).map(|node| cpu(cluster, node)).collect(),
            ticks: ticks(cluster, leader).len(),
        }
    }
}

/// How long each tick of a leader took, in microseconds, as it told.
fn ticks(cluster: &Cluster, leader: usize) -> Vec<u64> {
    let name = cluster.names().nth(leader).unwrap();
    let told = fs::read_to_string(cluster.folder().join(format!("{name}.log"))).unwrap_or_default();
    let ticks = told.lines().filter(|line| line.contains("a tick"));
    ticks
        .filter_map(|line| {
            let after = line.split("micros=").nth(1)?;
            after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
        .collect()
}

/// Seconds of a core that a node used.
fn cpu(cluster: &Cluster, node: usize) -> f64 {
    let process = cluster.process(node).unwrap();
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let words: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in hundredths of a second on every Linux that matters.
    (words[11].parse::<f64>().unwrap() + words[12].parse::<f64>().unwrap()) / 100.0
}

/// Megabytes of a node that are in memory.
fn resident(cluster: &Cluster, node: usize) -> f64 {
    let process = cluster.process(node).unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1e3
}
