//! Scale benchmark: many workers on one machine. Measures statements, CPU and memory while nothing is due, and while
//! all jobs are due at the same time.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use tasuki_core::RunState;

use crate::cluster::Cluster;
use crate::cluster_config::ClusterConfig;
use crate::test_support::wait_until;

/// Options of the scale benchmark.
#[derive(Debug, Clone)]
pub struct ScaleBenchmark {
    /// The cluster. Its database must be PostgreSQL, because `pg_stat_statements` counts the statements.
    pub config: ClusterConfig,
    /// Number of jobs.
    pub jobs: usize,
    /// Length of the measurement while nothing is due.
    pub window: Duration,
}

/// Values of all counters at one moment.
struct Counters {
    at: Instant,
    statements: f64,
    commits: f64,
    cpu_seconds: Vec<f64>,
    leader_ticks: usize,
}

impl ScaleBenchmark {
    /// Measures with nothing due, then with all jobs due at the same time. Returns a table; `log` gets
    /// progress messages.
    pub fn measure(&self, log: impl Fn(&str)) -> String {
        let mut cluster = Cluster::start(self.config.clone());
        cluster.query_sql("create extension if not exists pg_stat_statements");
        log(&format!("{} nodes have started; creating {} jobs", self.config.nodes, self.jobs));
        self.apply_jobs(&cluster, "0 3 29 2 *");
        let mut table = String::new();
        let mut row = |cells: [&str; 3]| {
            writeln!(table, "{:<44} {:>14} {:>14}", cells[0], cells[1], cells[2]).unwrap();
        };
        row(["", "NOTHING DUE", "ALL DUE"]);
        thread::sleep(Duration::from_secs(5)); // waits until the work after the start is over
        let rest = self.measure_during(&cluster, |_| thread::sleep(self.window));
        log("measured with nothing due; all jobs are due at the next full minute");
        self.apply_jobs(&cluster, "* * * * *");
        let busy = self.measure_during(&cluster, |cluster| self.wait_until_all_ran(cluster));
        for ((what, rest), (_, busy)) in rest.into_iter().zip(busy) {
            row([what, &rest, &busy]);
        }
        // Killed, because an orderly stop would first run all jobs that are due by then.
        for node in 0..self.config.nodes {
            cluster.kill_node(node);
        }
        table
    }

    /// Creates or changes all jobs: each runs the command `true` at this cron time.
    fn apply_jobs(&self, cluster: &Cluster, cron: &str) {
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
        cluster.run_cli_on_any_node(&[
            "job",
            "apply",
            "--file",
            &file.display().to_string(),
            "--yes",
        ]);
    }

    /// Waits until every job has succeeded at least once.
    fn wait_until_all_ran(&self, cluster: &Cluster) {
        wait_until("all jobs have run", || {
            let ended = cluster.query_sql(&format!(
                "select count(distinct job_id) from tasuki_run where state = '{}'",
                RunState::Succeeded
            ));
            (ended.parse::<usize>().unwrap() >= self.jobs).then_some(())
        });
    }

    /// Measures the cluster while `during` runs. Returns the rows of the table.
    fn measure_during(
        &self,
        cluster: &Cluster,
        during: impl Fn(&Cluster),
    ) -> Vec<(&'static str, String)> {
        let (leader, _) = cluster.leader().unwrap();
        let before = self.read_counters(cluster, leader);
        during(cluster);
        let after = self.read_counters(cluster, leader);
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let nodes = self.config.nodes as f64;
        let mut ticks = leader_ticks(cluster, leader).split_off(before.leader_ticks);
        ticks.sort_unstable();
        let share =
            |node: usize| (after.cpu_seconds[node] - before.cpu_seconds[node]) / seconds * 100.0;
        let mut workers: Vec<f64> =
            (0..self.config.nodes).filter(|node| *node != leader).map(share).collect();
        workers.sort_unstable_by(f64::total_cmp);
        let mut memory: Vec<f64> =
            (0..self.config.nodes).map(|node| resident_mb(cluster, node)).collect();
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
            ("ticks of the leader", format!("{}", ticks.len())),
            ("tick of the leader, median", tick(ticks.get(ticks.len() / 2))),
            ("tick of the leader, worst", tick(ticks.last())),
            ("CPU of the leader, of one core", format!("{:.2} %", share(leader))),
            ("CPU of a worker, median", format!("{:.2} %", middle(&workers))),
            ("memory of a node, median", format!("{:.1} MB", middle(&memory))),
        ]
    }

    fn read_counters(&self, cluster: &Cluster, leader: usize) -> Counters {
        let number = |sql: &str| cluster.query_sql(sql).parse::<f64>().unwrap();
        Counters {
            at: Instant::now(),
            statements: number("select coalesce(sum(calls), 0) from pg_stat_statements"),
            commits: number("select sum(xact_commit + xact_rollback) from pg_stat_database"),
            cpu_seconds: (0..self.config.nodes).map(|node| cpu_seconds(cluster, node)).collect(),
            leader_ticks: leader_ticks(cluster, leader).len(),
        }
    }
}

/// The duration of each tick of a leader, in microseconds, read from its log.
fn leader_ticks(cluster: &Cluster, leader: usize) -> Vec<u64> {
    let name = cluster.node_names().nth(leader).unwrap();
    let log = fs::read_to_string(cluster.folder().join(format!("{name}.log"))).unwrap_or_default();
    let ticks = log.lines().filter(|line| line.contains("planning tick"));
    ticks
        .filter_map(|line| {
            let after = line.split("micros=").nth(1)?;
            after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
        .collect()
}

/// CPU time of a node in seconds.
fn cpu_seconds(cluster: &Cluster, node: usize) -> f64 {
    let process = cluster.process_id(node).unwrap();
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let cells: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in hundredths of a second on all common Linux systems.
    (cells[11].parse::<f64>().unwrap() + cells[12].parse::<f64>().unwrap()) / 100.0
}

/// Resident memory of a node in megabytes.
fn resident_mb(cluster: &Cluster, node: usize) -> f64 {
    let process = cluster.process_id(node).unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1e3
}
