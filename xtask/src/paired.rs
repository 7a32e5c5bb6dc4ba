//! `cargo xtask paired`: compares two builds of tasuki on one database, in turns.
//!
//! Each round runs every bench once with each build, and the order of the builds changes from round to round, so that a
//! disturbance of the machine affects both. The result of a bench is the median of the ratios of its rounds. A ratio below 1
//! always means that the second build is worse.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time that an idle node gets before its CPU time is measured: its start is over, and it has returned the memory that only
/// the start needed.
const IDLE_WARM_UP: Duration = Duration::from_secs(15);
/// How long a node may take to answer after its start, and to stop.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Name and arguments of each bench of the `tasuki bench` command; `idle` is measured here.
const BENCHES: [(&str, &[&str]); 11] = [
    ("drain256", &["drain", "--rounds", "1"]),
    ("drain2000", &["drain", "--rounds", "1", "--function-slots", "2000"]),
    ("enqueue", &["enqueue", "--rounds", "1"]),
    ("latency", &["latency"]),
    ("apart", &["latency", "--apart"]),
    ("fire", &["fire"]),
    (
        "spawn16",
        &["spawn", "--rounds", "1", "--commands", "1500", "--slots", "16", "--dispatch", "claim"],
    ),
    (
        "spawn64",
        &["spawn", "--rounds", "1", "--commands", "3000", "--slots", "64", "--dispatch", "claim"],
    ),
    ("spawn16assign", &["spawn", "--rounds", "1", "--commands", "1000", "--slots", "16"]),
    ("growth", &["growth", "--rounds", "1", "--present", "200000"]),
    ("idle", &[]),
];

/// What to compare.
pub(crate) struct Paired {
    /// The `tasuki` binary of the older build.
    pub(crate) before: PathBuf,
    /// The `tasuki` binary of the newer build.
    pub(crate) after: PathBuf,
    /// A database whose user may create databases beside it.
    pub(crate) database_url: String,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// Names of the benches; empty: all of them.
    pub(crate) only: Vec<String>,
    /// Seconds for which an idle node is measured.
    pub(crate) idle_seconds: u64,
}

/// A measured value of one build.
struct Figure {
    name: String,
    value: f64,
    lower_is_better: bool,
}

/// The values of one figure in all rounds.
#[derive(Default)]
struct Series {
    before: Vec<f64>,
    after: Vec<f64>,
    ratios: Vec<f64>,
    lower_is_better: bool,
}

impl Paired {
    /// Runs all rounds and returns the table of ratios.
    pub(crate) fn run(&self) -> Result<String, String> {
        let benches = self.benches()?;
        let mut series: BTreeMap<(usize, usize, String), Series> = BTreeMap::new();
        for round in 0..self.rounds {
            for (bench_index, (bench, arguments)) in benches.iter().enumerate() {
                let before_first = round % 2 == 0;
                let (before, after) = if before_first {
                    let before = self.measure(&self.before, bench, arguments)?;
                    (before, self.measure(&self.after, bench, arguments)?)
                } else {
                    let after = self.measure(&self.after, bench, arguments)?;
                    (self.measure(&self.before, bench, arguments)?, after)
                };
                for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                    let key = (bench_index, index, format!("{bench:14} {}", before.name));
                    let entry = series.entry(key).or_default();
                    entry.lower_is_better = before.lower_is_better;
                    entry.before.push(before.value);
                    entry.after.push(after.value);
                    entry.ratios.push(match before.lower_is_better {
                        true => before.value / after.value,
                        false => after.value / before.value,
                    });
                }
                eprintln!("round {} of {}: {bench}", round + 1, self.rounds);
            }
        }
        Ok(table(&series))
    }

    fn benches(&self) -> Result<Vec<(&'static str, &'static [&'static str])>, String> {
        let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(format!("unknown bench {unknown}; the benches are {}", names.join(", ")));
        }
        let chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(BENCHES.into_iter().filter(|(name, _)| chosen(name)).collect())
    }

    fn measure(
        &self,
        binary: &Path,
        bench: &str,
        arguments: &[&str],
    ) -> Result<Vec<Figure>, String> {
        let place = Place::create(&self.database_url)?;
        let figures = match bench {
            "idle" => measure_idle(binary, &place, Duration::from_secs(self.idle_seconds)),
            _ => run_bench(binary, arguments, &place.url),
        };
        place.remove()?;
        figures
    }
}

