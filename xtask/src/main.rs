//! `cargo xtask`: development tasks of the repository: an interactive test cluster, the chaos test, the scale benchmark,
//! the comparison of two builds and the mutation test of the guards.

mod interactive;
mod mutants;
mod paired;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use cluster_kit::{
    Chaos, ClusterConfig, DatabaseKind, Pace, RedisKind, ScaleBenchmark, all_faults,
};

/// Development tasks: an interactive test cluster, a chaos test, a scale benchmark, a comparison of two builds and a
/// mutation test
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a test cluster (nodes, database, Redis) with a prompt to stop processes and block connections
    Cluster {
        /// Number of nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
        nodes: u8,

        /// Kind of database
        #[arg(long, value_enum, default_value = "postgres")]
        database: Database,

        /// Kind of Redis
        #[arg(long, value_enum, default_value = "one")]
        redis: Redis,

        /// Use settings with short intervals and timeouts
        #[arg(long)]
        quick: bool,

        /// Use this tasuki binary instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,
    },
    /// Measure statements, CPU and memory of many workers on one machine, while nothing is due and while all jobs are due
    Scale {
        /// Number of workers
        #[arg(long, default_value_t = 50)]
        workers: usize,

        /// Number of jobs
        #[arg(long, default_value_t = 5000)]
        jobs: usize,

        /// Seconds of the measurement while nothing is due
        #[arg(long, default_value_t = 20)]
        seconds: u64,

        /// Use this tasuki binary instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,
    },
    /// Compare two builds of tasuki on one database, in turns, and print the ratio of each figure
    Paired {
        /// tasuki binary of the older build
        before: PathBuf,

        /// tasuki binary of the newer build
        after: PathBuf,

        /// Database whose user may create databases beside it; for SQLite any `sqlite:` URL
        #[arg(long)]
        database_url: String,

        /// Number of rounds
        #[arg(long, default_value_t = 7)]
        rounds: usize,

        /// Run only these benches (comma-separated)
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,

        /// Seconds for which an idle node is measured
        #[arg(long, default_value_t = 60)]
        idle_seconds: u64,
    },
    /// Inject every fault into test clusters while jobs fire, and check the results; resumes after an interruption
    Chaos {
        /// Number of times that each fault is injected
        #[arg(long, default_value_t = 3)]
        rounds: usize,

        /// Number of nodes
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(3..=7))]
        nodes: u8,

        /// Run only faults whose name contains this text
        #[arg(long)]
        only: Option<String>,

        /// Run only on this kind of cluster
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(Chaos::cluster_kinds()))]
        kind: Option<String>,

        /// Use settings with short intervals and timeouts; the documented time bounds do not hold for them
        #[arg(long)]
        quick: bool,

        /// Journal file of completed steps; a step that passed is not repeated
        #[arg(long, default_value = "target/chaos.jsonl")]
        journal: PathBuf,

        /// Keep the logs of the nodes also after a step that passed
        #[arg(long)]
        keep: bool,

        /// Test this tasuki binary instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,

        /// Only list the faults
        #[arg(long)]
        list: bool,
    },
    /// Remove each guard of the transition table in turn, and check that a contract test fails; resumes after an interruption
    Mutants(mutants::Arguments),
}

#[derive(Clone, Copy, ValueEnum)]
enum Database {
    Postgres,
    Mariadb,
}

#[derive(Clone, Copy, ValueEnum)]
enum Redis {
    None,
    One,
    Sentinel,
    Cluster,
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    cluster_kit::remove_stale_folders();
    match task {
        Task::Cluster { nodes, database, redis, quick, tasuki } => {
            let Some(binary) = absolute(tasuki).or_else(build) else { return ExitCode::FAILURE };
            interactive::run_prompt(ClusterConfig {
                binary,
                nodes: usize::from(nodes),
                database: match database {
                    Database::Postgres => DatabaseKind::Postgres,
                    Database::Mariadb => DatabaseKind::MariaDb,
                },
                redis: match redis {
                    Redis::None => RedisKind::None,
                    Redis::One => RedisKind::One,
                    Redis::Sentinel => RedisKind::Sentinel,
                    Redis::Cluster => RedisKind::Cluster,
                },
                pace: pace(quick),
                proxies: true,
                keep_logs: false,
            })
        }
        Task::Scale { workers, jobs, seconds, tasuki } => {
            let Some(binary) = absolute(tasuki).or_else(build) else { return ExitCode::FAILURE };
            let (database, redis) = (DatabaseKind::Postgres, RedisKind::One);
            let (nodes, pace) = (workers, Pace::Default);
            let config = ClusterConfig {
                binary,
                nodes,
                database,
                redis,
                pace,
                proxies: false,
                keep_logs: false,
            };
            let window = Duration::from_secs(seconds);
            println!(
                "{}",
                ScaleBenchmark { config, jobs, window }.measure(|line| eprintln!("{line}"))
            );
            ExitCode::SUCCESS
        }
        Task::Paired { before, after, database_url, rounds, only, idle_seconds } => {
            let paired = paired::Paired { before, after, database_url, rounds, only, idle_seconds };
            match paired.run() {
                Ok(table) => {
                    print!("{table}");
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("error: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Task::Mutants(arguments) => mutants::run(&arguments),
        Task::Chaos { list: true, .. } => {
            for fault in all_faults() {
                println!("{:<28} {}", fault.name, fault.description);
            }
            ExitCode::SUCCESS
        }
        Task::Chaos { rounds, nodes, only, kind, quick, journal, tasuki, keep, .. } => {
            let Some(binary) = absolute(tasuki).or_else(build) else { return ExitCode::FAILURE };
            if let Some(folder) = journal.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let nodes = usize::from(nodes);
            let pace = pace(quick);
            let chaos = Chaos {
                binary,
                nodes,
                rounds,
                only,
                cluster_kind: kind,
                pace,
                keep_logs: keep,
                journal,
            };
            match chaos.run(|line| eprintln!("{line}")) {
                Ok(report) => {
                    println!("{}", report.table);
                    if report.has_violations { ExitCode::FAILURE } else { ExitCode::SUCCESS }
                }
                Err(why) => {
                    eprintln!("{why}");
                    ExitCode::from(2)
                }
            }
        }
    }
}

/// Makes a path absolute, because the nodes run in another folder.
fn absolute(path: Option<PathBuf>) -> Option<PathBuf> {
    std::path::absolute(path?).ok()
}

fn pace(quick: bool) -> Pace {
    if quick { Pace::Quick } else { Pace::Default }
}

/// Builds the release binary of `tasuki`. `None` if the build failed; cargo has printed the reason.
fn build() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--package", "tasuki-cli", "--bin", "tasuki"];
    let built = Command::new(cargo).args(build).status().ok()?;
    let here = std::env::current_exe().ok()?;
    let binary = here.parent()?.parent()?.join("release/tasuki");
    (built.success() && binary.exists()).then_some(binary)
}
