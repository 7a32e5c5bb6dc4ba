//! The `tasuki` binary: arguments in, words and exit codes out.
//!
//! Exit 0 is done, 1 is refused or failed, 2 is bad usage. Data goes to stdout, everything else to
//! stderr. This is also the one place that reads the real clock and hands it down.

mod ask;
mod audit;
mod bench;
mod cert;
mod client;
mod cluster;
mod completions;
mod config;
mod database;
mod demo;
mod doctor;
mod event;
mod job;
mod layers;
mod leader;
mod memory;
mod migrate;
mod node;
mod output;
mod pages;
#[cfg(test)]
mod reference;
mod run;
mod schedule;
mod serve;
mod server;
mod setting;
mod task;
mod token;
mod typed;
mod up;
mod view;
mod willing;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
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
    /// Start everything in one process: scheduler, worker, API, and a database in a file
    Up(Box<up::Up>),
    /// Start one node of a cluster: many that share a database, one of which leads
    Node(Box<node::Node>),
    /// How a node would start
    Config(Box<config::Config>),
    #[command(hide = true)]
    Spawner(serve::Spawner),
    /// What runs, when, and how
    Job(Box<job::Job>),
    /// What became of a job each time
    Run(run::Run),
    /// Work on request
    Task(task::Task),
    /// What happened, and what came of it
    Event(event::Event),
    /// Who runs the runs
    Worker(worker::Worker),
    /// Who plans
    Leader(leader::Leader),
    /// How the cluster behaves
    Setting(setting::Setting),
    /// Who did what
    Audit(audit::Audit),
    /// Who may ask for what
    Token(token::Token),
    /// By what nodes know each other
    #[command(subcommand)]
    Cert(CertVerb),
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
    /// Completions for a shell
    Completions(completions::Completions),
}

#[derive(Subcommand)]
enum BenchVerb {
    /// Measure the moves of runs on a database
    Store(bench::BenchStore),
    /// Measure how late planned runs start
    Fire(bench::BenchFire),
    /// Measure how fast a node works off tasks that wait
    Drain(bench::BenchDrain),
    /// Measure how fast tasks are taken
    Enqueue(bench::BenchEnqueue),
    /// Measure how long an idle node takes to start a task
    Latency(bench::BenchLatency),
    /// Measure how fast a node runs commands
    Spawn(bench::BenchSpawn),
    /// Measure whether a long history or much that lies ahead slows a node down
    Growth(bench::BenchGrowth),
}

impl BenchVerb {
    fn run(self) -> Result<String, output::Failure> {
        let runtime = self.database().runtime()?;
        runtime.block_on(async {
            match self {
                Self::Store(bench) => bench.run().await,
                Self::Fire(bench) => bench.run().await,
                Self::Drain(bench) => bench.run().await,
                Self::Enqueue(bench) => bench.run().await,
                Self::Latency(bench) => bench.run().await,
                Self::Spawn(bench) => bench.run().await,
                Self::Growth(bench) => bench.run().await,
            }
        })
    }

    fn database(&self) -> &database::Database {
        match self {
            Self::Store(bench) => &bench.database,
            Self::Fire(bench) => &bench.database,
            Self::Drain(bench) => &bench.database,
            Self::Enqueue(bench) => &bench.database,
            Self::Latency(bench) => &bench.database,
            Self::Spawn(bench) => &bench.database,
            Self::Growth(bench) => &bench.database,
        }
    }
}

#[derive(Subcommand)]
enum CertVerb {
    /// Make an authority and certificates to try things with
    Dev(cert::Dev),
}

#[derive(Subcommand)]
enum ScheduleVerb {
    /// Show what a schedule means and when it fires next
    Preview(schedule::Preview),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().noun {
        Noun::Up(up) => up.run(),
        Noun::Node(node) => node.run(),
        Noun::Config(config) => config.run(Timestamp::now()),
        Noun::Spawner(spawner) => spawner.run(),
        Noun::Job(job) => job.run(Timestamp::now()),
        Noun::Run(run) => run.run(Timestamp::now()),
        Noun::Task(task) => task.run(Timestamp::now()),
        Noun::Event(event) => event.run(Timestamp::now()),
        Noun::Worker(worker) => worker.run(Timestamp::now()),
        Noun::Leader(leader) => leader.run(Timestamp::now()),
        Noun::Setting(setting) => setting.run(Timestamp::now()),
        Noun::Audit(audit) => audit.run(Timestamp::now()),
        Noun::Token(token) => token.run(Timestamp::now()),
        Noun::Cert(CertVerb::Dev(dev)) => dev.run(Timestamp::now()),
        Noun::Schedule(ScheduleVerb::Preview(preview)) => preview.run(Timestamp::now()),
        Noun::Bench(bench) => bench.run(),
        Noun::Migrate(migrate) => migrate.run(),
        Noun::Doctor(doctor) => doctor.run(Timestamp::now),
        Noun::Completions(completions) => completions.run(Cli::command()),
    };
    output::finish(outcome)
}