/// Runs one bench and reads the figures from its JSON.
fn run_bench(binary: &Path, arguments: &[&str], url: &str) -> Result<Vec<Figure>, String> {
    let mut command = Command::new(binary);
    command.arg("bench").args(arguments).args(["--json", "--database-url", url]);
    let output = command.output().map_err(|error| format!("{}: {error}", binary.display()))?;
    let name = arguments.first().copied().unwrap_or_default();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("bench {name} of {} failed: {}", binary.display(), stderr.trim()));
    }
    let json: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("bench {name} of {}: {error}", binary.display()))?;
    let figures = figures_of(&json);
    match figures.is_empty() {
        true => Err(format!("bench {name} of {} printed no figure", binary.display())),
        false => Ok(figures),
    }
}

/// All figures in the JSON of a bench: rates, latencies from the call, and latenesses.
fn figures_of(json: &Value) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut push = |name: String, value: Option<f64>, lower_is_better: bool| {
        figures.extend(value.map(|value| Figure { name, value, lower_is_better }));
    };
    for figure in json["figures"].as_array().into_iter().flatten() {
        let name = figure["what"].as_str().unwrap_or("figure").to_owned();
        push(name, figure["tasuki"]["median"].as_f64(), false);
    }
    for quantile in ["p50", "p99"] {
        let key = format!("{quantile}_us");
        push(format!("call to start, {quantile}"), json["from_call"][&key].as_f64(), true);
        for lateness in json["lateness"].as_array().into_iter().flatten() {
            let name = format!("lateness {}, {quantile}", lateness["what"].as_str().unwrap_or(""));
            push(name, lateness[&key].as_f64(), true);
        }
    }
    figures
}

