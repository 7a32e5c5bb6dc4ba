//! `cargo xtask`: what is done with the project beside building it.

mod play;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use cluster_kit::{Chaos, Crowd, DatabaseKind, Pace, Plan, RedisKind, all_faults};

/// What is done with the project beside building it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a cluster to play with: nodes, a database, Redis, and wires that can be cut
    Cluster {
        /// How many nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
        nodes: u8,

        /// On which database
        #[arg(long, value_enum, default_value = "postgres")]
        database: Database,

        /// With which Redis
        #[arg(long, value_enum, default_value = "one")]
        redis: Redis,

        /// With settings that make everything happen sooner
        #[arg(long)]
        quick: bool,

        /// Use this tasuki instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,
    },
    /// Measure what many workers on one machine cost, at rest and when everything is due at once
    Crowd {
        /// How many workers
        #[arg(long, default_value_t = 50)]
        workers: usize,

        /// How many definitions
        #[arg(long, default_value_t = 5000)]
        jobs: usize,

        /// For how many seconds they are measured at rest
        #[arg(long, default_value_t = 20)]
        seconds: u64,

        /// Use this tasuki instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,
    },
    /// Break clusters in every known way while jobs fire, and judge; goes on where it was interrupted
    Chaos {
        /// How often each fault
        #[arg(long, default_value_t = 3)]
        rounds: usize,

        /// How many nodes
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(3..=7))]
        nodes: u8,

        /// Only faults whose name contains this
        #[arg(long)]
        only: Option<String>,

        /// Only on this kind of cluster
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(Chaos::kinds()))]
        kind: Option<String>,

        /// With settings that make everything happen sooner; the bounds are not promised for these
        #[arg(long)]
        quick: bool,

        /// Where what was done is written down; what held is not done again
        #[arg(long, default_value = "target/chaos.jsonl")]
        journal: PathBuf,

        /// Leave what the nodes told in its folder
        #[arg(long)]
        keep: bool,

        /// Break this tasuki instead of building one
        #[arg(long)]
        tasuki: Option<PathBuf>,

        /// Only tell which faults there are
        #[arg(long)]
        list: bool,
    },
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
    cluster_kit::sweep();
    match task {
        Task::Cluster { nodes, database, redis, quick, tasuki } => {
            let Some(binary) = absolute(tasuki).or_else(build) else { return ExitCode::FAILURE };
            play::play(Plan {
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
                wires: true,
                keep: false,
            })
        }
        Task::Crowd { workers, jobs, seconds, tasuki } => {
            let Some(binary) = absolute(tasuki).or_else(build) else { return ExitCode::FAILURE };
            let (database, redis) = (DatabaseKind::Postgres, RedisKind::One);
            let (nodes, pace) = (workers, Pace::Default);
            let plan = Plan { binary, nodes, database, redis, pace, wires: false, keep: false };
            let time = Duration::from_secs(seconds);
            println!("{}", Crowd { plan, jobs, time }.measure(|line| eprintln!("{line}")));
            ExitCode::SUCCESS
        }
        Task::Chaos { list: true, .. } => {
            for fault in all_faults() {
                println!("{:<28} {}", fault.name, fault.what);
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
            let chaos = Chaos { binary, nodes, rounds, only, kind, pace, keep, journal };
            match chaos.run(|line| eprintln!("{line}")) {
                Ok(told) => {
                    println!("{}", told.table);
                    if told.broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
                }
                Err(why) => {
                    eprintln!("{why}");
                    ExitCode::from(2)
                }
            }
        }
    }
}

/// Nodes run in a folder of their own.
fn absolute(path: Option<PathBuf>) -> Option<PathBuf> {
    std::path::absolute(path?).ok()
}

fn pace(quick: bool) -> Pace {
    if quick { Pace::Quick } else { Pace::Default }
}

/// Builds the `tasuki` that is to be broken, as it is released. `None`: the compiler has said why not.
fn build() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--package", "tasuki-cli", "--bin", "tasuki"];
    let built = Command::new(cargo).args(build).status().ok()?;
    let here = std::env::current_exe().ok()?;
    let binary = here.parent()?.parent()?.join("release/tasuki");
    (built.success() && binary.exists()).then_some(binary)
}
