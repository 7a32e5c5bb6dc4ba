//! The `tasuki` binary: arguments in, words and exit codes out.
//!
//! Exit 0 is done, 1 is refused or failed, 2 is bad usage. Data goes to stdout, everything else to
//! stderr. This is also the one place that reads the real clock and hands it down.

mod bench;
mod database;
mod doctor;
mod migrate;
mod output;
mod schedule;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use jiff::Timestamp;

/// Runs jobs: at a time, on an event, or when asked. Each once, on time, with its whole history.
#[derive(Parser)]
#[command(name = "tasuki", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Subcommand)]
enum Noun {
    /// When a job fires
    #[command(subcommand)]
    Schedule(ScheduleVerb),
    /// Bring a database's schema up to date
    Migrate(migrate::Migrate),
    /// Look for everything in a database that cannot be
    Doctor(doctor::Doctor),
    /// How fast it is here
    #[command(subcommand)]
    Bench(BenchVerb),
}

#[derive(Subcommand)]
enum BenchVerb {
    /// Measure the moves of runs on a database
    Store(bench::BenchStore),
}

#[derive(Subcommand)]
enum ScheduleVerb {
    /// Show what a schedule means and when it fires next
    Preview(schedule::Preview),
}

/// Runs what has to wait for a database.
fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime needs only threads");
    runtime.block_on(work)
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().noun {
        Noun::Schedule(ScheduleVerb::Preview(preview)) => preview.run(Timestamp::now()),
        Noun::Bench(BenchVerb::Store(bench)) => in_runtime(bench.run()),
        Noun::Migrate(migrate) => migrate.run(),
        Noun::Doctor(doctor) => doctor.run(Timestamp::now),
    };
    output::finish(outcome)
}