/// Starts a node that has no work and measures its CPU time and resident memory.
fn measure_idle(binary: &Path, place: &Place, window: Duration) -> Result<Vec<Figure>, String> {
    let data = place.folder.join("data");
    let node = Command::new(binary)
        .args(["up", "--listen", "127.0.0.1:0", "--database-url", &place.url, "--data"])
        .arg(&data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    let mut node = Node(node);
    node.wait_for(&data.join("api.json"))?;
    std::thread::sleep(IDLE_WARM_UP);
    let pid = node.0.id();
    let began = Instant::now();
    let cpu_before = cpu_seconds(pid)?;
    std::thread::sleep(window);
    let cpu = (cpu_seconds(pid)? - cpu_before) / began.elapsed().as_secs_f64();
    let memory = resident_mebibytes(pid)?;
    node.stop()?;
    let figure = |name: &str, value| Figure { name: name.into(), value, lower_is_better: true };
    Ok(vec![figure("idle CPU, ms per s", cpu * 1_000.0), figure("idle memory, MiB", memory)])
}

/// A running node; it is killed if the measurement fails.
struct Node(Child);

impl Node {
    fn wait_for(&mut self, file: &Path) -> Result<(), String> {
        let deadline = Instant::now() + NODE_TIMEOUT;
        while !file.exists() {
            if let Some(status) = self.0.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("the idle node exited with {status}"));
            }
            if Instant::now() > deadline {
                return Err("the idle node did not start in time".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn stop(mut self) -> Result<(), String> {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)
            .map_err(|error| format!("the idle node cannot be stopped: {error}"))?;
        let deadline = Instant::now() + NODE_TIMEOUT;
        while self.0.try_wait().map_err(|error| error.to_string())?.is_none() {
            if Instant::now() > deadline {
                return Err("the idle node did not stop in time".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of all threads of a process. The scheduler's own counter is exact; the ticks in `/proc/PID/stat` are too coarse for a
/// process that mostly sleeps.
fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let tasks =
        std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let mut nanoseconds = 0.0;
    for task in tasks.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let first = text.split_whitespace().next().and_then(|first| first.parse::<f64>().ok());
        nanoseconds += first.unwrap_or_default();
    }
    Ok(nanoseconds / 1e9)
}

fn resident_mebibytes(pid: u32) -> Result<f64, String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.map(|kibibytes| kibibytes / 1_024.0).ok_or_else(|| "no VmRSS in /proc".into())
}

/// A database and a folder of their own for one measurement.
struct Place {
    url: String,
    folder: PathBuf,
    /// The server's URL and the name of the database; `None` for SQLite.
    server: Option<(String, String)>,
}

impl Place {
    fn create(url: &str) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("tasuki-paired-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        if url.starts_with("sqlite:") {
            let url = format!("sqlite:{}", folder.join("paired.db").display());
            return Ok(Self { url, folder, server: None });
        }
        let name = format!("tasuki_paired_{}", std::process::id());
        administer(url, &format!("drop database if exists {name}"))?;
        administer(url, &format!("create database {name}"))?;
        let (server, _) = url.rsplit_once('/').ok_or("the URL names no database")?;
        let own = format!("{server}/{name}");
        Ok(Self { url: own, folder, server: Some((url.to_owned(), name)) })
    }

    fn remove(self) -> Result<(), String> {
        if let Some((server, name)) = &self.server {
            administer(server, &format!("drop database {name}"))?;
        }
        std::fs::remove_dir_all(&self.folder).map_err(|error| error.to_string())
    }
}

/// Runs one statement with the client of the server. The URL is `SCHEME://USER[:PASSWORD]@HOST[:PORT]/NAME`.
fn administer(url: &str, statement: &str) -> Result<(), String> {
    let mut command = if url.starts_with("postgres") {
        let mut command = Command::new("psql");
        command.args(["-q", "-d", url, "-c", statement]);
        command
    } else {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (account, host) = rest.split_once('@').ok_or("the URL names no user")?;
        let (user, password) = account.split_once(':').unwrap_or((account, ""));
        let host = host.split('/').next().unwrap_or_default();
        let (host, port) = host.split_once(':').unwrap_or((host, "3306"));
        let mut command = Command::new("mariadb");
        command.env("MYSQL_PWD", password);
        command.args(["--protocol=tcp", "-h", host, "-P", port, "-u", user, "-e", statement]);
        command
    };
    let output = command.output().map_err(|error| format!("the database client: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{statement}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn table(series: &BTreeMap<(usize, usize, String), Series>) -> String {
    let mut text = format!(
        "{:14} {:34} {:>10} {:>10}  {:>6}  spread of the ratios\n",
        "bench", "figure", "before", "after", "ratio"
    );
    for ((_, _, name), series) in series {
        let (bench, figure) = name.split_at(15);
        let mark = if series.lower_is_better { "v" } else { " " };
        let (least, greatest) = bounds(&series.ratios);
        text.push_str(&format!(
            "{bench}{figure:33}{mark} {:10.2} {:10.2}  {:6.2}  {least:.2} .. {greatest:.2}\n",
            median(&series.before),
            median(&series.after),
            median(&series.ratios),
        ));
    }
    text
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn bounds(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_read_from_the_json_of_a_bench() {
        let json = serde_json::json!({
            "figures": [{ "what": "drain", "tasuki": { "median": 12.5 } }],
            "lateness": [{ "what": "to start", "p50_us": 3, "p99_us": 9 }],
        });
        let found = figures_of(&json);
        let names: Vec<_> =
            found.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
        assert_eq!(
            names,
            [("drain", 12.5), ("lateness to start, p50", 3.0), ("lateness to start, p99", 9.0)]
        );
        assert!(!found[0].lower_is_better && found[1].lower_is_better);
    }

    #[test]
    fn the_median_of_an_even_number_of_values_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
